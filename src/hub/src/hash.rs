//! The hash of a file as the Hub lists it: SHA-256 of large files, git's SHA-1 of others.

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hash that the Hub lists for a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expected {
    /// SHA-256 of the bytes, in hexadecimal digits.
    Sha256(String),
    /// SHA-1 of git's header and the bytes, in hexadecimal digits.
    Git(String),
}

impl Expected {
    /// Returns the digits, which are the blob's file name.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// Returns whether the digits are hexadecimal and have the right number, so that they cannot be a path.
    pub(crate) fn is_valid(&self) -> bool {
        let length = match self {
            Self::Sha256(_) => 64,
            Self::Git(_) => 40,
        };
        self.digits().len() == length && self.digits().bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// A hash that is computed piece by piece.
pub(crate) enum Hash {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hash {
    /// Begins the hash of a file of this size.
    pub(crate) fn new(expected: &Expected, size: u64) -> Self {
        match expected {
            Expected::Sha256(_) => Self::Sha256(Sha256::new()),
            Expected::Git(_) => Self::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// Returns the hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::Git(hash) => hex(&hash.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_sha256sum_and_git_hash_object() {
        let of = |expected: Expected| {
            let mut hash = Hash::new(&expected, 6);
            hash.update(b"hel");
            hash.update(b"lo\n");
            hash.finish()
        };
        assert_eq!(of(Expected::Git(String::new())), "ce013625030ba8dba906f756967f9e9ca394464a");
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(of(Expected::Sha256(String::new())), sha256);
    }
}
