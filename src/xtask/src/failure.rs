//! What went wrong, why, and what to do now.

use std::fmt;

/// A failure as it is shown: what failed, why, and what to do.
#[derive(Debug)]
pub struct Failure {
    /// What was being done, in the words of the person who asked for it.
    pub what: String,
    /// Why it did not work, with the real values and paths.
    pub why: String,
    /// What to do now.
    pub fix: String,
    /// The process's exit code: 1 it failed, 2 the request was wrong.
    pub code: u8,
}

/// The result of a chore.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes the failure of something that was tried.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, fix: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.to_string(), fix: fix.into(), code: 1 }
    }

    /// Makes the failure of a request that cannot be understood.
    pub fn request(what: impl Into<String>, why: impl fmt::Display, fix: impl Into<String>) -> Self {
        Self { code: 2, ..Self::new(what, why, fix) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\nhint: {}", self.what, self.why, self.fix)
    }
}
