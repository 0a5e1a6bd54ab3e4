//! Estimates the peak memory of the encoders.

use super::{Parameter, T5Config, TileSize, VaeConfig};

/// The peak memory of one computation in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// The weights.
    pub weights: u64,
    /// Everything else at the peak: activations, frames kept between windows, input and result.
    pub work: u64,
}

impl Peak {
    /// Returns the sum.
    pub fn total(self) -> u64 {
        self.weights + self.work
    }
}

/// The bytes of normalized frames that are convolved at a time on a CPU, and the minimum number of frames; as in the crate
/// `encoders`.
const CHUNK: u64 = 16 << 20;
const LEAST_CHUNK: u64 = 2;
/// The number of frames before a chunk that a convolution also reads.
const PAST: u64 = 2;
/// The memory for the result of a convolution of one chunk and its workspace, in chunks.
const CONVOLVED: u64 = 2;

/// The direction of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Encode,
    Decode,
}

/// Returns the peak memory of encoding or decoding one video with a VAE, whichever needs more.
///
/// The frames, height and width are those of the video, in pixels; `element` is the number of bytes of an element: 2 for bf16, 4 for
/// fp32. Samples of a batch are computed one after another, so a batch adds its videos and latents only.
pub fn vae_memory(
    config: &VaeConfig,
    [frames, height, width]: [usize; 3],
    tiling: Option<&TileSize>,
    element: u64,
) -> Peak {
    let factor = config.spatial_factor();
    let tile = match tiling.filter(|tiling| height > tiling.height || width > tiling.width) {
        Some(tiling) => [height.min(tiling.height), width.min(tiling.width)],
        None => [height, width],
    };
    let latent_frames = config.latent_frames(frames);
    let encode = config.encode_windows(frames);
    let decode = config.decode_windows(latent_frames);
    // The first window is the longest, and nothing is kept for the next one if it is the only one.
    let longest = |windows: &[std::ops::Range<usize>]| windows.first().map_or(0, |window| window.len());
    let encode = window(config, Direction::Encode, longest(&encode), tile, element, encode.len() > 1);
    let decoded = config.frames(longest(&decode));
    let decode = window(config, Direction::Decode, decoded, tile, element, decode.len() > 1);
    let pixels = (frames * height * width * config.in_channels.max(config.out_channels)) as u64;
    let latent = (latent_frames * (height / factor) * (width / factor) * 2 * config.latent_channels) as u64;
    // The video exists whole and as windows. If it is tiled, the tiles exist beside the tensor that they are joined to.
    let copies = if tile == [height, width] { 2 } else { 3 };
    Peak {
        weights: Parameter::bytes_of_all(&config.parameters(), element),
        work: encode.max(decode) + (pixels + latent) * copies * element,
    }
}

/// Returns the peak of one window over all levels of the encoder or the decoder.
fn window(
    config: &VaeConfig,
    direction: Direction,
    frames: usize,
    [height, width]: [usize; 2],
    element: u64,
    several: bool,
) -> u64 {
    let widths: Vec<u64> = config.block_out_channels.iter().map(|&width| width as u64).collect();
    let layers = config.layers_per_block as u64 + u64::from(direction == Direction::Decode);
    let (mut frames, mut pixels) = (frames as u64, (height * width) as u64);
    let (mut kept, mut most) = (0, 0);
    for (level, &own) in widths.iter().enumerate() {
        // The input has the width of the previous level.
        let before = match direction {
            Direction::Encode => widths[level.saturating_sub(1)],
            Direction::Decode => widths[(level + 1).min(widths.len() - 1)],
        };
        let wide = own.max(before);
        let chunk = (CHUNK / (pixels * wide * element).max(1)).clamp(LEAST_CHUNK, frames.max(LEAST_CHUNK)).min(frames);
        // A block's input and its inner result, and a new input for the second half if the width changes. Measured peaks on a
        // CPU have one tensor more: libraries and the allocator keep memory.
        let tensors = if own == before { 3 * own } else { before + 3 * own };
        let buffers = (chunk + PAST) * wide + CONVOLVED * chunk * wide;
        most = most.max(pixels * element * (frames * tensors + buffers));
        if several {
            kept += PAST * pixels * element * (2 * layers - 1).saturating_mul(own) + PAST * pixels * element * before;
        }
        pixels /= 4;
        if level < config.temporal_levels() {
            frames = frames.div_ceil(2);
        }
    }
    most + kept
}

/// The number of tokens that a block of T5 computes at a time; as in the crate `encoders`.
const TOKENS: usize = 1024;

/// Returns the peak memory of encoding `texts` texts of `tokens` tokens at a time; `element` as for [`vae_memory`].
pub fn t5_memory(config: &T5Config, texts: usize, tokens: usize, element: u64) -> Peak {
    // The table of embeddings stays in its file.
    let weights = Parameter::bytes_of_all(&config.parameters()[1..], element);
    let (rows, dim) = ((texts * tokens) as u64, config.d_model as u64);
    let at_a_time = (TOKENS / tokens.max(1)).clamp(1, texts.max(1)) * tokens;
    let inner = (config.num_heads * config.d_kv) as u64;
    // The norm, and queries, keys and values or the halves of the gated layer; products in fp32 on a CPU are copied once.
    let row = 2 * dim + (6 * inner).max(4 * config.d_ff as u64);
    let block = at_a_time as u64 * (row * element + dim * 8);
    // The hidden states and their norm, which is computed in fp32.
    let states = rows * dim * (2 * element + 8);
    // The bias before and after its permutation, and the buckets of 8 bytes.
    let bias = (tokens * tokens) as u64 * (2 * config.num_heads as u64 * element + 16);
    Peak { weights, work: states + block + bias }
}
