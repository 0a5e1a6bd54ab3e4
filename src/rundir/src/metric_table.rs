//! The metrics of a run and the charts that show them, each declared once.
//!
//! The console draws this table, and `vidtui export` writes it. A new metric is a field of [`MetricSample`], which the trainer
//! fills, and a row here.

use crate::{ItemsSample, MetricSample, NodePoint, Spread};
use units::Unit;

/// A quantity that is measured over time.
#[derive(Debug)]
pub struct Metric {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// The label of the axis.
    pub label: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// The source of the values.
    pub source: MetricSource,
    /// The chart line that shows it in the console, if any.
    pub line: Option<MetricLine>,
}

/// The source of a metric's values.
#[derive(Debug, Clone, Copy)]
pub enum MetricSource {
    /// One value per step. `None` if it was not measured, NaN if it was not finite.
    Step(fn(&MetricSample) -> Option<f64>, Reduction),
    /// One value per step and rank.
    PerRank(fn(&MetricSample) -> &[f64]),
    /// Values that each node samples at its own times, with their spread over GPUs or nodes.
    Nodes {
        /// The prefix of its columns in a table, which ends in the unit.
        column: &'static str,
        /// Returns the spread of the metric in a point.
        value: fn(&NodePoint) -> Option<Spread>,
    },
}

/// The reduction of all ranks' values to the value of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The mean over the samples of the global batch.
    BatchMean,
    /// The L2 norm over the shards of all ranks.
    Norm,
    /// All ranks have the same value.
    Same,
    /// The value of rank 0.
    RankZero,
    /// The sum over all ranks.
    Sum,
}

/// A line of a chart.
#[derive(Debug, Clone, Copy)]
pub struct MetricLine {
    /// The chart.
    pub chart: Chart,
    /// The letter that marks the line.
    pub mark: char,
    /// The label in the legend.
    pub label: &'static str,
    /// Whether the console computes moving averages of the line, which it draws if the user turns smoothing on.
    pub smoothed: bool,
}

/// The charts of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chart {
    /// Training loss, and the mean validation loss.
    Loss,
    /// Validation loss at each noise level.
    ValidationLoss,
    /// Learning rates, one line per parameter family.
    LearningRate,
    /// Norm of the gradient before clipping.
    GradNorm,
    /// Seconds per step, and the part spent waiting for data.
    StepTime,
    /// Memory of each rank.
    Memory,
    /// Norm of the trained weights.
    WeightNorm,
    /// Model FLOP utilization.
    Mfu,
    /// GPU power; CPU utilization if no node reports GPU power.
    Power,
    /// GPU utilization.
    Utilization,
    /// Items per second of each stage of an encode.
    ItemRate,
    /// Items that wait for a stage of an encode.
    Queue,
    /// Data that the stages of an encode have made.
    ItemBytes,
    /// Items of an encode that failed.
    FailedItems,
    /// GPU memory in use; node memory if there are no GPUs.
    NodeMemory,
}

/// The name, title and unit of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChartInfo {
    /// The name of the chart in file names.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The unit of its y axis.
    pub unit: Unit,
}

impl Chart {
    /// Returns the name, title and unit of a chart. `has_gpu_power` is true if a node of the run reports GPU power.
    pub fn info(self, has_gpu_power: bool) -> ChartInfo {
        let (name, title, unit) = match self {
            Self::Loss => ("loss", "Loss", Unit::Plain),
            Self::ValidationLoss => ("validation-loss", "Validation loss by noise level", Unit::Plain),
            Self::LearningRate => ("learning-rate", "Learning rate", Unit::Rate),
            Self::GradNorm => ("gradient-norm", "Gradient norm", Unit::Plain),
            Self::StepTime => ("step-time", "Step time", Unit::Seconds),
            Self::Memory => ("memory", "Memory", Unit::Gib),
            Self::WeightNorm => ("weight-norm", "Weight norm", Unit::Plain),
            Self::Mfu => ("mfu", "MFU", Unit::Share),
            Self::ItemRate => ("items", "Items per second", Unit::Plain),
            Self::Queue => ("queue", "Waiting clips", Unit::Count),
            Self::ItemBytes => ("data", "Data made", Unit::Gib),
            Self::FailedItems => ("failed", "Failed items", Unit::Count),
            Self::Power if has_gpu_power => ("power", "GPU power", Unit::Watts),
            Self::Power => ("power", "CPU", Unit::Share),
            Self::Utilization => ("utilization", "GPU utilization", Unit::Share),
            Self::NodeMemory if has_gpu_power => ("node-memory", "GPU memory", Unit::Gib),
            Self::NodeMemory => ("node-memory", "Node memory", Unit::Gib),
        };
        ChartInfo { name, title, unit }
    }

