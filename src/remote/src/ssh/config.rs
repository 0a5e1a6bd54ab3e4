//! What the user's SSH configuration says about a node, as `ssh -G` tells it: aliases, users, ports, keys, known hosts,
//! with every Include, Match and token in them.

use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rundir::Login;

use super::ConnectionError;
use super::known_hosts::KnownKeys;

/// How long a connection may take to come about, unless the configuration says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How SSH is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshOptions {
    /// The program whose configuration counts, and that connects where this program cannot.
    pub program: String,
    /// A configuration file in place of the user's own.
    pub config: Option<Utf8PathBuf>,
    /// Connects through the program always.
    pub always_program: bool,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self { program: "ssh".into(), config: None, always_program: false }
    }
}

impl SshOptions {
    /// Reads the options from the environment: `VIDTUI_SSH` names the program, and has all connections made by it.
    pub fn from_env() -> Self {
        let program = env::var("VIDTUI_SSH").ok().filter(|program| !program.is_empty());
        Self { always_program: program.is_some(), program: program.unwrap_or_else(|| "ssh".into()), config: None }
    }

    /// Makes the command that names a node: program, configuration, user and port; options may follow.
    pub(super) fn command(&self, login: &Login) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.words(login));
        command
    }

    /// Writes the command that a person would type to reach a node.
    pub(super) fn typed(&self, login: &Login) -> String {
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

/// How a node is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Its address, or a name that the resolver knows.
    pub host: String,
    /// The name under which its keys are known.
    pub key_name: String,
    /// The port that is noted beside it: an alias stands for a key whatever the port.
    pub key_port: u16,
    pub user: String,
    pub port: u16,
    pub keys: Vec<Utf8PathBuf>,
    /// Whether only these keys are to be shown, even if an agent has more.
    pub only_these_keys: bool,
    /// The agent's socket, if there is an agent.
    pub agent: Option<Utf8PathBuf>,
    /// Files with known keys; new ones go into the first.
    pub known_hosts: Vec<Utf8PathBuf>,
    pub unknown_keys: UnknownKeys,
    pub connect_timeout: Duration,
    /// Whether `host` and `port` are what is connected to, and not what a jump host or a command connects to.
    pub is_direct: bool,
    /// Why libssh2 cannot do what the configuration asks.
    pub unsupported: Option<String>,
}

/// What is done about a node whose key is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownKeys {
    /// It is refused.
    Refuse,
    /// It is noted and trusted, unless another key is known.
    Add,
    /// Any key is trusted.
    Trust,
}

