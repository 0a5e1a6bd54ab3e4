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
fn every_action_of_every_screen_can_be_found() {
    for screen in Context::ALL.into_iter().filter(|context| context.is_screen()) {
        let dialog = PaletteDialog { context: screen, filter: String::new(), selected: 0 };
        let listed = dialog.listed();
        let all = Context::ALL.into_iter().filter(|context| context.is_screen()).flat_map(Context::bindings);
        for binding in all.filter(|binding| !binding.action.is_motion()) {
            let found = listed.iter().any(|listed| listed.binding.action == binding.action);
            assert!(found, "{screen:?} lacks {:?}", binding.action);
        }
    }
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
    assert!(ui.model.screen == Screen::Run && ui.model.run.as_ref().unwrap().id == stage_1());
}

#[test]
fn an_action_of_a_screen_with_nothing_to_show_explains_what_is_missing() {
    for words in ["first error", "override a key", "the next node", "processes of all users", "align the runs"] {
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
    assert!(matches!(effects[..], [Effect::PlanKill { .. }]), "{effects:?}");
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
