//! The open run: its metrics, events and checkpoints, and how its charts are shown.

use crate::effect::XAxis;
use crate::layout::{Panel, RunContent};
use crate::model::SamplesScreen;
use crate::msg::{RunMsg, RunStatus};
use crate::series::{Segment, Series};
use cluster::RankPlace;
use recipe::Task;
use rundir::Chart;
use rundir::{CheckpointEntry, Event, Failure, RunId};
use runstate::Goodput;
use std::collections::{BTreeSet, VecDeque};

/// The maximum number of events that are kept; older events are only in the run's files.
const MAX_EVENTS: usize = 1000;

/// The narrowest window of a zoomed chart, in samples.
const MIN_SPAN: f64 = 4.0;

/// An open run.
#[derive(Debug, Clone)]
pub struct RunScreen {
    /// The run.
    pub id: RunId,
    /// The state of the run; `None` while it loads.
    pub status: Option<Box<RunStatus>>,
    /// Its metrics.
    pub series: Series,
    /// How its time was spent; `None` while it loads, and if it does not train.
    pub goodput: Option<Goodput>,
    /// Its newest events, oldest first.
    pub events: VecDeque<Event>,
    /// Its checkpoints, ascending; `None` while they load.
    pub checkpoints: Option<Vec<CheckpointEntry>>,
    /// Its samples and which of them are shown.
    pub samples: SamplesScreen,
    /// Why the stream has ended.
    pub lost: Option<Failure>,
    /// The panel that keys apply to.
    pub focus: Panel,
    /// Whether it fills the screen.
    pub enlarged: bool,
    /// Charts with a logarithmic y axis.
    pub log_y: BTreeSet<Chart>,
    /// The moving average to show, as an index into [`SMOOTHING`](crate::series::SMOOTHING).
    pub smoothing: Option<usize>,
    /// The quantity on the x axes.
    pub x: XAxis,
    /// Width of the visible part of the x axis; `None` for all of it.
    pub span: Option<f64>,
    /// Right end of the visible part; `None` for the newest sample.
    pub end: Option<f64>,
    /// Position of the cursor on the x axis; `None` for the newest sample.
    pub cursor: Option<f64>,
    /// First visible line of the focused list.
    pub scroll: usize,
}

impl RunScreen {
    /// Returns the state of a run that has just been opened.
    pub fn new(id: RunId) -> Self {
        Self {
            id,
            status: None,
            series: Series::default(),
            goodput: None,
            events: VecDeque::new(),
            checkpoints: None,
            samples: SamplesScreen::default(),
            lost: None,
            focus: Panel::Chart(Chart::Loss),
            enlarged: false,
            log_y: BTreeSet::new(),
            smoothing: None,
            x: XAxis::default(),
            span: None,
            end: None,
            cursor: None,
            scroll: 0,
        }
    }

    /// Applies a message. The cost depends on the size of the message only.
    pub fn take_in(&mut self, what: RunMsg) {
        match what {
            RunMsg::Opened => {
                self.series = Series::default();
                self.events.clear();
                self.goodput = None;
                self.checkpoints = None;
                self.lost = None;
            }
            RunMsg::NodePoints(points) => points.iter().for_each(|point| self.series.push_node_point(point)),
            RunMsg::Metrics(samples) => samples.iter().for_each(|sample| self.series.push(sample)),
            RunMsg::Events(events) => {
                self.events.extend(events);
                let excess = self.events.len().saturating_sub(MAX_EVENTS);
                self.events.drain(..excess);
            }
            RunMsg::State(status) => {
                // The large chart of a run that does not train is another one.
                if self.status.is_none() && status.row.task != Task::Train {
                    self.focus = RunContent { task: status.row.task, ..RunContent::default() }.main();
                }
                self.status = Some(status);
            }
            RunMsg::Goodput(goodput) => self.goodput = Some(goodput),
            RunMsg::Checkpoints(checkpoints) => self.checkpoints = Some(checkpoints),
            RunMsg::Samples(samples) => self.samples.samples = Some(samples),
            RunMsg::Clip { step, prompt, size, clip } => self.samples.keep((step, prompt), size, clip),
            RunMsg::NextFrame => self.samples.frame = self.samples.frame.wrapping_add(1),
            RunMsg::Lost(failure) => self.lost = Some(failure),
            RunMsg::Log(_) => {}
        }
    }

    /// Returns the placement of the newest attempt's ranks.
    pub fn places(&self) -> &[RankPlace] {
        let attempt = self.status.as_ref().and_then(|status| status.attempt.as_ref());
        attempt.map_or(&[], |attempt| &attempt.placement.ranks)
    }

    /// Returns the chart that keys apply to.
    pub fn focused_chart(&self) -> Option<Chart> {
        match self.focus {
            Panel::Chart(chart) => Some(chart),
            Panel::Ranks | Panel::Pipeline | Panel::Samples | Panel::Checkpoints | Panel::Events => None,
        }
    }

