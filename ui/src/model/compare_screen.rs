//! The runs that are compared: their metrics and recipes, and how they are shown.

use crate::model::Viewport;
use crate::model::run_screen::{MIN_SPAN, axis_ends};
use crate::msg::RunMsg;
use crate::series::{Axis, Series, Track};
use rundir::{Failure, METRICS, Metric, MetricSource, RunId};
use std::collections::BTreeSet;

/// The maximum number of runs that are compared; more lines cannot be distinguished.
pub const MOST_COMPARED: usize = 8;

/// One of the compared runs.
#[derive(Debug, Clone)]
pub struct ComparedRun {
    /// The run.
    pub id: RunId,
    /// Its metrics.
    pub series: Series,
    /// The keys of its recipe with their values, in the order of a recipe; `None` while they load.
    pub recipe: Option<Vec<(String, String)>>,
    /// The error, if the run cannot be read.
    pub lost: Option<Failure>,
    /// True once its stream has started.
    pub opened: bool,
}

/// The open comparison.
#[derive(Debug, Clone)]
pub struct CompareScreen {
    /// The runs, in the order of the Runs screen.
    pub runs: Vec<ComparedRun>,
    /// The metric, as an index into [`METRICS`].
    pub metric: usize,
    /// Metrics with a logarithmic y axis.
    pub log_y: BTreeSet<usize>,
    /// The moving average to show, as an index into [`SMOOTHING`](crate::series::SMOOTHING).
    pub smoothing: Option<usize>,
    /// The quantity by which the runs are aligned.
    pub x: Axis,
    /// The visible part of the x axis, and the cursor.
    pub view: Viewport,
    /// Whether the recipes fill the screen.
    pub recipes_only: bool,
    /// First visible row of the recipes.
    pub scroll: usize,
}

/// A key of which the compared runs have different values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key, such as `optimizer.lr`.
    pub key: String,
    /// The value of each run; `None` if its recipe does not have the key, or while it loads.
    pub values: Vec<Option<String>>,
}

impl CompareScreen {
    /// Returns a comparison that has just been opened.
    pub fn new(runs: Vec<RunId>) -> Self {
        let run = |id| ComparedRun { id, series: Series::default(), recipe: None, lost: None, opened: false };
        Self {
            runs: runs.into_iter().map(run).collect(),
            metric: 0,
            log_y: BTreeSet::new(),
            smoothing: None,
            x: Axis::Step,
            view: Viewport::default(),
            recipes_only: false,
            scroll: 0,
        }
    }

    /// Applies a message about one of the runs. The cost depends on the size of the message only.
    pub fn take_in(&mut self, run: &RunId, what: RunMsg) {
        let Some(run) = self.runs.iter_mut().find(|known| known.id == *run) else { return };
        match what {
            RunMsg::Opened => {
                (run.series, run.lost, run.opened) = (Series::default(), None, true);
            }
            RunMsg::Recipe(settings) => run.recipe = Some(settings),
            RunMsg::NodePoints(points) => points.iter().for_each(|point| run.series.push_node_point(point)),
            RunMsg::Metrics(samples) => samples.iter().for_each(|sample| run.series.push(sample)),
            RunMsg::Lost(failure) => run.lost = Some(failure),
            _ => {}
        }
    }

