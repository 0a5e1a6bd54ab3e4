//! The samples of a run, merged over its attempts.

use crate::MetricSample;

/// The number of steps in the median step time: enough that one slow step does not count, and few enough that the
/// median follows a change.
const MEDIAN_OVER: usize = 51;

/// The samples of a run, merged over its attempts.
///
/// After a resume from step 500, steps 501… appear again: **the higher attempt wins**. The samples that it replaces are
/// kept in a separate list, so that a chart can draw them dimmed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    effective: Vec<MetricSample>,
    superseded: Vec<MetricSample>,
}

impl History {
    /// Makes an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sample. Samples must be added in the order in which they were written.
    pub fn push(&mut self, sample: MetricSample) {
        match self.effective.last() {
            Some(last) if sample.step > last.step && sample.attempt >= last.attempt => self.effective.push(sample),
            None => self.effective.push(sample),
            Some(_) => self.merge(sample),
        }
    }

    /// Adds samples, in the order in which they were written.
    pub fn extend(&mut self, samples: impl IntoIterator<Item = MetricSample>) {
        samples.into_iter().for_each(|sample| self.push(sample));
    }

    /// Adds a sample whose step is not above the newest step, or whose attempt is older than the newest one.
    fn merge(&mut self, sample: MetricSample) {
        if self.effective.last().is_some_and(|newest| newest.attempt > sample.attempt) {
            self.superseded.push(sample);
            return;
        }
        let at = self.effective.partition_point(|s| s.step < sample.step);
        let overtaken = self.effective[at..].partition_point(|s| s.attempt < sample.attempt);
        self.superseded.extend(self.effective.drain(at..at + overtaken));
        match self.effective.get_mut(at).filter(|s| s.step == sample.step) {
            // A later line of the same attempt corrects an earlier one.
            Some(same) => self.superseded.push(std::mem::replace(same, sample)),
            None => self.effective.insert(at, sample),
        }
    }

    /// Returns the samples that count, by ascending step, each step once.
    pub fn effective(&self) -> &[MetricSample] {
        &self.effective
    }

    /// Returns the samples that do not count, because a sample of a later attempt or a later line replaced them.
    pub fn superseded(&self) -> &[MetricSample] {
        &self.superseded
    }

    /// Returns the newest sample that counts.
    pub fn last(&self) -> Option<&MetricSample> {
        self.effective.last()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.effective.is_empty()
    }

    /// Returns the median seconds of the last 51 logged steps.
    pub fn median_step_s(&self) -> Option<f64> {
        median_step_s(&self.effective)
    }
}

/// Returns the median of `step_s` over those of the last 51 samples that have one; `None` if none has. Of steps that were logged before a
/// program was attached, the log may have no time.
pub fn median_step_s(samples: &[MetricSample]) -> Option<f64> {
    let mut last: Vec<f64> = samples.iter().rev().take(MEDIAN_OVER).map(|s| s.step_s).filter(|s| *s > 0.0).collect();
    last.sort_by(f64::total_cmp);
    last.get(last.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(attempt: u32, step: u64) -> MetricSample {
        MetricSample { attempt, step, step_s: step as f64, ..MetricSample::default() }
    }

    fn history(samples: impl IntoIterator<Item = (u32, u64)>) -> History {
        let mut history = History::new();
        samples.into_iter().for_each(|(attempt, step)| history.push(sample(attempt, step)));
        history
    }

    fn keys(samples: &[MetricSample]) -> Vec<(u32, u64)> {
        samples.iter().map(|s| (s.attempt, s.step)).collect()
    }

    #[test]
    fn the_higher_attempt_wins_and_the_samples_it_replaces_are_kept() {
        let history = history([(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5)]);
        assert_eq!(keys(history.effective()), [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]);
        assert_eq!(keys(history.superseded()), [(1, 3), (1, 4)]);
    }

    #[test]
    fn the_first_sample_of_a_resume_replaces_all_later_steps_of_earlier_attempts() {
        let history = history([(1, 10), (1, 20), (1, 30), (1, 40), (2, 20)]);
        assert_eq!(keys(history.effective()), [(1, 10), (2, 20)]);
        assert_eq!(keys(history.superseded()), [(1, 20), (1, 30), (1, 40)]);
        assert_eq!(history.last().unwrap().attempt, 2);
    }

    #[test]
    fn a_later_line_of_the_same_attempt_corrects_an_earlier_one() {
        let mut history = history([(1, 1), (1, 2), (1, 3)]);
        history.push(MetricSample { loss: Some(0.5), ..sample(1, 2) });
        assert_eq!(history.effective()[1].loss, Some(0.5));
        assert_eq!(keys(history.superseded()), [(1, 2)]);
    }

    #[test]
    fn a_late_line_of_an_earlier_attempt_does_not_count() {
        let history = history([(1, 1), (2, 1), (1, 2), (2, 2)]);
        assert_eq!(keys(history.effective()), [(2, 1), (2, 2)]);
        assert_eq!(keys(history.superseded()), [(1, 1), (1, 2)]);
    }

    #[test]
    fn the_median_step_time_ignores_one_slow_step() {
        let mut history = History::new();
        assert_eq!(history.median_step_s(), None);
        for step in 1..=60 {
            let step_s = if step == 58 { 900.0 } else { 2.0 };
            history.push(MetricSample { step_s, ..sample(1, step) });
        }
        assert_eq!(history.median_step_s(), Some(2.0));
    }

    proptest! {
        #[test]
        fn steps_ascend_and_no_sample_is_lost(lines in prop::collection::vec((1u32..5, 1u64..30), 0..200)) {
            let history = history(lines.clone());
            prop_assert!(history.effective().windows(2).all(|w| w[0].step < w[1].step));
            prop_assert!(history.effective().windows(2).all(|w| w[0].attempt <= w[1].attempt));
            let mut all = keys(history.effective());
            all.extend(keys(history.superseded()));
            all.sort_unstable();
            let mut wanted = lines;
            wanted.sort_unstable();
            prop_assert_eq!(all, wanted);
        }
    }
}
