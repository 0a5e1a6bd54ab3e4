use std::fmt;

/// Says what is wrong with a recipe, why, and what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct RecipeError {
    /// What cannot be used, with its path.
    pub what: String,
    /// The reason, with the values and their places.
    pub why: String,
    /// What to change.
    pub fix: String,
}

impl RecipeError {
    /// Makes an error of its three parts.
    pub fn new(what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        RecipeError { what: what.into(), why: why.into(), fix: fix.into() }
    }
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\nhint: {}", self.what, self.why, self.fix)
    }
}
