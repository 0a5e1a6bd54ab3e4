//! The Logs screen: shows the merged log of all ranks, or the log of one rank. The user can follow, scroll, filter
//! and search it.

use crate::bindings::{Action, Context};
use crate::effect::{Effect, Watch};
use crate::layout;
use crate::log_lines::Level;
use crate::model::{EarlierSearch, Input, LogLine, LogsScreen, Model, Purpose, RunScreen, Screen, Session};
use crate::rank_set::RankSet;
use crate::run_actions;
use crate::run_state::{StateKind, short_id};
use crate::screens::{Behaviour, Press, open_with_run, run};
use crate::text;
use crate::widgets::{write, write_centered, write_split};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};
use std::collections::BTreeSet;
use std::ops::Range;
use units::counted;

/// The minimum width of the screen for the word "rank" before the ranks of a line.
const WIDE: u16 = 110;

/// Searches for the text that the user has typed so far; an empty text ends the search.
pub fn set_search(model: &mut Model, text: &str) {
    let size = text_size(model);
    let Some(logs) = &mut model.screens.logs else { return };
    if logs.search_for(text) {
        logs.find(true, size);
    }
}

/// Filters the lines by the ranks that the user has typed so far. A text that is not a list of ranks changes nothing.
pub fn set_ranks(model: &mut Model, text: &str) {
    if let (Some(logs), Ok(ranks)) = (&mut model.screens.logs, RankSet::parse(text)) {
        logs.only = ranks;
    }
}

/// Warns if the text is not a list of ranks, or if the run has none of these ranks.
pub fn check_ranks(model: &mut Model, text: &str) {
    let last = model.screens.run.as_ref().map_or(0, |run| run.places().len()).saturating_sub(1);
    match RankSet::parse(text) {
        Err(part) => model.warn(format!("\"{part}\" is not a rank or a range. Write ranks as 0-3,8")),
        Ok(ranks) if !ranks.is_empty() && ranks.iter().next().is_some_and(|first| first > last) => {
            model.warn(format!("This run has ranks 0 to {last}"));
        }
        Ok(_) => {}
    }
}

/// The screen.
pub struct Logs;