    /// Returns the metrics that a chart shows, in the order of the table.
    pub fn metrics(self, has_gpu_power: bool) -> impl Iterator<Item = &'static Metric> {
        let unit = self.info(has_gpu_power).unit;
        METRICS.iter().filter(move |metric| metric.line.is_some_and(|line| line.chart == self) && metric.unit == unit)
    }
}

/// Every metric, in the order of the columns of a table.
pub const METRICS: &[Metric] = &[
    step("loss", "loss", Unit::Plain, Reduction::BatchMean, |s| finite_or_nan(s, s.loss).filter(|_| !s.has_no_loss))
        .drawn(Chart::Loss, 'l', "loss")
        .smoothed(),
    step("grad_norm", "gradient norm", Unit::Plain, Reduction::Norm, |s| match s.is_from_log {
        true => s.grad_norm,
        false => finite_or_nan(s, s.grad_norm),
    })
    .drawn(Chart::GradNorm, 'n', "before clipping")
    .smoothed(),
    step("weight_norm", "weight norm", Unit::Plain, Reduction::Norm, |s| s.weight_norm).drawn(
        Chart::WeightNorm,
        'n',
        "weight norm",
    ),
    step("lr", "learning rate", Unit::Rate, Reduction::Same, |s| measured(s, s.lr)).drawn(
        Chart::LearningRate,
        'w',
        "weights",
    ),
    step("lr_ttt", "learning rate, TTT layers", Unit::Rate, Reduction::Same, |s| s.lr_ttt).drawn(
        Chart::LearningRate,
        't',
        "TTT layers",
    ),
    step("step_s", "step time", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.step_s))
        .drawn(Chart::StepTime, 's', "step")
        .smoothed(),
    step("data_s", "data wait", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.data_s)).drawn(
        Chart::StepTime,
        'd',
        "data wait",
    ),
    step("forward_s", "forward", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.forward_s)),
    step("backward_s", "backward", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.backward_s)),
    step("reduce_s", "waiting for other ranks", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.reduce_s)),
    step("optimizer_s", "optimizer", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.optimizer_s)),
    step("checkpoint_s", "checkpoint", Unit::Seconds, Reduction::RankZero, |s| measured(s, s.checkpoint_s)),
    step("samples_per_s", "samples per second", Unit::Plain, Reduction::Same, |s| measured(s, s.samples_per_s)),
    step("tokens_per_s", "tokens per second", Unit::Plain, Reduction::Same, |s| measured(s, s.tokens_per_s)),
    step("epoch", "epoch", Unit::Plain, Reduction::Same, |s| s.epoch),
    step("tflops", "TFLOP/s per rank", Unit::Plain, Reduction::Same, |s| measured(s, s.tflops)),
    step("mfu", "MFU", Unit::Share, Reduction::Same, |s| s.mfu).drawn(Chart::Mfu, 'u', "MFU"),
    step("validation_loss", "validation loss", Unit::Plain, Reduction::Same, |s| s.validation_loss).drawn(
        Chart::Loss,
        'v',
        "validation",
    ),
    step("validation_loss_10", "validation loss at 10 % noise level", Unit::Plain, Reduction::Same, validation::<0>)
        .drawn(Chart::ValidationLoss, '1', "10 %"),
    step("validation_loss_20", "validation loss at 20 % noise level", Unit::Plain, Reduction::Same, validation::<1>)
        .drawn(Chart::ValidationLoss, '2', "20 %"),
    step("validation_loss_30", "validation loss at 30 % noise level", Unit::Plain, Reduction::Same, validation::<2>)
        .drawn(Chart::ValidationLoss, '3', "30 %"),
    step("validation_loss_40", "validation loss at 40 % noise level", Unit::Plain, Reduction::Same, validation::<3>)
        .drawn(Chart::ValidationLoss, '4', "40 %"),
    step("validation_loss_50", "validation loss at 50 % noise level", Unit::Plain, Reduction::Same, validation::<4>)
        .drawn(Chart::ValidationLoss, '5', "50 %"),
    step("validation_loss_60", "validation loss at 60 % noise level", Unit::Plain, Reduction::Same, validation::<5>)
        .drawn(Chart::ValidationLoss, '6', "60 %"),
    step("validation_loss_70", "validation loss at 70 % noise level", Unit::Plain, Reduction::Same, validation::<6>)
        .drawn(Chart::ValidationLoss, '7', "70 %"),
    step("validation_loss_80", "validation loss at 80 % noise level", Unit::Plain, Reduction::Same, validation::<7>)
        .drawn(Chart::ValidationLoss, '8', "80 %"),
    step("validation_loss_90", "validation loss at 90 % noise level", Unit::Plain, Reduction::Same, validation::<8>)
        .drawn(Chart::ValidationLoss, '9', "90 %"),
    step("sample_s", "samples and validation", Unit::Seconds, Reduction::Same, |s| measured(s, s.sample_s)),
    step("clips_per_s", "clips per second", Unit::Plain, Reduction::Sum, |s| of_items(s, |i| i.per_s.vae))
        .drawn(Chart::ItemRate, 'v', "VAE")
        .smoothed(),
    step("texts_per_s", "captions per second", Unit::Plain, Reduction::Sum, |s| of_items(s, |i| i.per_s.text)).drawn(
        Chart::ItemRate,
        't',
        "text",
    ),
    step("probed_per_s", "probed clips per second", Unit::Plain, Reduction::Sum, |s| of_items(s, |i| i.per_s.probe))
        .drawn(Chart::ItemRate, 'p', "probe"),
    step("decoded_per_s", "decoded clips per second", Unit::Plain, Reduction::Sum, |s| of_items(s, |i| i.per_s.decode))
        .drawn(Chart::ItemRate, 'd', "decode"),
    step("waiting_for_decode", "clips that wait for decoding", Unit::Count, Reduction::Sum, |s| {
        of_items(s, |i| i.stages.decode.waiting as f64)
    })
    .drawn(Chart::Queue, 'd', "for decoding"),
    step("waiting_for_vae", "clips that wait for the VAE", Unit::Count, Reduction::Sum, |s| {
        of_items(s, |i| i.stages.vae.waiting as f64)
    })
    .drawn(Chart::Queue, 'v', "for the VAE"),
    step("failed_items", "failed items", Unit::Count, Reduction::Sum, |s| of_items(s, |i| i.counts.failed as f64))
        .drawn(Chart::FailedItems, 'f', "failed"),
    step("decoded_gib", "decoded frames", Unit::Gib, Reduction::Sum, |s| {
        of_items(s, |i| i.stages.decode.bytes as f64 / GIB)
    })
    .drawn(Chart::ItemBytes, 'd', "frames"),
    step("latents_gib", "latents", Unit::Gib, Reduction::Sum, |s| of_items(s, |i| i.stages.vae.bytes as f64 / GIB))
        .drawn(Chart::ItemBytes, 'v', "latents"),
    step("texts_gib", "texts", Unit::Gib, Reduction::Sum, |s| of_items(s, |i| i.stages.text.bytes as f64 / GIB)).drawn(
        Chart::ItemBytes,
        't',
        "texts",
    ),
    step("vae_busy_s", "VAE", Unit::Seconds, Reduction::Sum, |s| of_items(s, |i| i.stages.vae.busy_s)),
    step("vae_wait_s", "VAE waiting for decoding", Unit::Seconds, Reduction::Sum, |s| {
        of_items(s, |i| i.stages.vae.wait_s)
    }),
    per_rank("mem_gib", "memory per rank", Unit::Gib, |s| &s.mem_gib_by_rank).drawn(Chart::Memory, 'r', "rank"),
    per_rank("mem_peak_gib", "peak memory per rank", Unit::Gib, |s| &s.mem_peak_gib_by_rank),
    per_rank("rank_step_s", "step time per rank", Unit::Seconds, |s| &s.step_s_by_rank),
    per_rank("rank_busy_s", "step time per rank without waiting", Unit::Seconds, |s| &s.busy_s_by_rank),
    nodes("power", "GPU power", Unit::Watts, "power_w", |p| p.power_w).drawn(Chart::Power, 'm', "mean"),
    nodes("utilization", "GPU utilization", Unit::Share, "utilization_share", |p| p.util_pct.map(share)).drawn(
        Chart::Utilization,
        'm',
        "mean",
    ),
    nodes("memory", "GPU memory, or node memory", Unit::Gib, "memory_gib", |p| p.gpu_mem_gib.or(p.mem_gib)).drawn(
        Chart::NodeMemory,
        'm',
        "mean",
    ),
    nodes("temperature", "GPU temperature, °C", Unit::Plain, "temp_c", |p| p.temp_c),
    nodes("cpu", "CPU", Unit::Share, "cpu_share", |p| p.cpu_pct.map(share)).drawn(Chart::Power, 'm', "mean"),
    nodes("network_in", "network in, per second", Unit::Gib, "network_in_gib_per_s", |p| p.net_rx_gib_per_s),
    nodes("network_out", "network out, per second", Unit::Gib, "network_out_gib_per_s", |p| p.net_tx_gib_per_s),
    nodes("infiniband_in", "InfiniBand in, per second", Unit::Gib, "infiniband_in_gib_per_s", |p| p.ib_rx_gib_per_s),
    nodes("infiniband_out", "InfiniBand out, per second", Unit::Gib, "infiniband_out_gib_per_s", |p| p.ib_tx_gib_per_s),
];

