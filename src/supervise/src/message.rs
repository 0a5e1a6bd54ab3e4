//! The messages between supervisors, one line each.

use cluster::NodeId;
use rundir::Failure;

/// The most characters of each text of a failure that are sent. A line that is too long for the peer would end the
/// connection.
const TEXT_CHARS: usize = 2000;

/// A message from one supervisor to another.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The supervisor is alive.
    Heartbeat,
    /// The ranks of this node have ended normally. No message follows.
    Done,
    /// A stop of the run was requested.
    Stop,
    /// The node failed. From the first node, this message means that the run failed.
    Failed(Failure),
    /// A stop ended the ranks of this node before they could save.
    Stopped(NodeId),
}

impl Message {
    /// Returns the message as one line, without a line break.
    pub fn line(&self) -> String {
        match self {
            Self::Heartbeat => "heartbeat".into(),
            Self::Done => "done".into(),
            Self::Stop => "stop".into(),
            // JSON escapes the line breaks of a failure.
            Self::Failed(failure) => {
                format!("failed {}", serde_json::to_string(&shortened(failure)).unwrap_or_default())
            }
            Self::Stopped(node) => format!("stopped {node}"),
        }
    }

    /// Parses a line; returns `None` for messages of newer versions.
    pub fn read(line: &str) -> Option<Self> {
        match line {
            "heartbeat" => Some(Self::Heartbeat),
            "done" => Some(Self::Done),
            "stop" => Some(Self::Stop),
            line => match line.split_once(' ')? {
                ("failed", failure) => serde_json::from_str(failure).ok().map(Self::Failed),
                ("stopped", node) => NodeId::new(node).ok().map(Self::Stopped),
                _ => None,
            },
        }
    }
}

fn shortened(failure: &Failure) -> Failure {
    let cut = |text: &String| text.chars().take(TEXT_CHARS).collect();
    let (what, why, fix) = (cut(&failure.what), cut(&failure.why), cut(&failure.fix));
    Failure { code: failure.code, cause: failure.cause.clone(), what, why, fix }
}

#[cfg(test)]
mod tests {
    use rundir::ErrorCode;

    use super::*;
    use crate::handshake::LINE_BYTES;

    #[test]
    fn a_message_is_read_as_it_was_sent() {
        let node = NodeId::new("node02").unwrap();
        let failure = Failure::peer_lost(Some(node.clone()), "two\nlines", "");
        for message in
            [Message::Heartbeat, Message::Done, Message::Stop, Message::Failed(failure), Message::Stopped(node)]
        {
            assert!(!message.line().contains('\n'));
            assert_eq!(Message::read(&message.line()), Some(message));
        }
        assert_eq!(Message::read("a message of a newer version"), None);
    }

    #[test]
    fn the_longest_failure_fits_into_a_line() {
        let long = "\u{1}".repeat(1_000_000);
        let line = Message::Failed(Failure::new(ErrorCode::RankFailed, &long, &long, &long)).line();
        assert!(line.len() + 100 < LINE_BYTES, "{}", line.len());
        assert!(Message::read(&line).is_some());
    }
}
