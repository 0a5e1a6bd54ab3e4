//! The `[optimizer]` section: AdamW and its learning rate schedules.

use crate::{Init, ParamSpec};
use serde::{Deserialize, Serialize};

/// AdamW and its learning rate schedules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate of all parameters outside TTT layers.
    pub lr: f64,
    /// Peak learning rate of TTT layers and their gates.
    pub lr_ttt: f64,
    /// Learning rate at the last step, for both schedules.
    pub lr_end: f64,
    /// The schedule of `lr` after the warm-up.
    pub schedule: Schedule,
    /// The schedule of `lr_ttt` after the warm-up.
    pub schedule_ttt: Schedule,
    /// Steps over which both rates rise from zero to their peaks.
    pub warmup_steps: u64,
    /// Decay rate of the first moment.
    pub beta1: f64,
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
}

/// How a learning rate falls from its peak to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Stays at the peak.
    Constant,
    /// Falls in a straight line.
    Linear,
    /// Falls along half a cosine.
    Cosine,
}

impl Optimizer {
    /// Returns whether weight decay applies to a tensor.
    pub fn decays(&self, spec: &ParamSpec) -> bool {
        spec.decay || (self.decay_gates && spec.init == Init::Gate)
    }
}

impl Schedule {
    /// Returns the learning rate of one step.
    ///
    /// * `step`: the step about to be applied, counted from 0. The first step of a warm-up has a rate above 0.
    /// * `warmup`, `total`: the steps of the warm-up and of the whole run. After `total` the rate stays at `end`.
    pub fn lr_at(self, step: u64, peak: f64, end: f64, warmup: u64, total: u64) -> f64 {
        if step < warmup {
            return peak * (step + 1) as f64 / warmup as f64;
        }
        // A run that is only warm-up has no slope; after its last step the rate is `end`.
        let done = match total.saturating_sub(warmup) {
            0 => 1.0,
            slope => ((step - warmup) as f64 / slope as f64).min(1.0),
        };
        let peak_share = match self {
            Schedule::Constant => 1.0,
            Schedule::Linear => 1.0 - done,
            Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        };
        peak * peak_share + end * (1.0 - peak_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log of the reference program for 20 steps with a warm-up of 5: the step, a linear rate from 1e-3 to 1e-4,
    /// and a cosine rate from 3e-3 to 1e-4.
    const LOGGED: [(u64, f64, f64); 9] = [
        (0, 2e-4, 6e-4),
        (3, 8e-4, 2.4e-3),
        (4, 1e-3, 3e-3),
        (5, 1e-3, 3e-3),
        (6, 9.4e-4, 0.0029683140210640183),
        (10, 7e-4, 0.002275),
        (13, 5.2e-4, 0.001398433728261903),
        (18, 2.2e-4, 0.0002253590864182286),
        (19, 1.6e-4, 0.00013168597893598177),
    ];

    #[test]
    fn learning_rates_match_the_reference() {
        for (step, linear, cosine) in LOGGED {
            let close = |ours: f64, theirs: f64| assert!((ours - theirs).abs() < 1e-15, "step {step}: {ours} {theirs}");
            close(Schedule::Linear.lr_at(step, 1e-3, 1e-4, 5, 20), linear);
            close(Schedule::Cosine.lr_at(step, 3e-3, 1e-4, 5, 20), cosine);
        }
    }

    #[test]
    fn the_learning_rate_stays_at_its_end_after_the_last_step() {
        for step in [20, 21, 30, 35, 1_000_000] {
            assert_eq!(Schedule::Linear.lr_at(step, 1e-3, 1e-4, 5, 20), 1e-4);
            assert_eq!(Schedule::Cosine.lr_at(step, 1e-3, 1e-4, 5, 20), 1e-4);
            assert_eq!(Schedule::Constant.lr_at(step, 1e-3, 1e-4, 5, 20), 1e-3);
        }
    }

    #[test]
    fn a_run_of_only_warmup_rises_to_its_peak() {
        let rates: Vec<_> = (0..4).map(|step| Schedule::Cosine.lr_at(step, 1.0, 0.0, 4, 4)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn without_warmup_the_first_step_has_the_peak_rate() {
        assert_eq!(Schedule::Linear.lr_at(0, 1e-3, 1e-4, 0, 20), 1e-3);
    }
}
