//! Fault injection for tests: kills a rank in the middle of a save, corrupts a weight, or makes a rank train slowly.
//!
//! `VIDTUI_DIE=PHASE:STEP` in its environment kills a rank with SIGKILL when it reaches that phase of that step.
//! `VIDTUI_CORRUPT=RANK:STEP` changes a weight of that rank after that step.
//! `TRAIN_PACE_S=SECONDS` makes every step take at least that long. If the variables are not set, each check costs one read of a static.

use signal_hook::consts::SIGKILL;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The environment variable that sets where a rank dies, as `PHASE:STEP`.
const VARIABLE: &str = "VIDTUI_DIE";

static WANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());

/// Marks that this rank reached `phase` of `step`: a part of a save, or the end of a sampling step.
pub fn reached(phase: &str, step: u64) {
    if WANTED.as_ref().is_some_and(|wanted| *wanted == format!("{phase}:{step}")) {
        // If SIGKILL cannot be sent, the test fails.
        let _ = signal_hook::low_level::raise(SIGKILL);
    }
}

/// The environment variable that sets whose weights change and when, as `RANK:STEP`.
const CORRUPT: &str = "VIDTUI_CORRUPT";

static CORRUPTED: LazyLock<Option<(usize, u64)>> = LazyLock::new(|| {
    let text = std::env::var(CORRUPT).ok()?;
    let (rank, step) = text.split_once(':')?;
    Some((rank.parse().ok()?, step.parse().ok()?))
});

/// Returns whether a test requires that the trainer changes a weight of this rank after `step`.
pub fn corrupts(rank: usize, step: u64) -> bool {
    *CORRUPTED == Some((rank, step))
}

/// The environment variable with the minimum duration of a step in seconds.
const PACE: &str = "TRAIN_PACE_S";

static PACE_S: LazyLock<Option<f64>> = LazyLock::new(|| std::env::var(PACE).ok()?.parse().ok());

/// Sleeps until a step that began at `start` has taken `TRAIN_PACE_S` seconds, so that a test of a long run leaves the
/// CPU to other tests.
pub fn pace(start: Instant) {
    if let Some(rest) = PACE_S.and_then(|s| Duration::try_from_secs_f64(s).ok()?.checked_sub(start.elapsed())) {
        std::thread::sleep(rest);
    }
}
