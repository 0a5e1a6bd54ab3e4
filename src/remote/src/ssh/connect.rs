//! Connects to a node: TCP, handshake, host key, login. Each step has its own errors.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;
use rundir::{ErrorCode, Login};
use ssh2::Session;

use super::config::{AddressFamily, Settings, SshOptions, UnknownKeys};
use super::known_hosts::{self, KeyStatus, Salt};
use super::public_key::PublicKey;
use crate::backoff::Backoff;
use crate::error::{ConnectStep, ConnectionError};

/// The number of parallel connection attempts. More would only wait for this machine's CPU.
const MAX_PARALLEL: usize = 32;
/// The number of attempts at a handshake if the server closes the connection. A server with many pending logins drops
/// some at random (MaxStartups).
const HANDSHAKES: u32 = 5;
/// The timeout of a server's reply during the handshake and the login.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);
/// The timeout of an agent's reply.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Error codes of libssh2 (libssh2.h).
const TIMEOUT: i32 = -9;
const NO_COMMON_ALGORITHM: [i32; 3] = [-5, -8, -17];
const CLOSED_BY_SERVER: [i32; 4] = [-2, -7, -13, -43];

/// A session and its socket. Shutting down the socket ends all blocking calls of the session.
pub struct Connected {
    pub session: Session,
    pub socket: TcpStream,
}

/// Connects and logs in. Blocks until it succeeds, fails or times out.
pub fn connect(settings: &Settings, login: &Login, options: &SshOptions) -> Result<Connected, ConnectionError> {
    let _permit = Permit::wait(&CONNECTS);
    let ssh = options.command_line(login);
    let known_keys = settings.known_keys();
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut left = HANDSHAKES;
    let (session, socket) = loop {
        left -= 1;
        let socket = connect_tcp(settings, login, &ssh)?;
        match handshake(settings, &socket, &known_keys.kinds()) {
            Ok(session) => break (session, socket),
            Err(error) if left > 0 && CLOSED_BY_SERVER.contains(&number(&error)) => thread::sleep(backoff.next()),
            Err(error) => return Err(handshake_error(settings, login, &error, &ssh)),
        }
    };
    check_host_key(settings, login, &session, &known_keys, &ssh)?;
    log_in(settings, login, &session, &ssh)?;
    Ok(Connected { session, socket })
}

/// Returns the libssh2 error code of an error.
pub(super) fn number(error: &ssh2::Error) -> i32 {
    match error.code() {
        ssh2::ErrorCode::Session(number) | ssh2::ErrorCode::SFTP(number) => number,
    }
}

/// Returns the address of a node; `None` if it is the node's name, which every error names already.
fn other_host<'a>(settings: &'a Settings, login: &Login) -> Option<&'a str> {
    Some(settings.host.as_str()).filter(|host| *host != login.node.as_str())
}

