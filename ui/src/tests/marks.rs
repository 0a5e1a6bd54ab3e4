//! Tests of the marks of the charts on the Run screen.

use super::alerts::alert;
use super::charts::points;
use crate::fixtures::*;
use crate::*;
use rundir::{AlertKind, ErrorCode, Event, EventKind, Failure, MetricSample};

/// Returns the letters in a row of marks.
fn letters(row: &str) -> String {
    row.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Returns the letters in the row of marks above the lanes of a screen of 160 × 48.
fn above_the_lanes(ui: &Ui) -> String {
    let screen = ui.screen();
    let row = screen.lines().skip_while(|line| !line.contains("Marks")).nth(1).unwrap();
    letters(&row.chars().take(90).collect::<String>())
}

/// Returns the last rows of an enlarged chart: the end of the plot, the marks, the labels of the x axis, the legend of the
/// marks, and the values at the cursor. `word` ends the labels.
fn rows_of_enlarged(ui: &Ui, word: &str) -> [String; 5] {
    let screen = ui.screen();
    let lines: Vec<&str> = screen.lines().collect();
    let labels = lines.iter().position(|line| line.ends_with(&format!(" {word}"))).unwrap();
    [labels - 2, labels - 1, labels, labels + 1, labels + 2].map(|at| lines[at].to_owned())
}

fn columns_of(row: &str, wanted: char) -> Vec<usize> {
    row.chars().enumerate().filter(|(_, c)| *c == wanted).map(|(at, _)| at).collect()
}

fn node_lost() -> EventKind {
    let failure = Failure::new(ErrorCode::NodeLost, "node gpu03 was lost", "no heartbeat", "");
    EventKind::NodeLost { node: cluster::NodeId::new("gpu03").unwrap(), failure }
}

fn resumed(from_step: u64) -> EventKind {
    EventKind::Resumed { from_step, of_run: stage_1() }
}

#[test]
fn a_large_screen_marks_checkpoints_resumes_samples_and_lost_nodes() {
    let mut ui = Ui::on_run(running(83));
    let lost = Failure::new(ErrorCode::NodeLost, "node gpu03 was lost", "no heartbeat for 30 s", "");
    let kinds = [
        EventKind::Failed { failure: lost },
        resumed(40),
        EventKind::SampleSaved { path: "/x/0.mp4".into(), seconds: 3.0 },
    ];
    ui.run_msg(RunMsg::Events((0..).zip(kinds).map(|(n, kind)| event(200.0, Some(41 + 9 * n), kind)).collect()));
    ui.run_msg(RunMsg::NodePoints(points(true)));
    ui.resize(160, 48);
    assert_eq!(above_the_lanes(&ui), "xrvcn");
}

#[test]
fn a_stage_is_marked_and_a_node_that_several_report_as_lost_is_marked_once() {
    let mut ui = Ui::on_run(running(83));
    let kinds = [EventKind::WeightsLoaded { from: "/x".into() }, node_lost(), node_lost()];
    ui.run_msg(RunMsg::Events((0..).zip(kinds).map(|(n, kind)| event(200.0, Some(20 + 9 * n), kind)).collect()));
    ui.resize(160, 48);
    let screen = ui.screen();
    let marks = screen.lines().find(|line| line.contains("Marks")).unwrap();
    assert!(marks.contains("s start 1") && marks.contains("x node lost 1"), "{marks}");
}

#[test]
fn alerts_that_need_a_user_are_marked() {
    let at = |step, kind| {
        let mut row = alert("3f9c20aa", 4.0, kind, "rank 1 died");
        row.state.alert.step = step;
        row
    };
    let mut ui = Ui::on_run(running(83));
    // The time of an alert without a step is that of step 49.
    let alerts = [(Some(30), AlertKind::OutOfMemory), (None, AlertKind::Failed), (Some(60), AlertKind::Checkpoint)];
    ui.send(Msg::Alerts(alerts.map(|(step, kind)| at(step, kind)).to_vec()));
    ui.resize(160, 48);
    assert_eq!(above_the_lanes(&ui), "aacn");
    assert!(ui.screen().contains("a alert 2"), "{}", ui.screen());
    ui.press("Enter");
    ui.model.screens.run.as_mut().unwrap().put_cursor_at(30.0);
    assert!(ui.screen().contains("alert: rank 1 died"), "{}", ui.screen());
}

#[test]
fn an_early_resume_among_fifty_thousand_events_is_marked() {
    let mut ui = Ui::on_run(running(83));
    let saved = || EventKind::CheckpointSaved { path: "/x".into(), bytes: 1, seconds: 1.0 };
    let later = (0..50_000).map(|n| event(200.0, Some(40 + n % 20), saved()));
    ui.run_msg(RunMsg::Events([event(280.0, Some(10), resumed(10))].into_iter().chain(later).collect()));
    ui.resize(160, 48);
    assert!(above_the_lanes(&ui).starts_with("rc"), "{}", ui.screen());
    let legend = "c checkpoint 50 001   n not finite 1   r resume 1";
    assert!(ui.screen().contains(legend), "{}", ui.screen());
    let events = &ui.model.screens.run.as_ref().unwrap().events;
    assert!(events.iter().all(|event| event.step != Some(10)), "the list has only the newest events");
}

#[test]
fn an_enlarged_chart_has_marks_with_a_legend_and_reads_them_at_the_cursor() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::Events(vec![Event { attempt: 3, ..event(250.0, Some(40), resumed(40)) }]));
    ui.press("Enter");
    let [_, marks, _, legend, _] = rows_of_enlarged(&ui, "step");
    assert_eq!(letters(&marks), "rcn");
    assert!(legend.contains("c checkpoint 1   n not finite 1   r resume 1"), "{legend}");
    let mut values_at = |step| {
        ui.model.screens.run.as_mut().unwrap().put_cursor_at(step);
        rows_of_enlarged(&ui, "step")[4].clone()
    };
    assert!(values_at(40.0).ends_with("resumed as attempt 3"));
    assert!(values_at(80.0).ends_with("checkpoint saved"));
    assert!(values_at(81.0).ends_with("loss not finite"));
    assert!(!values_at(20.0).contains("resumed"));
}

