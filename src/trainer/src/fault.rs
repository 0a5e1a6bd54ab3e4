//! Ends this process in the middle of a save, for the tests of what a crash leaves behind.
//!
//! `VIDTUI_DIE=PHASE:STEP` kills the rank that has it in its environment when saving that step comes to that phase, as
//! SIGKILL from outside would. Without the variable a phase costs one look at a static.

use signal_hook::consts::SIGKILL;
use std::sync::LazyLock;

/// Where, and at which step.
const VARIABLE: &str = "VIDTUI_DIE";

static WANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());

/// Saving `step` has come to `phase`.
pub fn reached(phase: &str, step: u64) {
    if WANTED.as_ref().is_some_and(|wanted| *wanted == format!("{phase}:{step}")) {
        // Nothing comes back from SIGKILL but the failure to send it, which the test notices.
        let _ = signal_hook::low_level::raise(SIGKILL);
    }
}
