//! The state that the next console restores: the last screen, its run or node, and how charts, lists and the log were
//! shown.

use crate::fleet::gpu_value::GpuValue;
use crate::fleet::{FleetSource, HistoryWindow, Sort};
use crate::log_lines::Level;
use crate::model::{
    CompareScreen, LogsScreen, MOST_COMPARED, Model, NodeScreen, NodesScreen, ProcessesScreen, Quantity, RunScreen,
    Screen, Viewport,
};
use crate::panel_set::{MOST_COLUMNS, PanelChoice};
use crate::rank_set::RankSet;
use crate::series::Axis;
use crate::series::XAxis;
use cluster::NodeId;
use plan::KillScope;
use rundir::RunId;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;

/// The last screen of a console, restored by the next console that opens the same runs folder. A value that this version
/// does not know is replaced by the default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The screen to open. The data of the Launch form is not saved: Recipes replaces it.
    #[serde(deserialize_with = "known")]
    pub screen: Screen,
    /// The open run.
    pub run: Option<RunId>,
    /// The selected run of the Runs screen.
    pub selected: Option<RunId>,
    /// The filter of the Runs screen.
    pub filter: String,
    /// The quantity on the x axes.
    #[serde(deserialize_with = "known")]
    pub x: XAxis,
    /// The visible part of the x axes of the run: its width, and its right end; no end follows the newest sample. `None`
    /// shows everything.
    #[serde(deserialize_with = "known")]
    pub zoom: Option<(f64, Option<f64>)>,
    /// The moving average, as an index into [`SMOOTHING`](crate::series::SMOOTHING).
    pub smoothing: Option<usize>,
    /// The names of the panels picked for training runs, in their order; `None` for the default panels.
    pub panels: Option<Vec<String>>,
    /// The number of columns of the panel grid; 0 or 1 for the default layout.
    pub columns: u8,
    /// The names of the charts with a logarithmic y axis.
    pub log_y: BTreeSet<String>,
    /// The compared runs.
    pub compared: Vec<RunId>,
    /// The name of the compared quantity.
    pub metric: Option<String>,
    /// The quantity by which the compared runs are aligned.
    #[serde(deserialize_with = "known")]
    pub aligned: Axis,
    /// The run whose nodes are shown; `None` for the nodes of the console.
    pub nodes_of: Option<RunId>,
    /// The open node, or the selected one of the Nodes screen.
    #[serde(deserialize_with = "known")]
    pub node: Option<NodeId>,
    /// The nodes of the Processes screen.
    #[serde(deserialize_with = "known")]
    pub processes: Vec<NodeId>,
    /// The name of the order of the nodes.
    pub node_order: String,
    /// Whether the order of the nodes is reversed.
    pub node_order_reversed: bool,
    /// The name of the quantity of the heat map of the nodes; `None` for the table.
    pub heat_map: Option<String>,
    /// The length of the histories of the nodes, in seconds.
    pub history_s: u32,
    /// The lowest level that passes the filter of the log.
    #[serde(deserialize_with = "known")]
    pub log_level: Level,
    /// The ranks that pass the filter of the log, such as `0-3,8`; empty for all ranks.
    pub log_ranks: String,
    /// The text that is searched in the log; empty without a search.
    pub log_search: String,
}

/// Reads a value; the default if this version does not know the value.
fn known<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value<T> {
        Known(T),
        Unknown(IgnoredAny),
    }
    Ok(match Value::deserialize(deserializer)? {
        Value::Known(value) => value,
        Value::Unknown(IgnoredAny) => T::default(),
    })
}

impl Model {
    /// Returns the state that the next console restores.
    pub fn session(&self) -> Session {
        let open = self.run.as_ref();
        let compared = self.compare.as_ref().filter(|_| self.screen == Screen::Compare);
        let of_run = self.screen.is_of_run();
        let of_nodes = self.screen.is_of_nodes();
        let logs = self.logs.as_ref().filter(|_| self.screen == Screen::Logs);
        let search = logs.and_then(|logs| logs.search.as_ref());
        Session {
            screen: match (self.screen, &self.fleet.of) {
                (Screen::Launch, _) => Screen::Recipes,
                // The next console lists these nodes only with its own launch form.
                (Screen::Node | Screen::Processes, FleetSource::Hostfile(_)) => Screen::Nodes,
                (screen, _) => screen,
            },
            run: open.filter(|_| of_run).map(|open| open.id.clone()),
            selected: self.runs_screen.selected.clone(),
            filter: self.runs_screen.filter.clone(),
            x: open.map_or_else(XAxis::default, |open| open.x),
            zoom: open.filter(|_| of_run).and_then(|open| Some((open.view.span?, open.view.end))),
            smoothing: match compared {
                Some(compared) => compared.smoothing,
                None => open.and_then(|open| open.smoothing),
            },
            panels: self.panels.picked.clone(),
            columns: self.panels.columns,
            log_y: self.panels.log_y.clone(),
            compared: compared.map_or_else(Vec::new, |open| open.runs.iter().map(|run| run.id.clone()).collect()),
            metric: compared.map(|open| open.quantity.name().to_owned()),
            aligned: compared.map_or_else(Axis::default, |open| open.x),
            nodes_of: match &self.fleet.of {
                FleetSource::Run(run) if of_nodes => Some(run.clone()),
                _ => None,
            },
            node: match &self.node {
                Some(open) if self.screen == Screen::Node => Some(open.id.clone()),
                _ => self.nodes.selected.clone().filter(|_| of_nodes),
            },
            processes: match &self.processes {
                Some(open) if self.screen == Screen::Processes => open.nodes.clone(),
                _ => Vec::new(),
            },
            node_order: self.nodes.sort.word().to_owned(),
            node_order_reversed: self.nodes.reverse,
            heat_map: self.nodes.heat.map(|value| value.word().to_owned()),
            history_s: self.nodes.window.seconds() as u32,
            log_level: logs.map_or(Level::Plain, |logs| logs.level),
            log_ranks: logs.map_or_else(String::new, |logs| logs.only.to_string()),
            log_search: search.map_or_else(String::new, |search| search.text.clone()),
        }
    }

