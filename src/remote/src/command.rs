//! Commands for the POSIX shell of a node, and their results.

use std::fmt::{self, Write as _};
use std::time::Duration;

use cluster::NodeId;

use crate::RemoteError;

/// The limit of a command's output in bytes. Expected replies are much shorter.
pub(crate) const MAX_OUTPUT: usize = 64 << 20;

/// The number of lines of standard error that an error shows, and the characters of each.
const STDERR_LINES: usize = 5;
const LINE_CHARS: usize = 300;
/// The bytes at the end of standard output that an error may show.
const PRINTED: usize = 4096;

/// A script for the POSIX shell of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The purpose of the command, for error messages: `list its processes`.
    pub action: String,
    /// The script.
    pub script: String,
    /// The standard input of the script.
    pub input: Vec<u8>,
    /// The time limit of the command, not counting the time to connect.
    pub deadline: Duration,
    /// Whether a node that could not be reached a moment ago is tried again at once, because a user waits for the command. By default,
    /// the command fails with the same error until the next try is due.
    pub connects_now: bool,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit status.
    pub status: Status,
    /// The bytes of standard output.
    pub stdout: Vec<u8>,
    /// The bytes of standard error.
    pub stderr: Vec<u8>,
}

/// The exit status of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// The command exited with this code.
    Code(i32),
    /// A signal with this name or number ended the command.
    Signal(String),
}

impl Command {
    /// Makes a command without input.
    pub fn new(action: impl Into<String>, script: impl Into<String>, deadline: Duration) -> Self {
        Self { action: action.into(), script: script.into(), input: Vec::new(), deadline, connects_now: false }
    }
}

/// Quotes a script so that every login shell passes it to `sh` unchanged.
///
/// Login shells agree only on single-quoted text that contains no quotes, newlines or exclamation marks (csh) and no
/// backslashes before quotes or backslashes (fish). `printf` produces those characters.
pub(crate) fn login_line(script: &str) -> String {
    let mut text = String::with_capacity(script.len() + script.len() / 4);
    for c in script.chars() {
        match c {
            '\n' => text.push_str(r"\n"),
            '\'' | '"' | '\\' | '$' | '`' | '!' => {
                write!(text, r"\0{:03o}", u32::from(c)).expect("writing to a string cannot fail");
            }
            _ => text.push(c),
        }
    }
    // An alias or a function of the login shell may be named `sh`.
    format!(r#"/bin/sh -c 'eval "$(printf %b "{text}")"'"#)
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(name) => write!(f, "signal {name}"),
        }
    }
}

impl Status {
    /// Returns whether the command exited with code 0.
    pub fn is_success(&self) -> bool {
        *self == Self::Code(0)
    }
}

impl Output {
    /// Returns standard output as text if the command succeeded.
    ///
    /// # Errors
    /// [`RemoteError::CommandFailed`] with the last lines of standard error if it failed.
    pub fn text(self, node: &NodeId, command: &Command) -> Result<String, RemoteError> {
        self.bytes(node, command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns standard output if the command succeeded.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn bytes(self, node: &NodeId, command: &Command) -> Result<Vec<u8>, RemoteError> {
        if self.status.is_success() {
            return Ok(self.stdout);
        }
        let (node, action, status) = (node.clone(), command.action.clone(), self.status.to_string());
        Err(RemoteError::CommandFailed { node, action, status, stderr: last_lines(&self.stderr) })
    }
}

/// Returns the last lines of text that a node printed, without the control sequences of terminals.
pub(crate) fn last_lines(bytes: &[u8]) -> String {
    let lines = bytes.split(|byte| *byte == b'\n').map(other_trainers::clean).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(|line| line.chars().take(LINE_CHARS).collect()).collect();
    lines[lines.len().saturating_sub(STDERR_LINES)..].join("\n")
}

/// Returns the last lines of both streams.
pub(crate) fn printed(stdout: &[u8], stderr: &[u8]) -> String {
    last_lines(&[&stdout[stdout.len().saturating_sub(PRINTED)..], b"\n", stderr].concat())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process;

    use super::*;

    #[test]
    fn every_login_shell_passes_a_script_to_sh_unchanged() {
        let script = r#"set -- 'a b' "it's" '\\' '!x' '\1 %s ~ ü' "\$HOME"
for word; do
	printf '<%s>' "$word"
done # `no`
read -r line
printf '[%s]' "$line"
exit 7"#;
        for shell in ["sh", "bash", "dash", "fish", "tcsh", "zsh", "ksh"] {
            let mut command = process::Command::new(shell);
            let command = command.args(["-c", &login_line(script)]).stdin(process::Stdio::piped());
            let Ok(mut child) = command.stdout(process::Stdio::piped()).spawn() else {
                println!("skipped: {shell} is not installed");
                continue;
            };
            child.stdin.take().unwrap().write_all(b"from stdin\n").unwrap();
            let output = child.wait_with_output().unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert_eq!(stdout, r"<a b><it's><\\><!x><\1 %s ~ ü><$HOME>[from stdin]", "{shell}");
            assert_eq!(output.status.code(), Some(7), "{shell}");
        }
    }
}
