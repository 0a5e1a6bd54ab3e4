//! The metrics of a run over time: one column per track, with a pyramid of minima and maxima over each column, and
//! superseded samples.
//!
//! The time to add a sample or to draw a chart does not grow with the number of samples: the pyramid returns the
//! extremes of any range in a few dozen operations. No sample is dropped, so that zooming in ends at single samples.

mod axis;
mod column;
mod marks;

pub use axis::{Axis, XAxis};
pub use column::{Column, Extent};
use column::{NewValue, push};
pub use marks::{MOST_FREQUENT, Mark, MarkKind, Marks};

use crate::rank_times::RankTimes;
use rundir::{METRICS, Metric, MetricSample, MetricSource, NodePoint, find_metric};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// With more ranks than this, only the mean, the highest and the lowest memory are stored, not the memory of each
/// rank.
pub const MAX_RANK_LINES: usize = 8;

/// The maximum number of series of a run that [`METRICS`] lacks; series that appear later are ignored.
pub const MAX_NAMED: usize = 500;

/// Weights of the moving averages, least smoothing first.
pub const SMOOTHING: [f64; 2] = [0.9, 0.99];

/// After this many samples, the bias correction of a moving average is negligible: 0.99^2000 is 2e-9.
const CORRECTED: i32 = 2000;

/// One column of numbers over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// A metric of steps, by its index in [`METRICS`].
    Step(usize),
    /// Memory of one rank, by its number.
    Memory(usize),
    /// Memory of the rank that uses most.
    MemoryHighest,
    /// Memory of the rank that uses least; empty with a single rank.
    MemoryLowest,
    /// Mean memory of the ranks.
    MemoryMean,
    /// A metric sampled on nodes, by its index in [`METRICS`].
    Nodes(usize, Statistic),
    /// A metric of each rank, except memory, by its index in [`METRICS`].
    Ranks(usize, Statistic),
    /// A series of an imported run that [`METRICS`] lacks, by its position in [`Series::names`].
    Named(usize),
}

/// A statistic over the GPUs, nodes or ranks at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are clear")]
pub enum Statistic {
    Mean,
    Lowest,
    Highest,
}

impl Track {
    const RANKS: usize = METRICS.len();
    const NODES: usize = Self::RANKS + MAX_RANK_LINES + 3;
    const COUNT: usize = Self::NODES + 3 * METRICS.len();

    /// Returns the track of a metric by its name; the track of the mean, if the metric has several values at one
    /// time.
    ///
    /// # Panics
    /// If [`METRICS`] has no such metric.
    pub fn of(name: &str) -> Self {
        Self::of_metric(find_metric(name).expect("the metric is in the table").0)
    }

    /// Returns the track of a metric by its index in [`METRICS`]; the track of the mean, if the metric has several
    /// values at one time.
    pub fn of_metric(index: usize) -> Self {
        match METRICS[index].source {
            MetricSource::Nodes { .. } => Self::Nodes(index, Statistic::Mean),
            MetricSource::PerRank(_) if index == memory() => Self::MemoryMean,
            MetricSource::PerRank(_) => Self::Ranks(index, Statistic::Mean),
            MetricSource::Step(..) => Self::Step(index),
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Step(metric) => metric,
            Self::Memory(rank) => Self::RANKS + rank.min(MAX_RANK_LINES - 1),
            Self::MemoryHighest => Self::RANKS + MAX_RANK_LINES,
            Self::MemoryLowest => Self::RANKS + MAX_RANK_LINES + 1,
            Self::MemoryMean => Self::RANKS + MAX_RANK_LINES + 2,
            // A metric comes either from nodes or from ranks, so that both can share indices.
            Self::Nodes(metric, statistic) | Self::Ranks(metric, statistic) => {
                Self::NODES + 3 * metric + statistic as usize
            }
            Self::Named(number) => Self::COUNT + number,
        }
    }

    /// Returns whether the samples of the track are those of the nodes, which have their own times.
    pub fn is_of_nodes(self) -> bool {
        matches!(self, Self::Nodes(..))
    }
}

