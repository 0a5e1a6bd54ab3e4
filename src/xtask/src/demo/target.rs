//! The place where the demo runs: this machine, or nodes of a rig, which are network namespaces on this machine.

use std::fs;
use std::process::Command;

use camino::Utf8PathBuf;

use crate::failure::{Failure, Result};
use crate::process::command;
use crate::rig;
use crate::workspace::{release_dir, root};

/// Ranks of a demo on this machine.
const RANKS: usize = 2;

/// The place where the demo runs.
pub enum Target {
    /// In processes of this machine.
    Local,
    /// On nodes of a rig.
    Rig {
        /// The number of nodes; each has one rank.
        nodes: usize,
        /// The hostfile, or the file with the request of the Slurm job.
        file: Utf8PathBuf,
        /// Whether Slurm starts the run; otherwise SSH.
        slurm: bool,
    },
}

impl Target {
    /// Starts a rig of nodes with one simulated GPU each.
    pub fn rig(nodes: usize, slurm: bool) -> Result<Self> {
        let count = nodes.to_string();
        rig::up(&[&count, "--gpus", "1"], slurm)?;
        let folder = rig::folder();
        let file = if slurm { folder.join("slurm.toml") } else { folder.join("hostfile") };
        let target = Target::Rig { nodes, file, slurm };
        match &target {
            Target::Rig { file, slurm: true, .. } => {
                let job = format!("partition = \"train\"\nnodes = {nodes}\ngpus_per_node = 1\ntime = \"1:00:00\"\n");
                let written = fs::write(file, job).map_err(|e| {
                    Failure::new(format!("cannot write {file}"), e, "end the rig with `cargo xtask rig down`")
                });
                written.inspect_err(|_| target.leave()).map(|()| target)
            }
            _ => Ok(target),
        }
    }

    /// Returns a command of the console that runs in the repository's folder and can reach the nodes.
    pub fn vidtui(&self, args: &[&str]) -> Command {
        let program = release_dir().join("vidtui");
        let mut vidtui = match self {
            Target::Local => command(program, args),
            Target::Rig { .. } => {
                let mut vidtui = rig::script(["run", program.as_str()]);
                vidtui.args(args);
                vidtui
            }
        };
        vidtui.current_dir(root());
        vidtui
    }

    /// Returns the arguments that select the nodes of a run.
    pub fn place(&self) -> Vec<String> {
        match self {
            Target::Local => vec!["--local".into(), RANKS.to_string()],
            Target::Rig { file, slurm, .. } => {
                vec![if *slurm { "--slurm" } else { "--hostfile" }.into(), file.to_string()]
            }
        }
    }

    /// Returns the arguments that fit a recipe to the ranks.
    pub fn sets(&self) -> Vec<String> {
        match self {
            Target::Local => Vec::new(),
            Target::Rig { nodes, .. } => vec!["--set".into(), format!("mesh.dp_shard={nodes}")],
        }
    }

    /// Describes where the demo ran, to follow "in 300 s ".
    pub fn location(&self) -> String {
        match self {
            Target::Local => format!("on this machine, in {RANKS} ranks"),
            Target::Rig { nodes, slurm, .. } => {
                format!("on {nodes} nodes by {}", if *slurm { "Slurm" } else { "SSH" })
            }
        }
    }

    /// Prints what keeps running after the console closes. The console leaves this text on the main screen.
    pub fn print_how_to_end(&self) {
        if let Target::Rig { .. } = self {
            println!("closing the console stops neither the run nor the nodes");
            println!(
                "reopen it with `cargo xtask rig run target/release/vidtui`; end the nodes with `cargo xtask rig down`"
            );
        }
    }

    /// Ends the rig.
    pub fn leave(&self) {
        if let Target::Rig { .. } = self {
            // The script reports its own errors.
            let _ = rig::script(["down"]).status();
        }
    }
}
