//! The errors of collectives, stores and CUDA calls.

/// A failed call of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libtorch returned an error; `why` is its message without the source locations.
    #[error("cannot {doing}: {why}")]
    Torch {
        /// The operation, with its real values.
        doing: String,
        /// The message of libtorch.
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
    pub(crate) fn torch(doing: impl Into<String>, text: &str) -> Self {
        Self::Torch { doing: doing.into(), why: readable(text) }
    }

    pub(crate) fn argument(doing: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Argument { doing: doing.into(), why: why.into() }
    }
}

/// Converts an error of a block of the model, whose forward or backward pass can contain collectives.
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text,
            other => other.to_string(),
        };
        Self::torch("run a transformer block", &text)
    }
}

/// Removes the parts that only developers of libtorch need: each leading `[file.cc:123]`, and all lines after the first.
fn readable(text: &str) -> String {
    let mut rest = text.trim();
    while let Some((place, message)) = rest.strip_prefix('[').and_then(|tail| tail.split_once("] ")) {
        let is_source = [".cc:", ".cpp:", ".h:", ".hpp:"].iter().any(|ending| place.contains(ending));
        if !is_source {
            break;
        }
        rest = message.trim_start();
    }
    rest.lines().next().unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn source_locations_of_libtorch_are_removed() {
        let text =
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4242";
        assert_eq!(readable(text), "Connection closed by peer [127.0.0.1]:4242");
        assert_eq!(readable("[127.0.0.1] refused\nException raised from x"), "[127.0.0.1] refused");
    }
}
