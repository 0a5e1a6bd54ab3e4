//! The monotonic clock of a worker, which tests replace. Leases never compare times of different nodes, because their clocks may
//! differ.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// A clock that never goes backwards.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;
    /// Waits for this time.
    fn sleep(&self, time: Duration);
}

/// The clock of this machine.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
