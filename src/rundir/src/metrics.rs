//! One line of `metrics.jsonl`: what a logged step measured.

use crate::SCHEMA;
use crate::lines::{LogLine, json_line};
use serde::{Deserialize, Serialize, Serializer};

/// What a logged step measured. Names end in their unit.
///
/// JSON has no NaN: a loss or gradient norm that is not finite is `None` here, `null` on disk, and an event besides.
/// Lines are kept short, because a long run has many: seconds are written to the microsecond, rates and GiB to a
/// thousandth, and loss, gradient norm and learning rates as the shortest decimal that is the same `f32`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricSample {
    /// [`SCHEMA`].
    pub v: u32,
    /// The attempt that made the step.
    pub attempt: u32,
    /// The step that was just finished; the first is 1.
    pub step: u64,
    /// When it was finished, Unix seconds.
    #[serde(serialize_with = "thousandth")]
    pub t: f64,
    /// Mean loss over the global batch; `None` if not finite.
    #[serde(serialize_with = "maybe_single")]
    pub loss: Option<f64>,
    /// Norm of the whole gradient before clipping; `None` if not finite.
    #[serde(serialize_with = "maybe_single")]
    pub grad_norm: Option<f64>,
    /// Learning rate of everything but TTT layers.
    #[serde(serialize_with = "single")]
    pub lr: f64,
    /// Learning rate of TTT layers, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "maybe_single")]
    pub lr_ttt: Option<f64>,
    /// Seconds of the whole step.
    #[serde(serialize_with = "millionth")]
    pub step_s: f64,
    /// Seconds waited for data.
    #[serde(default, serialize_with = "millionth")]
    pub data_s: f64,
    /// Seconds of the forward pass.
    #[serde(default, serialize_with = "millionth")]
    pub forward_s: f64,
    /// Seconds of the backward pass with recomputation, without the waiting for reductions.
    #[serde(default, serialize_with = "millionth")]
    pub backward_s: f64,
    /// Seconds of clipping and the optimizer.
    #[serde(default, serialize_with = "millionth")]
    pub optimizer_s: f64,
    /// Seconds that saving held training up, after the step before and in this one, whose `step_s` is without them; copying
    /// and writing go on beside the training.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "is_zero")]
    pub checkpoint_s: f64,
    /// Samples per second, all ranks together.
    #[serde(default, serialize_with = "thousandth")]
    pub samples_per_s: f64,
    /// Tokens per second, all ranks together.
    #[serde(default, serialize_with = "thousandth")]
    pub tokens_per_s: f64,
    /// Memory in use now, GiB, by rank.
    #[serde(default, serialize_with = "thousandths")]
    pub mem_gib_by_rank: Vec<f64>,
    /// Most memory in use so far, GiB, by rank.
    #[serde(default, serialize_with = "thousandths")]
    pub mem_peak_gib_by_rank: Vec<f64>,
    /// Seconds of the step, by rank, with the waiting for each other.
    #[serde(default, serialize_with = "thousandths")]
    pub step_s_by_rank: Vec<f64>,
    /// Seconds of the step that a rank did not spend waiting for others, by rank: who is waited for.
    #[serde(default, serialize_with = "thousandths", skip_serializing_if = "Vec::is_empty")]
    pub busy_s_by_rank: Vec<f64>,
    /// Seconds that the first rank waited for gathered weights and reduced gradients.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "is_zero")]
    pub reduce_s: f64,
    /// Norm of all trained weights.
    #[serde(default, serialize_with = "maybe_single", skip_serializing_if = "Option::is_none")]
    pub weight_norm: Option<f64>,
    /// Model TFLOP per second and rank: forward and backward once, whatever is computed again.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "is_zero")]
    pub tflops: f64,
    /// The share of the device's peak that this is; none where the peak is not known.
    #[serde(default, serialize_with = "maybe_single", skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Whether it was read from another trainer's log: what is zero or `None` there was not told, but for the loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adapted: bool,
}

impl Default for MetricSample {
    fn default() -> Self {
        Self {
            v: SCHEMA,
            attempt: 1,
            step: 0,
            t: 0.0,
            loss: None,
            grad_norm: None,
            lr: 0.0,
            lr_ttt: None,
            step_s: 0.0,
            data_s: 0.0,
            forward_s: 0.0,
            backward_s: 0.0,
            optimizer_s: 0.0,
            checkpoint_s: 0.0,
            samples_per_s: 0.0,
            tokens_per_s: 0.0,
            mem_gib_by_rank: Vec::new(),
            mem_peak_gib_by_rank: Vec::new(),
            step_s_by_rank: Vec::new(),
            busy_s_by_rank: Vec::new(),
            reduce_s: 0.0,
            weight_norm: None,
            tflops: 0.0,
            mfu: None,
            adapted: false,
        }
    }
}

fn single<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f32(*x as f32)
}

fn maybe_single<S: Serializer>(x: &Option<f64>, s: S) -> Result<S::Ok, S::Error> {
    x.map(|x| x as f32).serialize(s)
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

pub(crate) fn thousandth<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64((x * 1e3).round() / 1e3)
}

fn millionth<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64((x * 1e6).round() / 1e6)
}

fn thousandths<S: Serializer>(xs: &[f64], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(xs.iter().map(|x| (x * 1e3).round() / 1e3))
}

impl LogLine for MetricSample {
    fn parse(line: &[u8]) -> Result<Self, String> {
        crate::metrics_line::parse(line).map_or_else(|| json_line(line), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_null_on_disk_and_none_when_read() {
        let nan = MetricSample { loss: Some(f64::NAN), grad_norm: Some(f64::INFINITY), ..MetricSample::default() };
        let line = serde_json::to_string(&nan).unwrap();
        assert!(line.contains("\"loss\":null,\"grad_norm\":null"), "{line}");
        assert_eq!(MetricSample::parse(line.as_bytes()), Ok(MetricSample::default()));
    }

    #[test]
    fn a_line_of_the_first_version_with_few_fields_is_read() {
        let line = br#"{"v":1,"attempt":1,"step":120,"t":1763612345.1,"loss":0.1123,"grad_norm":0.08,"lr":1e-5,"step_s":3.41}"#;
        let sample = MetricSample::parse(line).unwrap();
        assert_eq!((sample.step, sample.lr_ttt, sample.mem_gib_by_rank.len()), (120, None, 0));
    }

    #[test]
    fn the_loss_keeps_all_that_a_single_precision_number_holds() {
        let loss = f64::from(0.112_345_67_f32);
        let line = serde_json::to_string(&MetricSample { loss: Some(loss), ..MetricSample::default() }).unwrap();
        let read = MetricSample::parse(line.as_bytes()).unwrap().loss.unwrap();
        assert_eq!(read as f32, loss as f32);
    }
}
