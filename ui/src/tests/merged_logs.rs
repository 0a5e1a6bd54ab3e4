//! Tests of the merged log: folding, filters, the first error, and opening it from an event.

use crate::fixtures::*;
use crate::*;
use cluster::NodeId;
use rundir::{Cause, EventKind};
use runstate::RunState;

/// The logs of 64 ranks: all ranks start, rank 17 runs out of memory, and the others lose the connection to it.
fn failed_start() -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let all = |lines: &mut Vec<(usize, String)>, text: &dyn Fn(usize) -> String| {
        lines.extend((0..64).map(|rank| (rank, text(rank))));
    };
    all(&mut lines, &|rank| format!("2026-11-20 04:00:0{} [rank{rank}] connected to node00:29500", rank % 3));
    all(&mut lines, &|_| "UserWarning: the attention mask is not used".into());
    lines.extend((1..=12).map(|step| (0, format!("step {step} loss 0.{}", 900 - step * 7))));
    lines.push((17, "Traceback (most recent call last):".into()));
    lines.push((17, "  File \"/opt/train.py\", line 214, in <module>".into()));
    lines.push((17, "    loss.backward()".into()));
    lines.push((17, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.2 GiB".into()));
    lines.extend(
        (0..64)
            .filter(|rank| *rank != 17)
            .map(|rank| (rank, format!("[rank{rank}]: RuntimeError: Connection closed by peer [10.0.0.3]:3301"))),
    );
    lines
}

fn failed() -> Ui {
    Ui::on_merged_logs(row(stage_1(), "2s", RunState::Failed(failure()), 12), 8, failed_start())
}

#[test]
fn equal_lines_of_64_ranks_are_one_line_and_the_first_error_is_shown() {
    let mut ui = failed();
    insta::assert_snapshot!("merged_log_of_a_failed_run_80x24", ui.screen());
    ui.resize(160, 48);
    ui.press("G");
    insta::assert_snapshot!("merged_log_of_a_failed_run_160x48", ui.screen());
}

#[test]
fn the_marked_line_shows_the_text_of_each_rank() {
    let mut ui = failed();
    ui.press("/");
    ui.type_in("connected");
    ui.press("Enter Enter Esc");
    insta::assert_snapshot!("merged_log_with_an_unfolded_line_80x24", ui.screen());
    let rows = ui.screen().matches("connected to").count();
    ui.press("Enter");
    assert!(ui.screen().matches("connected to").count() < rows, "folded again: {}", ui.screen());
}

#[test]
fn lines_are_filtered_by_level_and_rank() {
    let mut ui = failed();
    ui.press("Tab Tab");
    insta::assert_snapshot!("merged_log_of_errors_80x24", ui.screen());
    ui.press("Esc R");
    ui.type_in("16-18,40");
    ui.press("Enter");
    insta::assert_snapshot!("merged_log_of_four_ranks_80x24", ui.screen());
    assert!(!ui.screen().contains("step 3 "), "a line of rank 0 alone is hidden");
    ui.press("R Backspace x Enter");
    assert!(ui.model.notice.as_ref().is_some_and(|notice| notice.is_warning));
    ui.press("Esc Esc");
    assert!(ui.model.screens.logs.as_ref().is_none_or(|logs| logs.only.is_empty()));
}

#[test]
fn one_rank_stays_reachable() {
    let mut ui = failed();
    let stream = |ui: &Ui| watches(&ui.model).into_iter().find(|w| matches!(w, Watch::Log { .. } | Watch::Logs { .. }));
    assert_eq!(stream(&ui), Some(Watch::Logs { run: stage_1(), attempt: None }));
    ui.press("] ]");
    let node = NodeId::new("node00").unwrap();
    assert_eq!(stream(&ui), Some(Watch::Log { run: stage_1(), node, rank: 1 }));
    ui.press("[ [ [");
    assert!(
        matches!(stream(&ui), Some(Watch::Log { rank: 63, .. })),
        "the log before the merged one is the last rank's"
    );
    ui.press("0");
    assert!(matches!(stream(&ui), Some(Watch::Logs { .. })));
}

#[test]
fn new_lines_of_all_ranks_are_followed() {
    let mut ui = Ui::on_merged_logs(running(83), 8, (0..64).map(|rank| (rank, "started".into())).collect());
    ui.merged(false, (0..40).map(|step| (0, format!("step {step} loss 0.3"))).collect());
    ui.merged(false, (0..64).map(|rank| (rank, "saving".into())).collect());
    insta::assert_snapshot!("merged_log_that_is_followed_80x24", ui.screen());
    ui.model.symbols = Symbols::ascii();
    assert!(ui.screen().is_ascii());
}

#[test]
fn an_event_leads_to_the_line_of_its_rank() {
    let mut ui = failed();
    ui.press("Esc");
    let died = EventKind::RankDied {
        rank: 17,
        code: Some(1),
        signal: None,
        message: "CUDA out of memory".into(),
        cause: Cause::Root,
    };
    let lost = EventKind::NodeLost { node: NodeId::new("node02").unwrap(), failure: failure() };
    ui.run_msg(RunMsg::Events(vec![event(20.0, Some(12), died), event(10.0, Some(12), lost)]));
    // Shift-Tab moves from the first panel to the last one, the events; the newest event is selected first.
    ui.press("Shift-Tab Down");
    ui.resize(160, 48);
    insta::assert_snapshot!("run_with_the_event_of_a_dead_rank_selected_160x48", ui.screen());
    ui.resize(80, 24);
    ui.press("Enter");
    ui.merged(true, failed_start());
    let logs = ui.model.screens.logs.as_ref().unwrap();
    let line = logs.store.line(logs.current.unwrap()).unwrap();
    assert_eq!((logs.only.to_string().as_str(), line.text.starts_with("torch.OutOfMemoryError")), ("17", true));
    ui.press("Esc Esc Up Enter");
    assert_eq!(ui.model.screens.logs.as_ref().unwrap().only.to_string(), "16-23");
}

/// Returns the text of the marked line.
fn marked(ui: &Ui) -> Option<String> {
    let logs = ui.model.screens.logs.as_ref()?;
    Some(logs.store.line(logs.current?)?.text.clone())
}

#[test]
fn a_warning_leads_to_the_line_of_its_step_not_to_an_error() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::Events(vec![event(120.0, Some(81), EventKind::LossNotFinite)]));
    ui.press("Shift-Tab Enter");
    let lines = ["RuntimeError: unrelated", "step 81 loss nan", "step 82 loss 0.3"];
    ui.merged(true, lines.map(|line| (0, line.to_owned())).to_vec());
    assert_eq!(marked(&ui).as_deref(), Some("step 81 loss nan"));
    assert!(ui.model.notice.is_none());
}

