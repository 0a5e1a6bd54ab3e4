//! Estimates the peak memory of VAEs that are lists of levels.

use super::wan_vae::{LevelPlan, WanVaeConfig};
use super::{Parameter, Peak};

/// The bytes of frames that a convolution over frames computes at a time on a CPU.
pub const CPU_CHUNK: u64 = 16 << 20;
/// The number of frames before a chunk that a convolution over frames also reads.
const PAST: u64 = 2;
/// The least number of frames that are computed at a time.
const LEAST_CHUNK: u64 = 2;
/// The memory for a copy of one chunk in a norm, the result of its convolution and the workspace of the convolution, in chunks.
const CHUNKS: u64 = 3;

/// A level of an encoder or a decoder.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// The frames that are computed at a time.
    pub frames: usize,
    /// The pixels of a frame.
    pub pixels: usize,
    /// The channels of its input.
    pub input: usize,
    /// The channels of its blocks.
    pub width: usize,
    /// The number of convolutions that keep frames for the next window.
    pub keeping: usize,
}

impl Level {
    /// Returns the bytes that exist while a block of this level is computed.
    fn peak(self, element: u64) -> u64 {
        let [frames, pixels, input, width] = [self.frames, self.pixels, self.input, self.width].map(|n| n as u64);
        let wide = input.max(width);
        let chunk = CPU_CHUNK / (pixels * wide * element).max(1);
        let chunk = chunk.clamp(LEAST_CHUNK, frames.max(LEAST_CHUNK)).min(frames);
        // A block's input and its inner result, and a new input for the second half if the width changes. Measured peaks on a CPU have
        // one tensor more: libraries and the allocator keep memory.
        let tensors = if input == width { 3 * width } else { input + 3 * width };
        // A single frame is a picture, whose convolutions read no other frames.
        let past = if frames == 1 { 0 } else { PAST };
        let buffers = (chunk + past) * wide + CHUNKS * chunk * wide;
        pixels * element * (frames * tensors + buffers)
    }

    /// Returns the bytes of the frames that are kept for the next window.
    fn kept(self, element: u64) -> u64 {
        (self.keeping * self.pixels * self.width) as u64 * PAST * element
    }
}

/// Returns the peak of a network: that of its largest level, and all frames that are kept.
pub fn peak(levels: &[Level], element: u64) -> u64 {
    let most = levels.iter().map(|level| level.peak(element)).max().unwrap_or(0);
    most + levels.iter().map(|level| level.kept(element)).sum::<u64>()
}

/// Returns the bytes of a video and its latent beside the network: whole and as a window, and joined from tiles.
pub fn ends(pixels: usize, latent: usize, tiled: bool, element: u64) -> u64 {
    (pixels + latent) as u64 * if tiled { 3 } else { 2 } * element
}

/// Returns the peak memory of encoding or decoding one video with Wan's VAE, whichever needs more; the arguments are those of
/// [`vae_memory`](super::vae_memory), and `tile` has the rows and columns of tiles. Only one window of frames is computed at a time.
pub fn wan_vae_memory(
    config: &WanVaeConfig,
    [frames, height, width]: [usize; 3],
    tile: Option<[usize; 2]>,
    element: u64,
) -> Peak {
    let [rows, columns] = tile.map_or([height, width], |[rows, columns]| [height.min(rows), width.min(columns)]);
    let window = config.temporal_factor().min(frames.max(1));
    let several = frames > 1;
    let levels = |plans: &mut dyn Iterator<Item = LevelPlan>| {
        let mut size = (window, (rows / config.patch()) * (columns / config.patch()));
        let mut levels = Vec::new();
        for plan in plans {
            let keeping = if several { 2 * plan.resnets.len() + 1 } else { 0 };
            // The shortcut of 2.2 is one tensor more.
            let input = plan.input + if plan.shortcut.is_some() { plan.output } else { 0 };
            levels.push(Level { frames: size.0, pixels: size.1, input, width: plan.output, keeping });
            size = (size.0.div_ceil(2), size.1.div_ceil(4));
        }
        peak(&levels, element)
    };
    let (encoder, decoder) = (config.encoder(), config.decoder());
    let work = levels(&mut encoder.into_iter()).max(levels(&mut decoder.into_iter().rev()));
    let pixels = frames * height * width * config.in_channels.max(config.out_channels) / config.patch().pow(2);
    let latent = 2 * config.z_dim * config.latent_frames(frames) * height * width / config.spatial_factor().pow(2);
    let tiled = [rows, columns] != [height, width];
    Peak {
        weights: Parameter::bytes_of_all(&config.parameters(), element),
        work: work + ends(pixels, latent, tiled, element),
    }
}
