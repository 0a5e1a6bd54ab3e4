//! The options of a rig: its nodes, GPUs and services.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::{Rig, RigError, SCRIPT};

/// The nodes and services of a rig.
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

    /// Adds Slurm with the partitions `train` (all nodes), `urgent` (all nodes; its jobs preempt those of `train`) and `debug`
    /// (the first node).
    pub fn slurm(self) -> Self {
        Options { slurm: true, ..self }
    }

    /// Starts the rig; returns when every node accepts logins and Slurm, if added, reports all nodes idle.
    ///
    /// # Errors
    /// [`RigError::Impossible`] if namespaces or packages are missing, [`RigError::NotStarted`] if the script cannot be
    /// executed, and [`RigError::NotUp`] with the script's message if another step fails.
    pub fn up(&self) -> Result<Rig, RigError> {
        let mut command = Command::new(SCRIPT);
        // Without `RIG`, the scripts create a new folder and remove it at the end.
        command.env_remove("RIG").args(["serve", &self.nodes.to_string(), "--gpus", &self.gpus.to_string()]);
        if self.slurm {
            command.arg("--slurm");
        }
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(RigError::NotStarted)?;
        let mut line = String::new();
        if let Some(stdout) = holder.stdout.take() {
            // A read error leaves the line empty, which counts as a failed start.
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
            None => RigError::NotUp("the script printed nothing on standard output; see above".into()),
        })
    }

    /// Starts the rig for a test. Where no rig is possible, prints a line that begins with `skipped` and returns `None`.
    ///
    /// # Panics
    /// When the start fails on a machine that can run a rig.
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