/// Returns the index in [`METRICS`] of the memory of ranks, which has tracks of its own.
fn memory() -> usize {
    find_metric("mem_gib").map_or(0, |(index, _)| index)
}

/// Returns a number that no series had before.
fn new_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Samples with ascending steps.
#[derive(Debug, Clone)]
pub struct Segment {
    steps: Vec<u64>,
    /// Unix seconds, never decreasing: a clock that is set back must not break the binary search.
    times: Vec<f64>,
    /// Tokens trained on so far, never decreasing; zero if the run does not log them.
    tokens: Vec<f64>,
    attempts: Vec<u32>,
    columns: Vec<Column>,
    smoothed: Vec<[Column; SMOOTHING.len()]>,
    /// The series that [`METRICS`] lacks, each with its moving averages.
    named: Vec<(Column, [Column; SMOOTHING.len()])>,
}

/// The column of a track that has no values yet.
static EMPTY: Column = Column::empty();

impl Default for Segment {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            times: Vec::new(),
            tokens: Vec::new(),
            attempts: Vec::new(),
            columns: vec![Column::default(); Track::COUNT],
            smoothed: vec![Default::default(); METRICS.len()],
            named: Vec::new(),
        }
    }
}

impl Segment {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns a sample's step.
    pub fn step(&self, index: usize) -> u64 {
        self.steps[index]
    }

    /// Returns when a sample was taken, Unix seconds.
    pub fn time(&self, index: usize) -> f64 {
        self.times[index]
    }

    /// Returns the column of a track.
    pub fn column(&self, track: Track) -> &Column {
        match track {
            Track::Named(number) => self.named.get(number).map_or(&EMPTY, |(column, _)| column),
            _ => &self.columns[track.index()],
        }
    }

    /// Returns the moving average of a track, if it is stored; `level` is an index into [`SMOOTHING`].
    pub fn smoothed(&self, track: Track, level: usize) -> Option<&Column> {
        let levels = match track {
            Track::Named(number) => self.named.get(number).map(|(_, levels)| levels),
            _ => self.smoothed.get(track.index()),
        };
        levels.and_then(|levels| levels.get(level)).filter(|column| !column.is_empty())
    }

    /// Returns the first index whose step is at least `step`.
    pub fn at_step(&self, step: f64) -> usize {
        first_at_least(&self.steps, |step| step as f64, step)
    }

    /// Returns the first index taken at `time` or later.
    pub fn at_time(&self, time: f64) -> usize {
        first_at_least(&self.times, |time| time, time)
    }

    /// Returns the number of tokens that the run had trained on at a sample.
    pub fn tokens(&self, index: usize) -> f64 {
        self.tokens[index]
    }

    /// Returns the first index at which the run had trained on at least `tokens`.
    pub fn at_tokens(&self, tokens: f64) -> usize {
        first_at_least(&self.tokens, |tokens| tokens, tokens)
    }