fn connect_tcp(settings: &Settings, login: &Login, ssh: &str) -> Result<TcpStream, ConnectionError> {
    let (host, port) = (settings.host.as_str(), settings.port);
    let failed = |code, why: String, fix: String| ConnectionError::new(ConnectStep::Connect, code, why, fix);
    let other = other_host(settings, login);
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        let name = other.map_or("its name".to_owned(), |host| format!("its HostName {host}"));
        let error = error.to_string();
        let why = error.strip_prefix("failed to lookup address information: ").unwrap_or(&error);
        let fix = format!("check the name; try `{ssh}`");
        failed(ErrorCode::NoAddress, format!("{name} has no address: {why}"), fix)
    })?;
    let (option, is_wanted): (_, fn(&SocketAddr) -> bool) = match settings.addresses {
        AddressFamily::Any => ("any", |_| true),
        AddressFamily::Ipv4 => ("inet", SocketAddr::is_ipv4),
        AddressFamily::Ipv6 => ("inet6", SocketAddr::is_ipv6),
    };
    let addresses: Vec<SocketAddr> = addresses.filter(is_wanted).collect();
    if addresses.is_empty() {
        let why = format!("{} has no address of AddressFamily {option}", other.unwrap_or("its name"));
        return Err(failed(ErrorCode::NoAddress, why, format!("correct AddressFamily or the name; try `{ssh}`")));
    }
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, settings.connect_timeout) {
            Ok(socket) => {
                // Commands and replies are small; Nagle's algorithm would only delay them.
                let _ = socket.set_nodelay(true);
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    let at = other.map_or(format!("port {port}"), |host| format!("{host} port {port}"));
    Err(match (last.kind(), last.raw_os_error().map(Errno::from_raw)) {
        (ErrorKind::ConnectionRefused, _) => failed(
            ErrorCode::ConnectionRefused,
            format!("{at} refuses the connection: the node is on, but no SSH server listens there"),
            "start sshd on the node, or correct the port".into(),
        ),
        (ErrorKind::TimedOut, _) => failed(
            ErrorCode::NoAnswer,
            format!("{at} did not answer within {} s", settings.connect_timeout.as_secs()),
            format!("check that the node and its network are up: ping {host}"),
        ),
        (_, Some(Errno::EHOSTUNREACH | Errno::ENETUNREACH)) => failed(
            ErrorCode::NodeUnreachable,
            format!("there is no route to {}: the node or its network is down", other.unwrap_or("it")),
            format!("check that the node and its network are up: ping {host}"),
        ),
        _ => failed(ErrorCode::NodeUnreachable, format!("{at}: {last}"), format!("try `{ssh}`")),
    })
}

fn handshake(settings: &Settings, socket: &TcpStream, kinds: &[&str]) -> Result<Session, ssh2::Error> {
    let mut session = Session::new()?;
    session.set_timeout(millis(settings.connect_timeout));
    settings.algorithms.apply(&session, kinds)?;
    session.set_tcp_stream(socket.try_clone().map_err(|_| ssh2::Error::from_errno(ssh2::ErrorCode::Session(-7)))?);
    session.handshake()?;
    session.set_timeout(millis(REPLY_TIMEOUT));
    Ok(session)
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn handshake_error(settings: &Settings, login: &Login, error: &ssh2::Error, ssh: &str) -> ConnectionError {
    let (number, message) = (number(error), error.message());
    let server =
        other_host(settings, login).map_or("its SSH server".to_owned(), |host| format!("its SSH server at {host}"));
    if number == TIMEOUT {
        let why = format!("{server} does not answer: the node hangs or is overloaded");
        let fix = "log in at the console of the node; if that fails, restart the node";
        return ConnectionError::new(ConnectStep::Handshake, ErrorCode::NoAnswer, why, fix);
    }
    let failed =
        |why: String, fix: String| ConnectionError::new(ConnectStep::Handshake, ErrorCode::NodeUnreachable, why, fix);
    if CLOSED_BY_SERVER.contains(&number) {
        let why = format!("{server} closed the connection {HANDSHAKES} times: {message}");
        let fix = format!("it may block this machine, or have too many pending logins (MaxStartups); try `{ssh}`");
        return failed(why, fix);
    }
    let fix = format!("try `{ssh}`; if that works, connect through OpenSSH: set VIDTUI_SSH=ssh");
    if NO_COMMON_ALGORITHM.contains(&number) {
        return failed(format!("{server} and vidtui have no algorithm in common: {message}"), fix);
    }
    failed(format!("the handshake with {server} failed: {message}"), fix)
}

fn check_host_key(
    settings: &Settings,
    login: &Login,
    session: &Session,
    known: &known_hosts::KnownKeys,
    ssh: &str,
) -> Result<(), ConnectionError> {
    let (name, port) = settings.key_name();
    let failed = |code, why: String, fix: String| ConnectionError::new(ConnectStep::HostKey, code, why, fix);
    let Some((blob, _)) = session.host_key() else {
        return Err(failed(ErrorCode::HostKey, "it sent no host key".into(), format!("try `{ssh}`")));
    };
    let host_key = PublicKey(blob.to_owned());
    let kind = host_key.kind();
    let short = kind.trim_start_matches("ssh-").trim_start_matches("ecdsa-sha2-").to_owned();
    let of_name = if name == login.node.as_str() { String::new() } else { format!(" of {name}") };
    let key = format!("{short} key {}{of_name}", known_hosts::fingerprint(blob));
    let file = if kind.starts_with("ecdsa") { "ecdsa" } else { &short };
    if let Some(why) = settings.algorithms.refuse_length(&host_key) {
        let fix = format!("make a longer key on the node: `ssh-keygen -t rsa -b 3072 -f /etc/ssh/ssh_host_{file}_key`");
        return Err(failed(ErrorCode::HostKey, format!("the {key} is too short: {why}"), fix));
    }
    match known.status(blob) {
        KeyStatus::Known => Ok(()),
        // A revoked key is refused even where unknown keys are trusted.
        KeyStatus::Revoked { file: list, line } => Err(failed(
            ErrorCode::HostKey,
            format!("the {key} is revoked by {list} line {line}"),
            "do not connect; report this to the administrator of the node".into(),
        )),
        _ if settings.unknown_keys == UnknownKeys::Trust => Ok(()),
        KeyStatus::Unknown if settings.unknown_keys == UnknownKeys::Add => {
            let salt = if settings.hashes_names { Some(new_salt(settings)?) } else { None };
            add_known_key(settings, &known_hosts::line(name, port, &kind, blob, salt.as_ref()))
        }
        KeyStatus::Unknown => Err(failed(
            ErrorCode::HostKeyUnknown,
            format!("the {key} is not in a known_hosts file"),
            format!(
                "compare it with `ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub` on the node, then accept it: `{ssh} true`"
            ),
        )),
        KeyStatus::Changed { file: list, line } => {
            let name = if port == 22 { name.to_owned() } else { format!("[{name}]:{port}") };
            let remove = plan::command_line(&["ssh-keygen", "-R", &name, "-f", list.as_str()]);
            Err(failed(
                ErrorCode::HostKeyChanged,
                format!(
                    "the {key} differs from {list} line {line}: the node was reinstalled, or the connection is intercepted"
                ),
                format!(
                    "if it was reinstalled, compare the key with `ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub` on the \
                     node, remove the old key (`{remove}`) and accept the new one (`{ssh} true`)"
                ),
            ))
        }
    }
}

/// Appends a line to the first `known_hosts` file.
fn add_known_key(settings: &Settings, line: &str) -> Result<(), ConnectionError> {
    let Some(file) = settings.known_hosts.first() else { return Ok(()) };
    let written = OpenOptions::new().read(true).append(true).create(true).open(file).and_then(|mut open| {
        let mut last = [b'\n'];
        if open.seek(SeekFrom::End(-1)).is_ok() {
            open.read_exact(&mut last)?;
        }
        // The last line of the file may have no newline.
        let newline = if last == *b"\n" { "" } else { "\n" };
        open.write_all(format!("{newline}{line}").as_bytes())
    });
    written.map_err(|error| cannot_add(file, &error))
}

/// Returns a random salt for a hashed name.
fn new_salt(settings: &Settings) -> Result<Salt, ConnectionError> {
    let mut salt = Salt::default();
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut salt));
    let file = settings.known_hosts.first().cloned().unwrap_or_default();
    read.map_err(|error| cannot_add(&file, &error)).map(|()| salt)
}

