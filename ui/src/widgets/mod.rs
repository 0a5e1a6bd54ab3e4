//! Drawing functions that several screens share: text, panels, progress bars and failures.

pub mod aligned;
pub mod details;
pub mod dialog;
pub mod heat_map;
pub mod history_chart;
pub mod line_chart;
pub mod shared_axis;
pub mod table;

use crate::model::{Input, Model};
use crate::msg::RunRow;
use crate::run_state::StateKind;
use crate::text;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use ratatui_core::widgets::Widget;
use rundir::Failure;
use runstate::Progress;

/// Writes one line into the first row of an area. A line that is too long is cut and ends with an ellipsis.
pub fn write(model: &Model, buf: &mut Buffer, area: Rect, line: impl Into<Line<'static>>) {
    if area.height > 0 && area.width > 0 {
        let line = text::fit_line(line.into(), usize::from(area.width), model.symbols.ellipsis);
        line.render(Rect { height: 1, ..area }, buf);
    }
}

/// Writes lines from the top of an area; lines that do not fit are dropped.
pub fn write_lines(model: &Model, buf: &mut Buffer, area: Rect, lines: impl IntoIterator<Item = Line<'static>>) {
    for (row, line) in (area.top()..area.bottom()).zip(lines) {
        write(model, buf, Rect { y: row, height: 1, ..area }, line);
    }
}

/// Writes one line at the left and one at the right end of a row. If both do not fit, only the left one is written.
pub fn write_split(model: &Model, buf: &mut Buffer, area: Rect, left: Line<'static>, right: Line<'static>) {
    let needed = left.width() + 2 + right.width();
    if needed <= usize::from(area.width) {
        let width = right.width() as u16;
        write(model, buf, Rect { x: area.right() - width, width, ..area }, right);
        // Limit the area, so that the style of the left line ends with the line.
        write(model, buf, Rect { width: left.width() as u16, ..area }, left);
    } else {
        write(model, buf, area, left);
    }
}

/// Draws the heading of a panel (a rule with the title, and the value at its end), and returns the area below.
pub fn panel(
    model: &Model,
    buf: &mut Buffer,
    area: Rect,
    title: &str,
    value: Vec<Span<'static>>,
    focused: bool,
) -> Rect {
    let (top, below) = crate::layout::cut_top(area, 1);
    if top.height == 0 || top.width == 0 {
        return below;
    }
    let (theme, symbols) = (&model.theme, &model.symbols);
    let heading = match focused {
        true => vec![Span::styled(format!("{} {title} ", symbols.pointer), theme.accent)],
        false => vec![Span::styled(symbols.rule, theme.faint), Span::styled(format!(" {title} "), theme.strong)],
    };
    let [used, value_width] = [&heading, &value].map(|spans| spans.iter().map(Span::width).sum::<usize>() as u16);
    write(model, buf, top, Line::from(heading));
    let fits = !value.is_empty() && used + value_width + 3 <= top.width;
    let tail = if fits { value_width + 1 } else { 0 };
    // Cell by cell, because a span would measure the width of each character.
    for x in (top.x + used)..(top.right() - tail) {
        shared_axis::put_symbol(buf, x, top.y, symbols.rule, theme.faint);
    }
    if fits {
        write(model, buf, Rect { x: top.right() - value_width, width: value_width, ..top }, Line::from(value));
    }
    below
}

/// Returns a run state as glyph and word.
pub fn state(model: &Model, kind: StateKind) -> Span<'static> {
    let glyph = model.symbols.states[kind as usize];
    Span::styled(format!("{glyph} {}", kind.word()), state_style(model, kind))
}

/// Returns the style of a run state.
pub fn state_style(model: &Model, kind: StateKind) -> Style {
    let theme = &model.theme;
    match kind {
        StateKind::Running | StateKind::Finished | StateKind::Saving => theme.good,
        StateKind::Stalled | StateKind::Unknown => theme.warn,
        StateKind::Failed | StateKind::Crashed => theme.bad,
        StateKind::Queued | StateKind::Starting | StateKind::Stopping => theme.accent,
        StateKind::New | StateKind::Stopped => Style::new(),
    }
}

