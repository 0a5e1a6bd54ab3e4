//! Tests of the command palette: filter, selection and execution.

use super::screens::picture;
use crate::fixtures::*;
use crate::model::{Modal, PaletteDialog};
use crate::*;

fn palette(ui: &Ui) -> &PaletteDialog {
    match &ui.model.modal {
        Some(Modal::Palette(dialog)) => dialog,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_action_of_a_screen_is_listed_with_its_key() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    let listed: Vec<Action> = palette(&ui).listed().iter().map(|listed| listed.binding.action).collect();
    let all: Vec<Action> = Context::Run.all_bindings().map(|binding| binding.action).collect();
    assert!(all.iter().all(|action| *action == Action::Palette || listed.contains(action)));
    picture("palette", ui);
}

#[test]
fn typed_words_filter_the_list_and_enter_executes() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    ui.type_in("Logs merged");
    let listed: Vec<Action> = palette(&ui).listed().iter().map(|listed| listed.binding.action).collect();
    assert_eq!(listed, [Action::Logs]);
    ui.press("Enter");
    assert!(ui.model.modal.is_none() && ui.model.screen == model::Screen::Logs);
}

#[test]
fn pasted_text_filters_the_list() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    ui.send(Msg::Paste("Logs\rmerged\r".into()));
    assert_eq!(palette(&ui).filter, "Logs merged");
    let listed: Vec<Action> = palette(&ui).listed().iter().map(|listed| listed.binding.action).collect();
    assert_eq!(listed, [Action::Logs]);
    ui.send(Msg::Paste("x".repeat(1000)));
    assert_eq!(palette(&ui).filter.chars().count(), 60);
}

#[test]
fn every_action_of_every_screen_and_dialog_can_be_found() {
    let has_palette = |context: &Context| context.all_bindings().any(|binding| binding.action == Action::Palette);
    for context in Context::ALL.into_iter().filter(has_palette) {
        let screen = if context.is_screen() { context } else { Context::Run };
        let dialog = PaletteDialog { context, screen, over: None, filter: String::new(), selected: 0 };
        let listed = dialog.listed();
        let all = Context::ALL.into_iter().flat_map(Context::all_bindings);
        for binding in all.filter(|binding| !binding.action.is_motion() && binding.action != Action::Palette) {
            let is_it = |found: &Binding| (found.action, found.help) == (binding.action, binding.help);
            let found = listed.iter().filter(|listed| is_it(listed.binding)).count();
            assert_eq!(found, 1, "{context:?}: {:?}, {}", binding.action, binding.help);
        }
    }
}

#[test]
fn the_list_of_actions_cannot_answer_a_dialog_that_asks() {
    for context in [Context::LaunchDialog, Context::KillDialog, Context::ActionDialog] {
        assert_eq!(KeyMap::default().action(context, Key::ch(':')), None, "{context:?}");
    }
    let mut ui = Ui::on_run(running(83));
    let effects = ui.press("K");
    let [Effect::Job { job, request: Request::PlanKill { .. } }] = effects[..] else { panic!("{effects:?}") };
    ui.answer(job, JobMsg::KillPlanned(kill_plan()));
    assert!(ui.press(":").is_empty() && matches!(ui.model.modal, Some(Modal::Kill(_))));
    ui.press("Esc :");
    ui.type_in("kill the listed");
    assert!(ui.screen().contains("in the Kill dialog"), "{}", ui.screen());
    assert!(ui.press("Enter").is_empty() && ui.model.modal.is_none());
    assert!(ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning));
}

#[test]
fn a_dialog_that_lists_entries_lists_its_actions_and_stays_open() {
    let mut ui = Ui::on_run(running(83));
    ui.press("c :");
    assert_eq!(palette(&ui).context, Context::CheckpointsDialog);
    ui.press("Esc");
    assert!(matches!(ui.model.modal, Some(Modal::Checkpoints(_))));
    ui.press(":");
    ui.type_in("unpin");
    let effects = ui.press("Enter");
    assert!(
        matches!(effects[..], [Effect::Job { request: Request::PinCheckpoint { step: 80, is_pinned: true, .. }, .. }]),
        "{effects:?}"
    );
    assert!(matches!(ui.model.modal, Some(Modal::Checkpoints(_))));
    // An action of the screen behind the dialog closes the dialog.
    ui.press(":");
    ui.type_in("logs merged");
    ui.press("Enter");
    assert!(ui.model.modal.is_none() && ui.model.screen == Screen::Logs);
}

