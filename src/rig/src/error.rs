//! The errors of starting and controlling a rig.

use std::io;

/// Why a rig failed.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// This machine cannot run a rig. Tests that need one are skipped.
    #[error("a rig is not possible here: {0}")]
    Impossible(String),
    /// A rig could run here, but its start failed.
    #[error("the rig did not start: {0}")]
    NotUp(String),
    /// The script cannot be started.
    #[error("cannot start tests/rig/rig: {0}")]
    NotStarted(io::Error),
    /// A verb failed.
    #[error("the rig's verb {words:?} failed: {output}")]
    Verb {
        /// The verb and its arguments.
        words: String,
        /// What the script printed on standard error.
        output: String,
    },
    /// The thread cannot enter the head's network namespace.
    #[error("cannot join the rig's network: {0}")]
    NotJoined(io::Error),
}
