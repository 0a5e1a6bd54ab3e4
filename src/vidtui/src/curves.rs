//! The curves of a run: from its metrics to charts and tables.

use crate::chart_export::{Chart, Curve, Panel, Point, Scale, Weight};
use crate::refusal::Refusal;
use rundir::{Error, Failure, History, MetricSample, NodePoint, NodeSeries, RunDir, Spread, Tail};
use runstate::RunSummary;
use std::fmt::Write;
use ui::{ChartSpec, XAxis};
use units::Unit;

/// One thing that can be drawn or tabulated, under the name it has in `metrics.jsonl`.
pub struct Metric {
    /// Its name on the command line.
    pub name: &'static str,
    /// The y axis.
    label: &'static str,
    unit: Unit,
    values: Values,
}

/// Where the values of a metric are in a sample.
enum Values {
    One(fn(&MetricSample) -> Option<f64>),
    PerRank(fn(&MetricSample) -> &[f64]),
    /// Measured by nodes, at times of their own; the name of the column says the unit.
    OfNodes {
        column: &'static str,
        value: fn(&NodePoint) -> Option<Spread>,
    },
}

/// What was measured of a run.
pub struct Measured {
    /// By its steps.
    pub history: History,
    /// By its nodes.
    pub node_points: Vec<NodePoint>,
}

/// Every metric, in the order of the columns of a table.
pub const METRICS: &[Metric] = &[
    one("loss", "loss", Unit::Plain, |s| s.loss),
    one("grad_norm", "gradient norm", Unit::Plain, |s| s.grad_norm),
    one("weight_norm", "weight norm", Unit::Plain, |s| s.weight_norm),
    one("lr", "learning rate", Unit::Rate, |s| told(s, s.lr)),
    one("lr_ttt", "learning rate, TTT layers", Unit::Rate, |s| s.lr_ttt),
    one("step_s", "step time", Unit::Seconds, |s| told(s, s.step_s)),
    one("data_s", "data wait", Unit::Seconds, |s| told(s, s.data_s)),
    one("forward_s", "forward", Unit::Seconds, |s| told(s, s.forward_s)),
    one("backward_s", "backward", Unit::Seconds, |s| told(s, s.backward_s)),
    one("reduce_s", "waiting for other ranks", Unit::Seconds, |s| told(s, s.reduce_s)),
    one("optimizer_s", "optimizer", Unit::Seconds, |s| told(s, s.optimizer_s)),
    one("checkpoint_s", "checkpoint", Unit::Seconds, |s| told(s, s.checkpoint_s)),
    one("samples_per_s", "samples per second", Unit::Plain, |s| told(s, s.samples_per_s)),
    one("tokens_per_s", "tokens per second", Unit::Plain, |s| told(s, s.tokens_per_s)),
    one("tflops", "TFLOP per second and rank", Unit::Plain, |s| told(s, s.tflops)),
    one("mfu", "MFU", Unit::Share, |s| s.mfu),
    per_rank("mem_gib", "memory", Unit::Gib, |s| &s.mem_gib_by_rank),
    per_rank("mem_peak_gib", "peak memory", Unit::Gib, |s| &s.mem_peak_gib_by_rank),
    per_rank("rank_step_s", "step time of each rank", Unit::Seconds, |s| &s.step_s_by_rank),
    per_rank("rank_busy_s", "step time of each rank without waiting", Unit::Seconds, |s| &s.busy_s_by_rank),
    of_nodes("power", "GPU power", Unit::Watts, "power_w", |m| m.power_w),
    of_nodes("memory", "GPU memory, or node memory", Unit::Gib, "memory_gib", |m| m.gpu_mem_gib.or(m.mem_gib)),
    of_nodes("cpu", "CPU", Unit::Share, "cpu_share", |m| m.cpu_pct.map(as_share)),
];

fn as_share(pct: Spread) -> Spread {
    Spread { mean: pct.mean / 100.0, min: pct.min / 100.0, max: pct.max / 100.0, ..pct }
}

const fn of_nodes(
    name: &'static str,
    label: &'static str,
    unit: Unit,
    column: &'static str,
    value: fn(&NodePoint) -> Option<Spread>,
) -> Metric {
    Metric { name, label, unit, values: Values::OfNodes { column, value } }
}

/// What another trainer does not tell is no zero.
fn told(sample: &MetricSample, value: f64) -> Option<f64> {
    Some(value).filter(|value| !sample.adapted || *value != 0.0)
}