    /// Adds a sample. `names` are the names of the series that [`METRICS`] lacks.
    fn push(&mut self, sample: &MetricSample, names: &[String]) {
        let index = self.len();
        let tokens = sample.tokens_since(self.steps.last().copied().unwrap_or(0));
        let trained = self.tokens.last().copied().unwrap_or(0.0) + tokens;
        let time = self.times.last().map_or(sample.t, |last| last.max(sample.t));
        push(&mut self.tokens, trained);
        push(&mut self.steps, sample.step);
        push(&mut self.times, time);
        push(&mut self.attempts, sample.attempt);
        for (metric, of) in METRICS.iter().enumerate() {
            match of.source {
                MetricSource::Step(value, _) => {
                    // Metrics that a run does not log are zero in its samples. Such a column stays empty if the
                    // metric has no chart.
                    let is_logged =
                        |value: &f64| of.line.is_some() || *value != 0.0 || !self.columns[metric].is_empty();
                    let reading = NewValue::if_measured(value(sample).filter(is_logged));
                    self.columns[metric].push(index, reading);
                }
                MetricSource::PerRank(values) if metric != memory() => {
                    let values = values(sample);
                    let extreme = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick);
                    let mean = values.iter().sum::<f64>() / values.len() as f64;
                    for (statistic, value) in [
                        (Statistic::Mean, Some(mean).filter(|_| !values.is_empty())),
                        (Statistic::Lowest, extreme(f64::min).filter(|_| values.len() > 1)),
                        (Statistic::Highest, extreme(f64::max)),
                    ] {
                        let track = Track::Ranks(metric, statistic);
                        self.columns[track.index()].push(index, NewValue::if_measured(value));
                    }
                }
                MetricSource::PerRank(_) | MetricSource::Nodes { .. } => {}
            }
        }
        let mut add = |track: Track, reading: NewValue| self.columns[track.index()].push(index, reading);
        let memory = &sample.mem_gib_by_rank;
        let wide = memory.len() > MAX_RANK_LINES;
        for rank in 0..MAX_RANK_LINES {
            add(Track::Memory(rank), NewValue::if_measured(memory.get(rank).copied().filter(|_| !wide)));
        }
        let extreme = |pick: fn(f64, f64) -> f64| memory.iter().copied().reduce(pick);
        add(Track::MemoryHighest, NewValue::if_measured(extreme(f64::max)));
        add(Track::MemoryLowest, NewValue::if_measured(extreme(f64::min).filter(|_| memory.len() > 1)));
        let mean = memory.iter().sum::<f64>() / memory.len() as f64;
        add(Track::MemoryMean, NewValue::if_measured(Some(mean).filter(|_| !memory.is_empty())));
        for (metric, _) in smoothed_metrics() {
            push_averages(&self.columns[metric], &mut self.smoothed[metric], index);
        }
        if self.named.len() < names.len() {
            self.named.resize_with(names.len(), Default::default);
        }
        for (name, (column, averages)) in names.iter().zip(&mut self.named) {
            let value = sample.other.get(name);
            column.push(index, value.map_or(NewValue::Missing, |value| NewValue::of(*value)));
            push_averages(column, averages, index);
        }
    }

    fn push_node_point(&mut self, moment: &NodePoint) {
        let index = self.len();
        push(&mut self.steps, 0);
        push(&mut self.tokens, 0.0);
        let time = self.times.last().map_or(moment.t, |last| last.max(moment.t));
        push(&mut self.times, time);
        push(&mut self.attempts, 0);
        for (metric, of) in METRICS.iter().enumerate() {
            let MetricSource::Nodes { value, .. } = of.source else { continue };
            let spread = value(moment);
            let several = spread.filter(|spread| spread.of_several);
            let values = [
                (Statistic::Mean, spread.map(|s| s.mean)),
                (Statistic::Lowest, several.map(|s| s.min)),
                (Statistic::Highest, several.map(|s| s.max)),
            ];
            for (statistic, value) in values {
                self.columns[Track::Nodes(metric, statistic).index()].push(index, NewValue::if_measured(value));
            }
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        Self {
            steps: self.steps.split_off(at),
            times: self.times.split_off(at),
            tokens: self.tokens.split_off(at),
            attempts: self.attempts.split_off(at),
            columns: self.columns.iter_mut().map(|column| column.split_off(at)).collect(),
            smoothed: self.smoothed.iter_mut().map(|levels| levels.each_mut().map(|c| c.split_off(at))).collect(),
            named: self
                .named
                .iter_mut()
                .map(|(column, levels)| (column.split_off(at), levels.each_mut().map(|c| c.split_off(at))))
                .collect(),
        }
    }
}

