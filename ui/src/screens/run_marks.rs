//! The marks above the lanes of the Run screen: checkpoints, samples, resumes, alerts and lost nodes, on the x axis of the charts.

use crate::model::{Model, RunScreen};
use crate::series::Axis;
use crate::widgets::panel;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::Span;
use rundir::{ErrorCode, EventKind};

/// A kind of marks; where marks meet, the last kind is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MarkKind {
    Checkpoint,
    Sample,
    Alert,
    NodeLost,
    Resume,
}

impl MarkKind {
    const ALL: [Self; 5] = [Self::Checkpoint, Self::Sample, Self::Alert, Self::NodeLost, Self::Resume];

    /// Returns the letter and the name of the kind.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Checkpoint => ("c", "checkpoint"),
            Self::Sample => ("v", "sample"),
            Self::Alert => ("a", "alert"),
            Self::NodeLost => ("x", "node lost"),
            Self::Resume => ("r", "resume"),
        }
    }

    fn style(self, model: &Model) -> Style {
        match self {
            Self::Checkpoint => model.theme.good,
            Self::Sample => model.theme.lines[2],
            Self::Alert => model.theme.warn,
            Self::NodeLost => model.theme.bad,
            Self::Resume => model.theme.accent,
        }
    }

    fn of(event: &EventKind) -> Option<Self> {
        match event {
            EventKind::CheckpointSaved { .. } => Some(Self::Checkpoint),
            EventKind::SampleSaved { .. } => Some(Self::Sample),
            EventKind::Resumed { .. } => Some(Self::Resume),
            EventKind::Failed { failure } if failure.code == ErrorCode::NodeLost => Some(Self::NodeLost),
            _ => None,
        }
    }
}

/// Returns the marks in the order of time: their kind and position on the x axis.
fn marks(model: &Model, run: &RunScreen) -> Vec<(MarkKind, f64)> {
    let axis = Axis::from(run.x);
    let series = &run.series;
    let at = |time: f64, step: Option<u64>| match (axis, step) {
        (Axis::Time, _) => time - series.started_s().unwrap_or(time),
        (_, Some(step)) => step as f64,
        (_, None) => series.x_at(axis, time),
    };
    let events = run.events.iter().filter_map(|event| Some((MarkKind::of(&event.kind)?, at(event.t, event.step))));
    let of_run = model
        .alerts
        .iter()
        .flatten()
        .filter(|row| row.state.alert.run == run.id && row.state.alert.kind.needs_action());
    events.chain(of_run.map(|row| (MarkKind::Alert, at(row.state.alert.t, row.state.alert.step)))).collect()
}

/// Draws the marks with the number of each kind.
pub fn view(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
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
    // The plot of the charts below: their labels, axis and the room for letters at the ends of lines.
    const GUTTER: u16 = 9;
    let columns = below.width.saturating_sub(GUTTER + 2);
    if columns < 2 {
        return;
    }
    let mut cells: Vec<Option<MarkKind>> = vec![None; usize::from(columns)];
    for (kind, x) in visible {
        let cell = &mut cells[((x - low) / (high - low) * f64::from(columns - 1)).round() as usize];
        *cell = (*cell).max(Some(kind));
    }
    for (column, kind) in (0..).zip(cells) {
        let Some(kind) = kind else { continue };
        let letter = kind.words().0;
        buf.set_string(below.x + GUTTER + column, below.y, letter, kind.style(model));
    }
}
