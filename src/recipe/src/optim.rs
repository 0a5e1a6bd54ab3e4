//! The `[optimizer]` section: the optimizer, its learning rates and gradient clipping.

use crate::{Anneal, ClipRule, LrSchedule, ParamInit, ParamSpec, Pattern, Warmup};
use serde::{Deserialize, Serialize};

/// The optimizer, its learning rates and gradient clipping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The algorithm.
    pub kind: OptimizerKind,
    /// Peak learning rate of all parameters outside TTT layers.
    pub lr: f64,
    /// Peak learning rate of TTT layers and their gates.
    pub lr_ttt: f64,
    /// Learning rate at the last step, for both schedules.
    pub lr_end: f64,
    /// The schedule of `lr`.
    pub schedule: LrSchedule,
    /// The schedule of `lr_ttt`.
    pub schedule_ttt: LrSchedule,
    /// Steps over which both rates rise to their peaks.
    pub warmup_steps: u64,
    /// The rates during the warm-up.
    pub warmup: Warmup,
    /// The learning rate that the warm-up begins from.
    pub warmup_lr: f64,
    /// The number of waves of a cosine schedule, or of half waves of one with restarts; 0: half a wave, or one half wave.
    pub cycles: f64,
    /// The exponent of polynomial schedules.
    pub power: f64,
    /// Steps in which the rate falls to `lr_end`, for schedules with a cooldown ([`LrSchedule::has_cooldown`]).
    pub cooldown_steps: u64,
    /// The curve of one-cycle schedules and of a cooldown.
    pub anneal: Anneal,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the first moment at the peak of a one-cycle schedule; 0: always `beta1`.
    pub beta1_low: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the denominator of the update.
    pub eps: f64,
    /// Decoupled weight decay, for parameters that are neither biases nor norms.
    pub weight_decay: f64,
    /// Whether weight decay applies to the gates of TTT layers.
    pub decay_gates: bool,
    /// Maximum norm of the gradient over all parameters; 0: no clipping.
    pub clip_norm: f64,
    /// How the maximum norm changes over the steps.
    pub clip_rule: ClipRule,
    /// The first maximum, as a multiple of `clip_norm`, for [`ClipRule::Decaying`].
    pub clip_start_ratio: f64,
    /// Steps until the maximum has fallen to `clip_norm`, for [`ClipRule::Decaying`].
    pub clip_start_steps: u64,
    /// The exponent of Adafactor's decay of the second moment: `1 - step ^ -decay`.
    pub adafactor_decay: f64,
    /// Adafactor's ε of the second moment.
    pub adafactor_eps1: f64,
    /// Adafactor's smallest root mean square of a tensor's weights, which multiplies the rate.
    pub adafactor_eps2: f64,
    /// Adafactor's largest root mean square of an update.
    pub adafactor_clip: f64,
    /// Prodigy's first estimate of the distance between the initial and the optimal weights.
    pub prodigy_d0: f64,
    /// The factor that multiplies Prodigy's estimates.
    pub prodigy_d_coef: f64,
    /// The largest factor by which Prodigy's estimate grows in a step; 0: no limit.
    pub prodigy_growth: f64,
    /// The decay rate of the sums from which Prodigy computes its estimate; 0: the square root of `beta2`.
    pub prodigy_beta3: f64,
    /// Whether Prodigy corrects the bias of its moments.
    pub prodigy_bias_correction: bool,
    /// Whether Prodigy leaves the learning rate out of the denominator of its estimate, for runs with a warm-up.
    pub prodigy_safeguard_warmup: bool,
    /// Rates and weight decay of parameters by name. The first group that matches applies.
    pub groups: Vec<OptimizerGroup>,
}

/// The algorithm of the optimizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW with moments in float32.
    #[default]
    Adamw,
    /// AdamW with moments of 8 bits.
    Adamw8bit,
    /// Adafactor.
    Adafactor,
    /// Prodigy.
    Prodigy,
}

impl OptimizerKind {
    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            OptimizerKind::Adamw => "adamw",
            OptimizerKind::Adamw8bit => "adamw8bit",
            OptimizerKind::Adafactor => "adafactor",
            OptimizerKind::Prodigy => "prodigy",
        }
    }

    /// Returns whether large tensors have moments of 8 bits.
    pub fn quantizes(self) -> bool {
        self == OptimizerKind::Adamw8bit
    }

    /// Returns the number of moments: of numbers that the sharded state has for each parameter.
    pub(crate) fn moments(self) -> u64 {
        match self {
            OptimizerKind::Adamw | OptimizerKind::Adamw8bit => 2,
            OptimizerKind::Adafactor => 1,
            // Two moments, the decayed sum of gradients, and the first weights.
            OptimizerKind::Prodigy => 4,
        }
    }

    /// Returns whether the state covers whole shards, alignment gaps included. Otherwise it is kept per tensor.
    pub(crate) fn covers_gaps(self) -> bool {
        matches!(self, OptimizerKind::Adamw | OptimizerKind::Prodigy)
    }
}

