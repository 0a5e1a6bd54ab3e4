//! Errors of operations on nodes, and how they become [`Failure`]s.

use std::fmt;
use std::io;
use std::time::Duration;

use cluster::NodeId;
use rundir::{ErrorCode, Failure};

/// The errors of operations on a node.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The operating system returned an error.
    #[error("node {node}: cannot {action}: {source}")]
    Io {
        /// The node.
        node: NodeId,
        /// The operation, with its path or process.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The processes found do not belong to the run. No signal was sent.
    #[error("node {node}: {why}")]
    NotOwned {
        /// The node.
        node: NodeId,
        /// The property that does not match.
        why: String,
    },
    /// No connection to the node can be made.
    #[error("node {node} cannot be reached: {error}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// The step that failed, the reason and the hint.
        error: ConnectionError,
    },
    /// The connection ended before the reply arrived. The request may have been carried out.
    #[error("node {node}: connection lost, cannot {action}: {why}")]
    ConnectionLost {
        /// The node.
        node: NodeId,
        /// The request.
        action: String,
        /// The reason for the end of the connection.
        why: String,
    },
    /// The node did not reply in time. It may still carry out the request.
    #[error("node {node}: timeout, cannot {action} within {} s", after.as_millis() as f64 / 1000.0)]
    Timeout {
        /// The node.
        node: NodeId,
        /// The request.
        action: String,
        /// The time limit.
        after: Duration,
    },
    /// A command failed.
    #[error("node {node}: cannot {action}: {status}{}", stderr_suffix(stderr))]
    CommandFailed {
        /// The node.
        node: NodeId,
        /// The purpose of the command.
        action: String,
        /// The exit status, as text.
        status: String,
        /// The last lines that it wrote to standard error.
        stderr: String,
    },
    /// An answer does not have the format that the scripts of this crate print.
    #[error("node {node}: cannot {action}: unexpected answer {answer:?}")]
    UnexpectedReply {
        /// The node.
        node: NodeId,
        /// The request.
        action: String,
        /// The part that cannot be parsed.
        answer: String,
    },
}

/// Why no connection could be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct ConnectionError {
    /// The step that failed.
    pub step: ConnectStep,
    /// The reason.
    pub why: String,
    /// The hint.
    pub fix: String,
}

/// A step of making an SSH connection, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectStep {
    /// Reading the user's SSH configuration.
    Config,
    /// Connecting by TCP.
    Connect,
    /// Exchanging versions and keys.
    Handshake,
    /// Checking the key of the node.
    HostKey,
    /// Logging in.
    Login,
}

impl fmt::Display for ConnectStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "SSH configuration",
            Self::Connect => "connecting",
            Self::Handshake => "handshake",
            Self::HostKey => "host key",
            Self::Login => "login",
        })
    }
}

impl ConnectionError {
    pub(crate) fn new(step: ConnectStep, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { step, why: why.into(), fix: fix.into() }
    }
}

fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; stderr: {stderr}") }
}

impl RemoteError {
    pub(crate) fn io(node: &NodeId, action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { node: node.clone(), action: action.into(), source: source.into() }
    }

    /// Returns whether the state of the node is unknown, because it sent no reply.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ConnectionLost { .. } | Self::Timeout { .. })
    }

    /// Returns the code of the [`Failure`] that this error becomes.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { source, .. } => ErrorCode::of_io(source),
            Self::NotOwned { .. } => ErrorCode::NotOwned,
            Self::Unreachable { error, .. } => match error.step {
                ConnectStep::Config | ConnectStep::Connect | ConnectStep::Handshake => ErrorCode::NodeUnreachable,
                ConnectStep::HostKey => ErrorCode::HostKey,
                ConnectStep::Login => ErrorCode::LoginRefused,
            },
            Self::ConnectionLost { .. } | Self::Timeout { .. } => ErrorCode::NoAnswer,
            Self::CommandFailed { .. } | Self::UnexpectedReply { .. } => ErrorCode::CommandFailed,
        }
    }

    /// Returns the failure of `what`, with this error as the reason.
    pub fn failure(&self, what: impl Into<String>) -> Failure {
        let fix = match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "repeat this as the user who launched the run"
            }
            Self::Unreachable { error, .. } => &error.fix,
            Self::ConnectionLost { .. } | Self::Timeout { .. } => {
                "try again when the node replies; the run is not affected"
            }
            Self::Io { .. } | Self::CommandFailed { .. } | Self::UnexpectedReply { .. } => {
                "fix this on the node, then try again"
            }
            Self::NotOwned { .. } => "no signal was sent; list the processes with `ps -ef`",
        };
        Failure::new(self.code(), what, self.to_string(), fix)
    }
}
