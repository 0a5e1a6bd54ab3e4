//! Streams: the output lines of a script that keeps running on a node.

use std::ops::ControlFlow;

use cluster::NodeId;
use plan::quote;

use crate::RemoteError;
use crate::command::{Output, Status, login_line, printed};
use crate::frame::Frame;

/// A longer line is an error. The lines of scripts are shorter.
pub(super) const LONGEST_LINE: usize = 256 << 10;
/// The number of lines before those of the script that are kept for an error.
const KEPT_LINES: usize = 5;

/// An event of a stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// The script runs, after the start or after a reconnect, which starts the script again. An incomplete line from before is
    /// dropped.
    Connected,
    /// A complete line.
    Line(String),
    /// The script exited by itself. It is not restarted.
    Exited(Output),
    /// The login shell did not run the script, or printed a line without an end. The script is not restarted.
    Failed(RemoteError),
    /// The connection is lost, and reconnecting is retried. Sent once per lost connection, not at every retry.
    Disconnected(RemoteError),
}

/// Receives the events of a stream. The thread of the connection calls the function, so it must not block.
pub type OnStreamEvent = Box<dyn FnMut(StreamEvent) -> ControlFlow<()> + Send>;

/// Finds the lines of a script in the output of the login shell, which may print lines of its own before them.
pub(super) struct StreamOutput {
    frame: Frame,
    /// The last lines before those of the script; `None` as soon as the script runs.
    before: Option<Vec<String>>,
}

/// A line of the login shell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineOf {
    /// The login shell or its start files printed it.
    Shell,
    /// It is the mark before the lines of the script.
    Mark,
    /// The script printed it.
    Script,
}

impl StreamOutput {
    pub fn new() -> Self {
        Self { frame: Frame::new(), before: Some(Vec::new()) }
    }

    /// Returns the command line that runs the script in any login shell, so that the script and its children are killed when the
    /// connection ends. Without this, a script that writes no output would keep running on the node.
    pub fn line(&self, script: &str) -> String {
        let watchdog = format!(
            "{}
exec 3<&0
setsid sh -c {} 3<&- </dev/null & p=$!
{{ cat <&3; kill -s TERM -- -$p; }} >/dev/null 2>&1 & c=$!
exec 3<&-
wait $p; s=$?
kill $c 2>/dev/null
exit $s",
            self.frame.begin_script(),
            quote(script)
        );
        login_line(&watchdog)
    }

    /// Expects the output of another start of the script.
    pub fn restart(&mut self) {
        self.before = Some(Vec::new());
    }

    /// Reads the next line.
    pub fn read(&mut self, line: &str) -> LineOf {
        let Some(before) = &mut self.before else { return LineOf::Script };
        if self.frame.begins_with(line) {
            self.before = None;
            return LineOf::Mark;
        }
        if before.len() == KEPT_LINES {
            before.remove(0);
        }
        before.push(line.to_owned());
        LineOf::Shell
    }

    /// Returns the event for the exit of the login shell. `rest` is an incomplete last line.
    pub fn exit(&self, node: &NodeId, status: Status, rest: &[u8], stderr: Vec<u8>) -> StreamEvent {
        let Some(before) = &self.before else {
            return StreamEvent::Exited(Output { status, stdout: Vec::new(), stderr });
        };
        let stdout = [before.join("\n").as_bytes(), b"\n", rest].concat();
        let (status, printed) = (status.to_string(), printed(&stdout, &stderr));
        StreamEvent::Failed(RemoteError::NotRun { node: node.clone(), action: ACTION.into(), status, printed })
    }
}

/// The purpose of a stream, for error messages.
pub(super) const ACTION: &str = "stream its metrics";

/// Returns the event for a line that is longer than [`LONGEST_LINE`].
pub(super) fn endless_line(node: &NodeId, line: &[u8]) -> StreamEvent {
    let action = format!("{ACTION}, it printed a line of more than {} KiB", LONGEST_LINE >> 10);
    let begin = &line[..line.len().min(200)];
    StreamEvent::Failed(RemoteError::unexpected(node, action, &String::from_utf8_lossy(begin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_login_shell_are_not_lines_of_the_script() {
        let node = NodeId::from_hostname("gpu01");
        let mut output = StreamOutput::new();
        let mark = output.frame.mark("begin");
        for line in ["Loading cuda/12.4", "", &format!("{mark}x"), "vidtui begin"] {
            assert_eq!(output.read(line), LineOf::Shell, "{line}");
        }
        let StreamEvent::Failed(error) = output.exit(&node, Status::Code(1), b"closed", Vec::new()) else {
            panic!("the script did not run")
        };
        assert!(error.to_string().contains("Loading cuda/12.4") && error.to_string().contains("closed"), "{error}");
        assert_eq!(output.read(&format!("{mark}\r")), LineOf::Mark);
        assert_eq!(output.read("tick 1"), LineOf::Script);
        assert!(matches!(output.exit(&node, Status::Code(1), b"", Vec::new()), StreamEvent::Exited(_)));
        output.restart();
        assert_eq!(output.read("Loading cuda/12.4"), LineOf::Shell);
    }
}
