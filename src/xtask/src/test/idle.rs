//! Measures how many CPU cores of this machine are idle.

use std::fs;
use std::time::Instant;

/// Measures idle CPU between two calls, from `/proc/stat`.
pub struct IdleCpu {
    last: Option<(Instant, u64)>,
}

impl IdleCpu {
    /// Begins to measure.
    pub fn start() -> Self {
        Self { last: idle_ticks().map(|ticks| (Instant::now(), ticks)) }
    }

    /// Returns how many cores were idle on average since the last call. Returns 0 without `/proc`, and if this process may use fewer cores
    /// than the machine has, as in some containers: `/proc/stat` counts all cores.
    pub fn cores_since_last(&mut self) -> f64 {
        let now = idle_ticks().map(|ticks| (Instant::now(), ticks));
        let cores = match (self.last, now) {
            // The kernel counts in hundredths of a second.
            (Some((before, old)), Some((now, new))) => {
                new.saturating_sub(old) as f64 / 100.0 / (now - before).as_secs_f64().max(1e-3)
            }
            _ => 0.0,
        };
        self.last = now;
        cores
    }
}

fn idle_ticks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    read(&stat).filter(|_| cores_in(&stat) <= cores)
}

/// Counts the lines `cpu0`, `cpu1`, …
fn cores_in(stat: &str) -> usize {
    let is_core =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    stat.lines().filter(is_core).count()
}

/// Reads the ticks for which cores were idle or waited for a disk, summed over all cores: fields 4 and 5 of the first line.
fn read(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let mut idle = fields.split_whitespace().skip(3).take(2);
    Some(idle.next()?.parse::<u64>().ok()? + idle.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_counts_as_idle() {
        assert_eq!(read("cpu  10 1 5 200 30 0 0 0 0 0\ncpu0 10 1 5 200 30\n"), Some(230));
        assert_eq!(read("intr 1 2 3\n"), None);
        assert_eq!(cores_in("cpu  10 1\ncpu0 5 0\ncpu1 5 1\nintr 3\n"), 2);
    }
}
