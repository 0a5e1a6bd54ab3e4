//! The errors of xtask: what failed, why, and what to do now.

use std::fmt;

/// An error in the form in which it is printed.
#[derive(Debug)]
pub struct Failure {
    /// What failed.
    pub what: String,
    /// Why it failed, with the real values and paths.
    pub why: String,
    /// What to do now.
    pub fix: String,
    /// The exit code: 1 for a failed task, 2 for an invalid request.
    pub code: u8,
}

/// The result of a task.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes the failure of a task, with exit code 1.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, fix: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.to_string(), fix: fix.into(), code: 1 }
    }

    /// Makes the failure of an invalid request, such as an unknown argument, with exit code 2.
    pub fn request(what: impl Into<String>, why: impl fmt::Display, fix: impl Into<String>) -> Self {
        Self { code: 2, ..Self::new(what, why, fix) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\nhint: {}", self.what, self.why, self.fix)
    }
}
