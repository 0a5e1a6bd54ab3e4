//! [`Failure`]: an error in the form in which users see it, with its [`ErrorCode`] and its [`Cause`]; and the errors of files, and of
//! libraries that panic on damaged ones, that every library shares.

mod code;
mod file;
mod panics;

use cluster::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use code::ErrorCode;
pub use file::{FileError, is_no_answer, read_text, room_for};
pub use panics::{catch_panic, is_panic_caught};

/// An error in the form in which users see it: what failed, why, and what to do now.
///
/// It is part of the format of a run: a rank or supervisor writes it to a file, and the console shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WrittenFailure")]
pub struct Failure {
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// The origin of the cause.
    #[serde(skip_serializing_if = "Cause::is_root")]
    pub cause: Cause,
    /// The operation that failed: `cannot resume demo-2s`.
    pub what: String,
    /// The reason, with the real values.
    pub why: String,
    /// The hint: what to do now.
    pub fix: String,
}

impl Failure {
    /// Makes a failure that is a root cause.
    pub fn new(code: ErrorCode, what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { code, cause: Cause::Root, what: what.into(), why: why.into(), fix: fix.into() }
    }

    /// Makes the failure of a rank or node that lost contact with another rank or node. `peer` is the lost node, or the
    /// node of the lost rank, if known.
    pub fn peer_lost(peer: Option<NodeId>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { cause: Cause::Peer(peer), ..Self::new(ErrorCode::PeerLost, PEER_LOST, why, fix) }
    }

    /// Returns true if the failure of another rank or node caused this one.
    pub fn is_consequence(&self) -> bool {
        self.cause.is_peer()
    }
}

/// The `what` of [`Failure::peer_lost`].
const PEER_LOST: &str = "lost contact with another rank";

/// The place of a failure's cause. On disk: `root`, `peer`, `peer:NODE` or `stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Cause {
    /// The rank or node that reports the failure.
    #[default]
    Root,
    /// Another rank or node, without which this one could not continue. The field is the other node, if known.
    Peer(Option<NodeId>),
    /// A stop request.
    Stop,
}

impl Cause {
    /// Returns true if the cause lies in the rank or node that reports the failure.
    pub fn is_root(&self) -> bool {
        *self == Self::Root
    }

    /// Returns the other node in which the cause lies, if it is known.
    pub fn node(&self) -> Option<&NodeId> {
        match self {
            Self::Peer(node) => node.as_ref(),
            Self::Root | Self::Stop => None,
        }
    }

    /// Returns true if the cause lies in another rank or node.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }

    /// Derives the cause of a failure from its text, because earlier versions wrote no cause.
    pub fn of_text(text: &str) -> Self {
        if text.starts_with(PEER_LOST) { Self::Peer(None) } else { Self::Root }
    }
}

impl From<Cause> for String {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Root => "root".into(),
            Cause::Peer(None) => "peer".into(),
            Cause::Peer(Some(node)) => format!("peer:{node}"),
            Cause::Stop => "stop".into(),
        }
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        match text.split_once(':').unwrap_or((&text, "")) {
            ("peer", node) => Self::Peer(NodeId::new(node).ok()),
            ("stop", _) => Self::Stop,
            _ => Self::Root,
        }
    }
}

/// A failure as any version wrote it. Early versions wrote neither code nor cause.
#[derive(Deserialize)]
struct WrittenFailure {
    #[serde(default)]
    code: ErrorCode,
    cause: Option<Cause>,
    what: String,
    why: String,
    fix: String,
}

impl From<WrittenFailure> for Failure {
    fn from(WrittenFailure { code, cause, what, why, fix }: WrittenFailure) -> Self {
        Self { code, cause: cause.unwrap_or_else(|| Cause::of_text(&what)), what, why, fix }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        if !self.fix.is_empty() {
            write!(f, "\nhint: {}", self.fix)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_read_as_it_was_written() {
        let of_node = |name: &str| Cause::Peer(Some(NodeId::new(name).unwrap()));
        for cause in [Cause::Root, Cause::Peer(None), of_node("ml-1"), of_node("fe80::1%eth0"), Cause::Stop] {
            let failure = Failure { cause, ..Failure::new(ErrorCode::RankFailed, "what", "why", "fix") };
            let json = serde_json::to_string(&failure).unwrap();
            assert_eq!(serde_json::from_str::<Failure>(&json).unwrap(), failure);
            assert_eq!(toml::from_str::<Failure>(&toml::to_string(&failure).unwrap()).unwrap(), failure);
        }
    }

    #[test]
    fn the_cause_of_a_failure_of_an_early_version_is_derived_from_its_text() {
        let read = |what: &str| {
            serde_json::from_value::<Failure>(serde_json::json!({ "what": what, "why": "reset", "fix": "" })).unwrap()
        };
        assert_eq!(read("lost contact with another rank").cause, Cause::Peer(None));
        assert_eq!((read("node ml-3 was lost").cause, read("x").code), (Cause::Root, ErrorCode::Unknown));
    }
}
