//! Opens the screen or dialog of a key table, for the list of actions.

use crate::bindings::Context;
use crate::model::{CheckpointsDialog, Modal, Model, TargetsDialog};
use crate::screens::{behaviour, run};
use recipe::Task;

/// Returns whether the context is a screen that has something to show now.
pub fn can_open(model: &Model, context: Context) -> bool {
    context.screen().is_some_and(|screen| behaviour(screen).can_open(model))
}

/// Opens a screen, or a dialog that lists entries, and returns whether it is shown. Otherwise, a warning states what is
/// missing, or when the dialog opens.
pub fn open(model: &mut Model, context: Context) -> bool {
    if let Some(screen) = context.screen() {
        behaviour(screen).open(model);
        return crate::model::context(model) == context;
    }
    match context {
        Context::CheckpointsDialog | Context::PanelsDialog => {
            if open(model, Context::Run) {
                list_of_run(model, context);
            }
        }
        Context::TargetsDialog => {
            if open(model, Context::Launch) {
                let dialog = model.screens.form.as_ref().map(|form| TargetsDialog::new(form, model.size));
                model.modal = dialog.map(Modal::Targets);
            }
        }
        Context::LaunchDialog => model.warn("The Launch dialog opens before a run starts"),
        Context::KillDialog => model.warn("The Kill dialog opens before a run is killed"),
        Context::ActionDialog => {
            model.warn("The Plan dialog opens before an action on nodes, on several runs or on a checkpoint");
        }
        Context::Input => model.warn("These keys work while you type text"),
        _ => model.warn(format!("The keys of {} work while it is open", context.title())),
    }
    crate::model::context(model) == context
}

/// Opens the checkpoints or the panels of the open run.
fn list_of_run(model: &mut Model, context: Context) {
    let is_training = model.target().is_none_or(|row| row.task == Task::Train);
    match context {
        _ if !is_training => model.warn("Only training runs have checkpoints, and panels to pick"),
        Context::PanelsDialog => run::pick_panels(model),
        _ => model.modal = Some(Modal::Checkpoints(CheckpointsDialog::default())),
    }
}
