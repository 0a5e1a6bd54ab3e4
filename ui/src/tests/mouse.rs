//! Tests of the mouse: clicks, the wheel, and drags over charts.

use crate::fixtures::*;
use crate::layout::Panel;
use crate::*;
use rundir::{Chart, EventKind};

fn mouse(ui: &mut Ui, kind: MouseKind, column: u16, row: u16) -> Vec<Effect> {
    ui.send(Msg::Mouse(Mouse { kind, column, row }))
}

/// Clicks on the first cell of a text that is on the screen.
fn click(ui: &mut Ui, text: &str) -> Vec<Effect> {
    let screen = ui.screen();
    let found = screen.lines().enumerate().find_map(|(row, line)| Some((row, line.find(text)?, line)));
    let (row, at, line) = found.unwrap_or_else(|| panic!("{text} is not on the screen:\n{screen}"));
    let column = text::width(&line[..at]) as u16;
    let effects = mouse(ui, MouseKind::Press, column, row as u16);
    mouse(ui, MouseKind::Release, column, row as u16);
    effects
}

#[test]
fn a_click_selects_a_run_and_a_second_click_opens_it() {
    let mut ui = Ui::with_runs(many_runs().rows);
    click(&mut ui, "demo-2s-zz01");
    assert_eq!(ui.model.selected_run().unwrap().run.name(), "demo-2s");
    assert!(ui.model.selected_run().unwrap().run.as_str().ends_with("zz01"));
    assert_eq!(ui.model.screen, Screen::Runs);
    click(&mut ui, "demo-2s-zz01");
    assert_eq!(ui.model.screen, Screen::Run);
}

#[test]
fn clicks_on_the_header_and_the_key_bar_do_what_their_keys_do() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    for (tab, screen) in [("2 Stages", Screen::Stages), ("4 Convert", Screen::Convert), ("5 Rec", Screen::Recipes)] {
        click(&mut ui, tab);
        assert_eq!(ui.model.screen, screen);
    }
    click(&mut ui, "1 Runs");
    assert!(matches!(click(&mut ui, "s stop")[..], [Effect::Stop { .. }]));
    let mut ui = Ui::with_runs(vec![running(83)]);
    click(&mut ui, "help");
    assert!(ui.model.modal.is_some());
}

#[test]
fn dialogs_are_not_answered_by_clicks() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    let effects = ui.press("K");
    let [Effect::PlanKill { job, .. }] = &effects[..] else { panic!("{effects:?}") };
    ui.answer(*job, JobMsg::KillPlanned(kill_plan()));
    let before = ui.screen();
    for row in 0..24 {
        for column in 0..80 {
            assert!(mouse(&mut ui, MouseKind::Press, column, row).is_empty());
        }
    }
    assert_eq!(ui.screen(), before);
}

#[test]
fn the_wheel_scrolls_lists_logs_and_dialogs() {
    let lines = (0..200).map(|n| format!("line {n}")).collect();
    let mut ui = Ui::on_logs(lines);
    mouse(&mut ui, MouseKind::WheelUp, 10, 10);
    assert!(!ui.screen().contains("line 199") && ui.screen().contains("line 196"));
    mouse(&mut ui, MouseKind::WheelDown, 10, 10);
    assert!(ui.model.logs.as_ref().unwrap().top.is_none(), "followed again");
    ui.press("?");
    mouse(&mut ui, MouseKind::WheelDown, 10, 10);
    let Some(model::Modal::Help(help)) = &ui.model.modal else { panic!() };
    assert_eq!(help.scroll, 3);
    let mut ui = Ui::with_runs(many_runs().rows);
    mouse(&mut ui, MouseKind::WheelDown, 10, 5);
    assert_eq!(ui.model.selected_run().unwrap().run, many_runs().rows[3].run);
}

#[test]
fn a_click_marks_a_line_of_the_log_and_a_second_one_unfolds_it() {
    let lines = (0..8).map(|rank| (rank, format!("[rank{rank}] connected"))).collect();
    let mut ui = Ui::on_merged_logs(running(83), 1, lines);
    click(&mut ui, "[rank0] connected");
    assert_eq!(ui.model.logs.as_ref().unwrap().current, Some(0));
    click(&mut ui, "[rank0] connected");
    assert!(ui.screen().contains("[rank7] connected"));
}