impl Behaviour for Logs {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let size = text_size(model);
        let ranks = model.screens.run.as_ref().map_or(0, |run| run.places().len());
        let Some(logs) = &mut model.screens.logs else { return Vec::new() };
        let page = size.1.saturating_sub(1).max(1);
        logs.seeks_later = None;
        match action {
            Action::Up => logs.scroll_up(1, size),
            Action::Down => logs.scroll_down(1, size),
            Action::PageUp => logs.scroll_up(page, size),
            Action::PageDown => logs.scroll_down(page, size),
            Action::Top => logs.scroll_up(usize::MAX, size),
            Action::Bottom => logs.top = None,
            Action::Follow => logs.top = if logs.top.is_some() { None } else { Some(logs.shown_top(size)) },
            Action::Wrap => logs.wrap = !logs.wrap,
            Action::Search => {
                let text = logs.search.as_ref().map_or_else(String::new, |search| search.text.clone());
                model.input = Some(Input::new(Purpose::Search, text));
            }
            Action::SearchNext | Action::SearchPrevious => {
                let wanted = logs.search.as_ref().map(|search| search.text.clone());
                if !logs.find(action == Action::SearchNext, size) {
                    model.warn(match wanted {
                        Some(text) => format!("No match for \"{text}\" in the loaded lines"),
                        None => {
                            format!(
                                "No search text. Press {} to search.",
                                model.keys.name(Context::Logs, Action::Search)
                            )
                        }
                    });
                }
            }
            Action::FirstError => go_to_first_error(model, size),
            Action::NextLevel => {
                logs.level = match logs.level {
                    Level::Plain => Level::Warning,
                    Level::Warning => Level::Error,
                    Level::Error => Level::Plain,
                };
            }
            Action::LogRanks if logs.rank.is_some() => {
                let key = model.keys.name(Context::Logs, Action::AllRanks);
                model.warn(format!("Press {key} for the logs of all ranks, then choose ranks"));
            }
            Action::LogRanks => {
                let text = logs.only.to_string();
                model.input = Some(Input::new(Purpose::LogRanks, text));
            }
            Action::Expand => match logs.current {
                Some(line) => logs.toggle(line),
                None => {
                    let key = |action| model.keys.name(Context::Logs, action);
                    let (error, search, all) = (key(Action::FirstError), key(Action::Search), key(Action::Unfold));
                    model.warn(format!(
                    "No line is marked. Press {error} for the first error, {search} to search, or {all} for all lines."
                ));
                }
            },
            Action::Unfold => {
                logs.is_unfolded = !logs.is_unfolded;
                logs.toggled.clear();
            }
            Action::RankNext | Action::RankPrevious if ranks > 1 => {
                // The merged log comes before rank 0.
                let at = logs.rank.map_or(0, |rank| rank + 1);
                let step = if action == Action::RankNext { 1 } else { ranks };
                logs.show(((at + step) % (ranks + 1)).checked_sub(1));
            }
            Action::RankNext | Action::RankPrevious => model.warn("This run has no other rank"),
            Action::AllRanks if logs.rank.is_some() => logs.show(None),
            Action::Back if logs.search.is_some() => logs.search = None,
            Action::Back if logs.level != Level::Plain || !logs.only.is_empty() => {
                logs.level = Level::Plain;
                logs.only = RankSet::default();
            }
            Action::Back => {
                model.screens.logs = None;
                model.screen = Screen::Run;
            }
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let (Some(run), Some(logs)) = (&model.screens.run, &model.screens.logs) else { return };
        let parts = parts(model, body);
        heading(model, run, logs, buf, parts.heading);
        first_error(model, logs, buf, parts.error);
        let faint = model.theme.faint;
        let area = parts.lines;
        let size = (usize::from(area.width - parts.label).max(1), usize::from(area.height));
        let rows = rows(logs, size);
        if rows.is_empty() {
            write_centered(model, buf, area, vec![Line::styled(nothing(model, run, logs), faint)]);
            return;
        }
        let top = first_row(logs, &rows, area);
        if top > area.top() {
            let text = match (logs.store.is_cut(), logs.rank) {
                (false, Some(_)) => format!("the first {} are only in the file", units::short_size(logs.skipped_bytes)),
                (false, None) => format!("the first {} are only in the files", units::short_size(logs.skipped_bytes)),
                (true, Some(_)) => "earlier lines are only in the file".to_owned(),
                (true, None) => "earlier lines are only in the files".to_owned(),
            };
            write(model, buf, area, Line::styled(format!("… {text}"), faint));
        }
        for (y, row) in (top..area.bottom()).zip(rows) {
            let at = Rect { y, height: 1, ..area };
            if row.line.is_divider {
                let rule = model.symbols.rule.repeat(3);
                write(model, buf, at, Line::styled(format!("{rule} {} {rule}", row.text), faint));
                continue;
            }
            let is_current = logs.current == Some(row.number);
            let (label, rest) = (
                Rect { width: parts.label, ..at },
                Rect { x: at.x + parts.label, width: at.width - parts.label, ..at },
            );
            if row.part.start == 0 && parts.label > 1 {
                write(
                    model,
                    buf,
                    label,
                    label_of(model, &row.ranks, is_current && row.is_first, parts.label, body.width >= WIDE),
                );
            }
            write(model, buf, rest, styled(model, logs, &row, is_current));
        }
    }

    fn can_open(&self, model: &Model) -> bool {
        model.run_to_open().is_some()
    }

    fn open(&self, model: &mut Model) {
        open_with_run(model, |model| {
            run_actions::act(model, Action::Logs);
        });
    }

    fn subject(&self, model: &Model, room: usize) -> String {
        model.run_subject(room)
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        let (Some(run), Some(logs)) = (&model.screens.run, &model.screens.logs) else { return };
        wanted.insert(Watch::Run(run.id.clone()));
        match (logs.rank, logs.place(run)) {
            (None, _) => {
                wanted.insert(Watch::Logs { run: run.id.clone(), attempt: logs.pinned });
            }
            (Some(_), Some(place)) => {
                wanted.insert(Watch::Log { run: run.id.clone(), node: place.node.clone(), rank: place.rank });
            }
            (Some(_), None) => {}
        }
    }

