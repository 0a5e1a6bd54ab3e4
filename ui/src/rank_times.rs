//! The busy time of each rank in each step, relative to the median rank: shows which ranks are slow.

use rundir::MetricSample;
use std::collections::VecDeque;
use std::ops::Range;

/// The maximum number of values in memory; older steps are dropped.
const MAX_VALUES: usize = 1 << 19;

/// Thresholds of slowness: the excess over the median rank, as a fraction of the median.
pub const LEVELS: [f32; 4] = [0.05, 0.10, 0.25, 0.50];

/// Busy times of the newest steps, in ascending order of steps.
#[derive(Debug, Clone, Default)]
pub struct RankTimes {
    steps: VecDeque<Step>,
    /// The excess of each rank, step after step. The values of dropped steps stay at the beginning until there are
    /// more than [`MAX_VALUES`] of them.
    over: Vec<f32>,
    /// The number of values that were removed from the beginning of `over`.
    before: usize,
}

/// The position of the values of a step.
#[derive(Debug, Clone)]
struct Step {
    step: u64,
    median_s: f32,
    /// The position of the step's first value among all values that were added, including removed ones.
    first: usize,
    ranks: usize,
    /// The number of consecutive steps with the same number of ranks, up to and including this one.
    alike: usize,
}

/// Busy times of one step.
#[derive(Debug, Clone, Copy)]
pub struct RankRow<'a> {
    /// The step.
    pub step: u64,
    /// Busy time of the median rank, seconds.
    pub median_s: f32,
    /// The excess of each rank over the median, as a fraction of the median: 0.5 means 50 % slower.
    pub over: &'a [f32],
}

impl RankRow<'_> {
    /// Returns the slowest rank and its excess over the median.
    pub fn slowest(&self) -> (usize, f32) {
        let most = self.over.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        most.unwrap_or_default()
    }
}

impl RankTimes {
    /// Adds a step. If the trainer reports the time that ranks wait for each other, that time is excluded; otherwise
    /// all ranks would seem equally slow.
    pub fn push(&mut self, sample: &MetricSample) {
        let times = if sample.busy_s_by_rank.is_empty() { &sample.step_s_by_rank } else { &sample.busy_s_by_rank };
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(median) = sorted.get(sorted.len().saturating_sub(1) / 2).copied().filter(|m| *m > 0.0) else { return };
        let ranks = times.len();
        let alike = self.steps.back().filter(|last| last.ranks == ranks).map_or(1, |last| last.alike + 1);
        let first = self.before + self.over.len();
        self.steps.push_back(Step { step: sample.step, median_s: median as f32, first, ranks, alike });
        self.over.extend(times.iter().map(|t| (t / median - 1.0) as f32));
        let end = first + ranks;
        while self.steps.len() > 1 && end - self.steps[0].first > MAX_VALUES {
            self.steps.pop_front();
        }
        let dropped = self.steps[0].first - self.before;
        if dropped > MAX_VALUES {
            self.over.drain(..dropped);
            self.before += dropped;
        }
    }

    /// Drops this step and all later ones, because a later attempt repeats them.
    pub fn cut(&mut self, step: u64) {
        while let Some(last) = self.steps.pop_back_if(|row| row.step >= step) {
            self.over.truncate(last.first - self.before);
        }
    }

    /// Returns the number of ranks in the newest step.
    pub fn ranks(&self) -> usize {
        self.steps.back().map_or(0, |step| step.ranks)
    }

    /// Returns the newest step that is at most `step`.
    pub fn at(&self, step: u64) -> Option<RankRow<'_>> {
        Some(self.row(&self.steps[self.steps.partition_point(|row| row.step <= step).checked_sub(1)?]))
    }

    fn row(&self, step: &Step) -> RankRow<'_> {
        let first = step.first - self.before;
        RankRow { step: step.step, median_s: step.median_s, over: &self.over[first..first + step.ranks] }
    }

    /// Returns the position of the first step at or after `x` among the steps in memory.
    pub fn position(&self, x: f64) -> usize {
        self.steps.partition_point(|row| (row.step as f64) < x)
    }

    /// Returns the largest excess of each rank over a range of positions; negative infinity for a rank without
    /// values.
    pub fn worst(&self, positions: Range<usize>) -> Vec<f32> {
        let mut worst = vec![f32::NEG_INFINITY; self.ranks()];
        let mut add = |over: &[f32]| worst.iter_mut().zip(over).for_each(|(worst, over)| *worst = worst.max(*over));
        let Some(last) = positions.end.checked_sub(1).filter(|last| positions.contains(last)) else { return worst };
        let last = &self.steps[last];
        if last.alike >= positions.len() {
            // All these steps have the same number of ranks, so that their values form one table.
            let values = self.steps[positions.start].first - self.before..last.first + last.ranks - self.before;
            self.over[values].chunks_exact(last.ranks).for_each(&mut add);
        } else {
            self.steps.range(positions).for_each(|step| add(self.row(step).over));
        }
        worst
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
        let slow: Vec<bool> = (1..=9).map(|step| times.at(step).unwrap().slowest().1 > 0.0).collect();
        assert_eq!(slow, [false, false, false, false, false, true, true, true, true]);
        assert_eq!((times.worst(0..5), times.worst(0..7)), (vec![0.0, 0.0], vec![0.0, 1.0]));
    }

    #[test]
    fn the_number_of_kept_values_is_bounded() {
        let mut times = RankTimes::default();
        let busy = vec![1.0; 4096];
        (1..=700).for_each(|n| times.push(&step(n, &busy)));
        assert_eq!(times.position(f64::INFINITY), MAX_VALUES / 4096);
        assert!(times.over.len() <= 2 * MAX_VALUES + 4096);
        assert_eq!((times.at(700).unwrap().over.len(), times.at(572).map(|row| row.step)), (4096, None));
    }

    #[test]
    fn the_worst_excess_of_a_rank_is_found_over_steps_of_different_numbers_of_ranks() {
        let mut times = RankTimes::default();
        times.push(&step(1, &[1.0, 1.0, 2.0, 1.0]));
        times.push(&step(2, &[1.0, 1.5]));
        times.push(&step(3, &[3.0, 1.0]));
        assert_eq!(times.worst(0..3), [2.0, 0.5]);
        assert_eq!(times.worst(1..3), [2.0, 0.5]);
        assert_eq!(times.worst(1..2), [0.0, 0.5]);
        assert_eq!(times.worst(3..3), [f32::NEG_INFINITY; 2]);
        assert_eq!((times.position(2.0), times.position(2.5), times.position(9.0)), (1, 2, 3));
    }
}
