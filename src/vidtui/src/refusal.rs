//! How a command says no: a failure in three parts, and the exit code that goes with it.

use rundir::Failure;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct Refusal {
    failure: Failure,
    code: Code,
}

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    /// It was tried and failed, or the machine is not in the state that it needs.
    Failed = 1,
    /// The request is wrong whatever the state of the machine: a flag, a name, a recipe.
    Request = 2,
}

impl Refusal {
    /// Says that the request itself is wrong (exit code 2).
    pub fn request(failure: impl Into<Failure>) -> Self {
        Self { failure: failure.into(), code: Code::Request }
    }

    /// Prints what, why and what to do on standard error.
    pub fn report(&self) -> ExitCode {
        eprintln!("{}", self.failure);
        ExitCode::from(self.code as u8)
    }

    /// The failure alone, for the screen.
    pub fn into_failure(self) -> Failure {
        self.failure
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, code: Code::Failed }
    }
}

impl From<rundir::Error> for Refusal {
    fn from(error: rundir::Error) -> Self {
        Failure::from(error).into()
    }
}
