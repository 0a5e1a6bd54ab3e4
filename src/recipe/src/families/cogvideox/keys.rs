//! The keys of `[model]` that only CogVideoX has.

use crate::resume::WEIGHTS;
use crate::schema::{BOOL, FRACTION, POSITIVE, TRAIN_AND_SAMPLE, int, word};
use crate::{Family, FamilyName, Model};

section! {
    /// The keys of `[model]` that only CogVideoX has, with or without TTT layers.
    pub struct CogVideoXKeys("model", TRAIN_AND_SAMPLE, WEIGHTS, FamilyName::CogVideoX) with Default {
        /// position encoding: rope (CogVideoX-5B), sincos (2B) or learned (5B image-to-video)
        pub positions: Positions = Positions::Rope => word::<Positions>();
        /// width of the time embedding, in features
        pub time_embed_dim: usize = 512 => int(1, 65_536);
        /// segments of a video, each with its own text; attention stays within a segment of 12 latent frames plus 1 shared frame
        pub segments: usize = 1 => int(1, 1000);
        /// embeds the offset of the first image together with the time, as CogVideoX 1.5 image-to-video does
        pub ofs_embedding: bool = false => BOOL;
        /// layer over the whole sequence besides attention: none, ttt_linear or ttt_mlp
        pub layer: Layer = Layer::None => word::<Layer>();
        /// tokens per mini-batch of a TTT layer; the sequence length must be a multiple; without TTT layers it is not used and may be 0
        pub ttt_mini_batch: usize = 0 => int(0, 65_536);
        /// peak learning rate of the inner loop of TTT layers: 0.1 for ttt_mlp, 1.0 for ttt_linear
        pub ttt_base_lr: f64 = 0.1 => POSITIVE;
        /// aligned: each token has its own inner learning rate; upstream: as in ttt-video-dit's kernels, for weights that were trained
        /// with them
        pub ttt_lr_alignment: LrAlignment = LrAlignment::Aligned => word::<LrAlignment>();
        /// epsilon of the LayerNorms in blocks and in the final layer
        pub norm_eps: f64 = 1e-5 => POSITIVE;
        /// epsilon of the LayerNorms of queries and keys
        pub qk_norm_eps: f64 = 1e-6 => POSITIVE;
        /// divisor of row and column positions (sincos only)
        pub spatial_interpolation: f64 = 1.875 => POSITIVE;
        /// divisor of frame positions (sincos only)
        pub temporal_interpolation: f64 = 1.0 => POSITIVE;
        /// rotary positions at other sizes than the base size; diffusers: as in current diffusers pipelines; resize_crop: as in
        /// VideoX-Fun and diffusers before 0.32; slice: plain indices, as in zai-org's trainer
        pub rotary: Rotary = Rotary::Diffusers => word::<Rotary>();
        /// leaves the learned position table out, to train such a model at another height or width (learned only)
        pub ignore_learned_positions: bool = false => BOOL;
        /// resizes the sine and cosine table of the base size to other heights and widths, as VideoX-Fun does; false: computes it for
        /// each size, as diffusers does (sincos only)
        pub resize_positions: bool = false => BOOL;
        /// timesteps of the noise schedule
        pub timesteps: usize = 1000 => int(2, 1_000_000);
        /// variance of the noise that the first timestep adds
        pub beta_start: f64 = 0.00085 => POSITIVE;
        /// variance of the noise that the last timestep adds
        pub beta_end: f64 = 0.012 => FRACTION;
        /// quantity that grows linearly from beta_start to beta_end; scaled_linear: the standard deviation; linear: the variance
        pub beta_schedule: BetaSchedule = BetaSchedule::ScaledLinear => word::<BetaSchedule>();
        /// divisor of the signal-to-noise ratio of all timesteps: 3.0 for CogVideoX-2B, 1.0 for 5B
        pub snr_shift_scale: f64 = 1.0 => POSITIVE;
        /// rescales the noise schedule so that the last timestep has no signal
        pub zero_terminal_snr: bool = true => BOOL;
        /// choice of the timesteps of sampling: trailing, leading or linspace, as in diffusers; training uses all timesteps
        pub timestep_spacing: TimestepSpacing = TimestepSpacing::Trailing => word::<TimestepSpacing>();
        /// divides image latents by model.latent_scale instead of multiplying them, as the CogVideoX 1.5 image-to-video pipeline does;
        /// false: as cogvideox-factory and zai-org's trainer
        pub invert_image_scale: bool = false => BOOL;
    }
}

