//! The options of ssh_config(5), each with what it means for the connection to a node.

use std::process::{Command, Stdio};
use std::sync::LazyLock;

use Decision::{Harmless, Honoured, Program};

/// An option of ssh_config(5).
#[derive(Debug, Clone, Copy)]
pub struct SshOption {
    /// The name, as ssh_config(5) spells it.
    pub name: &'static str,
    pub decision: Decision,
    /// The value with which OpenSSH's program is started, because the user's value would disturb commands.
    pub override_value: Option<&'static str>,
}

/// The effect of an option on the connection to a node.
#[derive(Debug, Clone, Copy)]
pub enum Decision {
    /// Both clients honour it: `ssh -G` resolves it, or the libssh2 transport reads its value.
    Honoured,
    /// It changes nothing for commands that run without a terminal and without forwarded ports.
    Harmless,
    /// OpenSSH's program makes the connection, except for values for which this function returns true.
    Program(fn(&str) -> bool),
}

const fn row(name: &'static str, decision: Decision) -> SshOption {
    SshOption { name, decision, override_value: None }
}

/// A harmless option with the value that OpenSSH's program gets.
const fn set(name: &'static str, value: &'static str) -> SshOption {
    SshOption { name, decision: Harmless, override_value: Some(value) }
}

fn never(_: &str) -> bool {
    false
}

fn is_none(value: &str) -> bool {
    value == "none"
}

fn is_no(value: &str) -> bool {
    matches!(value, "no" | "false")
}

fn is_not_no(value: &str) -> bool {
    !is_no(value)
}

fn has_public_key(methods: &str) -> bool {
    methods.split(',').any(|method| method == "publickey")
}

/// Returns whether Kerberos is off or has no ticket. Debian's and Fedora's configurations enable it for every node, but it is used only
/// with a ticket.
fn is_without_ticket(value: &str) -> bool {
    is_no(value) || !has_kerberos_ticket()
}

/// Returns whether there is a Kerberos ticket. Runs `klist` once, because the location of tickets (a file, the kernel's
/// keyring, a daemon) depends on Kerberos's configuration.
fn has_kerberos_ticket() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let quiet =
            Command::new("klist").arg("-s").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    });
    *HAS
}