    /// Marks a line. A click on the marked line shows or folds the text of each rank.
    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        if let (Some(line), Some(logs)) = (line_at(model, at.y), &mut model.screens.logs) {
            if logs.current == Some(line) {
                logs.toggle(line);
            } else {
                // Do not scroll: the lines must not move under the pointer.
                (logs.current, logs.seeks_later) = (Some(line), None);
            }
        }
        Press::Done
    }

    fn on_typed(&self, model: &mut Model, purpose: Purpose, text: &str) {
        match purpose {
            Purpose::LogRanks => set_ranks(model, text),
            _ => set_search(model, text),
        }
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        if input.purpose == Purpose::LogRanks {
            check_ranks(model, &input.text);
        }
        Vec::new()
    }

    fn save(&self, model: &Model, session: &mut Session) {
        run::save(model, session);
        if let Some(logs) = &model.screens.logs {
            session.log_level = logs.level;
            session.log_ranks = logs.only.to_string();
            session.log_search = logs.search.as_ref().map_or_else(String::new, |search| search.text.clone());
        }
    }

    fn restore(&self, model: &mut Model, session: &Session) -> Screen {
        let screen = run::restore(model, session);
        if screen == Screen::Logs {
            let only = RankSet::parse(&session.log_ranks).unwrap_or_default();
            let mut logs = LogsScreen { level: session.log_level, only, ..LogsScreen::default() };
            logs.search_for(&session.log_search);
            model.screens.logs = Some(logs);
        }
        screen
    }
}

/// Goes to the first error. If lines that are not loaded may have an earlier one, a notice states this.
fn go_to_first_error(model: &mut Model, size: (usize, usize)) {
    let Some(logs) = &mut model.screens.logs else { return };
    let error = logs.first_error();
    if let Some(line) = error {
        logs.go_to(line, size);
    }
    let is_filtered = !logs.only.is_empty();
    match (error, logs.earlier) {
        (None, EarlierSearch::Done { unsearched_bytes: 0 }) if is_filtered => {
            model.warn("No error of these ranks in the loaded lines");
        }
        (None, EarlierSearch::NotNeeded) => model.warn("No error in the loaded lines"),
        (None, EarlierSearch::Running) => model.warn("No error in the loaded lines; earlier lines are being searched"),
        (None, EarlierSearch::Done { unsearched_bytes: 0 }) => model.warn("No error in the log"),
        (None, EarlierSearch::Done { unsearched_bytes }) => {
            model.warn(format!("No error found, but {} were not searched", units::short_size(unsearched_bytes)));
        }
        (Some(_), EarlierSearch::Running) => model.notify("Earlier lines are still being searched for an error"),
        (Some(_), EarlierSearch::Done { unsearched_bytes: bytes @ 1.. }) => {
            model.notify(format!("{} were not searched for an earlier error", units::short_size(bytes)));
        }
        (Some(_), EarlierSearch::NotNeeded | EarlierSearch::Done { .. }) => {}
    }
}

/// The parts of the screen.
struct Parts {
    heading: Rect,
    /// The first error of the log.
    error: Rect,
    /// The lines of the log, with the ranks that printed them.
    lines: Rect,
    /// The width of the ranks before each line; 0 if there is only one rank.
    label: u16,
}

fn parts(model: &Model, body: Rect) -> Parts {
    let (heading, rest) = layout::cut_top(body, 1);
    let logs = model.screens.logs.as_ref();
    let has_error = logs.is_some_and(|logs| logs.rank.is_none() && logs.store.first_error.is_some());
    let (error, lines) = layout::cut_top(rest, u16::from(has_error && rest.height > 4));
    let ranks = model.screens.run.as_ref().map_or(0, |run| run.places().len());
    let last = ranks.saturating_sub(1).to_string().len();
    let label = match logs {
        Some(logs) if logs.rank.is_none() && ranks > 1 => {
            // Room for the mark of the current line, for "0-63 ×64", and some more for lists, which are longer.
            let all = 2 + last + 2 + ranks.to_string().len();
            let more = if body.width >= WIDE { "ranks ".len() + last + 4 } else { last };
            ((1 + all + more + 1) as u16).min(body.width / 3)
        }
        _ => 0,
    };
    Parts { heading, error, lines, label }
}

/// Returns the width and height of the text area.
pub fn text_size(model: &Model) -> (usize, usize) {
    let parts = parts(model, layout::areas(model.size).body);
    (usize::from(parts.lines.width - parts.label).max(1), usize::from(parts.lines.height))
}

/// One row of the screen: a part of one text of a line.
struct Row<'a> {
    number: u64,
    line: &'a LogLine,
    /// Whether this is the first row of the line.
    is_first: bool,
    ranks: RankSet,
    text: &'a str,
    part: Range<usize>,
}

