//! Connects through OpenSSH's program, for jump hosts, Kerberos, security devices, certificates and other options that libssh2
//! does not support. All commands share one connection per node (ControlMaster): the user's, if the configuration names one that
//! is open, or else one of this client.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use rundir::{ErrorCode, Login};

use super::config::{Settings, SshOptions};
use super::connect::{is_second_factor, second_factor};
use super::socket_folder::SocketFolder;
use super::stream::{ACTION, LONGEST_LINE, LineOf, OnStreamEvent, StreamEvent, StreamOutput, endless_line};
use crate::RemoteError;
use crate::child::{self, drain, wait};
use crate::command::{Command, Output, Status, login_line, printed};
use crate::error::{ConnectStep, ConnectionError};
use crate::frame::Frame;
use crate::threads;

/// The timeout of making the shared connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which the shared connection stays open without use.
const PERSIST: &str = "ControlPersist=300";
/// The number of parallel commands on a shared connection. By default, servers allow ten sessions (MaxSessions); streams and the
/// user need some. `ssh` would open another connection for more.
const SESSIONS: usize = 6;
/// The exit status of `ssh` for its own errors. Otherwise it exits with the status of the command.
const SSH_FAILED: i32 = 255;

/// A connection through OpenSSH's program.
#[derive(Debug)]
pub struct OpenSsh {
    options: SshOptions,
    login: Login,
    /// The socket of this client's connection.
    socket: Utf8PathBuf,
    /// The folder of the socket, dropped after the connection is closed.
    _folder: SocketFolder,
    state: Mutex<State>,
    /// The number of free sessions.
    sessions: (Mutex<usize>, Condvar),
    streams: Mutex<Vec<(u64, Arc<AtomicBool>)>>,
    last_stream: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// The settings; `None` if they must be read again.
    settings: Option<Settings>,
    /// Whether the connection of this client was made and no command has failed on it since.
    is_connected: bool,
}

/// A session of a command, freed when it is dropped.
struct Session<'a>(&'a OpenSsh);

impl Drop for Session<'_> {
    fn drop(&mut self) {
        *self.0.sessions.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.sessions.1.notify_one();
    }
}

/// Why a stream broke or could not be opened.
struct StreamFailure {
    was_connected: bool,
    error: RemoteError,
}

impl From<RemoteError> for StreamFailure {
    fn from(error: RemoteError) -> Self {
        Self { was_connected: false, error }
    }
}

impl OpenSsh {
    pub fn new(options: SshOptions, login: Login, settings: Settings) -> std::io::Result<Self> {
        let state = Mutex::new(State { settings: Some(settings), is_connected: false });
        let sessions = (Mutex::new(SESSIONS), Condvar::new());
        // Each client closes its connection at its end, perhaps while another client of the same node connects. %C is a hash of
        // user, node and port.
        static UNIQUE: AtomicU64 = AtomicU64::new(0);
        let name = format!("{:x}-{:x}-%C", process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        let folder = SocketFolder::make(&name)?;
        let socket = folder.path.join(name);
        let (streams, last_stream) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { options, login, socket, _folder: folder, state, sessions, streams, last_stream })
    }

    /// Runs a command and waits for its exit.
    pub fn run(&self, command: &Command) -> Result<Output, RemoteError> {
        let node = &self.login.node;
        let timed_out = |printed: String| {
            let (node, action) = (node.clone(), command.action.clone());
            RemoteError::Timeout { node, action, after: command.deadline, printed }
        };
        let route = self.route().map_err(|error| RemoteError::Unreachable { node: node.clone(), error })?;
        let requested = Instant::now();
        let _session = self.session(command.deadline).ok_or_else(|| timed_out(String::new()))?;
        let left = command.deadline.saturating_sub(requested.elapsed());
        let cannot = |error| RemoteError::io(node, format!("start {}", self.options.program), error);
        let frame = Frame::new();
        let mut program = self.command(&route, &login_line(&frame.script(&command.script)));
        let output = match child::run(&mut program, &command.input, left).map_err(cannot)? {
            Ok(output) => output,
            Err(killed) => return Err(timed_out(frame.without_marks(&printed(&killed.stdout, &killed.stderr)))),
        };
        if output.status == Status::Code(SSH_FAILED) && !frame.is_complete(&output) {
            self.forget();
            let why = frame.without_marks(&printed(&output.stdout, &output.stderr));
            return Err(RemoteError::ConnectionLost { node: node.clone(), action: command.action.clone(), why });
        }
        frame.answer(node, command, output)
    }

