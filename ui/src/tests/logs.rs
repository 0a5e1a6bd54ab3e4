//! Reading logs: following, scrolling, wrapping, searching.

use crate::fixtures::*;
use crate::*;

fn lines(n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("line {i} of the log")).collect()
}

fn append(ui: &mut Ui, lines: Vec<String>) {
    ui.run_msg(RunMsg::Log(LogChunk { rank: 0, attempt: 1, from_start: false, skipped_bytes: 0, lines }));
}

#[test]
fn new_lines_are_followed_until_somebody_scrolls_up() {
    let mut ui = Ui::on_logs(lines(100));
    assert!(ui.screen().contains("line 100 of"));
    append(&mut ui, vec!["a new line".into()]);
    assert!(ui.screen().contains("a new line"));
    ui.press("k k");
    let before = ui.screen();
    append(&mut ui, vec!["another new line".into()]);
    assert!(!ui.screen().contains("another new line"));
    let body = |screen: &str| screen.lines().skip(3).take(15).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(body(&before), body(&ui.screen()), "what is being read does not move");
    ui.press("f");
    assert!(ui.screen().contains("another new line"));
}

#[test]
fn the_beginning_and_the_end_are_one_key_away() {
    let mut ui = Ui::on_logs(lines(100));
    ui.press("g");
    assert!(ui.screen().contains("line 1 of"));
    ui.press("G");
    assert!(ui.screen().contains("line 100 of"));
}

#[test]
fn a_long_line_wraps_and_scrolls_row_by_row() {
    let mut all = lines(20);
    all.push("x".repeat(500));
    all.push("the end".into());
    let mut ui = Ui::on_logs(all);
    let screen = ui.screen();
    assert!(screen.contains("the end"));
    assert_eq!(screen.lines().filter(|line| line.contains("xxx")).map(|line| line.trim().len()).sum::<usize>(), 500);
    ui.press("k");
    assert!(!ui.screen().contains("the end"));
    ui.press("w G");
    assert!(ui.screen().contains("line 20 of") && ui.screen().contains('…'));
}

#[test]
fn searching_goes_from_match_to_match_and_around() {
    let mut ui = Ui::on_logs(lines(200));
    ui.press("g /");
    ui.type_in("line 1.0 of");
    ui.press("Enter");
    assert!(ui.screen().contains("in 10 lines"), "{}", ui.screen());
    assert!(ui.screen().contains("line 100 of"));
    ui.press("n");
    assert!(ui.screen().contains("line 110 of"));
    ui.press("N N");
    assert!(ui.screen().contains("line 190 of"), "around the beginning: {}", ui.screen());
    ui.press("Esc");
    assert!(!ui.screen().contains("in 10 lines"));
}

#[test]
fn an_unfinished_expression_is_searched_as_it_stands() {
    let mut ui = Ui::on_logs(vec!["call(1)".into(), "other".into()]);
    ui.press("/");
    ui.type_in("call(");
    assert!(ui.screen().contains("in 1 line"), "{}", ui.screen());
}

#[test]
fn a_log_that_never_ends_takes_bounded_memory() {
    let mut ui = Ui::on_logs(lines(3000));
    append(&mut ui, lines(4000));
    ui.press("g");
    assert!(ui.screen().contains("earlier lines are in the file only"));
    assert!(ui.screen().contains("line 2001 of") || ui.screen().contains("line 2002 of"), "{}", ui.screen());
}

#[test]
fn another_attempt_is_set_apart() {
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
