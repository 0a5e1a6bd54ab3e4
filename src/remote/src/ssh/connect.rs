//! From a name to a session that takes commands: connect, compare the host key, log in. Each step fails in its own words.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use camino::Utf8PathBuf;
use nix::errno::Errno;
use rundir::Login;
use ssh2::{ErrorCode, MethodType, Session};

use super::ConnectionError;
use super::config::{Settings, SshOptions, UnknownKeys};
use super::known_hosts::{self, KeyStatus};
use crate::backoff::Backoff;
use crate::error::DIALLING;

/// How many nodes are connected to at once: more would only wait for this machine's processor.
const AT_ONCE: usize = 32;
/// How often a handshake is begun again when the server hangs up: one that has many logins under way semaphore away some at
/// random (MaxStartups).
const HANDSHAKES: u32 = 5;
/// How long a server may take for an answer within the handshake and the login.
const ANSWER: Duration = Duration::from_secs(15);

/// How long an agent may take to list its keys.
const AGENT: Duration = Duration::from_secs(5);

/// libssh2's numbers for errors (libssh2.h).
const TIMEOUT: i32 = -9;
const NO_COMMON_ALGORITHM: [i32; 3] = [-5, -8, -17];
const HUNG_UP: [i32; 4] = [-2, -7, -13, -43];

/// A session, and the socket that it reads from: shutting that down wakes whoever waits for an answer.
pub struct Connected {
    pub session: Session,
    pub socket: TcpStream,
}

/// Connects and logs in. Blocks for as long as the steps may take.
pub fn connect(settings: &Settings, login: &Login, options: &SshOptions) -> Result<Connected, ConnectionError> {
    let _permit = Permit::wait(&CONNECTS);
    let typed = options.typed(login);
    let kinds = settings.known_keys();
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut left = HANDSHAKES;
    let (session, socket) = loop {
        left -= 1;
        let socket = dial(settings, &typed)?;
        match shake_hands(settings, &socket, &kinds.kinds()) {
            Ok(session) => break (session, socket),
            Err(error) if left > 0 && HUNG_UP.contains(&number(&error)) => thread::sleep(backoff.next()),
            Err(error) => return Err(no_handshake(settings, &error, &typed)),
        }
    };
    check_key(settings, &session, &kinds, &typed)?;
    log_in(settings, &session, &typed)?;
    Ok(Connected { session, socket })
}

fn number(error: &ssh2::Error) -> i32 {
    match error.code() {
        ErrorCode::Session(number) | ErrorCode::SFTP(number) => number,
    }
}

