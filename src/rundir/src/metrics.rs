//! One line of `metrics.jsonl`: the metrics of a logged step.

use crate::lines::{LogLine, json_line};
use crate::{ItemsSample, SCHEMA};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// The metrics of a logged step. Names end in their unit.
///
/// JSON has no NaN: a loss or gradient norm that is not finite is `None` here and `null` on disk, and an event reports it.
/// Lines are short, because a long run has many: seconds are written to the microsecond, rates and GiB to a
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
    /// The steps so far that the optimizer skipped, because the loss or the gradient was not finite.
    #[serde(default, skip_serializing_if = "is_none")]
    pub skipped_steps: u64,
    /// Learning rate of all parameters outside TTT layers.
    #[serde(serialize_with = "single")]
    pub lr: f64,
    /// Learning rate of TTT layers, if the model has any.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "maybe_single")]
    pub lr_ttt: Option<f64>,
    /// Seconds of the whole step.
    #[serde(serialize_with = "millionth")]
    pub step_s: f64,
    /// Seconds of waiting for data.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub data_s: f64,
    /// Seconds of the forward pass.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub forward_s: f64,
    /// Seconds of the backward pass, with recomputation and without waiting for reductions.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub backward_s: f64,
    /// Seconds of gradient clipping and the optimizer.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub optimizer_s: f64,
    /// Seconds that saving stalled training since the logged step before. `step_s` does not contain them; copying and writing overlap with
    /// training.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub checkpoint_s: f64,
    /// Samples per second, all ranks together.
    #[serde(default, serialize_with = "thousandth", skip_serializing_if = "no_thousandth")]
    pub samples_per_s: f64,
    /// Tokens per second, all ranks together.
    #[serde(default, serialize_with = "thousandth", skip_serializing_if = "no_thousandth")]
    pub tokens_per_s: f64,
    /// Epochs done: the samples trained on, divided by the samples of one epoch; `None` if epochs are not counted.
    #[serde(default, serialize_with = "maybe_single", skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Memory in use now, GiB, by rank.
    #[serde(default, serialize_with = "thousandths", skip_serializing_if = "Vec::is_empty")]
    pub mem_gib_by_rank: Vec<f64>,
    /// Peak of memory in use so far, GiB, by rank.
    #[serde(default, serialize_with = "thousandths", skip_serializing_if = "Vec::is_empty")]
    pub mem_peak_gib_by_rank: Vec<f64>,
    /// Seconds of the step, by rank, with waiting for other ranks.
    #[serde(default, serialize_with = "thousandths", skip_serializing_if = "Vec::is_empty")]
    pub step_s_by_rank: Vec<f64>,
    /// Seconds of the step without waiting for other ranks, by rank: the highest is the straggler.
    #[serde(default, serialize_with = "thousandths", skip_serializing_if = "Vec::is_empty")]
    pub busy_s_by_rank: Vec<f64>,
    /// Seconds that rank 0 waited for gathered weights and reduced gradients.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub reduce_s: f64,
    /// Norm of all trained weights.
    #[serde(default, serialize_with = "maybe_single", skip_serializing_if = "Option::is_none")]
    pub weight_norm: Option<f64>,
    /// Model TFLOP per second and rank: one forward and one backward pass, without recomputation.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub tflops: f64,
    /// `tflops` as a share of the device's peak (model FLOPs utilization); `None` if the peak is not known.
    #[serde(default, serialize_with = "maybe_single", skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// The progress of an encode, whose steps are items. Fields about training are then zero or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemsSample>,
    /// Seconds of samples and validation since the step before. `step_s` does not contain them.
    #[serde(default, serialize_with = "millionth", skip_serializing_if = "no_millionth")]
    pub sample_s: f64,
    /// Mean validation loss after the step; `None` if it was not measured. Step 0 has the loss before the first step.
    #[serde(default, serialize_with = "maybe_single", skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The validation loss at the nine noise levels, the lowest first; empty if it was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation_loss_by_level: Vec<f64>,
    /// The progress of a run that samples. Its steps are sampling steps, and fields about training are zero or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingProgress>,
    /// Whether the sample was read from another trainer's log. Zero and `None` then mean not logged, except for the
    /// loss.
    #[serde(default, rename = "adapted", skip_serializing_if = "std::ops::Not::not")]
    pub is_from_log: bool,
    /// Whether the log of an imported run has no loss for this step. A `loss` of `None` is then not logged, rather than
    /// not finite.
    #[serde(default, rename = "no_loss", skip_serializing_if = "std::ops::Not::not")]
    pub has_no_loss: bool,
    /// The values of an imported run that [`crate::METRICS`] lacks, by their own names; `None` if not finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, Option<f64>>,
}

