//! The Logs screen: the log of one rank, which can be followed, scrolled and searched.

use crate::effect::Effect;
use crate::keymap::Action;
use crate::layout;
use crate::model::{Input, LineKind, LogLine, LogsScreen, Model, Purpose, RunScreen, Screen, Search};
use crate::run_state::{StateKind, short_id};
use crate::text;
use crate::widgets::{write, write_centered, write_split};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use regex::RegexBuilder;
use units::counted;

/// Memory limit of a compiled search expression, so that a typo cannot freeze the screen.
const MAX_REGEX: usize = 1 << 20;

/// Searches for the text typed so far; an empty text ends the search.
pub fn set_search(model: &mut Model, text: &str) {
    let size = text_size(model);
    let Some(logs) = &mut model.logs else { return };
    if text.is_empty() {
        logs.search = None;
        return;
    }
    // A lower-case pattern ignores case, as in editors.
    let build = |pattern: &str| {
        let any_case = !text.chars().any(char::is_uppercase);
        RegexBuilder::new(pattern).case_insensitive(any_case).size_limit(MAX_REGEX).build()
    };
    // An incomplete expression, such as "(", is searched literally.
    let regex = build(text).or_else(|_| build(&regex::escape(text))).ok();
    logs.search = Some(Search { text: text.to_owned(), regex, at: None });
    logs.find(true, size);
}

/// Handles an action.
pub fn on_action(model: &mut Model, action: Action) -> Vec<Effect> {
    let size = text_size(model);
    let ranks = model.run.as_ref().map_or(0, |run| run.places().len());
    let Some(logs) = &mut model.logs else { return Vec::new() };
    let page = size.1.saturating_sub(1).max(1);
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
                    None => "No search text. Press / to search.".to_owned(),
                });
            }
        }
        Action::RankNext | Action::RankPrevious if ranks > 1 => {
            let step = if action == Action::RankNext { 1 } else { ranks - 1 };
            logs.show_rank((logs.rank + step) % ranks);
        }
        Action::RankNext | Action::RankPrevious => model.warn("This run has no other rank"),
        Action::Back if logs.search.is_some() => logs.search = None,
        Action::Back => {
            model.logs = None;
            model.screen = Screen::Run;
        }
        _ => {}
    }
    Vec::new()
}

/// Returns width and height of the text.
fn text_size(model: &Model) -> (usize, usize) {
    let (_, text) = layout::cut_top(layout::areas(model.size).body, 1);
    (usize::from(text.width).max(1), usize::from(text.height))
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let (Some(run), Some(logs)) = (&model.run, &model.logs) else { return };
    let (head, area) = layout::cut_top(body, 1);
    heading(model, run, logs, buf, head);
    let faint = model.theme.faint;
    if logs.lines.is_empty() {
        let text = if run.status.is_none() || logs.attempt.is_none() && !run.places().is_empty() {
            "Loading the log…"
        } else if run.places().is_empty() {
            "No logs: this run was never started"
        } else if model.row(&run.id).is_some_and(|row| StateKind::of(&row.state).is_active()) {
            "This rank has not printed anything yet"
        } else {
            "This rank printed nothing"
        };
        write_centered(model, buf, area, vec![Line::styled(text, faint)]);
        return;
    }
    let width = usize::from(area.width).max(1);
    let size = (width, usize::from(area.height));
    let (mut number, mut row) = logs.shown_top(size);
    let mut y = area.top();
    if number == logs.first
        && row == 0
        && size.1 > 0
        && (logs.first > 0 || logs.skipped_bytes > 0)
        && logs.top.is_some()
    {
        let text = if logs.first > 0 || logs.skipped_bytes == 0 {
            "earlier lines are only in the file".to_owned()
        } else {
            format!("the first {} are only in the file", units::short_size(logs.skipped_bytes))
        };
        write(model, buf, Rect { y, height: 1, ..area }, Line::styled(format!("… {text}"), faint));
        y += 1;
    }
    while let (Some(line), true) = (logs.line(number), y < area.bottom()) {
        if line.kind == LineKind::Divider {
            let rule = model.symbols.rule.repeat(3);
            write(
                model,
                buf,
                Rect { y, height: 1, ..area },
                Line::styled(format!("{rule} {} {rule}", line.text), faint),
            );
            y += 1;
        } else if logs.wrap {
            for range in text::rows(&line.text, width).skip(row) {
                if y < area.bottom() {
                    write(model, buf, Rect { y, height: 1, ..area }, styled(model, logs, number, line, range));
                    y += 1;
                }
            }
        } else {
            write(model, buf, Rect { y, height: 1, ..area }, styled(model, logs, number, line, 0..line.text.len()));
            y += 1;
        }
        (number, row) = (number + 1, 0);
    }
}

/// Returns a part of a line with its matches marked.
fn styled(
    model: &Model,
    logs: &LogsScreen,
    number: u64,
    line: &LogLine,
    part: std::ops::Range<usize>,
) -> Line<'static> {
    let base = if line.kind == LineKind::Bad { model.theme.bad } else { Style::new() };
    let Some(search) = &logs.search else { return Line::styled(line.text[part].to_owned(), base) };
    let current = search.at == Some(number);
    let matched = if current { model.theme.matched.patch(model.theme.accent) } else { model.theme.matched };
    let mut spans = Vec::new();
    let mut at = part.start;
    for found in search.regex.iter().flat_map(|regex| regex.find_iter(&line.text)) {
        let (start, end) = (found.start().clamp(at, part.end), found.end().clamp(at, part.end));
        if start < end {
            spans.push(Span::styled(line.text[at..start].to_owned(), base));
            spans.push(Span::styled(line.text[start..end].to_owned(), matched));
            at = end;
        }
    }
    spans.push(Span::styled(line.text[at..part.end].to_owned(), base));
    Line::from(spans)
}

fn heading(model: &Model, run: &RunScreen, logs: &LogsScreen, buf: &mut Buffer, area: Rect) {
    let theme = &model.theme;
    let mut left = vec![Span::styled(short_id(&run.id).to_owned(), theme.strong), Span::raw("  ")];
    match logs.place(run) {
        Some(place) => {
            left.push(Span::raw(format!("rank {} of {}", place.rank, run.places().len())));
            // During a search, the matches are more important than the node of the rank.
            if logs.search.is_none() {
                left.push(Span::styled(format!(" on {}", place.node), theme.faint));
                left.extend(logs.attempt.map(|attempt| Span::styled(format!(", attempt {attempt}"), theme.faint)));
            }
        }
        None => left.push(Span::styled(format!("rank {}", logs.rank), theme.faint)),
    }
    let mut right = Vec::new();
    if let Some(search) = &logs.search {
        let count = search.regex.iter().flat_map(|regex| logs.lines.iter().filter(|l| regex.is_match(&l.text))).count();
        right.push(Span::raw(format!("\"{}\" in {}  ", search.text, counted(count, "line"))));
    }
    right.push(match logs.top {
        None => Span::styled("following", theme.good),
        Some((line, _)) => {
            Span::styled(format!("line {} of {}", units::grouped(line + 1), units::grouped(logs.end())), theme.warn)
        }
    });
    write_split(model, buf, area, Line::from(left), Line::from(right));
}