/// Returns the first index of an ascending list whose value is at least `wanted`; the length of the list if there is
/// none.
///
/// Samples are nearly evenly spaced, so the search begins at the index that linear interpolation between the first
/// and the last value gives, and doubles its distance from there. In ten million values this takes a few reads
/// instead of 23, and each chart searches once per column.
fn first_at_least<T: Copy>(values: &[T], number: impl Fn(T) -> f64, wanted: f64) -> usize {
    let at = |index: usize| number(values[index]);
    let Some(end) = values.len().checked_sub(1) else { return 0 };
    if at(end) < wanted {
        return values.len();
    }
    let (first, last) = (at(0), at(end));
    let guess = ((wanted - first) / (last - first) * end as f64).clamp(0.0, end as f64) as usize;
    let mut distance = 1;
    let (low, high) = if at(guess) < wanted {
        let mut low = guess + 1;
        while low + distance <= end && at(low + distance) < wanted {
            low += distance + 1;
            distance *= 2;
        }
        (low, (low + distance).min(end))
    } else {
        let mut high = guess;
        while high >= distance && at(high - distance) >= wanted {
            high -= distance;
            distance *= 2;
        }
        (high.saturating_sub(distance), high)
    };
    low + values[low..high].partition_point(|value| number(*value) < wanted)
}

/// Returns the metrics that have moving averages, with their indices.
fn smoothed_metrics() -> impl Iterator<Item = (usize, &'static Metric)> {
    METRICS.iter().enumerate().filter(|(_, metric)| metric.line.is_some_and(|line| line.smoothed))
}

/// Appends the moving averages of the value at `index`.
fn push_averages(raw: &Column, averages: &mut [Column; SMOOTHING.len()], index: usize) {
    for (column, weight) in averages.iter_mut().zip(SMOOTHING) {
        let average = next_average(raw, column, index, weight);
        column.push(index, average);
    }
}

/// Returns the bias-corrected moving average after the value at `index`: m' = w·m + (1-w)·x, divided by 1 - w^n
/// (Kingma and Ba 2015, section 3). A gap stays a gap and does not move the average.
fn next_average(raw: &Column, averages: &Column, index: usize, weight: f64) -> NewValue {
    let x = raw.get(index);
    if !x.is_finite() {
        return NewValue::Missing;
    }
    let mut before = index;
    while before > 0 && !averages.get(before - 1).is_finite() {
        before -= 1;
    }
    if before == 0 {
        return NewValue::Value(f64::from(x));
    }
    let last = f64::from(averages.get(before - 1));
    // The correction matters only while w^n is not negligible, so that counting gaps as samples does no harm.
    let (old, new) = match i32::try_from(before) {
        Ok(n) if n < CORRECTED => (1.0 - weight.powi(n), 1.0 - weight.powi(n + 1)),
        _ => (1.0, 1.0),
    };
    NewValue::Value((weight * old * last + (1.0 - weight) * f64::from(x)) / new)
}

/// The metrics of a run: the effective samples, and those that later attempts have superseded.
#[derive(Debug, Clone, Default)]
pub struct Series {
    live: Segment,
    superseded: Vec<Segment>,
    nodes: Segment,
    started_s: Option<f64>,
    rank_times: RankTimes,
    names: Vec<String>,
    numbers: BTreeMap<String, usize>,
    version: u64,
}

impl Series {
    /// Adds a sample. If a higher attempt repeats a step, its sample supersedes all samples from that step on. Within
    /// an attempt, a later line replaces an earlier one.
    pub fn push(&mut self, sample: &MetricSample) {
        self.version = new_version();
        self.started_s.get_or_insert(sample.t);
        if let (Some(last), Some(attempt)) = (self.live.steps.last(), self.live.attempts.last())
            && sample.step <= *last
        {
            if sample.attempt < *attempt {
                return;
            }
            let newer = sample.attempt > *attempt;
            let tail = self.live.split_off(self.live.at_step(sample.step as f64));
            if newer {
                self.superseded.push(tail);
            }
            self.rank_times.cut(sample.step);
        }
        for name in sample.other.keys() {
            if self.names.len() < MAX_NAMED && !self.numbers.contains_key(name) {
                self.numbers.insert(name.clone(), self.names.len());
                self.names.push(name.clone());
            }
        }
        self.live.push(sample, &self.names);
        self.rank_times.push(sample);
    }

