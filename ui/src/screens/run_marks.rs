//! The marks of the charts of the Run screen: checkpoints, samples, stages, resumes, alerts and others, on the x axis of
//! the charts.

use crate::event_text;
use crate::model::{Model, RunScreen};
use crate::series::XAxis;
use crate::series::{Axis, Mark, MarkKind};
use crate::widgets::panel;
use crate::widgets::shared_axis::{SharedAxis, put_symbol};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::Span;
use rundir::Alert;
use std::borrow::Cow;

/// The minimum height of a chart, without its heading, that has a row of marks.
pub const LEAST_ROWS: u16 = 8;

fn style(model: &Model, kind: MarkKind) -> Style {
    match kind {
        MarkKind::Checkpoint => model.theme.good,
        MarkKind::Sample => model.theme.lines[2],
        MarkKind::NotFinite | MarkKind::Alert => model.theme.warn,
        MarkKind::NodeLost => model.theme.bad,
        MarkKind::Stage | MarkKind::Resume => model.theme.accent,
    }
}

/// Returns the alerts of a run that are marked.
fn alerts<'a>(model: &'a Model, run: &'a RunScreen) -> impl Iterator<Item = &'a Alert> {
    let all = model.alerts.iter().flatten().map(|row| &row.state.alert);
    all.filter(move |alert| alert.run == run.id && alert.kind.needs_action())
}

/// Returns whether a run has marks.
pub fn any(model: &Model, run: &RunScreen) -> bool {
    !run.marks.is_empty() || alerts(model, run).next().is_some()
}

/// Returns the marks of a kind, ascending on the x axis of the run.
fn marks<'a>(model: &Model, run: &'a RunScreen, kind: MarkKind) -> Cow<'a, [Mark]> {
    if kind != MarkKind::Alert {
        return run.marks.of(kind, run.x).into();
    }
    let mark = |alert| Mark::of_alert(alert, |t| run.series.x_at(Axis::Step, t));
    let mut marks: Vec<Mark> = alerts(model, run).map(mark).collect();
    marks.sort_by(|a, b| a.order(run.x).total_cmp(&b.order(run.x)));
    marks.into()
}

/// The columns of a plot. Marks before the first sample belong to the first column of the whole run, and those after the
/// last sample to the last column.
struct Columns<'a> {
    run: &'a RunScreen,
    window: (f64, f64),
    full: (f64, f64),
    width: u16,
}

impl<'a> Columns<'a> {
    fn new(run: &'a RunScreen, width: u16) -> Self {
        Self { run, window: run.window(), full: run.full_range(), width }
    }

    /// Returns the position of a mark on the x axis.
    fn position(&self, mark: &Mark) -> f64 {
        match self.run.x {
            XAxis::Step => mark.step,
            XAxis::Time => self.run.series.started_s().map_or(0.0, |started_s| mark.t - started_s),
        }
    }

    /// Returns the position of the left edge of a column.
    fn edge(&self, column: u16) -> f64 {
        let (low, high) = self.window;
        match column {
            0 if low <= self.full.0 => f64::NEG_INFINITY,
            0 => low,
            _ if column < self.width => low + (f64::from(column) - 0.5) * (high - low) / f64::from(self.width - 1),
            _ if high >= self.full.1 => f64::INFINITY,
            _ => high.next_up(),
        }
    }

    /// Returns the number of marks to the left of a column.
    fn before(&self, marks: &[Mark], column: u16) -> usize {
        let edge = self.edge(column);
        marks.partition_point(|mark| self.position(mark) < edge)
    }

    /// Returns the marks in the columns from `first` to before `end`.
    fn within<'m>(&self, marks: &'m [Mark], first: u16, end: u16) -> &'m [Mark] {
        &marks[self.before(marks, first)..self.before(marks, end)]
    }

    /// Returns the column of a visible mark.
    fn of(&self, mark: &Mark) -> u16 {
        let (low, high) = self.window;
        let last = f64::from(self.width - 1);
        ((self.position(mark) - low) / (high - low) * last).round().clamp(0.0, last) as u16
    }
}

/// Returns the letter, the name and the number of each visible kind of mark.
pub fn legend(model: &Model, run: &RunScreen) -> Vec<Span<'static>> {
    let columns = Columns::new(run, 1);
    let mut legend: Vec<Span<'static>> = Vec::new();
    for kind in MarkKind::ALL {
        let count = kind.count(columns.within(&marks(model, run, kind), 0, 1));
        if count > 0 {
            let gap = if legend.is_empty() { "" } else { "   " };
            legend.push(Span::styled(format!("{gap}{} {}", kind.letter(), kind.name()), style(model, kind)));
            legend.push(Span::styled(format!(" {}", units::grouped(count)), model.theme.strong));
        }
    }
    legend
}

/// Draws the letters of the marks, and the cursor, into the row of a plot. The cost depends on the number of columns, not
/// on the number of marks, except for alerts, of which the console has a few hundred at most.
pub fn draw(model: &Model, run: &RunScreen, axis: &SharedAxis, buf: &mut Buffer, row: Rect) {
    axis.draw_cursors(buf, row);
    if row.width == 0 {
        return;
    }
    let columns = Columns::new(run, row.width);
    for kind in MarkKind::ALL {
        let marks = marks(model, run, kind);
        let visible = columns.within(&marks, 0, row.width);
        let mut at = 0;
        while let Some(mark) = visible.get(at) {
            let column = columns.of(mark);
            put_symbol(buf, row.x + column, row.y, kind.letter(), style(model, kind));
            at = columns.before(visible, column + 1).max(at + 1);
        }
    }
}

/// Draws the marks above the lanes, and their legend. `axis` is the axis of the charts below.
pub fn view(model: &Model, run: &RunScreen, axis: &SharedAxis, buf: &mut Buffer, area: Rect) {
    if area.height < 2 {
        return;
    }
    let mut legend = legend(model, run);
    if legend.is_empty() {
        legend.push(Span::styled("none", model.theme.faint));
    }
    let below = panel(model, buf, area, "Marks", legend, false);
    let width = below.width.saturating_sub(axis.gutter + axis.margin);
    draw(model, run, axis, buf, Rect { x: below.x + axis.gutter, width, height: 1, ..below });
}

/// Returns what the marks in the column of the cursor stand for, the most important kind first. Without a cursor, the
/// column is that of the newest sample.
pub fn at_cursor(model: &Model, run: &RunScreen, axis: &SharedAxis, plot: Rect) -> Vec<Span<'static>> {
    let live = run.series.live();
    let newest = || Some(run.series.x_of(axis.x, live, live.len().checked_sub(1)?));
    let cursor = run.view.cursor.or_else(newest).and_then(|x| axis.column(plot, x));
    let Some(column) = cursor.map(|column| column - plot.x) else { return Vec::new() };
    let columns = Columns::new(run, plot.width);
    let mut texts: Vec<Span<'static>> = Vec::new();
    for kind in MarkKind::ALL.into_iter().rev() {
        let marks = marks(model, run, kind);
        let here = columns.within(&marks, column, column + 1);
        let Some(last) = here.last() else { continue };
        let gap = if texts.is_empty() { "" } else { ", " };
        let more = match kind.count(here) {
            0 | 1 => String::new(),
            count => format!(" and {} more", units::grouped(count - 1)),
        };
        let text = format!("{gap}{}{more}", event_text::describe_mark(kind, last));
        texts.push(Span::styled(text, style(model, kind)));
    }
    texts
}
