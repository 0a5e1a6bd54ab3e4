//! Reads the metrics of a run and makes charts and CSV tables of them, for the console, `vidtui export` and `vidtui report`.

use crate::chart_export::{Chart, Curve, MarkGroup, Panel, Point, Scale, Tone, Weight};
use crate::command_error::CommandError;
use recipe::Task;
use rundir::{
    AlertReader, ChartInfo, Error, ErrorCode, Failure, History, METRICS, Metric, MetricSample, MetricSource, NodePoint,
    NodeSeries, Reduction, RunDir, Spread, Tail, read_events,
};
use runstate::RunSummary;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;
use ui::series::{Axis, Mark, MarkKind, Marks};
use ui::{ChartSpec, ComparisonSpec, XAxis};
use units::Unit;
use units::terminal::printable_line;

/// All metrics and node samples of a run.
pub struct Measured {
    /// The metrics of the steps.
    pub history: History,
    /// The samples of all nodes, in the order of time.
    pub node_points: Vec<NodePoint>,
}

/// Finds a metric by name.
pub fn metric(name: &str) -> Result<&'static Metric, CommandError> {
    rundir::find_metric(name).map(|(_, metric)| metric).ok_or_else(|| {
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let why = format!("the metrics are {}", names.join(", "));
        CommandError::request(Failure::new(
            ErrorCode::UnknownName,
            format!("there is no metric '{name}'"),
            why,
            "choose one of them, or leave out --metric",
        ))
    })
}

/// Reads all metrics and node samples of a run.
pub fn read(dir: &RunDir) -> Result<Measured, Failure> {
    Ok(Measured { history: read_history(dir)?, node_points: read_node_points(dir)? })
}

fn read_node_points(dir: &RunDir) -> Result<Vec<NodePoint>, Failure> {
    let mut points = NodeSeries::default();
    for node in dir.node_ids()? {
        let mut tail = dir.tail_gpu_samples(&node);
        loop {
            let path = dir.gpu_samples(&node);
            let batch = tail.poll().map_err(|source| Error::io("read", &path, source))?;
            batch.items.iter().for_each(|sample| points.push(&node, sample));
            if !batch.more {
                break;
            }
        }
    }
    Ok(points.take_rest())
}

fn read_history(dir: &RunDir) -> Result<History, Failure> {
    let mut history = History::new();
    let mut tail = Tail::<MetricSample>::new(dir.metrics());
    loop {
        let batch = tail.poll().map_err(|source| Error::io("read", &dir.metrics(), source))?;
        history.extend(batch.items);
        if !batch.more {
            return Ok(history);
        }
    }
}

/// Reads the moments of a run that charts mark: its events, and the alerts that a user must act on. A run that makes
/// samples has none, because every step would be marked.
pub fn read_marks(summary: &RunSummary, measured: &Measured) -> Result<Marks, Failure> {
    let mut marks = Marks::default();
    if summary.run.task() == Task::Sample {
        return Ok(marks);
    }
    let samples = measured.history.effective();
    let step_at = |t: f64| {
        let before = samples.partition_point(|sample| sample.t <= t).checked_sub(1);
        before.map_or(0.0, |at| samples[at].step as f64)
    };
    read_events(&summary.dir)?.iter().for_each(|event| marks.push(event, step_at));
    let mut alerts = AlertReader::new(&summary.dir);
    alerts.poll()?;
    for state in alerts.alerts().iter().filter(|state| state.alert.kind.needs_action()) {
        marks.add(MarkKind::Alert, Mark::of_alert(&state.alert, step_at));
    }
    Ok(marks)
}

/// The options for drawing charts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct View {
    /// The x axis.
    pub x: Axis,
    /// The visible part of the x axis, in the unit of the axis.
    pub window: Option<(f64, f64)>,
    /// The weight of the moving average. `None` draws the raw values only.
    pub smoothing: Option<f64>,
    /// Whether the y axis is logarithmic.
    pub log_y: bool,
}

impl From<&ChartSpec> for View {
    fn from(spec: &ChartSpec) -> Self {
        Self { x: spec.x.into(), window: spec.window, smoothing: spec.smoothing, log_y: spec.log_y }
    }
}

impl From<&ComparisonSpec> for View {
    fn from(spec: &ComparisonSpec) -> Self {
        Self { x: spec.x, window: spec.window, smoothing: spec.smoothing, log_y: spec.log_y }
    }
}