fn cannot_add(file: &Utf8Path, error: &io::Error) -> ConnectionError {
    let why = format!("cannot add the key to {file}: {error}");
    ConnectionError::new(ConnectStep::HostKey, ErrorCode::HostKey, why, "check the permissions of the file")
}

/// Tries the keys of the agent, then the key files. The error lists what was tried.
fn log_in(settings: &Settings, login: &Login, session: &Session, ssh: &str) -> Result<(), ConnectionError> {
    let mut tried = Vec::new();
    let keys: Vec<KeyFile> = settings.keys.iter().filter_map(KeyFile::read).collect();
    if let Some(socket) = &settings.agent {
        match by_agent(settings, session, socket, &keys) {
            Ok(None) => return Ok(()),
            Ok(Some(0)) => tried.push(format!("the agent at {socket} (no usable key)")),
            Ok(Some(keys)) => tried.push(format!("the agent at {socket} ({})", units::counted(keys, "key"))),
            Err(why) => tried.push(format!("the agent at {socket} ({why})")),
        }
    }
    let mut locked = None;
    for KeyFile { file, public, is_private } in &keys {
        if !is_private {
            continue;
        }
        if let Some(why) = public.as_ref().and_then(|key| settings.algorithms.refuse_user_key(key)) {
            tried.push(format!("{file} (not offered: {why})"));
            continue;
        }
        match session.userauth_pubkey_file(&settings.user, None, file.as_std_path(), None) {
            Ok(()) => return Ok(()),
            Err(error) if number(&error) == -16 => {
                locked = Some(file);
                tried.push(format!("{file} (has a passphrase, or is not readable)"));
            }
            Err(error) if [-18, -19].contains(&number(&error)) => tried.push(file.to_string()),
            Err(error) => tried.push(format!("{file} ({})", error.message())),
        }
    }
    let user = &settings.user;
    // After it has accepted a key, a server that requires more lists only the other methods.
    let methods = if tried.is_empty() { None } else { session.auth_methods(user).ok() };
    if let Some(methods) = methods.filter(|methods| is_second_factor(methods)) {
        return Err(second_factor(methods, login, ssh));
    }
    let why = match &tried[..] {
        [] => format!("there is no key for user {user}: no agent and no key file"),
        tried => format!("it refused all keys of user {user}; tried {}", tried.join(", ")),
    };
    let fix = match (locked, &tried[..]) {
        (Some(key), _) => format!("add the key to the agent: `ssh-add {key}`"),
        (None, []) => "make a key (`ssh-keygen`) and install it on the node (`ssh-copy-id`)".to_owned(),
        (None, _) => {
            let copy = ssh.replacen("ssh", "ssh-copy-id", 1);
            format!("install a key on the node: `{copy}`; then `{ssh} true` must work")
        }
    };
    Err(ConnectionError::new(ConnectStep::Login, ErrorCode::LoginRefused, why, fix))
}