/// Returns the visible rows, from the top of the screen.
fn rows(logs: &LogsScreen, size: (usize, usize)) -> Vec<Row<'_>> {
    let (mut number, mut skipped) = logs.shown_top(size);
    let mut rows = Vec::new();
    while let (Some(line), true) = (logs.store.line(number), rows.len() < size.1) {
        let texts = if logs.passes(line) { logs.texts(number, line) } else { Vec::new() };
        let mut all = Vec::new();
        for (ranks, text) in texts {
            let whole = std::iter::once(0..text.len()).filter(|_| !logs.wrap);
            let parts = text::rows(text, size.0).filter(|_| logs.wrap).chain(whole);
            let is_first = all.is_empty();
            all.extend(parts.map(|part| {
                let is_first = is_first && part.start == 0;
                Row { number, line, is_first, ranks: ranks.clone(), text, part }
            }));
        }
        rows.extend(all.into_iter().skip(skipped));
        (number, skipped) = (logs.store.at_or_after(number + 1), 0);
    }
    rows.truncate(size.1);
    rows
}

/// Returns the terminal row of the first log row. A note about earlier lines may be above it.
fn first_row(logs: &LogsScreen, rows: &[Row<'_>], area: Rect) -> u16 {
    let is_oldest = rows.first().is_some_and(|row| row.number == logs.store.first() && row.part.start == 0);
    let is_cut = logs.store.is_cut() || logs.skipped_bytes > 0;
    area.top() + u16::from(is_oldest && is_cut && area.height > 1 && logs.top.is_some())
}

/// Returns the log line at a row of the terminal.
fn line_at(model: &Model, row: u16) -> Option<u64> {
    let logs = model.screens.logs.as_ref()?;
    let parts = parts(model, layout::areas(model.size).body);
    let rows = rows(logs, text_size(model));
    let at = row.checked_sub(first_row(logs, &rows, parts.lines))?;
    (row < parts.lines.bottom()).then(|| rows.get(usize::from(at)).map(|row| row.number)).flatten()
}

/// Returns why there are no lines to show.
fn nothing(model: &Model, run: &RunScreen, logs: &LogsScreen) -> String {
    if !logs.store.is_empty() {
        let key = model.keys.name(Context::Logs, Action::Back);
        return format!("No line passes the filters. {key} clears them.");
    }
    let is_active = model.row(&run.id).is_some_and(|row| StateKind::of(&row.state).is_active());
    let text = match logs.rank {
        _ if run.status.is_none() || logs.attempt.is_none() && !run.places().is_empty() => "Loading the log…",
        _ if run.places().is_empty() => "No logs: this run was never started",
        Some(_) if is_active => "This rank has not printed anything yet",
        Some(_) => "This rank printed nothing",
        None if is_active => "No rank has printed anything yet",
        None => "No rank printed anything",
    };
    text.to_owned()
}

/// Returns the ranks of a line as a label: `3`, or `0-63 ×64`; on a wide screen with the word "rank" or "ranks"
/// before it.
fn label_of(model: &Model, ranks: &RankSet, is_current: bool, width: u16, is_wide: bool) -> Line<'static> {
    let word = match ranks.count() {
        _ if !is_wide => "",
        1 => "rank ",
        _ => "ranks ",
    };
    let times = if model.symbols.braille { "×" } else { "x" };
    let count = if ranks.count() > 1 { format!(" {times}{}", ranks.count()) } else { String::new() };
    let room = usize::from(width).saturating_sub(2 + text::width(word) + text::width(&count));
    let mut list = ranks.to_string();
    if list.len() > room {
        // Cut the list after a whole range.
        let cut = text::fit(&list, room, model.symbols.ellipsis);
        let end = cut.rfind(',').or_else(|| list.find(',')).unwrap_or(list.len());
        list = text::fit(&format!("{}{}", &list[..end], model.symbols.ellipsis), room, model.symbols.ellipsis);
    }
    let style = match ranks.single() {
        Some(rank) => model.theme.lines[rank % model.theme.lines.len()],
        None => model.theme.strong,
    };
    let pointer = if is_current { model.symbols.pointer } else { " " };
    Line::from(vec![
        Span::styled(pointer, model.theme.accent),
        Span::styled(format!("{word}{list}"), style),
        Span::styled(count, model.theme.faint),
    ])
}

