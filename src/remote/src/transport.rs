//! The traits through which every node is accessed.

use std::sync::mpsc::{self, Receiver};

use camino::Utf8Path;
use cluster::NodeId;
use plan::NodeKill;
use runstate::Liveness;

use crate::RemoteError;
use crate::command::{Command, Output};

/// The size of the chunks in which a file is sent: small enough for slow networks to meet the time limit, and to show
/// progress.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Runs commands on one node.
pub trait Shell: Send {
    /// Returns the node.
    fn node(&self) -> &NodeId;

    /// Runs a command and waits for its exit.
    ///
    /// # Errors
    /// When the command cannot be run or exceeds its time limit. Its exit status, 0 or not, is in the [`Output`].
    fn run(&mut self, command: &Command) -> Result<Output, RemoteError>;
}

/// Starts, finds and signals processes on one node. The console uses only this trait to do so.
pub trait Transport: Shell {
    /// Starts a script that outlives this program and its connection and writes a process file.
    ///
    /// `secrets` are written to the standard input of the script and appear in no command line and no file. If there are
    /// any, the script has `VIDTUI_SECRETS=stdin` in its environment.
    ///
    /// # Errors
    /// When the script cannot be started. [`StartedScript::exit()`] returns a later exit.
    fn start(&mut self, script: &Utf8Path, pid_file: &Utf8Path, secrets: &[u8]) -> Result<StartedScript, RemoteError>;

    /// Finds the processes of a run, and only those.
    ///
    /// # Errors
    /// When the processes of the node cannot be listed.
    fn find_processes(&mut self, target: &NodeKill) -> Result<RunProcesses, RemoteError>;

    /// Returns whether processes of a run exist, including those of another user.
    ///
    /// # Errors
    /// When the processes of the node cannot be listed.
    fn liveness(&mut self, target: &NodeKill) -> Result<Liveness, RemoteError>;

    /// Finds the processes of a run and signals them. Returns the processes that were signalled; an empty list if all
    /// have exited.
    ///
    /// # Errors
    /// [`RemoteError::NotOwned`] if the processes found are not the run's, and errors of the system.
    fn signal(&mut self, target: &NodeKill, to: Recipient, signal: Signal) -> Result<Vec<Process>, RemoteError>;

    /// Writes a file by SFTP and calls `arrived` with the number of bytes written so far. Returns false, without writing,
    /// if this transport has no SFTP.
    ///
    /// # Errors
    /// When the server has no SFTP, refuses the file, or does not reply. A part of the file may exist then.
    fn send_file(&mut self, _file: &Utf8Path, _bytes: &[u8], _arrived: &dyn Fn(usize)) -> Result<bool, RemoteError> {
        Ok(false)
    }

    /// Returns the free bytes on the disk of a folder, or of the nearest existing folder above it.
    ///
    /// # Errors
    /// When the free space cannot be read.
    fn free_bytes(&mut self, dir: &Utf8Path) -> Result<u64, RemoteError>;
}

/// A script that was started.
#[derive(Debug)]
pub struct StartedScript {
    pub(crate) exit: Receiver<ScriptExit>,
}

/// The exit of a started script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptExit {
    /// The exit status, as text.
    pub status: String,
    /// The text that the script wrote to standard error before it redirected its output to its log.
    pub stderr: String,
}

impl StartedScript {
    /// Returns a script that still runs and whose exit is not watched.
    pub(crate) fn running() -> Self {
        let (_, exit) = mpsc::channel();
        Self { exit }
    }

    /// Returns a script that has exited already.
    pub(crate) fn exited(how: ScriptExit) -> Self {
        let (sender, exit) = mpsc::channel();
        // The send cannot fail, because this function holds the receiver.
        let _ = sender.send(how);
        Self { exit }
    }

    /// Returns how the script exited; `None` if it still runs, or if an earlier call returned the exit.
    pub fn exit(&self) -> Option<ScriptExit> {
        self.exit.try_recv().ok()
    }
}

/// The processes that a [`NodeKill`] names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunProcesses {
    /// The processes belong to the run.
    Owned(Vec<Process>),
    /// All processes have exited.
    Gone,
    /// The processes belong to another program, or their owner cannot be determined. The text is the reason.
    NotOwned(String),
}

/// A live process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Process group.
    pub pgid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The role of the process in the run.
    pub role: ProcessRole,
    /// State letter of `/proc/PID/stat`.
    pub state: char,
    /// Command line.
    pub command: String,
}

/// The role of a process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessRole {
    /// The supervisor, which starts and watches the ranks of its node.
    Supervisor,
    /// The rank with this number.
    Rank(usize),
    /// A child of the supervisor or of a rank.
    Other,
}

/// Which processes of a run receive a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// The supervisor, which forwards the signal to its ranks; the ranks if the supervisor has exited.
    Supervisor,
    /// Every process.
    All,
}

/// The signals that are sent to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: save and exit.
    Term,
    /// SIGKILL: exit at once.
    Kill,
}
