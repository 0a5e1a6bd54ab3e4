//! The secret with which the supervisors of an attempt authenticate each other.

use std::fs::{self, File};
use std::io::{self, Read};

use crate::{Error, FileError, RunDir, is_exposed, write_private};

/// The random 256-bit token of an attempt. Only the owner of the run can read its file, so that other users of a
/// cluster cannot join the run. It is never printed, logged or passed in an environment variable.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerToken([u8; 32]);

impl PeerToken {
    /// Makes a token from the system's random numbers.
    ///
    /// # Errors
    /// If `/dev/urandom` cannot be read.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Returns the 32 bytes of the token.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_hex(text: &str) -> Option<Self> {
        let text = text.trim_end();
        let digits = text.bytes().map(|digit| char::from(digit).to_digit(16)).collect::<Option<Vec<_>>>()?;
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte * 16 + *digit as u8)).collect();
        Some(Self(bytes.try_into().ok()?)).filter(|_| text.len() == 64)
    }
}

impl std::fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerToken(…)")
    }
}

impl RunDir {
    /// Writes the token of an attempt. An existing token is kept.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn make_peer_token(&self, attempt: u32) -> Result<(), Error> {
        let path = self.peer_token(attempt);
        let token = PeerToken::random().map_err(|error| Error::io("write", &path, error))?;
        match write_private(&path, format!("{}\n", token.hex()).as_bytes()) {
            Err(Error::File(FileError::Io { source, .. })) if source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            written => written,
        }
    }

    /// Reads the token of an attempt.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Malformed`] if the file is not a token.
    pub fn read_peer_token(&self, attempt: u32) -> Result<PeerToken, Error> {
        let path = self.peer_token(attempt);
        let text = fs::read_to_string(&path).map_err(|error| Error::io("read", &path, error))?;
        PeerToken::from_hex(&text).ok_or_else(|| Error::malformed(&path, "it does not hold 64 hexadecimal digits"))
    }

    /// Returns true if other users can read the token of an attempt, as on a file system without permissions.
    pub fn is_peer_token_exposed(&self, attempt: u32) -> bool {
        is_exposed(&self.peer_token(attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::temp;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_random_private_to_its_owner_and_written_once() {
        let (_keep, run) = temp();
        for attempt in [1, 2] {
            fs::create_dir_all(run.attempt_dir(attempt)).unwrap();
            run.make_peer_token(attempt).unwrap();
        }
        let token = run.read_peer_token(1).unwrap();
        assert_ne!(token, run.read_peer_token(2).unwrap());
        assert_eq!(fs::metadata(run.peer_token(1)).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!run.is_peer_token_exposed(1));
        run.make_peer_token(1).unwrap();
        assert_eq!(run.read_peer_token(1).unwrap(), token);
        assert!(!format!("{token:?}").contains(&token.hex()[..8]));
    }

    #[test]
    fn a_file_that_is_not_a_token_is_refused() {
        let (_keep, run) = temp();
        fs::create_dir_all(run.attempt_dir(1)).unwrap();
        assert!(run.read_peer_token(1).unwrap_err().is_not_found());
        for text in ["", "0123", &"g".repeat(64), &"0".repeat(66)] {
            fs::write(run.peer_token(1), text).unwrap();
            assert!(matches!(run.read_peer_token(1), Err(Error::Malformed { .. })), "{text}");
        }
    }
}
