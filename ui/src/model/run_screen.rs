//! State of an open run: its metrics, events and checkpoints, and how its charts are shown.

use crate::event_text;
use crate::fleet::gpu_value::StepTimes;
use crate::layout::{Panel, RunContent};
use crate::model::{SamplesScreen, Viewport};
use crate::msg::{RunMsg, RunStatus};
use crate::recipe_setting::RecipeSetting;
use crate::series::XAxis;
use crate::series::{Axis, Marks, Series};
use cluster::RankPlace;
use recipe::Task;
use rundir::{Chart, CheckpointEntry, Event, Failure, GpuUsage, RunId};
use runstate::Goodput;
use std::collections::VecDeque;

/// The maximum number of events in memory; older events are only in the run's files.
const MAX_EVENTS: usize = 1000;

/// The narrowest window of a zoomed chart, in samples.
pub(super) const MIN_SPAN: f64 = 4.0;

/// An open run.
#[derive(Debug, Clone)]
pub struct RunScreen {
    /// The run.
    pub id: RunId,
    /// The state of the run; `None` while it loads.
    pub status: Option<Box<RunStatus>>,
    /// The metrics of the run.
    pub series: Series,
    /// How the wall time was spent; `None` while it loads, and for runs that do not train.
    pub goodput: Option<Goodput>,
    /// The GPU time and the energy of the run; `None` while they load, and for runs without GPUs.
    pub usage: Option<GpuUsage>,
    /// The newest events, oldest first.
    pub events: VecDeque<Event>,
    /// The moments that the charts mark, of the whole run.
    pub marks: Marks,
    /// The checkpoints by ascending step; `None` while they load.
    pub checkpoints: Option<Vec<CheckpointEntry>>,
    /// The samples, and which of them are shown.
    pub samples: SamplesScreen,
    /// Why the stream has ended.
    pub lost: Option<Failure>,
    /// The panel that keys apply to.
    pub focus: Panel,
    /// Whether the focused panel fills the screen.
    pub enlarged: bool,
    /// The panel that had the focus before a key enlarged another panel.
    pub back_to: Option<Panel>,
    /// The keys of the recipe in their order; `None` while they load.
    pub recipe: Option<Vec<RecipeSetting>>,
    /// The moving average to show, as an index into [`SMOOTHING`](crate::series::SMOOTHING).
    pub smoothing: Option<usize>,
    /// The quantity on the x axes.
    pub x: XAxis,
    /// The visible part of the x axes, and the cursor.
    pub view: Viewport,
    /// The scroll position of the focused list: its first visible line or its selected entry.
    pub scroll: usize,
}

