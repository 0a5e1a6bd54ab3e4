//! The same through OpenSSH's own program: for jump hosts, Kerberos, security devices and certificates, which libssh2 has
//! not. One connection per node is shared by all commands (ControlMaster), so that a person is asked once at most.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use rundir::Login;

use super::ConnectionError;
use super::config::SshOptions;
use super::stream::{OnStreamEvent, StreamEvent, watched};
use crate::RemoteError;
use crate::child::{drain, wait};
use crate::command::{Command, Output, Status};

/// How long the program may take to make the connection that is shared.
const CONNECT: Duration = Duration::from_secs(30);
/// How long a node may take to say that it is there.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long that connection stays when nobody uses it.
const PERSIST: &str = "ControlPersist=300";
/// The status by which the program says that the failure is its own, and not the command's.
const SSH_FAILED: i32 = 255;

/// A node, reached by the program.
#[derive(Debug)]
pub struct OpenSsh {
    options: SshOptions,
    login: Login,
    socket: Utf8PathBuf,
    /// Whether the shared connection was made, and is believed to be there.
    shared: Mutex<bool>,
    streams: Mutex<Vec<(u64, Arc<AtomicBool>)>>,
    last_stream: AtomicU64,
}

/// A stream that broke off, or did not come about.
struct StreamFailure {
    was_up: bool,
    error: RemoteError,
}

impl From<RemoteError> for StreamFailure {
    fn from(error: RemoteError) -> Self {
        Self { was_up: false, error }
    }
}

