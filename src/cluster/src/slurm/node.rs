//! Parses the nodes that sinfo lists, with their states and flags.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Rows;
use super::value::{SlurmTime, gpus, text, time};
use crate::NodeId;

/// A node in one of its partitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlurmNode {
    /// The name.
    pub node: NodeId,
    /// The partition.
    pub partition: String,
    /// Whether this is the default partition.
    pub is_default: bool,
    /// The state.
    pub state: NodeState,
    /// CPUs that jobs can request.
    pub cpus: Option<u64>,
    /// Memory that jobs can request.
    pub mem_mib: Option<u64>,
    /// The number of GPUs.
    pub gpus: Option<u64>,
    /// When the reason was set.
    pub reason_since: Option<SlurmTime>,
    /// Why it is down or drained.
    pub reason: Option<String>,
}

/// The state of a node with its flags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// The base state.
    pub base: NodeBase,
    /// Whether it answers Slurm; `*` means that it does not.
    pub responds: bool,
    /// Whether it is powered on; `~`, `#`, `%` and `!` mean that it is off or changing.
    pub powered: bool,
    /// Whether it is in maintenance or pending a reboot: `$`, `@` and `^`.
    pub in_maintenance: bool,
}

/// The base state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeBase {
    /// No jobs.
    Idle,
    /// Jobs use part of it.
    Mixed,
    /// Jobs use all of it.
    Allocated,
    /// A job on it is ending.
    Completing,
    /// Reserved for a pending job.
    Planned,
    /// Accepts no jobs; its jobs continue.
    Draining,
    /// Accepts no jobs and has none.
    Drained,
    /// Not usable.
    Down,
    /// Another state, with Slurm's name.
    Other(String),
}

impl NodeBase {
    const NAMED: [(NodeBase, &str); 8] = [
        (NodeBase::Idle, "idle"),
        (NodeBase::Mixed, "mixed"),
        (NodeBase::Allocated, "allocated"),
        (NodeBase::Completing, "completing"),
        (NodeBase::Planned, "planned"),
        (NodeBase::Draining, "draining"),
        (NodeBase::Drained, "drained"),
        (NodeBase::Down, "down"),
    ];
}

impl fmt::Display for NodeBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeBase::Other(word) => f.pad(word),
            known => f.pad(NodeBase::NAMED.iter().find(|(base, _)| base == known).map_or("", |(_, name)| name)),
        }
    }
}

/// Shows the state as Slurm does, with the most important flag: `drained`, `down*`.
impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self {
            NodeState { responds: false, .. } => "*",
            NodeState { powered: false, .. } => "~",
            NodeState { in_maintenance: true, .. } => "$",
            _ => "",
        };
        f.pad(&format!("{}{sign}", self.base))
    }
}

impl NodeState {
    /// Reads Slurm's name and flags of a state: `idle`, `down*`, `mixed-`.
    fn read(word: &str) -> NodeState {
        const SIGNS: [char; 10] = ['*', '~', '#', '%', '!', '$', '@', '^', '-', '+'];
        let bare = word.trim_end_matches(SIGNS);
        let signs = &word[bare.len()..];
        let named = NodeBase::NAMED.iter().find(|(_, name)| *name == bare);
        NodeState {
            base: named.map_or_else(|| NodeBase::Other(bare.into()), |(base, _)| base.clone()),
            responds: !signs.contains('*'),
            powered: !signs.contains(['~', '#', '%', '!']),
            in_maintenance: signs.contains(['$', '@', '^']),
        }
    }

    /// Returns whether jobs can start on the node, now or after others have ended.
    pub fn takes_jobs(&self) -> bool {
        use NodeBase::*;
        self.responds && !self.in_maintenance && matches!(self.base, Idle | Mixed | Allocated | Completing | Planned)
    }
}

/// Reads the output of [`NODES`](super::NODES).
pub fn read_nodes(answer: &str) -> Rows<SlurmNode> {
    Rows::read(answer, 8, |cells| {
        let &[node, partition, state, cpus, memory, gres, since, reason] = cells else { return None };
        Some(SlurmNode {
            node: NodeId::new(node).ok()?,
            partition: partition.trim_end_matches('*').into(),
            is_default: partition.ends_with('*'),
            state: NodeState::read(state),
            cpus: cpus.parse().ok(),
            mem_mib: memory.parse().ok(),
            gpus: gpus(gres),
            reason_since: time(since),
            reason: text(reason),
        })
    })
}
