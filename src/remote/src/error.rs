use std::io;

use cluster::NodeId;
use rundir::Failure;

/// What can go wrong on a node.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The operating system refused.
    #[error("node {node}: cannot {action}: {source}")]
    Io {
        /// The node.
        node: NodeId,
        /// What was attempted, with the path or process.
        action: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Processes are not those that were meant, so nothing was signalled.
    #[error("node {node}: {why}")]
    NotOurs {
        /// The node.
        node: NodeId,
        /// What does not agree.
        why: String,
    },
}

impl RemoteError {
    pub(crate) fn io(node: &NodeId, action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { node: node.clone(), action: action.into(), source: source.into() }
    }

    /// Makes it the reason why `what` failed.
    pub fn failure(&self, what: impl Into<String>) -> Failure {
        let fix = match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "do it as the user who launched the run"
            }
            Self::Io { .. } => "look at that node, then try again",
            Self::NotOurs { .. } => "nothing was signalled; look at the processes with `ps -ef`",
        };
        Failure::new(what, self.to_string(), fix)
    }
}
