//! The algorithms that the configuration allows (`Ciphers`, `MACs`, `KexAlgorithms`, `HostKeyAlgorithms`,
//! `PubkeyAcceptedAlgorithms`, `RequiredRSASize`).

use std::sync::LazyLock;

use ssh2::{MethodType, Session};

use super::options::Printed;
use super::public_key::{self, PublicKey, signatures_of};

/// The default of `RequiredRSASize`.
const REQUIRED_RSA_BITS: usize = 1024;

/// The algorithms that the configuration allows. An empty list is one that `ssh` did not print, and allows every algorithm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Algorithms {
    pub key_exchange: Vec<String>,
    pub ciphers: Vec<String>,
    pub macs: Vec<String>,
    /// The signature algorithms of the node's key.
    pub host_keys: Vec<String>,
    /// The signature algorithms of the user's key.
    pub user_keys: Vec<String>,
    /// The shortest RSA key in bits, of the user and of the node.
    pub required_rsa_bits: usize,
}

/// The algorithms of libssh2, in its order of preference.
struct Supported {
    key_exchange: Vec<&'static str>,
    ciphers: Vec<&'static str>,
    macs: Vec<&'static str>,
    host_keys: Vec<&'static str>,
}

static SUPPORTED: LazyLock<Supported> = LazyLock::new(|| {
    let session = Session::new();
    let list = |kind| session.as_ref().ok().and_then(|session| session.supported_algs(kind).ok()).unwrap_or_default();
    // OpenSSH's program checks certificates of nodes.
    let is_plain = |name: &&str| !name.contains("-cert-");
    // These announce extensions; libssh2 always sends them.
    let is_method = |name: &&str| !name.starts_with("ext-info-") && !name.starts_with("kex-strict-");
    Supported {
        key_exchange: list(MethodType::Kex).into_iter().filter(is_method).collect(),
        ciphers: list(MethodType::CryptCs),
        macs: list(MethodType::MacCs),
        host_keys: list(MethodType::HostKey).into_iter().filter(is_plain).collect(),
    }
});

impl Algorithms {
    /// Reads the lists from the output of `ssh -G`.
    pub fn read(printed: Printed<'_>) -> Self {
        let list = |names: &[&str]| {
            let value = names.iter().find_map(|name| printed.value(name)).unwrap_or_default();
            value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        Self {
            key_exchange: list(&["KexAlgorithms"]),
            ciphers: list(&["Ciphers"]),
            macs: list(&["MACs"]),
            host_keys: list(&["HostKeyAlgorithms"]),
            user_keys: list(&["PubkeyAcceptedAlgorithms", "PubkeyAcceptedKeyTypes"]),
            required_rsa_bits: printed
                .value("RequiredRSASize")
                .and_then(|bits| bits.parse().ok())
                .unwrap_or(REQUIRED_RSA_BITS),
        }
    }

    /// Returns why libssh2 does not support the configuration: it has no algorithm of a list.
    pub fn unsupported(&self) -> Option<String> {
        let lists = [
            ("KexAlgorithms", &self.key_exchange, &SUPPORTED.key_exchange),
            ("Ciphers", &self.ciphers, &SUPPORTED.ciphers),
            ("MACs", &self.macs, &SUPPORTED.macs),
            ("HostKeyAlgorithms", &self.host_keys, &SUPPORTED.host_keys),
        ];
        let found = lists.into_iter().find(|(_, allowed, supported)| allowed_of(allowed, supported).is_empty());
        found.map(|(option, allowed, _)| format!("libssh2 has none of {option} {}", allowed.join(",")))
    }

    /// Restricts a new session to the algorithms. Of the node's keys, those of the given types are requested if they are
    /// allowed, because the node sends only one of its keys.
    pub fn apply(&self, session: &Session, known_kinds: &[&str]) -> Result<(), ssh2::Error> {
        let set = |kinds: &[MethodType], names: &[&str]| {
            kinds.iter().filter(|_| !names.is_empty()).try_for_each(|kind| session.method_pref(*kind, &names.join(",")))
        };
        set(&[MethodType::Kex], &allowed_of(&self.key_exchange, &SUPPORTED.key_exchange))?;
        set(&[MethodType::CryptCs, MethodType::CryptSc], &allowed_of(&self.ciphers, &SUPPORTED.ciphers))?;
        set(&[MethodType::MacCs, MethodType::MacSc], &allowed_of(&self.macs, &SUPPORTED.macs))?;
        let host_keys = allowed_of(&self.host_keys, &SUPPORTED.host_keys);
        let signatures: Vec<&str> = known_kinds.iter().flat_map(|kind| signatures_of(kind)).collect();
        let known: Vec<&str> = signatures.into_iter().filter(|name| host_keys.contains(name)).collect();
        set(&[MethodType::HostKey], if known.is_empty() { &host_keys } else { &known })?;
        let rsa: Vec<&str> =
            signatures_of("ssh-rsa").into_iter().filter(|name| allows(&self.user_keys, name)).collect();
        set(&[MethodType::SignAlgo], &rsa)
    }

    /// Returns why the user must not log in with a key.
    pub fn refuse_user_key(&self, key: &PublicKey) -> Option<String> {
        let kind = key.kind();
        let is_accepted = signatures_of(&kind).iter().any(|signature| allows(&self.user_keys, signature));
        if is_accepted { self.refuse_length(key) } else { Some(format!("{kind} is not in PubkeyAcceptedAlgorithms")) }
    }

    /// Returns why a key is too short.
    pub fn refuse_length(&self, key: &PublicKey) -> Option<String> {
        let bits = key.rsa_bits().filter(|bits| *bits < self.required_rsa_bits)?;
        Some(format!("{bits} bits are less than RequiredRSASize {}", self.required_rsa_bits))
    }

    /// Returns whether the user may log in with every key that libssh2 supports.
    pub fn accept_every_key(&self) -> bool {
        let is_accepted = |kind| signatures_of(kind).iter().any(|signature| allows(&self.user_keys, signature));
        self.required_rsa_bits <= REQUIRED_RSA_BITS && public_key::kinds().all(is_accepted)
    }
}

fn allows(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|allowed| allowed == name)
}

