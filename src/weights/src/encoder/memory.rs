//! The peak memory of the encoders, before anything is computed.

use super::{T5Config, Tiling, VaeConfig};

/// The peak memory of one computation in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// The weights.
    pub weights: u64,
    /// Everything else at the largest moment: activations, frames kept between windows, input and result.
    pub work: u64,
}

impl Peak {
    /// Returns the sum.
    pub fn total(self) -> u64 {
        self.weights + self.work
    }
}

/// Bytes of activated frames that the CPU convolves at a time; see `encoders::stage`.
const CHUNK: u64 = 16 << 20;
/// The size of a convolution's workspace, in outputs of a chunk.
const WORKSPACE: u64 = 2;

/// Returns the peak memory of encoding and of decoding one video with a VAE, whichever is larger.
///
/// Samples of a batch are computed one after another, so the batch adds its videos and latents only; `frames`, `height` and `width`
/// are of the video in pixels, `element` is the number of bytes of an element: 2 for bf16, 4 for fp32.
pub fn vae_memory(
    config: &VaeConfig,
    [frames, height, width]: [usize; 3],
    tiling: Option<&Tiling>,
    element: u64,
) -> Peak {
    let weights = config.parameters().iter().map(|p| p.shape.iter().product::<usize>() as u64).sum::<u64>() * element;
    let factor = config.spatial_factor();
    let (mut tile_height, mut tile_width) = (height, width);
    if let Some(tiling) = tiling
        && (height > tiling.height || width > tiling.width)
    {
        (tile_height, tile_width) = (height.min(tiling.height), width.min(tiling.width));
    }
    let first = |windows: Vec<std::ops::Range<usize>>| windows.first().map_or(0, |window| window.len());
    let several = config.encode_windows(frames).len() > 1;
    let encode = levels(config, first(config.encode_windows(frames)), [tile_height, tile_width], element, several);
    let latent_frames = config.latent_frames(frames);
    let decoded = config.frames(first(config.decode_windows(latent_frames)));
    let several = config.decode_windows(latent_frames).len() > 1;
    let decode = levels(config, decoded, [tile_height, tile_width], element, several);
    // The whole video, and with tiles a second copy of a row of tiles while it is joined.
    let pixels = (frames * height * width * config.in_channels) as u64;
    let latent = (latent_frames * (height / factor) * (width / factor) * 2 * config.latent_channels) as u64;
    let joined = if tile_height < height || tile_width < width { 2 } else { 1 };
    Peak { weights, work: encode.max(decode) + (pixels + latent) * joined * element.max(4) }
}

/// Returns the peak of one window over all levels. The decoder is the encoder backwards, with one layer more.
fn levels(config: &VaeConfig, frames: usize, [height, width]: [usize; 2], element: u64, several: bool) -> u64 {
    let widths = &config.block_out_channels;
    let (mut frames, mut height, mut width) = (frames as u64, height as u64, width as u64);
    let (mut cache, mut most, mut before) = (0, 0, widths[0]);
    for (level, &channels) in widths.iter().enumerate() {
        let frame = height * width * channels.max(before) as u64 * element;
        // A block's input and its inner result; its shortcut while widths change, or the next level's frames.
        let tensors = if channels == before { 2 } else { 3 };
        let chunk = (CHUNK / frame.max(1)).clamp(1, frames);
        let work = frame * (tensors * frames + (chunk + 2) + WORKSPACE * chunk);
        most = most.max(work);
        if several {
            let layers = 2 * (config.layers_per_block as u64 + 1) + u64::from(level == 0);
            cache += layers * 2 * height * width * channels as u64 * element;
        }
        (height, width, before) = (height / 2, width / 2, channels);
        if level < config.temporal_levels() {
            frames = frames.div_ceil(2);
        }
    }
    most + cache
}

/// Returns the peak memory of encoding `texts` texts of `tokens` tokens at a time; `element` as for [`vae_memory`].
pub fn t5_memory(config: &T5Config, texts: usize, tokens: usize, element: u64) -> Peak {
    let weights = config.parameters().iter().map(|p| p.shape.iter().product::<usize>() as u64).sum::<u64>() * element;
    let (rows, dim) = ((texts * tokens) as u64, config.d_model as u64);
    let inner = (config.num_heads * config.d_kv) as u64;
    // The hidden states, their norm, and either queries, keys, values and their result, or the two halves of the gated layer.
    let row = 2 * dim + (4 * inner + dim).max(3 * config.d_ff as u64 + dim);
    let bias = (config.num_heads * tokens * tokens) as u64;
    // Norms and the softmax are computed in fp32.
    Peak { weights, work: (rows * row + 2 * bias) * element + rows * dim * 8 }
}
