//! The runs that are compared: their metrics and recipes, and how they are shown.

use crate::model::Viewport;
use crate::model::run_screen::{MIN_SPAN, axis_ends};
use crate::msg::RunMsg;
use crate::recipe_setting::{Difference, RecipeSetting, differences};
use crate::series::{Axis, Series, Statistic, Track};
use rundir::{Failure, METRICS, MetricSource, RunId, find_metric};
use std::collections::{BTreeMap, BTreeSet};
use units::Unit;

/// The maximum number of runs that are compared; more lines cannot be distinguished.
pub const MOST_COMPARED: usize = 8;

/// A quantity that is compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// A metric, by its index in [`METRICS`].
    Metric(usize),
    /// A series of imported runs that [`METRICS`] lacks, by its name.
    Named(String),
}

impl Quantity {
    /// Returns the name of the quantity in files and on the command line.
    pub fn name(&self) -> &str {
        match self {
            Self::Metric(metric) => METRICS[*metric].name,
            Self::Named(name) => name,
        }
    }

    /// Returns the quantity with a name: a metric, or a series of imported runs.
    pub fn with_name(name: &str) -> Self {
        find_metric(name).map_or_else(|| Self::Named(name.to_owned()), |(index, _)| Self::Metric(index))
    }

    /// Returns the label of the quantity on the screen.
    pub fn label(&self) -> String {
        match self {
            Self::Metric(metric) => match METRICS[*metric].source {
                MetricSource::PerRank(_) => format!("{}, highest", METRICS[*metric].label),
                _ => METRICS[*metric].label.to_owned(),
            },
            Self::Named(name) => crate::text::clean(name),
        }
    }

    /// Returns the unit of the values.
    pub fn unit(&self) -> Unit {
        match self {
            Self::Metric(metric) => METRICS[*metric].unit,
            Self::Named(_) => Unit::Plain,
        }
    }

    /// Returns the track of the quantity in a run, one value per sample; `None` if the run does not have the series.
    pub fn track(&self, series: &Series) -> Option<Track> {
        match self {
            Self::Named(name) => series.track_of_name(name),
            Self::Metric(metric) => Some(match Track::of_metric(*metric) {
                Track::MemoryMean => Track::MemoryHighest,
                Track::Ranks(metric, _) => Track::Ranks(metric, Statistic::Highest),
                track => track,
            }),
        }
    }

    /// Returns whether a run has values of the quantity.
    fn is_measured(&self, series: &Series) -> bool {
        self.track(series).is_some_and(|track| !series.of_track(track).column(track).is_empty())
    }
}

/// One of the compared runs.
#[derive(Debug, Clone)]
pub struct ComparedRun {
    /// The run.
    pub id: RunId,
    /// Its metrics.
    pub series: Series,
    /// The keys of its recipe with their values, in the order of a recipe; `None` while they load.
    pub recipe: Option<Vec<RecipeSetting>>,
    /// Why the run cannot be read.
    pub lost: Option<Failure>,
    /// Whether the stream of the run has started.
    pub opened: bool,
    /// Whether the user has hidden its lines.
    pub hidden: bool,
}

/// The open comparison.
#[derive(Debug, Clone)]
pub struct CompareScreen {
    /// The runs, in the order of the Runs screen.
    pub runs: Vec<ComparedRun>,
    /// The chosen quantity.
    pub quantity: Quantity,
    /// Whether the chart of the chosen quantity replaces all other charts.
    pub enlarged: bool,
    /// Quantities with a logarithmic y axis.
    pub log_y: BTreeSet<Quantity>,
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

impl CompareScreen {
    /// Returns a comparison that has just been opened.
    pub fn new(runs: Vec<RunId>) -> Self {
        let run =
            |id| ComparedRun { id, series: Series::default(), recipe: None, lost: None, opened: false, hidden: false };
        Self {
            runs: runs.into_iter().map(run).collect(),
            quantity: Quantity::Metric(0),
            enlarged: false,
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
            RunMsg::Recipe(settings) => run.recipe = Some(RecipeSetting::with_defaults(settings)),
            RunMsg::NodePoints(points) => points.iter().for_each(|point| run.series.push_node_point(point)),
            RunMsg::Metrics(samples) => samples.iter().for_each(|sample| run.series.push(sample)),
            RunMsg::Lost(failure) => run.lost = Some(failure),
            _ => {}
        }
    }