    /// Returns the compared metric.
    pub fn metric(&self) -> &'static Metric {
        &METRICS[self.metric]
    }

    /// Returns the track that is compared: one value per run and sample.
    pub fn track(&self) -> Track {
        track_of(self.metric())
    }

    /// Returns the metrics that at least one run has measured, and the chosen one.
    pub fn choices(&self) -> Vec<usize> {
        let measured = |at: &usize| {
            let metric = &METRICS[*at];
            let track = track_of(metric);
            let has_values = |run: &ComparedRun| !run.series.of_track(track).column(track).is_empty();
            *at == self.metric || (metric.line.is_some() && self.runs.iter().any(has_values))
        };
        (0..METRICS.len()).filter(measured).collect()
    }

    /// Chooses the next metric that was measured, or the one before.
    pub(crate) fn choose_metric(&mut self, next: bool) {
        let choices = self.choices();
        let at = choices.iter().position(|metric| *metric == self.metric).unwrap_or(0);
        let step = if next { 1 } else { choices.len() - 1 };
        self.metric = choices[(at + step) % choices.len()];
    }

    /// Aligns the runs by the next quantity. Tokens are left out if no run logs them.
    pub(crate) fn align_next(&mut self) {
        let has_tokens = self.runs.iter().any(|run| has_tokens(&run.series));
        self.x = match self.x {
            Axis::Step => Axis::Time,
            Axis::Time if has_tokens => Axis::Tokens,
            Axis::Time | Axis::Tokens => Axis::Step,
        };
        self.view = Viewport::default();
    }

    /// Returns the runs that have positions on the x axis, with their numbers.
    pub fn drawn(&self) -> impl Iterator<Item = (usize, &ComparedRun)> {
        let has_positions = |run: &ComparedRun| self.x != Axis::Tokens || has_tokens(&run.series);
        self.runs.iter().enumerate().filter(move |(_, run)| has_positions(run))
    }

    /// Returns the ends of the whole x axis.
    pub fn full_range(&self) -> (f64, f64) {
        let ranges = self.drawn().filter_map(|(_, run)| run.series.range(self.x));
        axis_ends(ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))))
    }

    /// Returns the ends of the visible part of the x axis.
    pub fn window(&self) -> (f64, f64) {
        self.view.window(self.full_range())
    }

    /// Returns the sample of a run at the cursor: the newest one without a cursor, and none where the run has no samples.
    pub fn sample_at_cursor(&self, run: &ComparedRun) -> Option<usize> {
        let live = run.series.live();
        let last = live.len().checked_sub(1)?;
        let Some(x) = self.view.cursor else { return Some(last) };
        let position = |index| run.series.x_of(self.x, live, index);
        // A run that ended before the cursor, or started after it, has no value there.
        let (low, high) = self.window();
        let tolerance = (high - low) / 100.0;
        let inside = (position(0) - tolerance..=position(last) + tolerance).contains(&x);
        inside.then(|| run.series.nearest(self.x, x)).flatten()
    }

    /// Moves the cursor by about one column of a chart that has `columns`, to the nearest sample of any run; the window
    /// follows.
    pub(crate) fn move_cursor(&mut self, columns: usize, right: bool) {
        let full = self.full_range();
        let (low, high) = self.window();
        let from = self.view.cursor.unwrap_or(full.1);
        let mut next: Option<f64> = None;
        for (_, run) in self.drawn() {
            let (series, live) = (&run.series, run.series.live());
            let Some(last) = live.len().checked_sub(1) else { continue };
            let visible = series.index_at(self.x, live, high) - series.index_at(self.x, live, low);
            let stride = (visible / columns.max(1)).max(1);
            // The first sample right of the cursor, or at it.
            let at = series.index_at(self.x, live, if right { from.next_up() } else { from });
            let to = match right {
                true if at > last => continue,
                true => (at + stride - 1).min(last),
                false if at == 0 => continue,
                false => at.saturating_sub(stride),
            };
            let x = series.x_of(self.x, live, to);
            next = Some(next.map_or(x, |known| if right { known.min(x) } else { known.max(x) }));
        }
        let to = next.or(self.view.cursor).filter(|x| *x < full.1);
        self.view.put_cursor(to, full);
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

    /// Returns the narrowest window; `None` without samples.
    fn least_span(&self) -> Option<f64> {
        let (first, last) = self.full_range();
        let most = self.drawn().map(|(_, run)| run.series.live().len()).max().unwrap_or(0);
        (most > 0).then(|| (last - first) / most as f64 * MIN_SPAN)
    }

    /// Returns the keys whose values differ, in the order of a recipe. A recipe that is not read yet is left out.
    pub fn differences(&self) -> Vec<Difference> {
        let recipes: Vec<_> = self.runs.iter().map(|run| run.recipe.as_deref()).collect();
        let mut keys: Vec<&str> = Vec::new();
        let mut seen = BTreeSet::new();
        for (key, _) in recipes.iter().copied().flatten().flatten() {
            if seen.insert(key) {
                keys.push(key);
            }
        }
        let value = |recipe: &[(String, String)], key: &str| {
            recipe.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let difference = |key: &str| {
            let known: Vec<_> = recipes.iter().copied().flatten().map(|recipe| value(recipe, key)).collect();
            let differs = known.windows(2).any(|pair| pair[0] != pair[1]);
            let values = || recipes.iter().map(|recipe| value((*recipe)?, key)).collect();
            differs.then(|| Difference { key: key.to_owned(), values: values() })
        };
        keys.into_iter().filter_map(difference).collect()
    }
}

/// Returns the track of a metric that has one value per run and sample.
fn track_of(metric: &Metric) -> Track {
    match metric.source {
        MetricSource::PerRank(_) => Track::MemoryHighest,
        _ => Track::of(metric.name),
    }
}

/// Returns whether a run logs tokens.
fn has_tokens(series: &Series) -> bool {
    series.range(Axis::Tokens).is_some_and(|(_, most)| most > 0.0)
}
