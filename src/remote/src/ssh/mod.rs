//! The transport for nodes that are reached by SSH.

mod algorithms;
mod config;
mod connect;
mod connection;
mod exchange;
mod known_hosts;
mod openssh;
mod options;
mod public_key;
mod sftp;
mod socket_folder;
mod stream;
mod tokens;

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

use crate::command::{Command, Output};
use crate::error::ConnectionError;
use crate::ownership::ProcessSnapshot;
use crate::transport::{Process, Recipient, RunProcesses, ScriptExit, Shell, Signal, StartedScript, Transport};
use crate::{RemoteError, ownership, script};
use config::Settings;
use connect::{CONFIG_READS, Permit};
use connection::Connection;
use openssh::OpenSsh;

/// The timeout of listing processes, sending signals and reading free space. A loaded node needs seconds.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The timeout of starting a supervisor. The script on the node has a shorter timeout.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A node reached by SSH. Clones share its connection, which is made when it is first used and then kept open.
#[derive(Debug, Clone)]
pub struct Ssh {
    link: Arc<Link>,
}

#[derive(Debug)]
struct Link {
    options: SshOptions,
    login: Login,
    clients: Mutex<Option<Clients>>,
}

/// The clients of a node, each made when it is first needed.
#[derive(Debug)]
struct Clients {
    settings: Settings,
    libssh2: Option<Arc<Connection>>,
    openssh: Option<Arc<OpenSsh>>,
}

/// The SSH client that makes the connection.
#[derive(Debug, Clone)]
enum Client {
    /// libssh2, in this process.
    Libssh2(Arc<Connection>),
    /// OpenSSH's program, for configurations that libssh2 does not support, and for connections that the user's `ssh` shares.
    OpenSsh(Arc<OpenSsh>),
}

/// A stream of lines. Dropping the value ends the stream and its script.
#[derive(Debug)]
#[must_use = "a stream ends when it is dropped"]
pub struct Stream {
    client: Client,
    id: u64,
}

impl Drop for Stream {
    fn drop(&mut self) {
        match &self.client {
            Client::Libssh2(connection) => connection.end_stream(self.id),
            Client::OpenSsh(program) => program.end_stream(self.id),
        }
    }
}

impl Ssh {
    /// Creates a transport for a node, without connecting.
    pub fn new(options: SshOptions, login: Login) -> Self {
        Self { link: Arc::new(Link { options, login, clients: Mutex::new(None) }) }
    }

    /// Returns the address or name of the node's SSH server, from `HostName`.
    ///
    /// # Errors
    /// When the SSH configuration cannot be read.
    pub fn address(&self) -> Result<String, RemoteError> {
        let read = Settings::read(&self.link.options, &self.link.login);
        Ok(read.map_err(|error| self.unreachable(error))?.host)
    }

    /// Returns whether the login is this user's on this machine; `None` if that cannot be determined. The name alone is not
    /// enough, because it may be an alias of another machine.
    pub(crate) fn is_this_node(&self) -> Option<bool> {
        let settings = Settings::read(&self.link.options, &self.link.login).ok()?;
        let addresses = (settings.host.as_str(), settings.port).to_socket_addrs().ok()?;
        // Only an address of this machine can be bound.
        let is_own = |mut address: SocketAddr| {
            address.set_port(0);
            UdpSocket::bind(address).is_ok()
        };
        let user = User::from_uid(Uid::current()).ok()??;
        // Another port may be a tunnel to another machine.
        let is_default = settings.is_direct && settings.port == 22 && settings.user == user.name;
        Some(is_default && addresses.into_iter().any(is_own))
    }

    /// Runs a script and sends each line of its output as an event. The script is killed when the connection ends and started
    /// again after a reconnect. Without output for `output_timeout`, a heartbeat checks the connection.
    ///
    /// # Errors
    /// When the SSH configuration cannot be read. Later errors are events.
    pub fn stream(
        &self,
        script: String,
        output_timeout: Duration,
        on_event: OnStreamEvent,
    ) -> Result<Stream, RemoteError> {
        let client = self.client()?;
        let id = match &client {
            Client::Libssh2(connection) => connection.stream(script, output_timeout, on_event),
            Client::OpenSsh(program) => program.stream(script, output_timeout, on_event),
        };
        Ok(Stream { client, id })
    }

    /// Reads the node's SSH configuration, unless it has been read, and does not connect.
    ///
    /// # Errors
    /// When the SSH configuration cannot be read.
    pub fn read_config(&self) -> Result<(), RemoteError> {
        self.client().map(drop)
    }

    fn unreachable(&self, error: ConnectionError) -> RemoteError {
        RemoteError::Unreachable { node: self.link.login.node.clone(), error }
    }

