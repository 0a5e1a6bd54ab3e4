use std::fmt::Write as _;
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
        login_line(&self.script)
    }
}

/// Writes a script so that every login shell hands it to `sh` as it is. All agree only on single quotes without quotes,
/// newlines and exclamation marks in them (csh), nor backslashes before quotes and backslashes (fish): those are left to
/// `printf`.
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
    format!(r#"sh -c 'eval "$(printf %b "{text}")"'"#)
}

impl Output {
    /// Returns standard output as text, if the command did as it was asked.
    ///
    /// # Errors
    /// [`RemoteError::CommandFailed`] if it failed, with the end of what it said.
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
        Err(RemoteError::CommandFailed { node, action, status, stderr: last_lines(&self.stderr) })
    }
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process;

    use super::*;

    #[test]
    fn every_login_shell_hands_a_script_on_as_it_is() {
        let script = r#"set -- 'a b' "it's" '\\' '!x' '\1 %s ~ ü' "\$HOME"
for word; do
	printf '<%s>' "$word"
done # `no`
read -r line
printf '[%s]' "$line"
exit 7"#;
        for shell in ["sh", "bash", "fish", "tcsh"] {
            let mut command = process::Command::new(shell);
            let command = command.args(["-c", &login_line(script)]).stdin(process::Stdio::piped());
            let Ok(mut child) = command.stdout(process::Stdio::piped()).spawn() else {
                println!("skipped: {shell} is not installed");
                continue;
            };
            child.stdin.take().unwrap().write_all(b"from outside\n").unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, r"<a b><it's><\\><!x><\1 %s ~ ü><$HOME>[from outside]", "{shell}");
            assert_eq!(output.status.code(), Some(7), "{shell}");
        }
    }
}
