//! The section `[objective]`: the noise levels and weights of flow matching.

use crate::schema::{FRACTION, POSITIVE, SHARE, TRAIN, word};
use crate::{FamilyName, ResumeEffect};

section! {
    /// The noise levels of flow matching. A level is the share of noise in a latent, from 0 to 1.
    pub struct Flow("objective", TRAIN, ResumeEffect::Training, FamilyName::Wan) with Default {
        /// distribution of noise levels before the shift; logit_normal: sigmoid of a normal distribution, as in diffusion-pipe and
        /// musubi-tuner; steps: 1000 equal levels, as in DiffSynth-Studio
        pub levels: NoiseLevels = NoiseLevels::Uniform => word::<NoiseLevels>();
        /// standard deviation of the normal distribution (logit_normal only)
        pub scale: f64 = 1.0 => POSITIVE;
        /// shift s of a noise level x to s x / (1 + (s - 1) x), which raises it; 1: none; 5: as DiffSynth-Studio
        pub shift: f64 = 5.0 => POSITIVE;
        /// least noise level that is trained: for the expert of Wan 2.2 for high noise, the boundary (0.875, or 0.9 for image to video)
        pub min_level: f64 = 0.0 => FRACTION;
        /// greatest noise level that is trained: for the expert of Wan 2.2 for low noise, the boundary
        pub max_level: f64 = 1.0 => SHARE;
        /// weight of each sample in the loss; none: 1; bell: greatest at the level 0.5 and 0 for pure noise, as in DiffSynth-Studio
        pub weighting: FlowWeighting = FlowWeighting::None => word::<FlowWeighting>();
    }
}

words! {
    /// The distribution of noise levels before the shift.
    pub enum NoiseLevels {
        /// Uniform between 0 and 1.
        Uniform = "uniform",
        /// The sigmoid of a normal distribution.
        LogitNormal = "logit_normal",
        /// One of 1000 equally spaced levels.
        Steps = "steps",
    }
}

words! {
    /// The weight of each sample in the loss.
    pub enum FlowWeighting {
        /// 1.
        None = "none",
        /// Greatest at the level 0.5, and 0 for pure noise.
        Bell = "bell",
    }
}