/// All options: those of ssh_config(5) of OpenSSH 10.5, of the versions with Kerberos of Debian and Fedora, and older names that
/// `ssh -G` of OpenSSH 7 and 8 prints.
pub const OPTIONS: &[SshOption] = &[
    row("AddKeysToAgent", Harmless),
    row("AddressFamily", Honoured),
    set("BatchMode", "yes"),
    row("BindAddress", Program(never)),
    row("BindInterface", Program(never)),
    row("CanonicalDomains", Honoured),
    row("CanonicalizeFallbackLocal", Honoured),
    row("CanonicalizeHostname", Honoured),
    row("CanonicalizeMaxDots", Honoured),
    row("CanonicalizePermittedCNAMEs", Honoured),
    // Host certificates are checked by OpenSSH's program, which a @cert-authority line in `known_hosts` selects.
    row("CASignatureAlgorithms", Harmless),
    row("CertificateFile", Program(is_none)),
    row("ChallengeResponseAuthentication", Harmless),
    row("ChannelTimeout", Harmless),
    row("CheckHostIP", Program(is_no)),
    row("Ciphers", Honoured),
    set("ClearAllForwardings", "yes"),
    row("Compression", Harmless),
    row("ConnectionAttempts", Harmless),
    row("ConnectTimeout", Honoured),
    row("ControlMaster", Harmless),
    row("ControlPath", Honoured),
    row("ControlPersist", Harmless),
    row("DynamicForward", Harmless),
    row("EnableEscapeCommandline", Harmless),
    row("EnableSSHKeysign", Harmless),
    row("EscapeChar", Harmless),
    set("ExitOnForwardFailure", "no"),
    row("FingerprintHash", Harmless),
    set("ForkAfterAuthentication", "no"),
    set("ForwardAgent", "no"),
    set("ForwardX11", "no"),
    row("ForwardX11Timeout", Harmless),
    row("ForwardX11Trusted", Harmless),
    row("GatewayPorts", Harmless),
    row("GlobalKnownHostsFile", Honoured),
    row("GSSAPIAuthentication", Program(is_without_ticket)),
    row("GSSAPIClientIdentity", Harmless),
    row("GSSAPIDelegateCredentials", Harmless),
    row("GSSAPIKexAlgorithms", Harmless),
    row("GSSAPIKeyExchange", Program(is_without_ticket)),
    row("GSSAPIRenewalForcesRekey", Harmless),
    row("GSSAPIServerIdentity", Harmless),
    row("GSSAPITrustDns", Harmless),
    row("HashKnownHosts", Honoured),
    row("Host", Honoured),
    row("HostbasedAcceptedAlgorithms", Harmless),
    row("HostbasedAuthentication", Program(is_no)),
    row("HostbasedKeyTypes", Harmless),
    row("HostKeyAlgorithms", Honoured),
    row("HostKeyAlias", Honoured),
    row("Hostname", Honoured),
    row("IdentitiesOnly", Honoured),
    row("IdentityAgent", Honoured),
    row("IdentityFile", Honoured),
    row("IgnoreUnknown", Honoured),
    row("Include", Honoured),
    row("IPQoS", Harmless),
    row("KbdInteractiveAuthentication", Harmless),
    row("KbdInteractiveDevices", Harmless),
    row("KexAlgorithms", Honoured),
    row("KnownHostsCommand", Program(is_none)),
    row("LocalCommand", Harmless),
    row("LocalForward", Harmless),
    set("LogLevel", "ERROR"),
    row("LogVerbose", Harmless),
    row("MACs", Honoured),
    row("Match", Honoured),
    row("NoHostAuthenticationForLocalhost", Program(is_no)),
    row("NumberOfPasswordPrompts", Harmless),
    row("ObscureKeystrokeTiming", Harmless),
    row("PasswordAuthentication", Harmless),
    set("PermitLocalCommand", "no"),
    row("PermitRemoteOpen", Harmless),
    row("PKCS11Provider", Program(is_none)),
    row("Port", Honoured),
    row("PreferredAuthentications", Program(has_public_key)),
    row("ProxyCommand", Program(is_none)),
    row("ProxyJump", Program(is_none)),
    row("ProxyUseFdpass", Harmless),
    row("PubkeyAcceptedAlgorithms", Honoured),
    row("PubkeyAcceptedKeyTypes", Honoured),
    row("PubkeyAuthentication", Program(is_not_no)),
    // `ssh -G` fails with the reason.
    row("RefuseConnection", Honoured),
    // libssh2 never starts a new key exchange. "0 0" is the default.
    row("RekeyLimit", Program(|value| value == "0 0")),
    set("RemoteCommand", "none"),
    row("RemoteForward", Harmless),
    set("RequestTTY", "no"),
    row("RequiredRSASize", Honoured),
    row("RevokedHostKeys", Program(is_none)),
    // A key on a security device selects OpenSSH's program.
    row("SecurityKeyProvider", Harmless),
    row("SendEnv", Harmless),
    set("ServerAliveCountMax", "3"),
    set("ServerAliveInterval", "5"),
    set("SessionType", "default"),
    row("SetEnv", Harmless),
    set("StdinNull", "no"),
    row("StreamLocalBindMask", Harmless),
    row("StreamLocalBindUnlink", Harmless),
    row("StrictHostKeyChecking", Honoured),
    row("SyslogFacility", Harmless),
    row("Tag", Honoured),
    row("TCPKeepAlive", Harmless),
    set("Tunnel", "no"),
    row("TunnelDevice", Harmless),
    row("UpdateHostKeys", Harmless),
    row("UsePrivilegedPort", Harmless),
    row("User", Honoured),
    row("UserKnownHostsFile", Honoured),
    row("VerifyHostKeyDNS", Program(is_no)),
    row("VersionAddendum", Harmless),
    set("VisualHostKey", "no"),
    row("WarnWeakCrypto", Harmless),
    row("XAuthLocation", Harmless),
];

/// The output of `ssh -G` for a node: a line per value, with the option in lower case.
#[derive(Debug, Clone, Copy)]
pub struct Printed<'a>(pub &'a str);

