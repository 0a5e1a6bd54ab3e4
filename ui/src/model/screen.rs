//! The screens, and what those with a list or one node keep: selection, filter, order and scroll position.

use crate::fleet::Sort;
use cluster::NodeId;
use rundir::{Failure, RunId};

/// What fills the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "one per file in screens/")]
pub enum Screen {
    Runs,
    Run,
    Stages,
    Logs,
    Nodes,
    Node,
    Convert,
}

/// What the Runs screen remembers.
#[derive(Debug, Clone, Default)]
pub struct RunsScreen {
    /// The selected run; the newest one if none was chosen.
    pub selected: Option<RunId>,
    /// First visible row.
    pub top: usize,
    /// Only runs that contain this.
    pub filter: String,
}

/// What the Stages screen remembers.
#[derive(Debug, Clone, Default)]
pub struct StagesScreen {
    /// The selected stage, counted over all curricula.
    pub selected: usize,
    /// First visible row of the list.
    pub top: usize,
}

/// What the Nodes screen remembers.
#[derive(Debug, Clone, Default)]
pub struct NodesScreen {
    /// The selected node; the first one if none was chosen.
    pub selected: Option<NodeId>,
    /// First visible row.
    pub top: usize,
    /// Only nodes that contain this.
    pub filter: String,
    /// What they are sorted by.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// The nodes that pass, in order: places in the fleet. Renewed by the clock, so that rows do not jump about.
    pub order: Vec<usize>,
    /// The screen to go back to.
    pub from: Option<Screen>,
}

/// The open node.
#[derive(Debug, Clone)]
pub struct NodeScreen {
    /// Which.
    pub id: NodeId,
    /// Whether what nvidia-smi says is shown as it is.
    pub raw: bool,
    /// What it said last.
    pub smi: Option<Result<String, Failure>>,
    /// First visible line.
    pub scroll: usize,
}
