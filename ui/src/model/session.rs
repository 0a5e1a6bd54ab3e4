//! The state that the next console restores: the last screen, its run or node, and how charts, lists and the log were
//! shown.

use crate::log_lines::Level;
use crate::model::{Screen, Viewport};
use crate::series::{Axis, SMOOTHING, XAxis};
use cluster::NodeId;
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

impl Session {
    /// Returns the moving average of charts; `None` if it is not valid.
    pub fn smoothing(&self) -> Option<usize> {
        self.smoothing.filter(|level| *level < SMOOTHING.len())
    }

    /// Returns the visible part of the x axes; all of it if the stored part is not valid.
    pub fn viewport(&self) -> Viewport {
        let is_valid =
            |(span, end): &(f64, Option<f64>)| span.is_finite() && *span > 0.0 && end.is_none_or(f64::is_finite);
        let valid = self.zoom.filter(is_valid);
        valid.map_or_else(Viewport::default, |(span, end)| Viewport { span: Some(span), end, cursor: None })
    }
}
