use std::io;
use std::time::Duration;

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
    NotOwned {
        /// The node.
        node: NodeId,
        /// What does not agree.
        why: String,
    },
    /// There is no connection to the node.
    #[error("node {node} cannot be reached: {error}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// Why not, and what to do.
        error: ConnectionError,
    },
    /// The connection ended before the answer was there. What was asked for may have been done.
    #[error("node {node}: the connection ended while it was to {action}: {why}")]
    ConnectionLost {
        /// The node.
        node: NodeId,
        /// What it was to do.
        action: String,
        /// How the connection ended.
        why: String,
    },
    /// The node did not answer in time. What was asked for may be done yet.
    #[error("node {node} did not {action} within {} s", after.as_secs_f64())]
    Timeout {
        /// The node.
        node: NodeId,
        /// What it was to do.
        action: String,
        /// How long it had.
        after: Duration,
    },
    /// A command failed.
    #[error("node {node}: cannot {action}: {status}{}", said(stderr))]
    CommandFailed {
        /// The node.
        node: NodeId,
        /// What it was to do.
        action: String,
        /// Its exit status, in words.
        status: String,
        /// The last lines that it wrote to standard error.
        stderr: String,
    },
    /// An answer has another form than the scripts here give.
    #[error("node {node}: cannot {action}: its answer is not understood: {answer:?}")]
    UnexpectedReply {
        /// The node.
        node: NodeId,
        /// What it was to do.
        action: String,
        /// The part that is not understood.
        answer: String,
    },
}

/// Why a connection did not come about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct ConnectionError {
    /// How far it came: `connecting`, `host key`, `login`.
    pub step: String,
    /// What happened there.
    pub why: String,
    /// What to do.
    pub fix: String,
}

/// The first step.
pub(crate) const DIALLING: &str = "connecting";

impl ConnectionError {
    pub(crate) fn new(step: &str, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { step: step.into(), why: why.into(), fix: fix.into() }
    }

    /// Whether nobody answered at all.
    pub(crate) fn is_no_answer(&self) -> bool {
        self.step == DIALLING
    }
}

fn said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") }
}

impl RemoteError {
    pub(crate) fn io(node: &NodeId, action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { node: node.clone(), action: action.into(), source: source.into() }
    }

    /// Tells whether the node could not be asked at all: nothing is known about it.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ConnectionLost { .. } | Self::Timeout { .. })
    }

    /// Makes it the reason why `what` failed.
    pub fn failure(&self, what: impl Into<String>) -> Failure {
        let fix = match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "do it as the user who launched the run"
            }
            Self::Unreachable { error, .. } => &error.fix,
            Self::ConnectionLost { .. } | Self::Timeout { .. } => {
                "nothing is lost on the node itself; try again when it answers"
            }
            Self::Io { .. } | Self::CommandFailed { .. } | Self::UnexpectedReply { .. } => {
                "look at that node, then try again"
            }
            Self::NotOwned { .. } => "nothing was signalled; look at the processes with `ps -ef`",
        };
        Failure::new(rundir::ErrorCode::Unclassified, what, self.to_string(), fix)
    }
}