/// A column of a table, or a line of a chart.
#[derive(Debug, Clone)]
pub enum Column {
    /// A metric of [`METRICS`].
    Metric(&'static Metric),
    /// A series of an imported run, by the name in its log.
    Other(String),
}

impl Column {
    /// Finds a column by name: a series, if `has_series` returns true for the name, or else a metric.
    pub fn named(name: &str, has_series: impl Fn(&str) -> bool) -> Result<Self, CommandError> {
        // A series has the name of a metric only if the run lacks the metric.
        if has_series(name) { Ok(Self::Other(name.to_owned())) } else { metric(name).map(Self::Metric) }
    }

    /// Returns all columns of a CSV table: the metrics, and the series of an imported run that are not in [`METRICS`].
    pub fn all(measured: &Measured) -> Vec<Self> {
        let others = measured.others();
        let metrics =
            METRICS.iter().filter(|metric| !others.contains(metric.name)).map(Self::Metric).collect::<Vec<_>>();
        metrics.into_iter().chain(others.into_iter().map(Self::Other)).collect()
    }
}

impl Measured {
    /// Returns the names of the logged series that are not in [`METRICS`].
    pub fn others(&self) -> BTreeSet<String> {
        self.history.effective().iter().flat_map(|sample| sample.other.keys().cloned()).collect()
    }
}

/// Columns that share one pair of axes, each with its label in the legend.
pub struct Group {
    label: String,
    unit: Unit,
    columns: Vec<(Column, String)>,
}

impl Group {
    /// Makes a group of one column.
    pub fn of_column(column: Column) -> Self {
        let (label, unit, name) = match &column {
            Column::Metric(metric) => (metric.label, metric.unit, metric.name),
            Column::Other(name) => (name.as_str(), Unit::Plain, name.as_str()),
        };
        Self { label: label.to_owned(), unit, columns: vec![(column.clone(), name.to_owned())] }
    }

    /// Returns the title of the group.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns whether a run has logged a finite value of one of the columns.
    pub fn has_values(&self, measured: &Measured) -> bool {
        let curves = self.columns.iter().flat_map(|(column, label)| curves(column, label, measured, Axis::Time));
        curves.flat_map(|curve| curve.points).any(|(_, value)| value.is_some())
    }

