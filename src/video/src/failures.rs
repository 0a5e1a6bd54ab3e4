//! Failures of clips, pictures and programs.
//!
//! Codes: `Malformed` for a damaged or suspect file, `InvalidDataset` for an intact file that cannot be used,
//! `NoAnswer` for a program that made no progress, `CommandFailed` for a program that was killed from outside.
//! [`ClipFault`] has more detail about the clip.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use camino::Utf8Path;
use failure::{ErrorCode, Failure, FileError};
use text_file::open_regular;

use crate::child::Stop;
use crate::install::install_hint;

/// The number of a program's error lines that a failure shows.
pub(crate) const SHOWN_LINES: usize = 5;

/// Messages that ffprobe logs about a truncated file.
const CUT_OFF: [&str; 5] =
    ["moov atom not found", "partial file", "ended prematurely", "Truncating packet", "end of file"];

/// The fault of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipFault {
    /// The file has no moving picture: only sound, or cover art.
    NoPicture,
    /// The path is not a video: a picture, a folder without pictures or a device.
    NotAVideo,
    /// The file is intact, but has a property that is not supported.
    Unsupported,
    /// The file seems to end before the video does.
    CutOff,
    /// The file is damaged in another way.
    Damaged,
    /// The failure is not about the clip: a program is missing or was killed, or the disk failed.
    None,
}

/// A failure with the fault of the clip.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipError {
    /// The fault of the clip.
    pub fault: ClipFault,
    /// The failure for users.
    pub failure: Failure,
}

impl From<Failure> for ClipError {
    fn from(failure: Failure) -> Self {
        Self { fault: ClipFault::None, failure }
    }
}

impl From<FileError> for ClipError {
    fn from(error: FileError) -> Self {
        Failure::from(error).into()
    }
}

impl From<ClipError> for Failure {
    fn from(error: ClipError) -> Self {
        error.failure
    }
}

/// The first error lines of a program, and their total number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Complaints {
    pub lines: Vec<String>,
    pub count: usize,
}

impl Complaints {
    pub fn add(&mut self, line: &str) {
        self.count += 1;
        if self.lines.len() < SHOWN_LINES {
            self.lines.push(line.to_owned());
        }
    }

    pub fn shown(&self) -> String {
        let more = match self.count - self.lines.len() {
            0 => String::new(),
            more => format!(" (and {more} more lines)"),
        };
        self.lines.join("; ") + &more
    }
}

/// Returns the failure of a program that did not end by itself.
pub(crate) fn stopped(program: &Utf8Path, stop: Stop) -> Failure {
    let name = program.file_name().unwrap_or(program.as_str());
    match stop {
        Stop::NotStarted(error) if error.kind() == ErrorKind::NotFound => Failure::new(
            ErrorCode::ProgramMissing,
            format!("cannot start {name}"),
            format!("{program} is not installed or not on PATH"),
            install_hint(),
        ),
        Stop::NotStarted(error) => Failure::new(
            ErrorCode::ProgramMissing,
            format!("cannot start {name}"),
            format!("{program}: {error}"),
            install_hint(),
        ),
        Stop::Silent(limit) => Failure::new(
            ErrorCode::NoAnswer,
            format!("{name} was killed"),
            format!("it made no progress for {:.1} s", limit.as_secs_f64()),
            "check that the disk that holds the clip responds; if it does, remove the clip from the data set",
        ),
        Stop::Cancelled => {
            Failure::new(ErrorCode::Cancelled, format!("{name} was killed"), "the work was cancelled", "start it again")
        }
        Stop::TooMuch(bytes) => Failure::new(
            ErrorCode::Malformed,
            format!("{name} was killed"),
            format!("it wrote more than {}", units::short_size(bytes as u64)),
            "remove the clip from the data set",
        ),
        Stop::Io(error) => Failure::new(
            ErrorCode::Io,
            format!("cannot read from {name}"),
            error.to_string(),
            "try again; check the limits on open files and memory (`ulimit -a`)",
        ),
    }
}

