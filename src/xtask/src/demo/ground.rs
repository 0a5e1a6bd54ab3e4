use std::fs;
use std::process::Command;

use camino::Utf8PathBuf;

use crate::failure::{Failure, Result};
use crate::process::command;
use crate::rig;
use crate::workspace::{release_dir, root};

/// Ranks of a demo on this machine.
const RANKS: usize = 2;

/// Where the demo trains.
pub enum Ground {
    /// In processes of this machine.
    Local,
    /// On nodes that stand on this machine for a while.
    Rig {
        /// How many; each has one rank.
        nodes: usize,
        /// The file that names them, or that says what a Slurm job asks for.
        file: Utf8PathBuf,
        /// Whether Slurm starts the run, and not SSH.
        slurm: bool,
    },
}

impl Ground {
    /// Starts a rig of so many nodes with a GPU (that is, a stand-in for nvidia-smi) each.
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

    /// The console in the repository's folder, where its defaults for runs and recipes are right, able to reach the nodes.
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

    /// The arguments that say where a run is to be.
    pub fn place(&self) -> Vec<String> {
        match self {
            Ground::Local => vec!["--local".into(), RANKS.to_string()],
            Ground::Rig { nodes, file, slurm } => {
                let by = if *slurm { "--slurm" } else { "--hostfile" };
                let batch = "train.global_batch=4"; // of both stages, so that each rank has a video
                let sets = ["--set", &format!("mesh.dp_shard={nodes}"), "--set", batch];
                [by, file.as_str()].into_iter().chain(sets).map(str::to_owned).collect()
            }
        }
    }

    /// Says where it was, after "trained … ".
    pub fn said(&self) -> String {
        match self {
            Ground::Local => format!("on this machine, in {RANKS} ranks"),
            Ground::Rig { nodes, slurm, .. } => {
                format!("on {nodes} nodes by {}", if *slurm { "Slurm" } else { "SSH" })
            }
        }
    }

    /// Tells somebody whose console has been closed what still stands; read on the main screen, after the console.
    pub fn say_how_to_leave(&self) {
        if let Ground::Rig { .. } = self {
            println!("the nodes stay up and the run goes on when the console is closed");
            println!(
                "open it again with `cargo xtask rig run target/release/vidtui`, end the nodes with `cargo xtask rig down`"
            );
        }
    }

    /// Ends what was started for the demo alone.
    pub fn leave(&self) {
        if let Ground::Rig { .. } = self {
            // What could not be ended is told by the script itself.
            let _ = rig::script(["down"]).status();
        }
    }
}
