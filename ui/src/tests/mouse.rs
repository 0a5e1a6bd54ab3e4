//! Tests of the mouse: clicks, the wheel, and drags over charts.

use super::launch_form::{all_passed, answer, some_failed, with_nodes, with_plan};
use super::samples::on_samples;
use crate::draft::LaunchTarget;
use crate::fixtures::*;
use crate::fleet::HistoryWindow;
use crate::layout::Panel;
use crate::model::FormPanel;
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
    assert!(matches!(click(&mut ui, "s stop")[..], [Effect::Job { request: Request::Stop { .. }, .. }]));
    let mut ui = Ui::with_runs(vec![running(83)]);
    click(&mut ui, "help");
    assert!(ui.model.modal.is_some());
}

#[test]
fn dialogs_are_not_answered_by_clicks() {
    let mut ui = Ui::with_runs(vec![running(83)]);
    let effects = ui.press("K");
    let [Effect::Job { job, request: Request::PlanKill { .. } }] = &effects[..] else { panic!("{effects:?}") };
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
    assert!(ui.model.screens.logs.as_ref().unwrap().top.is_none(), "followed again");
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
    assert_eq!(ui.model.screens.logs.as_ref().unwrap().current, Some(0));
    click(&mut ui, "[rank0] connected");
    assert!(ui.screen().contains("[rank7] connected"));
}

#[test]
fn a_click_moves_the_cursor_of_a_chart_and_the_wheel_zooms_around_it() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(160, 48);
    mouse(&mut ui, MouseKind::Press, 50, 14);
    mouse(&mut ui, MouseKind::Release, 50, 14);
    let run = ui.model.screens.run.as_ref().unwrap();
    let cursor = run.view.cursor.unwrap();
    assert!((30.0..60.0).contains(&cursor), "{cursor}");
    mouse(&mut ui, MouseKind::WheelUp, 50, 14);
    mouse(&mut ui, MouseKind::WheelUp, 50, 14);
    let (low, high) = ui.model.screens.run.as_ref().unwrap().window();
    assert!(low < cursor && cursor < high && high - low < 60.0, "{low} to {high}");
    mouse(&mut ui, MouseKind::Press, 50, 14);
    mouse(&mut ui, MouseKind::Release, 50, 14);
    let same = ui.model.screens.run.as_ref().unwrap().view.cursor.unwrap();
    assert!((same - cursor).abs() <= 1.0, "the step under the pointer stays there: {same}");
    for _ in 0..9 {
        mouse(&mut ui, MouseKind::WheelDown, 50, 14);
    }
    assert_eq!(ui.model.screens.run.as_ref().unwrap().view.span, None);
}

#[test]
fn a_drag_over_a_chart_shows_its_range() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(160, 48);
    mouse(&mut ui, MouseKind::Press, 60, 14);
    mouse(&mut ui, MouseKind::Drag, 35, 16);
    insta::assert_snapshot!("run_while_a_range_is_dragged_160x48", ui.screen());
    mouse(&mut ui, MouseKind::Release, 35, 16);
    let (low, high) = ui.model.screens.run.as_ref().unwrap().window();
    assert!(20.0 < low && low < high && high < 60.0, "{low} to {high}");
    let mut ui = Ui::on_compare();
    mouse(&mut ui, MouseKind::Press, 60, 8);
    mouse(&mut ui, MouseKind::Drag, 500, 8);
    mouse(&mut ui, MouseKind::Release, 79, 8);
    let open = ui.model.screens.compare.as_ref().unwrap();
    assert!(open.window().0 > 60.0 && open.view.end.is_none(), "{:?}", open.window());
}

#[test]
fn a_click_chooses_a_compared_metric_and_hides_a_run() {
    let mut ui = Ui::on_compare();
    click(&mut ui, "weight norm");
    assert_eq!(ui.model.screens.compare.as_ref().unwrap().quantity.name(), "weight_norm");
    click(&mut ui, "b demo-2s-lr3e4");
    let hidden =
        |ui: &Ui| ui.model.screens.compare.as_ref().unwrap().runs.iter().map(|run| run.hidden).collect::<Vec<_>>();
    assert_eq!(hidden(&ui), [false, true, false]);
    click(&mut ui, "demo-2s-lr3e4");
    assert_eq!(hidden(&ui), [false; 3]);
    ui.resize(160, 48);
    click(&mut ui, "gradient norm ─");
    assert_eq!(ui.model.screens.compare.as_ref().unwrap().quantity.name(), "grad_norm");
}

