use std::time::Duration;

use cluster::NodeId;

use crate::RemoteError;

/// Output beyond this is cut off: no answer that is expected here comes near it.
pub(crate) const MAX_OUTPUT: usize = 64 << 20;

/// How much of standard error an error repeats.
const SHOWN_LINES: usize = 5;

/// Something for a node's POSIX shell to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// What it does, for errors: `list its processes`.
    pub action: String,
    /// The script.
    pub script: String,
    /// What the script reads.
    pub input: Vec<u8>,
    /// How long it may take, connecting aside.
    pub deadline: Duration,
}

/// What a command gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: Status,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(String),
}

impl Command {
    /// Makes a command without input.
    pub fn new(action: impl Into<String>, script: impl Into<String>, deadline: Duration) -> Self {
        Self { action: action.into(), script: script.into(), input: Vec::new(), deadline }
    }

    /// Writes it for a login shell, whichever that is.
    pub(crate) fn line(&self) -> String {
        format!("sh -c {}", plan::quote(&self.script))
    }
}

impl Output {
    /// Returns standard output as text, if the command did as it was asked.
    ///
    /// # Errors
    /// [`RemoteError::Command`] if it failed, with the end of what it said.
    pub fn text(self, node: &NodeId, command: &Command) -> Result<String, RemoteError> {
        self.bytes(node, command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns standard output, if the command did as it was asked.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn bytes(self, node: &NodeId, command: &Command) -> Result<Vec<u8>, RemoteError> {
        let status = match self.status {
            Status::Code(0) => return Ok(self.stdout),
            Status::Code(code) => format!("exit status {code}"),
            Status::Signal(name) => format!("signal {name}"),
        };
        let (node, action) = (node.clone(), command.action.clone());
        Err(RemoteError::Command { node, action, status, stderr: last_lines(&self.stderr) })
    }
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
