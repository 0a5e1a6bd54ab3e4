//! Performs actions: those of the shell itself, of the open dialog or text input, and of the screen.

use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::fleet::FleetSource;
use crate::modals::palette::{self, Listed};
use crate::modals::{action, checkpoints, failure, help, kill, launch, panels, results, targets};
use crate::model::{HelpDialog, Modal, Model, Purpose, Screen};
use crate::places;
use crate::screens::{alerts, behaviour, launch as launch_form, nodes, stages};

/// Performs an action in the context of the screen or dialog that receives the keys.
pub(crate) fn act(model: &mut Model, context: Context, action: Action) -> Vec<Effect> {
    // Any action clears a warning.
    model.notice.take_if(|notice| notice.is_warning);
    match action {
        Action::Quit => {
            model.quitting = true;
            return vec![Effect::Quit];
        }
        Action::Suspend => return vec![Effect::Suspend],
        _ => {}
    }
    if let (Some(Modal::Palette(_)), Action::Accept) = (&model.modal, action) {
        return execute_chosen(model);
    }
    if action == Action::Palette {
        palette::open(model, context);
        return Vec::new();
    }
    if let Some(modal) = model.modal.take() {
        return match modal {
            Modal::Launch(dialog) => launch::on_action(model, dialog, action),
            Modal::Kill(dialog) => kill::on_action(model, dialog, action),
            Modal::Action(dialog) => action::on_action(model, dialog, action),
            Modal::Results(dialog) => results::on_action(model, dialog, action),
            Modal::Checkpoints(dialog) => checkpoints::on_action(model, dialog, action),
            Modal::Targets(dialog) => targets::on_action(model, dialog, action),
            Modal::Panels(dialog) => panels::on_action(model, dialog, action),
            Modal::Failure(dialog) => failure::on_action(model, dialog, action),
            Modal::Help(dialog) => help::on_action(model, dialog, action),
            Modal::Palette(dialog) => palette::on_action(model, dialog, action),
        };
    }
    if action == Action::Complete {
        launch_form::complete(model);
        return Vec::new();
    }
    if let Some(input) = &mut model.input {
        if input.edit(action) {
            typed(model);
            return Vec::new();
        }
        return end_input(model, action);
    }
    match action {
        Action::Help => model.modal = Some(Modal::Help(HelpDialog { context, scroll: 0 })),
        Action::ShowRuns => model.screen = Screen::Runs,
        Action::ShowStages => stages::open(model),
        Action::ShowNodes => nodes::open(model, FleetSource::Given),
        Action::NodesOfRun => match model.target().map(|row| row.run.clone()) {
            Some(run) => nodes::open(model, FleetSource::Run(run)),
            None => model
                .warn(format!("No run selected. Press {} to list nodes.", model.keys.name(context, Action::ShowNodes))),
        },
        Action::ShowConvert => model.screen = Screen::Convert,
        Action::ShowAlerts => alerts::open(model),
        Action::ShowRecipes => model.screen = Screen::Recipes,
        _ => return behaviour(model.screen).on_action(model, action),
    }
    Vec::new()
}

/// Applies the text that the user has typed so far, if it takes effect before Enter.
pub(crate) fn typed(model: &mut Model) {
    let Some(input) = model.input.as_ref().filter(|input| input.purpose.is_live()) else { return };
    let (purpose, text) = (input.purpose, input.text.clone());
    behaviour(purpose.screen()).on_typed(model, purpose, &text);
}

/// Closes the text input. A cancelled input loses its effect, but arguments are kept for the next input.
fn end_input(model: &mut Model, action: Action) -> Vec<Effect> {
    let Some(input) = model.input.take() else { return Vec::new() };
    let (purpose, screen) = (input.purpose, behaviour(input.purpose.screen()));
    match purpose {
        Purpose::Encode => model.encode_arguments.clone_from(&input.text),
        Purpose::Launch => model.launch_arguments.clone_from(&input.text),
        _ => {}
    }
    if action != Action::Cancel {
        // Without arguments, there is nothing to plan.
        let is_empty = purpose.plans() && input.text.trim().is_empty();
        return if is_empty { Vec::new() } else { screen.on_entered(model, input) };
    }
    if purpose.is_live() {
        screen.on_typed(model, purpose, "");
    }
    Vec::new()
}

/// Closes the palette and executes the selected action, as if the user had pressed its key. An action of another place
/// opens that place first. If the action would also change something, it waits for its key.
fn execute_chosen(model: &mut Model) -> Vec<Effect> {
    let Some(Modal::Palette(dialog)) = model.modal.take() else { return Vec::new() };
    let chosen = dialog.chosen();
    if chosen.is_none_or(|listed| listed.context == dialog.context) {
        model.modal = dialog.over.map(|over| *over);
    }
    let Some(Listed { context, binding }) = chosen else { return Vec::new() };
    let is_here = context == dialog.context || context == dialog.screen;
    if !is_here && !places::open(model, context) {
        return Vec::new();
    }
    // The user has not seen which entry is selected there.
    if !is_here && palette::waits_for_its_key(context, binding.action) {
        let key = model.keys.name(context, binding.action);
        let text = match context.is_screen() {
            true => format!("Press {key} to apply this action to the selected entry"),
            false => format!("Press {key} in this dialog to apply the action"),
        };
        model.warn(text);
        return Vec::new();
    }
    act(model, context, binding.action)
}
