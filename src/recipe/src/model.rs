//! The `[model]` section: the shape of the transformer and of its input.

use serde::{Deserialize, Serialize};

/// The shape of a CogVideoX transformer and of the latents it is trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The position encoding.
    pub positions: Positions,
    /// Number of transformer blocks.
    pub num_layers: usize,
    /// Attention heads per block.
    pub num_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the time embedding.
    pub time_embed_dim: usize,
    /// Width of a text embedding.
    pub text_dim: usize,
    /// Text tokens per segment.
    pub text_len: usize,
    /// Segments of a video, each with its own text and 12 latent frames (the first has one more). Attention stays within
    /// a segment; TTT layers cover the whole sequence.
    pub segments: usize,
    /// Channels of the input latent.
    pub in_channels: usize,
    /// Channels of the prediction.
    pub out_channels: usize,
    /// Rows and columns of latent pixels per token.
    pub patch_size: usize,
    /// Latent frames per token: 1, or 2 in CogVideoX 1.5.
    pub patch_size_t: usize,
    /// Whether the offset of the first image is embedded with the time, as in CogVideoX 1.5 image-to-video.
    pub ofs_embedding: bool,
    /// Latent frames per sample.
    pub latent_frames: usize,
    /// Rows of a latent frame.
    pub latent_height: usize,
    /// Columns of a latent frame.
    pub latent_width: usize,
    /// The layer over the whole sequence besides attention.
    pub layer: Layer,
    /// Tokens per mini-batch of a TTT layer; the sequence length must be a multiple of it. 0: not checked.
    pub ttt_mini_batch: usize,
    /// Peak learning rate of the inner loop of TTT layers.
    pub ttt_base_lr: f64,
    /// Which inner learning rate applies to a token.
    pub ttt_lr_alignment: LrAlignment,
    /// Epsilon of the LayerNorms of blocks and of the final layer.
    pub norm_eps: f64,
    /// Epsilon of the LayerNorms of queries and keys.
    pub qk_norm_eps: f64,
    /// The factor that multiplies latents when they are read.
    pub latent_scale: f64,
    /// The divisor of row and column positions; only for `positions = "sincos"`.
    pub spatial_interpolation: f64,
    /// The divisor of frame positions; only for `positions = "sincos"`.
    pub temporal_interpolation: f64,
    /// The rotary positions of sizes other than the base size.
    pub rotary: Rotary,
    /// Latent frames that the weights were made for; 0: `latent_frames`.
    pub base_frames: usize,
    /// Rows of a latent frame that the weights were made for; 0: `latent_height`.
    pub base_height: usize,
    /// Columns of a latent frame that the weights were made for; 0: `latent_width`.
    pub base_width: usize,
    /// Whether a learned position table is left out, to train at another height or width.
    pub ignore_learned_positions: bool,
    /// Timesteps of the noise schedule.
    pub timesteps: usize,
    /// Variance of the noise that the first timestep adds.
    pub beta_start: f64,
    /// Variance of the noise that the last timestep adds.
    pub beta_end: f64,
    /// The quantity that grows linearly from `beta_start` to `beta_end`.
    pub beta_schedule: BetaSchedule,
    /// The divisor of the signal-to-noise ratio of all timesteps.
    pub snr_shift_scale: f64,
    /// Whether the noise schedule is rescaled so that the last timestep has no signal.
    pub zero_terminal_snr: bool,
    /// How sampling chooses its timesteps.
    pub timestep_spacing: TimestepSpacing,
    /// Whether the sine and cosine table of the base size is resized to other heights and widths, as in VideoX-Fun.
    pub resize_positions: bool,
    /// Whether image latents are divided by `latent_scale` instead of multiplied, as in CogVideoX 1.5 image-to-video.
    pub invert_image_scale: bool,
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

/// The position encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// Rotary embedding of queries and keys (CogVideoX-5B).
    Rope,
    /// A fixed sine and cosine table that is added to the video tokens (CogVideoX-2B).
    SinCos,
    /// A stored table that is added to all tokens, besides the rotary embedding (CogVideoX-5B image-to-video).
    Learned,
}

/// The rotary positions of sizes other than the base size. At the base size all three are the plain indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rotary {
    /// The form of diffusers since its pull request 10161: the base grid is resized and cropped, and only its end point
    /// is scaled.
    Diffusers,
    /// The form of VideoX-Fun and of earlier versions of diffusers: the base grid is resized and cropped, and positions
    /// are evenly spaced.
    ResizeCrop,
    /// Plain indices at every size, as in zai-org's trainer.
    Slice,
}

impl Rotary {
    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Rotary::Diffusers => "diffusers",
            Rotary::ResizeCrop => "resize_crop",
            Rotary::Slice => "slice",
        }
    }
}

/// The quantity that grows linearly from `beta_start` to `beta_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetaSchedule {
    /// The standard deviation of the added noise.
    ScaledLinear,
    /// The variance of the added noise.
    Linear,
}

/// How sampling chooses its timesteps, with the names of diffusers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimestepSpacing {
    /// Equal steps back from the last timestep.
    Trailing,
    /// Equal steps from the first timestep.
    Leading,
    /// Equal steps that include both ends.
    Linspace,
}

/// The layer over the whole sequence besides attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// No additional layers: plain CogVideoX.
    None,
    /// TTT layers whose inner model is a matrix.
    TttLinear,
    /// TTT layers whose inner model is a small MLP.
    TttMlp,
}

/// Which inner learning rate applies to a token of a TTT layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrAlignment {
    /// The token's own learning rate.
    Aligned,
    /// The learning rate that the reference's kernels use, for weights that were trained with them. With more than one
    /// segment, this is the learning rate of another token.
    Upstream,
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
