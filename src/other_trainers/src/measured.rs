//! Turns the names and units of a log into the metrics of a sample.

use crate::fields::Field;
use rundir::{MetricSample, NAMED_SERIES};
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
            "mem_gib",
            "mem_gb",
            "mem_mib",
            "mem_mb",
            "memory_gib",
            "memory_gb",
            "memory_mib",
            "memory_mb",
            "mem_peak_gib",
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

/// The values of a line, or of several lines of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values {
    /// The training loss, which may be NaN.
    pub loss: Option<f64>,
    /// The other values, in the order of the lines. Each name is there once.
    list: Vec<(Name, f64)>,
}

/// The name of a value.
#[derive(Debug, Clone, PartialEq)]
enum Name {
    /// One of [`NAMED_SERIES`], by its place there.
    Known(usize),
    /// The peak of memory in use, GiB.
    Memory,
    /// The name in the log.
    Other(String),
}

impl Name {
    /// Returns the name for users.
    fn as_str(&self) -> &str {
        match self {
            Self::Known(at) => NAMED_SERIES[*at].metric,
            Self::Memory => "memory",
            Self::Other(name) => name,
        }
    }
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
            if is_loss {
                self.set_metric("validation_loss", field.value);
            }
            return;
        }
        match (metric, time_s(&field.unit)) {
            _ if NOT_MEASURED.contains(&name) => {}
            // The first name of the line counts: `loss=0.5, avr_loss=0.4`.
            (Some("loss"), _) if field.unit.is_empty() => self.loss = self.loss.or(Some(field.value)),
            (Some("mem"), _) => match gib(unit_of_memory(field)) {
                Some(gib) => self.set(Name::Memory, field.value * gib),
                None => self.keep(field),
            },
            (Some(metric), time) if metric.ends_with("_s") && !metric.ends_with("per_s") => match time {
                Some(factor) => self.set_known(series, field.value * factor),
                None if field.unit.is_empty() || field.unit.starts_with("s/") => self.set_known(series, field.value),
                None => self.keep(field),
            },
            (Some("epoch"), _) if field.is_whole && !meaning.has_epochs => self.keep(field),
            (Some("mfu"), _) if field.unit == "%" => self.set_known(series, (field.value / 100.0).min(1.0)),
            // nanoGPT logs -100 % before it has measured.
            (Some("mfu"), _) if !(0.0..=100.0).contains(&field.value) => {}
            (Some("tflops"), _) => self.set_known(series, field.value),
            (Some(_), None) if field.unit.is_empty() || field.unit == "%" => self.set_known(series, field.value),
            (None, Some(factor)) if TIMES.contains(&name) => self.set_metric("step_s", field.value * factor),
            (None, _) if name == "tps" && meaning.tps.is_some() => {
                self.set_metric("tokens_per_s", field.value * meaning.tps.unwrap_or(1.0));
            }
            _ => self.keep(field),
        }
    }

    /// Returns the value of a metric of [`NAMED_SERIES`] other than the loss.
    pub fn get(&self, metric: &str) -> Option<f64> {
        self.list.iter().find(|(name, _)| name.as_str() == metric).map(|(_, value)| *value)
    }

    /// Sets a metric of [`NAMED_SERIES`] other than the loss, if the value is finite.
    pub fn set_metric(&mut self, metric: &str, value: f64) {
        self.set_known(metric_of(metric).1, value);
    }

    /// Removes a metric of [`NAMED_SERIES`] other than the loss.
    pub fn remove(&mut self, metric: &str) {
        self.list.retain(|(name, _)| name.as_str() != metric);
    }

    fn set_known(&mut self, series: Option<usize>, value: f64) {
        if let Some(at) = series.filter(|_| value.is_finite()) {
            self.set(Name::Known(at), value);
        }
    }

    /// Keeps a value by its own name. In text, only a name that a separator follows is certainly a name.
    fn keep(&mut self, field: &Field) {
        if field.is_separated {
            let unit = if field.unit.is_empty() { String::new() } else { format!(" ({})", field.unit) };
            self.set(Name::Other(format!("{}{unit}", field.name)), field.value);
        }
    }

    fn set(&mut self, name: Name, value: f64) {
        if let Some((_, old)) = self.list.iter_mut().find(|(other, _)| *other == name) {
            *old = value;
        } else if self.list.len() < MOST_OTHERS || !matches!(name, Name::Other(_)) {
            self.list.push((name, value));
        }
    }

    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.loss.is_none() && self.list.is_empty()
    }

    /// Takes the values of a later line of the same step, which replace those of the same names.
    pub fn merge(&mut self, later: Self) {
        self.loss = later.loss.or(self.loss);
        later.list.into_iter().for_each(|(name, value)| self.set(name, value));
    }

    /// Returns the names of the values, for users.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.loss.iter().map(|_| "loss").chain(self.list.iter().map(|(name, _)| name.as_str()))
    }

    /// Sets the fields of a sample for the values other than the loss.
    pub fn write_to(self, sample: &mut MetricSample) {
        for (name, value) in self.list {
            match name {
                Name::Known(at) => (NAMED_SERIES[at].set)(sample, value),
                Name::Memory => sample.mem_peak_gib_by_rank = vec![value],
                Name::Other(name) => {
                    if sample.other.len() < MOST_OTHERS || sample.other.contains_key(&name) {
                        sample.other.insert(name, Some(value).filter(|value| (*value as f32).is_finite()));
                    }
                }
            }
        }
    }
}

/// The metric of a name, and its place in [`NAMED_SERIES`].
type Known = (Option<&'static str>, Option<usize>);

/// Every name that is known. A log has many lines with many names.
static KNOWN: LazyLock<HashMap<&'static str, Known>> = LazyLock::new(|| {
    let place = |metric: &str| NAMED_SERIES.iter().position(|series| series.metric == metric);
    let of_series = NAMED_SERIES.iter().enumerate().flat_map(|(at, series)| {
        let names = std::iter::once(series.metric).chain(series.aliases.iter().copied());
        names.map(move |name| (name, (Some(series.metric), Some(at))))
    });
    let of_logs =
        NAMES.iter().flat_map(|(metric, names)| names.iter().map(move |name| (*name, (Some(*metric), place(metric)))));
    of_series.chain(of_logs).collect()
});

/// Returns the metric of a name, and its place in [`NAMED_SERIES`].
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

/// Returns the unit of a value of memory: the one after it, or the one in its name, as in `mem_gib`.
fn unit_of_memory(field: &Field) -> &str {
    let in_name = field.name.rsplit('_').next().unwrap_or_default();
    if field.unit.is_empty() { in_name } else { &field.unit }
}

/// Returns the GiB of a unit of memory. Programs that print `GB` divide by 1024³ too.
fn gib(unit: &str) -> Option<f64> {
    Some(match unit {
        "gib" | "gb" | "g" => 1.0,
        "mib" | "mb" | "m" => 1.0 / MIB_PER_GIB,
        _ => return None,
    })
}
