use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::{Rig, RigError, SCRIPT};

/// What a rig consists of.
#[derive(Debug, Clone)]
pub struct Options {
    nodes: usize,
    gpus: usize,
    slurm: bool,
}

impl Options {
    /// Describes a rig of `nodes` nodes with eight GPUs each.
    pub fn new(nodes: usize) -> Self {
        Options { nodes, gpus: 8, slurm: false }
    }

    /// Gives each node this many GPUs.
    pub fn gpus(self, gpus: usize) -> Self {
        Options { gpus, ..self }
    }

    /// Adds a Slurm with the partitions `train`, of all nodes, `urgent`, whose jobs take the place of those, and `debug`, of the
    /// first node.
    pub fn slurm(self) -> Self {
        Options { slurm: true, ..self }
    }

    /// Starts it, and returns when every node takes logins and Slurm, if asked for, has all nodes idle.
    ///
    /// # Errors
    /// [`RigError::Impossible`] where namespaces or packages are missing; otherwise what failed.
    pub fn up(&self) -> Result<Rig, RigError> {
        let mut command = Command::new(SCRIPT);
        // The scripts make the folder, so that they know that it is theirs to remove.
        command.env_remove("RIG").args(["serve", &self.nodes.to_string(), "--gpus", &self.gpus.to_string()]);
        if self.slurm {
            command.arg("--slurm");
        }
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(RigError::NotStarted)?;
        let mut line = String::new();
        if let Some(stdout) = holder.stdout.take() {
            // An unreadable answer is no answer.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if let Some(folder) = line.strip_prefix("ready ") {
            return Ok(Rig { holder, folder: folder.trim_end().into(), nodes: self.nodes });
        }
        drop(holder.stdin.take());
        let _ = holder.wait();
        Err(match line.split_once(": ") {
            Some(("impossible", why)) => RigError::Impossible(why.trim_end().into()),
            Some((_, why)) => RigError::NotUp(why.trim_end().into()),
            None => RigError::NotUp("it said nothing; see above".into()),
        })
    }

    /// Starts it for a test; where it is impossible, prints a line that begins with `skipped` and returns nothing.
    ///
    /// # Panics
    /// When it does not come up although it could.
    pub fn up_or_skip(&self) -> Option<Rig> {
        match self.up() {
            Ok(rig) => Some(rig),
            Err(error @ RigError::Impossible(_)) => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}