    /// Returns the chart that fills the screen.
    pub fn enlarged_chart(&self) -> Option<Chart> {
        self.focused_chart().filter(|_| self.enlarged)
    }

    /// Returns the position of a sample on the x axis.
    pub fn x_of(&self, piece: &Segment, index: usize) -> f64 {
        match self.x {
            XAxis::Step => piece.step(index) as f64,
            XAxis::Time => piece.time(index) - self.series.started_s().unwrap_or(0.0),
        }
    }

    /// Returns the ends of the whole x axis.
    pub fn full_range(&self) -> (f64, f64) {
        let pieces = || std::iter::once(self.series.live()).chain(self.series.superseded()).filter(|p| !p.is_empty());
        let low = pieces().map(|p| self.x_of(p, 0)).fold(f64::INFINITY, f64::min);
        let high = pieces().map(|p| self.x_of(p, p.len() - 1)).fold(f64::NEG_INFINITY, f64::max);
        let nodes = self.series.nodes();
        // Nodes have samples before the first step and between attempts.
        let (low, high) = match (self.x, nodes.len().checked_sub(1)) {
            (XAxis::Time, Some(last)) if low <= high => {
                (low.min(self.x_of(nodes, 0)), high.max(self.x_of(nodes, last)))
            }
            _ => (low, high),
        };
        match high - low {
            span if span > 0.0 => (low, high),
            0.0 => (low - 0.5, high + 0.5),
            _ => (0.0, 1.0),
        }
    }

    /// Returns the ends of the visible part of the x axis.
    pub fn window(&self) -> (f64, f64) {
        let (low, high) = self.full_range();
        let Some(span) = self.span.filter(|span| *span < high - low) else { return (low, high) };
        let end = self.end.unwrap_or(high).clamp(low + span, high);
        (end - span, end)
    }

    /// Returns the sample at the cursor.
    pub fn cursor_index(&self) -> Option<usize> {
        let live = self.series.live();
        let last = live.len().checked_sub(1)?;
        let Some(x) = self.cursor else { return Some(last) };
        let right = self.index_at(x).min(last);
        let left = right.saturating_sub(1);
        let nearer_left = (self.x_of(live, left) - x).abs() < (self.x_of(live, right) - x).abs();
        Some(if nearer_left { left } else { right })
    }

    fn index_at(&self, x: f64) -> usize {
        match self.x {
            XAxis::Step => self.series.live().at_step(x),
            XAxis::Time => self.series.live().at_time(x + self.series.started_s().unwrap_or(0.0)),
        }
    }

    /// Moves the cursor by about one column of a chart that has `columns`; the window follows.
    pub(crate) fn move_cursor(&mut self, columns: usize, right: bool) {
        let Some(at) = self.cursor_index() else { return };
        let (low, high) = self.window();
        let visible = self.index_at(high).saturating_sub(self.index_at(low));
        let stride = (visible / columns.max(1)).max(1);
        let last = self.series.live().len() - 1;
        let to = if right { (at + stride).min(last) } else { at.saturating_sub(stride) };
        let x = self.x_of(self.series.live(), to);
        self.cursor = (to < last).then_some(x);
        if self.cursor.is_none() && right {
            self.end = None;
        }
        if let Some(span) = self.span {
            if x < low {
                self.end = Some(x + span);
            } else if x > high {
                self.end = Some(x);
            }
        }
    }

    /// Moves the window by half its width.
    pub(crate) fn pan(&mut self, right: bool) {
        let (low, high) = self.window();
        let half = (high - low) / 2.0;
        if self.span.is_none() {
            return;
        }
        let (first, last) = self.full_range();
        let end = if right { high + half } else { (high - half).max(first + (high - low)) };
        self.end = (end < last).then_some(end);
        self.cursor = self.cursor.map(|x| x.clamp(end - (high - low), end.min(last)));
    }

    pub(crate) fn zoom(&mut self, factor: f64) {
        let Some(at) = self.cursor_index() else { return };
        let (first, last) = self.full_range();
        let (low, high) = self.window();
        let per_sample = (last - first) / self.series.live().len().max(1) as f64;
        let span = ((high - low) * factor).max(per_sample * MIN_SPAN);
        if span >= last - first {
            (self.span, self.end) = (None, None);
            return;
        }
        self.span = Some(span);
        if self.cursor.is_some() {
            // The cursor keeps its position on the screen.
            let x = self.x_of(self.series.live(), at);
            let share = ((x - low) / (high - low)).clamp(0.0, 1.0);
            let end = x + (1.0 - share) * span;
            self.end = (end < last).then_some(end);
        }
    }

    pub(crate) fn reset_view(&mut self) {
        (self.span, self.end, self.cursor) = (None, None, None);
    }
}
