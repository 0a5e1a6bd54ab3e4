//! The transport for this machine, which needs no connection.

use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::process::{self, Stdio};
use std::sync::mpsc;

use camino::Utf8Path;
use cluster::NodeId;
use nix::errno::Errno;
use nix::sys::signal;
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use plan::NodeKill;
use runstate::Liveness;

use crate::command::{Command, Output, printed};
use crate::ownership::ProcessSnapshot;
use crate::transport::{Process, Recipient, RunProcesses, ScriptExit, Shell, Signal, StartedScript, Transport};
use crate::{RemoteError, child, ownership, proc, threads};

/// The name and boot id of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThisNode {
    /// The name of this machine, from its host name.
    pub node: NodeId,
    /// The random id that Linux chose at boot.
    pub boot_id: String,
}

/// Returns the name and boot id of this machine.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn this_node() -> Result<ThisNode, RemoteError> {
    let node = NodeId::from_hostname(&nix::unistd::gethostname().unwrap_or_default().to_string_lossy());
    let boot_id = proc::boot_id().map_err(|error| RemoteError::io(&node, "read its boot id", error))?;
    Ok(ThisNode { node, boot_id })
}

/// The transport for this machine.
#[derive(Debug, Clone)]
pub struct Local {
    here: ThisNode,
}

impl Local {
    /// Makes a transport for this machine.
    ///
    /// # Errors
    /// As [`this_node`].
    pub fn new() -> Result<Self, RemoteError> {
        Ok(Self { here: this_node()? })
    }

    fn error(&self, action: impl Into<String>, source: impl Into<io::Error>) -> RemoteError {
        RemoteError::io(&self.here.node, action, source)
    }
}

/// Returns a list with the only transport that needs no connection: that of this machine.
///
/// # Errors
/// As [`this_node`].
pub fn local_transports() -> Result<Vec<Box<dyn Transport>>, RemoteError> {
    Ok(vec![Box::new(Local::new()?)])
}

impl Shell for Local {
    fn node(&self) -> &NodeId {
        &self.here.node
    }

    fn run(&mut self, command: &Command) -> Result<Output, RemoteError> {
        let output =
            child::run(process::Command::new("sh").args(["-c", &command.script]), &command.input, command.deadline)
                .map_err(|error| self.error("start sh", error))?;
        output.map_err(|killed| {
            let (node, action) = (self.here.node.clone(), command.action.clone());
            let printed = printed(&killed.stdout, &killed.stderr);
            RemoteError::Timeout { node, action, after: command.deadline, printed }
        })
    }
}

impl Transport for Local {
    /// The script leaves the session of this program, because its supervisor calls setsid. The caller waits for the process
    /// file.
    fn start(&mut self, script: &Utf8Path, _pid_file: &Utf8Path, secrets: &[u8]) -> Result<StartedScript, RemoteError> {
        let mut bash = process::Command::new("bash");
        if !secrets.is_empty() {
            bash.env("VIDTUI_SECRETS", "stdin");
        }
        let mut child = bash
            .arg(script)
            .stdin(if secrets.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| self.error(format!("start bash {script}"), error))?;
        if let Some(mut pipe) = child.stdin.take() {
            let secrets = secrets.to_vec();
            // Fails when the script exits early; its standard error then has the reason.
            threads::spawn(move || drop(pipe.write_all(&secrets)));
        }
        let (sender, exit) = mpsc::channel();
        // Waits for the process, so that no zombie remains while the console is open. The pipe closes as soon as the script
        // redirects its output to its log.
        threads::spawn(move || {
            let mut stderr = String::new();
            if let Some(mut pipe) = child.stderr.take() {
                let _ = pipe.read_to_string(&mut stderr);
            }
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let _ = sender.send(ScriptExit { status, stderr });
        });
        Ok(StartedScript { exit })
    }

    fn find_processes(&mut self, target: &NodeKill) -> Result<RunProcesses, RemoteError> {
        self.snapshot(target).map(|seen| ownership::identify(target, &seen))
    }

    fn liveness(&mut self, target: &NodeKill) -> Result<Liveness, RemoteError> {
        self.snapshot(target).map(|seen| ownership::liveness(target, &seen))
    }

    fn signal(&mut self, target: &NodeKill, to: Recipient, signal: Signal) -> Result<Vec<Process>, RemoteError> {
        let members = match self.find_processes(target)? {
            RunProcesses::Gone => return Ok(Vec::new()),
            RunProcesses::NotOwned(why) => return Err(RemoteError::NotOwned { node: self.here.node.clone(), why }),
            RunProcesses::Owned(members) => members,
        };
        let recipients = ownership::recipients(members, to);
        let signal = match signal {
            Signal::Term => signal::Signal::SIGTERM,
            Signal::Kill => signal::Signal::SIGKILL,
        };
        // The whole group is signalled, so that no process escapes by forking between the listing and the signal.
        let as_group = to == Recipient::All && recipients.iter().any(|process| process.pgid == target.pgid);
        let mut refused = None;
        if as_group {
            let sent = signal::killpg(Pid::from_raw(target.pgid), signal);
            refused = self.sent(sent, || format!("signal group {}", target.pgid)).err();
        }
        // A process that must not be signalled does not prevent the signals to others.
        for process in recipients.iter().filter(|process| !(as_group && process.pgid == target.pgid)) {
            let sent = signal::kill(Pid::from_raw(process.pid), signal);
            refused = refused.or(self.sent(sent, || format!("signal process {}", process.pid)).err());
        }
        refused.map_or(Ok(recipients), Err)
    }

    fn free_bytes(&mut self, dir: &Utf8Path) -> Result<u64, RemoteError> {
        let existing = dir.ancestors().find(|dir| dir.metadata().is_ok_and(|meta: Metadata| meta.is_dir()));
        let existing = existing.unwrap_or(Utf8Path::new("."));
        let disk = statvfs(existing.as_std_path())
            .map_err(|error| self.error(format!("read the free space of {existing}"), error))?;
        // `blocks_available` excludes the blocks that are reserved for root.
        Ok(disk.blocks_available() * disk.fragment_size())
    }
}

impl Local {
    fn snapshot(&self, target: &NodeKill) -> Result<ProcessSnapshot, RemoteError> {
        ownership::read_processes(target, &self.here.boot_id).map_err(|error| self.error("list its processes", error))
    }

    /// Treats a process that has already exited as signalled.
    fn sent(&self, result: nix::Result<()>, action: impl Fn() -> String) -> Result<(), RemoteError> {
        match result {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(self.error(action(), error)),
        }
    }
}
