//! What a console opens again: the screen that was shown last, its run, and how its charts were shown.

use crate::effect::XAxis;
use crate::model::{Model, RunScreen, Screen};
use crate::panel_set::PanelSet;
use rundir::RunId;
use serde::{Deserialize, Serialize};

/// The last screen of a console, for the next one on the same folder of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The screen. One that cannot be opened without data of its own is replaced by the screen before it.
    pub screen: Screen,
    /// The open run.
    pub run: Option<RunId>,
    /// The selected run of the Runs screen.
    pub selected: Option<RunId>,
    /// The filter of the Runs screen.
    pub filter: String,
    /// The quantity on the x axes.
    pub x: XAxis,
    /// The level of the moving average.
    pub smoothing: Option<usize>,
    /// The names of the panels that the user has picked for training runs.
    pub panels: Option<Vec<String>>,
}

impl Model {
    /// Returns what the next console opens again.
    pub fn session(&self) -> Session {
        let open = self.run.as_ref();
        let of_run = matches!(self.screen, Screen::Run | Screen::Logs | Screen::Samples);
        Session {
            screen: match self.screen {
                Screen::Compare => Screen::Runs,
                Screen::Launch => Screen::Recipes,
                Screen::Node | Screen::Processes => Screen::Nodes,
                screen => screen,
            },
            run: open.filter(|_| of_run).map(|open| open.id.clone()),
            selected: self.runs_screen.selected.clone(),
            filter: self.runs_screen.filter.clone(),
            x: open.map_or_else(XAxis::default, |open| open.x),
            smoothing: open.and_then(|open| open.smoothing),
            panels: self.picked_panels.map(PanelSet::names),
        }
    }

    /// Opens the screen of an earlier console.
    pub(super) fn restore(&mut self, session: Session) {
        let smoothing = session.smoothing.filter(|level| *level < crate::series::SMOOTHING.len());
        self.runs_screen.selected = session.run.clone().or(session.selected);
        self.runs_screen.filter = session.filter;
        self.picked_panels = session.panels.as_deref().map(PanelSet::with_names);
        self.screen = match (session.screen, session.run) {
            (Screen::Run | Screen::Logs | Screen::Samples, None) => Screen::Runs,
            (screen @ (Screen::Run | Screen::Logs | Screen::Samples), Some(run)) => {
                self.run = Some(RunScreen { x: session.x, smoothing, ..RunScreen::new(run) });
                self.logs = (screen == Screen::Logs).then(Default::default);
                screen
            }
            (Screen::Compare | Screen::Launch | Screen::Node | Screen::Processes, _) => Screen::Runs,
            (screen, _) => screen,
        };
    }
}