    /// Returns the names of the series that [`METRICS`] lacks, in the order in which they appeared.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the track of a series that [`METRICS`] lacks, by its name.
    pub fn track_of_name(&self, name: &str) -> Option<Track> {
        self.numbers.get(name).copied().map(Track::Named)
    }

    /// Returns whether a track has a value, in the effective or the superseded samples.
    pub fn has_values(&self, track: Track) -> bool {
        let mut pieces = std::iter::once(self.of_track(track)).chain(&self.superseded);
        pieces.any(|piece| !piece.column(track).is_empty())
    }

    /// Adds a sample of the nodes; samples arrive in order of time.
    pub fn push_node_point(&mut self, moment: &NodePoint) {
        self.version = new_version();
        self.nodes.push_node_point(moment);
    }

    /// Returns a number that changes with every sample. Only equal series have the same.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the samples of the nodes. They have no steps; [`Self::x_at`] returns the step at a time.
    pub fn nodes(&self) -> &Segment {
        &self.nodes
    }

    /// Returns the samples that a track belongs to: those of the nodes, or the effective samples of the steps.
    pub fn of_track(&self, track: Track) -> &Segment {
        if track.is_of_nodes() { &self.nodes } else { &self.live }
    }

    /// Returns the mean tokens per second over the newest steps, if the run logs tokens.
    pub fn tokens_per_s(&self) -> Option<f64> {
        /// The number of samples of the mean.
        const NEWEST: usize = 10;
        let (live, step_s) = (&self.live, self.live.column(Track::of("step_s")));
        let last = live.len().checked_sub(1)?;
        let first = last.saturating_sub(NEWEST);
        let seconds = |at: usize| (live.step(at) - live.step(at - 1)) as f64 * f64::from(step_s.get(at));
        let seconds: f64 = (first + 1..=last).map(seconds).filter(|seconds| seconds.is_finite()).sum();
        let tokens = live.tokens(last) - live.tokens(first);
        (tokens > 0.0 && seconds > 0.0).then(|| tokens / seconds)
    }

    /// Returns the busy times of ranks in the newest effective steps.
    pub fn rank_times(&self) -> &RankTimes {
        &self.rank_times
    }

    /// Returns the effective samples.
    pub fn live(&self) -> &Segment {
        &self.live
    }

    /// Returns the superseded samples, oldest first.
    pub fn superseded(&self) -> &[Segment] {
        &self.superseded
    }