/// Returns whether a server that offers these methods requires a password or a code instead of a key, or after it.
pub(super) fn is_second_factor(methods: &str) -> bool {
    let has = |wanted: &str| methods.split(',').any(|method| method == wanted);
    !has("publickey") && (has("keyboard-interactive") || has("password"))
}

/// Returns the error of a login that needs the user.
pub(super) fn second_factor(methods: &str, login: &Login, ssh: &str) -> ConnectionError {
    let why = format!("it requires a password or a code ({methods}), for which vidtui cannot ask");
    let node = &login.node;
    let fix = format!(
        "add `Host {node}`, `ControlMaster auto`, `ControlPath ~/.ssh/cm-%C` and `ControlPersist 12h` to ~/.ssh/config, then log \
         in once with `{ssh}`: vidtui shares that connection while it is open"
    );
    ConnectionError::new(ConnectStep::Login, ErrorCode::LoginRefused, why, fix)
}

/// A file of `IdentityFile` that exists.
struct KeyFile<'a> {
    file: &'a Utf8PathBuf,
    public: Option<PublicKey>,
    /// Whether it may be a private key. A file with a public key selects a key of the agent.
    is_private: bool,
}

impl<'a> KeyFile<'a> {
    /// Returns `None` if neither the file nor its public key exists.
    fn read(file: &'a Utf8PathBuf) -> Option<Self> {
        let public = PublicKey::of_file(file);
        let is_private = file.is_file() && !PublicKey::is_public_file(file);
        (is_private || public.is_some()).then_some(Self { file, public, is_private })
    }
}