impl OpenSsh {
    pub fn new(options: SshOptions, login: Login) -> std::io::Result<Self> {
        // Sockets' paths are short; the folder is this user's alone, since who can use the socket can use the connection.
        let base = std::env::var("XDG_RUNTIME_DIR").unwrap_or_else(|_| "/tmp".into());
        let folder = Utf8PathBuf::from(format!("{base}/vidtui-ssh-{}", nix::unistd::getuid()));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        use std::os::unix::fs::MetadataExt;
        let found = fs::symlink_metadata(&folder)?;
        if !found.is_dir() || found.uid() != nix::unistd::getuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(std::io::Error::other(format!("{folder} is not a folder of this user alone")));
        }
        let (shared, streams, last_stream) = (Mutex::new(false), Mutex::default(), AtomicU64::new(0));
        // %C is a hash of user, node and port.
        Ok(Self { options, login, socket: folder.join("%C"), shared, streams, last_stream })
    }

    /// Runs a command and waits for its end.
    pub fn run(&self, command: &Command) -> Result<Output, RemoteError> {
        let node = &self.login.node;
        self.share().map_err(|error| RemoteError::Unreachable { node: node.clone(), error })?;
        let cannot = |error| RemoteError::io(node, format!("start {}", self.options.program), error);
        let mut child = self.command(&command.line()).stdin(Stdio::piped()).spawn().map_err(cannot)?;
        let mut stdin = child.stdin.take();
        let input = command.input.clone();
        // In threads of their own: each of the three pipes may be full while another is waited for.
        let feeder = thread::spawn(move || stdin.as_mut().map(|pipe| pipe.write_all(&input)));
        let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
        let status = wait(&mut child, command.deadline).map_err(cannot)?;
        let Some(status) = status else {
            let (node, action) = (node.clone(), command.action.clone());
            return Err(RemoteError::Timeout { node, action, after: command.deadline });
        };
        // A command that does not read its input leaves some of it.
        let _ = feeder.join();
        let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        let status = Status::from(status);
        if status == Status::Code(SSH_FAILED) {
            *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = false;
            let why = String::from_utf8_lossy(&stderr).trim().to_owned();
            return Err(RemoteError::ConnectionLost { node: node.clone(), action: command.action.clone(), why });
        }
        Ok(Output { status, stdout, stderr })
    }

    /// Runs a script that writes lines until the returned number is given to [`Self::end_stream`].
    pub fn stream(self: &Arc<Self>, script: String, silence: Duration, mut on_event: OnStreamEvent) -> u64 {
        let id = self.last_stream.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::new(AtomicBool::new(false));
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push((id, ended.clone()));
        let this = self.clone();
        thread::spawn(move || {
            let mut backoff = crate::backoff::Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
            let mut down = false;
            while !ended.load(Ordering::Relaxed) {
                let Err(failure) = this.stream_once(&script, silence, &mut on_event, &ended) else { return };
                if failure.was_up {
                    down = false;
                    backoff.reset();
                }
                // Said once, not at every attempt.
                if !std::mem::replace(&mut down, true) && on_event(StreamEvent::Disconnected(failure.error)).is_break()
                {
                    return;
                }
                thread::sleep(backoff.next());
            }
        });
        id
    }

    /// Ends a stream and the script behind it.
    pub fn end_stream(&self, id: u64) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().filter(|(known, _)| *known == id).for_each(|(_, ended)| ended.store(true, Ordering::Relaxed));
        streams.retain(|(known, _)| *known != id);
    }

    /// Streams until nothing more is to come.
    fn stream_once(
        &self,
        script: &str,
        silence: Duration,
        on_event: &mut OnStreamEvent,
        ended: &AtomicBool,
    ) -> Result<(), StreamFailure> {
        let node = &self.login.node;
        self.share().map_err(|error| RemoteError::Unreachable { node: node.clone(), error })?;
        let cannot = |error| RemoteError::io(node, format!("start {}", self.options.program), error);
        // Its input stays open for as long as the stream is wanted.
        let mut child = self.command(&watched(script)).stdin(Stdio::piped()).spawn().map_err(cannot)?;
        let lines = lines(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let (mut last_received, mut up) = (Instant::now(), false);
        let over = loop {
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    last_received = Instant::now();
                    if !std::mem::replace(&mut up, true) && on_event(StreamEvent::Connected).is_break() {
                        break None;
                    }
                    if on_event(StreamEvent::Line(line)).is_break() {
                        break None;
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    break Some(wait(&mut child, silence).map_err(cannot)?);
                }
                Err(_) if ended.load(Ordering::Relaxed) => break None,
                // The script may hang by itself: another command tells whether the node is there.
                Err(_) if last_received.elapsed() > silence => {
                    match self.run(&Command::new("answer", ":", HEARTBEAT_TIMEOUT)) {
                        Ok(_) => last_received = Instant::now(),
                        Err(_) => break Some(None),
                    }
                }
                Err(_) => {}
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        let lost = |why: String| {
            *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = false;
            let error = RemoteError::ConnectionLost { node: node.clone(), action: "watch it".into(), why };
            Err(StreamFailure { was_up: up, error })
        };
        match over {
            None => Ok(()),
            Some(None) => lost(format!("the node message nothing for {} s", silence.as_secs())),
            Some(Some(status)) if status.code() == Some(SSH_FAILED) => {
                lost(String::from_utf8_lossy(&stderr.join().unwrap_or_default()).trim().to_owned())
            }
            Some(Some(status)) => {
                let _ = on_event(StreamEvent::Ended(Output {
                    status: status.into(),
                    stdout: Vec::new(),
                    stderr: stderr.join().unwrap_or_default(),
                }));
                Ok(())
            }
        }
    }

    /// Makes the connection that all commands share, unless it is there.
    fn share(&self) -> Result<(), ConnectionError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if *shared {
            return Ok(());
        }
        let log = self.new_log();
        let mut command = self.options.command(&self.login);
        command.args(self.base_options()).args([
            "-o",
            "ControlMaster=auto",
            "-o",
            PERSIST,
            "-f",
            "-N",
            "-E",
            log.as_str(),
        ]);
        // What stays in the background must hold none of our pipes.
        command.args(["--", self.login.node.as_str()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let refused = |why: String| explain(&why, &self.options.typed(&self.login));
        let ended = command.spawn().and_then(|mut child| wait(&mut child, CONNECT));
        let message = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        match ended {
            Ok(Some(status)) if status.success() => {
                *shared = true;
                Ok(())
            }
            Ok(Some(_)) => Err(refused(message.trim().to_owned())),
            Ok(None) => Err(refused(format!("Connection timed out after {} s", CONNECT.as_secs()))),
            Err(error) => Err(refused(format!("{} cannot be started: {error}", self.options.program))),
        }
    }

    fn command(&self, line: &str) -> process::Command {
        let mut command = self.options.command(&self.login);
        command.args(self.base_options()).args(["-o", "ControlMaster=no", "--", self.login.node.as_str(), line]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A new name beside the socket, where nobody else can have put a link.
    fn new_log(&self) -> Utf8PathBuf {
        static UNIQUE: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}.log", process::id(), UNIQUE.fetch_add(1, Ordering::Relaxed));
        self.socket.with_file_name(name)
    }

    fn base_options(&self) -> Vec<String> {
        let socket = format!("ControlPath={}", self.socket);
        let alive = ["ServerAliveInterval=5", "ServerAliveCountMax=3", "BatchMode=yes", "LogLevel=ERROR"];
        alive.into_iter().chain([socket.as_str()]).flat_map(|option| ["-o".to_owned(), option.to_owned()]).collect()
    }
}

impl Drop for OpenSsh {
    fn drop(&mut self) {
        if *self.shared.lock().unwrap_or_else(PoisonError::into_inner) {
            let mut command = self.options.command(&self.login);
            command.args(self.base_options()).args(["-O", "exit", "--", self.login.node.as_str()]);
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // It would end by itself after a while.
            let _ = quiet.spawn().and_then(|mut child| wait(&mut child, Duration::from_secs(2)));
        }
    }
}

/// Sorts what the program says by the step at which it failed.
fn explain(message: &str, typed: &str) -> ConnectionError {
    const STEPS: [(&str, &str, &str); 9] = [
        (
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "host key",
            "if the node was set up anew, forget its old key (the lines above say how)",
        ),
        ("host key is known", "host key", "compare the key with the node's own, then accept it"),
        ("Host key verification failed", "host key", "compare the key with the node's own, then accept it"),
        ("Permission denied", "login", "install a key on the node (`ssh-copy-id`), or get a ticket (`kinit`)"),
        ("banner exchange", "handshake", "the node hangs or is overloaded: look at its own console"),
        ("Connection refused", "connecting", "start sshd on the node, or correct the port"),
        ("No route to host", "connecting", "see whether the node and its network are up"),
        ("timed out", "connecting", "see whether the node and its network are up"),
        ("Could not resolve", "connecting", "check the name"),
    ];
    let found = STEPS.iter().find(|(words, ..)| message.contains(words));
    let (step, fix) = found.map_or(("connecting", "see what it says"), |(_, step, fix)| (*step, *fix));
    ConnectionError::new(step, message, format!("{fix}; try `{typed}`"))
}

/// Whole lines as they arrive; the channel closes at the end.
fn lines<R: Read + Send + 'static>(pipe: Option<R>) -> std::sync::mpsc::Receiver<String> {
    let (send, lines) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut reader = std::io::BufReader::new(pipe?);
        let mut line = Vec::new();
        while std::io::BufRead::read_until(&mut reader, b'\n', &mut line).is_ok_and(|read| read > 0)
            && line.ends_with(b"\n")
        {
            let text = String::from_utf8_lossy(&line[..line.len() - 1]).into_owned();
            send.send(text).ok()?;
            line.clear();
        }
        Some(())
    });
    lines
}