    /// Makes a group of the metrics that a chart of the console shows.
    pub fn of_chart(chart: rundir::Chart, measured: &Measured) -> Self {
        let has_power = measured.node_points.iter().any(|point| point.power_w.is_some());
        let ChartInfo { title, unit, .. } = chart.info(has_power);
        let label = |metric: &Metric| metric.line.map_or(metric.label, |line| line.label);
        let columns = chart.metrics(has_power).map(|metric| (Column::Metric(metric), label(metric).to_owned()));
        Self { label: title.to_owned(), unit, columns: columns.collect() }
    }
}

/// Makes a chart with one panel per group.
pub fn chart(groups: &[Group], view: View, summary: &RunSummary, measured: &Measured, marks: &Marks) -> Chart {
    let (x_label, x_unit) = x_axis(view.x);
    Chart {
        title: title(summary),
        subtitle: subtitle(summary, &measured.history),
        x_label: x_label.into(),
        x_unit,
        panels: groups.iter().map(|group| panel(group, view, measured)).collect(),
        marks: mark_groups(view, measured, marks),
    }
}

/// Returns the positions of the marks of each kind that the run has in the window.
fn mark_groups(view: View, measured: &Measured, marks: &Marks) -> Vec<MarkGroup> {
    let samples = measured.history.effective();
    let positions = positions(samples, view.x);
    let position = |mark: &Mark| match view.x {
        Axis::Step => mark.step,
        Axis::Time => mark.t - samples.first().map_or(0.0, |sample| sample.t),
        Axis::Tokens => {
            let at = samples.partition_point(|sample| (sample.step as f64) < mark.step);
            positions.get(at).or(positions.last()).copied().unwrap_or(0.0)
        }
    };
    let is_visible = |x: &f64| view.window.is_none_or(|(from, to)| (from..=to).contains(x));
    let group = |kind: MarkKind| MarkGroup {
        letter: kind.letter(),
        label: kind.name(),
        tone: tone(kind),
        at: marks.of(kind, XAxis::Step).iter().map(position).filter(is_visible).collect(),
    };
    MarkKind::ALL.into_iter().map(group).filter(|group| !group.at.is_empty()).collect()
}

fn tone(kind: MarkKind) -> Tone {
    match kind {
        MarkKind::Checkpoint => Tone::Good,
        MarkKind::Sample => Tone::Result,
        MarkKind::Stage | MarkKind::Resume => Tone::Change,
        MarkKind::NotFinite | MarkKind::Alert => Tone::Warn,
        MarkKind::NodeLost => Tone::Bad,
    }
}

/// Returns the label and the unit of an x axis.
pub(crate) fn x_axis(x: Axis) -> (&'static str, Unit) {
    match x {
        Axis::Step => ("step", Unit::Step),
        Axis::Time => ("time since the first step", Unit::Elapsed),
        Axis::Tokens => ("tokens", Unit::Count),
    }
}

fn panel(group: &Group, view: View, measured: &Measured) -> Panel {
    let mut drawn = Vec::new();
    for (column, label) in &group.columns {
        for curve in curves(column, label, measured, view.x) {
            match view.smoothing.filter(|_| curve.weight == Weight::Full) {
                Some(weight) => {
                    let smooth = smoothed(&curve, weight);
                    let raw = Curve { weight: Weight::Raw, label: format!("{} (raw)", curve.label), ..curve };
                    drawn.extend([raw, smooth]);
                }
                None => drawn.push(curve),
            }
        }
    }
    // Cut after smoothing: the average at the left edge includes the values before it, as on the screen.
    if let Some((from, to)) = view.window {
        drawn.iter_mut().for_each(|curve| curve.points.retain(|(x, _)| (from..=to).contains(x)));
    }
    let scale = if view.log_y { Scale::Log } else { Scale::Linear };
    Panel { label: group.label.clone(), unit: group.unit, scale, curves: drawn }
}

/// Returns the steps in the window as CSV (RFC 4180) with a header line. A missing value is an empty cell. Steps that a
/// later attempt repeated are left out.
pub fn csv(measured: &Measured, columns: &[Column], window: Option<(f64, f64)>) -> String {
    let in_window =
        |sample: &&MetricSample| window.is_none_or(|(from, to)| (from..=to).contains(&(sample.step as f64)));
    let samples: Vec<&MetricSample> = measured.history.effective().iter().filter(in_window).collect();
    let points = &measured.node_points;
    let is_measured = |value: fn(&NodePoint) -> Option<Spread>| points.iter().any(|point| value(point).is_some());
    let ranks = |values: fn(&MetricSample) -> &[f64]| samples.iter().map(|s| values(s).len()).max().unwrap_or(0);
    // Only runs that count items, such as encoded clips, have these columns.
    let has_items = samples.iter().any(|sample| sample.items.is_some());
    let is_of_items = |metric: &Metric| matches!(metric.source, MetricSource::Step(_, Reduction::Sum));
    let is_shown = |column: &&Column| has_items || !matches!(column, Column::Metric(metric) if is_of_items(metric));
    let columns: Vec<&Column> = columns.iter().filter(is_shown).collect();
    let mut text = String::from("attempt,step,t");
    for column in &columns {
        let metric = match column {
            Column::Metric(metric) => metric,
            Column::Other(name) => {
                text.extend([",", &quoted(name)]);
                continue;
            }
        };
        match metric.source {
            MetricSource::Step(..) => text.extend([",", metric.name]),
            MetricSource::Nodes { column, value } if is_measured(value) => {
                text += &format!(",{column}_mean,{column}_min,{column}_max");
            }
            MetricSource::Nodes { .. } => {}
            MetricSource::PerRank(values) => {
                text.extend((0..ranks(values)).map(|r| format!(",{}_rank_{r}", metric.name)))
            }
        }
    }
    text += "\r\n";
    for sample in &samples {
        // Writing to a String cannot fail.
        let _ = write!(text, "{},{},{:.3}", sample.attempt, sample.step, sample.t);
        for column in &columns {
            let metric = match column {
                Column::Metric(metric) => metric,
                Column::Other(name) => {
                    cell(&mut text, sample.other.get(name).copied().flatten());
                    continue;
                }
            };
            match metric.source {
                MetricSource::Step(value, _) => cell(&mut text, value(sample)),
                MetricSource::Nodes { value, .. } if is_measured(value) => {
                    let spread = node_point_at(points, sample.t).and_then(value);
                    for part in [|s: Spread| s.mean, |s: Spread| s.min, |s: Spread| s.max] {
                        cell(&mut text, spread.map(part).map(|value| (value * 1e3).round() / 1e3));
                    }
                }
                MetricSource::Nodes { .. } => {}
                MetricSource::PerRank(values) => {
                    (0..ranks(values)).for_each(|rank| cell(&mut text, values(sample).get(rank).copied()));
                }
            }
        }
        text += "\r\n";
    }
    text
}

/// Quotes the name of a column if RFC 4180 requires it. The name is from a file, and tables are also printed in terminals and opened in
/// spreadsheets, which run a cell that begins like a formula: such a name begins with an apostrophe.
fn quoted(name: &str) -> Cow<'_, str> {
    let mut name = printable_line(name);
    if name.trim_start().starts_with(['=', '+', '-', '@', '\'']) {
        name = format!("'{name}").into();
    }
    match name.contains([',', '"']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")).into(),
        false => name,
    }
}

