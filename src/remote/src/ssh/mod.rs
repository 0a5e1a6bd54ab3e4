//! Nodes reached by SSH.

mod config;
mod connect;
mod connection;
mod exchange;
mod known_hosts;
mod openssh;
mod sftp;
mod stream;

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8Path;
use cluster::NodeId;
use nix::unistd::{Uid, User};
use plan::{NodeKill, quote};
use rundir::Login;
use runstate::Liveness;

pub use config::SshOptions;
pub use stream::{OnStreamEvent, StreamEvent};

use crate::command::{Command, Output, Status};
use crate::error::ConnectionError;
use crate::ownership::ProcessSnapshot;
use crate::transport::{Process, Recipient, RunProcesses, ScriptExit, Shell, Signal, StartedScript, Transport};
use crate::{RemoteError, ownership, script};
use config::Settings;
use connect::{CONFIG_READS, Permit};
use connection::Connection;
use openssh::OpenSsh;

/// How long a node may take to list processes, send signals or look at a disk. A loaded one needs seconds.
const SOON: Duration = Duration::from_secs(20);
/// How long a node may take to start a supervisor or to say why it did not; the script there waits for less.
const START: Duration = Duration::from_secs(30);

/// A node reached by SSH. Clones share its connection, which is made when it is first needed and then held open.
#[derive(Debug, Clone)]
pub struct Ssh {
    link: Arc<Link>,
}

#[derive(Debug)]
struct Link {
    options: SshOptions,
    login: Login,
    way: Mutex<Option<Way>>,
}

/// How the connection is made.
#[derive(Debug, Clone)]
enum Way {
    /// In this program.
    Inside(Arc<Connection>),
    /// By OpenSSH's, since the configuration asks for what libssh2 has not.
    Program(Arc<OpenSsh>),
}

/// A stream of lines; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "a stream ends when it is dropped"]
pub struct Stream {
    way: Way,
    id: u64,
}

impl Drop for Stream {
    fn drop(&mut self) {
        match &self.way {
            Way::Inside(connection) => connection.end_stream(self.id),
            Way::Program(program) => program.end_stream(self.id),
        }
    }
}

impl Ssh {
    /// Names a node; connects to nothing yet.
    pub fn new(options: SshOptions, login: Login) -> Self {
        Self { link: Arc::new(Link { options, login, way: Mutex::new(None) }) }
    }

    /// Returns the address or name by which the node's SSH server is found: what `HostName` says.
    ///
    /// # Errors
    /// When the SSH configuration cannot be read.
    pub fn address(&self) -> Result<String, RemoteError> {
        let read = Settings::read(&self.link.options, &self.link.login);
        Ok(read.map_err(|error| self.unreachable(error))?.host)
    }

    /// Tells whether it is this user's own login on this machine that the SSH configuration means; nothing if that cannot be
    /// found out. A name alone does not tell: it may be an alias of another machine.
    pub(crate) fn is_this_node(&self) -> Option<bool> {
        let settings = Settings::read(&self.link.options, &self.link.login).ok()?;
        let addresses = (settings.host.as_str(), settings.port).to_socket_addrs().ok()?;
        // Only an address of this machine can be taken.
        let is_own = |address: SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
        let user = User::from_uid(Uid::current()).ok()??;
        // Behind another port may be a tunnel to anywhere.
        let as_usual = settings.is_direct && settings.port == 22 && settings.user == user.name;
        Some(as_usual && addresses.into_iter().any(is_own))
    }

    /// Runs a script that writes lines, again and again when the connection breaks, and tells what it writes. The script
    /// ends on the node when the connection does.
    ///
    /// # Errors
    /// When the SSH configuration cannot be read; all else is told.
    pub fn stream(&self, script: String, silence: Duration, on_event: OnStreamEvent) -> Result<Stream, RemoteError> {
        let way = self.way()?;
        let id = match &way {
            Way::Inside(connection) => connection.stream(script, silence, on_event),
            Way::Program(program) => program.stream(script, silence, on_event),
        };
        Ok(Stream { way, id })
    }

    /// Finds out how the node is to be reached, unless that is known. Connects to nothing.
    ///
    /// # Errors
    /// When the SSH configuration cannot be read.
    pub fn ready(&self) -> Result<(), RemoteError> {
        self.way().map(drop)
    }

    fn unreachable(&self, error: ConnectionError) -> RemoteError {
        RemoteError::Unreachable { node: self.link.login.node.clone(), error }
    }

