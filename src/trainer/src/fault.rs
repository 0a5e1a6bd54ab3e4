//! Fault injection: kills this process in the middle of a save, for tests of crash recovery.
//!
//! `VIDTUI_DIE=PHASE:STEP` in its environment kills a rank with SIGKILL when the save of that step reaches that phase.
//! Without the variable, a phase costs one read of a static.

use signal_hook::consts::SIGKILL;
use std::sync::LazyLock;

/// Names the phase and the step.
const VARIABLE: &str = "VIDTUI_DIE";

static WANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());

/// Marks that the save of `step` reached `phase`.
pub fn reached(phase: &str, step: u64) {
    if WANTED.as_ref().is_some_and(|wanted| *wanted == format!("{phase}:{step}")) {
        // If SIGKILL cannot be sent, the test fails.
        let _ = signal_hook::low_level::raise(SIGKILL);
    }
}
