//! Joins the pure plans with this machine: the runs folder, the clock, dice, the user, the trainer.
//!
//! Keys of the console and commands of the shell both come through here, so that they cannot differ.

use crate::args::NodesArgs;
use crate::node_samples::NodeSamples;
use crate::refusal::Refusal;
use camino::{Utf8Path, Utf8PathBuf};
use remote::{Fleet, SshOptions, Transport};
use rundir::{Failure, Login, RunDir, RunId};
use std::time::Duration;

mod context;
mod kill;
mod launch;
mod node_list;
mod runs;
mod stacks;
mod subject;
mod target;
mod weights;

pub use context::program;
pub use kill::{report_in_words, waits_in_words};
pub use launch::LaunchOptions;
pub use stacks::stacks_in_words;
pub use subject::{Fitting, Subject, curriculum, named_stage, stage_view};
pub use weights::Init;

/// Where we are: every path of a request is relative to this.
pub struct Workspace {
    /// The working folder, absolute.
    pub here: Utf8PathBuf,
    /// The folder of all runs, absolute.
    pub runs: Utf8PathBuf,
    /// The folder that curricula are looked for in, absolute.
    pub configs: Utf8PathBuf,
    /// The nodes on which the console trains; none for this machine.
    pub nodes: NodesArgs,
    /// The nodes that we have to do with.
    pub fleet: Fleet,
    /// What nodes wrote of their GPUs.
    pub samples: NodeSamples,
    /// How many nodes are made up, instead of those that there are.
    pub simulate: Option<usize>,
    /// How long nodes may take to say whether a run's processes are there. Those that need longer count as unknown.
    pub patience: Duration,
}

impl Workspace {
    /// Sets up the workspace in the working folder.
    pub fn new(runs: &Utf8Path, configs: &Utf8Path, nodes: NodesArgs, patience: Duration) -> Result<Self, Refusal> {
        let here = std::env::current_dir().map_err(|error| error.to_string());
        let here = here.and_then(|here| Utf8PathBuf::try_from(here).map_err(|error| error.to_string()));
        let here = here.map_err(|why| {
            Refusal::request(Failure::new(
                rundir::ErrorCode::Unclassified,
                "cannot use the working folder",
                why,
                "change into a folder that exists: cd",
            ))
        })?;
        let fleet =
            Fleet::new(SshOptions::from_env()).map_err(|error| error.failure("cannot tell which machine this is"))?;
        Ok(Self {
            runs: here.join(runs),
            configs: here.join(configs),
            here,
            nodes,
            fleet,
            samples: NodeSamples::default(),
            simulate: None,
            patience,
        })
    }

    /// The folder of a run.
    pub fn dir(&self, run: &RunId) -> RunDir {
        RunDir::of(&self.runs, run)
    }

    /// The ways to this machine's processes and to those of nodes.
    pub fn transports(&self, logins: &[Login]) -> Result<Vec<Box<dyn Transport>>, Failure> {
        self.fleet.transports(logins).map_err(|error| error.failure("cannot reach this machine"))
    }
}
