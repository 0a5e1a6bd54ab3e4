//! Errors of reading and writing files.

use crate::{ErrorCode, Failure};
use camino::{Utf8Path, Utf8PathBuf};
use std::io;
use text_file::{MAX_TEXT, NotText};

/// An error of reading or writing a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
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
    /// A file is neither UTF-8 nor UTF-16.
    #[error("cannot read {path}: {why}")]
    NotText {
        /// The file.
        path: Utf8PathBuf,
        /// The first fault.
        why: NotText,
    },
}

impl FileError {
    /// Makes a [`FileError::Io`].
    pub fn io(action: &'static str, path: &Utf8Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    /// Returns whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads a text file of a user, UTF-8 or UTF-16.
///
/// # Errors
/// [`FileError::Io`], also for a pipe, a device and a file of more than 256 MiB; or [`FileError::NotText`] with the line, the encoding and
/// the command that converts the file.
pub fn read_text(path: &Utf8Path) -> Result<String, FileError> {
    let bytes = text_file::read_named(path, MAX_TEXT).map_err(|e| FileError::io("read", path, e))?;
    text_file::decode(bytes).map_err(|why| FileError::NotText { path: path.to_owned(), why })
}

/// Returns whether an error leaves the state of a file unknown, because the file system did not answer or refused access.
pub fn is_no_answer(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, UnexpectedEof};
    ![NotFound, NotADirectory, IsADirectory, UnexpectedEof].contains(&error.kind())
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

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { action, path, source } => {
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
                Failure::new(code, format!("cannot {action} {path}"), source.to_string(), fix)
            }
            FileError::NotText { path, why } => {
                let fix = why.fix(path.as_str());
                Failure::new(ErrorCode::Malformed, format!("cannot read {path}"), why.to_string(), fix)
            }
        }
    }
}