/// The learning rate and weight decay of the parameters that match a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerGroup {
    /// The pattern that the parameter names match.
    #[serde(rename = "match")]
    pub pattern: Pattern,
    /// The peak learning rate; `None`: as without the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// The weight decay, also of biases and norms; `None`: as without the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

/// Bytes of the optimizer's state of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// The part that is sharded as the tensor is.
    pub sharded: u64,
    /// The part that every rank has in full.
    pub whole: u64,
}

impl StateBytes {
    /// Returns the size in a checkpoint.
    pub fn saved(self) -> u64 {
        self.sharded + self.whole
    }
}

impl Default for Optimizer {
    /// Returns the values of a recipe that sets none of the keys.
    fn default() -> Self {
        Optimizer {
            kind: OptimizerKind::Adamw,
            lr: 1e-4,
            lr_ttt: 1e-4,
            lr_end: 0.0,
            schedule: LrSchedule::Linear,
            schedule_ttt: LrSchedule::Linear,
            warmup_steps: 0,
            warmup: Warmup::TttVideo,
            warmup_lr: 0.0,
            cycles: 0.0,
            power: 1.0,
            cooldown_steps: 0,
            anneal: Anneal::Cosine,
            beta1: 0.9,
            beta1_low: 0.0,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 1e-4,
            decay_gates: false,
            clip_norm: 0.1,
            clip_rule: ClipRule::Constant,
            clip_start_ratio: 5.0,
            clip_start_steps: 1000,
            adafactor_decay: 0.8,
            adafactor_eps1: f64::from(f32::EPSILON),
            adafactor_eps2: 1e-3,
            adafactor_clip: 1.0,
            prodigy_d0: 1e-6,
            prodigy_d_coef: 1.0,
            prodigy_growth: 0.0,
            prodigy_beta3: 0.0,
            prodigy_bias_correction: false,
            prodigy_safeguard_warmup: false,
            groups: Vec::new(),
        }
    }
}

/// Tensors with fewer elements keep moments in float32, as in bitsandbytes and torchao.
const SMALLEST_QUANTIZED: u64 = 4096;
/// Elements in a quantization block of 8-bit moments. Each block has a float32 scale for each moment.
const BLOCK: u64 = 256;

impl Optimizer {
    /// Returns whether weight decay applies to a tensor that no group matches.
    pub fn decays(&self, spec: &ParamSpec) -> bool {
        spec.decay || (self.decay_gates && spec.init == ParamInit::Gate)
    }

    /// Returns the weight decay of a tensor.
    pub fn weight_decay_of(&self, spec: &ParamSpec) -> f64 {
        let plain = if self.decays(spec) { self.weight_decay } else { 0.0 };
        self.group_of(&spec.name).and_then(|group| group.weight_decay).unwrap_or(plain)
    }

    /// Returns the peak learning rate of a parameter, if a group sets it.
    pub fn peak_of(&self, name: &str) -> Option<f64> {
        self.group_of(name)?.lr
    }

    fn group_of(&self, name: &str) -> Option<&OptimizerGroup> {
        self.groups.iter().find(|group| group.pattern.matches(name))
    }

    /// Returns whether the moments of a tensor have 8 bits.
    pub fn quantizes(&self, spec: &ParamSpec) -> bool {
        self.kind.quantizes() && spec.len() >= SMALLEST_QUANTIZED
    }

    /// Returns the size of the optimizer's state for a tensor of which a rank of a TP group has `own` elements.
    pub fn state_bytes(&self, spec: &ParamSpec, own: u64) -> StateBytes {
        let whole = match (self.kind, spec.shape.as_slice()) {
            (OptimizerKind::Adafactor, [leading @ .., rows, columns]) => {
                let batch: usize = leading.iter().product();
                4 * (batch * (rows + columns)) as u64
            }
            _ => 0,
        };
        let moment: u64 = self.moment_bytes(spec, 0, own).into_iter().sum();
        StateBytes { sharded: self.kind.moments() * moment, whole }
    }

    /// Returns the bytes of one moment of `len` elements of a tensor, the first of which is element `start`: 8-bit codes, the scales of
    /// their blocks, and float32 numbers.
    pub(crate) fn moment_bytes(&self, spec: &ParamSpec, start: u64, len: u64) -> [u64; 3] {
        if self.quantizes(spec) {
            return [len, 4 * (start % BLOCK + len).div_ceil(BLOCK), 0];
        }
        let is_factored = self.kind == OptimizerKind::Adafactor && spec.shape.len() > 1;
        [0, 0, if is_factored { 0 } else { 4 * len }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_that_of_the_schema() {
        let path = "../../tests/fixtures/configs/valid/minimal.toml";
        assert_eq!(crate::load(path.into(), &[]).unwrap().recipe.optimizer, Optimizer::default());
    }
}