    fn way(&self) -> Result<Way, RemoteError> {
        let Link { options, login, way } = &*self.link;
        let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = &*way {
            return Ok(way.clone());
        }
        // A program each: a thousand of them at once would be one too many.
        let permit = Permit::wait(&CONFIG_READS);
        let settings = Settings::read(options, login).map_err(|error| self.unreachable(error))?;
        drop(permit);
        let (options, login) = (options.clone(), login.clone());
        let node = login.node.clone();
        let made = if settings.unsupported.is_some() {
            OpenSsh::new(options, login).map(|program| Way::Program(Arc::new(program)))
        } else {
            Connection::new(options, login, settings).map(|connection| Way::Inside(Arc::new(connection)))
        };
        let made = made.map_err(|error| RemoteError::io(&node, "prepare a connection", error))?;
        Ok(way.insert(made).clone())
    }

    fn snapshot(&mut self, target: &NodeKill) -> Result<ProcessSnapshot, RemoteError> {
        let action = "list its processes";
        let text = self.text(Command::new(action, script::list_processes(target), SOON))?;
        script::parse_processes(&text).ok_or_else(|| self.odd(action, &text))
    }

    fn text(&mut self, command: Command) -> Result<String, RemoteError> {
        let output = self.run(&command)?;
        output.text(self.node(), &command)
    }

    fn odd(&self, action: &str, answer: &str) -> RemoteError {
        let answer = answer.chars().take(200).collect();
        RemoteError::UnexpectedReply { node: self.node().clone(), action: action.into(), answer }
    }
}

impl Shell for Ssh {
    fn node(&self) -> &NodeId {
        &self.link.login.node
    }

    fn run(&mut self, command: &Command) -> Result<Output, RemoteError> {
        match self.way()? {
            Way::Inside(connection) => connection.run(command.clone()),
            Way::Program(program) => program.run(command),
        }
    }
}

impl Transport for Ssh {
    /// Waits on the node until the supervisor has written its process file or ended, or five seconds are over.
    fn start(&mut self, script: &Utf8Path, pid_file: &Utf8Path, secrets: &[u8]) -> Result<StartedScript, RemoteError> {
        let start =
            script::START.replace("@SCRIPT", &quote(script.as_str())).replace("@PID_FILE", &quote(pid_file.as_str()));
        let action = format!("start bash {script}");
        let command = Command { input: secrets.to_vec(), ..Command::new(&action, start, START) };
        let output = self.run(&command)?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = output.text(self.node(), &command)?;
        match text.trim().split_once(' ').unwrap_or((text.trim(), "")) {
            ("started" | "slow", "") => Ok(StartedScript::running()),
            ("ended", status) => {
                Ok(StartedScript::over(ScriptExit { status: format!("exit status: {status}"), stderr }))
            }
            _ => Err(self.odd(&action, &text)),
        }
    }

    fn find_processes(&mut self, target: &NodeKill) -> Result<RunProcesses, RemoteError> {
        self.snapshot(target).map(|seen| ownership::judge_all(target, &seen))
    }

    fn liveness(&mut self, target: &NodeKill) -> Result<Liveness, RemoteError> {
        self.snapshot(target).map(|seen| ownership::liveness(target, &seen))
    }

    /// The node compares once more, at the moment of the signal, that each process is the one that was looked at.
    fn signal(&mut self, target: &NodeKill, to: Recipient, signal: Signal) -> Result<Vec<Process>, RemoteError> {
        let members = match self.find_processes(target)? {
            RunProcesses::Gone => return Ok(Vec::new()),
            RunProcesses::NotOwned(why) => return Err(RemoteError::NotOwned { node: self.node().clone(), why }),
            RunProcesses::Owned(members) => members,
        };
        let recipients = ownership::recipients(members, to);
        let action = "signal its processes";
        let text = self.text(Command::new(action, script::signal(target, &recipients, to, signal), SOON))?;
        match text.trim() {
            "sent" => Ok(recipients),
            "booted" => Ok(Vec::new()),
            other => match other.strip_prefix("refused ") {
                Some(said) => Err(RemoteError::CommandFailed {
                    node: self.node().clone(),
                    action: action.into(),
                    status: "not permitted".into(),
                    stderr: said.to_owned(),
                }),
                None => Err(self.odd(action, &text)),
            },
        }
    }

    fn send_file(&mut self, file: &Utf8Path, bytes: &[u8], arrived: &dyn Fn(usize)) -> Result<bool, RemoteError> {
        let Link { options, login, .. } = &*self.link;
        match self.way()? {
            Way::Inside(_) => sftp::send(options, login, file, bytes, arrived).map(|()| true),
            // Whatever its configuration is about, commands are through with it.
            Way::Program(_) => Ok(false),
        }
    }

    fn free_bytes(&mut self, dir: &Utf8Path) -> Result<u64, RemoteError> {
        let action = format!("ask the disk of {dir} for its free space");
        let text = self.text(Command::new(&action, script::free_space(dir), SOON))?;
        text.trim().parse::<u64>().map(|kib| kib * 1024).map_err(|_| self.odd(&action, &text))
    }
}

impl Status {
    /// Tells whether the command did as it was asked.
    pub fn is_success(&self) -> bool {
        *self == Self::Code(0)
    }
}