#[test]
fn a_click_on_a_panel_selects_it_and_a_second_one_enlarges_it() {
    let mut ui = Ui::on_run(running(83));
    click(&mut ui, "Gradient norm");
    let run = ui.model.screens.run.as_ref().unwrap();
    assert_eq!((run.focus, run.enlarged), (Panel::Chart(Chart::GradNorm), false));
    click(&mut ui, "Gradient norm");
    assert!(ui.model.screens.run.as_ref().unwrap().enlarged);
}

#[test]
fn a_second_click_on_a_failed_rank_in_the_events_opens_its_log() {
    let mut ui = Ui::on_run(running(83));
    let cause = rundir::Cause::Root;
    let died = EventKind::RankDied { rank: 1, code: Some(1), signal: None, message: "out of memory".into(), cause };
    ui.run_msg(RunMsg::Events(vec![
        event(20.0, Some(12), died),
        event(10.0, Some(13), EventKind::StepSkipped { clips: Vec::new(), more_clips: 0, in_data: false }),
    ]));
    click(&mut ui, "rank 1 exited");
    assert_eq!(ui.model.screen, Screen::Run);
    click(&mut ui, "rank 1 exited");
    assert_eq!(ui.model.screen, Screen::Logs);
    assert_eq!(ui.model.screens.logs.as_ref().unwrap().only.to_string(), "1");
}

#[test]
fn a_click_on_a_key_that_a_notice_hides_does_nothing() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(80, 6);
    let row = 5;
    let stops = |effects: Vec<Effect>| {
        effects.iter().any(|effect| matches!(effect, Effect::Job { request: Request::Stop { .. }, .. }))
    };
    let stop = (0..80).find(|column| {
        let mut probe = Ui::on_run(running(83));
        probe.resize(80, 6);
        stops(mouse(&mut probe, MouseKind::Press, *column, row))
    });
    let column = stop.expect("the key bar has the key");
    ui.model.warn("This is in the place of the key bar");
    assert!(!stops(mouse(&mut ui, MouseKind::Press, column, row)));
}

#[test]
fn clicks_in_the_launch_form_select_and_edit_and_never_start_the_run() {
    let mut ui = with_plan();
    answer(&mut ui, all_passed());
    assert!(click(&mut ui, "model.num_layers").is_empty());
    assert_eq!(ui.model.screens.form.as_ref().unwrap().key, Some("model.num_layers"));
    assert!(ui.model.input.is_none());
    click(&mut ui, "model.num_layers");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "model.num_layers=2");
    ui.press("Esc");
    click(&mut ui, "On this machine");
    assert_eq!(ui.model.screens.form.as_ref().unwrap().focus, FormPanel::Target);
    click(&mut ui, "2 ranks, the mesh");
    assert_eq!(ui.model.input.as_ref().map(|input| input.purpose), Some(Purpose::Ranks));
    ui.press("Esc");
    click(&mut ui, "mesh     dp_replicate");
    let form = ui.model.screens.form.as_ref().unwrap();
    assert_eq!((form.focus, form.check.clone()), (FormPanel::Checks, Some(("mesh".to_owned(), None))));
    assert!(click(&mut ui, "Enter start").is_empty());
    assert!(!ui.model.screens.form.as_ref().unwrap().is_armed && ui.model.notice.is_some());
    assert!(matches!(ui.press("Enter")[..], [Effect::Job { request: Request::LaunchDraft { .. }, .. }]));
}

#[test]
fn a_second_click_on_a_node_of_the_launch_form_leaves_it_out() {
    let mut ui = with_nodes();
    let excluded = |ui: &Ui| match &ui.model.screens.form.as_ref().unwrap().draft.target {
        LaunchTarget::Hostfile { exclude, .. } => exclude.clone(),
        other => panic!("{other:?}"),
    };
    click(&mut ui, "gpu02");
    assert_eq!((ui.model.screens.form.as_ref().unwrap().node, excluded(&ui)), (1, None));
    click(&mut ui, "gpu02");
    assert_eq!(excluded(&ui).as_deref(), Some("gpu02"));
}

