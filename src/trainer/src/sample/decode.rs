//! Converts between latents and pictures: encodes the first image of a video, and decodes the frames of a sample.

use crate::seeds::{self, Purpose};
use crate::step::compute_kind;
use camino::Utf8Path;
use encoders::{TileSize, Vae};
use recipe::{Encoders, Recipe, SampleSpec};
use rundir::{ErrorCode, Failure};
use tch::{Device, Kind, Tensor};
use video::Frames;

/// Decodes a latent `[1, T, C, h, w]` to a video `[1, 3, F, H, W]`. The VAE is read for this call and freed afterwards,
/// because the network needs the memory.
///
/// # Errors
/// The VAE cannot be read, or memory is short.
pub fn decode(recipe: &Recipe, latent: &Tensor, device: Device) -> Result<Tensor, Failure> {
    let mut vae = open(recipe, device)?;
    let latent = latent.permute([0, 2, 1, 3, 4]) / vae.config().scaling_factor;
    let tiling = recipe.encoders.tiling;
    if tiling == recipe::Tiling::On {
        vae.tiling(Some(TileSize::of(vae.config())))?;
    }
    match vae.decode(&latent) {
        Err(failure) if failure.code == ErrorCode::OutOfMemory && tiling == recipe::Tiling::Auto => {
            vae.tiling(Some(TileSize::of(vae.config())))?;
            vae.decode(&latent)
        }
        decoded => decoded,
    }
}

/// Returns the frames of a decoded video `[1, 3, F, H, W]` as bytes, rounded as diffusers rounds them.
pub fn frames(video: &Tensor) -> Frames {
    let size = video.size();
    let bytes = ((video.to_kind(Kind::Float) / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round().to_kind(Kind::Uint8);
    let bytes = bytes.get(0).permute([1, 2, 3, 0]).contiguous().to_device(Device::Cpu);
    let mut rgb = vec![0u8; bytes.numel()];
    let count = rgb.len();
    bytes.copy_data_u8(&mut rgb, count);
    Frames { width: size[4] as usize, height: size[3] as usize, count: size[2] as usize, rgb }
}

/// Returns the scaled latent of the first image, `[1, 1, C, h, w]`, drawn from its distribution as the pipelines do.
///
/// # Errors
/// The image or the VAE cannot be read.
pub fn encode_image(recipe: &Recipe, spec: &SampleSpec, path: &Utf8Path, device: Device) -> Result<Tensor, Failure> {
    let image = video::lanczos(&video::read_image(path)?, spec.width, spec.height);
    let pixels = Tensor::from_slice(&image.rgb).view([1, 1, spec.height as i64, spec.width as i64, 3]);
    let pixels = pixels.permute([0, 4, 1, 2, 3]).to_kind(Kind::Float) / 127.5 - 1.0;
    encode_pixels(recipe, &pixels, |shape| seeds::normal(spec.seed, Purpose::SampleImage, 0, shape), device)
}

/// As [`encode_image`], from values `[1, 3, 1, H, W]` between -1 and 1. `noise` draws from the distribution.
pub fn encode_pixels(
    recipe: &Recipe,
    pixels: &Tensor,
    noise: impl FnOnce(&[i64]) -> Tensor,
    device: Device,
) -> Result<Tensor, Failure> {
    let vae = open(recipe, device)?;
    let moments = vae.encode(pixels)?;
    let noise = noise(&moments.mean.size());
    let latent = moments.sample(&noise.to_device(moments.mean.device()).to_kind(moments.mean.kind()));
    let scale = vae.config().scaling_factor;
    let latent = if recipe.model.invert_image_scale { latent / scale } else { latent * scale };
    Ok(latent.permute([0, 2, 1, 3, 4]).to_kind(Kind::Float).to_device(Device::Cpu))
}

/// Reads the VAE, which was checked at the start.
fn open(recipe: &Recipe, device: Device) -> Result<Vae, Failure> {
    let Encoders { folder, dtype, .. } = &recipe.encoders;
    Vae::open(&folder.join("vae"), compute_kind(*dtype), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_bytes_as_diffusers_rounds_them() {
        // Two frames of one row of two pixels, listed channel by channel.
        let video = Tensor::from_slice(&[-1.0f32, 1.0, 2.0, -2.0, 0.0, 0.002, 0.5, -0.5, 0.1, 0.2, 0.3, 0.4]);
        let frames = frames(&video.view([1, 3, 2, 1, 2]));
        assert_eq!((frames.width, frames.height, frames.count), (2, 1, 2));
        assert_eq!(frames.rgb, [0, 128, 140, 255, 128, 153, 255, 191, 166, 0, 64, 178]);
    }
}
