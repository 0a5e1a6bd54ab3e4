//! Public keys: their type and length, and the public part of a key file.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use camino::Utf8Path;

/// The signature algorithms of the types of keys with which libssh2 logs in.
const SIGNATURES: [(&str, &[&str]); 5] = [
    ("ssh-ed25519", &["ssh-ed25519"]),
    ("ssh-rsa", &["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"]),
    ("ecdsa-sha2-nistp256", &["ecdsa-sha2-nistp256"]),
    ("ecdsa-sha2-nistp384", &["ecdsa-sha2-nistp384"]),
    ("ecdsa-sha2-nistp521", &["ecdsa-sha2-nistp521"]),
];
/// The start of a private key in OpenSSH's format, which has the public key in front of the encrypted part.
const PRIVATE_KEY: &[u8] = b"openssh-key-v1\0";

/// A public key as SSH sends it: parts, each preceded by its length, of which the first is the type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(pub Vec<u8>);

impl PublicKey {
    /// Reads the public part of a key file: from the file with `.pub`, or from the file itself if it is a public key or a private
    /// key in OpenSSH's format.
    pub fn of_file(file: &Utf8Path) -> Option<Self> {
        let text = |path: &str| fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let public = text(&format!("{file}.pub")).and_then(|text| Self::of_line(&text));
        public.or_else(|| {
            let text = text(file.as_str())?;
            Self::of_line(&text).or_else(|| Self::of_private(&text))
        })
    }

    /// Returns whether a file is a public key.
    pub fn is_public_file(file: &Utf8Path) -> bool {
        fs::read(file).is_ok_and(|bytes| Self::of_line(&String::from_utf8_lossy(&bytes)).is_some())
    }

    /// Parses a line `TYPE BASE64 COMMENT`.
    fn of_line(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (kind, blob) = (words.next()?, words.next()?);
        let key = Self(STANDARD.decode(blob).ok()?);
        (key.kind() == kind).then_some(key)
    }

    /// Reads the public key of a private key in OpenSSH's format.
    fn of_private(text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.starts_with("-----"));
        let bytes = STANDARD.decode(lines.map(str::trim).collect::<String>()).ok()?;
        let mut rest = bytes.strip_prefix(PRIVATE_KEY)?;
        let _cipher = part(&mut rest)?;
        let _derivation = part(&mut rest)?;
        let _derivation_options = part(&mut rest)?;
        let (_number_of_keys, mut rest) = rest.split_at_checked(4)?;
        part(&mut rest).map(|key| Self(key.to_owned()))
    }

    /// Returns the type of the key, such as `ssh-ed25519`.
    pub fn kind(&self) -> String {
        String::from_utf8_lossy(part(&mut &self.0[..]).unwrap_or_default()).into_owned()
    }

    /// Returns the length of an RSA key in bits; `None` for other types.
    pub fn rsa_bits(&self) -> Option<usize> {
        let mut rest = &self.0[..];
        let kind = part(&mut rest)?;
        let _exponent = part(&mut rest).filter(|_| kind == b"ssh-rsa")?;
        let modulus = part(&mut rest)?;
        let first = modulus.iter().position(|byte| *byte != 0)?;
        Some((modulus.len() - first) * 8 - modulus[first].leading_zeros() as usize)
    }
}

/// Takes the next part of a key.
fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let (part, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *rest = after;
    Some(part)
}

/// Returns the signature algorithms of a key type.
pub fn signatures_of(kind: &str) -> Vec<&str> {
    let known = SIGNATURES.iter().find(|(known, _)| *known == kind);
    known.map_or_else(|| vec![kind], |(_, signatures)| signatures.to_vec())
}

/// Returns all key types with which libssh2 logs in.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    SIGNATURES.iter().map(|(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_public_part_of_every_kind_of_key_file_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let cases = [("ed25519", "256", "", "ssh-ed25519", None), ("rsa", "2048", "secret", "ssh-rsa", Some(2048))];
        for (kind, bits, passphrase, name, rsa_bits) in cases {
            let file = folder.join(kind);
            let arguments = ["-q", "-t", kind, "-b", bits, "-N", passphrase, "-f", file.as_str()];
            let Ok(status) = Command::new("ssh-keygen").args(arguments).status() else {
                println!("skipped: ssh-keygen is not installed");
                return;
            };
            assert!(status.success());
            let public = folder.join(format!("{kind}.pub"));
            let key = PublicKey::of_file(&file).unwrap();
            assert_eq!((key.kind().as_str(), key.rsa_bits()), (name, rsa_bits));
            assert_eq!(PublicKey::of_file(&public).as_ref(), Some(&key), "the file is a public key");
            assert_eq!([&public, &file].map(|file| PublicKey::is_public_file(file)), [true, false]);
            fs::remove_file(&public).unwrap();
            assert_eq!(PublicKey::of_file(&file).as_ref(), Some(&key), "from the private key");
        }
        let other = folder.join("other");
        for text in
            ["", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n", "ssh-rsa AAAA", "a b"]
        {
            fs::write(&other, text).unwrap();
            assert_eq!(PublicKey::of_file(&other), None, "{text}");
        }
    }
}
