//! Estimates the peak memory of the VAEs whose tables are in this crate.

use crate::hunyuan_vae::HunyuanVaeConfig;
use crate::opensora_vae::{OpenSoraVaeConfig, PictureVaeConfig};
use crate::tiling::VideoTiling;
use crate::vae::stage::CPU_CHUNK;
use crate::wan_vae::WanVaeConfig;
use weights::{Parameter, Peak};

/// The number of frames before a chunk that a convolution over frames also reads.
const PAST: u64 = 2;
/// The least number of frames that are computed at a time.
const LEAST_CHUNK: u64 = 2;
/// The memory for a copy of one chunk in a norm, the result of its convolution and the workspace of the convolution, in chunks.
const CHUNKS: u64 = 3;

/// A level of an encoder or a decoder.
#[derive(Debug, Clone, Copy)]
struct Level {
    frames: usize,
    pixels: usize,
    /// The channels of its input and of its blocks.
    input: usize,
    width: usize,
    /// The number of convolutions that keep frames for the next window.
    keeping: usize,
}

impl Level {
    /// Returns the bytes that exist while a block of this level is computed.
    fn peak(self, element: u64) -> u64 {
        let [frames, pixels, input, width] = [self.frames, self.pixels, self.input, self.width].map(|n| n as u64);
        let wide = input.max(width);
        let chunk = CPU_CHUNK as u64 / (pixels * wide * element).max(1);
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
fn peak(levels: &[Level], element: u64) -> u64 {
    let most = levels.iter().map(|level| level.peak(element)).max().unwrap_or(0);
    most + levels.iter().map(|level| level.kept(element)).sum::<u64>()
}

/// Returns the rows and columns of the largest tile.
fn tile([height, width]: [usize; 2], tiling: &VideoTiling) -> [usize; 2] {
    match tiling.space.filter(|[rows, columns]| height > rows.size || width > columns.size) {
        Some([rows, columns]) => [height.min(rows.size), width.min(columns.size)],
        None => [height, width],
    }
}

/// Returns the bytes of a video and its latent beside the network: whole and as a window, and joined from tiles.
fn ends(pixels: usize, latent: usize, tiled: bool, element: u64) -> u64 {
    (pixels + latent) as u64 * if tiled { 3 } else { 2 } * element
}

/// Returns the peak memory of encoding or decoding one video with Hunyuan's VAE, whichever needs more.
///
/// Frames, height and width are those of the video, in pixels; `element` is the number of bytes of an element: 2 for bf16, 4 for fp32.
/// The samples of a batch are computed one after another, so a batch adds its videos and latents only.
pub fn hunyuan_vae_memory(
    config: &HunyuanVaeConfig,
    [frames, height, width]: [usize; 3],
    tiling: &VideoTiling,
    element: u64,
) -> Peak {
    let [rows, columns] = tile([height, width], tiling);
    let at_a_time = tiling.time.map_or(frames, |axis| frames.min(axis.size + 1));
    let widths = &config.block_out_channels;
    let mut size = (at_a_time, rows * columns);
    let (mut encoder, mut decoder) = (Vec::new(), Vec::new());
    for (level, &own) in widths.iter().enumerate() {
        let of = |input: usize| Level { frames: size.0, pixels: size.1, input, width: own, keeping: 0 };
        encoder.push(of(widths[level.saturating_sub(1)]));
        decoder.push(of(widths[(level + 1).min(widths.len() - 1)]));
        let [in_time, in_space] = config.halves(level);
        size = (if in_time { size.0.div_ceil(2) } else { size.0 }, if in_space { size.1.div_ceil(4) } else { size.1 });
    }
    let tiled = [at_a_time, rows, columns] != [frames, height, width];
    let pixels = frames * height * width * config.in_channels.max(config.out_channels);
    let latent = 2 * config.latent_channels * config.latent_frames(frames) * height * width
        / config.spatial_compression_ratio.pow(2);
    Peak {
        weights: Parameter::bytes_of_all(&config.parameters(), element),
        work: peak(&encoder, element).max(peak(&decoder, element)) + ends(pixels, latent, tiled, element),
    }
}

/// Returns the peak memory of encoding or decoding one video with Wan's VAE, whichever needs more; the arguments are those of
/// [`hunyuan_vae_memory`]. Only one window of frames is computed at a time.
pub fn wan_vae_memory(
    config: &WanVaeConfig,
    [frames, height, width]: [usize; 3],
    tiling: &VideoTiling,
    element: u64,
) -> Peak {
    let [rows, columns] = tile([height, width], tiling);
    let window = config.temporal_factor().min(frames.max(1));
    let several = frames > 1;
    let levels = |plans: &mut dyn Iterator<Item = crate::wan_vae::LevelPlan>| {
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

/// Returns the peak memory of encoding or decoding one video with the VAE of Open-Sora 1.2, whichever needs more; the arguments are
/// those of [`hunyuan_vae_memory`]. Pictures are computed one at a time, and frames in pieces.
pub fn opensora_vae_memory(
    config: &OpenSoraVaeConfig,
    picture: &PictureVaeConfig,
    [frames, height, width]: [usize; 3],
    element: u64,
) -> Peak {
    let widths = &picture.block_out_channels;
    let mut pixels = height * width;
    let mut pictures = Vec::new();
    for (level, &own) in widths.iter().enumerate() {
        let wide = widths[(level + 1).min(widths.len() - 1)];
        pictures.push(Level { frames: 1, pixels, input: wide, width: own, keeping: 0 });
        pixels = if level + 1 < widths.len() { pixels.div_ceil(4) } else { pixels };
    }
    let temporal = &config.vae_temporal;
    let piece = config.pieces(frames).first().map_or(1, |piece| piece.next_multiple_of(temporal.time_factor()));
    let own = temporal.widths();
    let levels = own.iter().enumerate().map(|(level, &width)| {
        let halved = temporal.temporal_downsample[..level].iter().filter(|down| **down).count();
        let input = own[(level + 1).min(own.len() - 1)];
        Level { frames: piece >> halved, pixels, input, width, keeping: 0 }
    });
    let work = peak(&pictures, element).max(peak(&levels.collect::<Vec<_>>(), element));
    let latent = frames * pixels * (picture.latent_channels + 2 * temporal.embed_dim);
    let video = frames * height * width * picture.in_channels.max(picture.out_channels);
    Peak {
        weights: Parameter::bytes_of_all(&config.parameters(picture), element),
        work: work + ends(video, latent, false, element),
    }
}
