//! The busy time of each rank in each step, relative to the other ranks: which ranks are slow.

use rundir::MetricSample;
use std::collections::VecDeque;

/// The maximum number of values that are kept; older steps are dropped.
const MAX_VALUES: usize = 1 << 19;

/// Levels of slowness: the excess over the median of all ranks, as a fraction of it.
pub const LEVELS: [f32; 4] = [0.05, 0.10, 0.25, 0.50];

/// Busy times of the newest steps, ascending.
#[derive(Debug, Clone, Default)]
pub struct RankTimes {
    rows: VecDeque<RankRow>,
    values: usize,
}

/// Busy times of one step.
#[derive(Debug, Clone)]
pub struct RankRow {
    /// The step.
    pub step: u64,
    /// Busy time of the median rank, seconds.
    pub median_s: f32,
    /// The excess of each rank over the median, as a fraction of it: 0.5 means 50 % slower.
    pub over: Vec<f32>,
}

impl RankRow {
    /// Returns the slowest rank and its excess over the median.
    pub fn slowest(&self) -> (usize, f32) {
        let most = self.over.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        most.unwrap_or_default()
    }
}

impl RankTimes {
    /// Adds a step. If the trainer reports the time spent waiting for other ranks, that time is excluded; with it, all
    /// ranks would seem equally slow.
    pub fn push(&mut self, sample: &MetricSample) {
        let times = if sample.busy_s_by_rank.is_empty() { &sample.step_s_by_rank } else { &sample.busy_s_by_rank };
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(median) = sorted.get(sorted.len().saturating_sub(1) / 2).copied().filter(|m| *m > 0.0) else { return };
        let over = times.iter().map(|t| (t / median - 1.0) as f32).collect();
        self.values += times.len();
        self.rows.push_back(RankRow { step: sample.step, median_s: median as f32, over });
        while self.values > MAX_VALUES && self.rows.len() > 1 {
            self.values -= self.rows.pop_front().map_or(0, |row| row.over.len());
        }
    }

    /// Drops the steps from this one on, which a later attempt repeats.
    pub fn cut(&mut self, step: u64) {
        while self.rows.back().is_some_and(|row| row.step >= step) {
            self.values -= self.rows.pop_back().map_or(0, |row| row.over.len());
        }
    }

    /// Returns the number of ranks in the newest step.
    pub fn ranks(&self) -> usize {
        self.rows.back().map_or(0, |row| row.over.len())
    }

    /// Returns the newest step that is at most `step`.
    pub fn at(&self, step: u64) -> Option<&RankRow> {
        self.rows.get(self.rows.partition_point(|row| row.step <= step).checked_sub(1)?)
    }

    /// Returns the steps in `low..high`.
    pub fn between(&self, low: f64, high: f64) -> impl DoubleEndedIterator<Item = &RankRow> {
        let at = |x: f64| self.rows.partition_point(|row| (row.step as f64) < x);
        self.rows.range(at(low)..at(high.max(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sample;

    fn step(step: u64, busy: &[f64]) -> MetricSample {
        MetricSample { busy_s_by_rank: busy.to_vec(), ..sample(1, step) }
    }

    #[test]
    fn a_rank_is_compared_with_the_median_of_all() {
        let mut times = RankTimes::default();
        times.push(&step(1, &[1.0, 1.0, 1.5, 0.9]));
        let row = times.at(1).unwrap();
        assert_eq!((row.median_s, row.slowest()), (1.0, (2, 0.5)));
        assert!(times.at(0).is_none() && times.at(99).is_some());
    }

    #[test]
    fn repeated_steps_replace_the_old_ones() {
        let mut times = RankTimes::default();
        (1..=9).for_each(|n| times.push(&step(n, &[1.0, 1.0])));
        times.cut(6);
        (6..=7).for_each(|n| times.push(&step(n, &[1.0, 2.0])));
        let slow: Vec<bool> = times.between(1.0, 99.0).map(|row| row.slowest().1 > 0.0).collect();
        assert_eq!(slow, [false, false, false, false, false, true, true]);
    }

    #[test]
    fn the_number_of_kept_values_is_bounded() {
        let mut times = RankTimes::default();
        let busy = vec![1.0; 4096];
        (1..=300).for_each(|n| times.push(&step(n, &busy)));
        assert_eq!(times.between(0.0, 1e9).count(), MAX_VALUES / 4096);
    }
}