fn cell(text: &mut String, value: Option<f64>) {
    text.push(',');
    if let Some(value) = value.filter(|value| value.is_finite()) {
        let _ = write!(text, "{value}");
    }
}

/// Returns the curves of a column. A metric of steps has one curve, after one per attempt for the steps that a later attempt
/// repeated; a node metric has lowest, highest and mean; a per-rank metric has one curve per rank.
pub(crate) fn curves(column: &Column, label: &str, measured: &Measured, axis: Axis) -> Vec<Curve> {
    let history = &measured.history;
    let start_s = history.effective().first().map_or(0.0, |sample| sample.t);
    let positions = positions(history.effective(), axis);
    let position = |at: usize, value: Option<f64>| (positions[at], value.filter(|value| value.is_finite()));
    let point = |sample: &MetricSample, value: Option<f64>| {
        let x = if axis == Axis::Time { sample.t - start_s } else { sample.step as f64 };
        (x, value.filter(|value| value.is_finite()))
    };
    let effective = || history.effective().iter().enumerate();
    let metric = match column {
        Column::Metric(metric) => metric,
        Column::Other(name) => {
            let logged = effective().filter_map(|(at, sample)| Some(position(at, *sample.other.get(name)?)));
            return vec![Curve { label: label.into(), points: logged.collect(), weight: Weight::Full }];
        }
    };
    match metric.source {
        MetricSource::Step(value, _) => {
            // Steps in which the metric was not measured are left out: only a value that is not finite is a gap.
            let measured = effective().filter_map(|(at, sample)| Some(position(at, Some(value(sample)?))));
            let counted: Vec<_> = measured.collect();
            // A metric that this run never logs, such as the learning rate of TTT layers, has no curve.
            if counted.is_empty() {
                return Vec::new();
            }
            // Repeated steps have no position on the token axis, which counts only the tokens of steps that were kept.
            let mut curves = if axis == Axis::Tokens { Vec::new() } else { replaced(history, value, &point) };
            curves.push(Curve { label: label.into(), points: counted, weight: Weight::Full });
            curves
        }
        MetricSource::Nodes { value, .. } => {
            let curve = |label: &str, weight, part: fn(Spread) -> f64| {
                let x = |point: &NodePoint| match axis {
                    Axis::Time => Some(point.t - start_s),
                    Axis::Step | Axis::Tokens => position_at(history.effective(), &positions, point.t),
                };
                // A missing value is a gap in the sampling and not in the run, so no gap is marked.
                let points =
                    measured.node_points.iter().filter_map(|point| Some((x(point)?, Some(part(value(point)?)))));
                Curve { label: label.into(), points: points.collect(), weight }
            };
            let mut spreads = measured.node_points.iter().filter_map(value).peekable();
            if spreads.peek().is_none() {
                return Vec::new();
            }
            let mean = curve(label, Weight::Full, |s| s.mean);
            if !spreads.any(|spread| spread.of_several) {
                return vec![mean];
            }
            vec![curve("lowest", Weight::Raw, |s| s.min), curve("highest", Weight::Raw, |s| s.max), mean]
        }
        MetricSource::PerRank(values) => {
            let ranks = history.effective().iter().map(|sample| values(sample).len()).max().unwrap_or(0);
            let curve = |rank| {
                let points = effective().map(|(at, sample)| position(at, values(sample).get(rank).copied()));
                Curve { label: format!("rank {rank}"), points: points.collect(), weight: Weight::Full }
            };
            (0..ranks).map(curve).collect()
        }
    }
}

