//! A cluster of nodes on this machine, for tests and demos: real SSH servers, a real Slurm, faults on demand.
//!
//! Each node is a set of Linux namespaces with its own address, hostname, processes, home, small disk, fake nvidia-smi
//! and SSH server. The head is another such set, on which `ssh node01` works. The scripts in `tests/rig` start the nodes;
//! this crate starts and ends the scripts. When the [`Rig`] is dropped, or its process dies, even by `kill -9`, the
//! standard input of the scripts closes and the kernel removes the rig.
//!
//! ```text
//! let Some(rig) = rig::Options::new(4).up_or_skip() else { return };
//! rig.verb("poweroff node03").unwrap();
//! let vidtui = rig.command("vidtui").arg("nodes").arg("--hostfile").arg(rig.hostfile()).output();
//! ```

mod disk;
mod error;
mod options;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use nix::sched::{CloneFlags, setns};

pub use disk::SmallDisk;
pub use error::RigError;
pub use options::Options;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/rig/rig");

/// A running rig. Dropping it ends its processes and removes its folder.
#[derive(Debug)]
pub struct Rig {
    /// The process that holds the namespaces. The rig ends when the standard input of this process closes.
    holder: Child,
    folder: Utf8PathBuf,
    nodes: usize,
}

impl Rig {
    /// Starts `nodes` nodes of eight GPUs each.
    ///
    /// # Errors
    /// As [`Options::up`].
    pub fn up(nodes: usize) -> Result<Rig, RigError> {
        Options::new(nodes).up()
    }

    /// Applies a fault or repair to a node: `poweroff node03`, `loss node01 20`. `tests/rig/rig verbs` lists the verbs.
    ///
    /// # Errors
    /// [`RigError::Verb`] with the script's output if the verb or node does not exist or the verb fails, and
    /// [`RigError::NotStarted`] if the script cannot be executed.
    pub fn verb(&self, words: &str) -> Result<(), RigError> {
        let mut command = script(&self.folder);
        command.arg("verb").args(words.split_whitespace()).stdin(Stdio::null());
        let output = command.output().map_err(RigError::NotStarted)?;
        if output.status.success() {
            return Ok(());
        }
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(RigError::Verb { words: words.into(), output })
    }

    /// Returns a command that runs on the head, in the caller's folder and environment, but with the rig's home.
    ///
    /// The child enters the namespaces and starts the program there. Killing the child kills the program; other signals do not
    /// reach the program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = script(&self.folder);
        command.args(["run", program]);
        command
    }

    /// Returns a command that runs inside a node, without SSH.
    pub fn command_on(&self, node: &str, program: &str) -> Command {
        let mut command = script(&self.folder);
        command.args(["on", node, program]);
        command
    }

    /// Returns the words to put before a program to run it on the head, for callers that cannot use a [`Command`].
    pub fn prefix(&self) -> Vec<String> {
        vec!["env".into(), format!("RIG={}", self.folder), SCRIPT.into(), "run".into()]
    }

    /// Moves the calling thread, and threads that it starts later, to the head's network namespace.
    ///
    /// Library code in this process can then connect to the nodes' addresses, which are in [`Rig::ssh_config`].
    ///
    /// # Errors
    /// [`RigError::NotJoined`] if the namespace cannot be opened or entered, for example without CAP_SYS_ADMIN.
    pub fn join_network(&self) -> Result<(), RigError> {
        let path = format!("/proc/{}/ns/net", self.holder.id());
        let network = fs::File::open(path).map_err(RigError::NotJoined)?;
        setns(network, CloneFlags::CLONE_NEWNET).map_err(|e| RigError::NotJoined(e.into()))
    }

    /// Returns the names of the nodes: `node01`, `node02`…
    pub fn nodes(&self) -> Vec<String> {
        (1..=self.nodes).map(|number| format!("node{number:02}")).collect()
    }

    /// Returns the rig's folder, which is removed with the rig.
    pub fn folder(&self) -> &Utf8Path {
        &self.folder
    }

    /// Returns a folder that the head and all nodes share.
    pub fn share(&self) -> Utf8PathBuf {
        self.folder.join("share")
    }

    /// Returns a folder on a disk of 64 MiB that the head and all nodes share. Its files are not visible to this process.
    pub fn small(&self) -> Utf8PathBuf {
        self.folder.join("small")
    }

    /// Returns the folder of a node's own files: `home/`, `bin/`, `gpus/`, its logs. On the node the folder is [`Rig::own`].
    pub fn node_folder(&self, node: &str) -> Utf8PathBuf {
        self.folder.join("nodes").join(node)
    }

    /// Writes an executable script to the `bin/` of a node, which is first on its PATH.
    ///
    /// # Errors
    /// If the script cannot be written.
    pub fn add_program(&self, node: &str, name: &str, script: &str) -> io::Result<()> {
        let path = self.node_folder(node).join("bin").join(name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    }

    /// Returns the path at which each node has its own files, and `disk/`, its own disk of 64 MiB.
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
        while began.elapsed() < Duration::from_secs(60) {
            if matches!(self.holder.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            sleep(Duration::from_millis(2));
        }
        // Killing the holder ends all processes of the rig, but leaves its files.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn script(folder: &Utf8Path) -> Command {
    let mut command = Command::new(SCRIPT);
    command.env("RIG", folder);
    command
}
