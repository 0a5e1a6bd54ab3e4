//! The user's SSH configuration for a node, from `ssh -G`, which resolves aliases, Include, Match and tokens.

use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Login};

use super::blocks;
use super::known_hosts::KnownKeys;
use crate::error::{ConnectStep, ConnectionError};

/// The timeout of a TCP connection if the configuration sets none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of the SSH client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SshOptions {
    /// OpenSSH's program. It resolves the configuration, and connects where libssh2 does not support the configuration.
    pub program: String,
    /// A configuration file that replaces the user's.
    pub config: Option<Utf8PathBuf>,
    /// Whether all connections go through the program.
    pub always_program: bool,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self { program: "ssh".into(), config: None, always_program: false }
    }
}

impl SshOptions {
    /// Reads the options from the environment. If `VIDTUI_SSH` names a program, all connections go through it.
    pub fn from_env() -> Self {
        let program = env::var("VIDTUI_SSH").ok().filter(|program| !program.is_empty());
        Self { always_program: program.is_some(), program: program.unwrap_or_else(|| "ssh".into()), config: None }
    }

    /// Returns the command for a node, with configuration, user and port. The caller appends options.
    pub(super) fn command(&self, login: &Login) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.words(login));
        command
    }

    /// Returns the command that a user would type to log in to a node.
    pub(super) fn command_line(&self, login: &Login) -> String {
        let words = [self.program.clone()].into_iter().chain(self.words(login)).chain([login.node.to_string()]);
        plan::command_line(&words.collect::<Vec<_>>())
    }

    fn words(&self, login: &Login) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(config) = &self.config {
            words.extend(["-F".into(), config.to_string()]);
        }
        if let Some(user) = &login.user {
            words.extend(["-l".into(), user.clone()]);
        }
        if let Some(port) = login.port {
            words.extend(["-p".into(), port.to_string()]);
        }
        words
    }
}

/// The settings of the connection to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The node's address, or a name that the resolver can resolve.
    pub host: String,
    /// The name of the node's keys in `known_hosts`, if it differs from `host` (`HostKeyAlias`).
    pub key_alias: Option<String>,
    pub user: String,
    pub port: u16,
    pub keys: Vec<Utf8PathBuf>,
    /// Whether only these keys are offered, even if the agent has more (`IdentitiesOnly`).
    pub only_these_keys: bool,
    /// The socket of the agent, if there is one.
    pub agent: Option<Utf8PathBuf>,
    /// The `known_hosts` files. New keys are added to the first.
    pub known_hosts: Vec<Utf8PathBuf>,
    pub unknown_keys: UnknownKeys,
    pub connect_timeout: Duration,
    /// Whether the connection to `host` and `port` is direct, without a jump host or a proxy command.
    pub is_direct: bool,
    /// Why libssh2 does not support the configuration.
    pub unsupported: Option<String>,
}

/// The treatment of a host key that is not in `known_hosts` (`StrictHostKeyChecking`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownKeys {
    /// Refuse the connection.
    Refuse,
    /// Add the key and trust it, unless another key of the node is known.
    Add,
    /// Trust any key.
    Trust,
}

impl Settings {
    /// Reads the settings. Runs `ssh -G` once for all nodes that the configuration treats alike.
    pub fn read(options: &SshOptions, login: &Login) -> Result<Self, ConnectionError> {
        let home = env::var("HOME").unwrap_or_default();
        let mut settings = blocks::shared(options, login, &home, || Self::query(options, login))?;
        if options.always_program {
            settings.unsupported = Some("VIDTUI_SSH is set".into());
        }
        settings.unsupported = settings.unsupported.take().or_else(|| settings.unsupported_by_files());
        Ok(settings)
    }

