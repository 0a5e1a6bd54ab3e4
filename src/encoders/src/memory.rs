//! Estimates the peak memory of the VAEs whose tables are in this crate.

use crate::hunyuan_vae::HunyuanVaeConfig;
use crate::opensora_vae::{OpenSoraVaeConfig, PictureVaeConfig};
use crate::tiling::VideoTiling;
use weights::level_memory::{Level, ends, peak};
use weights::{Parameter, Peak};

/// Returns the rows and columns of the largest tile.
fn tile([height, width]: [usize; 2], tiling: &VideoTiling) -> [usize; 2] {
    match tiling.space.filter(|[rows, columns]| height > rows.size || width > columns.size) {
        Some([rows, columns]) => [height.min(rows.size), width.min(columns.size)],
        None => [height, width],
    }
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