/// The times in a line of `metrics.jsonl`, without the rest of the line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct StepTimes {
    /// The attempt that made the step.
    pub attempt: u32,
    /// The step that was just finished.
    pub step: u64,
    /// When it was finished, Unix seconds.
    pub t: f64,
    /// Seconds of the step.
    #[serde(default)]
    pub step_s: f64,
    /// Seconds that saving stalled training since the logged step before.
    #[serde(default)]
    pub checkpoint_s: f64,
    /// Seconds of samples and validation since the step before.
    #[serde(default)]
    pub sample_s: f64,
    /// Whether the line was read from another trainer's log.
    #[serde(default, rename = "adapted")]
    pub is_from_log: bool,
}

impl LogLine for StepTimes {
    fn parse(line: &[u8]) -> Result<Self, String> {
        json_line(line)
    }
}

impl From<&MetricSample> for StepTimes {
    fn from(sample: &MetricSample) -> Self {
        let MetricSample { attempt, step, t, step_s, checkpoint_s, sample_s, is_from_log, .. } = *sample;
        Self { attempt, step, t, step_s, checkpoint_s, sample_s, is_from_log }
    }
}

/// The number of videos of a run that samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplingProgress {
    /// Videos that are complete.
    pub videos: usize,
    /// Videos of the run.
    pub videos_total: usize,
}

impl MetricSample {
    /// Returns the number of tokens in the steps after `before`, up to this one. Assumes that steps that were not
    /// logged had as many tokens as this one.
    pub fn tokens_since(&self, before: u64) -> f64 {
        let tokens = self.tokens_per_s * self.step_s * self.step.saturating_sub(before) as f64;
        if tokens.is_finite() { tokens.max(0.0) } else { 0.0 }
    }

    /// Returns whether the sample describes a training step, and not items, a sampling step or the state before step 1.
    pub fn is_training(&self) -> bool {
        self.items.is_none() && self.sampling.is_none() && self.step > 0
    }
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
            skipped_steps: 0,
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
            epoch: None,
            mem_gib_by_rank: Vec::new(),
            mem_peak_gib_by_rank: Vec::new(),
            step_s_by_rank: Vec::new(),
            busy_s_by_rank: Vec::new(),
            reduce_s: 0.0,
            weight_norm: None,
            tflops: 0.0,
            mfu: None,
            items: None,
            sample_s: 0.0,
            validation_loss: None,
            validation_loss_by_level: Vec::new(),
            sampling: None,
            is_from_log: false,
            has_no_loss: false,
            other: BTreeMap::new(),
        }
    }
}

fn single<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f32(*x as f32)
}

fn maybe_single<S: Serializer>(x: &Option<f64>, s: S) -> Result<S::Ok, S::Error> {
    x.map(|x| x as f32).serialize(s)
}

fn is_none(n: &u64) -> bool {
    *n == 0
}

/// Returns whether a value is written as 0 by [`thousandth`].
fn no_thousandth(x: &f64) -> bool {
    x.abs() < 5e-4
}

