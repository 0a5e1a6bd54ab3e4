use std::sync::mpsc::{self, Receiver};

use camino::Utf8Path;
use cluster::NodeId;
use plan::NodeKill;
use runstate::Liveness;

use crate::RemoteError;
use crate::command::{Command, Output};

/// How much of a file is sent at a time: little enough that slow networks are in time and progress is seen.
pub(crate) const PIECE: usize = 1 << 20;

/// A way to ask one node.
pub trait Shell: Send {
    /// Returns the node.
    fn node(&self) -> &NodeId;

    /// Runs a command and waits for its end.
    ///
    /// # Errors
    /// When it cannot be run or its time is over; how it ended is in its [`Output`].
    fn run(&mut self, command: &Command) -> Result<Output, RemoteError>;
}

/// A way to do things on one node. Every process that the console starts, looks at or signals goes through one.
pub trait Transport: Shell {
    /// Starts a script that outlives this program and its connection, and writes a process file. Its standard input is
    /// `secrets`, which appear in no command line and no file; where there are any, `VIDTUI_SECRETS` says so.
    ///
    /// # Errors
    /// When it cannot be started; what it does then is told by [`StartedScript`].
    fn start(&mut self, script: &Utf8Path, pid_file: &Utf8Path, secrets: &[u8]) -> Result<StartedScript, RemoteError>;

    /// Finds the processes of a run, and only those.
    ///
    /// # Errors
    /// When the node's processes cannot be looked at.
    fn find_processes(&mut self, target: &NodeKill) -> Result<RunProcesses, RemoteError>;

    /// Tells whether the processes of a run exist, also where they are another user's.
    ///
    /// # Errors
    /// When the node's processes cannot be looked at.
    fn liveness(&mut self, target: &NodeKill) -> Result<Liveness, RemoteError>;

    /// Looks, and if the processes are the run's, signals them. Returns those that were signalled; none if all are gone.
    ///
    /// # Errors
    /// [`RemoteError::NotOwned`] if they are somebody else's by now, and whatever the system answers.
    fn signal(&mut self, target: &NodeKill, to: Recipient, signal: Signal) -> Result<Vec<Process>, RemoteError>;

    /// Writes a file by SFTP, and tells how many of its bytes have arrived so far. Returns whether this transport can.
    ///
    /// # Errors
    /// When the node's server has no SFTP, refuses, or does not answer; a part of the file may be there then.
    fn send_file(&mut self, _file: &Utf8Path, _bytes: &[u8], _arrived: &dyn Fn(usize)) -> Result<bool, RemoteError> {
        Ok(false)
    }

    /// Returns the bytes that a folder, or the folder it will be made in, has room for.
    ///
    /// # Errors
    /// When the disk cannot be asked.
    fn free_bytes(&mut self, dir: &Utf8Path) -> Result<u64, RemoteError>;
}

/// A script that was started.
#[derive(Debug)]
pub struct StartedScript {
    pub(crate) ended: Receiver<ScriptExit>,
}

/// How a started script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptExit {
    /// Its exit status, in words.
    pub status: String,
    /// What it wrote to standard error before its output went to its log.
    pub stderr: String,
}

impl StartedScript {
    /// A script that still runs, and whose end nobody watches.
    pub(crate) fn running() -> Self {
        let (_, ended) = mpsc::channel();
        Self { ended }
    }

    /// A script that has ended already.
    pub(crate) fn over(how: ScriptExit) -> Self {
        let (tell, ended) = mpsc::channel();
        // The receiver is in hand.
        let _ = tell.send(how);
        Self { ended }
    }

    /// Tells how the script ended, if it has; only the first call after that does.
    pub fn ended(&self) -> Option<ScriptExit> {
        self.ended.try_recv().ok()
    }
}

/// The processes that a [`NodeKill`] names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunProcesses {
    /// They are the run's.
    Owned(Vec<Process>),
    /// None of them is left.
    Gone,
    /// They are somebody else's by now, or that cannot be told.
    NotOwned(String),
}

/// A live process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process number.
    pub pid: i32,
    /// Process group.
    pub pgid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// What it is in the run.
    pub role: Role,
    /// State letter of `/proc/PID/stat`.
    pub state: char,
    /// Command line.
    pub command: String,
}

/// What a process is in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It starts and watches the ranks of its node.
    Supervisor,
    /// It trains.
    Rank(usize),
    /// It was started by one of the others.
    Other,
}

/// Who is signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// The supervisor, which tells its ranks; the ranks themselves where the supervisor is gone.
    Supervisor,
    /// Every process.
    All,
}

/// The signals that a run understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Save and end.
    Term,
    /// End at once.
    Kill,
}
