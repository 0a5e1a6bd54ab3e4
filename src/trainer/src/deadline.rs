//! Decides when to save and stop so that a run ends within its time limit.

use recipe::{TimeLimit, save_reserve_s};
use std::time::Instant;

/// The time limit of an attempt. It is near when the remaining time may only suffice for the current step and a save.
#[derive(Debug)]
pub struct Deadline {
    started: Instant,
    limit_s: Option<f64>,
    step_s: f64,
    save_s: f64,
    measured: bool,
}

impl Deadline {
    /// Starts the clock. `save_s` is the expected duration of a save until one was measured.
    pub fn new(limit: TimeLimit, save_s: f64) -> Self {
        Deadline {
            started: Instant::now(),
            limit_s: limit.seconds().map(|s| s as f64),
            step_s: 0.0,
            save_s,
            measured: false,
        }
    }

    /// Records the duration of a step.
    pub fn record_step(&mut self, seconds: f64) {
        // A slow step may happen again, so its duration is kept and decays by 1 % per step.
        self.step_s = seconds.max(self.step_s * 0.99);
    }

    /// Records the duration of a save, from the request to the complete checkpoint.
    pub fn record_save(&mut self, seconds: f64) {
        self.save_s = if self.measured { self.save_s.max(seconds) } else { seconds };
        self.measured = true;
    }

    /// Returns whether it is time to save.
    pub fn is_near(&self) -> bool {
        self.limit_s.is_some_and(|limit| self.started.elapsed().as_secs_f64() + self.reserve_s() >= limit)
    }

    /// Returns the seconds reserved for the current step and the save after it.
    pub fn reserve_s(&self) -> f64 {
        2.0 * self.step_s + save_reserve_s(self.save_s)
    }
}

/// Returns the expected duration of the first save of an attempt. `earlier` holds the durations of earlier saves,
/// newest first.
///
/// A single slow save, for example on a network disk that hung, must not shorten later attempts too much. Therefore the
/// newest duration is limited to a quarter of the time limit, or to the duration of the save before it if that is
/// longer.
pub fn save_s_after(mut earlier: impl Iterator<Item = f64>, limit: TimeLimit) -> Option<f64> {
    let (newest, before) = (earlier.next()?, earlier.next().unwrap_or(0.0));
    let most = limit.seconds().map_or(f64::INFINITY, |s| s as f64 / 4.0);
    Some(newest.min(most.max(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_save_reserves_at_most_a_quarter_of_the_next_attempt() {
        let after = |earlier: &[f64], limit: &str| save_s_after(earlier.iter().copied(), limit.parse().unwrap());
        assert_eq!(after(&[], "10m"), None);
        assert_eq!(after(&[100.0, 5.0], "10m"), Some(100.0));
        assert_eq!((after(&[1000.0], "10m"), after(&[1000.0, 5.0, 900.0], "10m")), (Some(150.0), Some(150.0)));
        assert_eq!(after(&[1000.0, 900.0], "10m"), Some(900.0));
        assert_eq!(after(&[1000.0, 5.0], "none"), Some(1000.0));
    }

    #[test]
    fn the_duration_of_a_save_is_reserved() {
        let mut deadline = Deadline::new("1h".parse().unwrap(), 60.0);
        assert!(!deadline.is_near());
        deadline.record_step(100.0);
        deadline.record_save(1000.0);
        assert!(!deadline.is_near(), "{}", deadline.reserve_s());
        deadline.record_save(2300.0);
        assert!(deadline.is_near(), "{}", deadline.reserve_s());
        assert!(!Deadline::new("none".parse().unwrap(), 1e9).is_near());
    }
}