#[test]
fn a_click_moves_the_cursor_of_a_chart_and_the_wheel_zooms_around_it() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(160, 48);
    mouse(&mut ui, MouseKind::Press, 50, 14);
    mouse(&mut ui, MouseKind::Release, 50, 14);
    let run = ui.model.run.as_ref().unwrap();
    let cursor = run.view.cursor.unwrap();
    assert!((30.0..60.0).contains(&cursor), "{cursor}");
    mouse(&mut ui, MouseKind::WheelUp, 50, 14);
    mouse(&mut ui, MouseKind::WheelUp, 50, 14);
    let (low, high) = ui.model.run.as_ref().unwrap().window();
    assert!(low < cursor && cursor < high && high - low < 60.0, "{low} to {high}");
    mouse(&mut ui, MouseKind::Press, 50, 14);
    mouse(&mut ui, MouseKind::Release, 50, 14);
    let same = ui.model.run.as_ref().unwrap().view.cursor.unwrap();
    assert!((same - cursor).abs() <= 1.0, "the step under the pointer stays there: {same}");
    for _ in 0..9 {
        mouse(&mut ui, MouseKind::WheelDown, 50, 14);
    }
    assert_eq!(ui.model.run.as_ref().unwrap().view.span, None);
}

#[test]
fn a_drag_over_a_chart_shows_its_range() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(160, 48);
    mouse(&mut ui, MouseKind::Press, 60, 14);
    mouse(&mut ui, MouseKind::Drag, 35, 16);
    insta::assert_snapshot!("run_while_a_range_is_dragged_160x48", ui.screen());
    mouse(&mut ui, MouseKind::Release, 35, 16);
    let (low, high) = ui.model.run.as_ref().unwrap().window();
    assert!(20.0 < low && low < high && high < 60.0, "{low} to {high}");
    let mut ui = Ui::on_compare();
    mouse(&mut ui, MouseKind::Press, 60, 8);
    mouse(&mut ui, MouseKind::Drag, 500, 8);
    mouse(&mut ui, MouseKind::Release, 79, 8);
    let open = ui.model.compare.as_ref().unwrap();
    assert!(open.window().0 > 60.0 && open.view.end.is_none(), "{:?}", open.window());
}

#[test]
fn a_click_chooses_a_compared_metric_and_hides_a_run() {
    let mut ui = Ui::on_compare();
    click(&mut ui, "weight norm");
    assert_eq!(ui.model.compare.as_ref().unwrap().quantity.name(), "weight_norm");
    click(&mut ui, "b demo-2s-lr3e4");
    let hidden = |ui: &Ui| ui.model.compare.as_ref().unwrap().runs.iter().map(|run| run.hidden).collect::<Vec<_>>();
    assert_eq!(hidden(&ui), [false, true, false]);
    click(&mut ui, "demo-2s-lr3e4");
    assert_eq!(hidden(&ui), [false; 3]);
    ui.resize(160, 48);
    click(&mut ui, "gradient norm ─");
    assert_eq!(ui.model.compare.as_ref().unwrap().quantity.name(), "grad_norm");
}

#[test]
fn a_click_on_a_panel_selects_it_and_a_second_one_enlarges_it() {
    let mut ui = Ui::on_run(running(83));
    click(&mut ui, "Gradient norm");
    let run = ui.model.run.as_ref().unwrap();
    assert_eq!((run.focus, run.enlarged), (Panel::Chart(Chart::GradNorm), false));
    click(&mut ui, "Gradient norm");
    assert!(ui.model.run.as_ref().unwrap().enlarged);
}

#[test]
fn a_second_click_on_a_failed_rank_in_the_events_opens_its_log() {
    let mut ui = Ui::on_run(running(83));
    let cause = rundir::Cause::Root;
    let died = EventKind::RankDied { rank: 1, code: Some(1), signal: None, message: "out of memory".into(), cause };
    ui.run_msg(RunMsg::Events(vec![event(20.0, Some(12), died), event(10.0, Some(13), EventKind::StepSkipped)]));
    click(&mut ui, "rank 1 exited");
    assert_eq!(ui.model.screen, Screen::Run);
    click(&mut ui, "rank 1 exited");
    assert_eq!(ui.model.screen, Screen::Logs);
    assert_eq!(ui.model.logs.as_ref().unwrap().only.to_string(), "1");
}

#[test]
fn a_click_on_a_key_that_a_notice_hides_does_nothing() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(80, 6);
    let row = 5;
    let stops = |effects: Vec<Effect>| effects.iter().any(|effect| matches!(effect, Effect::Stop { .. }));
    let stop = (0..80).find(|column| {
        let mut probe = Ui::on_run(running(83));
        probe.resize(80, 6);
        stops(mouse(&mut probe, MouseKind::Press, *column, row))
    });
    let column = stop.expect("the key bar has the key");
    ui.model.warn("This is in the place of the key bar");
    assert!(!stops(mouse(&mut ui, MouseKind::Press, column, row)));
}