/// Returns the positions of samples on an x axis. On the token axis, each sample adds the tokens of all steps since the
/// previous sample, including steps that were not logged.
fn positions(samples: &[MetricSample], axis: Axis) -> Vec<f64> {
    let start_s = samples.first().map_or(0.0, |sample| sample.t);
    let (mut total, mut before) = (0.0, 0);
    let position = |sample: &MetricSample| match axis {
        Axis::Step => sample.step as f64,
        Axis::Time => sample.t - start_s,
        Axis::Tokens => {
            total += sample.tokens_since(before);
            before = sample.step;
            total
        }
    };
    samples.iter().map(position).collect()
}

/// Returns the position at a time, interpolated between two samples. `None` before the first step and after the last.
fn position_at(samples: &[MetricSample], positions: &[f64], t: f64) -> Option<f64> {
    let at = samples.partition_point(|sample| sample.t < t);
    let before = at.checked_sub(1)?;
    let (earlier, later) = (samples.get(before)?.t, samples.get(at)?.t);
    let share = if later > earlier { (t - earlier) / (later - earlier) } else { 0.0 };
    Some(positions[before] + share * (positions[at] - positions[before]))
}

/// Returns the node samples nearest to a time, at most ten seconds from it.
fn node_point_at(points: &[NodePoint], t: f64) -> Option<&NodePoint> {
    let at = points.partition_point(|point| point.t < t);
    let near = [at.checked_sub(1), Some(at)].into_iter().flatten().filter_map(|at| points.get(at));
    near.filter(|point| (point.t - t).abs() <= 10.0).min_by(|a, b| (a.t - t).abs().total_cmp(&(b.t - t).abs()))
}

