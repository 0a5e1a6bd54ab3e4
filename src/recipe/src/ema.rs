//! The `[ema]` section: a moving average of the trained weights.

use serde::{Deserialize, Serialize};

/// An exponential moving average (EMA) of the trained weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ema {
    /// The largest decay: the weight of the old average in an update. 0 turns the average off.
    pub decay: f64,
    /// How the decay rises to `decay`.
    pub warmup: EmaWarmup,
    /// The divisor of the number of updates with [`EmaWarmup::Power`].
    pub inv_gamma: f64,
    /// The exponent with [`EmaWarmup::Power`].
    pub power: f64,
    /// The smallest decay after the first averaged update.
    pub min_decay: f64,
    /// The number of updates at the beginning in which the average is a copy of the weights.
    pub after_step: u64,
    /// The device that holds the average.
    pub device: EmaDevice,
}

/// How the decay of an average rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmaWarmup {
    /// The decay is constant.
    None,
    /// `(1 + n) / (10 + n)`, diffusers' default.
    Ratio,
    /// `1 - (1 + n / inv_gamma) ^ -power`, diffusers' `use_ema_warmup`.
    Power,
}

/// The device that holds an average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmaDevice {
    /// The memory of the weights.
    Weights,
    /// The memory of the node.
    Cpu,
}

/// Whether a reader of a checkpoint uses the averaged weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseEma {
    /// Use the average if the checkpoint has one.
    Auto,
    /// Always use the average; a checkpoint without an average is an error.
    On,
    /// Never use the average.
    Off,
}

impl Default for Ema {
    /// Returns the values of a recipe that sets none of the keys.
    fn default() -> Self {
        Ema {
            decay: 0.0,
            warmup: EmaWarmup::Ratio,
            inv_gamma: 1.0,
            power: 2.0 / 3.0,
            min_decay: 0.0,
            after_step: 0,
            device: EmaDevice::Weights,
        }
    }
}

impl Ema {
    /// Returns whether there is an average.
    pub fn is_used(&self) -> bool {
        self.decay > 0.0
    }

    /// Returns the decay of an update, counted from 1. With a decay of 0, the average becomes a copy of the weights.
    ///
    /// Source: diffusers 0.42.1 `EMAModel.get_decay`.
    pub fn decay_at(&self, update: u64) -> f64 {
        if self.warmup == EmaWarmup::None {
            return if update > self.after_step { self.decay } else { 0.0 };
        }
        let n = update.saturating_sub(self.after_step + 1) as f64;
        if n == 0.0 {
            return 0.0;
        }
        let rising = match self.warmup {
            EmaWarmup::Power => 1.0 - (1.0 + n / self.inv_gamma).powf(-self.power),
            EmaWarmup::None | EmaWarmup::Ratio => (1.0 + n) / (10.0 + n),
        };
        // Not `clamp`, which panics if `min_decay` is above `decay`; a rule between keys rejects such recipes.
        rising.min(self.decay).max(self.min_decay)
    }
}