    /// Returns when the first sample was taken, Unix seconds.
    pub fn started_s(&self) -> Option<f64> {
        self.started_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sample;
    use proptest::prelude::*;

    fn steps(piece: &Segment) -> Vec<u64> {
        (0..piece.len()).map(|i| piece.step(i)).collect()
    }

    #[test]
    fn a_resumed_attempt_supersedes_the_steps_it_repeats() {
        let mut series = Series::default();
        for step in 1..=9 {
            series.push(&sample(1, step));
        }
        for step in 6..=7 {
            series.push(&sample(2, step));
        }
        assert_eq!(steps(series.live()), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(series.superseded().iter().map(steps).collect::<Vec<_>>(), [vec![6, 7, 8, 9]]);
    }

    #[test]
    fn a_loss_that_is_not_finite_is_a_marked_gap() {
        let mut series = Series::default();
        for step in 1..=40 {
            let mut s = sample(1, step);
            if step == 20 {
                s.loss = None;
            }
            series.push(&s);
        }
        let loss = series.live().column(Track::of("loss"));
        assert!(loss.get(19).is_nan() && loss.any_not_finite(19, 20) && !loss.any_not_finite(0, 19));
        assert!(loss.extent(0, 40).max.is_finite());
    }

    #[test]
    fn the_moving_average_of_a_constant_is_that_constant_from_the_first_sample_on() {
        let mut series = Series::default();
        for step in 1..=200 {
            let mut s = sample(1, step);
            s.loss = Some(0.5);
            series.push(&s);
        }
        for level in 0..SMOOTHING.len() {
            let average = series.live().smoothed(Track::of("loss"), level).unwrap();
            assert!((0..200).all(|i| (average.get(i) - 0.5).abs() < 1e-5));
        }
    }

    #[test]
    fn tokens_add_up_over_steps_that_are_not_logged_and_over_a_resume() {
        let mut series = Series::default();
        let logged = |attempt, step| MetricSample { tokens_per_s: 50.0, step_s: 2.0, ..sample(attempt, step) };
        [10, 20, 30].into_iter().for_each(|step| series.push(&logged(1, step)));
        series.push(&logged(2, 25));
        let tokens = |piece: &Segment| (0..piece.len()).map(|i| piece.tokens(i)).collect::<Vec<_>>();
        assert_eq!(tokens(series.live()), [1000.0, 2000.0, 2500.0]);
        assert_eq!(tokens(&series.superseded()[0]), [3000.0]);
        assert_eq!(series.range(Axis::Tokens), Some((1000.0, 3000.0)));
        assert_eq!(series.nearest(Axis::Tokens, 1900.0), Some(1));
    }

    #[test]
    fn samples_of_nodes_stay_in_order_when_their_clock_is_set_back() {
        let mut series = Series::default();
        series.push(&MetricSample { t: 100.0, ..sample(1, 1) });
        for t in [100.0, 110.0, 50.0, 60.0, 120.0] {
            series.push_node_point(&NodePoint { t, ..NodePoint::default() });
        }
        let times: Vec<f64> = (0..series.nodes().len()).map(|at| series.nodes().time(at)).collect();
        assert_eq!(times, [100.0, 110.0, 110.0, 110.0, 120.0]);
        assert_eq!(series.index_at(Axis::Time, series.nodes(), 15.0), 4);
        assert_eq!(series.range(Axis::Time), Some((0.0, 20.0)));
    }

    #[test]
    fn a_track_without_values_takes_no_space() {
        let mut series = Series::default();
        series.push(&sample(1, 1));
        assert!(series.live().column(Track::of("lr_ttt")).is_empty());
        assert!(series.live().column(Track::Memory(2)).is_empty());
    }

    proptest! {
        #[test]
        fn a_search_finds_what_a_binary_search_finds(
            mut values in proptest::collection::vec(prop_oneof![0u64..20, 0u64..1_000_000], 0..80),
            wanted in prop_oneof![-2.0..25.0, -10.0..1_000_010.0, Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY)],
        ) {
            values.sort_unstable();
            let expected = values.partition_point(|value| (*value as f64) < wanted);
            prop_assert_eq!(first_at_least(&values, |value| value as f64, wanted), expected);
            for &value in &values {
                let expected = values.partition_point(|other| *other < value);
                prop_assert_eq!(first_at_least(&values, |value| value as f64, value as f64), expected);
            }
        }

        #[test]
        fn the_pyramid_agrees_with_looking_at_every_value(
            values in prop::collection::vec(prop_oneof![9 => -1e3f32..1e3, 1 => Just(f32::NAN)], 0..2000),
            cut in 0usize..2000, low in 0usize..2000, len in 0usize..2000,
        ) {
            let mut column = Column::default();
            for (i, v) in values.iter().enumerate() {
                column.push(i, NewValue::of(Some(f64::from(*v))));
            }
            let tail = column.split_off(cut);
            let cut = cut.min(values.len());
            for (column, values) in [(column, &values[..cut]), (tail, &values[cut..])] {
                let slow = values.iter().skip(low).take(len).fold(Extent::EMPTY, |e, v| e.with(*v));
                prop_assert_eq!(column.extent(low, low + len), slow);
                let gap = values.iter().skip(low).take(len).any(|v| v.is_nan());
                prop_assert_eq!(column.any_not_finite(low, low + len), gap);
                let last = values.iter().take(len).rposition(|v| !v.is_nan());
                prop_assert_eq!(column.last_finite(len), last);
            }
        }
    }
}
