//! The error of a command: a failure in three parts, and the exit code that goes with it.

use crate::output::{self, note};
use rundir::Failure;
use std::process::ExitCode;
use units::terminal::Escaped;

/// The error of a command.
#[derive(Debug)]
pub struct CommandError {
    failure: Failure,
    exit: Exit,
}

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// The command failed, or the machine is not in the state that the command needs.
    Failed = 1,
    /// The request (a flag, a name, a recipe) is invalid in any state of the machine.
    InvalidRequest = 2,
}

/// The output format of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    /// Text: what failed, the reason, then a hint.
    Text,
    /// `{"error": {"code": …, "what": …, "why": …, "fix": …}}` on one line.
    Json,
}

impl CommandError {
    /// Creates the error of an invalid request (exit code 2).
    pub fn request(failure: impl Into<Failure>) -> Self {
        Self { failure: failure.into(), exit: Exit::InvalidRequest }
    }

    /// Prints the failure on standard error and returns the exit code.
    pub fn report(&self, format: ErrorFormat) -> ExitCode {
        match format {
            ErrorFormat::Text => note!("{}", self.failure),
            ErrorFormat::Json => {
                let error = serde_json::json!({ "error": self.failure }).to_string();
                output::progress(&Escaped::json(&error).and(&Escaped::own("\n")));
            }
        }
        ExitCode::from(self.exit as u8)
    }

    /// Returns the failure without the exit code, for the console.
    pub fn into_failure(self) -> Failure {
        self.failure
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Self { failure, exit: Exit::Failed }
    }
}

impl From<rundir::Error> for CommandError {
    fn from(error: rundir::Error) -> Self {
        Failure::from(error).into()
    }
}
