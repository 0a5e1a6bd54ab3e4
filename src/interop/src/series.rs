//! The content of another tool's log: its series, and the name and settings of the run.

use camino::Utf8Path;
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

/// The log of a run of another tool, read file by file, the oldest first.
///
/// A file that begins at a step that an earlier file has is a restart: it replaces the values of its series from there on. Within a file,
/// values are sorted by step, and of several values of one step, the last one counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    series: Vec<Series>,
    index: HashMap<String, usize>,
    /// The values of this file that were left out, for [`Log::end_file`].
    left_out: LeftOut,
    /// The name of the run, if the log has one.
    pub name: Option<String>,
    /// The settings of the run, if the log has them: a key and its value as JSON.
    pub config: BTreeMap<String, String>,
    /// Warnings: each names values that are left out, and the reason.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Series {
    tag: String,
    points: Vec<Point>,
    /// The first point of the current file. The points before it are sorted.
    start: usize,
    /// Whether the points of the current file are sorted, each step once.
    is_sorted: bool,
}

/// Counts of values that are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct LeftOut {
    /// Their steps were repeated after a restart.
    restarted: usize,
    /// Their series has a later value of the same step.
    repeated: usize,
}

impl Log {
    /// Adds a value of the current file.
    pub fn push(&mut self, tag: &str, point: Point) {
        let at = match self.index.get(tag) {
            Some(at) => *at,
            None => {
                self.index.insert(tag.to_owned(), self.series.len());
                self.series.push(Series { tag: tag.to_owned(), points: Vec::new(), start: 0, is_sorted: true });
                self.series.len() - 1
            }
        };
        let series = &mut self.series[at];
        if let Some(last) = series.points[series.start..].last() {
            series.is_sorted &= last.step < point.step;
        }
        series.points.push(point);
    }

    /// Ends the current file: its values replace those of earlier files. Warnings count the values that are left out.
    pub fn end_file(&mut self, path: &Utf8Path) {
        self.settle();
        let LeftOut { restarted, repeated } = std::mem::take(&mut self.left_out);
        if restarted > 0 {
            self.warnings
                .push(format!("{path} repeats steps; earlier values of these steps are left out: {restarted}"));
        }
        if repeated > 0 {
            self.warnings.push(format!(
                "{path}: values left out, because a later value has the same name and step: {repeated} \
                 (a value that is logged without a step has step 0)"
            ));
        }
    }

    /// Removes all values from a step on: the tool was restarted there.
    pub fn restart_at(&mut self, step: u64) {
        self.settle();
        for series in &mut self.series {
            let kept = series.points.partition_point(|point| point.step < step);
            self.left_out.restarted += series.points.len() - kept;
            series.points.truncate(kept);
            series.start = kept;
        }
    }

    /// Sorts the values of the current file, and removes the values that they replace.
    fn settle(&mut self) {
        for series in self.series.iter_mut().filter(|series| series.start < series.points.len()) {
            let mut part = series.points.split_off(series.start);
            if !series.is_sorted {
                // The order of values with equal steps is kept.
                part.sort_by_key(|point| point.step);
                let before = part.len();
                part.dedup_by(|later, kept| {
                    let is_again = later.step == kept.step;
                    if is_again {
                        *kept = *later;
                    }
                    is_again
                });
                self.left_out.repeated += before - part.len();
            }
            let first = part[0].step;
            let kept = series.points.partition_point(|point| point.step < first);
            self.left_out.restarted += series.points.len() - kept;
            series.points.truncate(kept);
            series.points.append(&mut part);
            (series.start, series.is_sorted) = (series.points.len(), true);
        }
    }

    /// Returns the series that have values, by their tags.
    pub fn series(&self) -> impl Iterator<Item = (&str, &[Point])> {
        let series = self.series.iter().map(|series| (series.tag.as_str(), series.points.as_slice()));
        series.filter(|(_, points)| !points.is_empty())
    }

    /// Returns the points of a series; an empty slice if there is no such series.
    pub fn points(&self, tag: &str) -> &[Point] {
        self.index.get(tag).map_or(&[], |at| &self.series[*at].points)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.series.iter().map(|series| series.points.len()).sum()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads files, each with the steps of the series `loss`. The values count up.
    fn log(files: &[&[u64]]) -> Log {
        let (mut log, mut value) = (Log::default(), 0.0);
        for steps in files {
            for step in *steps {
                log.push("loss", Point { step: *step, t: 0.0, value });
                value += 1.0;
            }
            log.end_file(Utf8Path::new("file"));
        }
        log
    }

    fn points(log: &Log) -> Vec<(u64, f64)> {
        log.points("loss").iter().map(|point| (point.step, point.value)).collect()
    }

    #[test]
    fn values_out_of_order_are_sorted_and_of_one_step_the_last_counts() {
        let log = log(&[&[1, 2, 5, 3, 4, 3]]);
        assert_eq!(points(&log), [(1, 0.0), (2, 1.0), (3, 5.0), (4, 4.0), (5, 2.0)]);
        let [warning] = &log.warnings[..] else { panic!("{:?}", log.warnings) };
        assert!(warning.contains("same name and step: 1 "), "{warning}");
        let without_steps = super::tests::log(&[&[0, 0, 0]]);
        assert_eq!(points(&without_steps), [(0, 2.0)]);
        assert!(without_steps.warnings[0].contains("same name and step: 2 "), "{:?}", without_steps.warnings);
    }

    #[test]
    fn a_later_file_replaces_the_values_from_its_first_step_on() {
        let log = log(&[&[1, 2, 3, 4, 5], &[], &[4, 3], &[9]]);
        assert_eq!(points(&log), [(1, 0.0), (2, 1.0), (3, 6.0), (4, 5.0), (9, 7.0)]);
        let [warning] = &log.warnings[..] else { panic!("{:?}", log.warnings) };
        assert!(warning.ends_with("left out: 3"), "{warning}");
    }

    #[test]
    fn a_restart_removes_the_later_steps_of_every_series() {
        let mut log = log(&[&[1, 2, 3]]);
        log.push("other", Point { step: 9, t: 0.0, value: 0.0 });
        log.restart_at(2);
        assert_eq!((log.points("loss").len(), log.points("other").len(), log.len()), (1, 0, 1));
        assert_eq!(log.series().count(), 1);
        log.end_file(Utf8Path::new("file"));
        assert!(log.warnings[0].ends_with("left out: 3"), "{:?}", log.warnings);
    }

    #[test]
    fn a_million_values_in_reverse_order_are_read_at_once() {
        let steps: Vec<u64> = (0..1_000_000).rev().collect();
        let log = log(&[&steps, &steps]);
        assert_eq!((log.len(), log.points("loss")[0].step), (1_000_000, 0));
    }
}