    /// Reads the settings with `ssh -G`, without the files that they name.
    pub(super) fn query(options: &SshOptions, login: &Login) -> Result<Self, ConnectionError> {
        let error =
            |why: String, fix: &str| ConnectionError::new(ConnectStep::Config, ErrorCode::NodeUnreachable, why, fix);
        let mut command = options.command(login);
        let command = command.args(["-G", "--", login.node.as_str()]).stdin(Stdio::null());
        let output = command.output().map_err(|io| {
            let why = format!("{} cannot be started: {io}", options.program);
            error(why, "install OpenSSH's client (Debian: apt-get install openssh-client)")
        })?;
        if !output.status.success() {
            let why = format!("the SSH configuration cannot be read: {}", String::from_utf8_lossy(&output.stderr));
            return Err(error(why, &format!("correct it; test it with `{} -G`", options.command_line(login))));
        }
        let home = env::var("HOME").unwrap_or_default();
        Ok(parse(&String::from_utf8_lossy(&output.stdout), &home, env::var("SSH_AUTH_SOCK").ok()))
    }

    /// Reads the known keys of the node.
    pub fn known_keys(&self) -> KnownKeys {
        let (name, port) = self.key_name();
        KnownKeys::read(&self.known_hosts, name, port)
    }

    /// Returns the name and the port of the node's keys in `known_hosts`. An alias is independent of the port.
    pub fn key_name(&self) -> (&str, u16) {
        self.key_alias.as_deref().map_or((&self.host, self.port), |alias| (alias, 22))
    }

    /// Returns why libssh2 does not support the files that the configuration names.
    fn unsupported_by_files(&self) -> Option<String> {
        for key in &self.keys {
            let public = Utf8PathBuf::from(format!("{key}.pub"));
            if key.exists() && fs::read_to_string(&public).is_ok_and(|text| text.starts_with("sk-")) {
                return Some(format!("key {key} is on a security device"));
            }
            let certificate = Utf8PathBuf::from(format!("{key}-cert.pub"));
            if key.exists() && certificate.exists() {
                return Some(format!("key {key} has a certificate"));
            }
        }
        self.known_keys().wants_certificate().then(|| format!("{} has a host certificate", self.key_name().0))
    }
}

