//! Exponential backoff with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pauses between retries. Each is about twice the one before. Jitter keeps nodes that failed together from being retried
/// together.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    random: RandomState,
    drawn: u64,
}

impl Backoff {
    /// Creates a backoff whose pauses grow from about `first` to about `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first, random: RandomState::new(), drawn: 0 }
    }

    /// Returns the next pause.
    pub fn next(&mut self) -> Duration {
        self.next_within(self.longest)
    }

    /// Returns the next pause, limited to about `longest`.
    pub fn next_within(&mut self, longest: Duration) -> Duration {
        let pause = self.next.min(longest);
        self.next = (self.next * 2).min(self.longest);
        self.drawn += 1;
        // The standard library seeds every hasher at random. A factor of 0.75 to 1.25 in 1024 steps is random enough.
        let share = (self.random.hash_one(self.drawn) % 1024) as f64 / 1024.0;
        pause.mul_f64(0.75 + share / 2.0)
    }

    /// Resets the next pause to the first.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_a_little() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
        for whole in [1.0, 2.0, 4.0, 8.0, 8.0] {
            let pause = backoff.next().as_secs_f64();
            assert!((0.75 * whole..=1.25 * whole).contains(&pause), "{pause} for {whole}");
        }
        assert!(backoff.next_within(Duration::from_secs(2)) <= Duration::from_millis(2500));
        assert!(backoff.next() >= Duration::from_secs(6), "the limit applies to one pause only");
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(1250));
        let firsts: Vec<Duration> =
            (0..8).map(|_| Backoff::new(Duration::from_secs(1), Duration::MAX).next()).collect();
        assert!(firsts.iter().any(|pause| *pause != firsts[0]), "no jitter: {firsts:?}");
    }
}
