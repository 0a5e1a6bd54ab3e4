//! The errors of recipes, curricula and files of secrets.

use failure::{ErrorCode, Failure};
use std::fmt;
use std::io;

/// An error in a recipe, a curriculum or a file of secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct RecipeError {
    /// The kind of error.
    pub kind: RecipeErrorKind,
    /// The keys that are wrong, such as `train.steps`; empty when the error concerns a whole file.
    pub keys: Vec<String>,
    /// What failed, with the path, such as `cannot use recipe a.toml`.
    pub what: String,
    /// The reason, with the values and where they are set.
    pub why: String,
    /// The hint: what to change.
    pub fix: String,
}

/// The kinds of [`RecipeError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecipeErrorKind {
    /// A file cannot be read.
    Io(io::ErrorKind),
    /// A file is not TOML.
    NotToml,
    /// A `base` does not exist, is not a string, or leads back to its own file.
    Base,
    /// A `--set` flag is not `section.key=value`.
    Flag,
    /// A key or section does not exist.
    UnknownKey,
    /// A key without a default is not set.
    MissingKey,
    /// A key has no effect with this kind of trainer (embedded or command).
    WrongTrainer,
    /// A key belongs to another task.
    WrongTask,
    /// A key does not apply to the family of the model.
    WrongFamily,
    /// A value has the wrong type or is out of range.
    InvalidValue,
    /// A rule between keys does not hold.
    BrokenRule,
    /// The mesh does not fit the ranks, the batch or the model.
    Mesh,
    /// No settings fit the memory.
    Memory,
    /// A stage of a curriculum is not valid.
    Stage,
    /// A file of secrets is not valid, or other users can access it.
    Secrets,
}

impl RecipeError {
    /// Creates an error without keys.
    pub fn new(kind: RecipeErrorKind, what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        RecipeError { kind, keys: Vec::new(), what: what.into(), why: why.into(), fix: fix.into() }
    }

    /// Adds a key that is wrong.
    pub(crate) fn key(mut self, path: impl Into<String>) -> Self {
        self.keys.push(path.into());
        self
    }
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\nhint: {}", self.what, self.why, self.fix)
    }
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
            | RecipeErrorKind::WrongFamily
            | RecipeErrorKind::InvalidValue
            | RecipeErrorKind::BrokenRule
            | RecipeErrorKind::Stage => ErrorCode::InvalidRecipe,
        };
        Self::new(code, error.what, error.why, error.fix)
    }
}
