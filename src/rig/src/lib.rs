//! A cluster of nodes on this machine, for tests and demos: real SSH servers, a real Slurm, faults on demand.
//!
//! Each node is a set of Linux namespaces with an address, a hostname, processes, a home, a small disk, a stand-in for
//! nvidia-smi and an SSH server of its own; the head is one more, from which `ssh node01` works. The work is done by the
//! scripts in `tests/rig`; this crate starts them and ends them. A rig lives as long as its value: when that is dropped,
//! or the process that holds it dies, `kill -9` included, the rig's lifeline closes and the kernel takes all of it away.
//!
//! ```no_run
//! let Some(rig) = rig::Options::new(4).up_or_skip() else { return };
//! rig.verb("poweroff node03").unwrap();
//! let vidtui = rig.command("vidtui").arg("nodes").arg("--hostfile").arg(rig.hostfile()).output();
//! ```

mod error;
mod options;

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use nix::sched::{CloneFlags, setns};

pub use error::RigError;
pub use options::Options;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/rig/rig");

/// A cluster that is up.
#[derive(Debug)]
pub struct Rig {
    /// The process that holds the namespaces. Its standard input is the lifeline.
    holder: Child,
    folder: Utf8PathBuf,
    nodes: usize,
}

impl Rig {
    /// Starts `nodes` nodes of eight GPUs each.
    ///
    /// # Errors
    /// [`RigError::Impossible`] where namespaces or packages are missing; otherwise what failed.
    pub fn up(nodes: usize) -> Result<Rig, RigError> {
        Options::new(nodes).up()
    }

    /// Does something to a node: `poweroff node03`, `loss node01 20`. `tests/rig/rig verbs` lists what can be done.
    ///
    /// # Errors
    /// When there is no such verb or node, or it cannot be done; says what the script said.
    pub fn verb(&self, words: &str) -> Result<(), RigError> {
        let mut command = script(&self.folder);
        command.arg("verb").args(words.split_whitespace()).stdin(Stdio::null());
        let output = command.output().map_err(RigError::NotStarted)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(RigError::Verb { words: words.into(), said })
    }

    /// Makes a command that runs on the head, in the caller's folder and environment, but with the rig's home.
    ///
    /// The child is what enters the namespaces. Killing it kills the program too; other signals do not reach the program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = script(&self.folder);
        command.args(["run", program]);
        command
    }

    /// Makes a command that runs inside a node, without SSH.
    pub fn command_on(&self, node: &str, program: &str) -> Command {
        let mut command = script(&self.folder);
        command.args(["on", node, program]);
        command
    }

    /// Writes the words before a program that make it run on the head, for those who cannot take a [`Command`].
    pub fn prefix(&self) -> Vec<String> {
        vec!["env".into(), format!("RIG={}", self.folder), SCRIPT.into(), "run".into()]
    }

    /// Moves the calling thread, and those that it starts from now on, to the head's network.
    ///
    /// Library code then reaches the nodes by address, in this process. [`Rig::ssh_config`] has their addresses.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn join_network(&self) -> Result<(), RigError> {
        let path = format!("/proc/{}/ns/net", self.holder.id());
        let network = std::fs::File::open(path).map_err(RigError::NotJoined)?;
        setns(network, CloneFlags::CLONE_NEWNET).map_err(|e| RigError::NotJoined(e.into()))
    }

    /// Returns the names of the nodes: `node01`, `node02`…
    pub fn nodes(&self) -> Vec<String> {
        (1..=self.nodes).map(|number| format!("node{number:02}")).collect()
    }

    /// Returns the rig's folder. It goes when the rig does.
    pub fn folder(&self) -> &Utf8Path {
        &self.folder
    }

    /// Returns a folder that the head and all nodes have in common.
    pub fn share(&self) -> Utf8PathBuf {
        self.folder.join("share")
    }

    /// Returns a folder on a disk of 64 MiB that the head and all nodes have in common. This process does not see what is in it.
    pub fn small(&self) -> Utf8PathBuf {
        self.folder.join("small")
    }

    /// Returns where a node's own files are: `home/`, `bin/`, `gpus/`, its logs. The node itself sees them in [`Rig::own`].
    pub fn node_folder(&self, node: &str) -> Utf8PathBuf {
        self.folder.join("nodes").join(node)
    }

    /// Returns where each node sees its own files, and `disk/`, its own disk of 64 MiB.
    pub fn own(&self) -> Utf8PathBuf {
        self.folder.join("self")
    }

    /// Returns a hostfile with all nodes: `node01 slots=8`.
    pub fn hostfile(&self) -> Utf8PathBuf {
        self.folder.join("hostfile")
    }

    /// Returns the SSH configuration: addresses, key and known hosts. On the head it is `~/.ssh/config` too.
    pub fn ssh_config(&self) -> Utf8PathBuf {
        self.folder.join("ssh_config")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(10) {
            if matches!(self.holder.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            sleep(Duration::from_millis(2));
        }
        // The kernel ends the rig with its holder; only the files are left to us.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn script(folder: &Utf8Path) -> Command {
    let mut command = Command::new(SCRIPT);
    command.env("RIG", folder);
    command
}
