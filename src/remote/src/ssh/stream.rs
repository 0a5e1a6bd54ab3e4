//! Lines that a script on a node goes on writing.

use crate::RemoteError;
use crate::command::{Output, login_line};
use plan::quote;
use std::ops::ControlFlow;

/// Something that a stream tells.
#[derive(Debug)]
pub enum StreamEvent {
    /// The first bytes have arrived, or are arriving again. A line that was cut off is not told; the script begins anew.
    Connected,
    /// A whole line.
    Line(String),
    /// The script has ended by itself, and is not started again.
    Ended(Output),
    /// The node is out of sight. It is tried again and again; this is told once.
    Disconnected(RemoteError),
}

/// A stream's reader. It is called on the connection's thread, and must not wait.
pub type OnStreamEvent = Box<dyn FnMut(StreamEvent) -> ControlFlow<()> + Send>;

/// Writes a script for a login shell so that it ends, with all it has started, when the connection does. Without this, one
/// that is silent at that moment would stay on the node for good.
pub(super) fn watched(script: &str) -> String {
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
