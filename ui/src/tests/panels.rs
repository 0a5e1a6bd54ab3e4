//! Tests of the panels of the Run screen that the user picks.

use crate::fixtures::*;
use crate::layout::Panel;
use crate::screens::run;
use crate::*;
use ::recipe::Task;
use rundir::Chart;
use std::collections::BTreeMap;

fn panels(ui: &Ui) -> Vec<Panel> {
    run::content(&ui.model, ui.model.screens.run.as_ref().unwrap()).panels()
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
    assert!(panels(&ui).contains(&ui.model.screens.run.as_ref().unwrap().focus), "a hidden panel has no focus");
    ui.press("Esc");
    insta::assert_snapshot!("run_with_picked_panels_80x24", ui.screen());
    ui.resize(160, 48);
    insta::assert_snapshot!("run_with_picked_panels_160x48", ui.screen());
    ui.press("m 0 Esc");
    ui.resize(80, 24);
    assert_eq!(panels(&ui), usual);
}

#[test]
fn without_any_picked_panel_the_large_chart_stays() {
    let mut ui = Ui::on_run(running(83));
    ui.model.panels.picked = Some(Vec::new());
    assert_eq!(panels(&ui), [Panel::Chart(Chart::Loss), Panel::Checkpoints, Panel::Events]);
    for (width, height) in [(80, 24), (160, 48), (300, 100)] {
        ui.resize(width, height);
        assert!(ui.screen().contains("Loss"));
    }
}

#[test]
fn picked_panels_are_remembered() {
    let mut ui = Ui::on_run(running(83));
    ui.press("m j Space ] Tab L Esc");
    let session = ui.model.session();
    let again = Ui::with_setup(|setup| setup.session = Some(session));
    assert!(again.model.panels.picked.is_some());
    assert_eq!(again.model.panels, ui.model.panels);
}

#[test]
fn an_encode_has_all_of_its_panels() {
    let mut ui = Ui::on_run(RunRow { task: Task::Encode, ..running(83) });
    let before = panels(&ui);
    ui.press("m");
    assert!(ui.model.modal.is_none() && ui.model.notice.is_some());
    ui.model.panels.picked = Some(Vec::new());
    assert_eq!(panels(&ui), before);
}

/// A run that logs more metrics than the default panels show.
fn with_more_metrics() -> Ui {
    with_metrics_and(|_| Default::default())
}

/// A run that logs more metrics than the default panels show, and has a series of an imported run.
fn with_own_series() -> Ui {
    with_metrics_and(|step| [("val/psnr".to_owned(), Some(20.0 + (step as f64).ln()))].into())
}

fn with_metrics_and(other: fn(u64) -> BTreeMap<String, Option<f64>>) -> Ui {
    let mut ui = Ui::on_run(running(0));
    let more = |step: u64| {
        let other = other(step);
        rundir::MetricSample {
            tokens_per_s: 9000.0 + step as f64,
            forward_s: 0.3,
            backward_s: 0.7,
            other,
            ..sample(1, step)
        }
    };
    ui.run_msg(RunMsg::Metrics((1..=83).map(more).collect()));
    ui.run_msg(RunMsg::State(status(running(83))));
    ui
}

#[test]
fn every_metric_of_the_run_can_be_picked_and_moved() {
    let mut ui = with_more_metrics();
    ui.press("m");
    ui.resize(160, 48);
    insta::assert_snapshot!("panels_dialog_with_metrics_160x48", ui.screen());
    let index = rundir::find_metric("tokens_per_s").unwrap().0;
    let at = |ui: &Ui, panel| panels(ui).iter().position(|known| *known == panel);
    assert_eq!(at(&ui, Panel::Metric(index)), None);
    for _ in 0..40 {
        let screen = ui.screen();
        if screen.contains("▸ [ ] Tokens per second") {
            break;
        }
        ui.press("j");
    }
    ui.press("Space");
    assert!(at(&ui, Panel::Metric(index)).is_some());
    ui.press("g");
    while !ui.screen().contains("▸ [x] Tokens per second") {
        ui.press("j");
    }
    for _ in 0..20 {
        ui.press("[");
    }
    ui.press("Esc");
    let first = panels(&ui).into_iter().find(|panel| !matches!(panel, Panel::Chart(Chart::Loss | Chart::StepTime)));
    assert_eq!(first, Some(Panel::Metric(index)));
    assert!(ui.screen().contains("Tokens per second"), "{}", ui.screen());
}

