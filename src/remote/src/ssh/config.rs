//! The user's SSH configuration for a node, from `ssh -G`, which resolves aliases, Include, Match and tokens.

use std::collections::HashMap;
use std::env;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use rundir::{ErrorCode, Login};

use super::algorithms::Algorithms;
use super::known_hosts::KnownKeys;
use super::options::Printed;
use super::public_key::PublicKey;
use super::tokens::Tokens;
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
    pub addresses: AddressFamily,
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
    /// Whether the name of a new key is written as a hash (`HashKnownHosts`).
    pub hashes_names: bool,
    pub unknown_keys: UnknownKeys,
    pub algorithms: Algorithms,
    pub connect_timeout: Duration,
    /// Whether the connection to `host` and `port` is direct, without a jump host or a proxy command.
    pub is_direct: bool,
    /// The socket of the connection that the user's `ssh` shares (`ControlPath`). It may not exist.
    pub control_path: Option<Utf8PathBuf>,
    /// The arguments of OpenSSH's program that replace values which would disturb commands.
    pub overrides: Vec<String>,
    /// Why libssh2 does not support the configuration.
    pub unsupported: Option<String>,
}

/// The addresses that are connected to (`AddressFamily`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressFamily {
    Any,
    Ipv4,
    Ipv6,
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
    /// Reads the settings of one node. Each node needs its own `ssh -G` (7 ms), because any option may depend on the node's name.
    pub fn read(options: &SshOptions, login: &Login) -> Result<Self, ConnectionError> {
        let text = ssh_g(options, login)?;
        let mut settings = parse(&text, login, Tokens::of_this_user(), env::var("SSH_AUTH_SOCK").ok());
        let unsupported = || Printed(&text).unsupported(|| defaults(&options.program));
        settings.unsupported = if options.always_program {
            Some("VIDTUI_SSH is set".into())
        } else {
            settings.unsupported.take().or_else(unsupported).or_else(|| settings.unsupported_by_files())
        };
        Ok(settings)
    }

    /// Returns why OpenSSH's program must connect to the node now.
    pub fn needs_program(&self) -> Option<String> {
        let shared = || {
            let socket = self.control_path.as_ref().filter(|_| self.has_shared_connection())?;
            Some(format!("ssh shares the open connection {socket} (ControlPath)"))
        };
        self.unsupported.clone().or_else(shared)
    }

    /// Returns whether the user's `ssh` has a connection to the node that other programs may share (`ControlMaster`).
    pub fn has_shared_connection(&self) -> bool {
        // The socket of an `ssh` that was killed remains and refuses connections.
        self.control_path.as_ref().is_some_and(|socket| UnixStream::connect(socket).is_ok())
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
        for key in self.keys.iter().filter(|key| key.exists()) {
            match PublicKey::of_file(key) {
                Some(public) if public.kind().starts_with("sk-") => {
                    return Some(format!("key {key} is on a security device"));
                }
                None if !self.algorithms.accept_every_key() => {
                    return Some(format!(
                        "the type and length of key {key} are unknown, because {key}.pub does not exist"
                    ));
                }
                _ => {}
            }
            if Utf8PathBuf::from(format!("{key}-cert.pub")).exists() {
                return Some(format!("key {key} has a certificate"));
            }
        }
        self.known_keys().wants_certificate().then(|| format!("{} has a host certificate", self.key_name().0))
    }
}