#[test]
fn an_event_without_a_line_leads_to_the_end_of_the_log_with_a_notice() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::Events(vec![event(9.0, Some(81), EventKind::SampleRequested)]));
    ui.press("Shift-Tab Enter");
    ui.merged(true, vec![(0, "RuntimeError: unrelated".into())]);
    assert_eq!((marked(&ui), ui.model.notice.is_some()), (None, true));
}

/// A failed run with 100 loaded lines, and 12 MiB before them.
fn failed_after_a_long_time() -> Ui {
    let mut ui = Ui::on_run(row(stage_1(), "2s", RunState::Failed(failure()), 12));
    ui.press("l");
    let lines = (0..100).map(|step| (0, format!("step {step} loss 0.3"))).collect();
    let (attempt, from_start, is_caught_up, skipped_bytes) = (1, true, true, 12 << 20);
    ui.run_msg(RunMsg::Logs(RankLines { attempt, from_start, is_caught_up, skipped_bytes, zone_s: None, lines }));
    ui
}

/// The result of a search in the log of a rank, or in all logs.
fn earlier_error(of: Option<usize>) -> RunMsg {
    let lines = [(log_lines::Level::Plain, "step 1"), (log_lines::Level::Error, "ValueError: bad shape")];
    let lines = lines.map(|(level, line)| (level, line.to_owned())).to_vec();
    let found = EarlierError { rank: 1, lines, error: 1, bytes_before: 0, hidden_bytes: 12 << 20 };
    RunMsg::EarlierErrors(EarlierErrors { of, attempt: 1, found: Some(found), unsearched_bytes: 0 })
}

#[test]
fn the_log_of_a_failed_run_opens_at_an_error_before_the_loaded_lines() {
    let mut ui = failed_after_a_long_time();
    assert_eq!(marked(&ui), None);
    ui.run_msg(earlier_error(None));
    assert_eq!(marked(&ui).as_deref(), Some("ValueError: bad shape"));
    let screen = ui.screen();
    let at = |text: &str| screen.lines().skip(4).position(|line| line.contains(text)).expect("the text is shown");
    assert!(at("ValueError") < at("12 MiB not shown") && at("12 MiB not shown") < at("step 0 loss"), "{screen}");
    ui.press("G");
    assert!(ui.screen().contains("step 99 loss") && !ui.screen().contains("12 MiB not shown"));
    ui.press("!");
    assert_eq!(ui.screen(), screen);
    ui.press("j j j j k k k k");
    assert_eq!(ui.screen(), screen, "scrolling crosses the lines that are not shown");
}

#[test]
fn a_key_keeps_the_view_when_an_earlier_error_is_found() {
    let mut ui = failed_after_a_long_time();
    ui.press("k");
    ui.run_msg(earlier_error(Some(0)));
    assert!(ui.model.screens.logs.as_ref().unwrap().store.first_error.is_none(), "it is of the log of one rank");
    ui.run_msg(earlier_error(None));
    assert_eq!(marked(&ui), None);
    assert!(ui.screen().contains("step 90 loss"), "{}", ui.screen());
}

#[test]
fn the_key_of_the_first_error_warns_while_earlier_lines_are_searched_and_if_some_are_not() {
    let mut ui = failed_after_a_long_time();
    let warns = |ui: &mut Ui| {
        ui.model.notice = None;
        ui.press("!");
        ui.model.notice.as_ref().map(|notice| notice.is_warning)
    };
    assert_eq!(warns(&mut ui), Some(true), "no error yet");
    ui.merged(false, vec![(0, "RuntimeError: later".into())]);
    assert_eq!(warns(&mut ui), Some(false), "an earlier error may be found");
    let result =
        |unsearched_bytes| RunMsg::EarlierErrors(EarlierErrors { of: None, attempt: 1, found: None, unsearched_bytes });
    ui.run_msg(result(1 << 30));
    assert_eq!(warns(&mut ui), Some(false), "1 GiB was not searched");
    let mut ui = failed_after_a_long_time();
    ui.merged(false, vec![(0, "RuntimeError: later".into())]);
    ui.run_msg(result(0));
    assert_eq!(warns(&mut ui), None);
}

#[test]
fn an_event_of_an_earlier_attempt_opens_its_log() {
    let mut ui = Ui::on_run(running(83));
    let died = EventKind::RankDied { rank: 1, code: None, signal: Some(9), message: String::new(), cause: Cause::Root };
    ui.run_msg(RunMsg::Events(vec![rundir::Event { attempt: 7, ..event(20.0, None, died) }]));
    ui.press("Shift-Tab Enter");
    assert!(watches(&ui.model).contains(&Watch::Logs { run: stage_1(), attempt: Some(7) }));
}
