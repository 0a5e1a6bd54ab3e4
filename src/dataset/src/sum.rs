//! The checksum of a stored tensor, with which a reader detects damaged bytes.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU64;
use xxhash_rust::xxh3::xxh3_64;

/// The 64-bit XXH3 hash of the bytes of a tensor, 16 hexadecimal digits on disk. A hash of 0 is not recorded, so that a checksum takes
/// no more than its eight bytes in a table of millions of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorSum(NonZeroU64);

impl TensorSum {
    /// Makes the checksum with this hash; `None` for 0.
    pub fn new(hash: u64) -> Option<Self> {
        NonZeroU64::new(hash).map(Self)
    }

    /// Returns the checksum of the bytes of a tensor.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Self::new(xxh3_64(bytes))
    }

    /// Returns the hash.
    pub fn hash(self) -> u64 {
        self.0.get()
    }

    /// Returns whether bytes have this checksum.
    pub fn is_of(self, bytes: &[u8]) -> bool {
        xxh3_64(bytes) == self.hash()
    }
}

impl fmt::Display for TensorSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TensorSum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TensorSum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        // A visitor, because an index has millions of checksums, and `String` would allocate memory for each.
        impl Visitor<'_> for Digits {
            type Value = TensorSum;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a checksum of 16 hexadecimal digits")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TensorSum, E> {
                let hash = (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
                hash.and_then(TensorSum::new).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_read_as_it_was_written_and_other_text_is_refused() {
        let sum = TensorSum::of(b"latent").unwrap();
        let text = serde_json::to_string(&sum).unwrap();
        assert_eq!((text.len(), serde_json::from_str::<TensorSum>(&text).unwrap()), (18, sum));
        assert!(sum.is_of(b"latent") && !sum.is_of(b"latenu"));
        for other in ["\"\"", "\"12\"", "\"0000000000000000\"", "\"+123456789abcdef0\"", "7"] {
            assert!(serde_json::from_str::<TensorSum>(other).is_err(), "{other}");
        }
    }
}
