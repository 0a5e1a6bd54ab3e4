//! The sizes of an MMDiT.

use crate::Shape;

/// The sizes and switches of an MMDiT.
///
/// The first blocks have two streams, text and video, each with its own weights. In the other blocks one joined stream of text and video
/// has one set of weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Mmdit {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Rows and columns of latent pixels in a patch; patches have one latent frame.
    pub patch_size: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Channels of a head that are rotated by the positions of the frame, the row and the column. Their sum is the width of a head.
    pub axes: [usize; 3],
    /// The base of the rotary frequencies.
    pub theta: f64,
    /// Blocks with two streams.
    pub two_stream_blocks: usize,
    /// Blocks with one joined stream, which follow those with two.
    pub one_stream_blocks: usize,
    /// Hidden units of a feed-forward layer.
    pub hidden: usize,
    /// Text tokens of a sample, padding included.
    pub text_tokens: usize,
    /// Width of a text token.
    pub text_dim: usize,
    /// Width of the pooled text.
    pub pooled_dim: usize,
    /// Whether the projections to queries, keys and values of blocks with two streams have a bias. Those of the other blocks have one.
    pub qkv_bias: bool,
    /// Whether the network embeds the scale of guidance, as a distilled network does.
    pub guidance: bool,
    /// Whether the network embeds given frames.
    pub condition: bool,
}

impl Mmdit {
    /// Returns the network of Open-Sora 2 (11.9 billion parameters), which embeds given frames.
    pub fn open_sora_2() -> Self {
        Mmdit {
            latent_channels: 16,
            patch_size: 2,
            num_heads: 24,
            axes: [16, 56, 56],
            theta: 10_000.0,
            two_stream_blocks: 19,
            one_stream_blocks: 38,
            hidden: 12_288,
            text_tokens: 512,
            text_dim: 4096,
            pooled_dim: 768,
            qkv_bias: true,
            guidance: false,
            condition: true,
        }
    }

    /// Returns the network of Open-Sora 2 for latents of its deep-compression autoencoder, whose tokens are single latent pixels.
    pub fn open_sora_2_high_compression() -> Self {
        Mmdit { latent_channels: 128, patch_size: 1, ..Mmdit::open_sora_2() }
    }

    /// Returns the network of Flux.1-dev, from which Open-Sora 2 was trained.
    pub fn flux_dev() -> Self {
        Mmdit { guidance: true, condition: false, ..Mmdit::open_sora_2() }
    }

    /// Returns the width of a head.
    pub fn head_dim(&self) -> usize {
        self.axes.iter().sum()
    }

    /// Returns the width of a token.
    pub fn dim(&self) -> usize {
        self.num_heads * self.head_dim()
    }

    /// Returns the number of blocks of both kinds.
    pub fn num_blocks(&self) -> usize {
        self.two_stream_blocks + self.one_stream_blocks
    }

    /// Returns whether a block has two streams.
    pub fn has_two_streams(&self, block: usize) -> bool {
        block < self.two_stream_blocks
    }

    /// Returns the numbers of a video token: the channels of a patch.
    pub fn patch_channels(&self) -> usize {
        self.latent_channels * self.patch_size * self.patch_size
    }

    /// Returns the numbers of a token of the condition: a patch of the mask and of the given latent.
    pub fn condition_channels(&self) -> usize {
        (self.latent_channels + 1) * self.patch_size * self.patch_size
    }

    /// Returns the frames, rows and columns of the video tokens of a latent. Rows and columns must be whole patches.
    pub fn grid(&self, shape: Shape) -> [usize; 3] {
        [shape.frames, shape.height / self.patch_size, shape.width / self.patch_size]
    }

    /// Returns the video tokens of a latent.
    pub fn video_tokens(&self, shape: Shape) -> usize {
        self.grid(shape).iter().product()
    }
}
