//! The `[ema]` section: a moving average of the trained weights.

use crate::ResumeEffect;
use crate::schema::{FRACTION, MANY, POSITIVE, TRAIN, int, word};

section! {
    /// An exponential moving average (EMA) of the trained weights.
    pub struct Ema("ema", TRAIN, ResumeEffect::Training) with Default {
        /// weight of the moving average (EMA) of the trained weights in an update, for example 0.9999; 0: no average
        pub decay: f64 = 0.0 => FRACTION;
        /// rise of the decay over updates n = 0, 1, …, at most to ema.decay; none: constant; ratio: (1 + n) / (10 + n), diffusers'
        /// default; power: 1 - (1 + n / inv_gamma)^-power, its use_ema_warmup; the last two begin with a copy
        pub warmup: EmaWarmup = EmaWarmup::Ratio => word::<EmaWarmup>();
        /// divisor of the number of updates, with ema.warmup = "power"
        pub inv_gamma: f64 = 1.0 => POSITIVE;
        /// exponent, with ema.warmup = "power": 2/3 for long runs, 3/4 for shorter ones
        pub power: f64 = 2.0 / 3.0 => POSITIVE;
        /// smallest decay during the rise
        pub min_decay: f64 = 0.0 => FRACTION;
        /// updates in which the average is a copy of the weights; 0: none
        pub after_step: u64 = 0 => int(0, MANY);
        /// memory of the average; weights: of the device that has the weights, 4 bytes per trained parameter; cpu: of the node, with a
        /// copy of the weights from the GPU in each step
        pub device: EmaDevice = EmaDevice::Weights => word::<EmaDevice>().on_resume(ResumeEffect::None);
    }
}

words! {
    /// How the decay of an average rises.
    pub enum EmaWarmup {
        /// The decay is constant.
        None = "none",
        /// `(1 + n) / (10 + n)`, diffusers' default.
        Ratio = "ratio",
        /// `1 - (1 + n / inv_gamma) ^ -power`, diffusers' `use_ema_warmup`.
        Power = "power",
    }
}

words! {
    /// The device that holds an average.
    pub enum EmaDevice {
        /// The memory of the weights.
        Weights = "weights",
        /// The memory of the node.
        Cpu = "cpu",
    }
}

words! {
    /// Whether a reader of a checkpoint uses the averaged weights.
    pub enum UseEma {
        /// Use the average if the checkpoint has one.
        Auto = "auto",
        /// Always use the average; a checkpoint without an average is an error.
        On = "on",
        /// Never use the average.
        Off = "off",
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
