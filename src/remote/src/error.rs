//! Errors of operations on nodes, and how they become [`Failure`]s.

use std::fmt;
use std::io;
use std::time::Duration;

use cluster::NodeId;
use rundir::{ErrorCode, Failure};

/// The errors of operations on a node.
#[derive(Debug)]
pub enum RemoteError {
    /// The operating system returned an error.
    Io {
        /// The node.
        node: NodeId,
        /// The operation, with its path or process.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The processes found do not belong to the run. No signal was sent.
    NotOwned {
        /// The node.
        node: NodeId,
        /// The property that does not match.
        why: String,
    },
    /// No connection to the node can be made.
    Unreachable {
        /// The node.
        node: NodeId,
        /// The step that failed, the kind of error, the reason and the hint.
        error: ConnectionError,
    },
    /// The connection ended before the reply arrived. The request may have been carried out.
    ConnectionLost {
        /// The node.
        node: NodeId,
        /// The request.
        action: String,
        /// The reason for the end of the connection.
        why: String,
    },
    /// The node did not reply in time. It may still carry out the request.
    Timeout {
        /// The node.
        node: NodeId,
        /// The request.
        action: String,
        /// The time limit.
        after: Duration,
        /// The last lines that the node printed.
        printed: String,
    },
    /// The login shell of the node did not run the command: nologin, a forced command, or a start file that exits or starts another program.
    NotRun {
        /// The node.
        node: NodeId,
        /// The request.
        action: String,
        /// The exit status of the login shell, as text.
        status: String,
        /// The last lines that the node printed.
        printed: String,
    },
    /// A command failed.
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
#[error("{why}")]
pub struct ConnectionError {
    /// The step that failed.
    pub step: ConnectStep,
    /// The kind of error.
    pub code: ErrorCode,
    /// The reason in one line, which needs neither the step nor the name of the node.
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

impl ConnectionError {
    pub(crate) fn new(step: ConnectStep, code: ErrorCode, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { step, code, why: one_line(&why.into()), fix: fix.into() }
    }
}

/// Returns a text in one line, without the frames of `@` around the warnings of `ssh`.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_matches(|c: char| c == '@' || c.is_whitespace()));
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, cause) = (self.node(), self.cause());
        match self {
            Self::Unreachable { .. } => write!(f, "node {node} cannot be reached: {cause}"),
            _ => write!(f, "node {node}: {cause}"),
        }
    }
}

impl std::error::Error for RemoteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn suffix(name: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; {name}: {text}") }
}

impl RemoteError {
    /// An answer that is not that of a script; the error shows its beginning.
    pub(crate) fn unexpected(node: &NodeId, action: impl Into<String>, answer: &str) -> Self {
        let answer = other_trainers::clean(answer.as_bytes()).chars().take(200).collect();
        Self::UnexpectedReply { node: node.clone(), action: action.into(), answer }
    }

    pub(crate) fn io(node: &NodeId, action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { node: node.clone(), action: action.into(), source: source.into() }
    }

    /// Returns the node.
    pub fn node(&self) -> &NodeId {
        match self {
            Self::Io { node, .. }
            | Self::NotOwned { node, .. }
            | Self::Unreachable { node, .. }
            | Self::ConnectionLost { node, .. }
            | Self::Timeout { node, .. }
            | Self::NotRun { node, .. }
            | Self::CommandFailed { node, .. }
            | Self::UnexpectedReply { node, .. } => node,
        }
    }

    /// Returns the reason without the name of the node, for texts that name it already.
    pub fn cause(&self) -> String {
        match self {
            Self::Io { action, source, .. } => format!("cannot {action}: {source}"),
            Self::NotOwned { why, .. } => why.clone(),
            Self::Unreachable { error, .. } => error.why.clone(),
            Self::ConnectionLost { action, why, .. } => format!("connection lost, cannot {action}: {why}"),
            Self::Timeout { action, after, printed, .. } => {
                let after_s = after.as_millis() as f64 / 1000.0;
                format!("timeout, cannot {action} within {after_s} s{}", suffix("its last output", printed))
            }
            Self::NotRun { action, status, printed, .. } => {
                let printed = if printed.is_empty() { "nothing" } else { printed };
                format!("cannot {action}: the login shell ran no command ({status}) and printed: {printed}")
            }
            Self::CommandFailed { action, status, stderr, .. } => {
                format!("cannot {action}: {status}{}", suffix("stderr", stderr))
            }
            Self::UnexpectedReply { action, answer, .. } => format!("cannot {action}: unexpected answer {answer:?}"),
        }
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
            Self::Unreachable { error, .. } => error.code,
            Self::ConnectionLost { .. } | Self::Timeout { .. } => ErrorCode::NoAnswer,
            Self::NotRun { .. } | Self::CommandFailed { .. } | Self::UnexpectedReply { .. } => ErrorCode::CommandFailed,
        }
    }

    /// Returns the failure of `what`, with this error as the reason.
    pub fn failure(&self, what: impl Into<String>) -> Failure {
        Failure::new(self.code(), what, self.to_string(), self.fix())
    }

    /// Returns the failure of `what`, which names the node, so that the reason does not.
    pub fn failure_on_node(&self, what: impl Into<String>) -> Failure {
        Failure::new(self.code(), what, self.cause(), self.fix())
    }

    fn fix(&self) -> &str {
        match self {
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
            Self::NotRun { .. } => {
                "run a command there with `ssh`, such as `true`: the login shell (nologin), a ForceCommand of the server, or a start file such \
                 as ~/.bashrc that exits or starts another program prevents it"
            }
            Self::NotOwned { .. } => "no signal was sent; list the processes with `ps -ef`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> RemoteError {
        let node = NodeId::from_hostname("gpu01");
        let code = ErrorCode::ConnectionRefused;
        let error = ConnectionError::new(ConnectStep::Connect, code, "port 22 refuses the connection", "start sshd");
        RemoteError::Unreachable { node, error }
    }

    #[test]
    fn an_error_names_its_node_once() {
        let error = refused();
        assert_eq!(error.to_string(), "node gpu01 cannot be reached: port 22 refuses the connection");
        let failure = error.failure_on_node("cannot watch node gpu01");
        let (code, why) = (ErrorCode::ConnectionRefused, "port 22 refuses the connection");
        assert_eq!(failure, Failure::new(code, "cannot watch node gpu01", why, "start sshd"));
        assert!(failure.code.is_of_unreachable_node());
    }

    #[test]
    fn the_reason_of_a_connection_error_is_one_line() {
        let warning = "@@@@@@@\r\n@  WARNING: IT HAS CHANGED!  @\r\n@@@@@@@\r\nSee line 3.\r\n";
        let error = ConnectionError::new(ConnectStep::HostKey, ErrorCode::HostKeyChanged, warning, "");
        assert_eq!(error.to_string(), "WARNING: IT HAS CHANGED!; See line 3.");
    }
}
