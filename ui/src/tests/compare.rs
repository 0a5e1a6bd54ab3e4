//! Tests of the Compare screen: alignment, cursor and differences between recipes.

use super::screens::picture;
use crate::fixtures::*;
use crate::series::Axis;
use crate::*;
use std::collections::BTreeSet;

fn compared(ui: &Ui) -> &model::CompareScreen {
    ui.model.screens.compare.as_ref().unwrap()
}

#[test]
fn compare() {
    picture("compare", Ui::on_compare());
}

#[test]
fn compare_with_a_cursor_and_smoothing() {
    let mut ui = Ui::on_compare();
    ui.press("S L x Left Left Left Left");
    picture("compare_cursor", ui);
}

#[test]
fn compare_recipes() {
    let mut ui = Ui::on_compare();
    ui.press("d");
    picture("compare_recipes", ui);
}

#[test]
fn compare_loading() {
    let mut ui = Ui::with_runs(compared_runs());
    ui.press("Space Space =");
    picture("compare_loading", ui);
}

#[test]
fn compare_with_a_run_that_is_lost() {
    let mut ui = Ui::on_compare();
    let run = compared_runs().remove(1).run;
    ui.send(Msg::Run { run, what: RunMsg::Lost(failure()) });
    picture("compare_lost", ui);
}

#[test]
fn only_two_to_eight_marked_runs_can_be_compared() {
    let mut ui = Ui::with_runs(compared_runs());
    ui.press("Space =");
    assert!(ui.model.screen == model::Screen::Runs && ui.model.notice.as_ref().unwrap().is_warning);
    let many = (0..9).map(|n| row(id(&format!("2026-11-20T0340-demo-r{n}")), "2s", runstate::RunState::Finished, 9));
    let mut ui = Ui::with_runs(many.collect());
    ui.press("Space Space Space Space Space Space Space Space Space =");
    assert!(ui.model.screen == model::Screen::Runs && ui.model.notice.as_ref().unwrap().is_warning);
}

#[test]
fn a_comparison_needs_the_stream_of_each_of_its_runs() {
    let mut ui = Ui::on_compare();
    let streams = || compared_runs().into_iter().map(|row| Watch::Compared(row.run)).collect::<BTreeSet<_>>();
    assert!(watches(&ui.model).is_superset(&streams()));
    ui.press("Esc");
    assert!(watches(&ui.model).is_disjoint(&streams()));
}

#[test]
fn runs_are_aligned_by_steps_time_and_tokens() {
    let mut ui = Ui::on_compare();
    assert_eq!(compared(&ui).full_range(), (1.0, 120.0));
    ui.press("x");
    assert_eq!((compared(&ui).x, compared(&ui).full_range().0), (Axis::Time, 0.0));
    ui.press("x");
    let (low, high) = compared(&ui).full_range();
    assert!(compared(&ui).x == Axis::Tokens && low > 0.0 && high > 100_000.0, "{low} to {high}");
    ui.press("x");
    assert_eq!(compared(&ui).x, Axis::Step);
}

#[test]
fn tokens_are_left_out_where_no_run_logs_them() {
    let mut ui = Ui::with_runs(compared_runs());
    ui.press("Space Space =");
    for row in compared_runs() {
        ui.send(Msg::Run { run: row.run, what: RunMsg::Metrics((1..9).map(|step| sample(1, step)).collect()) });
    }
    ui.press("x x");
    assert_eq!(compared(&ui).x, Axis::Step);
}

#[test]
fn one_cursor_reads_every_run_that_has_a_sample_there() {
    let mut ui = Ui::on_compare();
    ui.press("g");
    let steps = |ui: &Ui| -> Vec<Option<u64>> {
        let open = compared(ui);
        let step = |run: &model::ComparedRun| Some(run.series.live().step(open.sample_at_cursor(run)?));
        open.runs.iter().map(step).collect()
    };
    assert_eq!(steps(&ui), [Some(1), Some(1), Some(1)]);
    ui.press("+ + + Right Right");
    assert_eq!(steps(&ui), [Some(3), Some(3), Some(3)]);
    ui.press("0 Left");
    let ended = steps(&ui);
    assert!(ended[0].is_none() && ended[1].is_none() && ended[2].is_some_and(|step| step < 120), "{ended:?}");
    ui.press("G");
    assert_eq!(steps(&ui), [Some(83), Some(60), Some(120)]);
}

#[test]
fn the_next_metric_is_one_that_was_measured() {
    let mut ui = Ui::on_compare();
    let mut names = Vec::new();
    for _ in 0..10 {
        names.push(compared(&ui).quantity.name().to_owned());
        ui.press("Tab");
    }
    assert_eq!(
        names,
        ["loss", "grad_norm", "weight_norm", "lr", "step_s", "data_s", "tokens_per_s", "mfu", "mem_gib", "rank_busy_s"]
    );
    assert_eq!(compared(&ui).quantity.name().to_owned(), "loss");
    ui.press("Shift-Tab");
    assert_eq!(compared(&ui).quantity.name().to_owned(), "rank_busy_s");
}

