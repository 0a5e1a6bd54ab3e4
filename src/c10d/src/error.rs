//! What can go wrong between ranks.

/// A call into the distributed engine that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libtorch refused or failed; `why` is its own text, without addresses in its sources.
    #[error("cannot {doing}: {why}")]
    Torch {
        /// What was being done, with its real values.
        doing: String,
        /// libtorch's explanation.
        why: String,
    },
    /// The arguments cannot be right, whatever the network does.
    #[error("cannot {doing}: {why}")]
    Argument {
        /// What was asked for.
        doing: String,
        /// What does not fit, with the numbers.
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

/// What went wrong in a graph that holds a collective.
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text,
            other => other.to_string(),
        };
        Self::torch("run a block", &text)
    }
}

/// Drops what only a developer of libtorch can use: the leading `[file.cc:123]`, and the notes after the first line.
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
    fn places_in_the_sources_of_libtorch_are_left_out() {
        let text =
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4242";
        assert_eq!(readable(text), "Connection closed by peer [127.0.0.1]:4242");
        assert_eq!(readable("[127.0.0.1] refused\nException raised from x"), "[127.0.0.1] refused");
    }
}
