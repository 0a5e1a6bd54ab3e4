//! What `known_hosts` files say about a node's key.
//!
//! Read here rather than by libssh2, which overlooks `@revoked`, wildcards and `[node]:22`, and cannot tell which types of
//! key a node is known by: asked for another type, it reports an attack.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use camino::{Utf8Path, Utf8PathBuf};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The lines of all files that are about one node.
#[derive(Debug, Default)]
pub struct KnownKeys {
    keys: Vec<KnownKey>,
}

#[derive(Debug)]
struct KnownKey {
    marker: Marker,
    kind: String,
    /// As it stands in the file: base64.
    key: String,
    file: Utf8PathBuf,
    line: usize,
    /// Whether it is known of the name alone, and another port than the usual is connected to.
    of_name: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    None,
    Authority,
    Revoked,
}

/// What is known about a key that a node shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyStatus {
    /// It is the node's.
    Known,
    /// Nothing is known about the node.
    Unknown,
    /// Another key of this type is the node's, by this line.
    Changed {
        /// The file.
        file: Utf8PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Somebody has declared it void, in this line.
    Revoked {
        /// The file.
        file: Utf8PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

impl KnownKeys {
    /// Collects what files say about a node; those that cannot be read say nothing.
    pub fn read(files: &[Utf8PathBuf], host: &str, port: u16) -> Self {
        let mut all = Self::default();
        for file in files {
            // Lossy, since a comment may be in any encoding.
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
            let of_name = !matches(names, host, port);
            if !of_name || matches(names, host, 22) {
                let (kind, key, file) = (kind.to_owned(), key.to_owned(), file.to_owned());
                self.keys.push(KnownKey { marker, kind, key, file, line, of_name });
            }
        }
    }

    /// What is not declared void. As OpenSSH does, keys of the name count where there are none of name and port.
    fn valid(&self) -> impl Iterator<Item = &KnownKey> {
        let valid = || self.keys.iter().filter(|key| key.marker != Marker::Revoked);
        let of_name = valid().all(|key| key.of_name);
        valid().filter(move |key| key.of_name == of_name)
    }

    /// Returns the types of key that the node is known by, in the files' order.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for key in self.valid().filter(|key| key.marker == Marker::None) {
            if !kinds.contains(&key.kind.as_str()) {
                kinds.push(&key.kind);
            }
        }
        kinds
    }

    /// Tells whether the node is to prove itself by a certificate.
    pub fn wants_certificate(&self) -> bool {
        self.valid().any(|key| key.marker == Marker::Authority)
    }

    /// Judges a key that the node shows.
    pub fn status(&self, blob: &[u8]) -> KeyStatus {
        let shown = STANDARD.encode(blob);
        let place = |key: &KnownKey| (key.file.clone(), key.line);
        let same = |key: &&KnownKey| key.key.trim_end_matches('=') == shown.trim_end_matches('=');
        if let Some((file, line)) = self.keys.iter().filter(|k| k.marker == Marker::Revoked).find(same).map(place) {
            return KeyStatus::Revoked { file, line };
        }
        let plain = || self.valid().filter(|key| key.marker == Marker::None);
        if plain().any(|key| same(&key)) {
            return KeyStatus::Known;
        }
        // Another server may listen at another port.
        match plain().find(|key| !key.of_name).map(place) {
            Some((file, line)) => KeyStatus::Changed { file, line },
            None => KeyStatus::Unknown,
        }
    }
}

/// Writes a key as `ssh` shows it to people.
pub fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob)))
}

/// Returns a line for a `known_hosts` file.
pub fn line(host: &str, port: u16, kind: &str, blob: &[u8]) -> String {
    let name = if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") };
    format!("{name} {kind} {}\n", STANDARD.encode(blob))
}

/// Whether a list of names, patterns or one hidden name is about a node. A name with `!` excludes it, wherever it stands.
fn matches(names: &str, host: &str, port: u16) -> bool {
    let with_port = format!("[{host}]:{port}");
    // The default port may be written out or not.
    let wanted: Vec<&str> = if port == 22 { vec![host, &with_port] } else { vec![&with_port] };
    let mut found = false;
    for name in names.split(',') {
        let (name, excludes) = name.strip_prefix('!').map_or((name, false), |name| (name, true));
        let hit = wanted.iter().any(|host| match name.strip_prefix("|1|") {
            Some(hidden) => is_hidden_name(hidden, host),
            None => is_like(name.to_ascii_lowercase().as_bytes(), host.to_ascii_lowercase().as_bytes()),
        });
        match (hit, excludes) {
            (true, true) => return false,
            (true, false) => found = true,
            (false, _) => {}
        }
    }
    found
}

/// `SALT|HASH`, both in base64: the hash is the HMAC-SHA1 of the name.
fn is_hidden_name(hidden: &str, host: &str) -> bool {
    let Some((salt, hash)) = hidden.split_once('|') else { return false };
    STANDARD.decode(salt).is_ok_and(|salt| STANDARD.encode(hmac_sha1(&salt, host.as_bytes())) == hash)
}

