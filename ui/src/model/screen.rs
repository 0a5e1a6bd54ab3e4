//! Groups of screens, and the state of those with a list or a node: selection, filter, sort order and scroll position.

use crate::bindings::Screen;
use crate::fleet::gpu_value::GpuValue;
use crate::fleet::{HistoryWindow, Sort};
use crate::model::{CompareScreen, ConvertScreen, LaunchForm, LogsScreen, ProcessesScreen, RunScreen};
use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{Failure, RunId};
use std::collections::BTreeSet;

impl Screen {
    /// Returns whether the screen shows the open run.
    pub fn is_of_run(self) -> bool {
        matches!(self, Self::Run | Self::Logs | Self::Samples)
    }

    /// Returns whether the screen shows the watched nodes.
    pub fn is_of_nodes(self) -> bool {
        matches!(self, Self::Nodes | Self::Node | Self::Processes)
    }
}

/// The state of each screen. All of them live at once, because a screen keeps its selection while another one is shown, and some read
/// each other: the heat map of the nodes shows the step times of the open run. What a user has to open first, such as a run or a
/// node, is `None` until then.
#[derive(Debug, Clone, Default)]
pub struct Screens {
    /// State of the Runs screen.
    pub runs: RunsScreen,
    /// The open run; kept while another screen is shown.
    pub run: Option<RunScreen>,
    /// The run whose curve the screen shows with its list; `None` if that is the open run.
    pub preview: Option<RunScreen>,
    /// The open comparison of runs.
    pub compare: Option<CompareScreen>,
    /// State of the Stages screen.
    pub stages: StagesScreen,
    /// State of the Recipes screen.
    pub recipes: RecipesScreen,
    /// The open launch form; kept while another screen is shown.
    pub form: Option<LaunchForm>,
    /// The open log.
    pub logs: Option<LogsScreen>,
    /// State of the Nodes screen.
    pub nodes: NodesScreen,
    /// The open node.
    pub node: Option<NodeScreen>,
    /// State of the Alerts screen.
    pub alerts: AlertsScreen,
    /// State of the Processes screen.
    pub processes: Option<ProcessesScreen>,
    /// State of the Convert screen.
    pub convert: ConvertScreen,
}

/// State of the Runs screen.
#[derive(Debug, Clone, Default)]
pub struct RunsScreen {
    /// The selected run; `None` for the newest one.
    pub selected: Option<RunId>,
    /// First visible row.
    pub top: usize,
    /// The filter; empty shows all runs.
    pub filter: String,
    /// The marked runs, to which resume, stop, kill and compare apply.
    pub marked: BTreeSet<RunId>,
    /// Whether the section of the queue is shown as large as there is room, also if the queue is empty.
    pub whole_queue: bool,
}

/// State of the Stages screen.
#[derive(Debug, Clone, Default)]
pub struct StagesScreen {
    /// The selected stage, counted over all curricula.
    pub selected: usize,
    /// First visible row of the list.
    pub top: usize,
    /// The run from which the screen was opened. The stage after its stage starts from its weights.
    pub from: Option<RunId>,
}

/// State of the Recipes screen.
#[derive(Debug, Clone, Default)]
pub struct RecipesScreen {
    /// The filter that the user typed.
    pub filter: String,
    /// The selected recipe; `None` for the first one.
    pub selected: Option<Utf8PathBuf>,
    /// First visible row of the list.
    pub top: usize,
}

/// State of the Nodes screen.
#[derive(Debug, Clone, Default)]
pub struct NodesScreen {
    /// The selected node; `None` for the first one.
    pub selected: Option<NodeId>,
    /// First visible row.
    pub top: usize,
    /// The filter; empty shows all nodes.
    pub filter: String,
    /// The marked nodes, to which the list of processes and kill apply.
    pub marked: BTreeSet<NodeId>,
    /// The quantity of the heat map; `None` shows the table.
    pub heat: Option<GpuValue>,
    /// The sort order.
    pub sort: Sort,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// The part of the history that is shown, also on the Node screen.
    pub window: HistoryWindow,
    /// The time whose values the history shows, Unix seconds; `None` for the newest values.
    pub cursor: Option<f64>,
    /// The nodes that pass the filter, in the sort order, as indices into the fleet. The order is updated once per
    /// tick, so that rows do not jump.
    pub order: Vec<usize>,
    /// The screen to go back to.
    pub from: Option<Screen>,
}

/// State of the Alerts screen.
#[derive(Debug, Clone, Default)]
pub struct AlertsScreen {
    /// The id of the selected alert; `None` for the newest one.
    pub selected: Option<String>,
    /// First visible row.
    pub top: usize,
    /// The screen to go back to.
    pub from: Option<Screen>,
}

/// The open node.
#[derive(Debug, Clone)]
pub struct NodeScreen {
    /// The node.
    pub id: NodeId,
    /// Whether the output of nvidia-smi is shown.
    pub raw: bool,
    /// The latest output of nvidia-smi.
    pub smi: Option<Result<String, Failure>>,
    /// First visible line.
    pub scroll: usize,
}

impl NodeScreen {
    /// Returns the state of a screen that has just been opened.
    pub fn new(id: NodeId) -> Self {
        Self { id, raw: false, smi: None, scroll: 0 }
    }
}