/// Returns the output of `ssh -G`, which resolves aliases, Include and Match and expands most tokens.
fn ssh_g(options: &SshOptions, login: &Login) -> Result<String, ConnectionError> {
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
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the output of `ssh -G` for a configuration without options. Runs a program once in this process.
fn defaults(program: &str) -> Option<String> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Option<String>>>> = LazyLock::new(Mutex::default);
    let read = || {
        let output =
            Command::new(program).args(["-F", "/dev/null", "-G", "localhost"]).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(program.to_owned()).or_insert_with(read).clone()
}

fn parse(text: &str, login: &Login, this_user: Tokens, agent: Option<String>) -> Settings {
    let printed = Printed(text);
    let value = |name: &str| printed.value(name);
    let unless_none = |name: &str| value(name).filter(|value| *value != "none");
    let (host, user) = (value("hostname").unwrap_or_default(), value("user").unwrap_or_default());
    let port = value("port").and_then(|port| port.parse().ok()).unwrap_or(22);
    let key_alias = value("hostkeyalias").map(str::to_lowercase);
    let tokens = Tokens {
        name: login.node.to_string(),
        host: host.into(),
        key_alias: key_alias.clone(),
        port,
        user: user.into(),
        ..this_user
    };
    let mut unsupported = None;
    let mut expand = |path: &str| {
        let expanded = tokens.expand(path);
        if expanded.is_none() {
            // Its error names the token or the variable.
            unsupported.get_or_insert_with(|| format!("{path} has a token or variable without a value"));
        }
        expanded
    };
    let keys = printed.values("identityfile").filter(|file| *file != "none").filter_map(&mut expand).collect();
    let agent = match value("identityagent") {
        Some("none") => None,
        None | Some("SSH_AUTH_SOCK") => agent.filter(|socket| !socket.is_empty()).map(Utf8PathBuf::from),
        Some(other) => match other.strip_prefix('$').filter(|rest| !rest.starts_with('{')) {
            Some(variable) => env::var(variable).ok().map(Utf8PathBuf::from),
            None => expand(other),
        },
    };
    let mut known_hosts = Vec::new();
    for name in ["userknownhostsfile", "globalknownhostsfile"] {
        for file in unless_none(name).unwrap_or_default().split_whitespace() {
            // `ssh -G` prints names with spaces without quotes.
            if !file.starts_with(['/', '~']) {
                unsupported.get_or_insert_with(|| format!("{file} in {name} may be a part of a name with a space"));
            }
            known_hosts.push(tokens.expand_home(file));
        }
    }
    let algorithms = Algorithms::read(printed);
    let unsupported = unsupported.or_else(|| algorithms.unsupported());
    Settings {
        host: host.into(),
        addresses: match value("addressfamily") {
            Some("inet") => AddressFamily::Ipv4,
            Some("inet6") => AddressFamily::Ipv6,
            _ => AddressFamily::Any,
        },
        key_alias,
        user: user.into(),
        port,
        keys,
        only_these_keys: value("identitiesonly") == Some("yes"),
        agent,
        known_hosts,
        hashes_names: value("hashknownhosts") == Some("yes"),
        unknown_keys: match value("stricthostkeychecking") {
            Some("accept-new") => UnknownKeys::Add,
            Some("no" | "off" | "false") => UnknownKeys::Trust,
            _ => UnknownKeys::Refuse,
        },
        algorithms,
        connect_timeout: value("connecttimeout")
            .and_then(|s| s.parse().ok())
            .map_or(CONNECT_TIMEOUT, |s: u64| Duration::from_secs(s.max(1))),
        is_direct: unless_none("proxyjump").or(unless_none("proxycommand")).is_none(),
        control_path: unless_none("controlpath").map(Utf8PathBuf::from),
        overrides: printed.overrides(),
        unsupported,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let login = Login { node: cluster::NodeId::from_hostname("gpu01"), user: None, port: None };
        let this_user = Tokens { home: "/home/ada".into(), this_host: "laptop".into(), ..Tokens::of_this_user() };
        parse(&format!("{more}{USUAL}"), &login, this_user, Some("/run/agent".into()))
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
        assert_eq!(read("identityagent SSH_AUTH_SOCK\n").agent, Some("/run/agent".into()));
        assert_eq!(read("identityagent $VIDTUI_NO_SUCH_VARIABLE\n").agent, None);
        assert_eq!(read("addressfamily inet\n").addresses, AddressFamily::Ipv4);
        assert!(read("hashknownhosts yes\n").hashes_names && !read("").hashes_names);
    }

    #[test]
    fn tokens_in_the_paths_of_keys_are_expanded_for_the_node() {
        let files = "identityfile ~/.ssh/keys/%h\nidentityfile %d/%n-%r-%p\nidentityfile none\n";
        let keys = read(files).keys;
        assert_eq!(keys[..2], ["/home/ada/.ssh/keys/10.0.0.7", "/home/ada/gpu01-ada-2200"]);
        assert_eq!(keys.len(), 4, "{keys:?}");
        let unknown = read("identityfile /keys/${VIDTUI_NO_SUCH_VARIABLE}\n");
        assert!(unknown.unsupported.is_some_and(|why| why.contains("VIDTUI_NO_SUCH_VARIABLE")));
    }

    #[test]
    fn names_of_known_hosts_files_that_may_have_spaces_use_openssh() {
        assert_eq!(read("userknownhostsfile none\n").unsupported, None);
        let unsupported = read("userknownhostsfile /home/ada/my known_hosts\n").unsupported;
        assert!(unsupported.as_ref().is_some_and(|why| why.contains("known_hosts")), "{unsupported:?}");
    }

    #[test]
    fn a_shared_connection_is_used_while_its_socket_accepts_connections() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("cm");
        let settings = read(&format!("controlpath {}\n", socket.display()));
        assert_eq!(settings.needs_program(), None, "there is no socket");
        let master = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(settings.needs_program().is_some_and(|why| why.contains("ControlPath")));
        drop(master);
        assert!(socket.exists());
        assert_eq!(settings.needs_program(), None, "nothing listens");
        assert_eq!(read("controlpath none\n").control_path, None);
    }

    #[test]
    fn settings_of_nodes_with_tokens_and_blocks_of_their_own_differ() {
        let temp = tempfile::tempdir().unwrap();
        let config = Utf8PathBuf::from_path_buf(temp.path().join("config")).unwrap();
        let text = "Host gpu1\n  User ada\nHost gpu2\n  HostName 10.0.0.2\n  AddressFamily inet6\nMatch originalhost gpu3\n  \
            BindAddress 10.0.0.9\nHost *\n  IdentityFile /keys/%n-%r\n  User bob\n  ControlPath /run/cm-%h\n";
        fs::write(&config, text).unwrap();
        let options = SshOptions { config: Some(config), ..SshOptions::default() };
        let read = |name: &str| {
            let login = Login { node: cluster::NodeId::new(name).unwrap(), user: None, port: None };
            Settings::read(&options, &login).unwrap()
        };
        let [first, second, third] = ["gpu1", "gpu2", "gpu3"].map(read);
        assert_eq!(
            [&first, &second, &third].map(|s| s.keys[0].as_str()),
            ["/keys/gpu1-ada", "/keys/gpu2-bob", "/keys/gpu3-bob"]
        );
        assert_eq!([&first, &second].map(|s| s.control_path.clone().unwrap()), ["/run/cm-gpu1", "/run/cm-10.0.0.2"]);
        assert_eq!([first.addresses, second.addresses], [AddressFamily::Any, AddressFamily::Ipv6]);
        assert_eq!([first.unsupported, second.unsupported], [None, None]);
        assert!(third.unsupported.is_some_and(|why| why.contains("BindAddress")));
    }

    #[test]
    fn keys_on_security_devices_and_keys_with_certificates_use_openssh() {
        let temp = tempfile::tempdir().unwrap();
        let folder = camino::Utf8Path::from_path(temp.path()).unwrap();
        let mut settings = read("");
        settings.keys = vec![folder.join("id_a"), folder.join("id_b")];
        // A public key of type sk-ssh-ed25519@openssh.com.
        let security_key = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t";
        fs::write(folder.join("id_a.pub"), security_key).unwrap();
        assert_eq!(settings.unsupported_by_files(), None, "the key file does not exist");
        fs::write(folder.join("id_a"), "").unwrap();
        assert!(settings.unsupported_by_files().is_some_and(|why| why.contains("id_a")));
        fs::write(folder.join("id_a.pub"), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5").unwrap();
        assert_eq!(settings.unsupported_by_files(), None);
        fs::write(folder.join("id_b"), "").unwrap();
        assert_eq!(settings.unsupported_by_files(), None, "its type is unknown, and every type is allowed");
        settings.algorithms.required_rsa_bits = 2048;
        assert!(settings.unsupported_by_files().is_some_and(|why| why.contains("id_b.pub")));
        settings.algorithms.required_rsa_bits = 1024;
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
