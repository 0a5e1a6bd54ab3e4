//! Reads the keys of a node from `known_hosts` files.
//!
//! libssh2's reader is not used: it ignores `@revoked`, wildcards and `[node]:22`, and cannot list the types of a node's
//! known keys. Without that list, a key of another type is reported as an attack.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use camino::{Utf8Path, Utf8PathBuf};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The known keys of one node, from all files.
#[derive(Debug, Default)]
pub struct KnownKeys {
    keys: Vec<KnownKey>,
}

#[derive(Debug)]
struct KnownKey {
    marker: Marker,
    kind: String,
    /// The key in base64, as in the file.
    key: String,
    file: Utf8PathBuf,
    line: usize,
    /// Whether the line has no port although the node uses a non-default one.
    is_without_port: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    None,
    Authority,
    Revoked,
}

/// The status of a key that a node sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyStatus {
    /// The key is a known key of the node.
    Known,
    /// The node has no known key.
    Unknown,
    /// The node has another known key, on this line.
    Changed {
        /// The file.
        file: Utf8PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The key is revoked by this line.
    Revoked {
        /// The file.
        file: Utf8PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

impl KnownKeys {
    /// Reads the keys of a node from files. Files that cannot be read are skipped.
    pub fn read(files: &[Utf8PathBuf], host: &str, port: u16) -> Self {
        let mut all = Self::default();
        for file in files {
            // Lossy, because a comment may have any encoding.
            if let Ok(bytes) = fs::read(file) {
                all.add(&String::from_utf8_lossy(&bytes), file, host, port);
            }
        }
        all
    }

    fn add(&mut self, text: &str, file: &Utf8Path, host: &str, port: u16) {
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split_whitespace().peekable();
            let marker = match words.peek() {
                Some(&"@cert-authority") => Marker::Authority,
                Some(&"@revoked") => Marker::Revoked,
                Some(first) if !first.starts_with('#') => Marker::None,
                _ => continue,
            };
            if marker != Marker::None {
                words.next();
            }
            let (Some(names), Some(kind), Some(key)) = (words.next(), words.next(), words.next()) else { continue };
            let is_without_port = !matches(names, host, port);
            if !is_without_port || matches(names, host, 22) {
                let (kind, key, file) = (kind.to_owned(), key.to_owned(), file.to_owned());
                self.keys.push(KnownKey { marker, kind, key, file, line, is_without_port });
            }
        }
    }

    /// Returns the keys that are not revoked. As in OpenSSH, keys without a port count only if no key has both name and
    /// port.
    fn valid(&self) -> impl Iterator<Item = &KnownKey> {
        let valid = || self.keys.iter().filter(|key| key.marker != Marker::Revoked);
        let is_without_port = valid().all(|key| key.is_without_port);
        valid().filter(move |key| key.is_without_port == is_without_port)
    }

    /// Returns the types of the node's known keys, in the order of the files.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for key in self.valid().filter(|key| key.marker == Marker::None) {
            if !kinds.contains(&key.kind.as_str()) {
                kinds.push(&key.kind);
            }
        }
        kinds
    }

    /// Returns whether the node must have a host certificate.
    pub fn wants_certificate(&self) -> bool {
        self.valid().any(|key| key.marker == Marker::Authority)
    }

    /// Returns the status of a key that the node sends.
    pub fn status(&self, blob: &[u8]) -> KeyStatus {
        let sent = STANDARD.encode(blob);
        let location = |key: &KnownKey| (key.file.clone(), key.line);
        let same = |key: &&KnownKey| key.key.trim_end_matches('=') == sent.trim_end_matches('=');
        if let Some((file, line)) = self.keys.iter().filter(|k| k.marker == Marker::Revoked).find(same).map(location) {
            return KeyStatus::Revoked { file, line };
        }
        let plain = || self.valid().filter(|key| key.marker == Marker::None);
        if plain().any(|key| same(&key)) {
            return KeyStatus::Known;
        }
        // A key without a port may belong to another server on the same host.
        match plain().find(|key| !key.is_without_port).map(location) {
            Some((file, line)) => KeyStatus::Changed { file, line },
            None => KeyStatus::Unknown,
        }
    }
}

/// Returns the fingerprint of a key in the format of `ssh`.
pub fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob)))
}

/// The random bytes of a hashed name.
pub type Salt = [u8; 20];

/// Returns a line for a `known_hosts` file, with a hash of the name if there is a salt.
pub fn line(host: &str, port: u16, kind: &str, blob: &[u8], salt: Option<&Salt>) -> String {
    let host = host.to_ascii_lowercase();
    let name = if port == 22 { host } else { format!("[{host}]:{port}") };
    let name = salt.map_or(name.clone(), |salt| {
        format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(hmac_sha1(salt, name.as_bytes())))
    });
    format!("{name} {kind} {}\n", STANDARD.encode(blob))
}

