//! Streams: the output lines of a script that keeps running on a node.

use crate::RemoteError;
use crate::command::{Output, login_line};
use plan::quote;
use std::ops::ControlFlow;

/// An event of a stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// The first output arrived, after the start or after a reconnect, which starts the script again. An incomplete line from
    /// before is dropped.
    Connected,
    /// A complete line.
    Line(String),
    /// The script exited by itself. It is not restarted.
    Exited(Output),
    /// The connection is lost, and reconnecting is retried. Sent once per lost connection, not at every retry.
    Disconnected(RemoteError),
}

/// Receives the events of a stream. The thread of the connection calls the function, so it must not block.
pub type OnStreamEvent = Box<dyn FnMut(StreamEvent) -> ControlFlow<()> + Send>;

/// Quotes a script for a login shell, so that it and its children are killed when the connection ends. Without this, a script
/// that writes no output would keep running on the node.
pub(super) fn killed_on_disconnect(script: &str) -> String {
    let watchdog = format!(
        "exec 3<&0
setsid sh -c {} 3<&- </dev/null & p=$!
{{ cat <&3; kill -s TERM -- -$p; }} >/dev/null 2>&1 & c=$!
exec 3<&-
wait $p; s=$?
kill $c 2>/dev/null
exit $s",
        quote(script)
    );
    login_line(&watchdog)
}
