//! Counts the steps that the optimizer skipped because the loss or the gradient was not finite, and decides when they end a run.

use std::collections::VecDeque;

/// Skipped steps end a run when there are as many as the limit within this many times as many steps. A share of 10 % is far above what a
/// few bad clips or a rare overflow cause, and well below a run that learns little.
const WINDOW: u64 = 10;

/// The skipped steps of a run, which are added in the order of the steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkippedSteps {
    total: u64,
    in_a_row: u64,
    /// The steps that were skipped in the last window.
    recent: VecDeque<u64>,
}

impl SkippedSteps {
    /// Continues after a checkpoint of `step`: with the number of all skipped steps, and of those in a row at its end.
    pub fn restored(step: u64, total: u64, in_a_row: u64) -> Self {
        Self { total: total.max(in_a_row), in_a_row, recent: (step.saturating_sub(in_a_row) + 1..=step).collect() }
    }

    /// Adds a step. `limit` is `train.max_bad_steps`.
    pub fn push(&mut self, step: u64, is_skipped: bool, limit: u64) {
        self.in_a_row = if is_skipped { self.in_a_row + 1 } else { 0 };
        if is_skipped {
            self.total += 1;
            self.recent.push_back(step);
        }
        let begin = step.saturating_sub(WINDOW.saturating_mul(limit));
        while self.recent.front().is_some_and(|skipped| *skipped <= begin) {
            self.recent.pop_front();
        }
    }

    /// Returns the number of all skipped steps.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of skipped steps in a row up to the last step.
    pub fn in_a_row(&self) -> u64 {
        self.in_a_row
    }

    /// Returns how many steps were skipped, in words, if there are so many that the run ends.
    pub fn end(&self, limit: u64) -> Option<String> {
        if self.in_a_row >= limit {
            return Some(match self.in_a_row {
                1 => "in the last step".into(),
                n => format!("in {n} steps in a row"),
            });
        }
        let recent = self.recent.len() as u64;
        (recent >= limit).then(|| format!("in {recent} of the last {} steps", WINDOW.saturating_mul(limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the step at whose end a run with these skipped steps ends.
    fn ends_at(limit: u64, is_skipped: impl Fn(u64) -> bool) -> Option<u64> {
        let mut skipped = SkippedSteps::default();
        (1..=1000).find(|step| {
            skipped.push(*step, is_skipped(*step), limit);
            skipped.end(limit).is_some()
        })
    }

    #[test]
    fn many_skipped_steps_end_a_run_and_few_do_not() {
        assert_eq!(ends_at(10, |step| step > 50), Some(60), "in a row");
        assert_eq!(ends_at(10, |step| step % 2 == 0), Some(20), "every other step");
        assert_eq!(ends_at(10, |step| step % 10 == 0), Some(100), "one step in ten");
        assert_eq!(ends_at(10, |step| step % 12 == 0), None, "fewer");
        assert_eq!(ends_at(1, |step| step == 7), Some(7), "the first one");
        assert_eq!(ends_at(u64::MAX, |_| true), None);
    }

    #[test]
    fn the_count_in_a_row_continues_after_a_checkpoint() {
        let mut skipped = SkippedSteps::restored(40, 5, 2);
        skipped.push(41, true, 4);
        assert_eq!((skipped.total(), skipped.in_a_row(), skipped.end(4)), (6, 3, None));
        skipped.push(42, true, 4);
        assert_eq!(skipped.end(4).as_deref(), Some("in 4 steps in a row"));
        let mut spread = SkippedSteps::restored(40, 2, 2);
        (41..=44).for_each(|step| spread.push(step, step % 2 == 0, 4));
        assert_eq!((spread.in_a_row(), spread.end(4).as_deref()), (1, Some("in 4 of the last 40 steps")));
    }
}
