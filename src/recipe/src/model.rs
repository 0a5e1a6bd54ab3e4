//! The `[model]` section: the shape of the transformer and of its input.

use serde::{Deserialize, Serialize};

use crate::resume::WEIGHTS;
use crate::schema::{BOOL, FRACTION, POSITIVE, TRAIN_AND_SAMPLE, int, word};

section! {
    /// The shape of a CogVideoX transformer and of the latents it is trained on.
    pub struct Model("model", TRAIN_AND_SAMPLE, WEIGHTS) {
        /// position encoding: rope (CogVideoX-5B), sincos (2B) or learned (5B image-to-video)
        pub positions: Positions = Positions::Rope => word::<Positions>();
        /// number of transformer blocks
        pub num_layers: usize => int(1, 10_000);
        /// attention heads per block
        pub num_heads: usize => int(1, 1024);
        /// width of one attention head, in features
        pub head_dim: usize = 64 => int(1, 1024);
        /// width of the time embedding, in features
        pub time_embed_dim: usize = 512 => int(1, 65_536);
        /// width of a text embedding, in features (T5-XXL: 4096)
        pub text_dim: usize = 4096 => int(1, 65_536);
        /// text tokens per segment
        pub text_len: usize => int(1, 1_000_000);
        /// segments of a video, each with its own text; attention stays within a segment of 12 latent frames plus 1 shared frame
        pub segments: usize = 1 => int(1, 1000);
        /// channels of the input latent
        pub in_channels: usize = 16 => int(1, 1024);
        /// channels of the prediction
        pub out_channels: usize = 16 => int(1, 1024);
        /// rows and columns of latent pixels per token
        pub patch_size: usize = 2 => int(1, 64);
        /// latent frames per token: 1, or 2 in CogVideoX 1.5
        pub patch_size_t: usize = 1 => int(1, 64);
        /// embeds the offset of the first image together with the time, as CogVideoX 1.5 image-to-video does
        pub ofs_embedding: bool = false => BOOL;
        /// latent frames per sample: (video frames - 1) / 4 + 1
        pub latent_frames: usize => int(1, 10_000);
        /// rows of a latent frame: video height in pixels / 8
        pub latent_height: usize => int(1, 4096);
        /// columns of a latent frame: video width in pixels / 8
        pub latent_width: usize => int(1, 4096);
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
        /// factor that multiplies latents when they are read
        pub latent_scale: f64 = 1.0 => POSITIVE;
        /// divisor of row and column positions (sincos only)
        pub spatial_interpolation: f64 = 1.875 => POSITIVE;
        /// divisor of frame positions (sincos only)
        pub temporal_interpolation: f64 = 1.0 => POSITIVE;
        /// rotary positions at other sizes than the base size; diffusers: as in current diffusers pipelines; resize_crop: as in
        /// VideoX-Fun and diffusers before 0.32; slice: plain indices, as in zai-org's trainer
        pub rotary: Rotary = Rotary::Diffusers => word::<Rotary>();
        /// latent frames that the weights were made for, the length of a learned position table; 0: model.latent_frames
        pub base_frames: usize = 0 => int(0, 10_000);
        /// rows of a latent frame that the weights were made for (sample_height in config.json): rotary positions are relative to it; 0:
        /// model.latent_height
        pub base_height: usize = 0 => int(0, 4096);
        /// columns of a latent frame that the weights were made for (sample_width in config.json); 0: model.latent_width
        pub base_width: usize = 0 => int(0, 4096);
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

/// The size of a latent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    /// Latent frames.
    pub frames: usize,
    /// Rows of a latent frame.
    pub height: usize,
    /// Columns of a latent frame.
    pub width: usize,
}

/// Shows frames × rows × columns: `13 × 60 × 90`.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} × {} × {}", self.frames, self.height, self.width)
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
    /// Returns the width of the residual stream.
    pub fn dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the size of a latent.
    pub fn shape(&self) -> Shape {
        Shape { frames: self.latent_frames, height: self.latent_height, width: self.latent_width }
    }

    /// Returns the number of video tokens in one frame of tokens.
    pub fn tokens_per_frame(&self) -> usize {
        (self.latent_height / self.patch_size) * (self.latent_width / self.patch_size)
    }

    /// Returns the frames of tokens of one sample: `latent_frames / patch_size_t`, rounded up.
    pub fn token_frames(&self) -> usize {
        self.latent_frames.div_ceil(self.patch_size_t)
    }

    /// Returns the latent frames that the network receives: `latent_frames`, rounded up to a multiple of `patch_size_t`.
    pub fn padded_frames(&self) -> usize {
        self.token_frames() * self.patch_size_t
    }

    /// Returns whether the model can train on latents of a VAE with this scaling factor. Data sets store latents unscaled, `latent_scale`
    /// multiplies them when they are read, and samples are divided by it before they are decoded. So it is the VAE's factor, or 1,
    /// with which latents stay unscaled.
    ///
    /// Source: ttt-video-dit saves the posterior unscaled (`data/precomp_video.py:142`), multiplies by `model.scale_factor` when it reads
    /// (`ttt/datasets/preembedding_dataset.py:55`) and divides by `eval.vae_scale_factor` (`ttt/models/vae/autoencoder.py:177`). Both are
    /// 1.0 in all of its presets, with CogVideoX's VAE, whose factor is 0.7.
    pub fn fits_vae_scale(&self, scaling_factor: f64) -> bool {
        // The tolerance allows for factors that are rounded to different numbers of digits.
        self.latent_scale == 1.0 || (scaling_factor / self.latent_scale - 1.0).abs() <= 1e-4
    }

    /// Returns the factor that multiplies latents of images when they are read.
    pub fn image_scale(&self) -> f64 {
        if self.invert_image_scale { 1.0 / self.latent_scale } else { self.latent_scale }
    }

    /// Returns the latent frames, rows and columns that the weights were made for.
    pub fn base(&self) -> [usize; 3] {
        let or = |base: usize, own: usize| if base == 0 { own } else { base };
        [
            or(self.base_frames, self.latent_frames),
            or(self.base_height, self.latent_height),
            or(self.base_width, self.latent_width),
        ]
    }

    /// Returns the model at the size that its weights were made for.
    pub fn at_base(&self) -> Model {
        let [latent_frames, latent_height, latent_width] = self.base();
        Model { latent_frames, latent_height, latent_width, ..self.clone() }
    }

    /// Returns the rows of the learned position table: the text tokens, then the video tokens of the base size.
    pub fn learned_positions(&self) -> usize {
        let [frames, height, width] = self.base();
        self.text_tokens() + frames.div_ceil(self.patch_size_t) * (height / self.patch_size) * (width / self.patch_size)
    }

    /// Returns the video tokens of one sample.
    pub fn video_tokens(&self) -> usize {
        self.token_frames() * self.tokens_per_frame()
    }

    /// Returns the text tokens of one sample.
    pub fn text_tokens(&self) -> usize {
        self.segments * self.text_len
    }

    /// Returns the tokens of one sample: text, then video.
    pub fn seq_len(&self) -> usize {
        self.text_tokens() + self.video_tokens()
    }

    /// Returns the latent frames in one segment's attention. Neighbouring segments share one frame.
    pub fn attention_frames(&self) -> usize {
        if self.segments == 1 { self.latent_frames } else { SEGMENT_FRAMES + 1 }
    }

    /// Returns the tokens in one segment's attention.
    pub fn attention_len(&self) -> usize {
        self.text_len + self.attention_frames().div_ceil(self.patch_size_t) * self.tokens_per_frame()
    }
}