/// Finds a metric by its name, with its index in [`METRICS`].
pub fn find_metric(name: &str) -> Option<(usize, &'static Metric)> {
    METRICS.iter().enumerate().find(|(_, metric)| metric.name == name)
}

const fn step(
    name: &'static str,
    label: &'static str,
    unit: Unit,
    reduction: Reduction,
    value: fn(&MetricSample) -> Option<f64>,
) -> Metric {
    Metric { name, label, unit, source: MetricSource::Step(value, reduction), line: None }
}

const fn per_rank(name: &'static str, label: &'static str, unit: Unit, values: fn(&MetricSample) -> &[f64]) -> Metric {
    Metric { name, label, unit, source: MetricSource::PerRank(values), line: None }
}

const fn nodes(
    name: &'static str,
    label: &'static str,
    unit: Unit,
    column: &'static str,
    value: fn(&NodePoint) -> Option<Spread>,
) -> Metric {
    Metric { name, label, unit, source: MetricSource::Nodes { column, value }, line: None }
}

impl Metric {
    const fn drawn(self, chart: Chart, mark: char, label: &'static str) -> Self {
        Self { line: Some(MetricLine { chart, mark, label, smoothed: false }), ..self }
    }

    const fn smoothed(self) -> Self {
        let Some(line) = self.line else { return self };
        Self { line: Some(MetricLine { smoothed: true, ..line }), ..self }
    }
}