impl RunScreen {
    /// Returns the line in place of a list of checkpoints that is empty.
    pub fn no_checkpoints(&self) -> &'static str {
        match (&self.checkpoints, &self.status) {
            (None, _) => "Loading…",
            (_, Some(status)) if status.row.state.is_end() => "None",
            (_, Some(status)) if status.row.is_command => "None yet",
            _ => "None yet; stopping saves one",
        }
    }

    /// Returns the state of a run that has just been opened.
    pub fn new(id: RunId) -> Self {
        Self {
            id,
            status: None,
            series: Series::default(),
            goodput: None,
            usage: None,
            events: VecDeque::new(),
            marks: Marks::default(),
            checkpoints: None,
            samples: SamplesScreen::default(),
            lost: None,
            focus: Panel::Chart(Chart::Loss),
            enlarged: false,
            back_to: None,
            recipe: None,
            smoothing: None,
            x: XAxis::default(),
            view: Viewport::default(),
            scroll: 0,
        }
    }

    /// Applies a message. The cost depends only on the size of the message.
    pub fn take_in(&mut self, what: RunMsg) {
        match what {
            RunMsg::Opened => {
                self.series = Series::default();
                self.events.clear();
                self.marks = Marks::default();
                (self.goodput, self.usage) = (None, None);
                self.checkpoints = None;
                self.lost = None;
            }
            RunMsg::NodePoints(points) => points.iter().for_each(|point| self.series.push_node_point(point)),
            RunMsg::Metrics(samples) => samples.iter().for_each(|sample| self.series.push(sample)),
            RunMsg::Events(events) => {
                for event in &events {
                    self.marks.push(event, |t| self.series.x_at(Axis::Step, t));
                }
                self.events.extend(events.into_iter().filter(event_text::is_listed));
                let excess = self.events.len().saturating_sub(MAX_EVENTS);
                self.events.drain(..excess);
            }
            RunMsg::State(status) => {
                // A run that does not train has another large chart.
                if self.status.is_none() && status.row.task != Task::Train {
                    self.focus = RunContent { task: status.row.task, ..RunContent::default() }.main();
                }
                self.status = Some(status);
            }
            RunMsg::Goodput(goodput) => self.goodput = Some(goodput),
            RunMsg::Usage(usage) => self.usage = Some(usage),
            RunMsg::Checkpoints(checkpoints) => self.checkpoints = Some(checkpoints),
            RunMsg::Samples(samples) => self.samples.samples = Some(samples),
            RunMsg::Clip { step, prompt, size, clip } => self.samples.keep((step, prompt), size, clip),
            RunMsg::NextFrame => self.samples.frame = self.samples.frame.wrapping_add(1),
            RunMsg::Recipe(settings) => self.recipe = Some(RecipeSetting::with_defaults(settings)),
            RunMsg::Lost(failure) => self.lost = Some(failure),
            RunMsg::Log(_) | RunMsg::Logs(_) | RunMsg::EarlierErrors(_) => {}
        }
    }

    /// Returns the placement of the ranks of the newest attempt.
    pub fn places(&self) -> &[RankPlace] {
        let attempt = self.status.as_ref().and_then(|status| status.attempt.as_ref());
        attempt.map_or(&[], |attempt| &attempt.placement.ranks)
    }

    /// Focuses a panel and enlarges it. If the panel already fills the screen, all panels are shown again, with the
    /// previous focus.
    pub(crate) fn show_panel(&mut self, panel: Panel) {
        if self.enlarged && self.focus == panel {
            self.restore_panels();
            return;
        }
        self.back_to.get_or_insert(self.focus);
        (self.focus, self.enlarged, self.scroll) = (panel, true, 0);
    }

    /// Shows all panels, and restores the focus that a key moved when it enlarged a panel.
    pub(crate) fn restore_panels(&mut self) {
        self.enlarged = false;
        if let Some(panel) = self.back_to.take() {
            (self.focus, self.scroll) = (panel, 0);
        }
    }

    /// Returns the focused panel if it is a chart.
    pub fn focused_chart(&self) -> Option<Panel> {
        Some(self.focus).filter(|panel| panel.is_chart())
    }

    /// Returns the chart that fills the screen.
    pub fn enlarged_chart(&self) -> Option<Panel> {
        self.focused_chart().filter(|_| self.enlarged)
    }

    /// Returns the ends of the whole x axis.
    pub fn full_range(&self) -> (f64, f64) {
        axis_ends(self.series.range(self.x.into()))
    }

    /// Returns the step times of the ranks on the GPUs of their nodes; `None` while they are unknown.
    pub fn step_times(&self) -> Option<StepTimes<'_>> {
        StepTimes::of(self.series.rank_times(), self.places())
    }

    /// Returns the ends of the visible part of the x axis.
    pub fn window(&self) -> (f64, f64) {
        self.view.window(self.full_range())
    }

    /// Returns the index of the sample at the cursor, or of the newest sample without a cursor.
    pub fn cursor_index(&self) -> Option<usize> {
        match self.view.cursor {
            None => self.series.live().len().checked_sub(1),
            Some(x) => self.series.nearest(self.x.into(), x),
        }
    }

    /// Moves the cursor by about one column of a chart that is `columns` wide; the window follows.
    pub(crate) fn move_cursor(&mut self, columns: usize, right: bool) {
        let Some(at) = self.cursor_index() else { return };
        let (axis, live) = (Axis::from(self.x), self.series.live());
        let (low, high) = self.window();
        let visible = self.series.index_at(axis, live, high).saturating_sub(self.series.index_at(axis, live, low));
        let stride = (visible / columns.max(1)).max(1);
        let last = live.len() - 1;
        let to = if right { (at + stride).min(last) } else { at.saturating_sub(stride) };
        let to = (to < last).then(|| self.series.x_of(axis, live, to));
        self.view.put_cursor(to, self.full_range());
    }

    /// Moves the window by half its width.
    pub(crate) fn pan(&mut self, right: bool) {
        self.view.pan(right, self.full_range());
    }

    /// Zooms by a factor, around a position on the x axis or the cursor.
    pub(crate) fn zoom(&mut self, factor: f64, around: Option<f64>) {
        if let Some(least) = self.least_span() {
            self.view.zoom(factor, least, self.full_range(), around);
        }
    }

    /// Shows a range of the x axis.
    pub(crate) fn show(&mut self, range: (f64, f64)) {
        if let Some(least) = self.least_span() {
            self.view.show(range, least, self.full_range());
        }
    }

    /// Moves the cursor to the sample nearest to a position on the x axis.
    pub(crate) fn put_cursor_at(&mut self, x: f64) {
        let (axis, live) = (Axis::from(self.x), self.series.live());
        if let Some(nearest) = self.series.nearest(axis, x) {
            let to = (nearest + 1 < live.len()).then(|| self.series.x_of(axis, live, nearest));
            self.view.put_cursor(to, self.full_range());
        }
    }

    /// Returns the width of the narrowest window; `None` without samples.
    fn least_span(&self) -> Option<f64> {
        let (first, last) = self.full_range();
        let samples = self.series.live().len();
        (samples > 0).then(|| (last - first) / samples as f64 * MIN_SPAN)
    }

    pub(crate) fn reset_view(&mut self) {
        self.view = Viewport::default();
    }
}

/// Returns the ends of an x axis that shows `range`; a range of width 1 if there are no samples or only one.
pub(crate) fn axis_ends(range: Option<(f64, f64)>) -> (f64, f64) {
    let (low, high) = range.unwrap_or((0.0, 1.0));
    match high - low {
        span if span > 0.0 => (low, high),
        0.0 => (low - 0.5, high + 0.5),
        _ => (0.0, 1.0),
    }
}
