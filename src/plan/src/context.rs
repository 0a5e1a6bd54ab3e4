//! The context of a plan: the time, the user, the trainer and the target.

use camino::Utf8PathBuf;
use cluster::slurm::{Adopted, SlurmSpec};
use cluster::{Hostfile, Node, NodeId, Placement};
use rundir::{Attempt, Lineage, Login, SlurmJob, SpareNode};
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
    /// The trainer binary that the nodes start.
    pub trainer: TrainerBinary,
    /// The path of the `vidtui` binary, which the script of a Slurm job calls.
    pub program: Utf8PathBuf,
    /// The CPU cores of this machine that programs may use.
    pub cores: usize,
    /// The target: the nodes on which the ranks run.
    pub target: Target,
    /// The user's choices about checks and copies, and the warnings of the preparation.
    pub options: StartOptions,
}

/// The parts that are the same in every plan of a start: launch, resume or next stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartOptions {
    /// The names of the checks whose failure does not prevent the start.
    pub waived: Vec<String>,
    /// Whether the trainer is copied to nodes that lack it or have another version.
    pub push: bool,
    /// A few files of the data set, which every node must be able to read.
    pub data_files: Vec<Utf8PathBuf>,
    /// The steps of a new run whose recipe gives its length in epochs.
    pub steps: Option<u64>,
    /// The requirements of an encode; `None` for other tasks.
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
    /// The path, which is the same on every node.
    pub path: Utf8PathBuf,
    /// The version of the binary.
    pub version: String,
    /// The version of the crate tch.
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
    /// Spare nodes: they get no ranks, and can replace nodes that fail.
    pub spares: Vec<SpareNode>,
    /// The address at which the other nodes reach the first node; `None`: its name.
    pub address: Option<String>,
    /// The Slurm request. `nodes` is empty until Slurm has started the job.
    pub slurm: Option<SlurmJob>,
    /// The effect of the user's environment variables on the Slurm request.
    pub adopted: Adopted,
}

/// The rendezvous of the ranks of several nodes, where rank 0 listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Master {
    /// The address of the first node.
    pub address: String,
    /// The port.
    pub port: u16,
}

impl Target {
    /// Makes a target of this machine, with slots for `ranks` ranks.
    pub fn local(hostname: &str, ranks: usize) -> Self {
        let nodes = vec![Node::local(hostname, ranks)];
        Self {
            nodes,
            description: format!("--local {ranks}"),
            logins: Vec::new(),
            spares: Vec::new(),
            address: None,
            slurm: None,
            adopted: Adopted::default(),
        }
    }

    /// Makes a target of the nodes of a hostfile, except the last `spares`, which are spare nodes. The nodes without slots share the
    /// remaining ranks of the `world`.
    pub fn hostfile(hostfile: &Hostfile, world: usize, spares: usize, description: impl Into<String>) -> Self {
        let first = hostfile.entries.len().saturating_sub(spares);
        let given_slots: usize = hostfile.entries[..first].iter().filter_map(|entry| entry.slots).sum();
        let without_slots = hostfile.entries[..first].iter().filter(|entry| entry.slots.is_none()).count().max(1);
        let share = world.saturating_sub(given_slots).div_ceil(without_slots).max(1);
        let login = |entry: &cluster::hostfile::Entry| Login {
            node: entry.node.clone(),
            user: entry.user.clone(),
            port: entry.port,
        };
        let mut nodes = hostfile.nodes(share);
        let mut logins: Vec<Login> = hostfile.entries.iter().map(login).collect();
        let spares = nodes.split_off(first).into_iter().zip(logins.split_off(first));
        let spares = spares.map(|(node, login)| SpareNode { login, slots: node.slots }).collect();
        Self {
            nodes,
            description: description.into(),
            logins,
            spares,
            address: None,
            slurm: None,
            adopted: Adopted::default(),
        }
    }

    /// Makes a target of nodes that Slurm has yet to choose.
    pub fn slurm(spec: SlurmSpec, description: impl Into<String>) -> Self {
        let slurm = Some(SlurmJob { job: None, spec });
        Self {
            nodes: Vec::new(),
            description: description.into(),
            logins: Vec::new(),
            spares: Vec::new(),
            address: None,
            slurm,
            adopted: Adopted::default(),
        }
    }

