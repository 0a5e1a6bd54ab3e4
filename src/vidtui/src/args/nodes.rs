//! Arguments of the commands that list nodes and their logs, and stop or kill what runs on them.

use super::{JsonArgs, NodesArgs, ShownNodesArgs};
use crate::simulate::Simulation;
use crate::workspace::LATEST;
use camino::Utf8PathBuf;
use clap::Args as Arguments;

/// `vidtui nodes`.
#[derive(Debug, Arguments)]
pub struct NodesCommandArgs {
    /// Shows the nodes of this run [default: the nodes of --hostfile or --slurm, else this machine]
    #[arg(conflicts_with_all = ["hostfile", "slurm", "include", "exclude", "local"])]
    pub run: Option<String>,
    /// Shows this machine
    #[arg(long, conflicts_with_all = ["hostfile", "slurm", "include", "exclude"])]
    pub local: bool,
    #[command(flatten)]
    pub nodes: ShownNodesArgs,
    /// Shows N simulated nodes with eight GPUs each
    #[arg(long, value_name = "N", conflicts_with_all = ["run", "local", "hostfile", "slurm", "include", "exclude"])]
    pub simulate: Option<Simulation>,
    /// Sorts by faults, power, util, memory, temp, processes or name [default: order of the hostfile]
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
    /// Reverses the order
    #[arg(long)]
    pub reverse: bool,
    /// Repeats every 2 seconds until interrupted. With --json, prints one object per line
    #[arg(long, short)]
    pub watch: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui smi`.
#[derive(Debug, Arguments)]
pub struct SmiArgs {
    /// The node: a name in the hostfile, in the Slurm partition or in the run, or a name that `ssh` resolves
    pub node: String,
    /// Looks the node up in this run
    #[arg(long, conflicts_with_all = ["hostfile", "slurm", "include", "exclude"])]
    pub run: Option<String>,
    #[command(flatten)]
    pub nodes: ShownNodesArgs,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui logs`.
#[derive(Debug, Arguments)]
pub struct LogsArgs {
    /// The run
    #[arg(default_value = LATEST)]
    pub run: String,
    /// Prints the log of this rank [default: all ranks, each line with its rank]
    #[arg(long)]
    pub rank: Option<usize>,
    /// Starts with the last N lines of each log [default: all lines]
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Prints new lines until the run has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Prints one JSON object per line. Failures are JSON too
    #[arg(long)]
    pub json: bool,
}

/// Nodes to search for processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
pub struct OnNodesArgs {
    /// Searches the nodes of this hostfile
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Uses only these nodes: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub include: Option<String>,
    /// Leaves these nodes out: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub exclude: Option<String>,
}

impl OnNodesArgs {
    /// Returns the nodes in the form that a launch uses.
    pub fn nodes(&self) -> NodesArgs {
        let Self { hostfile, include, exclude } = self.clone();
        NodesArgs { hostfile, include, exclude, ..NodesArgs::default() }
    }
}

/// `vidtui stop`.
#[derive(Debug, Arguments)]
pub struct StopArgs {
    /// The run [default with --hostfile: all of your runs on its nodes]
    #[arg(required_unless_present = "hostfile")]
    pub run: Option<String>,
    #[command(flatten)]
    pub on: OnNodesArgs,
    /// Waits until the run has ended
    #[arg(long, conflicts_with = "hostfile")]
    pub wait: bool,
    /// Shows the processes and signals none
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui kill`.
#[derive(Debug, Arguments)]
#[command(group(clap::ArgGroup::new("many").args(["pattern", "training"])))]
pub struct KillArgs {
    /// The run [default with --hostfile: all of your runs on its nodes]
    #[arg(required_unless_present_any = ["hostfile", "pattern", "training"])]
    pub run: Option<String>,
    #[command(flatten)]
    pub on: OnNodesArgs,
    /// Ends all runs, orphan processes of runs, and processes of other trainers [on this machine, or on the nodes of --hostfile]
    #[arg(long, conflicts_with_all = ["run", "pattern"])]
    pub training: bool,
    /// Ends all processes with a matching command line [on this machine, or on the nodes of --hostfile]
    #[arg(long, value_name = "REGEX", conflicts_with = "run")]
    pub pattern: Option<String>,
    /// Includes processes of other users, as far as you are permitted to signal them
    #[arg(long, requires = "many")]
    pub all_users: bool,
    /// Includes processes of other users and signals with `sudo -n kill`
    #[arg(long, requires = "many")]
    pub sudo: bool,
    /// Retries unreachable nodes until every process on them has ended
    #[arg(long)]
    pub wait: bool,
    /// Shows the processes and signals none
    #[arg(long)]
    pub dry_run: bool,
    /// Does not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}
