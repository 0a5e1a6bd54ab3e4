//! Opens the screen or dialog of a key table, for the list of actions.

use crate::bindings::{Action, Context};
use crate::modals::{checkpoints, panels, targets};
use crate::model::{Model, Screen};
use crate::run_actions;
use crate::screens::{alerts, compare, launch, node, nodes, processes, samples, stages};
use recipe::Task;
use rundir::RunId;

/// Returns whether the context is a screen that has something to show now.
pub fn can_open(model: &Model, context: Context) -> bool {
    match context {
        Context::Run | Context::Samples | Context::Logs => run_to_open(model).is_some(),
        Context::Compare => model.compare.is_some() || model.runs_screen.marked.len() > 1,
        Context::Launch => model.form.is_some(),
        Context::Node | Context::Processes => model.selected_node().is_some(),
        _ => context.is_screen(),
    }
}

/// Opens a screen, or a dialog that lists entries, and returns whether it is shown. Otherwise, a warning states what is
/// missing, or when the dialog opens.
pub fn open(model: &mut Model, context: Context) -> bool {
    match context {
        Context::Runs => model.screen = Screen::Runs,
        Context::Recipes => model.screen = Screen::Recipes,
        Context::Convert => model.screen = Screen::Convert,
        Context::Stages => stages::open(model),
        Context::Alerts => alerts::open(model),
        Context::Nodes => nodes::open(model, model.fleet.of.clone()),
        Context::Run | Context::Samples | Context::Logs => match run_to_open(model) {
            Some(run) => {
                model.open_run(run);
                match context {
                    Context::Samples => samples::open(model),
                    Context::Logs => drop(run_actions::act(model, Action::Logs)),
                    _ => {}
                }
            }
            None => model.warn("There are no runs yet"),
        },
        Context::CheckpointsDialog | Context::PanelsDialog => {
            if open(model, Context::Run) {
                list_of_run(model, context);
            }
        }
        // Two or more marked runs replace the runs of the last comparison.
        Context::Compare if model.compare.is_some() && model.runs_screen.marked.len() < 2 => {
            model.screen = Screen::Compare;
        }
        Context::Compare => compare::open(model),
        Context::Launch | Context::TargetsDialog if model.form.is_none() => {
            model.warn("Choose a recipe to launch first, on the Recipes screen");
        }
        Context::Launch | Context::TargetsDialog => {
            model.screen = Screen::Launch;
            // Another screen may have changed the source of the nodes.
            launch::keep_nodes(model);
            if context == Context::TargetsDialog {
                targets::open(model);
            }
        }
        Context::Node | Context::Processes => {
            nodes::open(model, model.fleet.of.clone());
            match (context, model.selected_node().is_some()) {
                (_, false) => model.warn("No node is listed yet"),
                (Context::Node, true) => node::open(model),
                (_, true) => processes::open(model),
            }
        }
        Context::LaunchDialog => model.warn("The Launch dialog opens before a run starts"),
        Context::KillDialog => model.warn("The Kill dialog opens before a run is killed"),
        Context::ActionDialog => {
            model.warn("The Plan dialog opens before an action on nodes, on several runs or on a checkpoint");
        }
        Context::Input => model.warn("These keys work while you type text"),
        Context::ResultsDialog | Context::FailureDialog | Context::Help | Context::Palette => {
            model.warn(format!("The keys of {} work while it is open", context.title()));
        }
    }
    crate::model::context(model) == context
}

/// Opens the checkpoints or the panels of the open run.
fn list_of_run(model: &mut Model, context: Context) {
    let is_training = model.target().is_none_or(|row| row.task == Task::Train);
    match context {
        _ if !is_training => model.warn("Only training runs have checkpoints, and panels to pick"),
        Context::PanelsDialog => panels::open(model),
        _ => checkpoints::open(model),
    }
}

/// Returns the run whose screen is opened: the current run, the open run, or the run selected on the Runs screen.
fn run_to_open(model: &Model) -> Option<RunId> {
    let shown = model.target().map(|row| row.run.clone());
    let run = shown.or_else(|| model.run.as_ref().map(|run| run.id.clone()));
    run.or_else(|| model.selected_run().map(|row| row.run.clone()))
}