#[test]
fn a_series_of_an_imported_run_is_a_panel_and_is_exported_by_its_name() {
    let mut ui = with_own_series();
    // The charts that have values are there without being picked, and the others are not.
    let metric = |name| Panel::Metric(rundir::find_metric(name).unwrap().0);
    let all = panels(&ui);
    assert!(all.contains(&metric("tokens_per_s")) && all.contains(&Panel::Chart(Chart::GradNorm)), "{all:?}");
    assert!(!all.contains(&Panel::Chart(Chart::ValidationLoss)), "{all:?}");
    assert!(all.contains(&Panel::Named(0)), "{all:?}");
    for _ in 0..all.iter().position(|panel| *panel == Panel::Named(0)).unwrap() {
        ui.press("Tab");
    }
    assert_eq!(ui.model.screens.run.as_ref().unwrap().focus, Panel::Named(0));
    assert!(ui.screen().contains("val/psnr"), "{}", ui.screen());
    let effects = ui.press("e Enter");
    let [Effect::Job { request: Request::Export { chart, to, .. }, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(chart.chart, PlottedChart::Named("val/psnr".into()));
    assert_eq!(to.as_str(), "/home/ada/vidtui/demo-2s-k7f2-val-psnr.svg");
}

#[test]
fn only_the_embedded_trainer_needs_a_key_of_the_recipe_for_mfu() {
    for is_command in [false, true] {
        let row = RunRow { is_command, ..running(0) };
        let mut ui = Ui::on_run(row.clone());
        let without = |step| rundir::MetricSample { mfu: None, ..sample(1, step) };
        ui.run_msg(RunMsg::Metrics((1..=9).map(without).collect()));
        ui.run_msg(RunMsg::State(status(row)));
        ui.model.panels.picked = Some(vec!["mfu".into()]);
        ui.resize(160, 48);
        assert_eq!(ui.screen().contains("Set log.peak_tflops"), !is_command, "{}", ui.screen());
    }
}

#[test]
fn a_grid_has_all_panels() {
    let mut ui = with_more_metrics();
    ui.press("m Tab Tab Esc");
    ui.resize(160, 48);
    insta::assert_snapshot!("run_as_a_grid_160x48", ui.screen());
    ui.resize(80, 24);
    insta::assert_snapshot!("run_as_a_grid_80x24", ui.screen());
}

fn recipe() -> RunMsg {
    let keys = [
        ("model.latent_frames", "25"),
        ("data.index", "\"/home/ada/vidtui/assets/demo/4s.jsonl\""),
        ("optimizer.kind", "\"adamw\""),
        ("optimizer.lr", "0.0005"),
        ("train.steps", "240"),
        ("checkpoint.every_steps", "80"),
    ];
    let defaults = ::recipe::default_settings().into_iter().map(|(key, value)| (key.to_owned(), value));
    let set = keys.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let others = defaults.filter(|(key, _)| keys.iter().all(|(known, _)| known != key));
    RunMsg::Recipe(set.into_iter().chain(others).collect())
}

#[test]
fn the_recipe_is_one_key_away_and_begins_with_what_the_stage_changes() {
    let mut ui = Ui::on_run(RunRow { stage: Some("4s".into()), ..running(83) });
    ui.run_msg(recipe());
    ui.press("Tab d");
    super::screens::picture("run_recipe", Ui { model: ui.model.clone() });
    ui.press("PgDn Esc");
    let run = ui.model.screens.run.as_ref().unwrap();
    assert!(!run.enlarged && run.focus == Panel::Chart(Chart::LearningRate), "{:?}", run.focus);
    ui.press("R");
    let run = ui.model.screens.run.as_ref().unwrap();
    assert!(run.enlarged && run.focus == Panel::Ranks);
    ui.press("R");
    assert!(!ui.model.screens.run.as_ref().unwrap().enlarged);
}
