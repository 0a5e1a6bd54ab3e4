use crate::{Init, ParamSpec};
use serde::{Deserialize, Serialize};

/// The optimizer (AdamW) and how its learning rates move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate of everything but TTT layers.
    pub lr: f64,
    /// Peak learning rate of TTT layers and their gates.
    pub lr_ttt: f64,
    /// Learning rate that both schedules end at.
    pub lr_end: f64,
    /// How `lr` moves after the warm-up.
    pub schedule: Schedule,
    /// How `lr_ttt` moves after the warm-up.
    pub schedule_ttt: Schedule,
    /// Steps over which both rates rise from zero to their peaks.
    pub warmup_steps: u64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator of the update.
    pub eps: f64,
    /// Decoupled weight decay, for parameters that are neither biases nor norms.
    pub weight_decay: f64,
    /// Whether weight decay applies to the gates of TTT layers.
    pub decay_gates: bool,
    /// Largest norm of the whole gradient; larger ones are scaled down to it. 0 leaves gradients as they are.
    pub clip_norm: f64,
}

/// How a learning rate moves from its peak to its end.
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
    /// Tells whether weight decay applies to a tensor.
    pub fn decays(&self, spec: &ParamSpec) -> bool {
        spec.decay || (self.decay_gates && spec.init == Init::Gate)
    }
}

impl Schedule {
    /// Returns the learning rate of one step.
    ///
    /// * `step`: the step about to be applied, counted from 0, so that the first step of a warm-up is not lost at rate 0
    /// * `warmup`, `total`: the steps of the warm-up, and of the whole run; past the end the rate stays at its end
    pub fn lr_at(self, step: u64, peak: f64, end: f64, warmup: u64, total: u64) -> f64 {
        if step < warmup {
            return peak * (step + 1) as f64 / warmup as f64;
        }
        // A run that is all warm-up has no slope; asking past its end gives the end.
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

    /// Warm-up 5 of 20 steps, as a training run of the reference program logged them: step, linear from 1e-3 and cosine
    /// from 3e-3, both to 1e-4.
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
    fn rates_are_those_of_the_reference() {
        for (step, linear, cosine) in LOGGED {
            let close = |ours: f64, theirs: f64| assert!((ours - theirs).abs() < 1e-15, "step {step}: {ours} {theirs}");
            close(Schedule::Linear.lr_at(step, 1e-3, 1e-4, 5, 20), linear);
            close(Schedule::Cosine.lr_at(step, 3e-3, 1e-4, 5, 20), cosine);
        }
    }

    #[test]
    fn past_the_end_the_rate_stays() {
        for step in [20, 21, 30, 35, 1_000_000] {
            assert_eq!(Schedule::Linear.lr_at(step, 1e-3, 1e-4, 5, 20), 1e-4);
            assert_eq!(Schedule::Cosine.lr_at(step, 1e-3, 1e-4, 5, 20), 1e-4);
            assert_eq!(Schedule::Constant.lr_at(step, 1e-3, 1e-4, 5, 20), 1e-3);
        }
    }

    #[test]
    fn a_run_that_is_all_warmup_rises_to_its_peak() {
        let rates: Vec<_> = (0..4).map(|step| Schedule::Cosine.lr_at(step, 1.0, 0.0, 4, 4)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn without_warmup_the_first_step_has_the_peak() {
        assert_eq!(Schedule::Linear.lr_at(0, 1e-3, 1e-4, 0, 20), 1e-3);
    }
}