impl<'a> Printed<'a> {
    /// Returns all options with their values.
    pub fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.lines().filter_map(|line| line.split_once(' ').map(|(name, value)| (name, value.trim())))
    }

    /// Returns the values of an option.
    pub fn values(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.pairs().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the first value of an option.
    pub fn value(self, name: &str) -> Option<&'a str> {
        self.values(name).next()
    }

    /// Returns why OpenSSH's program must make the connection. An option that is not in the table counts if `defaults`, the
    /// output for a configuration without options, does not have its value.
    pub fn unsupported(self, defaults: impl Fn() -> Option<String>) -> Option<String> {
        let found = self.pairs().find(|(name, value)| match option(name).map(|option| option.decision) {
            Some(Honoured | Harmless) => false,
            Some(Program(has_no_effect)) => !has_no_effect(value),
            None => !defaults().is_some_and(|text| Printed(&text).values(name).any(|default| default == *value)),
        });
        found.map(|(name, value)| format!("{} is {value}", option(name).map_or(name, |option| option.name)))
    }

    /// Returns the arguments that give OpenSSH's program other values than the user's. Only options that were printed, because
    /// `ssh` refuses those that it does not know.
    pub fn overrides(self) -> Vec<String> {
        let other = |option: &SshOption| {
            let value = option.override_value?;
            let printed = self.value(option.name)?;
            (printed != value).then(|| format!("{}={value}", option.name))
        };
        OPTIONS.iter().filter_map(other).flat_map(|argument| ["-o".to_owned(), argument]).collect()
    }
}