const fn one(name: &'static str, label: &'static str, unit: Unit, value: fn(&MetricSample) -> Option<f64>) -> Metric {
    Metric { name, label, unit, values: Values::One(value) }
}

const fn per_rank(name: &'static str, label: &'static str, unit: Unit, values: fn(&MetricSample) -> &[f64]) -> Metric {
    Metric { name, label, unit, values: Values::PerRank(values) }
}

/// Finds a metric by its name.
pub fn metric(name: &str) -> Result<&'static Metric, Refusal> {
    METRICS.iter().find(|metric| metric.name == name).ok_or_else(|| {
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let why = format!("the metrics are {}", names.join(", "));
        Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("no metric '{name}'"),
            why,
            "name one of them, or leave out --metric",
        ))
    })
}

/// Reads all that was measured of a run.
pub fn read(dir: &RunDir) -> Result<Measured, Failure> {
    Ok(Measured { history: read_history(dir)?, node_points: read_node_points(dir)? })
}

fn read_node_points(dir: &RunDir) -> Result<Vec<NodePoint>, Failure> {
    let mut points = NodeSeries::default();
    for node in dir.node_ids()? {
        let mut tail = dir.tail_gpu_samples(&node);
        loop {
            let path = dir.gpu_samples(&node);
            let batch = tail.poll().map_err(|source| Error::Io { action: "read", path, source })?;
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
        let batch = tail.poll().map_err(|source| Error::Io { action: "read", path: dir.metrics(), source })?;
        history.extend(batch.items);
        if !batch.more {
            return Ok(history);
        }
    }
}

/// The chart of some metrics over all steps, one panel each.
pub fn of_metrics(summary: &RunSummary, measured: &Measured, metrics: &[&Metric]) -> Chart {
    let panels = metrics.iter().map(|metric| Panel {
        label: metric.label.into(),
        unit: metric.unit,
        scale: Scale::Linear,
        curves: curves(metric, metric.name, measured, XAxis::Step),
    });
    Chart {
        title: title(summary),
        subtitle: subtitle(summary, &measured.history),
        x_label: "step".into(),
        x_unit: Unit::Step,
        panels: panels.collect(),
    }
}

/// The chart that is on the screen, as it is on the screen.
pub fn of_screen(spec: &ChartSpec, summary: &RunSummary, measured: &Measured) -> Chart {
    let has_power = measured.node_points.iter().any(|point| point.power_w.is_some());
    let labels = spec.chart.labels(has_power);
    let mut drawn = Vec::new();
    for part in labels.metrics {
        let metric =
            METRICS.iter().find(|metric| metric.name == part.name).expect("every chart's metric is in METRICS");
        for mut curve in curves(metric, part.label, measured, spec.x) {
            if let Some((from, to)) = spec.window {
                curve.points.retain(|(x, _)| (from..=to).contains(x));
            }
            match spec.smoothing {
                Some(weight) if curve.weight == Weight::Full => {
                    let smooth = smoothed(&curve, weight);
                    drawn.extend([
                        Curve { weight: Weight::Raw, label: format!("{} (raw)", curve.label), ..curve },
                        smooth,
                    ]);
                }
                _ => drawn.push(curve),
            }
        }
    }
    let panel = Panel {
        label: labels.title.into(),
        unit: labels.unit,
        scale: if spec.log_y { Scale::Log } else { Scale::Linear },
        curves: drawn,
    };
    let (x_label, x_unit) = match spec.x {
        XAxis::Step => ("step", Unit::Step),
        XAxis::Time => ("time since the first step", Unit::Elapsed),
    };
    let (title, subtitle) = (title(summary), subtitle(summary, &measured.history));
    Chart { title, subtitle, x_label: x_label.into(), x_unit, panels: vec![panel] }
}

/// The table of all steps that count, with a title line, as RFC 4180 has it; a value that is missing is empty.
pub fn csv(measured: &Measured, metrics: &[&Metric]) -> String {
    let samples = measured.history.effective();
    let points = &measured.node_points;
    let is_measured = |value: fn(&NodePoint) -> Option<Spread>| points.iter().any(|point| value(point).is_some());
    let ranks = |values: fn(&MetricSample) -> &[f64]| samples.iter().map(|s| values(s).len()).max().unwrap_or(0);
    let mut text = String::from("attempt,step,t");
    for metric in metrics {
        match metric.values {
            Values::One(_) => text.extend([",", metric.name]),
            Values::OfNodes { column, value } if is_measured(value) => {
                text += &format!(",{column}_mean,{column}_min,{column}_max");
            }
            Values::OfNodes { .. } => {}
            Values::PerRank(values) => text.extend((0..ranks(values)).map(|r| format!(",{}_rank_{r}", metric.name))),
        }
    }
    text += "\r\n";
    for sample in samples {
        // Writing to a String cannot fail.
        let _ = write!(text, "{},{},{:.3}", sample.attempt, sample.step, sample.t);
        for metric in metrics {
            match metric.values {
                Values::One(value) => cell(&mut text, value(sample)),
                Values::OfNodes { value, .. } if is_measured(value) => {
                    let spread = node_point_at(points, sample.t).and_then(value);
                    for part in [|s: Spread| s.mean, |s: Spread| s.min, |s: Spread| s.max] {
                        cell(&mut text, spread.map(part).map(|value| (value * 1e3).round() / 1e3));
                    }
                }
                Values::OfNodes { .. } => {}
                Values::PerRank(values) => {
                    (0..ranks(values)).for_each(|rank| cell(&mut text, values(sample).get(rank).copied()));
                }
            }
        }
        text += "\r\n";
    }
    text
}

fn cell(text: &mut String, value: Option<f64>) {
    text.push(',');
    if let Some(value) = value {
        let _ = write!(text, "{value}");
    }
}

/// A metric's curves: one, or one per rank, and the parts that later attempts replaced.
fn curves(metric: &Metric, label: &str, measured: &Measured, axis: XAxis) -> Vec<Curve> {
    let history = &measured.history;
    let start_s = history.effective().first().map_or(0.0, |sample| sample.t);
    let x = |sample: &MetricSample| match axis {
        XAxis::Step => sample.step as f64,
        XAxis::Time => sample.t - start_s,
    };
    let point = |sample: &MetricSample, value: Option<f64>| (x(sample), value.filter(|value| value.is_finite()));
    match metric.values {
        Values::One(value) => {
            let counted: Vec<_> = history.effective().iter().map(|sample| point(sample, value(sample))).collect();
            // A metric that this run never logs, such as the learning rate of TTT layers, is not a curve.
            if counted.iter().all(|(_, value)| value.is_none()) && metric.name != "loss" {
                return Vec::new();
            }
            let mut curves = replaced(history, value, &point);
            curves.push(Curve { label: label.into(), points: counted, weight: Weight::Full });
            curves
        }
        Values::OfNodes { value, .. } => {
            let curve = |label: &str, weight, part: fn(Spread) -> f64| {
                let x = |point: &NodePoint| match axis {
                    XAxis::Time => Some(point.t - start_s),
                    XAxis::Step => step_at(history.effective(), point.t),
                };
                // A point without a value is a gap of the measurement and not of the run: nothing is marked.
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
        Values::PerRank(values) => {
            let ranks = history.effective().iter().map(|sample| values(sample).len()).max().unwrap_or(0);
            let curve = |rank| {
                let points = history.effective().iter().map(|s| point(s, values(s).get(rank).copied()));
                Curve { label: format!("rank {rank}"), points: points.collect(), weight: Weight::Full }
            };
            (0..ranks).map(curve).collect()
        }
    }
}

/// The step that was under way at a time; none before the first and after the last.
fn step_at(samples: &[MetricSample], t: f64) -> Option<f64> {
    let at = samples.partition_point(|sample| sample.t < t);
    let (before, after) = (samples.get(at.checked_sub(1)?)?, samples.get(at)?);
    let share = if after.t > before.t { (t - before.t) / (after.t - before.t) } else { 0.0 };
    Some(before.step as f64 + share * (after.step as f64 - before.step as f64))
}

/// What nodes did at a time, or a few seconds from it.
fn node_point_at(points: &[NodePoint], t: f64) -> Option<&NodePoint> {
    let at = points.partition_point(|point| point.t < t);
    let near = [at.checked_sub(1), Some(at)].into_iter().flatten().filter_map(|at| points.get(at));
    near.filter(|point| (point.t - t).abs() <= 10.0).min_by(|a, b| (a.t - t).abs().total_cmp(&(b.t - t).abs()))
}

/// What later attempts replaced, a curve per attempt.
fn replaced(
    history: &History,
    value: fn(&MetricSample) -> Option<f64>,
    point: &dyn Fn(&MetricSample, Option<f64>) -> Point,
) -> Vec<Curve> {
    let of_attempt = |samples: &[MetricSample]| {
        let mut points: Vec<_> = samples.iter().map(|sample| point(sample, value(sample))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let label = format!("attempt {}, done again later", samples.first().map_or(0, |sample| sample.attempt));
        Curve { label, points, weight: Weight::Superseded }
    };
    history.superseded().chunk_by(|a, b| a.attempt == b.attempt).map(of_attempt).collect()
}

/// The exponential moving average, corrected for its start, as TensorBoard draws it; gaps stay gaps.
fn smoothed(curve: &Curve, weight: f64) -> Curve {
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
    let ranks = format!("{ranks} {}", if ranks == 1 { "rank" } else { "ranks" });
    let loss = history.effective().iter().rev().find_map(|sample| sample.loss);
    let loss = loss.map(|loss| format!(", last loss {}", units::number(loss))).unwrap_or_default();
    format!("{}: step {} of {}, {ranks}{loss}", summary.run.id, summary.step, summary.steps_total)
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

    fn history(samples: impl IntoIterator<Item = MetricSample>) -> Measured {
        let mut history = History::new();
        history.extend(samples);
        Measured { history, node_points: Vec::new() }
    }

    #[test]
    fn what_nodes_measured_stands_beside_the_steps_of_the_same_time() {
        let spread = |mean| Some(Spread { mean, min: mean - 10.0, max: mean + 10.0, of_several: true });
        let point = |t: f64| NodePoint { t, power_w: spread(600.0 + t), ..NodePoint::default() };
        let points = vec![point(0.5), point(1.5), point(2.5), point(90.0)];
        let measured = Measured { node_points: points, ..history((1..=3).map(|step| sample(1, step, Some(0.5)))) };
        let power = metric("power").unwrap();
        let text = csv(&measured, &[power, metric("cpu").unwrap()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "attempt,step,t,power_w_mean,power_w_min,power_w_max");
        assert_eq!(lines[3], "1,3,3.000,602.5,592.5,612.5");
        let drawn = curves(power, "mean", &measured, XAxis::Step);
        assert_eq!(drawn[2].points, [(1.5, Some(601.5)), (2.5, Some(602.5))], "between the steps, none after the last");
        let drawn = curves(power, "mean", &measured, XAxis::Time);
        assert_eq!(drawn[0].points[3], (89.0, Some(680.0)), "the whole time, the console away or not");
    }

    #[test]
    fn a_table_has_a_column_per_rank_and_an_empty_cell_for_a_lost_loss() {
        let history = history([sample(1, 1, Some(0.5)), sample(1, 2, None)]);
        let metrics = [metric("loss").unwrap(), metric("mem_gib").unwrap()];
        let text = csv(&history, &metrics);
        assert_eq!(
            text,
            "attempt,step,t,loss,mem_gib_rank_0,mem_gib_rank_1\r\n1,1,1.000,0.5,1.5,1.25\r\n1,2,2.000,,1.5,1.25\r\n"
        );
    }

    #[test]
    fn a_resumed_run_has_its_replaced_steps_as_a_curve_of_their_own() {
        let first = (1..=5).map(|step| sample(1, step, Some(1.0)));
        let second = (4..=6).map(|step| sample(2, step, Some(2.0)));
        let history = history(first.chain(second));
        let curves = curves(metric("loss").unwrap(), "loss", &history, XAxis::Step);
        let [old, new] = &curves[..] else { panic!("{} curves", curves.len()) };
        assert_eq!((old.weight, old.points.len()), (Weight::Superseded, 2));
        assert_eq!((new.weight, new.points.len()), (Weight::Full, 6));
        assert_eq!(new.points[3], (4.0, Some(2.0)));
    }

    #[test]
    fn smoothing_a_constant_gives_the_constant_from_the_first_step() {
        let points = (0..5).map(|i| (f64::from(i), Some(3.0))).collect();
        let smooth = smoothed(&Curve { label: "loss".into(), points, weight: Weight::Full }, 0.9);
        assert!(smooth.points.iter().all(|(_, value)| value.is_some_and(|value| (value - 3.0).abs() < 1e-12)));
    }

    #[test]
    fn an_unknown_metric_is_answered_with_the_list_of_them() {
        let failure = metric("los").err().unwrap().into_failure();
        assert!(failure.why.contains("loss, grad_norm"));
    }
}
