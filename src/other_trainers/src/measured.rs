//! Turns the names and units of a log into the metrics of a sample.

use crate::fields::Field;
use rundir::{MetricSample, NAMED_SERIES, NamedSeries, find_series};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The most values with names of their own that a step may have.
const MOST_OTHERS: usize = 64;
const MIB_PER_GIB: f64 = 1024.0;

/// Names in logs, and the metrics that they are, besides those of [`rundir::NAMED_SERIES`].
const NAMES: [(&str, &[&str]); 9] = [
    (
        "loss",
        &[
            "step_loss",
            "avr_loss",
            "avg_loss",
            "mean_loss",
            "total_loss",
            "lm_loss",
            "reduced_train_loss",
            "global_avg_loss",
            "train/global_avg_loss",
            "loss_metrics/global_avg_loss",
            "train_loss_step",
            "training_loss",
        ],
    ),
    (
        "grad_norm",
        &["global_grad_norm", "gradient_norm_before_clip", "grad_norm_before_clip", "gradnorm", "gnorm", "grad-norm"],
    ),
    ("weight_norm", &["params_norm", "param_norm"]),
    (
        "step_s",
        &[
            "iter_time",
            "iteration_time",
            "time_per_step",
            "time_per_iteration",
            "elapsed_time_per_iteration",
            "train_step_timing_in_s",
            "train_step_timing",
            "s/it",
            "s/iter",
            "s/step",
            "sec/step",
            "sec/iter",
        ],
    ),
    ("data_s", &["data_time", "dataloader_time", "time_metrics/data_loading"]),
    ("samples_per_s", &["samples/sec", "samples/s", "samples_per_sec", "samples_per_second"]),
    ("tokens_per_s", &["tokens/sec", "tokens/s", "tok/sec", "tok/s", "toks/s", "tokens_per_sec", "tokens_per_second"]),
    ("tflops", &["throughput_per_gpu"]),
    (
        "mem",
        &[
            "memory",
            "mem",
            "max_mem",
            "peak_mem",
            "gpu_mem",
            "max_memory",
            "peak_memory",
            "max_memory_allocated",
            "memory_allocated",
        ],
    ),
];
/// Names that mean the time of a step only if the unit of a time follows.
const TIMES: [&str; 3] = ["dt", "time", "step"];
/// Names of numbers that are no measurements.
const NOT_MEASURED: [&str; 8] = ["v_num", "rank", "local_rank", "eta", "seed", "port", "pid", "world_size"];

/// The values of a line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values {
    /// The training loss, which may be NaN.
    pub loss: Option<f64>,
    /// The other values, with [`MetricSample::step`] 0.
    pub sample: MetricSample,
    /// The names of the metrics that are set, in the order of the line.
    pub names: Vec<Cow<'static, str>>,
}

/// The meaning of values that depends on the program.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meaning {
    /// The factor of tokens per second for `tps`, which torchtitan measures for each GPU; `None`: `tps` keeps its name.
    pub tps: Option<f64>,
    /// Whether `loss` is measured on validation data.
    pub is_validation: bool,
    /// Whether a whole number may be the epochs done. Others are the number of the current epoch.
    pub has_epochs: bool,
}

impl Values {
    /// Adds a field, if it is a measurement.
    pub fn add(&mut self, field: &Field, meaning: Meaning) {
        let name = field.name.trim_end_matches(':');
        let (metric, series) = metric_of(name);
        if meaning.is_validation {
            let is_loss = metric == Some("loss") || metric == Some("validation_loss");
            if is_loss && field.value.is_finite() {
                self.set(find_series("validation_loss"), field.value);
            }
            return;
        }
        match (metric, time_s(&field.unit)) {
            _ if NOT_MEASURED.contains(&name) => {}
            (Some("loss"), _) if field.unit.is_empty() => {
                // The first name of the line counts: `loss=0.5, avr_loss=0.4`.
                if self.loss.is_none() {
                    self.loss = Some(field.value);
                    self.names.push("loss".into());
                }
            }
            (Some("mem"), _) => match gib(&field.unit) {
                Some(gib) => {
                    self.sample.mem_peak_gib_by_rank = vec![field.value * gib];
                    self.names.push("memory".into());
                }
                None => self.keep(field),
            },
            (Some(metric), time) if metric.ends_with("_s") && !metric.ends_with("per_s") => match time {
                Some(factor) => self.set(series, field.value * factor),
                None if field.unit.is_empty() || field.unit.starts_with("s/") => self.set(series, field.value),
                None => self.keep(field),
            },
            (Some("epoch"), _) if field.is_whole && !meaning.has_epochs => self.keep(field),
            (Some("mfu"), _) if field.unit == "%" => self.set(series, (field.value / 100.0).min(1.0)),
            // nanoGPT logs -100 % before it has measured.
            (Some("mfu"), _) if !(0.0..=100.0).contains(&field.value) => {}
            (Some("tflops"), _) => self.set(series, field.value),
            (Some(_), None) if field.unit.is_empty() || field.unit == "%" => self.set(series, field.value),
            (None, Some(factor)) if TIMES.contains(&name) => self.set(find_series("step_s"), field.value * factor),
            (None, _) if name == "tps" && meaning.tps.is_some() => {
                self.set(find_series("tokens_per_s"), field.value * meaning.tps.unwrap_or(1.0));
            }
            _ => self.keep(field),
        }
    }