impl Settings {
    /// Asks `ssh -G`.
    pub fn read(options: &SshOptions, login: &Login) -> Result<Self, ConnectionError> {
        let refused = |why: String, fix: &str| ConnectionError::new("its SSH configuration", why, fix);
        let mut command = options.command(login);
        let command = command.args(["-G", "--", login.node.as_str()]).stdin(Stdio::null());
        let output = command.output().map_err(|error| {
            let why = format!("{} cannot be started: {error}", options.program);
            refused(why, "install OpenSSH's client (Debian: apt-get install openssh-client)")
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let typed = format!("correct it; try `{} -G`", options.typed(login));
            return Err(refused(said, &typed));
        }
        let home = env::var("HOME").unwrap_or_default();
        let mut settings = parse(&String::from_utf8_lossy(&output.stdout), &home, env::var("SSH_AUTH_SOCK").ok());
        if options.always_program {
            settings.unsupported = Some("VIDTUI_SSH names a program".into());
        }
        settings.unsupported = settings.unsupported.take().or_else(|| settings.unsupported_by_files());
        Ok(settings)
    }

    /// The keys that are known for the node.
    pub fn known_keys(&self) -> KnownKeys {
        KnownKeys::read(&self.known_hosts, &self.key_name, self.key_port)
    }

    /// What only the files tell that the configuration names.
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
        self.known_keys().wants_certificate().then(|| format!("{} proves itself by a certificate", self.key_name))
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
        Some(format!("it goes through {jump} (ProxyJump)"))
    } else if unless_none("proxycommand").is_some() {
        Some("it goes through a command (ProxyCommand)".into())
    } else if pairs().any(|(key, _)| key == "certificatefile") {
        Some("it names a certificate (CertificateFile)".into())
    } else if unless_none("pkcs11provider").is_some() {
        Some("its key is on a card (PKCS11Provider)".into())
    } else if unless_none("knownhostscommand").is_some() {
        Some("its keys come from a command (KnownHostsCommand)".into())
    } else if value("gssapiauthentication") == Some("yes") && has_kerberos_ticket() {
        // Debian's configuration allows it for every node; it means something only to those who have a ticket.
        Some("there is a Kerberos ticket (GSSAPIAuthentication)".into())
    } else {
        None
    };
    let alias = unless_none("hostkeyalias");
    let port = value("port").and_then(|port| port.parse().ok()).unwrap_or(22);
    Settings {
        key_name: alias.map_or_else(|| host.clone(), str::to_owned),
        key_port: if alias.is_some() { 22 } else { port },
        host,
        user: value("user").unwrap_or_default().to_owned(),
        port,
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

/// Asks Kerberos itself, once: where tickets lie (a file, the kernel's keyring, a daemon) its own configuration says.
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
    fn what_ssh_says_of_a_node_is_understood() {
        insta::assert_debug_snapshot!(read(""));
    }

    #[test]
    fn settings_of_the_user_win_over_the_usual() {
        let aliased = read("hostkeyalias gpu01\n");
        assert_eq!((aliased.key_name.as_str(), aliased.key_port, aliased.port), ("gpu01", 22, 2200));
        assert_eq!(read("connecttimeout 3\n").connect_timeout, Duration::from_secs(3));
        assert_eq!(read("stricthostkeychecking accept-new\n").unknown_keys, UnknownKeys::Add);
        assert_eq!(read("stricthostkeychecking false\n").unknown_keys, UnknownKeys::Trust);
        assert_eq!(read("identityagent none\n").agent, None);
        assert_eq!(read("identityagent ~/agent\n").agent, Some("/home/ada/agent".into()));
    }

    #[test]
    fn what_libssh2_cannot_do_is_left_to_openssh() {
        let reasons = [
            "",
            "proxyjump login\n",
            "proxyjump none\n",
            "proxycommand nc %h\n",
            "pkcs11provider /lib/opensc.so\n",
            "certificatefile ~/c\n",
        ];
        let reasons = reasons.map(|line| read(line).unsupported.unwrap_or_else(|| "-".into()));
        assert_eq!(
            reasons,
            [
                "-",
                "it goes through login (ProxyJump)",
                "-",
                "it goes through a command (ProxyCommand)",
                "its key is on a card (PKCS11Provider)",
                "it names a certificate (CertificateFile)",
            ]
        );
    }

    #[test]
    fn keys_on_devices_and_keys_with_certificates_are_left_to_openssh() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let mut settings = read("");
        settings.keys = vec![folder.join("id_a"), folder.join("id_b")];
        fs::write(folder.join("id_a.pub"), "sk-ssh-ed25519@openssh.com AAAA").unwrap();
        assert_eq!(settings.unsupported_by_files(), None, "the key itself is not there");
        fs::write(folder.join("id_a"), "").unwrap();
        assert!(settings.unsupported_by_files().is_some_and(|why| why.ends_with("is on a security device")));
        fs::write(folder.join("id_a.pub"), "ssh-ed25519 AAAA").unwrap();
        fs::write(folder.join("id_b"), "").unwrap();
        fs::write(folder.join("id_b-cert.pub"), "").unwrap();
        assert!(settings.unsupported_by_files().is_some_and(|why| why.ends_with("has a certificate")));
    }

    #[test]
    fn a_person_can_type_the_same() {
        let options = SshOptions { config: Some("my config".into()), ..SshOptions::default() };
        let login = Login { node: cluster::NodeId::from_hostname("gpu01"), user: Some("ada".into()), port: Some(2200) };
        assert_eq!(options.typed(&login), "ssh -F 'my config' -l ada -p 2200 gpu01");
    }
}