    /// Waits for a free session.
    fn session(&self, limit: Duration) -> Option<Session<'_>> {
        let free = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.sessions.1.wait_timeout_while(free, limit, |free| *free == 0);
        let mut free = waited.map(|(free, _)| free).unwrap_or_else(|poisoned| poisoned.into_inner().0);
        *free = free.checked_sub(1)?;
        Some(Session(self))
    }

    /// Makes the next command connect and read the configuration again.
    fn forget(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State { settings: None, is_connected: false };
    }

    /// Runs a script that writes lines until the returned id is passed to [`Self::end_stream`].
    pub fn stream(self: &Arc<Self>, script: String, output_timeout: Duration, mut on_event: OnStreamEvent) -> u64 {
        let id = self.last_stream.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::new(AtomicBool::new(false));
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push((id, ended.clone()));
        let this = self.clone();
        threads::spawn(move || {
            let mut backoff = crate::backoff::Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
            let mut is_reported = false;
            while !ended.load(Ordering::Relaxed) {
                let Err(failure) = this.stream_once(&script, output_timeout, &mut on_event, &ended) else { return };
                if failure.was_connected {
                    is_reported = false;
                    backoff.reset();
                }
                // The error is reported once and not at every retry.
                if !std::mem::replace(&mut is_reported, true)
                    && on_event(StreamEvent::Disconnected(failure.error)).is_break()
                {
                    return;
                }
                thread::sleep(backoff.next());
            }
        });
        id
    }

    /// Ends a stream and its script.
    pub fn end_stream(&self, id: u64) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().filter(|(known, _)| *known == id).for_each(|(_, ended)| ended.store(true, Ordering::Relaxed));
        streams.retain(|(known, _)| *known != id);
    }

    /// Streams until the script exits, the reader stops the stream or the connection is lost.
    fn stream_once(
        &self,
        script: &str,
        output_timeout: Duration,
        on_event: &mut OnStreamEvent,
        ended: &AtomicBool,
    ) -> Result<(), StreamFailure> {
        let node = &self.login.node;
        let route = self.route().map_err(|error| RemoteError::Unreachable { node: node.clone(), error })?;
        let cannot = |error| RemoteError::io(node, format!("start {}", self.options.program), error);
        // The standard input of the script stays open until the stream ends.
        let mut output = StreamOutput::new();
        let mut child = self.command(&route, &output.line(script)).stdin(Stdio::piped()).spawn().map_err(cannot)?;
        let pieces = pieces(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let (mut last_received, mut is_connected, mut rest) = (Instant::now(), false, Vec::new());
        let end = loop {
            match pieces.recv_timeout(Duration::from_millis(100)) {
                Ok(Piece::Line(line)) => {
                    last_received = Instant::now();
                    let event = match output.read(&line) {
                        LineOf::Shell => continue,
                        LineOf::Mark => StreamEvent::Connected,
                        LineOf::Script => StreamEvent::Line(line),
                    };
                    is_connected = true;
                    if on_event(event).is_break() {
                        break None;
                    }
                }
                Ok(Piece::Rest(bytes)) if bytes.len() > LONGEST_LINE => {
                    let _ = on_event(endless_line(node, &bytes));
                    break None;
                }
                Ok(Piece::Rest(bytes)) => rest = bytes,
                Err(RecvTimeoutError::Disconnected) => match wait(&mut child, output_timeout) {
                    Ok(status) => break Some(status),
                    Err(error) => {
                        let _ = child.kill();
                        let _ = child.wait();
                        return Err(cannot(error).into());
                    }
                },
                Err(_) if ended.load(Ordering::Relaxed) => break None,
                // The script may hang while the connection works, so another command tests the connection.
                Err(_) if last_received.elapsed() > output_timeout => {
                    match self.run(&Command::new("run a command", ":", HEARTBEAT_TIMEOUT)) {
                        Ok(_) => last_received = Instant::now(),
                        Err(_) => break Some(None),
                    }
                }
                Err(_) => {}
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        let lost = |error: RemoteError| {
            self.forget();
            Err(StreamFailure { was_connected: is_connected, error })
        };
        let action = ACTION.to_owned();
        match end {
            None => Ok(()),
            Some(None) => {
                lost(RemoteError::Timeout { node: node.clone(), action, after: output_timeout, printed: String::new() })
            }
            Some(Some(status)) if status.code() == Some(SSH_FAILED) => {
                let why = String::from_utf8_lossy(&stderr.recv().unwrap_or_default()).trim().to_owned();
                lost(RemoteError::ConnectionLost { node: node.clone(), action, why })
            }
            Some(Some(status)) => {
                let _ = on_event(output.exit(node, status.into(), &rest, stderr.recv().unwrap_or_default()));
                Ok(())
            }
        }
    }

    /// Returns the options for the next command. They select the user's connection if it is open, or else that of this client,
    /// which is made unless it exists.
    fn route(&self) -> Result<Vec<String>, ConnectionError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { settings, is_connected } = &mut *state;
        let settings = match settings {
            Some(known) => known,
            none => none.insert(Settings::read(&self.options, &self.login)?),
        };
        let mut options = settings.overrides.clone();
        options.extend(["-o".into(), "ControlMaster=no".into()]);
        // The user's configuration names its socket.
        if settings.has_shared_connection() {
            return Ok(options);
        }
        options.extend(self.own_socket());
        if !*is_connected {
            self.connect(settings)?;
            *is_connected = true;
        }
        Ok(options)
    }

    /// Makes the connection of this client, which its commands share.
    fn connect(&self, settings: &Settings) -> Result<(), ConnectionError> {
        let log = self.new_log();
        let mut command = self.options.command(&self.login);
        // `-f` and `-N` come first: they have precedence over the options that replace the user's.
        command.args(["-f", "-N", "-E", log.as_str()]).args(&settings.overrides).args(self.own_socket());
        command.args(["-o", "ControlMaster=auto", "-o", PERSIST]);
        // The process that stays in the background must not inherit the pipes of this program.
        command.args(["--", self.login.node.as_str()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |why: String| parse_error(&why, &self.login, &self.options.command_line(&self.login));
        let ended = command.spawn().and_then(|mut child| wait(&mut child, CONNECT_TIMEOUT));
        let message = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        match ended {
            Ok(Some(status)) if status.success() => Ok(()),
            // `ssh` reports some ends of a connection only with a higher LogLevel.
            Ok(Some(status)) if message.trim().is_empty() => {
                Err(failed(format!("{} ended without a message ({status})", self.options.program)))
            }
            Ok(Some(_)) => Err(failed(message.trim().to_owned())),
            Ok(None) => Err(failed(format!("Connection timed out after {} s", CONNECT_TIMEOUT.as_secs()))),
            Err(error) => Err(failed(format!("{} cannot be started: {error}", self.options.program))),
        }
    }

    fn command(&self, route: &[String], line: &str) -> process::Command {
        let mut command = self.options.command(&self.login);
        command.args(route).args(["--", self.login.node.as_str(), line]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn own_socket(&self) -> [String; 2] {
        ["-o".into(), format!("ControlPath={}", self.socket)]
    }

    /// Returns a new file name beside the socket. Other users cannot create a link there.
    fn new_log(&self) -> Utf8PathBuf {
        static UNIQUE: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}.log", process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        self.socket.with_file_name(name)
    }
}

impl Drop for OpenSsh {
    fn drop(&mut self) {
        if self.state.lock().unwrap_or_else(PoisonError::into_inner).is_connected {
            let mut command = self.options.command(&self.login);
            command.args(self.own_socket()).args(["-O", "exit", "--", self.login.node.as_str()]);
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // Without this, the connection would stay open for the time of `PERSIST`.
            let _ = quiet.spawn().and_then(|mut child| wait(&mut child, Duration::from_secs(2)));
        }
    }
}

/// Finds the step that failed in the messages of `ssh`.
fn parse_error(message: &str, login: &Login, ssh: &str) -> ConnectionError {
    use ConnectStep::{Connect, Handshake, HostKey, Login};
    const CHECK_NETWORK: &str = "check that the node and its network are up";
    const COMPARE_KEY: &str = "compare the key with that of the node, then accept it";
    const REMOVE_KEY: &str = "if the node was reinstalled, remove its old key and accept the new one";
    const LOG_IN: &str = "install a key on the node (`ssh-copy-id`), or get a ticket (`kinit`)";
    const STEPS: [(&str, ConnectStep, ErrorCode, &str); 10] = [
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", HostKey, ErrorCode::HostKeyChanged, REMOVE_KEY),
        (
            "REVOKED HOST KEY",
            HostKey,
            ErrorCode::HostKey,
            "do not connect; report this to the administrator of the node",
        ),
        ("host key is known", HostKey, ErrorCode::HostKeyUnknown, COMPARE_KEY),
        ("Host key verification failed", HostKey, ErrorCode::HostKeyUnknown, COMPARE_KEY),
        ("Permission denied", Login, ErrorCode::LoginRefused, LOG_IN),
        ("banner exchange", Handshake, ErrorCode::NoAnswer, "the node hangs or is overloaded: log in at its console"),
        ("Connection refused", Connect, ErrorCode::ConnectionRefused, "start sshd on the node, or correct the port"),
        ("No route to host", Connect, ErrorCode::NodeUnreachable, CHECK_NETWORK),
        ("timed out", Connect, ErrorCode::NoAnswer, CHECK_NETWORK),
        ("Could not resolve", Connect, ErrorCode::NoAddress, "check the name"),
    ];
    let methods = message.rsplit_once("Permission denied (").and_then(|(_, rest)| rest.split_once(')'));
    if let Some((methods, _)) = methods.filter(|(methods, _)| is_second_factor(methods)) {
        return second_factor(methods, login, ssh);
    }
    let found = STEPS.iter().find(|(part, ..)| message.contains(part));
    let unknown = (Connect, ErrorCode::NodeUnreachable, "fix what the message reports");
    let (step, code, fix) = found.map_or(unknown, |(_, step, code, fix)| (*step, *code, *fix));
    // The warning about a changed key has a dozen lines, of which one names the known key: `ED25519 key in FILE:LINE`.
    let known = message.lines().find_map(|line| line.trim().strip_prefix("Offending "));
    let why = match known.filter(|_| code == ErrorCode::HostKeyChanged) {
        Some(known) => {
            format!("its key differs from the {known}: the node was reinstalled, or the connection is intercepted")
        }
        None => message.to_owned(),
    };
    ConnectionError::new(step, code, why, format!("{fix}; try `{ssh}`"))
}

/// A part of the output of a stream.
enum Piece {
    /// A complete line, without its end.
    Line(String),
    /// The incomplete last line, or the begin of a line that is longer than [`LONGEST_LINE`].
    Rest(Vec<u8>),
}

/// The lines that wait until they are read. A program that prints faster waits too.
const WAITING_LINES: usize = 64;

/// Reads lines as they arrive. The channel closes at the end of the pipe or after a line that is too long.
fn pieces<R: Read + Send + 'static>(pipe: Option<R>) -> Receiver<Piece> {
    let (send, pieces) = mpsc::sync_channel(WAITING_LINES);
    threads::spawn(move || {
        let Some(pipe) = pipe else { return };
        let mut reader = BufReader::new(pipe);
        loop {
            let mut line = Vec::new();
            let read = reader.by_ref().take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line);
            let is_complete = read.is_ok() && line.pop_if(|byte| *byte == b'\n').is_some();
            let piece =
                if is_complete { Piece::Line(String::from_utf8_lossy(&line).into_owned()) } else { Piece::Rest(line) };
            if send.send(piece).is_err() || !is_complete {
                return;
            }
        }
    });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login() -> Login {
        Login { node: cluster::NodeId::from_hostname("gpu01"), user: None, port: None }
    }

    #[test]
    fn a_server_that_requires_a_second_factor_is_recognized() {
        let error = parse_error("ada@gpu01: Permission denied (keyboard-interactive).", &login(), "ssh gpu01");
        assert_eq!((error.step, error.code), (ConnectStep::Login, ErrorCode::LoginRefused));
        assert!(error.why.contains("keyboard-interactive") && error.fix.contains("ControlMaster"), "{error:?}");
    }

    #[test]
    fn every_message_of_ssh_has_its_step_and_its_code() {
        let changed = "@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n@@@@@@@@@\r\n\
            Offending ED25519 key in /root/.ssh/known_hosts:3\r\nHost key verification failed.";
        let cases = [
            (changed, ConnectStep::HostKey, ErrorCode::HostKeyChanged),
            (
                "No ED25519 host key is known for gpu01 and you have requested strict checking.\nHost key verification failed.",
                ConnectStep::HostKey,
                ErrorCode::HostKeyUnknown,
            ),
            ("me@gpu01: Permission denied (publickey).", ConnectStep::Login, ErrorCode::LoginRefused),
            (
                "Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out",
                ConnectStep::Handshake,
                ErrorCode::NoAnswer,
            ),
            (
                "ssh: connect to host ::1 port 22: Connection refused",
                ConnectStep::Connect,
                ErrorCode::ConnectionRefused,
            ),
            ("ssh: connect to host gpu01 port 22: No route to host", ConnectStep::Connect, ErrorCode::NodeUnreachable),
            ("ssh: connect to host gpu01 port 22: Connection timed out", ConnectStep::Connect, ErrorCode::NoAnswer),
            (
                "ssh: Could not resolve hostname gpu01: Name or service not known",
                ConnectStep::Connect,
                ErrorCode::NoAddress,
            ),
            ("ssh cannot be started: No such file", ConnectStep::Connect, ErrorCode::NodeUnreachable),
        ];
        for (message, step, code) in cases {
            let error = parse_error(message, &login(), "ssh gpu01");
            assert_eq!((error.step, error.code), (step, code), "{message}");
            assert!(!error.why.contains('\n'), "{error}");
        }
        assert!(parse_error(changed, &login(), "ssh gpu01").why.contains("ED25519 key in /root/.ssh/known_hosts:3"));
    }
}