    fn set(&mut self, series: Option<&'static NamedSeries>, value: f64) {
        let Some(series) = series.filter(|_| value.is_finite()) else { return };
        (series.set)(&mut self.sample, value);
        self.names.push(series.metric.into());
    }

    /// Keeps a value by its own name. In text, only a name that a separator follows is certainly a name.
    fn keep(&mut self, field: &Field) {
        if !field.is_separated || self.sample.other.len() >= MOST_OTHERS {
            return;
        }
        let name = if field.unit.is_empty() { field.name.clone() } else { format!("{} ({})", field.name, field.unit) };
        self.names.push(name.clone().into());
        self.sample.other.insert(name, Some(field.value).filter(|value| (*value as f32).is_finite()));
    }

    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Takes the values of a later line of the same step, which replace those of the same names.
    pub fn merge(&mut self, later: Self) {
        let Self { loss, sample: new, names } = later;
        self.loss = loss.or(self.loss);
        let old = &mut self.sample;
        old.grad_norm = new.grad_norm.or(old.grad_norm);
        old.weight_norm = new.weight_norm.or(old.weight_norm);
        old.lr_ttt = new.lr_ttt.or(old.lr_ttt);
        old.epoch = new.epoch.or(old.epoch);
        old.mfu = new.mfu.or(old.mfu);
        old.validation_loss = new.validation_loss.or(old.validation_loss);
        for (old, new) in [
            (&mut old.lr, new.lr),
            (&mut old.step_s, new.step_s),
            (&mut old.data_s, new.data_s),
            (&mut old.forward_s, new.forward_s),
            (&mut old.backward_s, new.backward_s),
            (&mut old.optimizer_s, new.optimizer_s),
            (&mut old.checkpoint_s, new.checkpoint_s),
            (&mut old.samples_per_s, new.samples_per_s),
            (&mut old.tokens_per_s, new.tokens_per_s),
            (&mut old.tflops, new.tflops),
        ] {
            *old = if new == 0.0 { *old } else { new };
        }
        if !new.mem_peak_gib_by_rank.is_empty() {
            old.mem_peak_gib_by_rank = new.mem_peak_gib_by_rank;
        }
        for (name, value) in new.other {
            if old.other.len() < MOST_OTHERS || old.other.contains_key(&name) {
                old.other.insert(name, value);
            }
        }
        for name in names {
            if self.names.len() < 2 * MOST_OTHERS && !self.names.contains(&name) {
                self.names.push(name);
            }
        }
    }
}

/// The metric of a name, and its field.
type Known = (Option<&'static str>, Option<&'static NamedSeries>);

/// Every name that is known. A log has many lines with many names.
static KNOWN: LazyLock<HashMap<&'static str, Known>> = LazyLock::new(|| {
    let of_series = NAMED_SERIES.iter().flat_map(|series| {
        let names = std::iter::once(series.metric).chain(series.aliases.iter().copied());
        names.map(move |name| (name, (Some(series.metric), Some(series))))
    });
    let of_logs = NAMES
        .iter()
        .flat_map(|(metric, names)| names.iter().map(move |name| (*name, (Some(*metric), find_series(metric)))));
    of_series.chain(of_logs).collect()
});

/// Returns the metric of a name, and its field.
fn metric_of(name: &str) -> Known {
    let section = || ["metrics/", "train/", "training/"].iter().find_map(|section| name.strip_prefix(section));
    let found = KNOWN.get(name).or_else(|| KNOWN.get(section()?));
    found.copied().unwrap_or((None, None))
}

/// Returns whether a name is that of a metric.
pub(crate) fn is_known(name: &str) -> bool {
    metric_of(name).0.is_some()
}

/// Returns whether a name is that of the training loss.
pub(crate) fn is_loss(name: &str) -> bool {
    metric_of(name).0 == Some("loss")
}

/// Returns the seconds of a unit of time.
fn time_s(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" | "sec" | "secs" | "seconds" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    })
}

/// Returns the GiB of a unit of memory. Programs that print `GB` divide by 1024³ too.
fn gib(unit: &str) -> Option<f64> {
    Some(match unit {
        "gib" | "gb" | "g" => 1.0,
        "mib" | "mb" | "m" => 1.0 / MIB_PER_GIB,
        _ => return None,
    })
}
