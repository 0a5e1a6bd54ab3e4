//! One file per screen: its [`Behaviour`] handles actions and the mouse, draws the screen, and names the streams that it needs.

pub mod alert_details;
pub mod alerts;
pub mod compare;
pub mod compare_recipes;
pub mod convert;
pub mod history_cursor;
pub mod launch;
pub mod launch_checks;
pub mod launch_field;
pub mod launch_view;
pub mod logs;
pub mod node;
pub mod node_gpus;
pub mod node_heat;
pub mod node_history;
pub mod node_table;
pub mod nodes;
pub mod preview;
pub mod process_details;
pub mod processes;
pub mod recipe_details;
pub mod recipes;
pub mod run;
pub mod run_lists;
pub mod run_marks;
pub mod run_panels;
pub mod run_queue;
mod run_recipe;
pub mod run_sections;
pub mod runs;
pub mod samples;
pub mod stage_details;
pub mod stages;

use crate::bindings::Action;
use crate::effect::{Effect, Watch};
use crate::model::{Input, Model, Purpose, Screen, Session};
use crate::msg::{RunMsg, RunRow};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use rundir::RunId;
use std::collections::BTreeSet;

/// Rows that one notch of the wheel scrolls.
pub const NOTCH: usize = 3;

/// The warning of screens that need a run.
const NO_RUNS: &str = "There are no runs yet";
/// The warning of screens that need a node.
const NO_NODE: &str = "No node is listed yet";
/// The warning of the launch form and its dialog.
pub const NO_FORM: &str = "Choose a recipe to launch first, on the Recipes screen";

/// What a screen does. The model has its state, because screens keep their selection while others are shown, and read each
/// other's: the heat map of the nodes shows the step times of the open run.
pub trait Behaviour: Sync {
    /// Handles an action of the screen's key table.
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect>;

    /// Draws the screen.
    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect);

    /// Returns whether the screen has something to show now.
    fn can_open(&self, _: &Model) -> bool {
        true
    }

    /// Opens the screen from the list of actions. A warning states what is missing.
    fn open(&self, model: &mut Model);

    /// Returns the action of the item in the header to which the screen belongs.
    fn tab(&self) -> Action {
        Action::ShowRuns
    }

    /// Returns what the header shows at its end: the open run, folder or hostfile, if possible in `room` cells.
    fn subject(&self, model: &Model, _: usize) -> String {
        model.runs_dir.to_string()
    }

    /// Scrolls to the selected entry, after the terminal has changed its size.
    fn keep_selection(&self, _: &mut Model) {}

    /// Handles a change of a text input of the screen whose text takes effect while the user types.
    fn on_typed(&self, _: &mut Model, _purpose: Purpose, _text: &str) {}

    /// Handles the text of an input of the screen, after Enter.
    fn on_entered(&self, _: &mut Model, _: Input) -> Vec<Effect> {
        Vec::new()
    }

    /// Takes in a message of a run while the screen is shown. Returns messages that are for the open run.
    fn on_run(&self, _: &mut Model, _: &RunId, what: RunMsg) -> Option<RunMsg> {
        Some(what)
    }

    /// Stores what the next console restores, while the screen is shown.
    fn save(&self, _: &Model, _: &mut Session) {}

    /// Restores the screen. Returns the screen to show, which is another one if something is missing.
    fn restore(&self, _: &mut Model, session: &Session) -> Screen {
        session.screen
    }

    /// Updates what depends on the clock, while the screen is shown.
    fn on_tick(&self, _: &mut Model) {}

    /// Adds the streams that the screen needs while it is shown.
    fn watches(&self, _: &Model, _: &mut BTreeSet<Watch>) {}

    /// Returns the run whose metrics and events the screen shows beside its list; `None` without room for them.
    fn preview<'a>(&self, _: &'a Model) -> Option<&'a RunRow> {
        None
    }

    /// Handles a press of the mouse button outside of charts.
    fn on_press(&self, _: &mut Model, _: Position) -> Press {
        Press::Done
    }

    /// Handles a drag of the mouse that did not begin in a chart.
    fn on_drag(&self, _: &mut Model, _: Position) {}

    /// Handles the wheel outside of charts; `direction` is up or down.
    fn on_wheel(&self, _: &mut Model, _: Position, _direction: Action) -> Wheel {
        Wheel::Scroll
    }

    /// Returns the area between the axes of the chart at a position, and its visible range.
    fn chart_at(&self, _: &Model, _: Position) -> Option<(Rect, (f64, f64))> {
        None
    }

    /// Handles a press of the mouse button at a position of the x axis of a chart.
    fn press_chart(&self, _: &mut Model, _: Position, _x: f64) {}

    /// Changes the visible range of the charts by a factor around a position of the x axis.
    fn zoom_chart(&self, _: &mut Model, _factor: f64, _x: f64) {}

    /// Shows a range of the x axis.
    fn show_range(&self, _: &mut Model, _range: (f64, f64)) {}
}

/// Opens a screen of a run: the open run, the selected one or the newest. A warning states that there are none.
fn open_with_run(model: &mut Model, open: impl FnOnce(&mut Model)) {
    match model.run_to_open() {
        Some(run) => {
            model.open_run(run);
            open(model);
        }
        None => model.warn(NO_RUNS),
    }
}

/// Opens a screen of the selected node. A warning states that none is listed.
fn open_with_node(model: &mut Model, open: impl FnOnce(&mut Model)) {
    nodes::open(model, model.fleet.of.clone());
    match model.selected_node() {
        Some(_) => open(model),
        None => model.warn(NO_NODE),
    }
}

/// What follows a press of the mouse button.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    /// Nothing.
    Done,
    /// The selection moves by this number of entries; the selected entry opens if it is zero.
    Select(isize),
    /// An action.
    Act(Action),
}

impl Press {
    /// Returns what follows a press on an entry, as its distance from the selected one; `None` for no entry.
    fn row(until: Option<isize>) -> Self {
        until.map_or(Self::Done, Self::Select)
    }
}

/// What follows a turn of the wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wheel {
    /// Nothing.
    Done,
    /// The list scrolls.
    Scroll,
    /// An action, once.
    Act(Action),
}

/// Returns what a screen does: the list of the screens.
pub fn behaviour(screen: Screen) -> &'static dyn Behaviour {
    match screen {
        Screen::Runs => &runs::Runs,
        Screen::Run => &run::Run,
        Screen::Compare => &compare::Compare,
        Screen::Stages => &stages::Stages,
        Screen::Recipes => &recipes::Recipes,
        Screen::Launch => &launch::Launch,
        Screen::Logs => &logs::Logs,
        Screen::Samples => &samples::Samples,
        Screen::Nodes => &nodes::Nodes,
        Screen::Node => &node::Node,
        Screen::Processes => &processes::Processes,
        Screen::Convert => &convert::Convert,
        Screen::Alerts => &alerts::Alerts,
    }
}
