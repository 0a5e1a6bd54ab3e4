//! The nodes of a program that is watched.

use crate::args::AttachArgs;
use crate::command_error::CommandError;
use crate::workspace::Workspace;
use cluster::slurm::{JobDetails, JobState};
use cluster::{Hostfile, NodeId, hostlist};
use plan::Target;
use recipe::literal_word;
use rundir::{ErrorCode, Failure, RunDir};

/// Watches the log on the first node, and the GPUs of all nodes.
const WATCH: &str = include_str!("watch.sh");

/// The nodes of a program on other machines.
pub(super) struct ProgramNodes {
    /// The nodes, with a slot for each GPU.
    pub target: Target,
    /// The node that reads the log.
    pub first: NodeId,
    /// The number of GPUs.
    pub world: usize,
    /// The Slurm job of the program.
    job: Option<u64>,
}

impl ProgramNodes {
    /// Finds the nodes that the arguments name; `None`: this machine alone.
    ///
    /// # Errors
    /// The hostfile cannot be used, Slurm does not run the job, or the first node has no address.
    pub fn of(workspace: &Workspace, args: &AttachArgs) -> Result<Option<Self>, CommandError> {
        let given = args.nodes.nodes();
        let (hostfile, description) = match (args.nodes.slurm_job, &given.hostfile) {
            (Some(job), _) => (nodes_of_job(job)?, format!("Slurm job {job}")),
            (None, Some(path)) => (workspace.hostfile(path, &given)?, format!("hostfile {path}")),
            (None, None) => return Ok(None),
        };
        let world = hostfile.entries.iter().map(|entry| entry.slots.unwrap_or(1)).sum();
        let Some(first) = hostfile.entries.first().map(|entry| entry.node.clone()) else { return Ok(None) };
        let target = workspace.with_address(Target::hostfile(&hostfile, world, 0, description))?;
        Ok(Some(Self { target, first, world, job: args.nodes.slurm_job }))
    }

    /// Returns whether the first node is this machine.
    pub fn first_is_here(&self, workspace: &Workspace) -> bool {
        let login = self.target.logins.iter().find(|login| login.node == self.first);
        login.is_some_and(|login| workspace.connections.is_this_node(login))
    }

    /// Returns the command of every node. `tail` has the arguments with which the first node follows the log, which is at `path`.
    pub fn command(&self, path: &str, tail: Vec<String>) -> Vec<String> {
        let job = self.job.map_or_else(String::new, |job| job.to_string());
        let ended = RunDir::new("{run_dir}").exit_toml(&self.first, 1);
        let own = ["sh", "-c", &literal_word(WATCH), "watch", "{node_rank}", &literal_word(path), ended.as_str(), &job];
        own.iter().map(|word| (*word).to_owned()).chain(tail).collect()
    }

    /// Returns the nodes, in words.
    pub fn in_words(&self) -> String {
        let Target { nodes, description, .. } = &self.target;
        let gpus = units::counted(self.world, "GPU");
        format!("{} of {description}, with {gpus}; {} reads the log", units::counted(nodes.len(), "node"), self.first)
    }

    /// Returns what ends the run, if no process does.
    pub fn end_in_words(&self) -> String {
        match self.job {
            Some(job) => format!("Slurm job {job}; the run ends with it"),
            None => format!("unknown; give the one on {} with --pid. The run lasts until you stop it", self.first),
        }
    }
}

/// Returns the nodes of a running job, with as many slots as Slurm has allocated GPUs on each.
fn nodes_of_job(job: u64) -> Result<Hostfile, CommandError> {
    let cannot = |code, why: String, fix: &str| {
        CommandError::request(Failure::new(code, format!("cannot attach to Slurm job {job}"), why, fix))
    };
    let Some(details) = remote::job_details(job) else {
        let fix = "list your jobs with `squeue --me`; on a machine without Slurm, name the nodes with --hostfile";
        return Err(cannot(ErrorCode::NotFound, "Slurm reports no such job here".into(), fix));
    };
    if details.state != JobState::Running {
        let why = format!("its state is {}, and only a running job has nodes", details.state);
        return Err(cannot(ErrorCode::SlurmJobState, why, "wait until it runs: `squeue --me`"));
    }
    let names = details.node_list.as_deref().map_or(Ok(Vec::new()), hostlist::expand);
    let names =
        names.map_err(|error| cannot(ErrorCode::SlurmJobState, error.to_string(), "name its nodes with --hostfile"))?;
    let slots = gpus_per_node(&details);
    let lines: String = names.iter().map(|name| format!("{name} slots={slots}\n")).collect();
    Hostfile::parse(&lines)
        .map_err(|error| cannot(ErrorCode::SlurmJobState, error.to_string(), "name its nodes with --hostfile"))
}

/// Returns the GPUs of a job on each node, and at least 1: `gres/gpu:8`, `gres:gpu:a100:8`.
fn gpus_per_node(details: &JobDetails) -> usize {
    let per_node = details.get("TresPerNode").unwrap_or_default();
    let gpus = per_node.split(',').find(|part| part.contains("gpu"));
    let number = gpus.and_then(|part| part.rsplit([':', '=']).next()?.parse().ok());
    number.unwrap_or(1).max(1)
}
