//! Errors: what this crate returns, and the form in which users see every error.

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use recipe::{RecipeError, RecipeErrorKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use text_file::NotText;

use crate::ErrorCode;

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
    pub(crate) fn is_root(&self) -> bool {
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
    pub(crate) fn of_text(text: &str) -> Self {
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

/// An error of reading or writing a file of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The operation: `read`, `write`, `list`…
        action: &'static str,
        /// The file or folder.
        path: Utf8PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not have the expected format.
    #[error("cannot read {path}: {why}")]
    Malformed {
        /// The file.
        path: Utf8PathBuf,
        /// The fault, with the line if it is known.
        why: String,
    },
    /// A file is neither UTF-8 nor UTF-16.
    #[error("cannot read {path}: {why}")]
    NotText {
        /// The file.
        path: Utf8PathBuf,
        /// The first fault.
        why: NotText,
    },
    /// A newer version wrote the file.
    #[error("cannot read {path}: written by a newer vidtui ({key} {found}; this one reads {known})")]
    Newer {
        /// The file.
        path: Utf8PathBuf,
        /// `schema`, `format` or `v`.
        key: &'static str,
        /// The version in the file.
        found: u64,
        /// The newest version this build reads.
        known: u32,
    },
    /// A text is not a run id.
    #[error("'{id}' is not a run id: {why}")]
    BadRunId {
        /// The text that was given.
        id: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// The lock of a file was not released in time.
    #[error("cannot lock {path}: {holder} holds its lock")]
    Locked {
        /// The file.
        path: Utf8PathBuf,
        /// The process that holds the lock, in words.
        holder: String,
    },
    /// A checkpoint is not complete.
    #[error("checkpoint {dir} is incomplete: {why}")]
    Incomplete {
        /// The step directory.
        dir: Utf8PathBuf,
        /// The first thing that is missing or wrong.
        why: String,
    },
    /// A checkpoint cannot be read, so it is unknown whether it is complete.
    #[error("checkpoint {dir} cannot be read: {why}")]
    Unreadable {
        /// The step directory.
        dir: Utf8PathBuf,
        /// The file system's error.
        why: String,
    },
    /// A file of a checkpoint changed after it was written.
    #[error("checkpoint file {path} is damaged: checksum {found}, expected {wanted} by its manifest")]
    Checksum {
        /// The file.
        path: Utf8PathBuf,
        /// Its checksum now.
        found: String,
        /// The checksum in the manifest.
        wanted: String,
    },
    /// The recipe in a run is not valid.
    #[error("the recipe in {path} is not valid: {why}")]
    Recipe {
        /// The file that contains the recipe.
        path: Utf8PathBuf,
        /// The rule that it breaks.
        why: String,
        /// The hint.
        fix: String,
    },
}

impl Error {
    /// Makes an [`Error::Io`].
    pub fn io(action: &'static str, path: &Utf8Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    /// Makes an [`Error::NotText`].
    pub fn not_text(path: &Utf8Path, why: NotText) -> Self {
        Self::NotText { path: path.to_owned(), why }
    }

    pub(crate) fn malformed(path: &Utf8Path, why: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), why: why.into() }
    }

    /// Returns whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Returns whether an error leaves the state of a file unknown, because the file system did not answer or refused access.
pub fn is_no_answer(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, UnexpectedEof};
    ![NotFound, NotADirectory, IsADirectory, UnexpectedEof].contains(&error.kind())
}

impl From<RecipeError> for Failure {
    fn from(error: RecipeError) -> Self {
        let code = match error.kind {
            RecipeErrorKind::Io(io::ErrorKind::NotFound) => ErrorCode::NotFound,
            RecipeErrorKind::Io(io::ErrorKind::PermissionDenied) => ErrorCode::PermissionDenied,
            RecipeErrorKind::Io(_) => ErrorCode::Io,
            RecipeErrorKind::Flag => ErrorCode::InvalidArgument,
            RecipeErrorKind::Mesh => ErrorCode::InvalidMesh,
            RecipeErrorKind::Memory => ErrorCode::OutOfMemory,
            RecipeErrorKind::Secrets => ErrorCode::InvalidSecrets,
            RecipeErrorKind::NotToml
            | RecipeErrorKind::Base
            | RecipeErrorKind::UnknownKey
            | RecipeErrorKind::MissingKey
            | RecipeErrorKind::WrongTrainer
            | RecipeErrorKind::WrongTask
            | RecipeErrorKind::InvalidValue
            | RecipeErrorKind::BrokenRule
            | RecipeErrorKind::Stage => ErrorCode::InvalidRecipe,
        };
        Self::new(code, error.what, error.why, error.fix)
    }
}

/// Returns how to make room for a file that could not be written because of a full disk, a quota or a limit ([`ErrorCode::DiskFull`], [`ErrorCode::FileTooLarge`]).
pub fn room_for(error: &io::Error, path: &Utf8Path) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            "a limit on the size of files is set (ulimit -f): raise it in the shell or job that starts the run".into()
        }
        io::ErrorKind::QuotaExceeded => {
            format!("your quota on the disk that holds {path} is used up: delete files of yours, or see: quota")
        }
        _ => format!("free some space on the disk that holds {path}"),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let split = |code, what: String, why: String, fix: String| Failure::new(code, what, why, fix);
        match error {
            Error::Io { action, path, source } => {
                let code = ErrorCode::of_io(&source);
                let fix = match source.kind() {
                    _ if [ErrorCode::DiskFull, ErrorCode::FileTooLarge].contains(&code) => room_for(&source, &path),
                    io::ErrorKind::ReadOnlyFilesystem => {
                        format!(
                            "its file system is read-only, often after an error of the disk: ask who runs it, or see: findmnt --target {path}"
                        )
                    }
                    io::ErrorKind::StaleNetworkFileHandle => {
                        format!(
                            "its network file system was exported or mounted again: open a new shell on the node, or see: findmnt --target {path}"
                        )
                    }
                    io::ErrorKind::PermissionDenied => {
                        format!("check the owner and permissions of {path}: ls -ld {path}")
                    }
                    io::ErrorKind::NotFound => {
                        format!("check the spelling of {path}, and whether its disk is mounted")
                    }
                    _ => format!("check {path} and its disk, then try again"),
                };
                split(code, format!("cannot {action} {path}"), source.to_string(), fix)
            }
            Error::Malformed { path, why } => split(
                ErrorCode::Malformed,
                format!("cannot read {path}"),
                why,
                "restore the file, which vidtui never edits after writing it, or remove the folder that contains it"
                    .into(),
            ),
            Error::NotText { path, why } => {
                let fix = why.fix(path.as_str());
                split(ErrorCode::Malformed, format!("cannot read {path}"), why.to_string(), fix)
            }
            Error::Newer { path, key, found, known } => split(
                ErrorCode::NewerFormat,
                format!("cannot read {path}"),
                format!("written by a newer vidtui ({key} {found}; this one reads {known})"),
                "upgrade vidtui on this machine".into(),
            ),
            Error::BadRunId { id, why } => split(
                ErrorCode::InvalidRunId,
                format!("'{id}' is not a run id"),
                why.into(),
                "list the runs with `vidtui runs`; an id looks like 2026-11-20T0340-demo-2s-k7f2".into(),
            ),
            Error::Locked { path, holder } => split(
                ErrorCode::Locked,
                format!("cannot lock {path}"),
                format!("{holder} holds its lock"),
                "wait until that process releases it, or end that process; then try again".into(),
            ),
            Error::Incomplete { dir, why } => {
                let run =
                    dir.parent().filter(|parent| parent.file_name() == Some("checkpoints")).and_then(Utf8Path::parent);
                let fix = match run.and_then(Utf8Path::file_name) {
                    Some(run) => format!("choose another step: `vidtui checkpoints {run}` lists them"),
                    None => "choose another checkpoint".into(),
                };
                split(ErrorCode::CheckpointIncomplete, format!("cannot use checkpoint {dir}"), why, fix)
            }
            Error::Unreadable { dir, why } => split(
                ErrorCode::CheckpointUnreadable,
                format!("cannot read checkpoint {dir}"),
                why,
                "it may be the newest checkpoint: restore access to it, or choose an older one by its step".into(),
            ),
            Error::Checksum { path, found, wanted } => split(
                ErrorCode::CheckpointDamaged,
                format!("checkpoint file {path} is damaged"),
                format!("its checksum is {found}, expected {wanted} by its manifest"),
                "check the disk, then resume: the newest checkpoint before this one is loaded".into(),
            ),
            Error::Recipe { path, why, fix } => {
                split(ErrorCode::InvalidRecipe, format!("the recipe in {path} is not valid"), why, fix)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::node;

    #[test]
    fn a_cause_is_read_as_it_was_written() {
        let of_node = |name| Cause::Peer(Some(node(name)));
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
