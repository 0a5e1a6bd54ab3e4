//! The time of a step, measured by the clock while a log grows.

use std::collections::VecDeque;

/// The time over which steps are counted, in seconds. A log is read a few times per second, so that the time of a single step is not known.
const WINDOW_S: f64 = 5.0;

/// Measures the time of a step.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When lines were read first: steps that were there before have no times.
    first_s: Option<f64>,
    /// The newest step of each later time of reading, the oldest first.
    moments: VecDeque<(u64, f64)>,
}

impl Pace {
    /// Takes a step that was read at a time, Unix seconds, and returns the seconds of a step; `None` until they are known.
    pub fn take(&mut self, step: u64, t: f64) -> Option<f64> {
        if t <= *self.first_s.get_or_insert(t) {
            return None;
        }
        match self.moments.back_mut() {
            Some(last) if last.1 >= t => last.0 = last.0.max(step),
            _ => self.moments.push_back((step, t)),
        }
        while self.moments.get(1).is_some_and(|second| t - second.1 >= WINDOW_S) {
            self.moments.pop_front();
        }
        let (first, began) = *self.moments.front()?;
        let steps = step.checked_sub(first).filter(|steps| *steps > 0)?;
        Some((t - began) / steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_step_is_that_of_several_seconds() {
        let mut pace = Pace::default();
        // A log is read every 0.25 s, and its program does a step in 0.3 s.
        assert!((1..100).all(|step| pace.take(step, 1000.0).is_none()), "these steps were there before");
        let mut last = None;
        for read in 1..100 {
            let t = 1000.0 + 0.25 * f64::from(read);
            let done = 100 + (0.25 * f64::from(read) / 0.3) as u64;
            last = pace.take(done, t).or(last);
        }
        assert!(last.is_some_and(|step_s| (step_s - 0.3).abs() < 0.02), "{last:?}");
    }

    #[test]
    fn slow_steps_have_the_time_between_two_lines() {
        let mut pace = Pace::default();
        assert_eq!(
            [(1, 10.0), (2, 40.0), (3, 71.0), (4, 100.0)].map(|(step, t)| pace.take(step, t)),
            [None, None, Some(31.0), Some(29.0)]
        );
    }
}