fn allowed_of<'a>(list: &[String], supported: &[&'a str]) -> Vec<&'a str> {
    supported.iter().copied().filter(|name| allows(list, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_without_an_algorithm_of_libssh2_need_the_program() {
        let unsupported = |line: &str| Algorithms::read(Printed(line)).unsupported();
        assert_eq!(unsupported(""), None);
        for (some, none) in [
            ("ciphers aes256-ctr,new@openssh.com", "ciphers new@openssh.com"),
            ("macs umac-64@openssh.com,hmac-sha2-256", "macs umac-64@openssh.com"),
            ("kexalgorithms mlkem768x25519-sha256,curve25519-sha256", "kexalgorithms mlkem768x25519-sha256"),
            ("hostkeyalgorithms ssh-ed25519", "hostkeyalgorithms ssh-ed25519-cert-v01@openssh.com"),
        ] {
            assert_eq!(unsupported(some), None);
            assert!(unsupported(none).is_some(), "{none}");
        }
    }

    #[test]
    fn a_session_accepts_every_list_that_has_an_algorithm_of_libssh2() {
        let lines = "ciphers aes256-ctr,new@openssh.com\nmacs umac-64@openssh.com,hmac-sha2-256\n\
            kexalgorithms mlkem768x25519-sha256,curve25519-sha256\nhostkeyalgorithms ssh-ed25519,rsa-sha2-256\n\
            pubkeyacceptedalgorithms ssh-ed25519\n";
        let session = Session::new().unwrap();
        Algorithms::read(Printed(lines)).apply(&session, &["ssh-rsa"]).unwrap();
        Algorithms::read(Printed(lines)).apply(&session, &["ecdsa-sha2-nistp256"]).unwrap();
        Algorithms::default().apply(&session, &[]).unwrap();
    }

    #[test]
    fn keys_of_other_types_and_short_rsa_keys_are_refused() {
        let key = |kind: &str, modulus: &[u8]| {
            let parts = [kind.as_bytes(), &[1, 0, 1], modulus].map(|part| {
                let length = u32::try_from(part.len()).unwrap();
                [&length.to_be_bytes()[..], part].concat()
            });
            PublicKey(parts.concat())
        };
        let rsa = key("ssh-rsa", &[vec![0, 0x80], vec![0; 127]].concat());
        assert_eq!(rsa.rsa_bits(), Some(1024));
        let read = |lines| Algorithms::read(Printed(lines));
        assert_eq!(read("requiredrsasize 1024").refuse_user_key(&rsa), None);
        assert!(read("requiredrsasize 2048").refuse_user_key(&rsa).is_some());
        assert!(read("pubkeyacceptedalgorithms ssh-ed25519").refuse_user_key(&rsa).is_some());
        assert_eq!(read("pubkeyacceptedkeytypes rsa-sha2-256").refuse_user_key(&rsa), None);
        let ed25519 = key("ssh-ed25519", &[]);
        assert_eq!(read("requiredrsasize 4096").refuse_user_key(&ed25519), None);
        assert!(read("").accept_every_key());
        assert!(!read("requiredrsasize 2048").accept_every_key());
        assert!(!read("pubkeyacceptedalgorithms ssh-ed25519").accept_every_key());
    }
}