    /// Makes a target of the nodes of a Slurm job.
    pub fn allocation(job: u64, spec: SlurmSpec, names: Vec<NodeId>) -> Self {
        let nodes = names.into_iter().map(|id| Node { id, slots: spec.gpus_per_node }).collect();
        let slurm = Some(SlurmJob { job: Some(job), spec });
        let description = format!("job {job}");
        let (logins, spares, adopted) = (Vec::new(), Vec::new(), Adopted::default());
        Self { nodes, description, logins, spares, address: None, slurm, adopted }
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
        let (logins, spares) = (attempt.logins.clone(), attempt.spares.clone());
        Self { nodes, description, logins, spares, address: None, slurm: None, adopted: Adopted::default() }
    }

    /// Makes a target of the nodes of an attempt for a resume. Returns `None` if the login of one of them is not known.
    ///
    /// * `listed` — the logins of a hostfile, which replace those of the attempt for the same nodes.
    pub fn for_resume(attempt: &Attempt, listed: &[Login]) -> Option<Self> {
        let mut target = Self::of(attempt);
        let login_of = |node: &NodeId| listed.iter().chain(&attempt.logins).find(|login| login.node == *node).cloned();
        target.logins = target.nodes.iter().map(|node| login_of(&node.id)).collect::<Option<_>>()?;
        for spare in &mut target.spares {
            if let Some(login) = listed.iter().find(|login| login.node == spare.login.node) {
                spare.login = login.clone();
            }
        }
        Some(target)
    }

    /// Returns whether ranks run on nodes that are reached by SSH or that Slurm has allocated.
    pub fn has_other_nodes(&self) -> bool {
        !self.logins.is_empty() || self.slurm.as_ref().is_some_and(|slurm| slurm.job.is_some())
    }

    /// Returns the nodes that get no rank: those that `placement` does not use, and the spare nodes.
    pub(crate) fn spares_beside(&self, placement: &Placement) -> Vec<SpareNode> {
        let is_used = |login: &Login| placement.ranks.iter().any(|place| place.node == login.node);
        let slots = |login: &Login| self.nodes.iter().find(|node| node.id == login.node).map_or(1, |node| node.slots);
        let beside = self.logins.iter().filter(|login| !is_used(login));
        let beside = beside.map(|login| SpareNode { login: login.clone(), slots: slots(login) });
        beside.chain(self.spares.iter().cloned()).collect()
    }

    /// Chooses nodes again, with slots for `ranks` ranks: the usable ones among the nodes and then among the spare nodes, those in
    /// `avoided` last. The other nodes become spare nodes.
    pub fn choose(&mut self, ranks: usize, avoided: &[NodeId], usable: &dyn Fn(&NodeId) -> bool) {
        let login = |node: &Node| self.logins.iter().find(|login| login.node == node.id).cloned();
        let nodes = self.nodes.iter().filter_map(|node| Some(SpareNode { login: login(node)?, slots: node.slots }));
        let pool: Vec<SpareNode> = nodes.chain(std::mem::take(&mut self.spares)).collect();
        let (last, first): (Vec<_>, Vec<_>) = pool.into_iter().partition(|node| avoided.contains(&node.login.node));
        (self.nodes, self.logins) = (Vec::new(), Vec::new());
        for SpareNode { login, slots } in first.into_iter().chain(last) {
            if self.slots() < ranks && usable(&login.node) {
                self.nodes.push(Node { id: login.node.clone(), slots });
                self.logins.push(login);
            } else {
                self.spares.push(SpareNode { login, slots });
            }
        }
    }

    /// Makes the last node a spare node.
    pub(crate) fn set_aside_last(&mut self) {
        let Some(node) = self.nodes.pop() else { return };
        let Some(place) = self.logins.iter().position(|login| login.node == node.id) else { return };
        self.spares.push(SpareNode { login: self.logins.remove(place), slots: node.slots });
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