/// Returns a part of a line with the search matches highlighted.
fn styled(model: &Model, logs: &LogsScreen, row: &Row<'_>, is_current: bool) -> Line<'static> {
    let base = match row.line.level {
        Level::Error => model.theme.bad,
        Level::Warning => model.theme.warn,
        Level::Plain => Style::new(),
    };
    // Without colours, only errors are bold, so that warnings can be distinguished from them.
    let base = if base == model.theme.bad { base } else { base.remove_modifier(Modifier::BOLD) };
    let (text, part) = (row.text, row.part.clone());
    let Some(search) = &logs.search else { return Line::styled(text[part].to_owned(), base) };
    let matched = if is_current { model.theme.matched.patch(model.theme.accent) } else { model.theme.matched };
    let mut spans = Vec::new();
    let mut at = part.start;
    for found in search.regex.iter().flat_map(|regex| regex.find_iter(text)) {
        let (start, end) = (found.start().clamp(at, part.end), found.end().clamp(at, part.end));
        if start < end {
            spans.push(Span::styled(text[at..start].to_owned(), base));
            spans.push(Span::styled(text[start..end].to_owned(), matched));
            at = end;
        }
    }
    spans.push(Span::styled(text[at..part.end].to_owned(), base));
    Line::from(spans)
}

fn heading(model: &Model, run: &RunScreen, logs: &LogsScreen, buf: &mut Buffer, area: Rect) {
    let theme = &model.theme;
    let ranks = run.places().len();
    let mut left = vec![Span::styled(short_id(&run.id).to_owned(), theme.strong), Span::raw("  ")];
    match (logs.rank, logs.place(run)) {
        (None, _) if !logs.only.is_empty() => {
            let word = if logs.only.single().is_some() { "rank" } else { "ranks" };
            left.push(Span::styled(format!("{word} {} of {ranks}", logs.only), theme.accent));
        }
        (None, _) if ranks > 1 => left.push(Span::raw(format!("all {ranks} ranks"))),
        (None, _) => left.push(Span::raw(counted(ranks, "rank"))),
        (Some(_), Some(place)) => left.push(Span::raw(format!("rank {} of {ranks}", place.rank))),
        (Some(rank), None) => left.push(Span::styled(format!("rank {rank}"), theme.faint)),
    }
    match logs.level {
        Level::Plain => {}
        Level::Warning => left.push(Span::styled(", warnings and errors", theme.accent)),
        Level::Error => left.push(Span::styled(", only errors", theme.accent)),
    }
    // During a search, the number of matches is more important than the node of the rank.
    if logs.search.is_none() {
        left.extend(logs.place(run).map(|place| Span::styled(format!(" on {}", place.node), theme.faint)));
        left.extend(logs.attempt.map(|attempt| Span::styled(format!(", attempt {attempt}"), theme.faint)));
    }
    let mut right = Vec::new();
    if let Some(search) = &logs.search {
        right.push(Span::raw(format!("\"{}\" in {}  ", search.text, counted(logs.matching(), "line"))));
    }
    right.push(match logs.top {
        None => Span::styled("following", theme.good),
        Some((line, _)) => {
            let end = logs.store.lines_before(logs.store.end()).unwrap_or(0);
            let text = match logs.store.lines_before(line) {
                Some(before) => format!("line {} of {}", units::grouped(before + 1), units::grouped(end)),
                None => "before the loaded lines".to_owned(),
            };
            Span::styled(text, theme.warn)
        }
    });
    write_split(model, buf, area, Line::from(left), Line::from(right));
}

/// Draws the first error and the rank that printed it.
fn first_error(model: &Model, logs: &LogsScreen, buf: &mut Buffer, area: Rect) {
    let Some(first) = logs.store.first_error.as_ref().filter(|_| area.height > 0) else { return };
    let ranks = logs.store.line(first.line).map_or(RankSet::one(first.rank), |line| line.ranks.clone());
    let who = match ranks.single() {
        Some(rank) => format!("rank {rank}"),
        None => format!("ranks {ranks}"),
    };
    let line = vec![
        Span::styled(format!("First error, {who}: "), model.theme.strong),
        Span::styled(first.text.clone(), model.theme.bad),
    ];
    write(model, buf, area, Line::from(line));
}
