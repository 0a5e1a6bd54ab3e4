//! Tests of the log of one rank on the Logs screen: following, scrolling, wrapping and searching.

use crate::fixtures::*;
use crate::*;

fn lines(n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("line {i} of the log")).collect()
}

/// Returns whether a line of [`lines`] is on the screen.
fn shows(ui: &Ui, line: usize) -> bool {
    ui.screen().contains(&format!("line {line} of the log"))
}

fn append(ui: &mut Ui, lines: Vec<String>) {
    ui.run_msg(RunMsg::Log(LogChunk { rank: 0, attempt: 1, from_start: false, skipped_bytes: 0, lines }));
}

#[test]
fn new_lines_are_followed_until_the_user_scrolls_up() {
    let mut ui = Ui::on_logs(lines(100));
    assert!(shows(&ui, 100));
    append(&mut ui, vec!["new-1".into()]);
    assert!(ui.screen().contains("new-1"));
    ui.press("k k");
    let before = ui.screen();
    append(&mut ui, vec!["new-2".into()]);
    assert!(!ui.screen().contains("new-2"));
    let body = |screen: &str| screen.lines().skip(3).take(15).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(body(&before), body(&ui.screen()), "the visible lines do not move");
    ui.press("f");
    assert!(ui.screen().contains("new-2"));
}

#[test]
fn one_key_goes_to_the_beginning_or_the_end() {
    let mut ui = Ui::on_logs(lines(100));
    ui.press("g");
    assert!(shows(&ui, 1));
    ui.press("G");
    assert!(shows(&ui, 100));
}

#[test]
fn a_long_line_wraps_and_scrolls_row_by_row() {
    let mut all = lines(20);
    all.push("x".repeat(500));
    all.push("last-line".into());
    let mut ui = Ui::on_logs(all);
    let screen = ui.screen();
    assert!(screen.contains("last-line"));
    assert_eq!(screen.lines().filter(|line| line.contains("xxx")).map(|line| line.trim().len()).sum::<usize>(), 500);
    ui.press("k");
    assert!(!ui.screen().contains("last-line"));
    ui.press("| G");
    assert!(shows(&ui, 20) && ui.screen().contains('…'));
}

#[test]
fn searching_moves_from_match_to_match_and_wraps_around() {
    let mut ui = Ui::on_logs(lines(200));
    ui.press("g /");
    ui.type_in("line 1.0 of");
    ui.press("Enter");
    insta::assert_snapshot!("logs_search_with_ten_matches_80x24", ui.screen());
    assert!(shows(&ui, 100));
    ui.press("n");
    assert!(shows(&ui, 110));
    ui.press("N N");
    assert!(shows(&ui, 190), "wraps around at the beginning: {}", ui.screen());
    ui.press("Esc");
    assert!(ui.model.screens.logs.as_ref().unwrap().search.is_none());
}

#[test]
fn an_incomplete_expression_is_searched_literally() {
    let mut ui = Ui::on_logs(vec!["call(1)".into(), "other".into()]);
    ui.press("/");
    ui.type_in("call(");
    insta::assert_snapshot!("logs_search_for_an_incomplete_expression_80x24", ui.screen());
}

#[test]
fn the_number_of_kept_lines_is_bounded() {
    let mut ui = Ui::on_logs(lines(3000));
    append(&mut ui, lines(4000));
    ui.press("g");
    insta::assert_snapshot!("logs_at_the_oldest_kept_line_80x24", ui.screen());
}

#[test]
fn an_error_before_the_loaded_lines_of_a_rank_is_the_first_error() {
    let mut ui = Ui::on_logs(vec![]);
    let (attempt, from_start, skipped_bytes) = (1, true, 4 << 20);
    ui.run_msg(RunMsg::Log(LogChunk { rank: 0, attempt, from_start, skipped_bytes, lines: lines(100) }));
    let found = EarlierError {
        rank: 0,
        lines: vec![(log_lines::Level::Error, "ValueError: bad shape".into())],
        error: 0,
        bytes_before: 100,
        hidden_bytes: (4 << 20) - 122,
    };
    ui.run_msg(RunMsg::EarlierErrors(EarlierErrors { of: Some(0), attempt, found: Some(found), unsearched_bytes: 0 }));
    assert!(shows(&ui, 100), "the end of the log is still followed");
    ui.press("!");
    let screen = ui.screen();
    assert!(screen.contains("ValueError: bad shape") && screen.contains("not shown") && shows(&ui, 1), "{screen}");
    assert!(screen.contains("the first 100 B are only in the file"), "{screen}");
}

#[test]
fn attempts_are_separated_by_a_divider() {
    let mut ui = Ui::on_logs(lines(3));
    ui.run_msg(RunMsg::Log(LogChunk {
        rank: 0,
        attempt: 2,
        from_start: false,
        skipped_bytes: 0,
        lines: vec!["resumed from step 80".into()],
    }));
    assert!(ui.screen().contains("─── attempt 2 ───"), "{}", ui.screen());
}