/// Tries the keys of the agent. Returns `None` if the server accepted a key, otherwise the number of keys tried. Keys that
/// belong to key files are tried first, because a server closes the connection after a few failures.
fn by_agent(
    settings: &Settings,
    session: &Session,
    socket: &Utf8PathBuf,
    files: &[KeyFile<'_>],
) -> Result<Option<usize>, String> {
    ping_agent(socket).map_err(|error| format!("no reply: {error}"))?;
    let text = |error: ssh2::Error| error.message().to_owned();
    let mut agent = session.agent().map_err(text)?;
    agent.set_identity_path(socket.as_std_path()).map_err(text)?;
    agent.connect().map_err(text)?;
    agent.list_identities().map_err(text)?;
    let all = agent.identities().map_err(text)?;
    let is_of_file =
        |key: &ssh2::PublicKey| files.iter().any(|file| file.public.as_ref().is_some_and(|p| p.0 == key.blob()));
    let is_offered =
        |key: &ssh2::PublicKey| settings.algorithms.refuse_user_key(&PublicKey(key.blob().to_owned())).is_none();
    let (named, others): (Vec<_>, Vec<_>) = all.into_iter().filter(is_offered).partition(is_of_file);
    let wanted: Vec<_> = named.into_iter().chain(others.into_iter().filter(|_| !settings.only_these_keys)).collect();
    for key in &wanted {
        if agent.userauth(&settings.user, key).is_ok() {
            return Ok(None);
        }
    }
    Ok(Some(wanted.len()))
}

/// Requests the keys of an agent with a timeout. libssh2 has none and would block on an agent that accepts connections and
/// does not reply, such as a forwarded agent whose connection is lost.
fn ping_agent(socket: &Utf8PathBuf) -> io::Result<()> {
    let mut agent = UnixStream::connect(socket)?;
    agent.set_read_timeout(Some(AGENT_TIMEOUT))?;
    agent.set_write_timeout(Some(AGENT_TIMEOUT))?;
    // SSH_AGENTC_REQUEST_IDENTITIES, a message of one byte. Any reply shows that the agent works.
    agent.write_all(&[0, 0, 0, 1, 11])?;
    agent.read_exact(&mut [0; 5])
}

/// A permit of a semaphore, released when it is dropped.
pub(super) struct Permit(&'static Semaphore);

/// A semaphore: the number of free permits, and the condition that signals a release.
pub(super) type Semaphore = (Mutex<usize>, Condvar);

static CONNECTS: Semaphore = (Mutex::new(MAX_PARALLEL), Condvar::new());
/// Limits the programs that read the SSH configuration.
pub(super) static CONFIG_READS: Semaphore = (Mutex::new(MAX_PARALLEL), Condvar::new());

impl Permit {
    pub(super) fn wait(semaphore: &'static Semaphore) -> Self {
        let free = semaphore.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = semaphore.1.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Self(semaphore)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.1.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::algorithms::Algorithms;
    use cluster::NodeId;

    /// Returns the error of a connection to a port on which nothing listens.
    fn error(node: &str, host: &str) -> ConnectionError {
        error_of_family(node, host, AddressFamily::Any)
    }

    fn error_of_family(node: &str, host: &str, addresses: AddressFamily) -> ConnectionError {
        let login = Login { node: NodeId::new(node).unwrap(), user: None, port: None };
        let settings = Settings {
            host: host.into(),
            addresses,
            key_alias: None,
            user: "ada".into(),
            port: 1,
            keys: Vec::new(),
            only_these_keys: false,
            agent: None,
            known_hosts: Vec::new(),
            hashes_names: false,
            unknown_keys: UnknownKeys::Refuse,
            algorithms: Algorithms::default(),
            connect_timeout: Duration::from_secs(5),
            is_direct: true,
            control_path: None,
            overrides: Vec::new(),
            unsupported: None,
        };
        connect_tcp(&settings, &login, "ssh").unwrap_err()
    }

    #[test]
    fn an_error_of_tcp_has_its_code_and_names_the_address_only_if_it_is_not_the_node() {
        let refused = error("gpu01", "127.0.0.1");
        assert_eq!(refused.code, ErrorCode::ConnectionRefused);
        assert!(refused.why.starts_with("127.0.0.1 port 1 refuses"), "{refused}");
        assert!(error("127.0.0.1", "127.0.0.1").why.starts_with("port 1 refuses"));
        let unknown = error("nowhere.invalid", "nowhere.invalid");
        assert_eq!(unknown.code, ErrorCode::NoAddress);
        assert!(unknown.why.starts_with("its name has no address: "), "{unknown}");
        assert!(error("gpu01", "nowhere.invalid").why.starts_with("its HostName nowhere.invalid has no address: "));
    }

    #[test]
    fn only_addresses_of_the_configured_family_are_connected_to() {
        let refused = |family| error_of_family("gpu01", "127.0.0.1", family).code;
        assert_eq!(refused(AddressFamily::Ipv4), ErrorCode::ConnectionRefused);
        assert_eq!(refused(AddressFamily::Ipv6), ErrorCode::NoAddress);
        let error = error_of_family("gpu01", "127.0.0.1", AddressFamily::Ipv6);
        assert!(error.why.contains("AddressFamily inet6"), "{error}");
        assert_eq!(error_of_family("gpu01", "::1", AddressFamily::Ipv4).code, ErrorCode::NoAddress);
    }

    #[test]
    fn a_second_factor_is_recognized_by_the_methods_that_remain() {
        let methods = [
            "keyboard-interactive",
            "password",
            "keyboard-interactive,hostbased",
            "publickey,password",
            "publickey",
            "",
        ];
        assert_eq!(methods.map(is_second_factor), [true, true, true, false, false, false]);
    }

    #[test]
    fn an_ipv6_address_is_connected_to() {
        if std::net::UdpSocket::bind(("::1", 0)).is_err() {
            println!("skipped: this machine has no IPv6");
            return;
        }
        assert_eq!(error("::1", "::1").code, ErrorCode::ConnectionRefused);
        // The zone is the interface; no node has this address on it.
        assert_ne!(error("fe80::1%lo", "fe80::1%lo").code, ErrorCode::NoAddress);
    }
}