#[test]
fn a_check_of_the_launch_form_is_waived_by_its_key_only() {
    let mut ui = with_nodes();
    answer(&mut ui, some_failed(true));
    ui.resize(160, 48);
    for _ in 0..3 {
        click(&mut ui, "clock");
    }
    let form = ui.model.screens.form.as_ref().unwrap();
    assert_eq!(form.check.as_ref().map(|(name, _)| name.as_str()), Some("clock"));
    assert!(form.draft.waived.is_empty());
    assert!(click(&mut ui, "W waive").is_empty());
    assert!(ui.model.screens.form.as_ref().unwrap().draft.waived.is_empty() && ui.model.notice.is_some());
    ui.press("W");
    assert_eq!(ui.model.screens.form.as_ref().unwrap().draft.waived, ["clock"]);
}

#[test]
fn a_click_chooses_a_completion_of_an_override() {
    let mut ui = with_plan();
    ui.press("+");
    ui.type_in("train.");
    click(&mut ui, "train.seed");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "train.seed=");
    click(&mut ui, "model.num_layers");
    assert_eq!(ui.model.input.as_ref().unwrap().text, "train.seed=", "the rest of the form accepts keys only");
}

#[test]
fn the_wheel_scrolls_the_panel_of_the_launch_form_under_the_pointer() {
    let mut ui = with_plan();
    ui.resize(160, 48);
    mouse(&mut ui, MouseKind::WheelDown, 20, 8);
    let form = ui.model.screens.form.as_ref().unwrap();
    assert_eq!((form.focus, form.key_position()), (FormPanel::Settings, 3));
    mouse(&mut ui, MouseKind::WheelDown, 120, 40);
    assert_eq!(ui.model.screens.form.as_ref().unwrap().focus, FormPanel::Plan);
}

#[test]
fn a_click_selects_a_field_of_a_conversion_and_a_second_one_edits_it() {
    let mut ui = Ui::on_convert(convert_preview());
    assert!(click(&mut ui, "layers").is_empty());
    assert_eq!(ui.model.screens.convert.field, 3);
    assert!(
        matches!(click(&mut ui, "layers")[..], [Effect::Job { request: Request::PlanConvert { .. }, .. }]),
        "the next option"
    );
    click(&mut ui, "merge");
    assert!(ui.model.input.is_none());
    click(&mut ui, "merge");
    assert_eq!(ui.model.input.as_ref().map(|input| input.purpose), Some(Purpose::ConvertMerge));
}

#[test]
fn the_wheel_scrolls_the_preview_of_a_conversion() {
    let mut ui = Ui::on_convert(convert_preview());
    mouse(&mut ui, MouseKind::WheelDown, 10, 15);
    assert_eq!((ui.model.screens.convert.scroll, ui.model.screens.convert.field), (3, 0));
    mouse(&mut ui, MouseKind::WheelUp, 10, 15);
    assert_eq!(ui.model.screens.convert.scroll, 0);
    mouse(&mut ui, MouseKind::WheelDown, 10, 4);
    assert_eq!((ui.model.screens.convert.scroll, ui.model.screens.convert.field), (0, 3));
}

/// The step and the prompt of the selected sample.
fn sample_of(ui: &Ui) -> (u64, usize) {
    let sample = ui.model.screens.run.as_ref().unwrap().samples.selected().unwrap();
    (sample.step, sample.index)
}

#[test]
fn clicks_choose_the_step_the_prompt_and_the_video_of_a_sample() {
    let mut ui = on_samples();
    click(&mut ui, "40");
    assert_eq!(sample_of(&ui), (40, 0));
    click(&mut ui, "a white rabbit");
    assert_eq!(sample_of(&ui), (40, 1));
    click(&mut ui, "a butterfly");
    assert_eq!(sample_of(&ui), (40, 0));
    ui.press("G b");
    click(&mut ui, "step 20");
    assert_eq!(sample_of(&ui), (20, 0));
    // A click on the selected video pauses it.
    mouse(&mut ui, MouseKind::Press, 40, 12);
    assert!(ui.model.screens.run.as_ref().unwrap().samples.paused);
}

#[test]
fn the_wheel_changes_the_step_over_a_video_and_the_prompt_over_its_text() {
    let mut ui = on_samples();
    mouse(&mut ui, MouseKind::WheelUp, 40, 12);
    assert_eq!(sample_of(&ui), (40, 0));
    mouse(&mut ui, MouseKind::WheelDown, 40, 3);
    assert_eq!(sample_of(&ui), (40, 1));
    mouse(&mut ui, MouseKind::WheelDown, 40, 12);
    assert_eq!(sample_of(&ui), (80, 1));
}

