//! The panels of the run screen, as the user picks them.

use crate::fixtures::*;
use crate::layout::Panel;
use crate::screens::run;
use crate::*;
use recipe::Task;
use rundir::Chart;

fn panels(ui: &Ui) -> Vec<Panel> {
    run::content(&ui.model, ui.model.run.as_ref().unwrap()).panels()
}

#[test]
fn a_panel_is_hidden_and_shown_again() {
    let mut ui = Ui::on_run(running(83));
    let usual = panels(&ui);
    ui.press("Tab m");
    insta::assert_snapshot!("panels_dialog_80x24", ui.screen());
    ui.press("Space j j j Space");
    let hidden = [Chart::LearningRate, Chart::Memory].map(Panel::Chart);
    assert!(hidden.iter().all(|panel| usual.contains(panel) && !panels(&ui).contains(panel)));
    assert!(panels(&ui).contains(&ui.model.run.as_ref().unwrap().focus), "a hidden panel has no focus");
    ui.press("Esc");
    insta::assert_snapshot!("run_with_picked_panels_80x24", ui.screen());
    ui.resize(160, 48);
    insta::assert_snapshot!("run_with_picked_panels_160x48", ui.screen());
    ui.press("m d Esc");
    ui.resize(80, 24);
    assert_eq!(panels(&ui), usual);
}

#[test]
fn without_any_picked_panel_the_large_chart_stays() {
    let mut ui = Ui::on_run(running(83));
    ui.model.picked_panels = Some(panel_set::PanelSet::default());
    assert_eq!(panels(&ui), [Panel::Chart(Chart::Loss), Panel::Checkpoints, Panel::Events]);
    for (width, height) in [(80, 24), (160, 48), (300, 100)] {
        ui.resize(width, height);
        assert!(ui.screen().contains("Loss"));
    }
}

#[test]
fn picked_panels_are_remembered() {
    let mut ui = Ui::on_run(running(83));
    ui.press("m j Space Esc");
    let session = ui.model.session();
    let again = Ui::with_setup(|setup| setup.session = Some(session));
    assert!(again.model.picked_panels.is_some());
    assert_eq!(again.model.picked_panels, ui.model.picked_panels);
}

#[test]
fn an_encode_has_all_of_its_panels() {
    let mut ui = Ui::on_run(RunRow { task: Task::Encode, ..running(83) });
    let before = panels(&ui);
    ui.press("m");
    assert!(ui.model.modal.is_none() && ui.model.notice.is_some());
    ui.model.picked_panels = Some(panel_set::PanelSet::default());
    assert_eq!(panels(&ui), before);
}