/// Returns NaN for a missing value of a training step, because a value that is not finite is `null` on disk. Returns
/// `None` in runs that do not train. A value from another trainer's log counts at step 0 too.
fn finite_or_nan(sample: &MetricSample, value: Option<f64>) -> Option<f64> {
    match value {
        Some(_) if sample.is_from_log => value,
        _ => value.or(Some(f64::NAN)).filter(|_| sample.is_training()),
    }
}

/// Returns `None` for a zero that means "no value": in samples from another trainer's log, and in runs that do not
/// train.
fn measured(sample: &MetricSample, value: f64) -> Option<f64> {
    Some(value).filter(|value| (!sample.is_from_log && sample.is_training()) || *value != 0.0)
}

/// Returns the validation loss at a noise level.
fn validation<const LEVEL: usize>(sample: &MetricSample) -> Option<f64> {
    sample.validation_loss_by_level.get(LEVEL).copied()
}

/// Returns a value of an encode; `None` for other runs.
fn of_items(sample: &MetricSample, value: fn(&ItemsSample) -> f64) -> Option<f64> {
    sample.items.as_ref().map(value)
}

const GIB: f64 = (1u64 << 30) as f64;

fn share(pct: Spread) -> Spread {
    Spread { mean: pct.mean / 100.0, min: pct.min / 100.0, max: pct.max / 100.0, ..pct }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_chart_shows_a_metric() {
        let names: std::collections::BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            let Some(line) = metric.line else { continue };
            let shown = [true, false].map(|power| line.chart.metrics(power).any(|m| m.name == metric.name));
            assert!(shown.contains(&true), "{}", metric.name);
        }
        let power = |has_gpu_power| Chart::Power.metrics(has_gpu_power).map(|m| m.name).collect::<Vec<_>>();
        assert_eq!((power(true), power(false)), (vec!["power"], vec!["cpu"]));
    }

    #[test]
    fn a_loss_that_is_not_finite_is_nan_and_a_value_that_a_log_lacks_is_none() {
        let value = |name: &str, sample: &MetricSample| match find_metric(name).unwrap().1.source {
            MetricSource::Step(value, _) => value(sample),
            _ => None,
        };
        let trained = MetricSample { step: 1, ..MetricSample::default() };
        let from_log = MetricSample { is_from_log: true, ..trained.clone() };
        assert!(value("loss", &from_log).unwrap().is_nan() && value("grad_norm", &from_log).is_none());
        assert!(value("grad_norm", &trained).unwrap().is_nan());
        assert_eq!((value("lr", &from_log), value("lr", &trained)), (None, Some(0.0)));
    }
}
