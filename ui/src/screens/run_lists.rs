//! Draws the panels of the Run screen that are tables and lists: the stages of an encode, checkpoints and events.

use crate::event_text::{self, Severity};
use crate::goodput_text;
use crate::layout::{self, Panel};
use crate::model::{Model, RunScreen};
use crate::run_state::StateKind;
use crate::screens::run_panels::{no_step, step_word};
use crate::text;
use crate::widgets::{panel as heading, write, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{CheckpointEntry, EncodeStages, Event, EventKind};

/// Draws a table of the stages of an encode: what each stage has done and what is left. A narrow panel omits the last
/// columns.
pub(super) fn pipeline(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Pipeline;
    let below = heading(model, buf, area, "Stages", Vec::new(), focused);
    let faint = model.theme.faint;
    let row = run.status.as_ref().map(|status| &status.row);
    let Some(stages) = row.and_then(|row| row.stages) else {
        write(model, buf, below, Span::styled(no_step(run), faint));
        return;
    };
    let is_active = row.is_some_and(|row| StateKind::of(&row.state).is_active());
    let EncodeStages { probe, decode, vae, text } = stages;
    let none = model.symbols.none.to_owned();
    let or_none = |value: Option<String>| value.unwrap_or_else(|| none.clone());
    let table = [("probe", probe), ("decode", decode), ("VAE", vae), ("text", text)].map(|(name, stage)| {
        let bytes = stage.count.bytes;
        [
            name.to_owned(),
            units::grouped(stage.count.items),
            units::grouped(stage.left),
            or_none(stage.per_s.map(|per_s| format!("{}/s", units::number(per_s)))),
            or_none(stage.eta_s.filter(|_| is_active).map(units::short_duration)),
            units::grouped(stage.count.failed),
            units::grouped(stage.count.waiting),
            or_none((bytes > 0).then(|| units::size(bytes))),
        ]
    });
    let names = ["stage", "done", "left", "rate", "time left", "failed", "waiting", "data"];
    let mut lines = vec![String::new(); table.len() + 1];
    let mut used = 0;
    for (column, name) in names.into_iter().enumerate() {
        let cells = || std::iter::once(name).chain(table.iter().map(|row| row[column].as_str()));
        let width = cells().map(text::width).max().unwrap_or(0);
        let gap = if column == 0 { 0 } else { 2 };
        used += gap + width;
        if used > usize::from(below.width) {
            break;
        }
        for (line, cell) in lines.iter_mut().zip(cells()) {
            let pad = " ".repeat(width - text::width(cell));
            *line += &if column == 0 { format!("{cell}{pad}") } else { format!("{:gap$}{pad}{cell}", "") };
        }
    }
    let styled = |(i, line): (usize, String)| if i == 0 { Line::styled(line, faint) } else { Line::raw(line) };
    write_lines(model, buf, below, lines.into_iter().enumerate().map(styled));
}

pub(super) fn checkpoints(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Checkpoints;
    let count = run.checkpoints.as_ref().map(|all| all.iter().filter(|entry| entry.complete().is_some()).count());
    let value = count.map(|n| Span::styled(n.to_string(), model.theme.strong));
    let below = heading(model, buf, area, "Checkpoints", value.into_iter().collect(), focused);
    let faint = model.theme.faint;
    let Some(all) = run.checkpoints.as_ref().filter(|all| !all.is_empty()) else {
        write(model, buf, below, Span::styled(run.no_checkpoints(), faint));
        return;
    };
    let scroll = if focused { run.scroll.min(all.len() - 1) } else { 0 };
    write_lines(model, buf, below, checkpoint_lines(model, all).skip(scroll));
}

/// Returns a line for each checkpoint, newest first. The checkpoints have ascending steps.
pub fn checkpoint_lines(model: &Model, all: &[CheckpointEntry]) -> impl Iterator<Item = Line<'static>> {
    let faint = model.theme.faint;
    let steps = all.last().map_or(0, |newest| text::width(&units::grouped(newest.step())));
    all.iter().rev().map(move |entry| {
        let step = format!("step {:>steps$}", units::grouped(entry.step()));
        match entry.summary() {
            Ok(summary) => Line::from(vec![
                Span::raw(step),
                Span::styled(format!("  {:>9}", units::short_size(summary.bytes)), faint),
                Span::styled(format!("  {}", units::ago(model.now, summary.saved_s)), faint),
                Span::styled(if summary.is_pinned { "  pinned" } else { "" }, model.theme.good),
            ]),
            Err((how, why)) => {
                let text = format!("  {} {how}: {why}", glyph(model, Severity::Warn));
                Line::from(vec![Span::raw(step), Span::styled(text, model.theme.warn)])
            }
        }
    })
}

