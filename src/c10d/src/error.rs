//! The errors of collectives, stores and CUDA calls.

use torch_error::{ErrorKind, TorchError};

/// A failed call of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libtorch returned an error.
    #[error("cannot {doing}: {source}")]
    Torch {
        /// The operation, with its real values.
        doing: String,
        /// The error of libtorch.
        source: TorchError,
    },
    /// A file that holds a tensor cannot be made or used.
    #[error("cannot {doing}: {why}")]
    File {
        /// The operation, with its real values.
        doing: String,
        /// The error of the operating system.
        why: String,
    },
    /// The arguments are invalid. Nothing was sent to other ranks.
    #[error("cannot {doing}: {why}")]
    Argument {
        /// The operation, with its real values.
        doing: String,
        /// The mismatch, with the numbers.
        why: String,
    },
}

impl Error {
    /// Makes an error of libtorch of no known kind.
    pub fn other(doing: impl Into<String>, text: impl Into<String>) -> Self {
        Self::Torch { doing: doing.into(), source: TorchError { kind: ErrorKind::Other, text: text.into() } }
    }

    /// Adds the operation to an error of tch or of libtorch.
    pub fn torch(doing: impl Into<String>, source: impl Into<TorchError>) -> Self {
        Self::Torch { doing: doing.into(), source: source.into() }
    }

    pub(crate) fn argument(doing: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Argument { doing: doing.into(), why: why.into() }
    }

    /// Makes an error of a file from an error of libtorch's interface, which the shim throws for the operating system.
    pub(crate) fn of_file(self) -> Self {
        match self {
            Self::Torch { doing, source } if source.kind == ErrorKind::Other => Self::File { doing, why: source.text },
            other => other,
        }
    }

    /// Makes an error of waiting for another rank. A store in a file throws exceptions without a type of their own when its timeout passes.
    pub(crate) fn of_peer(self) -> Self {
        match self {
            Self::Torch { doing, source } if source.kind == ErrorKind::Other => {
                Self::Torch { doing, source: TorchError { kind: ErrorKind::Peer, ..source } }
            }
            other => other,
        }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Torch { source, .. } => source.kind,
            Self::File { .. } | Self::Argument { .. } => ErrorKind::Other,
        }
    }
}

/// Converts an error of computing, whose graph may contain collectives.
impl From<TorchError> for Error {
    fn from(source: TorchError) -> Self {
        Self::torch("compute", source)
    }
}

/// Converts an error of a collective within a graph, whose operators return errors of libtorch.
impl From<Error> for TorchError {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), text: error.to_string() }
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::from(TorchError::from(error))
    }
}
