//! Models and data sets: the two kinds of repositories of the Hub, with their names in addresses and messages.

/// The kind of a repository of the Hub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// Weights.
    #[default]
    Model,
    /// A data set.
    Dataset,
}

impl Kind {
    /// Returns the name in the paths of the API and of the cache.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// Returns the part of the address of a page before the name.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
        }
    }

    /// Returns the noun in messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        }
    }
}