fn parse(text: &str, home: &str, agent: Option<String>) -> Settings {
    let pairs = || text.lines().filter_map(|line| line.split_once(' ').map(|(key, value)| (key, value.trim())));
    let value = |key: &str| pairs().find(|(name, _)| *name == key).map(|(_, value)| value);
    let unless_none = |key: &str| value(key).filter(|value| *value != "none");
    let path = |word: &str| match word.strip_prefix("~/") {
        Some(rest) => Utf8Path::new(home).join(rest),
        None => Utf8PathBuf::from(word),
    };
    let files = |key: &str| value(key).unwrap_or_default().split_whitespace().map(path).collect::<Vec<_>>();
    let host = value("hostname").unwrap_or_default().to_owned();
    let identities = pairs().filter(|(key, _)| *key == "identityfile").map(|(_, file)| path(file));
    let agent = match value("identityagent") {
        Some("none") => None,
        None | Some("SSH_AUTH_SOCK") => agent.filter(|socket| !socket.is_empty()).map(Utf8PathBuf::from),
        Some(other) => match other.strip_prefix('$') {
            Some(variable) => env::var(variable).ok().map(Utf8PathBuf::from),
            None => Some(path(other)),
        },
    };
    let is_direct = unless_none("proxyjump").or(unless_none("proxycommand")).is_none();
    let unsupported = if let Some(jump) = unless_none("proxyjump") {
        Some(format!("it uses the jump host {jump} (ProxyJump)"))
    } else if unless_none("proxycommand").is_some() {
        Some("it uses a proxy command (ProxyCommand)".into())
    } else if pairs().any(|(key, _)| key == "certificatefile") {
        Some("it uses a certificate (CertificateFile)".into())
    } else if unless_none("pkcs11provider").is_some() {
        Some("its key is on a smart card (PKCS11Provider)".into())
    } else if unless_none("knownhostscommand").is_some() {
        Some("its known keys come from a command (KnownHostsCommand)".into())
    } else if value("gssapiauthentication") == Some("yes") && has_kerberos_ticket() {
        // Debian's configuration enables it for every node, but it is used only with a ticket.
        Some("there is a Kerberos ticket (GSSAPIAuthentication)".into())
    } else {
        None
    };
    Settings {
        key_alias: unless_none("hostkeyalias").map(str::to_owned),
        host,
        user: value("user").unwrap_or_default().to_owned(),
        port: value("port").and_then(|port| port.parse().ok()).unwrap_or(22),
        keys: identities.collect(),
        only_these_keys: value("identitiesonly") == Some("yes"),
        agent,
        known_hosts: files("userknownhostsfile").into_iter().chain(files("globalknownhostsfile")).collect(),
        unknown_keys: match value("stricthostkeychecking") {
            Some("accept-new") => UnknownKeys::Add,
            Some("no" | "off" | "false") => UnknownKeys::Trust,
            _ => UnknownKeys::Refuse,
        },
        connect_timeout: value("connecttimeout")
            .and_then(|s| s.parse().ok())
            .map_or(CONNECT_TIMEOUT, |s: u64| Duration::from_secs(s.max(1))),
        is_direct,
        unsupported,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str = "\
user ada
hostname 10.0.0.7
port 2200
gssapiauthentication no
identitiesonly no
stricthostkeychecking ask
identityfile ~/.ssh/id_rsa
identityfile /keys/cluster key
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile /home/ada/.ssh/known_hosts
connecttimeout none
";

    fn read(more: &str) -> Settings {
        parse(&format!("{more}{USUAL}"), "/home/ada", Some("/run/agent".into()))
    }

    #[test]
    fn the_output_of_ssh_g_is_parsed() {
        insta::assert_debug_snapshot!(read(""));
    }

    #[test]
    fn user_settings_override_the_defaults() {
        let aliased = read("hostkeyalias gpu01\n");
        assert_eq!((aliased.key_name(), aliased.port), (("gpu01", 22), 2200));
        assert_eq!(read("").key_name(), ("10.0.0.7", 2200));
        assert_eq!(read("hostname 2001:db8::1\n").key_name(), ("2001:db8::1", 2200));
        assert_eq!(read("connecttimeout 3\n").connect_timeout, Duration::from_secs(3));
        assert_eq!(read("stricthostkeychecking accept-new\n").unknown_keys, UnknownKeys::Add);
        assert_eq!(read("stricthostkeychecking false\n").unknown_keys, UnknownKeys::Trust);
        assert_eq!(read("identityagent none\n").agent, None);
        assert_eq!(read("identityagent ~/agent\n").agent, Some("/home/ada/agent".into()));
    }

    #[test]
    fn configurations_that_libssh2_does_not_support_use_openssh() {
        let lines = [
            "",
            "proxyjump login\n",
            "proxyjump none\n",
            "proxycommand nc %h\n",
            "pkcs11provider /lib/opensc.so\n",
            "certificatefile ~/c\n",
        ];
        assert_eq!(lines.map(|line| read(line).unsupported.is_some()), [false, true, false, true, true, true]);
    }

    #[test]
    fn keys_on_security_devices_and_keys_with_certificates_use_openssh() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let mut settings = read("");
        settings.keys = vec![folder.join("id_a"), folder.join("id_b")];
        fs::write(folder.join("id_a.pub"), "sk-ssh-ed25519@openssh.com AAAA").unwrap();
        assert_eq!(settings.unsupported_by_files(), None, "the key file does not exist");
        fs::write(folder.join("id_a"), "").unwrap();
        assert!(settings.unsupported_by_files().is_some_and(|why| why.contains("id_a")));
        fs::write(folder.join("id_a.pub"), "ssh-ed25519 AAAA").unwrap();
        assert_eq!(settings.unsupported_by_files(), None);
        fs::write(folder.join("id_b"), "").unwrap();
        fs::write(folder.join("id_b-cert.pub"), "").unwrap();
        assert!(settings.unsupported_by_files().is_some_and(|why| why.contains("id_b")));
    }

    #[test]
    fn the_command_line_of_a_login_can_be_typed() {
        let options = SshOptions { config: Some("my config".into()), ..SshOptions::default() };
        let login = Login { node: cluster::NodeId::from_hostname("gpu01"), user: Some("ada".into()), port: Some(2200) };
        assert_eq!(options.command_line(&login), "ssh -F 'my config' -l ada -p 2200 gpu01");
        let login = Login { node: cluster::NodeId::new("fe80::1%eth0").unwrap(), ..login };
        assert_eq!(options.command_line(&login), "ssh -F 'my config' -l ada -p 2200 fe80::1%eth0");
    }
}
