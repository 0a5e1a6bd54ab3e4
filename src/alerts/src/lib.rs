//! Alerts about a run: derives them, records them, and sends them to the channels of the user, such as Slack or a program.
//!
//! [`Watch`] derives alerts on the first node of an attempt, from the events of the run and the findings of the crate `health`.
//! [`Outbox`] records each alert in the run directory and sends it, with one thread per channel. A channel that fails affects neither the
//! other channels nor the run. [`Settings`] are the channels of a user; a launch copies them to the folder of the attempt, so that nodes need
//! no home directory.

// A line that cannot be written, for instance on a full disk, must not panic: see `rundir::log!`.
#![cfg_attr(not(test), warn(clippy::print_stderr))]

mod channel;
mod derive;
mod message;
mod outbox;
mod settings;
#[cfg(test)]
mod tests;
mod watch;

pub use channel::{SendError, TestResult, example, test_alert};
pub use derive::{of_event, of_repeated_fault};
pub use message::{body, title};
pub use outbox::{Limits, Outbox};
pub use settings::{Channel, OscForm, Settings, Target};
pub use watch::Watch;
