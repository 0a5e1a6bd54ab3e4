//! Connects the crate `plan`, which does no I/O, with this machine: runs folder, clock, random numbers, user, trainer.
//!
//! The keys of the console and the commands of the shell both use the workspace, so that they do the same.

use crate::args::NodesArgs;
use crate::command_error::CommandError;
use crate::node_samples::NodeSamples;
use crate::simulate::Simulation;
use camino::{Utf8Path, Utf8PathBuf};
use remote::{Connections, SshOptions, TrainerFinder, Transport};
use rundir::{ErrorCode, Failure, Login, RunDir, RunId};
use std::time::Duration;

mod actions;
mod checkpoints;
mod context;
pub mod conversions;
mod draft;
mod heal;
mod kill;
mod known_runs;
mod launch;
mod launch_options;
mod named_run;
mod node_list;
mod queue;
mod runs;
mod stacks;
mod subject;
mod target;
mod trash;
mod weights;

pub use context::cores;
pub use draft::{DraftFiles, DraftLaunch, draft_of, hashed};
pub use heal::record_heal;
pub use kill::{KillCallbacks, end_healing, execute_kill, report_in_words, waits_in_words};
pub use launch_options::{Init, LaunchOptions};
pub use named_run::{LATEST, Needs};
pub use queue::{Turn, Wait};
pub use stacks::{CollectedStacks, stacks_in_words};
pub use subject::{Fitting, Subject, curriculum, named_stage, recipe_failure, stage_view};

/// The folders, nodes and caches that commands and the console work with.
pub struct Workspace {
    /// The working folder, absolute. Paths in requests are relative to this folder.
    pub here: Utf8PathBuf,
    /// The folder of all runs, absolute.
    pub runs: Utf8PathBuf,
    /// The folder of the curricula, absolute.
    pub configs: Utf8PathBuf,
    /// The node options before the command, which apply by default, but not to a resume in the console. Empty for this machine.
    pub nodes: NodesArgs,
    /// The connections to nodes and to Slurm.
    pub connections: Connections,
    /// The trainer on this machine.
    trainer: TrainerFinder,
    /// The GPU samples of the nodes of watched runs.
    pub samples: NodeSamples,
    known_runs: known_runs::KnownRuns,
    /// The simulated nodes, if they replace the real ones.
    pub simulate: Option<Simulation>,
    /// The time that nodes have to report the processes of a run. The state of a slower node is unknown.
    pub patience: Duration,
}

impl Workspace {
    /// Opens the workspace in the working folder.
    pub fn new(
        runs: &Utf8Path,
        configs: &Utf8Path,
        nodes: NodesArgs,
        patience: Duration,
    ) -> Result<Self, CommandError> {
        let here = std::env::current_dir().map_err(|error| error.to_string());
        let here = here.and_then(|here| Utf8PathBuf::try_from(here).map_err(|error| error.to_string()));
        let here = here.map_err(|why| {
            CommandError::request(Failure::new(
                ErrorCode::Io,
                "cannot use the working folder",
                why,
                "change to an existing folder with cd",
            ))
        })?;
        let connections =
            Connections::new(SshOptions::from_env()).map_err(|error| error.failure("cannot identify this machine"))?;
        Ok(Self {
            runs: here.join(runs),
            configs: here.join(configs),
            here,
            nodes,
            connections,
            trainer: TrainerFinder::default(),
            samples: NodeSamples::default(),
            known_runs: known_runs::KnownRuns::default(),
            simulate: None,
            patience,
        })
    }

    /// Returns the folder of a run.
    pub fn dir(&self, run: &RunId) -> RunDir {
        RunDir::of(&self.runs, run)
    }

    /// Returns a transport to this machine and one to each node.
    pub fn transports(&self, logins: &[Login]) -> Result<Vec<Box<dyn Transport>>, Failure> {
        self.connections.transports(logins).map_err(|error| error.failure("cannot reach this machine"))
    }
}