    /// Restores the state of a previous console.
    pub(super) fn restore(&mut self, session: Session) {
        let smoothing = session.smoothing.filter(|level| *level < crate::series::SMOOTHING.len());
        self.restore_nodes(&session);
        self.runs_screen.selected = session.run.clone().or(session.selected);
        self.runs_screen.filter = session.filter;
        self.panels =
            PanelChoice { picked: session.panels, columns: session.columns.min(MOST_COLUMNS), log_y: session.log_y };
        self.screen = match (session.screen, session.run) {
            (screen, None) if screen.is_of_run() => Screen::Runs,
            (screen, Some(run)) if screen.is_of_run() => {
                let view = viewport(session.zoom);
                self.run = Some(RunScreen { x: session.x, smoothing, view, ..RunScreen::new(run) });
                let only = RankSet::parse(&session.log_ranks).unwrap_or_default();
                let filtered = || LogsScreen { level: session.log_level, only, ..LogsScreen::default() };
                self.logs = (screen == Screen::Logs).then(filtered);
                screen
            }
            (Screen::Compare, _) if (2..=MOST_COMPARED).contains(&session.compared.len()) => {
                self.runs_screen.marked = session.compared.iter().cloned().collect();
                let quantity = session.metric.as_deref().map_or(Quantity::Metric(0), Quantity::with_name);
                let open = CompareScreen::new(session.compared);
                self.compare = Some(CompareScreen { quantity, smoothing, x: session.aligned, ..open });
                Screen::Compare
            }
            (Screen::Node, _) if session.node.is_some() => {
                self.node = session.node.map(NodeScreen::new);
                Screen::Node
            }
            (Screen::Processes, _) if !session.processes.is_empty() => {
                let open = ProcessesScreen::new(session.processes, KillScope::Own, Screen::Nodes);
                self.processes = Some(open);
                Screen::Processes
            }
            (Screen::Node | Screen::Processes, _) => Screen::Nodes,
            (Screen::Compare | Screen::Launch, _) => Screen::Runs,
            (screen, _) => screen,
        };
        if let Some(logs) = &mut self.logs {
            logs.search_for(&session.log_search);
        }
    }

    /// Restores the source and the order of the nodes, and how they are shown.
    fn restore_nodes(&mut self, session: &Session) {
        if let Some(run) = &session.nodes_of {
            self.fleet.turn_to(FleetSource::Run(run.clone()));
        }
        let order = Sort::ALL.into_iter().find(|(_, word)| *word == session.node_order);
        let shown = |word: &String| GpuValue::ALL.into_iter().find(|value| value.word() == word);
        let heat = session.heat_map.as_ref().and_then(shown);
        // The open run has the step times of ranks, and no run is open beside the nodes now.
        let heat = heat.map(|value| if value == GpuValue::StepTime { GpuValue::Power } else { value });
        let mut windows = [HistoryWindow::TenMinutes, HistoryWindow::Hour, HistoryWindow::TwelveHours].into_iter();
        let window = windows.find(|window| window.seconds() == f64::from(session.history_s));
        self.nodes = NodesScreen {
            selected: session.node.clone(),
            heat,
            sort: order.map_or_else(Sort::default, |(sort, _)| sort),
            reverse: session.node_order_reversed,
            window: window.unwrap_or_default(),
            ..NodesScreen::default()
        };
    }
}

/// Returns the visible part of the x axes with this width and right end; all of it if they are not valid.
fn viewport(zoom: Option<(f64, Option<f64>)>) -> Viewport {
    let valid = zoom.filter(|(span, end)| span.is_finite() && *span > 0.0 && end.is_none_or(f64::is_finite));
    valid.map_or_else(Viewport::default, |(span, end)| Viewport { span: Some(span), end, cursor: None })
}