/// Returns whether a value is written as 0 by [`millionth`].
fn no_millionth(x: &f64) -> bool {
    x.abs() < 5e-7
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
        json_line(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_that_is_not_finite_is_null_on_disk_and_none_when_read() {
        let nan = MetricSample { loss: Some(f64::NAN), grad_norm: Some(f64::INFINITY), ..MetricSample::default() };
        let line = serde_json::to_string(&nan).unwrap();
        assert!(line.contains("\"loss\":null,\"grad_norm\":null"), "{line}");
        assert_eq!(MetricSample::parse(line.as_bytes()), Ok(MetricSample::default()));
    }

    #[test]
    fn a_line_of_an_early_version_with_few_fields_is_read() {
        let line = br#"{"v":1,"attempt":1,"step":120,"t":1763612345.1,"loss":0.1123,"grad_norm":0.08,"lr":1e-5,"step_s":3.41}"#;
        let sample = MetricSample::parse(line).unwrap();
        assert_eq!((sample.step, sample.lr_ttt, sample.mem_gib_by_rank.len()), (120, None, 0));
    }

    #[test]
    fn the_loss_is_written_with_single_precision() {
        let loss = f64::from(0.112_345_67_f32);
        let line = serde_json::to_string(&MetricSample { loss: Some(loss), ..MetricSample::default() }).unwrap();
        let read = MetricSample::parse(line.as_bytes()).unwrap().loss.unwrap();
        assert_eq!(read as f32, loss as f32);
    }

    proptest! {
        #[test]
        fn a_sample_that_is_read_and_written_again_gives_the_same_line(
            numbers in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL, 8),
            usual in prop::collection::vec(-1e6..2e9f64, 8),
            ranks in prop::collection::vec(0.0..500.0f64, 0..9),
            step in 0..1u64 << 60, attempt: u32, finite: bool, ttt: bool,
        ) {
            let single = |x: f64| f64::from(x.clamp(f32::MIN.into(), f32::MAX.into()) as f32);
            let sample = MetricSample {
                v: 1, attempt, step, t: usual[0],
                loss: finite.then_some(single(numbers[0])),
                grad_norm: finite.then_some(single(usual[7])),
                skipped_steps: if finite { 0 } else { step },
                lr: single(numbers[1]),
                lr_ttt: ttt.then_some(single(numbers[2])),
                step_s: usual[1], data_s: usual[2], forward_s: numbers[3].clamp(-1e200, 1e200), backward_s: usual[3],
                optimizer_s: usual[4], checkpoint_s: if ttt { usual[5] } else { 0.0 }, samples_per_s: usual[5], tokens_per_s: usual[6],
                epoch: ttt.then_some(single(numbers[6])),
                mem_gib_by_rank: ranks.clone(), mem_peak_gib_by_rank: vec![], step_s_by_rank: ranks.clone(),
                busy_s_by_rank: if finite { ranks } else { vec![] },
                reduce_s: if ttt { usual[2].abs() } else { 0.0 },
                weight_norm: finite.then_some(single(numbers[4])),
                tflops: if finite { usual[6].abs() } else { 0.0 },
                mfu: ttt.then_some(single(numbers[5])),
                items: None,
                sample_s: 0.0,
                validation_loss: ttt.then_some(single(numbers[5])),
                validation_loss_by_level: Vec::new(),
                sampling: None,
                is_from_log: !finite,
                has_no_loss: ttt,
                other: if ttt { [("a/b".into(), Some(usual[4])), ("c".into(), None)].into() } else { BTreeMap::new() },
            };
            let line = serde_json::to_string(&sample).unwrap();
            let read = MetricSample::parse(line.as_bytes()).unwrap();
            prop_assert_eq!(serde_json::to_string(&read).unwrap(), line);
            prop_assert_eq!(read.loss.map(|x| x as f32), sample.loss.map(|x| x as f32));
            prop_assert!((read.step_s - sample.step_s).abs() <= 1e-6);
        }
    }
}
