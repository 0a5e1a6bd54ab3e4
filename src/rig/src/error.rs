use std::io;

/// Says why a rig cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// This machine cannot have one; a test that needs it is skipped.
    #[error("a rig is not possible here: {0}")]
    Impossible(String),
    /// It could have come up, and did not.
    #[error("the rig does not come up: {0}")]
    NotUp(String),
    /// The script cannot be started.
    #[error("cannot start tests/rig/rig: {0}")]
    NotStarted(io::Error),
    /// A verb failed.
    #[error("the rig cannot {words:?}: {said}")]
    Verb {
        /// The verb and its arguments.
        words: String,
        /// What the script said.
        said: String,
    },
    /// The thread cannot move to the head's network.
    #[error("cannot join the rig's network: {0}")]
    NotJoined(io::Error),
}