#[test]
fn a_drag_over_a_video_shows_the_frame_at_the_pointer_and_one_over_the_steps_selects() {
    let mut ui = on_samples();
    super::samples::answer(&mut ui);
    let shown = |ui: &Ui| {
        let samples = &ui.model.screens.run.as_ref().unwrap().samples;
        (samples.paused, samples.frame)
    };
    mouse(&mut ui, MouseKind::Press, 40, 10);
    mouse(&mut ui, MouseKind::Drag, 41, 10);
    assert_eq!(shown(&ui), (true, 0), "a click pauses, also if the pointer moves by a column");
    mouse(&mut ui, MouseKind::Drag, 76, 10);
    assert_eq!(shown(&ui), (true, 2));
    mouse(&mut ui, MouseKind::Drag, 3, 10);
    assert_eq!(shown(&ui), (true, 0));
    mouse(&mut ui, MouseKind::Release, 3, 10);
    let screen = ui.screen();
    let (row, line) = screen.lines().enumerate().find(|(_, line)| line.contains("▸80")).unwrap();
    let column = |number: &str| text::width(line.split(number).next().unwrap()) as u16;
    mouse(&mut ui, MouseKind::Press, column("80"), row as u16);
    mouse(&mut ui, MouseKind::Drag, column("20"), row as u16);
    assert_eq!(sample_of(&ui), (20, 0));
}

#[test]
fn a_click_in_the_history_of_a_node_shows_the_values_of_that_time() {
    let mut ui = super::nodes::on_nodes();
    ui.resize(160, 48);
    ui.press(">");
    let power = |ui: &Ui| ui.screen().lines().find(|line| line.contains("Mean GPU power")).unwrap().to_owned();
    let newest = power(&ui);
    let row = ui.screen().lines().position(|line| line.contains("Mean GPU power")).unwrap() as u16 + 1;
    mouse(&mut ui, MouseKind::Press, 100, row);
    let cursor = ui.model.screens.nodes.cursor.unwrap();
    assert!((ui.model.now - 400.0..ui.model.now - 100.0).contains(&cursor), "{cursor}");
    assert!(ui.screen().contains("cursor "), "{}", ui.screen());
    assert_ne!(power(&ui), newest);
    mouse(&mut ui, MouseKind::Drag, 60, row);
    assert!(ui.model.screens.nodes.cursor.unwrap() < cursor);
    mouse(&mut ui, MouseKind::Press, 158, row);
    assert_eq!((ui.model.screens.nodes.cursor, power(&ui)), (None, newest), "the last column shows the newest values");
    mouse(&mut ui, MouseKind::WheelDown, 100, row);
    assert_eq!(ui.model.screens.nodes.window, HistoryWindow::Hour);
    mouse(&mut ui, MouseKind::WheelUp, 100, row);
    assert_eq!(ui.model.screens.nodes.window, HistoryWindow::TenMinutes);
    ui.press("Left Left");
    assert_eq!(ui.model.screens.nodes.cursor, Some(ui.model.now - 20.0));
    ui.press("Enter Right Right");
    assert_eq!((ui.model.screen, ui.model.screens.nodes.cursor), (Screen::Node, None));
}

#[test]
fn a_click_in_the_history_of_a_gpu_shows_the_values_of_that_time() {
    let mut ui = super::nodes::on_nodes();
    ui.resize(160, 48);
    ui.press("> Enter");
    let is_meter = |line: &str| line.trim_start().starts_with("0 ");
    let meters = |ui: &Ui| ui.screen().lines().find(|line| is_meter(line)).unwrap().to_owned();
    let newest = meters(&ui);
    let row = ui.screen().lines().position(is_meter).unwrap() as u16 + 1;
    mouse(&mut ui, MouseKind::Press, 20, row - 1);
    assert_eq!(ui.model.screens.nodes.cursor, None, "the meters have no time");
    mouse(&mut ui, MouseKind::Press, 20, row);
    let cursor = ui.model.screens.nodes.cursor.unwrap();
    assert!(cursor < ui.model.now - 60.0, "{cursor}");
    assert!(ui.screen().contains("values of "), "{}", ui.screen());
    assert_ne!(meters(&ui), newest);
    ui.press("Right");
    assert!(ui.model.screens.nodes.cursor.unwrap() > cursor);
}
