//! The Processes screen: the processes of some nodes, and which of them are marked.

use crate::model::Screen;
use cluster::NodeId;
use plan::{KillScope, ListedProcess, NodeProcesses, ProcessKey};
use rundir::Failure;
use std::collections::{BTreeMap, BTreeSet};

/// State of the Processes screen.
#[derive(Debug, Clone)]
pub struct ProcessesScreen {
    /// The nodes, in the order of the list.
    pub nodes: Vec<NodeId>,
    /// The processes of each node that use GPUs or belong to training, or why they are unknown. A node is missing
    /// until it has answered.
    pub listed: BTreeMap<NodeId, Result<NodeProcesses, Failure>>,
    /// Whether the processes of all users are shown, or only the user's own.
    pub scope: KillScope,
    /// The selected process; `None` for the first one.
    pub selected: Option<ProcessKey>,
    /// The marked processes.
    pub marked: BTreeSet<ProcessKey>,
    /// First visible row.
    pub top: usize,
    /// The screen to go back to.
    pub from: Screen,
}

impl ProcessesScreen {
    /// Returns the state of a screen that has just been opened.
    pub fn new(nodes: Vec<NodeId>, scope: KillScope, from: Screen) -> Self {
        let (listed, marked) = (BTreeMap::new(), BTreeSet::new());
        Self { nodes, listed, scope, selected: None, marked, top: 0, from }
    }

    fn answered(&self) -> impl Iterator<Item = &NodeProcesses> {
        self.nodes.iter().filter_map(|node| self.listed.get(node)?.as_ref().ok())
    }

    /// Returns the visible processes, node by node: first those that belong to no run, then each run with its ranks
    /// before its other processes.
    pub fn rows(&self) -> Vec<(&NodeId, &ListedProcess)> {
        let mut rows = Vec::new();
        for node in self.answered() {
            let shown = |process: &&ListedProcess| self.scope != KillScope::Own || process.uid == node.uid;
            let mut shown: Vec<&ListedProcess> = node.processes.iter().filter(shown).collect();
            shown.sort_by_key(|process| (&process.run, process.rank.is_none(), process.rank, process.pid));
            rows.extend(shown.into_iter().map(|process| (&node.node, process)));
        }
        rows
    }

    /// Returns the number of processes of other users that are hidden.
    pub fn hidden(&self) -> usize {
        self.answered().map(|node| node.processes.len()).sum::<usize>() - self.rows().len()
    }

    /// Returns the nodes whose processes are unknown, with the reason.
    pub fn away(&self) -> impl Iterator<Item = (&NodeId, &Failure)> {
        self.nodes.iter().filter_map(|node| Some((node, self.listed.get(node)?.as_ref().err()?)))
    }

    /// Returns the position of the selected process among the rows.
    pub fn position(&self) -> usize {
        let at = |key: &ProcessKey| self.rows().iter().position(|(node, process)| process.key(node) == *key);
        self.selected.as_ref().and_then(at).unwrap_or(0)
    }
}