/// RFC 2104. Salts are shorter than a block.
fn hmac_sha1(key: &[u8], message: &[u8]) -> Vec<u8> {
    let padded = |pad: u8| -> Vec<u8> { (0..64).map(|i| key.get(i).copied().unwrap_or(0) ^ pad).collect() };
    let inner = Sha1::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha1::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

/// OpenSSH's patterns: `*` is any text, `?` any character.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => is_like(&pattern[1..], text) || (!text.is_empty() && is_like(pattern, &text[1..])),
        (Some(b'?'), Some(_)) => is_like(&pattern[1..], &text[1..]),
        (Some(a), Some(b)) if a == b => is_like(&pattern[1..], &text[1..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "key" and "other" in base64, which is all that a key is here.
    const KEY: &str = "a2V5";
    const OTHER: &str = "b3RoZXI=";

    fn about(text: &str, host: &str, port: u16) -> KnownKeys {
        let mut keys = KnownKeys::default();
        keys.add(text, "known_hosts".into(), host, port);
        keys
    }

    #[test]
    fn a_node_is_found_under_every_way_to_write_its_name() {
        let cases = [
            ("gpu01", 22, true),
            ("gpu01,10.0.0.7", 22, true),
            ("GPU01", 22, true),
            ("[gpu01]:22", 22, true),
            ("[gpu01]:2200", 2200, true),
            // Of the name alone.
            ("gpu01", 2200, true),
            ("[gpu01]:2200", 22, false),
            ("gpu*", 22, true),
            ("gpu0?", 22, true),
            ("*,!gpu01", 22, false),
            ("!gpu01,*", 22, false),
            ("gpu02", 22, false),
            // What `ssh-keygen -H` made of gpu01.
            ("|1|ZvbEqEY4a/84sHlgJGiIGrUBRPw=|Fgfi1GslcLefdXx/MdAjkmTS2d4=", 22, true),
            ("|1|ZvbEqEY4a/84sHlgJGiIGrUBRPw=|Fgfi1GslcLefdXx/MdAjkmTS2d4=", 2200, true),
        ];
        for (names, port, found) in cases {
            let kinds = about(&format!("{names} ssh-ed25519 {KEY} a comment\n"), "gpu01", port).kinds().len();
            assert_eq!(kinds == 1, found, "{names} for port {port}");
        }
    }

    #[test]
    fn a_hidden_name_is_recognised() {
        // The example of RFC 2202, test case 2.
        let hash = hmac_sha1(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(STANDARD.encode(&hash), "7/zfauXrL6LSdBbV8YTfnCWafHk=");
        let hidden = format!("|1|{}|{}", STANDARD.encode("salt"), STANDARD.encode(hmac_sha1(b"salt", b"[gpu01]:2200")));
        assert_eq!(about(&format!("{hidden} ssh-rsa {KEY}"), "gpu01", 2200).kinds(), ["ssh-rsa"]);
        assert_eq!(about(&format!("{hidden} ssh-rsa {KEY}"), "gpu01", 22).kinds(), [""; 0]);
    }

    #[test]
    fn a_key_is_known_unknown_changed_or_revoked() {
        let text = format!("# ours\ngpu01 ssh-ed25519 {KEY}\ngpu02 ssh-ed25519 {OTHER}\n@revoked * ssh-rsa {OTHER}\n");
        let status = |host: &str, key: &[u8]| about(&text, host, 22).status(key);
        assert_eq!(status("gpu01", b"key"), KeyStatus::Known);
        assert_eq!(status("gpu03", b"key"), KeyStatus::Unknown);
        assert_eq!(status("gpu02", b"key"), KeyStatus::Changed { file: "known_hosts".into(), line: 3 });
        assert_eq!(
            status("gpu02", b"other"),
            KeyStatus::Revoked { file: "known_hosts".into(), line: 4 },
            "it comes first"
        );
    }

    #[test]
    fn a_key_of_the_name_alone_counts_for_another_port_of_which_nothing_is_known_and_accuses_nobody() {
        let of_name = format!("gpu01 ssh-ed25519 {KEY}\n");
        assert_eq!(about(&of_name, "gpu01", 2200).status(b"key"), KeyStatus::Known);
        assert_eq!(about(&of_name, "gpu01", 2200).status(b"other"), KeyStatus::Unknown);
        let both = format!("{of_name}[gpu01]:2200 ssh-rsa {OTHER}\n");
        assert_eq!(about(&both, "gpu01", 2200).kinds(), ["ssh-rsa"]);
        assert!(matches!(about(&both, "gpu01", 2200).status(b"key"), KeyStatus::Changed { line: 2, .. }));
        assert_eq!(about(&both, "gpu01", 22).status(b"key"), KeyStatus::Known);
        assert!(about(&format!("@revoked gpu01 ssh-rsa {KEY}"), "gpu01", 2200).status(b"key") != KeyStatus::Unknown);
    }

    #[test]
    fn types_are_those_of_plain_lines_and_an_authority_is_noticed() {
        let text = format!(
            "gpu01 ssh-rsa {KEY}\ngpu01 ssh-ed25519 {KEY}\ngpu01 ssh-rsa {OTHER}\n@cert-authority *.lan x {KEY}"
        );
        assert_eq!(about(&text, "gpu01", 22).kinds(), ["ssh-rsa", "ssh-ed25519"]);
        assert!(!about(&text, "gpu01", 22).wants_certificate());
        assert!(about(&text, "gpu01.lan", 22).wants_certificate());
    }

    #[test]
    fn a_fingerprint_is_written_as_ssh_writes_it() {
        assert_eq!(fingerprint(b"key"), "SHA256:LHDhK3oGRvkiefQnx7OOczTY5Tic/xZ6HcMOc/gmtoM");
        assert_eq!(line("gpu01", 22, "ssh-rsa", b"key"), "gpu01 ssh-rsa a2V5\n");
        assert_eq!(line("gpu01", 2200, "ssh-rsa", b"key"), "[gpu01]:2200 ssh-rsa a2V5\n");
    }
}