#[test]
fn a_series_of_imported_runs_is_compared_by_its_name() {
    let mut ui = Ui::with_runs(compared_runs());
    ui.resize(160, 48);
    ui.press("Space Space Space =");
    for (number, row) in compared_runs().into_iter().enumerate() {
        let aux = |step: u64| {
            let other = [("val/psnr".to_owned(), Some(20.0 + number as f64 + (step as f64).ln()))];
            let other = if number < 2 { other.into() } else { Default::default() };
            rundir::MetricSample { is_from_log: true, other, ..sample(1, step) }
        };
        ui.send(Msg::Run { run: row.run, what: RunMsg::Metrics((1..40).map(aux).collect()) });
    }
    ui.press("Shift-Tab");
    assert_eq!(compared(&ui).quantity, model::Quantity::Named("val/psnr".into()));
    assert!(ui.screen().contains("val/psnr"), "{}", ui.screen());
    let effects = ui.press("e Enter");
    let [Effect::Job { request: Request::ExportComparison { comparison, to, .. }, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(comparison.metric, "val/psnr");
    assert!(to.as_str().ends_with("-val-psnr.svg"), "{to}");
}

#[test]
fn one_run_after_the_other_is_shown_alone() {
    let mut ui = Ui::on_compare();
    let mut shown = Vec::new();
    for _ in 0..4 {
        ui.press("Space");
        shown.push(compared(&ui).drawn().map(|(number, _)| number).collect::<Vec<_>>());
    }
    assert_eq!(shown, [vec![0], vec![1], vec![2], vec![0, 1, 2]]);
}

#[test]
fn a_large_screen_compares_several_metrics_and_enter_enlarges_one() {
    let mut ui = Ui::on_compare();
    ui.resize(160, 48);
    let titles = |ui: &Ui| ui.screen().matches("─ gradient norm ─").count();
    assert_eq!(titles(&ui), 1);
    ui.press("Enter");
    assert_eq!(titles(&ui), 0);
    ui.press("Tab");
    picture("compare_enlarged", ui);
}

#[test]
fn only_keys_that_differ_are_listed() {
    let ui = Ui::on_compare();
    let keys: Vec<String> = compared(&ui).differences().into_iter().map(|row| row.key).collect();
    assert_eq!(keys, ["model.latent_frames", "data.index", "optimizer.lr"]);
}

#[test]
fn a_recipe_that_lacks_a_key_differs_in_it_and_one_that_is_loading_does_not() {
    let mut ui = Ui::with_runs(compared_runs());
    ui.press("Space Space Space =");
    let runs: Vec<_> = compared_runs().into_iter().map(|row| row.run).collect();
    let recipe = |keys: &[&str]| RunMsg::Recipe(keys.iter().map(|key| (key.to_string(), "1".into())).collect());
    ui.send(Msg::Run { run: runs[0].clone(), what: recipe(&["train.steps", "train.seed"]) });
    assert_eq!(compared(&ui).differences(), []);
    ui.send(Msg::Run { run: runs[1].clone(), what: recipe(&["train.steps"]) });
    let rows = compared(&ui).differences();
    assert_eq!((rows.len(), rows[0].values.clone()), (1, vec![Some("1".into()), None, None]));
}

#[test]
fn a_comparison_of_the_same_runs_keeps_its_settings() {
    let mut ui = Ui::on_compare();
    ui.press("Tab S Esc =");
    assert_eq!((compared(&ui).quantity.name(), compared(&ui).smoothing), ("grad_norm", Some(0)));
}

#[test]
fn a_comparison_is_exported_as_it_is_on_the_screen() {
    let mut ui = Ui::on_compare();
    assert!(ui.press("Tab x S L e").is_empty(), "the file is asked for first");
    let effects = ui.press("Enter");
    let [Effect::Job { request: Request::ExportComparison { comparison, to, .. }, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    let runs: Vec<rundir::RunId> = compared_runs().into_iter().map(|row| row.run).collect();
    let ComparisonSpec { x, window, log_y, smoothing, .. } = comparison.clone();
    assert_eq!((&comparison.runs, x, window, log_y), (&runs, series::Axis::Time, None, true));
    assert!(smoothing.is_some() && comparison.metric != "loss");
    assert_eq!(to.as_str(), format!("/home/ada/vidtui/demo-2s-k7f2-and-2-{}.svg", comparison.metric));
    let mut empty = Ui::with_runs(compared_runs());
    assert!(empty.press("Space Space = e").is_empty());
    assert!(empty.model.notice.as_ref().is_some_and(|notice| notice.is_warning));
}