/// Returns whether a list of names, patterns or one hashed name matches a node. A name with `!` excludes it at any position.
fn matches(names: &str, host: &str, port: u16) -> bool {
    let with_port = format!("[{host}]:{port}");
    // The default port may be given or omitted.
    let wanted: Vec<&str> = if port == 22 { vec![host, &with_port] } else { vec![&with_port] };
    let mut found = false;
    for name in names.split(',') {
        let (name, excludes) = name.strip_prefix('!').map_or((name, false), |name| (name, true));
        let hit = wanted.iter().any(|host| match name.strip_prefix("|1|") {
            Some(hashed) => is_hash_of(hashed, host),
            None => matches_pattern(name.to_ascii_lowercase().as_bytes(), host.to_ascii_lowercase().as_bytes()),
        });
        match (hit, excludes) {
            (true, true) => return false,
            (true, false) => found = true,
            (false, _) => {}
        }
    }
    found
}

/// Returns whether `SALT|HASH`, both in base64, is the HMAC-SHA1 of a name.
fn is_hash_of(hashed: &str, host: &str) -> bool {
    let Some((salt, hash)) = hashed.split_once('|') else { return false };
    STANDARD.decode(salt).is_ok_and(|salt| STANDARD.encode(hmac_sha1(&salt, host.as_bytes())) == hash)
}

