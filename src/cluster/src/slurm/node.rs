//! Nodes, as Slurm sees them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Rows;
use super::value::{SlurmTime, gpus, text, time};
use crate::NodeId;

/// A node in one of its partitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlurmNode {
    /// Its name.
    pub node: NodeId,
    /// The partition.
    pub partition: String,
    /// Whether jobs go there that name no partition.
    pub is_default: bool,
    /// What it does.
    pub state: NodeState,
    /// Its cores, as jobs may ask for them.
    pub cpus: Option<u64>,
    /// Its memory, as jobs may ask for it.
    pub mem_mib: Option<u64>,
    /// Its GPUs.
    pub gpus: Option<u64>,
    /// Since when there is a reason.
    pub reason_since: Option<SlurmTime>,
    /// Why it is down or drained.
    pub reason: Option<String>,
}

/// What a node does, and what is said of it besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// What it does.
    pub base: NodeBase,
    /// Whether it answers Slurm: `*` says that it does not.
    pub responds: bool,
    /// Whether it is powered: `~`, `#`, `%` and `!` say that it is off, or between on and off.
    pub powered: bool,
    /// Whether it is reserved for maintenance or waits for a reboot: `$`, `@` and `^`.
    pub in_maintenance: bool,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeBase {
    /// Nothing.
    Idle,
    /// Jobs use part of it.
    Mixed,
    /// Jobs use all of it.
    Allocated,
    /// A job on it ends.
    Completing,
    /// It is kept for a job that is to begin.
    Planned,
    /// It takes no jobs; those that it has go on.
    Draining,
    /// It takes no jobs and has none.
    Drained,
    /// It is not usable.
    Down,
    /// A state that this program does not know, in Slurm's word.
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

/// Writes it as Slurm does, with the sign for what matters most: `drained`, `down*`.
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
    /// Reads Slurm's word and the signs behind it: `idle`, `down*`, `mixed-`.
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

    /// Says whether a job could begin there, now or when others end.
    pub fn takes_jobs(&self) -> bool {
        use NodeBase::*;
        self.responds && !self.in_maintenance && matches!(self.base, Idle | Mixed | Allocated | Completing | Planned)
    }
}

/// Reads the answer to [`NODES`](super::NODES).
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