#[test]
fn a_line_of_values_that_is_too_long_leaves_room_for_the_mark() {
    let mut ui = Ui::on_empty_run(running(83));
    let with_ranks = |step| MetricSample { mem_gib_by_rank: vec![1.0, 1.2, 1.4, 1.6, 1.8, 2.0], ..sample(1, step) };
    ui.run_msg(RunMsg::Metrics((1..=83).map(with_ranks).collect()));
    ui.run_msg(RunMsg::Events(vec![event(250.0, Some(83), resumed(83))]));
    ui.model.screens.run.as_mut().unwrap().show_panel(layout::Panel::Chart(rundir::Chart::Memory));
    let [.., values] = rows_of_enlarged(&ui, "step");
    assert!(values.contains("rank 0") && values.ends_with("…   resumed as attempt 1"), "{values}");
}

#[test]
fn marks_are_at_the_gaps_of_a_curve_on_both_axes() {
    let gaps = [50, 53, 56];
    let mut ui = Ui::on_empty_run(running(83));
    let logged = |step| {
        let usual = sample(1, step);
        MetricSample { loss: usual.loss.filter(|_| !gaps.contains(&step)), ..usual }
    };
    ui.run_msg(RunMsg::Metrics((1..=83).map(logged).collect()));
    let at = |step: u64, kind| event(300.0 - 1.21 * step as f64, Some(step), kind);
    let lost = gaps.map(|step| at(step, EventKind::LossNotFinite));
    ui.run_msg(RunMsg::Events([at(40, resumed(40))].into_iter().chain(lost).collect()));
    ui.press("Enter");
    for word in ["step", "time"] {
        let [plot, marks, ..] = rows_of_enlarged(&ui, word);
        assert_eq!(letters(&marks), "rnnn");
        let (gaps, marks) = (columns_of(&plot, '×'), columns_of(&marks, 'n'));
        // A cell of the plot has two dots, so that both can differ by one column.
        let are_near = gaps.iter().zip(&marks).all(|(gap, mark)| gap.abs_diff(*mark) <= 1);
        assert!(gaps.len() == 3 && are_near, "{gaps:?} {marks:?}");
        ui.press("x");
    }
}

#[test]
fn marks_outside_of_the_steps_are_at_the_edges() {
    let mut ui = Ui::on_run(running(83));
    let loaded = event(310.0, Some(0), EventKind::WeightsLoaded { from: "/x".into() });
    ui.run_msg(RunMsg::Events(vec![loaded, event(0.0, None, node_lost())]));
    ui.press("Enter");
    for word in ["step", "time"] {
        let [_, marks, ..] = rows_of_enlarged(&ui, word);
        assert!(letters(&marks).starts_with('s') && letters(&marks).ends_with('x'), "{marks}");
        ui.press("x");
    }
    ui.press("+");
    let [_, marks, ..] = rows_of_enlarged(&ui, "step");
    assert!(!marks.contains('s') && marks.contains('x'), "{marks}");
}

#[test]
fn only_charts_of_eight_rows_have_marks_and_their_legend_is_beside_the_facts() {
    let mut ui = Ui::on_run(running(83));
    let has_legend =
        |ui: &Ui| ui.screen().lines().any(|line| line.contains("MFU 29") && line.contains("c checkpoint 1"));
    assert!(has_legend(&ui), "{}", ui.screen());
    // The charts of the nodes leave seven rows to the loss.
    ui.run_msg(RunMsg::NodePoints(points(true)));
    assert!(!has_legend(&ui), "{}", ui.screen());
}

#[test]
fn a_screen_of_120x36_has_lanes_and_shows_the_focused_one() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::NodePoints(points(true)));
    ui.resize(120, 36);
    insta::assert_snapshot!("lanes_120x36", ui.screen());
    assert!(!ui.screen().contains("Step time"));
    ui.press("Tab Tab Tab Tab");
    assert!(ui.screen().contains("▸ Step time"), "{}", ui.screen());
}
