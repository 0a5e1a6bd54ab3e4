//! The list of actions: filter, selection and execution.

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
    let listed: Vec<Action> = palette(&ui).listed().iter().map(|binding| binding.action).collect();
    let all: Vec<Action> = Context::Run.all_bindings().map(|binding| binding.action).collect();
    assert!(all.iter().all(|action| *action == Action::Palette || listed.contains(action)));
    picture("palette", ui);
}

#[test]
fn typed_words_filter_the_list_and_enter_executes() {
    let mut ui = Ui::on_run(running(83));
    ui.press(":");
    ui.type_in("Logs merged");
    let listed: Vec<Action> = palette(&ui).listed().iter().map(|binding| binding.action).collect();
    assert_eq!(listed, [Action::Logs]);
    ui.press("Enter");
    assert!(ui.model.modal.is_none() && ui.model.screen == model::Screen::Logs);
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
    assert_eq!(palette(&ui).chosen(&ui.model.keys), Some(Context::Runs.bindings()[2].keys[0]));
    ui.type_in("qq");
    assert_eq!((palette(&ui).selected, palette(&ui).listed().len()), (0, 0));
    ui.press("Backspace Backspace");
    assert!(palette(&ui).filter.is_empty() && palette(&ui).listed().len() > 10);
    ui.press("Esc");
    assert!(ui.model.modal.is_none());
}