fn option(name: &str) -> Option<&'static SshOption> {
    OPTIONS.iter().find(|option| option.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `ssh -G` with lines of a configuration. Prints a message and returns `None` where it is not installed.
    fn ssh_g(lines: &str) -> Option<String> {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("config");
        std::fs::write(&file, lines).unwrap();
        let output = Command::new("ssh").arg("-F").arg(&file).args(["-G", "gpu01"]).stdin(Stdio::null()).output();
        let Ok(output) = output else {
            println!("skipped: ssh is not installed");
            return None;
        };
        assert!(output.status.success(), "{lines}: {}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8(output.stdout).unwrap())
    }

    fn unsupported(lines: &str) -> Option<String> {
        Printed(lines).unsupported(|| None)
    }

    /// Options that `ssh -G` prints only if they are set.
    const UNSET: &str = "\
BindAddress 10.0.0.1
BindInterface eth0
CertificateFile ~/.ssh/certificate
ControlPath ~/.ssh/cm-%C
DynamicForward 1080
HostKeyAlias alias
IdentityAgent /run/agent
IgnoreUnknown Unknown,Tag,ChannelTimeout,VersionAddendum,ObscureKeystrokeTiming,GSSAPI*
Tag tag
ChannelTimeout session=5m
VersionAddendum vidtui
ObscureKeystrokeTiming yes
GSSAPIAuthentication yes
GSSAPIClientIdentity ada
GSSAPIServerIdentity gpu01
KbdInteractiveDevices pam
KnownHostsCommand /bin/keys
LocalCommand true
LocalForward 8080 gpu01:80
PKCS11Provider /lib/opensc.so
PreferredAuthentications publickey
RemoteCommand tmux
RemoteForward 8080 gpu01:80
RevokedHostKeys /etc/ssh/revoked
SendEnv LANG
SetEnv A=b
";

    #[test]
    fn every_option_that_the_installed_ssh_prints_is_in_the_table() {
        for lines in ["", UNSET, "ProxyJump login\n", "ProxyCommand nc %h %p\n"] {
            let Some(text) = ssh_g(lines) else { return };
            let missing: Vec<_> = Printed(&text).pairs().filter(|(name, _)| option(name).is_none()).collect();
            assert_eq!(missing, [], "with {lines}");
        }
    }

    #[test]
    fn every_option_of_the_installed_manual_is_in_the_table() {
        let page = "/usr/share/man/man5/ssh_config.5.gz";
        let Ok(output) = Command::new("gzip").args(["-dc", page]).output() else {
            println!("skipped: gzip is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let is_option = |name: &&str| name.starts_with(|first: char| first.is_ascii_uppercase());
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".It Cm ")).filter(is_option).collect();
        if names.is_empty() {
            println!("skipped: {page} is not installed");
        }
        let names = names.into_iter().filter_map(|line| line.split_whitespace().next());
        let missing: Vec<&str> =
            names.filter(|name| !OPTIONS.iter().any(|option| option.name.eq_ignore_ascii_case(name))).collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn the_documentation_lists_every_option_under_its_decision() {
        let page = include_str!("../../../../docs/ssh.md");
        let listed = |heading: &str| {
            let start = page.find(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
            let section = &page[start + heading.len() + 6..];
            let section = &section[..section.find("\n#").unwrap_or(section.len())];
            let names = section.split('`').skip(1).step_by(2).map(str::to_owned);
            let mut names: Vec<String> = names.filter(|name| option(name).is_some()).collect();
            names.sort();
            names.dedup();
            names
        };
        let decided = |wanted: fn(&Decision) -> bool| {
            let names = OPTIONS.iter().filter(|option| wanted(&option.decision)).map(|option| option.name.to_owned());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        assert_eq!(listed("Honoured"), decided(|decision| matches!(decision, Honoured)));
        assert_eq!(listed("OpenSSH's program"), decided(|decision| matches!(decision, Program(_))));
        assert_eq!(listed("Without effect"), decided(|decision| matches!(decision, Harmless)));
    }

    #[test]
    fn the_table_is_sorted_and_has_no_option_twice() {
        let names: Vec<String> = OPTIONS.iter().map(|option| option.name.to_ascii_lowercase()).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }

    #[test]
    fn the_defaults_of_ssh_and_of_distributions_are_supported_by_libssh2() {
        // Debian's and Fedora's /etc/ssh/ssh_config, and STIG's without RekeyLimit.
        let distribution = "SendEnv LANG LC_*\nHashKnownHosts yes\nForwardX11Trusted yes\nRequiredRSASize 2048\n\
            Ciphers aes256-gcm@openssh.com,aes256-ctr\nMACs hmac-sha2-256\nKexAlgorithms curve25519-sha256,ecdh-sha2-nistp256\n\
            PubkeyAcceptedAlgorithms ssh-ed25519,rsa-sha2-512\nHostKeyAlgorithms ssh-ed25519,rsa-sha2-512\n";
        for lines in ["", distribution, "ControlMaster auto\nControlPath ~/.ssh/cm-%C\nControlPersist 600\n"] {
            let Some(text) = ssh_g(lines) else { return };
            assert_eq!(unsupported(&text), None, "{lines}");
        }
    }

    #[test]
    fn values_without_effect_are_supported_and_others_need_the_program() {
        let cases = [
            ("proxyjump none", "proxyjump login"),
            ("proxycommand none", "proxycommand nc %h"),
            ("certificatefile none", "certificatefile ~/c"),
            ("pkcs11provider none", "pkcs11provider /lib/opensc.so"),
            ("knownhostscommand none", "knownhostscommand /bin/keys %H"),
            ("revokedhostkeys none", "revokedhostkeys /etc/ssh/revoked"),
            ("pubkeyauthentication true", "pubkeyauthentication false"),
            ("pubkeyauthentication unbound", "pubkeyauthentication no"),
            ("preferredauthentications publickey,password", "preferredauthentications hostbased,password"),
            ("hostbasedauthentication no", "hostbasedauthentication yes"),
            ("checkhostip no", "checkhostip yes"),
            ("verifyhostkeydns false", "verifyhostkeydns ask"),
            ("verifyhostkeydns no", "verifyhostkeydns yes"),
            ("nohostauthenticationforlocalhost no", "nohostauthenticationforlocalhost yes"),
            ("rekeylimit 0 0", "rekeylimit 1073741824 3600"),
            ("addressfamily inet6", "bindaddress 10.0.0.2"),
            ("ipqos lowdelay throughput", "bindinterface eth0"),
        ];
        for (harmless, needs_program) in cases {
            assert_eq!(unsupported(harmless), None);
            assert!(unsupported(needs_program).is_some(), "{needs_program}");
        }
        assert_eq!(unsupported("proxyjump login").as_deref(), Some("ProxyJump is login"));
    }

    #[test]
    fn an_option_of_a_newer_ssh_needs_the_program_unless_its_value_is_the_default() {
        let defaults = || Some("newoption no\nnewlist a\nnewlist b\n".to_owned());
        assert_eq!(Printed("newoption no\nnewlist b").unsupported(defaults), None);
        assert_eq!(Printed("newoption yes").unsupported(defaults).as_deref(), Some("newoption is yes"));
        assert!(Printed("otheroption x").unsupported(defaults).is_some());
        assert!(Printed("newoption no").unsupported(|| None).is_some());
    }

    #[test]
    fn the_program_gets_other_values_only_for_options_that_ssh_printed() {
        let printed =
            Printed("remotecommand tmux new\nrequesttty force\npermitlocalcommand no\nstdinnull yes\nuser ada\n");
        assert_eq!(printed.overrides(), ["-o", "RemoteCommand=none", "-o", "RequestTTY=no", "-o", "StdinNull=no"]);
    }
}
