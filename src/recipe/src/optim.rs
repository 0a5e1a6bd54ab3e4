//! The `[optimizer]` section: the optimizer, its learning rates and gradient clipping.

use serde::{Deserialize, Serialize};

use crate::resume::STATE;
use crate::schema::{BOOL, FRACTION, Kind, MANY, NOT_NEGATIVE, POSITIVE, Spec, TRAIN, int, word};
use crate::{Anneal, ClipRule, LrSchedule, ParamInit, ParamSpec, Pattern, ResumeEffect, Warmup};

section! {
    /// The optimizer, its learning rates and gradient clipping.
    pub struct Optimizer("optimizer", TRAIN, ResumeEffect::Training) with Default {
        /// optimizer, with the size of its state per trained parameter: adamw (8 bytes), adamw8bit (2.03 bytes), adafactor (rows and
        /// columns of matrices alone) or prodigy (16 bytes; finds the learning rate: set lr = 1)
        pub kind: OptimizerKind = OptimizerKind::Adamw => word::<OptimizerKind>().on_resume(STATE);
        /// peak learning rate of all parameters outside TTT layers
        pub lr: f64 = 1e-4 => POSITIVE;
        /// peak learning rate of TTT layers and their gates
        pub lr_ttt: f64 = 1e-4 => POSITIVE;
        /// learning rate at the last step, for both schedules
        pub lr_end: f64 = 0.0 => NOT_NEGATIVE;
        /// schedule of lr after the warm-up: constant, linear, cosine, cosine_with_restarts, polynomial, wsd (constant, then a fall in
        /// the last cooldown_steps), one_cycle (PyTorch's OneCycleLR) or bump (Lambda's: a fall to lr_end in cooldown_steps, then
        /// constant)
        pub schedule: LrSchedule = LrSchedule::Linear => word::<LrSchedule>();
        /// schedule of lr_ttt, as optimizer.schedule
        pub schedule_ttt: LrSchedule = LrSchedule::Linear => word::<LrSchedule>();
        /// steps over which warm-up and schedules run; the rates then stay at their end; 0: up to train.steps
        pub schedule_steps: u64 = 0 => int(0, MANY);
        /// step after which warm-up and schedules begin; vidtui resume --schedule restart sets it; 0: with the first step
        pub schedule_start: u64 = 0 => int(0, MANY);
        /// steps of linear warm-up to the peak learning rates; 0: none
        pub warmup_steps: u64 = 0 => int(0, MANY);
        /// share of the peak in step k, from 0, of a warm-up of W steps; ttt_video: (k + 1) / W; diffusers: k / W, so the first step has
        /// rate 0; open_sora: (k + 1) / (W + 1)
        pub warmup: Warmup = Warmup::TttVideo => word::<Warmup>();
        /// learning rate that the warm-up begins from
        pub warmup_lr: f64 = 0.0 => NOT_NEGATIVE;
        /// waves of a cosine schedule, or half waves of cosine_with_restarts (num_cycles in diffusers); 0: 0.5 waves, or 1 half wave
        pub cycles: f64 = 0.0 => NOT_NEGATIVE;
        /// exponent of a polynomial schedule
        pub power: f64 = 1.0 => POSITIVE;
        /// steps in which the rate falls from its peak to lr_end, for wsd (the last of the run) and bump (after the warm-up); 0: none
        pub cooldown_steps: u64 = 0 => int(0, MANY);
        /// curve of one-cycle schedules and of a cooldown; sqrt: 1 - sqrt(progress)
        pub anneal: Anneal = Anneal::Cosine => word::<Anneal>();
        /// decay rate of the first moment, in AdamW and Prodigy
        pub beta1: f64 = 0.9 => FRACTION;
        /// beta1 at the peak of a one-cycle schedule, which moves from beta1 to it and back (PyTorch: 0.95 and 0.85); 0: beta1 is
        /// constant
        pub beta1_low: f64 = 0.0 => FRACTION;
        /// decay rate of the second moment, in AdamW and Prodigy
        pub beta2: f64 = 0.95 => FRACTION;
        /// epsilon added to the denominator, in AdamW and Prodigy
        pub eps: f64 = 1e-8 => POSITIVE;
        /// decoupled weight decay of all parameters except biases and norms; 0: none
        pub weight_decay: f64 = 1e-4 => NOT_NEGATIVE;
        /// applies weight decay to the gates of TTT layers, as ttt-video-dit does
        pub decay_gates: bool = false => BOOL;
        /// maximum norm of the gradient over all parameters; 0: no clipping
        pub clip_norm: f64 = 0.1 => NOT_NEGATIVE;
        /// decaying: VideoX-Fun's rule; the maximum norm falls to clip_norm in clip_start_steps; after them, for a gradient whose norm is
        /// r times the maximum, r > 5, the maximum is divided by r, at most by 10
        pub clip_rule: ClipRule = ClipRule::Constant => word::<ClipRule>();
        /// first maximum as a multiple of clip_norm, with clip_rule = "decaying"
        pub clip_start_ratio: f64 = 5.0 => POSITIVE;
        /// steps in which the maximum falls to clip_norm, with clip_rule = "decaying"; 0: none
        pub clip_start_steps: u64 = 1000 => int(0, MANY);
        /// Adafactor: exponent of the decay of the second moment, 1 - step^-decay
        pub adafactor_decay: f64 = 0.8 => POSITIVE;
        /// Adafactor: epsilon of the second moment
        pub adafactor_eps1: f64 = f64::from(f32::EPSILON) => POSITIVE;
        /// Adafactor: smallest root mean square of a tensor's weights, which multiplies its learning rate
        pub adafactor_eps2: f64 = 1e-3 => POSITIVE;
        /// Adafactor: largest root mean square of a tensor's update
        pub adafactor_clip: f64 = 1.0 => POSITIVE;
        /// Prodigy: first estimate of the distance, which multiplies the learning rate
        pub prodigy_d0: f64 = 1e-6 => POSITIVE;
        /// Prodigy: factor of the estimates
        pub prodigy_d_coef: f64 = 1.0 => POSITIVE;
        /// Prodigy: largest factor by which the estimate grows in a step; 0: no limit
        pub prodigy_growth: f64 = 0.0 => NOT_NEGATIVE;
        /// Prodigy: decay rate of the sums of the estimate; 0: the square root of beta2
        pub prodigy_beta3: f64 = 0.0 => FRACTION;
        /// Prodigy: corrects the bias of the moments, as Adam does
        pub prodigy_bias_correction: bool = false => BOOL;
        /// Prodigy: leaves the learning rate out of the denominator of the estimate, for runs with a warm-up
        pub prodigy_safeguard_warmup: bool = false => BOOL;
        /// learning rate and weight decay of parameters by name: [[optimizer.groups]] with match (a regular expression), lr and
        /// weight_decay (also of biases and norms); the first that matches applies
        pub groups: Vec<OptimizerGroup> = Vec::new() => Spec::of(Kind::Groups);
    }
}

words! {
    /// The algorithm of the optimizer.
    #[derive(Default)]
    pub enum OptimizerKind {
        /// AdamW with moments in float32.
        #[default]
        Adamw = "adamw",
        /// AdamW with moments of 8 bits.
        Adamw8bit = "adamw8bit",
        /// Adafactor.
        Adafactor = "adafactor",
        /// Prodigy.
        Prodigy = "prodigy",
    }
}

impl OptimizerKind {
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
