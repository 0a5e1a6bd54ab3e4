//! The `[model]` section: the shape of the transformer and of its input.

use serde::{Deserialize, Serialize};

/// The shape of a CogVideoX transformer and of the latents it is trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The position encoding.
    pub positions: Positions,
    /// Transformer blocks.
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
    /// The inner learning rate of a token.
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

/// The layer over the whole sequence besides attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// None: plain CogVideoX.
    None,
    /// TTT layers whose inner model is a matrix.
    TttLinear,
    /// TTT layers whose inner model is a small MLP.
    TttMlp,
}

/// The inner learning rate of a token of a TTT layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrAlignment {
    /// The token's own.
    Aligned,
    /// That of the token from which the reference's kernels read it, for weights trained there. With more than one
    /// segment this is a different token.
    Upstream,
}

/// Latent frames of a segment besides the one that it shares with the previous segment.
pub const SEGMENT_FRAMES: usize = 12;

impl Model {
    /// Returns the width of the residual stream.
    pub fn dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the video tokens of one frame of tokens.
    pub fn tokens_per_frame(&self) -> usize {
        (self.latent_height / self.patch_size) * (self.latent_width / self.patch_size)
    }

    /// Returns the frames of tokens of one sample: `latent_frames / patch_size_t`.
    pub fn token_frames(&self) -> usize {
        self.latent_frames / self.patch_size_t
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

    /// Returns the latent frames in one segment's attention; neighbouring segments share one.
    pub fn attention_frames(&self) -> usize {
        if self.segments == 1 { self.latent_frames } else { SEGMENT_FRAMES + 1 }
    }

    /// Returns the tokens in one segment's attention.
    pub fn attention_len(&self) -> usize {
        self.text_len + self.attention_frames() / self.patch_size_t * self.tokens_per_frame()
    }
}
