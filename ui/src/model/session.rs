//! The state that the next console restores: the last screen, its run, and how its charts were shown.

use crate::effect::XAxis;
use crate::model::{CompareScreen, MOST_COMPARED, Model, Quantity, RunScreen, Screen};
use crate::panel_set::{MOST_COLUMNS, PanelChoice};
use crate::series::Axis;
use rundir::RunId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The last screen of a console, restored by the next console that opens the same runs folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The screen to open. The data of some screens is not saved: Launch is replaced by Recipes, Node and Processes
    /// by Nodes.
    pub screen: Screen,
    /// The open run.
    pub run: Option<RunId>,
    /// The selected run of the Runs screen.
    pub selected: Option<RunId>,
    /// The filter of the Runs screen.
    pub filter: String,
    /// The quantity on the x axes.
    pub x: XAxis,
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
    pub aligned: Axis,
}

impl Model {
    /// Returns the state that the next console restores.
    pub fn session(&self) -> Session {
        let open = self.run.as_ref();
        let compared = self.compare.as_ref().filter(|_| self.screen == Screen::Compare);
        let of_run = matches!(self.screen, Screen::Run | Screen::Logs | Screen::Samples);
        Session {
            screen: match self.screen {
                Screen::Launch => Screen::Recipes,
                Screen::Node | Screen::Processes => Screen::Nodes,
                screen => screen,
            },
            run: open.filter(|_| of_run).map(|open| open.id.clone()),
            selected: self.runs_screen.selected.clone(),
            filter: self.runs_screen.filter.clone(),
            x: open.map_or_else(XAxis::default, |open| open.x),
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
        }
    }

    /// Restores the state of a previous console.
    pub(super) fn restore(&mut self, session: Session) {
        let smoothing = session.smoothing.filter(|level| *level < crate::series::SMOOTHING.len());
        self.runs_screen.selected = session.run.clone().or(session.selected);
        self.runs_screen.filter = session.filter;
        self.panels =
            PanelChoice { picked: session.panels, columns: session.columns.min(MOST_COLUMNS), log_y: session.log_y };
        self.screen = match (session.screen, session.run) {
            (Screen::Run | Screen::Logs | Screen::Samples, None) => Screen::Runs,
            (screen @ (Screen::Run | Screen::Logs | Screen::Samples), Some(run)) => {
                self.run = Some(RunScreen { x: session.x, smoothing, ..RunScreen::new(run) });
                self.logs = (screen == Screen::Logs).then(Default::default);
                screen
            }
            (Screen::Compare, _) if (2..=MOST_COMPARED).contains(&session.compared.len()) => {
                self.runs_screen.marked = session.compared.iter().cloned().collect();
                let quantity = session.metric.as_deref().map_or(Quantity::Metric(0), Quantity::with_name);
                let open = CompareScreen::new(session.compared);
                self.compare = Some(CompareScreen { quantity, smoothing, x: session.aligned, ..open });
                Screen::Compare
            }
            (Screen::Compare | Screen::Launch | Screen::Node | Screen::Processes, _) => Screen::Runs,
            (screen, _) => screen,
        };
    }
}
