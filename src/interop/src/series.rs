//! The content of another tool's log: its series, and the name and settings of the run.

use std::collections::{BTreeMap, HashMap};

/// A value at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The step.
    pub step: u64,
    /// When it was logged, Unix seconds.
    pub t: f64,
    /// The value; may be NaN or infinite.
    pub value: f64,
}

/// The log of a run of another tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    series: Vec<(String, Vec<Point>)>,
    index: HashMap<String, usize>,
    /// The name of the run, if the log has one.
    pub name: Option<String>,
    /// The settings of the run, if the log has them: a key and its value as JSON.
    pub config: BTreeMap<String, String>,
    /// Which part of the log could not be read, and why.
    pub warnings: Vec<String>,
}

impl Log {
    /// Adds a value. If its step is not after the last one, as after a resume, it replaces the values from its step on.
    pub fn push(&mut self, tag: &str, point: Point) {
        let at = match self.index.get(tag) {
            Some(at) => *at,
            None => {
                self.index.insert(tag.to_owned(), self.series.len());
                self.series.push((tag.to_owned(), Vec::new()));
                self.series.len() - 1
            }
        };
        let points = &mut self.series[at].1;
        if points.last().is_some_and(|last| last.step >= point.step) {
            points.truncate(points.partition_point(|earlier| earlier.step < point.step));
        }
        points.push(point);
    }

    /// Removes all values from a step on: the tool was restarted there.
    pub fn restart_at(&mut self, step: u64) {
        for (_, points) in &mut self.series {
            points.truncate(points.partition_point(|point| point.step < step));
        }
    }

    /// Returns the series that have values, by their tags.
    pub fn series(&self) -> impl Iterator<Item = (&str, &[Point])> {
        let series = self.series.iter().map(|(tag, points)| (tag.as_str(), points.as_slice()));
        series.filter(|(_, points)| !points.is_empty())
    }

    /// Returns the points of a series; an empty slice if there is no such series.
    pub fn points(&self, tag: &str) -> &[Point] {
        self.index.get(tag).map_or(&[], |at| &self.series[*at].1)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.series.iter().map(|(_, points)| points.len()).sum()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(steps: &[u64]) -> Log {
        let mut log = Log::default();
        for (at, step) in steps.iter().enumerate() {
            log.push("loss", Point { step: *step, t: 0.0, value: at as f64 });
        }
        log
    }

    #[test]
    fn after_a_step_backwards_the_later_values_count() {
        let log = log(&[1, 2, 3, 4, 3, 5]);
        let points: Vec<_> = log.points("loss").iter().map(|point| (point.step, point.value)).collect();
        assert_eq!(points, [(1, 0.0), (2, 1.0), (3, 4.0), (5, 5.0)]);
    }

    #[test]
    fn a_restart_removes_the_later_steps_of_every_series() {
        let mut log = log(&[1, 2, 3]);
        log.push("other", Point { step: 9, t: 0.0, value: 0.0 });
        log.restart_at(2);
        assert_eq!((log.points("loss").len(), log.points("other").len(), log.len()), (1, 0, 1));
        assert_eq!(log.series().count(), 1);
    }
}
