//! The details of the selected alert. A large terminal also shows the state and the loss of its run, and the other alerts
//! and the events of that run around the time of the alert.

use crate::model::{Model, RunScreen};
use crate::run_state::{StateKind, short_id};
use crate::screens::{alerts::words, preview};
use crate::screens::{run_lists, run_sections};
use crate::text;
use crate::widgets::aligned::hanging;
use crate::widgets::details::{self, Section};
use crate::widgets::failure_lines;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{AlertState, Event, Mute};

/// The largest number of alerts, and of events, that are listed around the time of the alert.
const NEAREST: usize = 40;

/// Draws the details.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect, state: &AlertState) {
    if area.height < 2 {
        return;
    }
    let width = details::width(model.size, area);
    let (row, open) = (model.row(&state.alert.run), preview::loaded(model));
    let run = || -> Vec<Section> {
        row.map(|row| run_sections::state_section(model, row, open, width)).into_iter().collect()
    };
    let beside = || -> Vec<Section> {
        let events = row.map(|_| events(model, state, open, width));
        [others(model, state, width)].into_iter().chain(events).collect()
    };
    let rest = details::view(model, buf, area, alert(model, state, width), run, beside);
    if let Some(row) = row {
        run_sections::chart(model, row, open, buf, rest);
    }
}

/// Returns the alert: what happened, why, the hint, the channels that it did not reach, and who acknowledged it.
fn alert(model: &Model, state: &AlertState, width: usize) -> Section {
    let (alert, faint) = (&state.alert, model.theme.faint);
    let mut facts = vec![format!("began {}", units::ago(model.now, alert.since_s))];
    facts.push(format!("attempt {}", alert.attempt));
    facts.extend(alert.step.map(|step| format!("step {}", units::grouped(step))));
    if let Some(until_s) = state.snoozed_until_s.filter(|until_s| model.now < *until_s) {
        facts.push(format!("snoozed for {}", units::duration(until_s - model.now)));
    }
    facts.extend(state.acknowledged.then(|| "acknowledged".to_owned()));
    let mut lines: Vec<Line<'static>> = Vec::new();
    let mut add = |text: &str, style: Style| {
        let wrapped = text::wrap(&text::clean(&text.replace('\n', " ")), width);
        lines.extend(wrapped.into_iter().map(|line| Line::styled(line, style)));
    };
    add(&facts.join(&format!(" {} ", model.symbols.separator)), faint);
    add(&text::capitalized(&alert.what), Style::new());
    if !alert.why.is_empty() {
        add(&text::capitalized(&alert.why), Style::new());
    }
    if !alert.fix.is_empty() {
        add(&format!("Hint: {}", alert.fix), model.theme.accent);
    }
    for not_sent in &state.not_sent {
        add(&format!("Not sent to {}: {}", not_sent.channel, not_sent.why), model.theme.warn);
    }
    for mute in &state.mutes {
        add(&mute_in_words(model.now, mute), faint);
    }
    let title = format!("{}: {}", short_id(&alert.run), words(alert.kind));
    Section::new(title, vec![Span::styled(alert.id.clone(), faint)], lines)
}

fn mute_in_words(now: f64, mute: &Mute) -> String {
    let by = if mute.by.is_empty() { String::new() } else { format!(" by {}", mute.by) };
    let what = match (mute.until_s, &mute.id) {
        (None, _) => format!("Acknowledged{by}"),
        (Some(until_s), Some(_)) => format!("Snoozed{by} for {}", units::duration(until_s - mute.t)),
        (Some(until_s), None) => format!("Run snoozed{by} for {}", units::duration(until_s - mute.t)),
    };
    format!("{what}, {}", units::ago(now, mute.t))
}

/// Returns the other alerts of the run around the time of this one, newest first.
fn others(model: &Model, state: &AlertState, width: usize) -> Section {
    let (alert, theme) = (&state.alert, &model.theme);
    let of_run = model.alerts.iter().flatten().map(|row| &row.state);
    let of_run = of_run.filter(|other| other.alert.run == alert.run && other.alert.id != alert.id);
    let all: Vec<&AlertState> = of_run.collect();
    let count = all.len();
    let near = nearest(all, |other| other.alert.since_s, alert.since_s);
    let times: Vec<String> = near.iter().map(|other| relative(other.alert.since_s, alert.since_s)).collect();
    let time_width = times.iter().map(|time| text::width(time)).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (other, time) in near.into_iter().zip(times) {
        let is_open = other.is_open(model.now);
        let (glyph, style) = match is_open {
            true => (model.symbols.states[StateKind::Stalled as usize], theme.warn),
            false => (" ", theme.faint),
        };
        let first = vec![
            Span::styled(format!("{glyph} "), theme.warn),
            Span::styled(format!("{time:>time_width$}  "), theme.faint),
            Span::styled(format!("{}  ", words(other.alert.kind)), style),
        ];
        lines.extend(hanging(first, &other.alert.what, if is_open { Style::new() } else { theme.faint }, width));
    }
    if lines.is_empty() {
        lines.push(Line::styled("None", theme.faint));
    }
    Section::counted(model, "Other alerts of this run", count, lines)
}

/// Returns the events of the run around the time of the alert, newest first. `open` is `None` while the run loads.
fn events(model: &Model, state: &AlertState, open: Option<&RunScreen>, width: usize) -> Section {
    let lines = match open.map(|open| (open, &open.lost)) {
        Some((_, Some(failure))) => failure_lines(model, failure, width),
        Some((open, None)) if !open.events.is_empty() => {
            let since_s = state.alert.since_s;
            let near: Vec<&Event> = nearest(run_lists::visible_events(open), |event| event.t, since_s);
            run_sections::event_lines(model, open, &near, |t| relative(t, since_s), width)
        }
        Some((open, None)) if open.status.is_some() => vec![Line::styled("None", model.theme.faint)],
        _ => vec![Line::styled("Loading…", model.theme.faint)],
    };
    Section::new("Events around this time", Vec::new(), lines)
}

/// Returns the items that are nearest to a time, in their order.
fn nearest<T>(items: Vec<T>, time_of: impl Fn(&T) -> f64, time: f64) -> Vec<T> {
    let mut numbered: Vec<(usize, T)> = items.into_iter().enumerate().collect();
    let distance = |item: &T| (time_of(item) - time).abs();
    numbered.sort_by(|(_, a), (_, b)| distance(a).total_cmp(&distance(b)));
    numbered.truncate(NEAREST);
    numbered.sort_by_key(|(at, _)| *at);
    numbered.into_iter().map(|(_, item)| item).collect()
}

/// Returns a time relative to that of the alert: `3 min before`.
fn relative(t: f64, of_alert: f64) -> String {
    match t - of_alert {
        seconds if seconds.abs() < 0.5 => "same time".to_owned(),
        seconds if seconds < 0.0 => format!("{} before", units::short_duration(-seconds)),
        seconds => format!("{} after", units::short_duration(seconds)),
    }
}
