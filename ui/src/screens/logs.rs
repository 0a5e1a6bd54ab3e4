//! What one rank prints: followed, scrolled, searched.

use crate::effect::Effect;
use crate::keymap::Action;
use crate::layout;
use crate::model::{Input, Model, Purpose, Screen};
use crate::msg::LogChunk;
use crate::run_state::short_id;
use crate::screens::run;
use crate::text;
use crate::widgets::{write, write_centered, write_split};
use cluster::RankPlace;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use regex::{Regex, RegexBuilder};
use std::collections::VecDeque;
use units::counted;

/// Lines that are kept; older ones stay in the file.
pub const MAX_LINES: usize = 5000;

/// Longest part of a line that is kept: one runaway line must not make drawing slow.
const MAX_LINE: usize = 4096;

/// Most memory a search expression may compile to, so that a typo cannot freeze the screen.
const MAX_REGEX: usize = 1 << 20;

/// An open log.
#[derive(Debug, Clone)]
pub struct LogsScreen {
    /// Position among the run's ranks.
    pub rank: usize,
    lines: VecDeque<LogLine>,
    /// Number of the first kept line since the stream began.
    first: u64,
    attempt: Option<u32>,
    skipped_bytes: u64,
    /// The line and the row of it at the top of the screen; the newest lines if `None`.
    top: Option<(u64, usize)>,
    wrap: bool,
    /// What is searched for.
    pub search: Option<Search>,
}

