//! Tests of the details of list screens on large terminals.

use super::actions::on_processes;
use crate::fixtures::*;
use crate::*;
use runstate::RunState;

fn finished() -> RunRow {
    row(stage_1(), "2s", RunState::Finished, 240)
}

/// Sends what the stream of a run sends first.
fn load(ui: &mut Ui, row: RunRow) {
    let run = row.run.clone();
    let metrics = (1..=row.step).map(|step| sample(1, step)).collect();
    let checkpoints = vec![checkpoint(80, 203.0), checkpoint(240, 12.0)];
    for what in [
        RunMsg::Opened,
        RunMsg::State(status(row)),
        RunMsg::Metrics(metrics),
        RunMsg::Events(events()),
        RunMsg::Checkpoints(checkpoints),
    ] {
        ui.send(Msg::Run { run: run.clone(), what });
    }
}

fn assert_shows(ui: &Ui, texts: &[&str]) {
    let screen = ui.screen();
    for text in texts {
        assert!(screen.contains(text), "{text} is not on the screen:\n{screen}");
    }
}

/// The Stages screen with a finished run of the first stage, and a run of the second one that started from it.
fn on_stages() -> Ui {
    let lineage = Some(rundir::Lineage { run: stage_1(), step: 240 });
    let mut ui = Ui::with_runs(vec![finished(), RunRow { lineage, ..row(stage_2(), "4s", RunState::Running, 97) }]);
    ui.press("2");
    ui
}

#[test]
fn a_finished_run_shows_its_results_checkpoints_and_events() {
    let mut ui = Ui::with_runs(vec![finished()]);
    ui.resize(160, 48);
    ui.send(Msg::Tick(NOW + 1.0));
    load(&mut ui, finished());
    assert_shows(&ui, &["lowest", "─ Checkpoints ─", "─ Events ─", "4s, not started from this run"]);
    insta::assert_snapshot!("runs_with_the_results_of_a_finished_one_160x48", ui.screen());
}

#[test]
fn a_stage_shows_its_runs_the_checkpoints_of_all_stages_and_the_loss_of_its_newest_run() {
    let mut ui = on_stages();
    ui.resize(160, 48);
    ui.send(Msg::Tick(NOW + 1.0));
    assert!(watches(&ui.model).contains(&Watch::Run(stage_2())));
    load(&mut ui, row(stage_2(), "4s", RunState::Running, 97));
    insta::assert_snapshot!("stages_with_runs_160x48", ui.screen());
    ui.press("k");
    assert!(watches(&ui.model).iter().all(|watch| !matches!(watch, Watch::Run(_))), "the selection may still move");
}

#[test]
fn a_narrow_and_tall_screen_shows_all_panels_below_each_other() {
    let mut ui = on_stages();
    let more = ["Runs of 4s", "Checkpoints through the stages"];
    assert!(more.iter().all(|text| !ui.screen().contains(text)), "{}", ui.screen());
    ui.resize(100, 40);
    assert_shows(&ui, &more);
}

#[test]
fn a_large_screen_shows_why_a_process_is_an_orphan_and_the_totals_of_its_node() {
    let mut ui = on_processes();
    ui.press("j j");
    ui.resize(160, 48);
    assert_shows(&ui, &["Orphan process of", "kill it (shows the plan first)", "─ Nodes ─", "4 processes, 1 orphan"]);
    ui.resize(80, 24);
    assert!(!ui.screen().contains("─ Nodes ─"));
}

#[test]
fn a_recipe_shows_its_runs_and_the_keys_that_differ_from_their_defaults() {
    let run = row(id("2026-11-19T2210-cogvideox-5b-lora-ab12"), "2s", RunState::Finished, 240);
    let mut ui = Ui::with_runs(vec![run]);
    ui.send(Msg::Recipes(recipes()));
    ui.press("5");
    ui.resize(160, 48);
    assert_shows(&ui, &["─ Runs named cogvideox-5b-lora ─", "✓ finished", "num_layers"]);
}

#[test]
fn long_values_of_compared_recipes_wrap_and_equal_keys_are_below_them() {
    let mut ui = Ui::on_compare();
    ui.press("d");
    let equal = "1 key has its default in all runs";
    assert_shows(&ui, &["Equal in all runs, differs from the default (1)", "train.steps  240", equal]);
    ui.resize(44, 9);
    assert!(!ui.screen().contains(equal), "{}", ui.screen());
    ui.press("G");
    assert_shows(&ui, &[equal]);
    ui.press("g j j");
    assert_shows(&ui, &[".jsonl"]);
}
