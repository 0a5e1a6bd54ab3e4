//! Arguments of the commands that exchange runs with other tools.

use super::{JsonArgs, NodesArgs, ThenArgs};
use crate::workspace::LATEST;
use camino::Utf8PathBuf;
use clap::Args as Arguments;

/// `vidtui import`.
#[derive(Debug, Arguments)]
pub struct ImportArgs {
    /// Folders of TensorBoard event files, offline runs of W&B, files of these, or folders with several of them
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<Utf8PathBuf>,
    /// Name of the run, a part of its id, if there is one log [default: that in the log, or of the folder]
    #[arg(long)]
    pub name: Option<String>,
    /// Also imports logs that were imported before
    #[arg(long)]
    pub again: bool,
    /// Shows the runs and creates none
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui attach`.
#[derive(Debug, Arguments)]
pub struct AttachArgs {
    /// The log of the program, a folder of TensorBoard event files, or a run of W&B; of several in a folder, the one that was written last
    #[arg(value_name = "PATH")]
    pub path: Utf8PathBuf,
    /// The process with which the run ends, on this machine or the first node [default: the oldest one here that writes the log]
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub nodes: ProgramNodesArgs,
    /// All steps of the program [default: those that its progress bar shows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Reads lines of the log by this regular expression with named groups, such as `it (?<step>\d+) .* l=(?<loss>\S+)` (repeatable)
    #[arg(long, value_name = "REGEX")]
    pub pattern: Vec<String>,
    /// Name of the run, a part of its id [default: that of the log]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// The nodes of a program that is watched.
#[derive(Debug, Clone, Default, Arguments)]
pub struct ProgramNodesArgs {
    /// Also watches the GPUs of the nodes of this hostfile, over SSH; the first one must see the log
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Uses only these nodes: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub include: Option<String>,
    /// Leaves these nodes out: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub exclude: Option<String>,
    /// Also watches the GPUs of the nodes of this Slurm job, over SSH; the run ends with the job
    #[arg(long, value_name = "ID", conflicts_with_all = ["hostfile", "pid"])]
    pub slurm_job: Option<u64>,
    /// Copies the program that watches to nodes where it is missing or differs
    #[arg(long)]
    pub push: bool,
}

impl ProgramNodesArgs {
    /// Returns the nodes of the hostfile in the form that a launch uses.
    pub fn nodes(&self) -> NodesArgs {
        let Self { hostfile, include, exclude, push, .. } = self.clone();
        NodesArgs { hostfile, include, exclude, push, ..NodesArgs::default() }
    }
}

/// `vidtui report`.
#[derive(Debug, Arguments)]
pub struct ReportArgs {
    /// The run
    #[arg(default_value = LATEST)]
    pub run: String,
    /// The file to write [default: the id of the run, with .html, in this folder]
    #[arg(long, value_name = "FILE.html")]
    pub out: Option<Utf8PathBuf>,
    /// Embeds samples up to this total size, newest first; links to the others
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "20MB")]
    pub embed: u64,
    /// Replaces an existing file
    #[arg(long)]
    pub force: bool,
}
