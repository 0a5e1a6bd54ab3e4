//! The place where the demo runs: this machine, or nodes of a rig.

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
pub enum Ground {
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

impl Ground {
    /// Starts a rig of nodes with one simulated GPU each.
    pub fn rig(nodes: usize, slurm: bool) -> Result<Self> {
        let count = nodes.to_string();
        rig::up(&[&count, "--gpus", "1"], slurm)?;
        let folder = rig::folder();
        let file = if slurm { folder.join("slurm.toml") } else { folder.join("hostfile") };
        let ground = Ground::Rig { nodes, file, slurm };
        match &ground {
            Ground::Rig { file, slurm: true, .. } => {
                let job = format!("partition = \"train\"\nnodes = {nodes}\ngpus_per_node = 1\ntime = \"1:00:00\"\n");
                let written = fs::write(file, job).map_err(|e| {
                    Failure::new(format!("cannot write {file}"), e, "end the rig with `cargo xtask rig down`")
                });
                written.inspect_err(|_| ground.leave()).map(|()| ground)
            }
            _ => Ok(ground),
        }
    }

    /// Returns a command of the console in the repository's folder, from where the nodes can be reached.
    pub fn vidtui(&self, args: &[&str]) -> Command {
        let program = release_dir().join("vidtui");
        let mut vidtui = match self {
            Ground::Local => command(program, args),
            Ground::Rig { .. } => {
                let mut vidtui = rig::script(["run", program.as_str()]);
                vidtui.args(args);
                vidtui
            }
        };
        vidtui.current_dir(root());
        vidtui
    }

    /// Returns the arguments that select where a run works.
    pub fn place(&self) -> Vec<String> {
        match self {
            Ground::Local => vec!["--local".into(), RANKS.to_string()],
            Ground::Rig { file, slurm, .. } => {
                vec![if *slurm { "--slurm" } else { "--hostfile" }.into(), file.to_string()]
            }
        }
    }

    /// Returns the arguments that fit a recipe to the ranks.
    pub fn sets(&self) -> Vec<String> {
        match self {
            Ground::Local => Vec::new(),
            Ground::Rig { nodes, .. } => vec!["--set".into(), format!("mesh.dp_shard={nodes}")],
        }
    }

    /// Describes where the demo ran, to follow "in 300 s ".
    pub fn location(&self) -> String {
        match self {
            Ground::Local => format!("on this machine, in {RANKS} ranks"),
            Ground::Rig { nodes, slurm, .. } => {
                format!("on {nodes} nodes by {}", if *slurm { "Slurm" } else { "SSH" })
            }
        }
    }

    /// Prints what keeps running after the console closes. The console leaves this text on the main screen.
    pub fn print_how_to_end(&self) {
        if let Ground::Rig { .. } = self {
            println!("closing the console stops neither the run nor the nodes");
            println!(
                "reopen it with `cargo xtask rig run target/release/vidtui`; end the nodes with `cargo xtask rig down`"
            );
        }
    }

    /// Ends the rig.
    pub fn leave(&self) {
        if let Ground::Rig { .. } = self {
            // The script reports its own errors.
            let _ = rig::script(["down"]).status();
        }
    }
}
