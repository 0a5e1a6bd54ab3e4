//! The marks above the charts of the Run screen: checkpoints, samples, stages, resumes, alerts and lost nodes, on the
//! x axis of the charts.

use crate::model::{Model, RunScreen};
use crate::series::Axis;
use crate::widgets::panel;
use crate::widgets::shared_axis::SharedAxis;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::Span;
use rundir::{ErrorCode, Event, EventKind};
use std::collections::BTreeMap;

/// A kind of mark. Where several marks share a column, the last kind in this order is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MarkKind {
    Checkpoint,
    Sample,
    Alert,
    NodeLost,
    Stage,
    Resume,
}

impl MarkKind {
    const ALL: [Self; 6] = [Self::Checkpoint, Self::Sample, Self::Alert, Self::NodeLost, Self::Stage, Self::Resume];

    /// Returns the letter and the name of this kind of mark.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Checkpoint => ("c", "checkpoint"),
            Self::Sample => ("v", "sample"),
            Self::Alert => ("a", "alert"),
            Self::NodeLost => ("x", "node lost"),
            Self::Stage => ("s", "stage"),
            Self::Resume => ("r", "resume"),
        }
    }

    fn style(self, model: &Model) -> Style {
        match self {
            Self::Checkpoint => model.theme.good,
            Self::Sample => model.theme.lines[2],
            Self::Alert => model.theme.warn,
            Self::NodeLost => model.theme.bad,
            Self::Stage | Self::Resume => model.theme.accent,
        }
    }

    fn of(event: &EventKind) -> Option<Self> {
        match event {
            EventKind::CheckpointSaved { .. } => Some(Self::Checkpoint),
            EventKind::SampleSaved { .. } => Some(Self::Sample),
            EventKind::Resumed { .. } => Some(Self::Resume),
            // A stage begins by loading the weights of the previous stage.
            EventKind::WeightsLoaded { .. } => Some(Self::Stage),
            EventKind::NodeLost { .. } => Some(Self::NodeLost),
            EventKind::Failed { failure } if failure.code == ErrorCode::NodeLost => Some(Self::NodeLost),
            _ => None,
        }
    }
}

/// Returns the marks of the events, then those of the alerts: kind and position on the x axis.
fn marks(model: &Model, run: &RunScreen) -> Vec<(MarkKind, f64)> {
    let axis = Axis::from(run.x);
    let series = &run.series;
    let at = |time: f64, step: Option<u64>| match (axis, step) {
        (Axis::Time, _) => time - series.started_s().unwrap_or(time),
        (_, Some(step)) => step as f64,
        (_, None) => series.x_at(axis, time),
    };
    let is_first = |number: usize, event: &Event| !run.events.range(..number).any(|before| is_same_loss(before, event));
    let of_events = run.events.iter().enumerate().filter_map(|(number, event)| {
        let kind = MarkKind::of(&event.kind).filter(|kind| *kind != MarkKind::NodeLost || is_first(number, event))?;
        Some((kind, at(event.t, event.step)))
    });
    let of_run = model
        .alerts
        .iter()
        .flatten()
        .filter(|row| row.state.alert.run == run.id && row.state.alert.kind.needs_action());
    of_events.chain(of_run.map(|row| (MarkKind::Alert, at(row.state.alert.t, row.state.alert.step)))).collect()
}

/// Returns whether two events report the loss of the same node. Each remaining node reports the loss.
fn is_same_loss(a: &Event, b: &Event) -> bool {
    a.attempt == b.attempt
        && match (&a.kind, &b.kind) {
            (EventKind::NodeLost { node: a, .. }, EventKind::NodeLost { node: b, .. }) => a == b,
            (a, b) => a == b,
        }
}

/// Draws the marks, and a legend with the number of each kind. `axis` is the axis of the charts below.
pub fn view(model: &Model, run: &RunScreen, axis: &SharedAxis, buf: &mut Buffer, area: Rect) {
    if area.height < 2 {
        return;
    }
    let marks = marks(model, run);
    let (low, high) = run.window();
    let visible: Vec<_> = marks.into_iter().filter(|(_, x)| (low..=high).contains(x)).collect();
    let mut legend: Vec<Span<'static>> = Vec::new();
    for kind in MarkKind::ALL {
        let count = visible.iter().filter(|(known, _)| *known == kind).count();
        if count > 0 {
            let (letter, name) = kind.words();
            let gap = if legend.is_empty() { "" } else { "   " };
            legend.push(Span::styled(format!("{gap}{letter} {name}"), kind.style(model)));
            legend.push(Span::styled(format!(" {count}"), model.theme.strong));
        }
    }
    if legend.is_empty() {
        legend.push(Span::styled("none", model.theme.faint));
    }
    let below = panel(model, buf, area, "Marks", legend, false);
    let width = below.width.saturating_sub(axis.gutter + axis.margin);
    let row = Rect { x: below.x + axis.gutter, width, height: 1, ..below };
    axis.draw_cursors(buf, row);
    let mut columns: BTreeMap<u16, MarkKind> = BTreeMap::new();
    for (kind, column) in visible.into_iter().filter_map(|(kind, x)| Some((kind, axis.column(row, x)?))) {
        columns.entry(column).and_modify(|known| *known = (*known).max(kind)).or_insert(kind);
    }
    for (column, kind) in columns {
        buf.set_string(column, row.y, kind.words().0, kind.style(model));
    }
}