fn glyph(model: &Model, severity: Severity) -> &'static str {
    let kind = match severity {
        Severity::Plain => return " ",
        Severity::Good => StateKind::Finished,
        Severity::Warn => StateKind::Stalled,
        Severity::Bad => StateKind::Failed,
    };
    model.symbols.states[kind as usize]
}

/// Returns the goodput for the heading of the events, with the lost time by cause if both fit.
fn goodput(model: &Model, run: &RunScreen, width: usize) -> Vec<Span<'static>> {
    let Some((goodput, share)) =
        run.goodput.as_ref().and_then(|goodput| Some((goodput, goodput_text::share(goodput)?)))
    else {
        return Vec::new();
    };
    let mut spans = vec![Span::styled("goodput ", model.theme.faint), Span::styled(share, model.theme.strong)];
    let losses = goodput_text::losses(goodput);
    let used: usize = spans.iter().map(Span::width).sum();
    const TITLE: usize = "Events".len() + 10;
    if !losses.is_empty() && TITLE + used + "; lost: ".len() + text::width(&losses) <= width {
        spans.push(Span::styled(format!("; lost: {losses}"), model.theme.faint));
    }
    spans
}

/// Returns the visible events, newest first. The start of a save or an evaluation is shown only while it is the
/// newest event. A failure that several nodes report is shown once.
pub fn visible_events(run: &RunScreen) -> Vec<&Event> {
    let newest = run.events.len().saturating_sub(1);
    let begins = |kind: &EventKind| matches!(kind, EventKind::CheckpointStarted | EventKind::EvaluationStarted);
    let ended = |i: usize, event: &Event| i < newest && begins(&event.kind);
    let repeated = |i: usize, event: &Event| {
        let same = |before: &Event| before.attempt == event.attempt && before.kind == event.kind;
        matches!(event.kind, EventKind::Failed { .. }) && run.events.range(..i).any(same)
    };
    let events = run.events.iter().enumerate().rev().filter(|(i, event)| !ended(*i, event) && !repeated(*i, event));
    events.map(|(_, event)| event).collect()
}

/// Returns the position of the event in a row of the terminal, in the list of [`visible_events`].
pub fn event_at(run: &RunScreen, area: Rect, row: u16) -> Option<usize> {
    let below = layout::cut_top(area, 1).1;
    let count = visible_events(run).len();
    let selected = if run.focus == Panel::Events { run.scroll.min(count.saturating_sub(1)) } else { 0 };
    let top = layout::scrolled(0, selected, usize::from(below.height));
    layout::entries_until(below, row, top, 0, count).map(|at| at as usize)
}

pub(super) fn events(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Events;
    let below = heading(model, buf, area, "Events", goodput(model, run, usize::from(area.width)), focused);
    if run.events.is_empty() {
        let nothing = if run.status.is_some() { "No events yet" } else { "Loading…" };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    let events = visible_events(run);
    let selected = if focused { run.scroll.min(events.len().saturating_sub(1)) } else { 0 };
    let visible = usize::from(below.height);
    let first = layout::scrolled(0, selected, visible);
    let shown: Vec<&Event> = events.into_iter().skip(first).take(visible).collect();
    let ages: Vec<String> = shown.iter().map(|event| units::ago(model.now, event.t)).collect();
    let age_width = ages.iter().map(|age| text::width(age)).max().unwrap_or(0);
    // An item number, unlike a step, is not a position in the history of the run.
    let of_steps = step_word(run) == "step";
    let steps: Vec<String> =
        shown.iter().map(|e| e.step.filter(|_| of_steps).map_or_else(String::new, units::grouped)).collect();
    let step_width = steps.iter().map(|step| text::width(step)).max().unwrap_or(0);
    let lines = shown.iter().zip(ages).zip(steps).enumerate().map(|(at, ((event, age), step))| {
        let (glyph, what, style) = event_words(model, event);
        let pointer = match focused {
            true if first + at == selected => model.symbols.pointer,
            true => " ",
            false => "",
        };
        let step = match step_width {
            0 => String::new(),
            _ if below.width < 60 => format!("  {step:>step_width$}"),
            _ if step.is_empty() => " ".repeat(step_width + 7),
            _ => format!("  step {step:>step_width$}"),
        };
        Line::from(vec![
            Span::styled(pointer, model.theme.accent),
            Span::styled(format!("{age:>age_width$}{step}  "), model.theme.faint),
            Span::styled(format!("{glyph} {}", text::clean(&what)), style),
        ])
    });
    write_lines(model, buf, below, lines);
}

/// Returns the glyph of an event, the event as a short sentence, and their style.
pub fn event_words(model: &Model, event: &Event) -> (&'static str, String, Style) {
    let (what, severity) = event_text::describe(event);
    let style = match severity {
        Severity::Plain => Style::new(),
        Severity::Good => model.theme.good,
        Severity::Warn => model.theme.warn,
        Severity::Bad => model.theme.bad,
    };
    (glyph(model, severity), what, style)
}