    /// Returns the client for the next request. A shared connection of the user's `ssh` may be opened or closed at any time.
    fn client(&self) -> Result<Client, RemoteError> {
        let Link { options, login, clients } = &*self.link;
        let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |clients: &Clients| clients.libssh2.as_ref().is_some_and(|connection| connection.needs_program());
        if clients.as_ref().is_some_and(is_old) {
            *clients = None;
        }
        let clients = match &mut *clients {
            Some(known) => known,
            none => {
                // Each read starts a program, so the number of parallel reads is limited.
                let permit = Permit::wait(&CONFIG_READS);
                let settings = Settings::read(options, login).map_err(|error| self.unreachable(error))?;
                drop(permit);
                none.insert(Clients { settings, libssh2: None, openssh: None })
            }
        };
        let Clients { settings, libssh2, openssh } = clients;
        let cannot = |error| RemoteError::io(&login.node, "prepare a connection", error);
        if settings.needs_program().is_some() {
            let program = match openssh {
                Some(program) => program,
                none => none
                    .insert(Arc::new(OpenSsh::new(options.clone(), login.clone(), settings.clone()).map_err(cannot)?)),
            };
            return Ok(Client::OpenSsh(program.clone()));
        }
        let connection = match libssh2 {
            Some(connection) => connection,
            none => none
                .insert(Arc::new(Connection::new(options.clone(), login.clone(), settings.clone()).map_err(cannot)?)),
        };
        Ok(Client::Libssh2(connection.clone()))
    }

    fn snapshot(&mut self, target: &NodeKill) -> Result<ProcessSnapshot, RemoteError> {
        let action = "list its processes";
        let text = self.text(Command::new(action, script::list_processes(target), TIMEOUT))?;
        script::parse_processes(&text).ok_or_else(|| self.unexpected(action, &text))
    }

    fn text(&mut self, command: Command) -> Result<String, RemoteError> {
        let output = self.run(&command)?;
        output.text(self.node(), &command)
    }

    fn unexpected(&self, action: &str, answer: &str) -> RemoteError {
        RemoteError::unexpected(self.node(), action, answer)
    }
}

impl Shell for Ssh {
    fn node(&self) -> &NodeId {
        &self.link.login.node
    }

    fn run(&mut self, command: &Command) -> Result<Output, RemoteError> {
        match self.client()? {
            Client::Libssh2(connection) => connection.run(command),
            Client::OpenSsh(program) => program.run(command),
        }
    }
}

impl Transport for Ssh {
    /// Waits on the node for 5 s until the supervisor has written its process file or exited.
    fn start(&mut self, script: &Utf8Path, pid_file: &Utf8Path, secrets: &[u8]) -> Result<StartedScript, RemoteError> {
        let start =
            script::START.replace("@SCRIPT", &quote(script.as_str())).replace("@PID_FILE", &quote(pid_file.as_str()));
        let action = format!("start bash {script}");
        let command = Command { input: secrets.to_vec(), ..Command::new(&action, start, START_TIMEOUT) };
        let output = self.run(&command)?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = output.text(self.node(), &command)?;
        match text.trim().split_once(' ').unwrap_or((text.trim(), "")) {
            ("started" | "slow", "") => Ok(StartedScript::running()),
            ("ended", status) => {
                Ok(StartedScript::exited(ScriptExit { status: format!("exit status: {status}"), stderr }))
            }
            _ => Err(self.unexpected(&action, &text)),
        }
    }

    fn find_processes(&mut self, target: &NodeKill) -> Result<RunProcesses, RemoteError> {
        self.snapshot(target).map(|snapshot| ownership::identify(target, &snapshot))
    }

    fn liveness(&mut self, target: &NodeKill) -> Result<Liveness, RemoteError> {
        self.snapshot(target).map(|snapshot| ownership::liveness(target, &snapshot))
    }

    /// The script on the node checks again, immediately before the signal, that each process is the one that was found.
    fn signal(&mut self, target: &NodeKill, to: Recipient, signal: Signal) -> Result<Vec<Process>, RemoteError> {
        let members = match self.find_processes(target)? {
            RunProcesses::Gone => return Ok(Vec::new()),
            RunProcesses::NotOwned(why) => return Err(RemoteError::NotOwned { node: self.node().clone(), why }),
            RunProcesses::Owned(members) => members,
        };
        let recipients = ownership::recipients(members, to);
        let action = "signal its processes";
        let text = self.text(Command::new(action, script::signal(target, &recipients, to, signal), TIMEOUT))?;
        match text.trim() {
            "sent" => Ok(recipients),
            "booted" => Ok(Vec::new()),
            other => match other.strip_prefix("refused ") {
                Some(message) => Err(RemoteError::CommandFailed {
                    node: self.node().clone(),
                    action: action.into(),
                    status: "not permitted".into(),
                    stderr: message.to_owned(),
                }),
                None => Err(self.unexpected(action, &text)),
            },
        }
    }

    fn send_file(&mut self, file: &Utf8Path, bytes: &[u8], arrived: &dyn Fn(usize)) -> Result<bool, RemoteError> {
        let Link { options, login, .. } = &*self.link;
        match self.client()? {
            Client::Libssh2(_) => sftp::send(options, login, file, bytes, arrived).map(|()| true),
            // Commands work with every configuration.
            Client::OpenSsh(_) => Ok(false),
        }
    }

    fn free_bytes(&mut self, dir: &Utf8Path) -> Result<u64, RemoteError> {
        let action = format!("read the free space of {dir}");
        let text = self.text(Command::new(&action, script::free_space(dir), TIMEOUT))?;
        text.trim().parse::<u64>().map(|kib| kib * 1024).map_err(|_| self.unexpected(&action, &text))
    }
}
