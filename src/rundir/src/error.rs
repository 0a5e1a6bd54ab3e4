//! The errors of this crate.

use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure, FileError};
use std::io;
use text_file::NotText;

/// An error of reading or writing a file of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not have the expected format.
    #[error("cannot read {path}: {why}")]
    Malformed {
        /// The file.
        path: Utf8PathBuf,
        /// The fault, with the line if it is known.
        why: String,
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
    /// Makes an error of a system call.
    pub fn io(action: &'static str, path: &Utf8Path, source: io::Error) -> Self {
        FileError::io(action, path, source).into()
    }

    /// Makes an error of a file that is no text.
    pub fn not_text(path: &Utf8Path, why: NotText) -> Self {
        FileError::NotText { path: path.to_owned(), why }.into()
    }

    pub(crate) fn malformed(path: &Utf8Path, why: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), why: why.into() }
    }

    /// Returns whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::File(error) if error.is_not_found())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let split = |code, what: String, why: String, fix: String| Failure::new(code, what, why, fix);
        match error {
            Error::File(error) => error.into(),
            Error::Malformed { path, why } => split(
                ErrorCode::Malformed,
                format!("cannot read {path}"),
                why,
                "restore the file, which vidtui never edits after writing it, or remove the folder that contains it"
                    .into(),
            ),
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