fn dial(settings: &Settings, typed: &str) -> Result<TcpStream, ConnectionError> {
    let (host, port) = (settings.host.as_str(), settings.port);
    let refused = |why: String, fix: String| ConnectionError::new(DIALLING, why, fix);
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        refused(format!("{host} has no address: {error}"), format!("check the name; try `{typed}`"))
    })?;
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, settings.connect_timeout) {
            Ok(socket) => {
                // Commands and answers are small; waiting to fill a packet would only delay them.
                let _ = socket.set_nodelay(true);
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    let at = if port == 22 { host.to_owned() } else { format!("{host} port {port}") };
    Err(match (last.kind(), last.raw_os_error().map(Errno::from_raw)) {
        (ErrorKind::ConnectionRefused, _) => refused(
            format!("{at} refuses the connection: the node is on, but no SSH server listens there"),
            "start sshd on the node, or correct the port".into(),
        ),
        (ErrorKind::TimedOut, _) => refused(
            format!("{at} did not answer within {} s", settings.connect_timeout.as_secs()),
            format!("see whether the node and its network are up: ping {host}"),
        ),
        (_, Some(Errno::EHOSTUNREACH | Errno::ENETUNREACH)) => refused(
            format!("there is no route to {at}: the node is off, or its network is"),
            format!("see whether the node and its network are up: ping {host}"),
        ),
        _ => refused(format!("{at}: {last}"), format!("try `{typed}`")),
    })
}

fn shake_hands(settings: &Settings, socket: &TcpStream, kinds: &[&str]) -> Result<Session, ssh2::Error> {
    let mut session = Session::new()?;
    session.set_timeout(millis(settings.connect_timeout));
    // Asked for a key of another type than the one that is known, the node would show one that nobody knows.
    let wanted: Vec<&str> = kinds.iter().flat_map(|kind| signatures_of(kind)).collect();
    let able = session.supported_algs(MethodType::HostKey)?;
    let wanted: Vec<&str> = wanted.into_iter().filter(|name| able.contains(name)).collect();
    if !wanted.is_empty() {
        session.method_pref(MethodType::HostKey, &wanted.join(","))?;
    }
    session.set_tcp_stream(socket.try_clone().map_err(|_| ssh2::Error::from_errno(ErrorCode::Session(-7)))?);
    session.handshake()?;
    session.set_timeout(millis(ANSWER));
    Ok(session)
}

/// The algorithms by which a key of a type proves itself.
fn signatures_of(kind: &str) -> Vec<&str> {
    if kind == "ssh-rsa" { vec!["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"] } else { vec![kind] }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn no_handshake(settings: &Settings, error: &ssh2::Error, typed: &str) -> ConnectionError {
    let (host, number) = (&settings.host, number(error));
    if number == TIMEOUT {
        let why =
            format!("{host} takes connections, but its SSH server does not answer: the node hangs or is overloaded");
        return ConnectionError::new(
            "handshake",
            why,
            "look at the node's own console; if it never answers, restart it",
        );
    }
    if HUNG_UP.contains(&number) {
        let why = format!("the SSH server on {host} hung up {HANDSHAKES} times: {}", error.message());
        let fix = format!("it may refuse this machine or have too many logins under way (MaxStartups); try `{typed}`");
        return ConnectionError::new("handshake", why, fix);
    }
    let fix = format!("try `{typed}`; if that works, have OpenSSH make the connections: set VIDTUI_SSH=ssh");
    if NO_COMMON_ALGORITHM.contains(&number) {
        let why = format!("{host} and this program have no algorithm in common: {}", error.message());
        return ConnectionError::new("handshake", why, fix);
    }
    ConnectionError::new("handshake", error.message(), fix)
}

fn check_key(
    settings: &Settings,
    session: &Session,
    known: &known_hosts::KnownKeys,
    typed: &str,
) -> Result<(), ConnectionError> {
    let (name, port) = (&settings.key_name, settings.key_port);
    let refused = |why: String, fix: String| ConnectionError::new("host key", why, fix);
    let Some((blob, _)) = session.host_key() else {
        return Err(refused("the node showed no key".into(), format!("try `{typed}`")));
    };
    let kind = kind_of(blob);
    let short = kind.trim_start_matches("ssh-").trim_start_matches("ecdsa-sha2-").to_owned();
    let shown = format!("{name} shows {short} key {}", known_hosts::fingerprint(blob));
    let file = if kind.starts_with("ecdsa") { "ecdsa" } else { &short };
    match known.status(blob) {
        KeyStatus::Known => Ok(()),
        // Trusting any key does not mean one that is known to be stolen.
        KeyStatus::Revoked { file: list, line } => Err(refused(
            format!("{shown}, which {list} line {line} declares void"),
            "do not connect; ask whoever runs the node".into(),
        )),
        _ if settings.unknown_keys == UnknownKeys::Trust => Ok(()),
        KeyStatus::Unknown if settings.unknown_keys == UnknownKeys::Add => {
            note(settings, &known_hosts::line(name, port, &kind, blob))
        }
        KeyStatus::Unknown => Err(refused(
            format!("{shown}, and no known_hosts file has a key of it"),
            format!(
                "compare it with `ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub` on the node, then accept it: `{typed} true`"
            ),
        )),
        KeyStatus::Changed { file: list, line } => {
            let name = if port == 22 { name.clone() } else { format!("[{name}]:{port}") };
            let forget = plan::command_line(&["ssh-keygen", "-R", &name, "-f", list.as_str()]);
            Err(refused(
                format!(
                    "{shown}, which is not the one in {list} line {line}: the node was set up anew, or somebody is between"
                ),
                format!(
                    "if it was set up anew, compare the key with `ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub` there, \
                     forget the old one (`{forget}`) and accept the new one (`{typed} true`)"
                ),
            ))
        }
    }
}

/// The type of a key: the first of its parts, each of which has its length before it.
fn kind_of(blob: &[u8]) -> String {
    let length = blob.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize);
    let kind = blob.get(4..).and_then(|rest| rest.get(..length)).unwrap_or_default();
    String::from_utf8_lossy(kind).into_owned()
}

fn note(settings: &Settings, line: &str) -> Result<(), ConnectionError> {
    let Some(file) = settings.known_hosts.first() else { return Ok(()) };
    let written = OpenOptions::new().read(true).append(true).create(true).open(file).and_then(|mut open| {
        let mut last = [b'\n'];
        if open.seek(SeekFrom::End(-1)).is_ok() {
            open.read_exact(&mut last)?;
        }
        // Onto the end of a line that somebody left open, both would be lost.
        let open_line = if last == *b"\n" { "" } else { "\n" };
        open.write_all(format!("{open_line}{line}").as_bytes())
    });
    written.map_err(|error| {
        ConnectionError::new(
            "host key",
            format!("it cannot be noted in {file}: {error}"),
            "check the file's permissions",
        )
    })
}

/// Tries the agent's keys, then the key files. Says what was tried when none is accepted.
fn log_in(settings: &Settings, session: &Session, typed: &str) -> Result<(), ConnectionError> {
    let mut tried = Vec::new();
    let public = |key: &Utf8PathBuf| {
        let text = std::fs::read_to_string(format!("{key}.pub")).ok()?;
        STANDARD.decode(text.split_whitespace().nth(1)?).ok()
    };
    if let Some(socket) = &settings.agent {
        let of_files: Vec<Vec<u8>> = settings.keys.iter().filter_map(public).collect();
        match by_agent(settings, session, socket, &of_files) {
            Ok(None) => return Ok(()),
            Ok(Some(0)) => tried.push("the agent, which has no key for it".to_owned()),
            Ok(Some(1)) => tried.push("the agent's key".to_owned()),
            Ok(Some(keys)) => tried.push(format!("the agent's {keys} keys")),
            Err(why) => tried.push(format!("the agent at {socket} ({why})")),
        }
    }
    let mut locked = None;
    for key in settings.keys.iter().filter(|key| key.is_file()) {
        match session.userauth_pubkey_file(&settings.user, None, key.as_std_path(), None) {
            Ok(()) => return Ok(()),
            Err(error) if number(&error) == -16 => {
                locked = Some(key);
                tried.push(format!("{key} (it has a passphrase, or cannot be read)"));
            }
            Err(error) if [-18, -19].contains(&number(&error)) => tried.push(key.to_string()),
            Err(error) => tried.push(format!("{key} ({})", error.message())),
        }
    }
    let user = &settings.user;
    let why = match &tried[..] {
        [] => format!("there is no key to log in as {user} with: no agent, no key file"),
        tried => format!("{} does not let {user} in; tried {}", settings.host, tried.join(", ")),
    };
    let fix = match (locked, &tried[..]) {
        (Some(key), _) => format!("unlock it once for this session: `ssh-add {key}`"),
        (None, []) => "make a key (`ssh-keygen`) and install it on the node (`ssh-copy-id`)".to_owned(),
        (None, _) => {
            format!("install a key there: `{}`; `{typed} true` must work", typed.replacen("ssh", "ssh-copy-id", 1))
        }
    };
    Err(ConnectionError::new("login", why, fix))
}

/// Returns nothing if one of the agent's keys was accepted, else how many were tried. Those that belong to key files come
/// first, since a server hangs up after a few.
fn by_agent(
    settings: &Settings,
    session: &Session,
    socket: &Utf8PathBuf,
    of_files: &[Vec<u8>],
) -> Result<Option<usize>, String> {
    ask_agent(socket).map_err(|error| format!("it does not answer: {error}"))?;
    let text = |error: ssh2::Error| error.message().to_owned();
    let mut agent = session.agent().map_err(text)?;
    agent.set_identity_path(socket.as_std_path()).map_err(text)?;
    agent.connect().map_err(text)?;
    agent.list_identities().map_err(text)?;
    let all = agent.identities().map_err(text)?;
    let (named, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|key| of_files.iter().any(|b| b == key.blob()));
    let wanted: Vec<_> = named.into_iter().chain(others.into_iter().filter(|_| !settings.only_these_keys)).collect();
    for key in &wanted {
        if agent.userauth(&settings.user, key).is_ok() {
            return Ok(None);
        }
    }
    Ok(Some(wanted.len()))
}

/// Asks an agent for its keys. libssh2 waits without end for one that takes calls and answers none, as a forwarded one does whose
/// other end is gone.
fn ask_agent(socket: &Utf8PathBuf) -> io::Result<()> {
    let mut agent = UnixStream::connect(socket)?;
    agent.set_read_timeout(Some(AGENT))?;
    agent.set_write_timeout(Some(AGENT))?;
    // SSH_AGENTC_REQUEST_IDENTITIES, a message of one byte; any answer is one.
    agent.write_all(&[0, 0, 0, 1, 11])?;
    agent.read_exact(&mut [0; 5])
}

/// The right to do something of which only so much may go on at once.
pub(super) struct Permit(&'static Semaphore);

/// How many rights are left, and a bell for those who wait.
pub(super) type Semaphore = (Mutex<usize>, Condvar);

static CONNECTS: Semaphore = (Mutex::new(AT_ONCE), Condvar::new());
/// Programs that read the SSH configuration.
pub(super) static CONFIG_READS: Semaphore = (Mutex::new(AT_ONCE), Condvar::new());

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