#[derive(Debug, Clone)]
struct LogLine {
    text: String,
    kind: LineKind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum LineKind {
    Plain,
    Bad,
    /// Made here: where another attempt begins.
    Divider,
}

/// A search in a log.
#[derive(Debug, Clone)]
pub struct Search {
    /// What was typed.
    pub text: String,
    regex: Option<Regex>,
    /// Line of the current match.
    at: Option<u64>,
}

impl Default for LogsScreen {
    fn default() -> Self {
        Self {
            rank: 0,
            lines: VecDeque::new(),
            first: 0,
            attempt: None,
            skipped_bytes: 0,
            top: None,
            wrap: true,
            search: None,
        }
    }
}

impl LogsScreen {
    /// Returns where the shown rank runs, once that is known.
    pub fn place<'a>(&self, run: &'a run::RunScreen) -> Option<&'a RankPlace> {
        run.places().get(self.rank)
    }

    /// Adds lines of the shown rank; those of another one come from a stream that is being stopped.
    pub fn add(&mut self, chunk: LogChunk) {
        if chunk.rank != self.rank {
            return;
        }
        if chunk.from_start {
            self.lines.clear();
            (self.first, self.top, self.attempt) = (0, None, None);
            self.skipped_bytes = chunk.skipped_bytes;
        }
        if self.attempt.is_some_and(|attempt| attempt != chunk.attempt) {
            self.push(LogLine { text: format!("attempt {}", chunk.attempt), kind: LineKind::Divider });
        }
        self.attempt = Some(chunk.attempt);
        for line in chunk.lines {
            let mut text = text::clean(&line);
            if text.len() > MAX_LINE {
                text.truncate((0..=MAX_LINE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
                text.push('…');
            }
            let kind = if looks_bad(&text) { LineKind::Bad } else { LineKind::Plain };
            self.push(LogLine { text, kind });
        }
    }

    fn push(&mut self, line: LogLine) {
        self.lines.push_back(line);
        if self.lines.len() > MAX_LINES {
            self.lines.pop_front();
            self.first += 1;
        }
    }

    fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    fn line(&self, number: u64) -> Option<&LogLine> {
        self.lines.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn rows_of(&self, number: u64, width: usize) -> usize {
        match self.line(number) {
            Some(line) if self.wrap => text::rows(&line.text, width).count(),
            _ => 1,
        }
    }

    /// Returns the place `rows` above a place, stopping at the beginning.
    fn above(&self, (mut line, mut row): (u64, usize), mut rows: usize, width: usize) -> (u64, usize) {
        while rows > 0 {
            if row >= rows {
                return (line, row - rows);
            }
            rows -= row;
            if line <= self.first {
                return (self.first, 0);
            }
            line -= 1;
            row = self.rows_of(line, width);
        }
        (line, row)
    }

    /// Returns the place `rows` below a place, stopping at the end.
    fn below(&self, (mut line, mut row): (u64, usize), mut rows: usize, width: usize) -> (u64, usize) {
        while line < self.end() {
            let left = self.rows_of(line, width) - row;
            if rows < left {
                return (line, row + rows);
            }
            rows -= left;
            (line, row) = (line + 1, 0);
        }
        (self.end(), 0)
    }

    /// The place at the top of the screen when the newest lines are shown.
    fn bottom_top(&self, size: (usize, usize)) -> (u64, usize) {
        self.above((self.end(), 0), size.1, size.0)
    }

    /// The place at the top of the screen.
    fn shown_top(&self, size: (usize, usize)) -> (u64, usize) {
        let newest = self.bottom_top(size);
        // Lines that were dropped meanwhile cannot be shown any more.
        let wanted = self.top.map(|(line, row)| {
            let line = line.max(self.first);
            (line, row.min(self.rows_of(line, size.0).saturating_sub(1)))
        });
        wanted.filter(|top| *top < newest).unwrap_or(newest)
    }

    fn scroll_up(&mut self, rows: usize, size: (usize, usize)) {
        let top = self.above(self.shown_top(size), rows, size.0);
        // Whoever is at the beginning of a short log still follows it.
        self.top = (top < self.bottom_top(size)).then_some(top);
    }

    fn scroll_down(&mut self, rows: usize, size: (usize, usize)) {
        let top = self.below(self.shown_top(size), rows, size.0);
        self.top = (top < self.bottom_top(size)).then_some(top);
    }

    /// Goes to the next line that matches, from the current match or what is on the screen, around the end.
    fn find(&mut self, forward: bool, size: (usize, usize)) -> bool {
        let from = self.shown_top(size).0;
        let Some(search) = &self.search else { return false };
        let Some(regex) = &search.regex else { return false };
        let count = self.lines.len();
        let start = search.at.unwrap_or(if forward { from.wrapping_sub(1) } else { from });
        let start = start.wrapping_sub(self.first) as usize;
        let found = (1..=count).find_map(|offset| {
            let index = if forward {
                start.wrapping_add(offset) % count
            } else {
                start.wrapping_add(count).wrapping_sub(offset) % count
            };
            regex.is_match(&self.lines[index].text).then_some(index)
        });
        let Some(index) = found else { return false };
        let line = self.first + index as u64;
        // The match stands a third down the screen, with what came before it.
        let top = self.above((line, 0), size.1 / 3, size.0);
        self.top = (top < self.bottom_top(size)).then_some(top);
        if let Some(search) = &mut self.search {
            search.at = Some(line);
        }
        true
    }

    fn show_rank(&mut self, rank: usize) {
        *self = Self { rank, wrap: self.wrap, search: self.search.take(), ..Self::default() };
        if let Some(search) = &mut self.search {
            search.at = None;
        }
    }
}

/// Returns whether a line tells of trouble: such lines are easy to miss in a long log.
fn looks_bad(text: &str) -> bool {
    const SIGNS: [&str; 5] = ["error", "panicked", "failed", "out of memory", "fatal"];
    let lower = text.to_ascii_lowercase();
    SIGNS.iter().any(|sign| lower.contains(sign))
}

/// Searches for what was typed so far; an empty text ends the search.
pub fn set_search(model: &mut Model, text: &str) {
    let size = text_size(model);
    let Some(logs) = &mut model.logs else { return };
    if text.is_empty() {
        logs.search = None;
        return;
    }
    // All in small letters finds capitals too, as people expect from editors.
    let build = |pattern: &str| {
        let any_case = !text.chars().any(char::is_uppercase);
        RegexBuilder::new(pattern).case_insensitive(any_case).size_limit(MAX_REGEX).build()
    };
    // Half an expression, as while typing "(", is searched for as it stands.
    let regex = build(text).or_else(|_| build(&regex::escape(text))).ok();
    logs.search = Some(Search { text: text.to_owned(), regex, at: None });
    logs.find(true, size);
}

/// Reacts to a key.
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
            model.input = Some(Input { purpose: Purpose::Search, text });
        }
        Action::SearchNext | Action::SearchPrevious => {
            let wanted = logs.search.as_ref().map(|search| search.text.clone());
            if !logs.find(action == Action::SearchNext, size) {
                model.warn(match wanted {
                    Some(text) => format!("\"{text}\" is not in the lines shown here."),
                    None => "Nothing is searched for: / starts a search.".to_owned(),
                });
            }
        }
        Action::RankNext | Action::RankPrevious if ranks > 1 => {
            let step = if action == Action::RankNext { 1 } else { ranks - 1 };
            logs.show_rank((logs.rank + step) % ranks);
        }
        Action::RankNext | Action::RankPrevious => model.warn("This run has no other rank."),
        Action::Back if logs.search.is_some() => logs.search = None,
        Action::Back => {
            model.logs = None;
            model.screen = Screen::Run;
        }
        _ => {}
    }
    Vec::new()
}

/// Width and height of the text.
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
            "Reading the log…"
        } else if run.places().is_empty() {
            "This run has never been started, so it has no logs."
        } else {
            "This rank has printed nothing yet."
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
            "earlier lines are in the file only".to_owned()
        } else {
            format!("the first {} are in the file only", units::bytes(logs.skipped_bytes))
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

/// Part of a line with its matches marked.
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

fn heading(model: &Model, run: &run::RunScreen, logs: &LogsScreen, buf: &mut Buffer, area: Rect) {
    let theme = &model.theme;
    let mut left = vec![Span::styled(short_id(&run.id).to_owned(), theme.strong), Span::raw("  ")];
    match logs.place(run) {
        Some(place) => {
            left.push(Span::raw(format!("rank {} of {}", place.rank, run.places().len())));
            // While searching, what was found matters more than where this rank runs.
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