#[test]
fn an_action_of_a_dialog_opens_the_dialog_and_waits_for_its_key() {
    for (words, context) in [("unpin", Context::CheckpointsDialog), ("grid of", Context::PanelsDialog)] {
        let mut ui = Ui::with_runs(vec![running(83)]);
        ui.press(":");
        ui.type_in(words);
        assert!(ui.press("Enter").is_empty());
        assert_eq!((context, ui.model.screen), (crate::context(&ui.model), Screen::Run), "{words}");
        assert!(ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning), "{words}");
    }
    let mut ui = super::launch_form::with_plan();
    ui.press("1 :");
    ui.type_in("run on the selected target");
    ui.press("Enter");
    assert_eq!(crate::context(&ui.model), Context::TargetsDialog);
    assert_eq!(ui.model.screens.form.as_ref().unwrap().draft, super::launch_form::form_draft());
}

#[test]
fn the_launch_form_gets_its_nodes_back_when_the_list_of_actions_opens_it() {
    let mut ui = super::launch_form::with_nodes();
    let of = ui.model.fleet.of.clone();
    ui.press("3 :");
    assert_ne!(ui.model.fleet.of, of);
    ui.type_in("waive the selected");
    ui.press("Enter");
    assert_eq!((ui.model.screen, ui.model.fleet.of.clone()), (Screen::Launch, of));
}

#[test]
fn actions_that_are_not_possible_now_are_marked() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    ui.type_in("training continues from");
    insta::assert_snapshot!("palette_of_a_refused_action_80x24", ui.screen());
    ui.press("Enter");
    assert!(ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning), "the warning states why");
    ui.press(":");
    ui.type_in("the run; training saves");
    assert!(!ui.screen().contains("not possible now"), "{}", ui.screen());
}

#[test]
fn an_action_of_another_screen_goes_there_first() {
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press(":");
    ui.type_in("heat map of all");
    assert!(ui.screen().contains("on the Nodes screen"), "{}", ui.screen());
    insta::assert_snapshot!("palette_of_another_screen_80x24", ui.screen());
    ui.press("Enter");
    assert_eq!(ui.model.screen, Screen::Nodes);
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press(": t y p e Space x");
    ui.press("Esc :");
    ui.type_in("launch any recipe");
    ui.press("Enter");
    assert!(ui.model.screen == Screen::Recipes && ui.model.input.is_some());
    ui.press("Esc 1 j :");
    ui.type_in("pick the metrics");
    ui.press("Enter");
    assert!(ui.model.screen == Screen::Run && ui.model.screens.run.as_ref().unwrap().id == stage_1());
}

#[test]
fn an_action_of_a_screen_with_nothing_to_show_explains_what_is_missing() {
    for words in ["first error", "override a key", "show the next node", "processes of all users", "align the runs"] {
        let mut ui = Ui::with_runs(vec![]);
        ui.press(":");
        ui.type_in(words);
        assert!(ui.press("Enter").is_empty());
        assert!(ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning), "{words}");
    }
}

#[test]
fn a_dangerous_action_still_asks() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    ui.type_in("kill");
    let effects = ui.press("Enter");
    assert!(matches!(effects[..], [Effect::Job { request: Request::PlanKill { .. }, .. }]), "{effects:?}");
}

#[test]
fn an_action_of_another_screen_that_changes_something_waits_for_its_key() {
    let mut ui = Ui::with_runs(many_runs().rows);
    ui.press("4 :");
    let at = palette(&ui).listed().iter().position(|listed| listed.binding.action == Action::Stop).unwrap();
    for _ in 0..at {
        ui.press("Down");
    }
    assert!(ui.press("Enter").is_empty());
    assert_eq!(ui.model.screen, Screen::Runs);
    assert!(ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning));
}

#[test]
fn without_a_match_enter_only_closes_the_list() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    ui.type_in("xyzzy");
    assert!(ui.screen().contains("No action contains these words"));
    assert!(ui.press("Enter").is_empty() && ui.model.modal.is_none());
}

#[test]
fn the_selection_moves_and_the_filter_can_be_corrected() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    ui.press(": Down Down");
    assert_eq!(palette(&ui).chosen().unwrap().binding.action, Context::Runs.bindings()[2].action);
    ui.type_in("qq");
    assert_eq!((palette(&ui).selected, palette(&ui).listed().len()), (0, 0));
    ui.press("Backspace Backspace");
    assert!(palette(&ui).filter.is_empty() && palette(&ui).listed().len() > 10);
    ui.press("Esc");
    assert!(ui.model.modal.is_none());
}
