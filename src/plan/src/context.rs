//! The context of a plan: the time, the user, the trainer and the target.

use camino::Utf8PathBuf;
use cluster::slurm::SlurmSpec;
use cluster::{Hostfile, Node, NodeId};
use rundir::{Attempt, Lineage, Login, SlurmJob};
use serde::{Deserialize, Serialize};

/// The inputs of every plan, which the caller reads from the system.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// The current time, Unix seconds.
    pub now_s: f64,
    /// A random number, for the end of a new run's id and for the port of the rendezvous.
    pub random: u32,
    /// The user who makes the request, as `user@node`.
    pub by: String,
    /// The folder of all runs, absolute.
    pub runs_root: Utf8PathBuf,
    /// The git commit of the working folder, if it is a repository.
    pub git_commit: Option<String>,
    /// The trainer.
    pub trainer: TrainerBinary,
    /// The path of this program, which the script of a Slurm job calls.
    pub program: Utf8PathBuf,
    /// The target: the nodes on which the ranks run.
    pub target: Target,
    /// The user's choices about checks and copies, and the warnings of the preparation.
    pub options: StartOptions,
}

/// The parts that are the same in every plan of a start: launch, resume or next stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartOptions {
    /// The checks that may fail without refusing the start.
    pub waived: Vec<String>,
    /// Whether the trainer is copied to nodes that lack it or have another version.
    pub push: bool,
    /// A few files of the data set, which every node must be able to read.
    pub data_files: Vec<Utf8PathBuf>,
    /// The steps of a new run whose recipe gives its length in epochs.
    pub steps: Option<u64>,
    /// The requirements of an encode, if the recipe encodes.
    pub encode: Option<EncodeFacts>,
    /// Warnings about the request itself, such as nodes that were left out.
    pub warnings: Vec<String>,
}

/// The inputs, outputs and memory of an encode, which the caller computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodeFacts {
    /// The disk space that the data set needs, at most.
    pub disk_bytes: u64,
    /// The rows of the summary: clips, size, memory.
    pub rows: Vec<(String, String)>,
}

/// The trainer binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerBinary {
    /// Its path.
    pub path: Utf8PathBuf,
    /// Its version.
    pub version: String,
    /// The version of its binding to libtorch.
    pub tch: String,
    /// The version of libtorch.
    pub libtorch: String,
    /// Whether libtorch was built for GPUs.
    pub cuda: bool,
    /// The SHA-256 hash of the file.
    pub sha256: String,
}

/// The nodes on which the ranks of a run start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The nodes, each with its slots.
    pub nodes: Vec<Node>,
    /// A description for errors, such as `--local 2`.
    pub description: String,
    /// The SSH logins of the nodes; empty for this machine.
    pub logins: Vec<Login>,
    /// The address of the first node for the other nodes; default: its name.
    pub address: Option<String>,
    /// The Slurm request. `nodes` is empty until Slurm has started the job.
    pub slurm: Option<SlurmJob>,
}

/// The rendezvous of the ranks of several nodes, where rank 0 listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Master {
    /// The first node's address.
    pub address: String,
    /// The port.
    pub port: u16,
}

impl Target {
    /// Makes a target of this machine, with slots for `ranks` ranks.
    pub fn local(hostname: &str, ranks: usize) -> Self {
        let nodes = vec![Node::local(hostname, ranks)];
        Self { nodes, description: format!("--local {ranks}"), logins: Vec::new(), address: None, slurm: None }
    }

    /// Makes a target of the nodes of a hostfile. The nodes without slots share the remaining ranks of the `world`.
    pub fn hostfile(hostfile: &Hostfile, world: usize, description: impl Into<String>) -> Self {
        let given_slots: usize = hostfile.entries.iter().filter_map(|entry| entry.slots).sum();
        let without_slots = hostfile.entries.iter().filter(|entry| entry.slots.is_none()).count().max(1);
        let share = world.saturating_sub(given_slots).div_ceil(without_slots).max(1);
        let login = |entry: &cluster::hostfile::Entry| Login {
            node: entry.node.clone(),
            user: entry.user.clone(),
            port: entry.port,
        };
        let logins = hostfile.entries.iter().map(login).collect();
        Self { nodes: hostfile.nodes(share), description: description.into(), logins, address: None, slurm: None }
    }

    /// Makes a target of nodes that Slurm has yet to choose.
    pub fn slurm(spec: SlurmSpec, description: impl Into<String>) -> Self {
        let slurm = Some(SlurmJob { job: None, spec });
        Self { nodes: Vec::new(), description: description.into(), logins: Vec::new(), address: None, slurm }
    }

    /// Makes a target of the nodes of a Slurm job.
    pub fn allocation(job: u64, spec: SlurmSpec, names: Vec<NodeId>) -> Self {
        let nodes = names.into_iter().map(|id| Node { id, slots: spec.gpus_per_node }).collect();
        let slurm = Some(SlurmJob { job: Some(job), spec });
        Self { nodes, description: format!("job {job}"), logins: Vec::new(), address: None, slurm }
    }

    /// Returns the Slurm request if Slurm has not chosen the nodes yet.
    pub fn pending_slurm(&self) -> Option<&SlurmSpec> {
        self.slurm.as_ref().filter(|_| self.nodes.is_empty()).map(|slurm| &slurm.spec)
    }

    /// Makes a target of the nodes of an attempt, each with the ranks that it had.
    pub fn of(attempt: &Attempt) -> Self {
        let by_node = attempt.placement.by_node();
        let nodes: Vec<Node> =
            by_node.into_iter().map(|(node, places)| Node { id: node.clone(), slots: places.len() }).collect();
        let description = format!("the {} of attempt {}", units::counted(nodes.len(), "node"), attempt.number);
        Self { nodes, description, logins: attempt.logins.clone(), address: None, slurm: None }
    }

    /// Returns whether ranks run on nodes that are reached by SSH or that Slurm has allocated.
    pub fn has_other_nodes(&self) -> bool {
        !self.logins.is_empty() || self.slurm.as_ref().is_some_and(|slurm| slurm.job.is_some())
    }

    /// Removes a node.
    pub fn without(&mut self, node: &NodeId) {
        self.nodes.retain(|other| other.id != *node);
        self.logins.retain(|other| other.node != *node);
    }

    /// Returns the number of ranks that all nodes have slots for.
    pub fn slots(&self) -> usize {
        let of_nodes = || self.nodes.iter().map(|node| node.slots).sum();
        self.pending_slurm().map_or_else(of_nodes, SlurmSpec::world)
    }
}

/// Weights that a run starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// A complete step directory.
    pub path: Utf8PathBuf,
    /// The run that saved them, if they belong to one.
    pub lineage: Option<Lineage>,
}