    /// Returns the quantities that can be chosen: metrics, then series of imported runs. At least one run has
    /// measured each of them, except possibly the chosen one.
    pub fn choices(&self) -> Vec<Quantity> {
        let names: BTreeSet<&String> = self.runs.iter().flat_map(|run| run.series.names()).collect();
        let named = names.into_iter().map(|name| Quantity::Named(name.clone()));
        let all = (0..METRICS.len()).map(Quantity::Metric).chain(named);
        let measured = |quantity: &Quantity| {
            *quantity == self.quantity || self.runs.iter().any(|run| quantity.is_measured(&run.series))
        };
        let mut choices: Vec<Quantity> = all.filter(measured).collect();
        // The chosen series may not be loaded yet.
        if !choices.contains(&self.quantity) {
            choices.push(self.quantity.clone());
        }
        choices
    }

    /// Returns the quantities of at most `count` charts, with the chosen one among them; only the chosen one if it is
    /// enlarged.
    pub fn charts(&self, count: usize) -> Vec<Quantity> {
        let choices = self.choices();
        let at = choices.iter().position(|quantity| *quantity == self.quantity).unwrap_or(0);
        let count = if self.enlarged { 1 } else { count.clamp(1, choices.len()) };
        let first = (at / count * count).min(choices.len() - count);
        choices[first..first + count].to_vec()
    }

    /// Chooses the next or the previous of the quantities that can be chosen.
    pub(crate) fn choose_metric(&mut self, next: bool) {
        let choices = self.choices();
        let at = choices.iter().position(|quantity| *quantity == self.quantity).unwrap_or(0);
        let step = if next { 1 } else { choices.len() - 1 };
        self.quantity = choices[(at + step) % choices.len()].clone();
    }

    /// Shows only the lines of one run; each call moves on to the next run, and after the last one all runs are
    /// shown.
    pub(crate) fn show_next_alone(&mut self) {
        let mut shown = (0..self.runs.len()).filter(|number| !self.runs[*number].hidden);
        let alone = match (shown.next(), shown.next()) {
            (Some(only), None) if self.runs.len() > 1 => only + 1,
            _ => 0,
        };
        let all = alone >= self.runs.len();
        for (number, run) in self.runs.iter_mut().enumerate() {
            run.hidden = !all && number != alone;
        }
    }

    /// Hides or shows the lines of a run. When this would hide all runs, all are shown.
    pub(crate) fn toggle_run(&mut self, number: usize) {
        let Some(run) = self.runs.get_mut(number) else { return };
        run.hidden = !run.hidden;
        if self.runs.iter().all(|run| run.hidden) {
            self.runs.iter_mut().for_each(|run| run.hidden = false);
        }
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
        let has_positions = |run: &ComparedRun| !run.hidden && (self.x != Axis::Tokens || has_tokens(&run.series));
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

    /// Returns the index of a run's sample at the cursor; without a cursor, of its newest sample. `None` if the run
    /// has no samples there.
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
            // The first sample right of the cursor; for a move to the left, the first one at the cursor or right of
            // it.
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

    /// Returns the width of the narrowest window; `None` without samples.
    fn least_span(&self) -> Option<f64> {
        let (first, last) = self.full_range();
        let most = self.drawn().map(|(_, run)| run.series.live().len()).max().unwrap_or(0);
        (most > 0).then(|| (last - first) / most as f64 * MIN_SPAN)
    }

    /// Returns the keys whose values differ, in the order of a recipe. Recipes that are still loading are not
    /// compared.
    pub fn differences(&self) -> Vec<Difference> {
        let recipes: Vec<_> = self.runs.iter().map(|run| run.recipe.as_deref()).collect();
        differences(&recipes)
    }

    /// Returns the keys that all recipes have with the same value, in the order of a recipe; none while a recipe
    /// loads, or if one cannot be read.
    pub fn equal_settings(&self) -> Vec<&RecipeSetting> {
        let Some((first, others)) = self.runs.split_first() else { return Vec::new() };
        let others: Option<Vec<_>> = others.iter().map(|run| run.recipe.as_deref()).collect();
        let Some((first, others)) = first.recipe.as_ref().zip(others) else { return Vec::new() };
        let others: Vec<BTreeMap<&str, &str>> = others
            .iter()
            .map(|recipe| recipe.iter().map(|setting| (setting.key.as_str(), setting.value.as_str())).collect())
            .collect();
        let is_in_all = |setting: &&RecipeSetting| {
            others.iter().all(|recipe| recipe.get(setting.key.as_str()) == Some(&setting.value.as_str()))
        };
        first.iter().filter(is_in_all).collect()
    }
}

/// Returns whether a run logs tokens.
fn has_tokens(series: &Series) -> bool {
    series.range(Axis::Tokens).is_some_and(|(_, most)| most > 0.0)
}