/// Adds the clip to a failure of a program.
pub(crate) fn about(path: &Utf8Path, failure: Failure) -> Failure {
    if failure.code == ErrorCode::ProgramMissing {
        return failure;
    }
    Failure { what: format!("cannot read {path}"), why: format!("{}: {}", failure.what, failure.why), ..failure }
}

/// The exit codes with which a shell, the dynamic linker and container programs report that a program did not start. ffmpeg and ffprobe
/// never end with them.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Returns the failure of a program that ended without having looked at its input: its libraries are missing, or it is no program.
pub(crate) fn not_started(program: &Utf8Path, status: ExitStatus, complaints: &Complaints) -> Option<Failure> {
    let code = status.code().filter(|code| NOT_STARTED.contains(code))?;
    let name = program.file_name().unwrap_or(program.as_str());
    let why = match complaints.lines.is_empty() {
        true => format!("{program} ended with exit code {code}"),
        false => format!("{program} ended with exit code {code}: {}", complaints.shown()),
    };
    Some(Failure::new(ErrorCode::ProgramMissing, format!("cannot start {name}"), why, repair_hint(program)))
}

/// Returns the hint for a program that is installed and does not start.
pub(crate) fn repair_hint(program: &Utf8Path) -> String {
    format!("run `{program} -version` to see the reason, then {}", install_hint())
}

/// Returns the failure of a program that did not start or that a signal ended.
pub(crate) fn not_run(
    path: &Utf8Path,
    program: &Utf8Path,
    status: ExitStatus,
    complaints: &Complaints,
) -> Option<Failure> {
    if let Some(failure) = not_started(program, status, complaints) {
        return Some(failure);
    }
    let signal = status.signal()?;
    let why = format!("{program} was ended by signal {signal}");
    let fix = "look for `Out of memory` in the kernel's log (dmesg); use fewer decoders, or more memory";
    Some(Failure::new(ErrorCode::CommandFailed, format!("cannot read {path}"), why, fix))
}

/// Returns the failure of a file that is damaged, or about which a program logged errors.
pub(crate) fn damaged(path: &Utf8Path, why: impl Into<String>) -> ClipError {
    let why = why.into();
    let fault = if CUT_OFF.iter().any(|words| why.contains(words)) { ClipFault::CutOff } else { ClipFault::Damaged };
    let fix = format!(
        "copy the file again, re-encode it with `ffmpeg -i {path} NEW.mp4` and look at it, or remove it from the data set"
    );
    ClipError { fault, failure: Failure::new(ErrorCode::Malformed, format!("{path} is damaged"), why, fix) }
}

/// Returns the failure of a file that is intact but cannot be used.
pub(crate) fn unusable(path: &Utf8Path, fault: ClipFault, why: impl Into<String>, fix: impl Into<String>) -> ClipError {
    ClipError { fault, failure: Failure::new(ErrorCode::InvalidDataset, format!("cannot use {path}"), why, fix) }
}

/// Checks that a file can be read and is not empty, and returns its size in bytes. ffprobe's messages about such files
/// are less clear.
pub(crate) fn check_file(path: &Utf8Path) -> Result<u64, ClipError> {
    let about = fs::metadata(path).map_err(|error| FileError::io("read", path, error))?;
    if about.is_dir() {
        return Err(unusable(path, ClipFault::NotAVideo, "it is a folder", "name a video file"));
    }
    match open_regular(path) {
        Ok(_) => {}
        // A pipe or a device.
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            return Err(unusable(path, ClipFault::NotAVideo, error.to_string(), "name a video file"));
        }
        Err(error) => return Err(FileError::io("read", path, error).into()),
    }
    if about.len() == 0 {
        return Err(damaged(path, "it has 0 bytes"));
    }
    Ok(about.len())
}