/// Returns a progress bar of `width` cells. It is full only at the end, and empty only at the beginning.
pub fn progress(model: &Model, row: &RunRow, width: usize) -> Vec<Span<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let fraction = fraction(row);
    let mut done = (fraction * width as f64).floor() as usize;
    if fraction > 0.0 {
        done = done.max(1);
    }
    let done = done.min(width);
    let style = match StateKind::of(&row.state) {
        StateKind::Finished => theme.good,
        kind if kind.is_active() => theme.accent,
        _ => theme.faint,
    };
    vec![
        Span::styled(symbols.bar_done.repeat(done), style),
        Span::styled(symbols.bar_open.repeat(width - done), theme.faint),
    ]
}

/// Returns the finished part of a run, 0 to 1.
pub fn fraction(row: &RunRow) -> f64 {
    let (done, total) = match row.progress() {
        // The same quantity as in the text beside the bar.
        Progress::Items(counts) if counts.is_at_captions() => (counts.texts_done, counts.texts),
        Progress::Items(counts) => (counts.clips_done + counts.failed, counts.clips),
        _ => (row.step, row.steps_total),
    };
    if total == 0 { 0.0 } else { (done as f64 / total as f64).clamp(0.0, 1.0) }
}

/// Returns a failure as lines of at most `width` cells: what failed, why, and a hint.
pub fn failure_lines(model: &Model, failure: &Failure, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    let styled = |text: &str, style: Style| {
        let wrapped = text::wrap(&text::clean(&text.replace('\n', " ")), width);
        wrapped.into_iter().map(move |line| Line::styled(line, style)).collect::<Vec<_>>()
    };
    lines.extend(styled(&text::capitalized(&failure.what), model.theme.bad));
    lines.extend(styled(&text::capitalized(&failure.why), Style::new()));
    if !failure.fix.is_empty() {
        lines.extend(styled(&format!("Hint: {}", failure.fix), model.theme.accent));
    }
    lines
}

/// Writes lines into the middle of an area, for empty, loading and failed screens.
pub fn write_centered(model: &Model, buf: &mut Buffer, area: Rect, lines: Vec<Line<'static>>) {
    let height = (lines.len() as u16).min(area.height);
    let width = (lines.iter().map(Line::width).max().unwrap_or(0) as u16).min(area.width);
    // Text slightly above the middle looks centred.
    let top = area.y + (area.height - height) * 2 / 5;
    write_lines(model, buf, Rect { x: area.x + (area.width - width) / 2, y: top, width, height }, lines);
}

/// Returns a title and the text of an input with its cursor, in at most `width` cells.
pub fn edited(model: &Model, input: &Input, title: &'static str, width: usize) -> Line<'static> {
    let (theme, ellipsis) = (&model.theme, model.symbols.ellipsis);
    let room = width.saturating_sub(title.len() + 1);
    let (before, after) = input.parts();
    let room_after = (room / 3).max(room.saturating_sub(text::width(before)));
    let after = text::fit(after, room_after, ellipsis);
    let before = text::fit_end(before, room - text::width(&after), ellipsis);
    let style = if input.is_proposal { theme.matched } else { Style::new() };
    let cursor = if model.symbols.braille { "▏" } else { "_" };
    let form = if input.text.is_empty() { text::fit(input.purpose.form(), room, ellipsis) } else { String::new() };
    Line::from(vec![
        Span::styled(title, theme.accent),
        Span::styled(before, style),
        Span::styled(cursor, theme.accent),
        Span::raw(after),
        Span::styled(form, theme.faint),
    ])
}

/// Returns a key hint: the name of a key and what the key does.
pub fn hint(model: &Model, key: &str, text: &str) -> Vec<Span<'static>> {
    vec![Span::styled(key.to_owned(), model.theme.accent), Span::raw(format!(" {text}"))]
}