words! {
    /// The position encoding.
    pub enum Positions {
        /// Rotary embedding of queries and keys (CogVideoX-5B).
        Rope = "rope",
        /// A fixed sine and cosine table that is added to the video tokens (CogVideoX-2B).
        SinCos = "sincos",
        /// A stored table that is added to all tokens, besides the rotary embedding (CogVideoX-5B image-to-video).
        Learned = "learned",
    }
}

words! {
    /// The rotary positions of sizes other than the base size. At the base size all three are the plain indices.
    pub enum Rotary {
        /// The form of diffusers since its pull request 10161: the base grid is resized and cropped, and only its end point
        /// is scaled.
        Diffusers = "diffusers",
        /// The form of VideoX-Fun and of earlier versions of diffusers: the base grid is resized and cropped, and positions
        /// are evenly spaced.
        ResizeCrop = "resize_crop",
        /// Plain indices at every size, as in zai-org's trainer.
        Slice = "slice",
    }
}

words! {
    /// The quantity that grows linearly from `beta_start` to `beta_end`.
    pub enum BetaSchedule {
        /// The standard deviation of the added noise.
        ScaledLinear = "scaled_linear",
        /// The variance of the added noise.
        Linear = "linear",
    }
}

words! {
    /// How sampling chooses its timesteps, with the names of diffusers.
    pub enum TimestepSpacing {
        /// Equal steps back from the last timestep.
        Trailing = "trailing",
        /// Equal steps from the first timestep.
        Leading = "leading",
        /// Equal steps that include both ends.
        Linspace = "linspace",
    }
}

words! {
    /// The layer over the whole sequence besides attention.
    pub enum Layer {
        /// No additional layers: plain CogVideoX.
        None = "none",
        /// TTT layers whose inner model is a matrix.
        TttLinear = "ttt_linear",
        /// TTT layers whose inner model is a small MLP.
        TttMlp = "ttt_mlp",
    }
}

words! {
    /// Which inner learning rate applies to a token of a TTT layer.
    pub enum LrAlignment {
        /// The token's own learning rate.
        Aligned = "aligned",
        /// The learning rate that the reference's kernels use, for weights that were trained with them. With more than one
        /// segment, this is the learning rate of another token.
        Upstream = "upstream",
    }
}

/// The number of latent frames of a segment, without the frame that it shares with the previous segment.
pub const SEGMENT_FRAMES: usize = 12;

impl Model {
    /// Returns the keys of a CogVideoX model.
    ///
    /// # Panics
    /// The model is of another family.
    pub fn cogvideox(&self) -> &CogVideoXKeys {
        match &self.family {
            Family::CogVideoX(keys) => keys,
            other => panic!("a model of {} has no keys of CogVideoX", other.name().name()),
        }
    }

    /// Returns the layer over the whole sequence of a CogVideoX model; none for other families.
    pub fn layer(&self) -> Layer {
        match &self.family {
            Family::CogVideoX(keys) => keys.layer,
            Family::Wan(_) => Layer::None,
        }
    }

    /// Returns the CogVideoX model with changed keys.
    pub fn with_cogvideox(&self, change: impl FnOnce(&mut CogVideoXKeys)) -> Model {
        let mut keys = self.cogvideox().clone();
        change(&mut keys);
        Model { family: Family::CogVideoX(keys), ..self.clone() }
    }

    /// Returns the rows of the learned position table: the text tokens, then the video tokens of the base size.
    pub fn learned_positions(&self) -> usize {
        let [frames, height, width] = self.base();
        self.text_tokens() + frames.div_ceil(self.patch_size_t) * (height / self.patch_size) * (width / self.patch_size)
    }

    /// Returns the latent frames in one segment's attention. Neighbouring segments share one frame.
    pub fn attention_frames(&self) -> usize {
        if self.segments() == 1 { self.latent_frames } else { SEGMENT_FRAMES + 1 }
    }

    /// Returns the tokens in one segment's attention.
    pub fn attention_len(&self) -> usize {
        self.text_len + self.attention_frames().div_ceil(self.patch_size_t) * self.tokens_per_frame()
    }
}
