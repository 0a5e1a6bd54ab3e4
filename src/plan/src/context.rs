use camino::Utf8PathBuf;
use cluster::slurm::SlurmSpec;
use cluster::{Hostfile, Node, NodeId};
use rundir::{Attempt, Lineage, Login, SlurmJob};
use serde::{Deserialize, Serialize};

/// What a plan needs from outside: clock, dice, user, trainer and place. Whoever plans reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// Now, Unix seconds.
    pub now_s: f64,
    /// Any random number; it becomes the tail of a new run's id.
    pub random: u32,
    /// Who asks, as `user@node`.
    pub by: String,
    /// The folder of all runs, absolute.
    pub runs_root: Utf8PathBuf,
    /// The git commit of the working folder, where there is one.
    pub git_commit: Option<String>,
    /// The trainer that will run.
    pub trainer: TrainerBinary,
    /// This program, which the script of a Slurm job calls.
    pub program: Utf8PathBuf,
    /// Where it will run.
    pub target: Target,
    /// What the user chose about checks and copies, and what the preparation of the request found.
    pub options: StartOptions,
}

/// What is added to every plan of a start, whether it launches, resumes or continues with the next stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartOptions {
    /// The checks whose failure does not refuse the start.
    pub waived: Vec<String>,
    /// Whether the trainer is copied to nodes that lack it or have another version.
    pub push: bool,
    /// Files of the data set that every node must be able to read: a few that stand for all.
    pub data_files: Vec<Utf8PathBuf>,
    /// Warnings about the request itself, such as nodes that were left out.
    pub warnings: Vec<String>,
}

/// The trainer binary as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerBinary {
    /// Where it is.
    pub path: Utf8PathBuf,
    /// Its version.
    pub version: String,
    /// The version of its binding to libtorch.
    pub tch: String,
    /// The version of the libtorch it runs with.
    pub libtorch: String,
    /// Whether that libtorch was built for GPUs.
    pub cuda: bool,
    /// Hash of the file.
    pub sha256: String,
}

/// Where the ranks of a run go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The nodes, each with its slots.
    pub nodes: Vec<Node>,
    /// How the user said it, such as `--local 2`; refusals repeat it.
    pub description: String,
    /// How the nodes are reached by SSH; empty for this machine.
    pub logins: Vec<Login>,
    /// The first node's address as the others see it; its name, when nobody says.
    pub address: Option<String>,
    /// What is asked of Slurm. Its job, once it has begun, has `nodes`; until then there are none.
    pub slurm: Option<SlurmJob>,
}

/// Where the ranks of several nodes meet: rank 0 listens there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Master {
    /// The first node's address.
    pub address: String,
    /// The port.
    pub port: u16,
}

impl Target {
    /// Takes this machine, with room for `ranks` ranks.
    pub fn local(hostname: &str, ranks: usize) -> Self {
        let nodes = vec![Node::local(hostname, ranks)];
        Self { nodes, description: format!("--local {ranks}"), logins: Vec::new(), address: None, slurm: None }
    }

    /// Takes the nodes of a hostfile. Those that do not say their slots share the `world` ranks that the others leave.
    pub fn hostfile(hostfile: &Hostfile, world: usize, description: impl Into<String>) -> Self {
        let said_slots: usize = hostfile.entries.iter().filter_map(|entry| entry.slots).sum();
        let silent = hostfile.entries.iter().filter(|entry| entry.slots.is_none()).count().max(1);
        let share = world.saturating_sub(said_slots).div_ceil(silent).max(1);
        let login = |entry: &cluster::hostfile::Entry| Login {
            node: entry.node.clone(),
            user: entry.user.clone(),
            port: entry.port,
        };
        let logins = hostfile.entries.iter().map(login).collect();
        Self { nodes: hostfile.nodes(share), description: description.into(), logins, address: None, slurm: None }
    }

    /// Takes the nodes that Slurm will choose.
    pub fn slurm(spec: SlurmSpec, description: impl Into<String>) -> Self {
        let slurm = Some(SlurmJob { job: None, spec });
        Self { nodes: Vec::new(), description: description.into(), logins: Vec::new(), address: None, slurm }
    }

    /// Takes the nodes that Slurm has chosen for a job.
    pub fn allocation(job: u64, spec: SlurmSpec, names: Vec<NodeId>) -> Self {
        let nodes = names.into_iter().map(|id| Node { id, slots: spec.gpus_per_node }).collect();
        let slurm = Some(SlurmJob { job: Some(job), spec });
        Self { nodes, description: format!("job {job}"), logins: Vec::new(), address: None, slurm }
    }

    /// Returns what is asked of Slurm, as long as it has not chosen the nodes.
    pub fn pending_slurm(&self) -> Option<&SlurmSpec> {
        self.slurm.as_ref().filter(|_| self.nodes.is_empty()).map(|slurm| &slurm.spec)
    }

    /// Takes the nodes on which an attempt ran, each with as many ranks as it had.
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

    /// Leaves a node out.
    pub fn without(&mut self, node: &NodeId) {
        self.nodes.retain(|other| other.id != *node);
        self.logins.retain(|other| other.node != *node);
    }

    /// Returns the ranks that all nodes take together.
    pub fn slots(&self) -> usize {
        let of_nodes = || self.nodes.iter().map(|node| node.slots).sum();
        self.pending_slurm().map_or_else(of_nodes, SlurmSpec::world)
    }
}

/// Weights that a run begins from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// A complete step directory.
    pub path: Utf8PathBuf,
    /// The run that trained them, when they lie in one.
    pub lineage: Option<Lineage>,
}