/// Computes HMAC-SHA1 (RFC 2104). The key must not be longer than a block; salts are shorter.
fn hmac_sha1(key: &[u8], message: &[u8]) -> Vec<u8> {
    let padded = |pad: u8| -> Vec<u8> { (0..64).map(|i| key.get(i).copied().unwrap_or(0) ^ pad).collect() };
    let inner = Sha1::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha1::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

/// Matches a pattern of OpenSSH: `*` is any text, `?` any character.
fn matches_pattern(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => {
            matches_pattern(&pattern[1..], text) || (!text.is_empty() && matches_pattern(pattern, &text[1..]))
        }
        (Some(b'?'), Some(_)) => matches_pattern(&pattern[1..], &text[1..]),
        (Some(a), Some(b)) if a == b => matches_pattern(&pattern[1..], &text[1..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "key" and "other" in base64, which stand for keys.
    const KEY: &str = "a2V5";
    const OTHER: &str = "b3RoZXI=";

    fn keys_of(text: &str, host: &str, port: u16) -> KnownKeys {
        let mut keys = KnownKeys::default();
        keys.add(text, "known_hosts".into(), host, port);
        keys
    }

    #[test]
    fn every_notation_of_a_name_is_matched() {
        let cases = [
            ("gpu01", 22, true),
            ("gpu01,10.0.0.7", 22, true),
            ("GPU01", 22, true),
            ("[gpu01]:22", 22, true),
            ("[gpu01]:2200", 2200, true),
            // Without a port.
            ("gpu01", 2200, true),
            ("[gpu01]:2200", 22, false),
            ("gpu*", 22, true),
            ("gpu0?", 22, true),
            ("*,!gpu01", 22, false),
            ("!gpu01,*", 22, false),
            ("gpu02", 22, false),
            // The output of `ssh-keygen -H` for gpu01.
            ("|1|ZvbEqEY4a/84sHlgJGiIGrUBRPw=|Fgfi1GslcLefdXx/MdAjkmTS2d4=", 22, true),
            ("|1|ZvbEqEY4a/84sHlgJGiIGrUBRPw=|Fgfi1GslcLefdXx/MdAjkmTS2d4=", 2200, true),
        ];
        for (names, port, found) in cases {
            let kinds = keys_of(&format!("{names} ssh-ed25519 {KEY} a comment\n"), "gpu01", port).kinds().len();
            assert_eq!(kinds == 1, found, "{names} for port {port}");
        }
    }

    #[test]
    fn a_hashed_name_is_matched() {
        // RFC 2202, test case 2.
        let hash = hmac_sha1(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(STANDARD.encode(&hash), "7/zfauXrL6LSdBbV8YTfnCWafHk=");
        let hashed = format!("|1|{}|{}", STANDARD.encode("salt"), STANDARD.encode(hmac_sha1(b"salt", b"[gpu01]:2200")));
        assert_eq!(keys_of(&format!("{hashed} ssh-rsa {KEY}"), "gpu01", 2200).kinds(), ["ssh-rsa"]);
        assert_eq!(keys_of(&format!("{hashed} ssh-rsa {KEY}"), "gpu01", 22).kinds(), [""; 0]);
    }

    #[test]
    fn a_line_with_a_hashed_name_is_found_again() {
        for port in [22, 2200] {
            let line = line("gpu01", port, "ssh-rsa", b"key", Some(&[7; 20]));
            assert!(line.starts_with("|1|") && !line.contains("gpu01"), "{line}");
            assert_eq!(keys_of(&line, "gpu01", port).status(b"key"), KeyStatus::Known);
            assert_eq!(keys_of(&line, "gpu02", port).status(b"key"), KeyStatus::Unknown);
        }
    }

    #[test]
    fn ipv6_addresses_are_matched_and_written_as_ssh_does() {
        let cases = [
            ("::1", "::1", 22, true),
            ("[::1]:22", "::1", 22, true),
            ("[::1]:2222", "::1", 2222, true),
            ("[::1]:2222", "::1", 22, false),
            ("2001:DB8::1", "2001:db8::1", 22, true),
            ("2001:db8::*", "2001:db8::1", 22, true),
            ("fe80::1%eth0", "fe80::1%eth0", 22, true),
            ("fe80::1%eth0", "fe80::1%eth1", 22, false),
        ];
        for (names, host, port, found) in cases {
            let kinds = keys_of(&format!("{names} ssh-ed25519 {KEY}\n"), host, port).kinds().len();
            assert_eq!(kinds == 1, found, "{names} for {host} port {port}");
        }
        assert_eq!(line("::1", 22, "ssh-rsa", b"key", None), "::1 ssh-rsa a2V5\n");
        assert_eq!(line("::1", 2222, "ssh-rsa", b"key", None), "[::1]:2222 ssh-rsa a2V5\n");
    }

    #[test]
    fn a_key_is_known_unknown_changed_or_revoked() {
        let text = format!("# ours\ngpu01 ssh-ed25519 {KEY}\ngpu02 ssh-ed25519 {OTHER}\n@revoked * ssh-rsa {OTHER}\n");
        let status = |host: &str, key: &[u8]| keys_of(&text, host, 22).status(key);
        assert_eq!(status("gpu01", b"key"), KeyStatus::Known);
        assert_eq!(status("gpu03", b"key"), KeyStatus::Unknown);
        assert_eq!(status("gpu02", b"key"), KeyStatus::Changed { file: "known_hosts".into(), line: 3 });
        assert_eq!(
            status("gpu02", b"other"),
            KeyStatus::Revoked { file: "known_hosts".into(), line: 4 },
            "revocation has precedence"
        );
    }

    #[test]
    fn a_key_without_a_port_is_accepted_on_another_port_and_never_counts_as_changed() {
        let without_port = format!("gpu01 ssh-ed25519 {KEY}\n");
        assert_eq!(keys_of(&without_port, "gpu01", 2200).status(b"key"), KeyStatus::Known);
        assert_eq!(keys_of(&without_port, "gpu01", 2200).status(b"other"), KeyStatus::Unknown);
        let both = format!("{without_port}[gpu01]:2200 ssh-rsa {OTHER}\n");
        assert_eq!(keys_of(&both, "gpu01", 2200).kinds(), ["ssh-rsa"]);
        assert!(matches!(keys_of(&both, "gpu01", 2200).status(b"key"), KeyStatus::Changed { line: 2, .. }));
        assert_eq!(keys_of(&both, "gpu01", 22).status(b"key"), KeyStatus::Known);
        assert!(keys_of(&format!("@revoked gpu01 ssh-rsa {KEY}"), "gpu01", 2200).status(b"key") != KeyStatus::Unknown);
    }

    #[test]
    fn key_types_are_those_of_plain_lines_and_a_certificate_authority_is_detected() {
        let text = format!(
            "gpu01 ssh-rsa {KEY}\ngpu01 ssh-ed25519 {KEY}\ngpu01 ssh-rsa {OTHER}\n@cert-authority *.lan x {KEY}"
        );
        assert_eq!(keys_of(&text, "gpu01", 22).kinds(), ["ssh-rsa", "ssh-ed25519"]);
        assert!(!keys_of(&text, "gpu01", 22).wants_certificate());
        assert!(keys_of(&text, "gpu01.lan", 22).wants_certificate());
    }

    #[test]
    fn a_fingerprint_has_the_format_of_ssh() {
        assert_eq!(fingerprint(b"key"), "SHA256:LHDhK3oGRvkiefQnx7OOczTY5Tic/xZ6HcMOc/gmtoM");
        assert_eq!(line("gpu01", 22, "ssh-rsa", b"key", None), "gpu01 ssh-rsa a2V5\n");
        assert_eq!(line("gpu01", 2200, "ssh-rsa", b"key", None), "[gpu01]:2200 ssh-rsa a2V5\n");
    }
}