/// Returns the steps that later attempts repeated, one curve per attempt.
fn replaced(
    history: &History,
    value: fn(&MetricSample) -> Option<f64>,
    point: &dyn Fn(&MetricSample, Option<f64>) -> Point,
) -> Vec<Curve> {
    let of_attempt = |samples: &[MetricSample]| {
        let mut points: Vec<_> =
            samples.iter().filter_map(|sample| Some(point(sample, Some(value(sample)?)))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let label = format!("attempt {}, repeated later", samples.first().map_or(0, |sample| sample.attempt));
        Curve { label, points, weight: Weight::Superseded }
    };
    history
        .superseded()
        .chunk_by(|a, b| a.attempt == b.attempt)
        .map(of_attempt)
        .filter(|curve| !curve.points.is_empty())
        .collect()
}

/// Returns the exponential moving average with bias correction, as TensorBoard draws it. Gaps are skipped.
pub(crate) fn smoothed(curve: &Curve, weight: f64) -> Curve {
    let (mut average, mut total) = (0.0, 0.0);
    let points = curve.points.iter().map(|&(x, value)| {
        let value = value?;
        average = weight * average + (1.0 - weight) * value;
        total = weight * total + (1.0 - weight);
        Some((x, Some(average / total)))
    });
    Curve { label: curve.label.clone(), points: points.flatten().collect(), weight: Weight::Full }
}

fn title(summary: &RunSummary) -> String {
    match &summary.run.stage {
        Some(stage) => format!("{}, stage {stage}", summary.run.name),
        None => summary.run.name.clone(),
    }
}

fn subtitle(summary: &RunSummary, history: &History) -> String {
    let ranks = summary.attempt.as_ref().map_or(0, |attempt| attempt.placement.world());
    let ranks = units::counted(ranks, "rank");
    let loss = history.effective().iter().rev().find_map(|sample| sample.loss);
    let loss = loss.map(|loss| format!(", last loss {}", units::number(loss))).unwrap_or_default();
    format!("{}: {}, {ranks}{loss}", summary.run.id, summary.progress().in_words())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(attempt: u32, step: u64, loss: Option<f64>) -> MetricSample {
        MetricSample {
            attempt,
            step,
            loss,
            t: step as f64,
            mem_gib_by_rank: vec![1.5, 1.25],
            ..MetricSample::default()
        }
    }

    fn named(name: &str) -> Column {
        Column::named(name, |name| name == "clip, score").unwrap()
    }

    fn history(samples: impl IntoIterator<Item = MetricSample>) -> Measured {
        let mut history = History::new();
        history.extend(samples);
        Measured { history, node_points: Vec::new() }
    }

    #[test]
    fn node_samples_are_joined_with_the_steps_of_the_same_time() {
        let spread = |mean| Some(Spread { mean, min: mean - 10.0, max: mean + 10.0, of_several: true });
        let point = |t: f64| NodePoint { t, power_w: spread(600.0 + t), ..NodePoint::default() };
        let points = vec![point(0.5), point(1.5), point(2.5), point(90.0)];
        let measured = Measured { node_points: points, ..history((1..=3).map(|step| sample(1, step, Some(0.5)))) };
        let power = &named("power");
        let text = csv(&measured, &[power.clone(), named("cpu")], None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "attempt,step,t,power_w_mean,power_w_min,power_w_max");
        assert_eq!(lines[3], "1,3,3.000,602.5,592.5,612.5");
        let drawn = curves(power, "mean", &measured, Axis::Step);
        assert_eq!(
            drawn[2].points,
            [(1.5, Some(601.5)), (2.5, Some(602.5))],
            "interpolated between steps, none after the last step"
        );
        let drawn = curves(power, "mean", &measured, Axis::Time);
        assert_eq!(drawn[0].points[3], (89.0, Some(680.0)), "node samples are drawn with and without steps");
    }

    #[test]
    fn a_table_has_a_column_per_rank_and_an_empty_cell_for_a_missing_loss() {
        let history = history([sample(1, 1, Some(0.5)), sample(1, 2, None)]);
        let metrics = [named("loss"), named("mem_gib")];
        let text = csv(&history, &metrics, None);
        assert_eq!(
            text,
            "attempt,step,t,loss,mem_gib_rank_0,mem_gib_rank_1\r\n1,1,1.000,0.5,1.5,1.25\r\n1,2,2.000,,1.5,1.25\r\n"
        );
    }

    #[test]
    fn a_step_without_a_validation_loss_is_no_gap_and_a_loss_that_is_not_finite_is_one() {
        let validated = |step, validation_loss| MetricSample { validation_loss, ..sample(1, step, None) };
        let history = history([validated(1, Some(0.5)), validated(2, None), validated(3, Some(0.25))]);
        let drawn = curves(&named("validation_loss"), "validation", &history, Axis::Step);
        assert_eq!(drawn[0].points, [(1.0, Some(0.5)), (3.0, Some(0.25))]);
        assert_eq!(curves(&named("loss"), "loss", &history, Axis::Step)[0].points[1], (2.0, None));
    }

    #[test]
    fn a_series_of_an_imported_run_has_a_column_and_a_curve_by_its_own_name() {
        let other = |value| [("clip, score".to_owned(), value)].into();
        let imported = |step, value| MetricSample { other: other(value), has_no_loss: true, ..sample(1, step, None) };
        let history = history([imported(1, Some(0.5)), sample(1, 2, Some(1.0)), imported(3, None)]);
        let text = csv(&history, &[named("loss"), named("clip, score")], None);
        assert_eq!(text, "attempt,step,t,loss,\"clip, score\"\r\n1,1,1.000,,0.5\r\n1,2,2.000,1,\r\n1,3,3.000,,\r\n");
        let drawn = curves(&named("clip, score"), "clip, score", &history, Axis::Step);
        assert_eq!(drawn[0].points, [(1.0, Some(0.5)), (3.0, None)]);
        assert!(Column::all(&history).iter().any(|column| matches!(column, Column::Other(_))));
        assert!(Column::named("clip", |_| false).is_err());
    }

    #[test]
    fn a_name_that_a_spreadsheet_would_run_as_a_formula_begins_with_an_apostrophe_in_a_table() {
        for name in ["=1+1", "+1", "-1", "@x", " =1", "'=1"] {
            let other = [(name.to_owned(), Some(-0.5))].into();
            let history = history([MetricSample { other, has_no_loss: true, ..sample(1, 1, None) }]);
            let text = csv(&history, &[Column::Other(name.to_owned())], None);
            let (header, values) = text.split_once("\r\n").unwrap();
            assert!(header.starts_with("attempt,step,t,'"), "{header}");
            assert_eq!(values, "1,1,1.000,-0.5\r\n", "numbers stay numbers");
        }
    }

    #[test]
    fn the_repeated_steps_of_a_resumed_run_are_a_separate_curve() {
        let first = (1..=5).map(|step| sample(1, step, Some(1.0)));
        let second = (4..=6).map(|step| sample(2, step, Some(2.0)));
        let history = history(first.chain(second));
        let curves = curves(&named("loss"), "loss", &history, Axis::Step);
        let [old, new] = &curves[..] else { panic!("{} curves", curves.len()) };
        assert_eq!((old.weight, old.points.len()), (Weight::Superseded, 2));
        assert_eq!((new.weight, new.points.len()), (Weight::Full, 6));
        assert_eq!(new.points[3], (4.0, Some(2.0)));
    }

    #[test]
    fn a_smoothed_constant_is_the_constant_from_the_first_step() {
        let points = (0..5).map(|i| (f64::from(i), Some(3.0))).collect();
        let smooth = smoothed(&Curve { label: "loss".into(), points, weight: Weight::Full }, 0.9);
        assert!(smooth.points.iter().all(|(_, value)| value.is_some_and(|value| (value - 3.0).abs() < 1e-12)));
    }

    #[test]
    fn an_unknown_metric_is_an_unknown_name() {
        assert_eq!(metric("los").err().unwrap().into_failure().code, ErrorCode::UnknownName);
    }

    #[test]
    fn a_window_cuts_the_smoothed_curve_and_does_not_restart_it() {
        let measured = history((1..=9).map(|step| sample(1, step, Some(if step < 5 { 4.0 } else { 1.0 }))));
        let smoothed = |window| {
            let view = View { window, smoothing: Some(0.5), ..View::default() };
            let panel = panel(&Group::of_column(named("loss")), view, &measured);
            let [raw, smooth] = &panel.curves[..] else { panic!("{} curves", panel.curves.len()) };
            assert_eq!((raw.weight, smooth.weight), (Weight::Raw, Weight::Full));
            smooth.points.clone()
        };
        let (all, zoomed) = (smoothed(None), smoothed(Some((5.0, 7.0))));
        assert_eq!(zoomed, all[4..7]);
        assert!(zoomed[0].1.unwrap() > 1.5, "the average includes the steps before the window");
    }

    #[test]
    fn the_marks_of_a_window_are_on_its_axis() {
        let logged = |step| MetricSample { tokens_per_s: 50.0, step_s: 2.0, ..sample(1, step, None) };
        let measured = history((1..=9).map(logged));
        let mut marks = Marks::default();
        for step in [2.0, 8.0] {
            let mark = Mark { t: step, step, attempt: 1, count: 1, about: String::new() };
            marks.add(MarkKind::Resume, mark);
        }
        let at = |x, window| {
            let groups = mark_groups(View { x, window, ..View::default() }, &measured, &marks);
            groups.into_iter().map(|group| (group.letter, group.at)).collect::<Vec<_>>()
        };
        assert_eq!(at(Axis::Step, None), [("r", vec![2.0, 8.0])]);
        assert_eq!(at(Axis::Time, None), [("r", vec![1.0, 7.0])]);
        assert_eq!(at(Axis::Tokens, None), [("r", vec![200.0, 800.0])]);
        assert_eq!(at(Axis::Step, Some((3.0, 9.0))), [("r", vec![8.0])]);
        assert!(at(Axis::Step, Some((3.0, 7.0))).is_empty());
    }

    #[test]
    fn a_table_of_a_window_has_the_steps_of_the_window() {
        let text = csv(&history((1..=9).map(|step| sample(1, step, None))), &[], Some((3.0, 4.0)));
        assert_eq!(text, "attempt,step,t\r\n1,3,3.000\r\n1,4,4.000\r\n");
    }

    #[test]
    fn tokens_add_up_over_steps_that_are_not_logged() {
        let at = |step| MetricSample { tokens_per_s: 50.0, step_s: 2.0, ..sample(1, step, Some(0.5)) };
        assert_eq!(positions(&[at(10), at(20), at(25)], Axis::Tokens), [1000.0, 2000.0, 2500.0]);
        let history = history([at(10), at(20), at(25)]);
        let drawn = curves(&named("loss"), "loss", &history, Axis::Tokens);
        assert_eq!(drawn[0].points[2], (2500.0, Some(0.5)));
    }
}
