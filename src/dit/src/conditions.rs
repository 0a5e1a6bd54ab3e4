//! The conditions of the network besides the noised latent: an image, or a mask and a masked video.
//!
//! Conditions are concatenated along the channels after noise was added. So they get no diffusion noise, and the loss
//! covers only the predicted channels. Latents are `[B, T, C, h, w]`, pixels `[B, 3, F, H, W]` in -1..1, masks `[B, F,
//! 1, H, W]` with 1 for pixels to generate.

use tch::{Kind, Tensor};

/// The mean of the logarithm of the noise level of images.
pub const IMAGE_NOISE_MEAN: f64 = -3.0;
/// The standard deviation of the logarithm of the noise level of images.
pub const IMAGE_NOISE_STD: f64 = 0.5;
/// The value of a masked pixel. Black pixels have the same value.
const MASKED: f64 = -1.0;

/// Pads latents to `frames` frames by repeating the first frame in front.
///
/// A patch of CogVideoX 1.5 has two latent frames; its pipeline and zai-org's trainer pad an odd number of frames in
/// front.
pub fn padded(latent: &Tensor, frames: i64) -> Tensor {
    let more = frames - latent.size()[1];
    if more <= 0 {
        return latent.shallow_clone();
    }
    let mut size = latent.size();
    size[1] = more;
    Tensor::cat(&[latent.narrow(1, 0, 1).expand(&size, false), latent.shallow_clone()], 1)
}

/// Returns the condition of image-to-video: the latent of the image, `[B, 1, C, h, w]`, followed by zero frames.
///
/// Source: cogvideox-factory, and diffusers `CogVideoXImageToVideoPipeline.prepare_latents`.
pub fn image(latent: &Tensor, frames: i64) -> Tensor {
    let mut rest = latent.size();
    rest[1] = frames - rest[1];
    Tensor::cat(&[latent.shallow_clone(), Tensor::zeros(&rest, (latent.kind(), latent.device()))], 1)
}

/// Returns the unmasked share of each latent pixel, `[B, T, 1, h, w]`, from 0 to 1.
///
/// The first frame is resized separately from the others, because the VAE encodes it separately.
///
/// Source: VideoX-Fun `resize_mask`, trilinear without corner alignment.
pub fn known(mask: &Tensor, [frames, height, width]: [i64; 3]) -> Tensor {
    let known: Tensor = 1.0 - mask.to_kind(Kind::Float);
    // [B, 1, F, H, W]
    let known = known.transpose(1, 2);
    let resize = |part: &Tensor, count: i64| part.upsample_trilinear3d([count, height, width], false, None, None, None);
    let first = resize(&known.narrow(2, 0, 1), 1);
    let rest = known.size()[2] - 1;
    if frames == 1 || rest == 0 {
        return first.transpose(1, 2);
    }
    Tensor::cat(&[first, resize(&known.narrow(2, 1, rest), frames - 1)], 2).transpose(1, 2)
}

/// Returns pixels with noise of level `exp(sigma_log)`, one level per sample, `[B]`.
///
/// Source: cogvideox-factory; `sigma_log` is drawn from a normal distribution of [`IMAGE_NOISE_MEAN`] and [`IMAGE_NOISE_STD`].
pub fn noised_image(pixels: &Tensor, sigma_log: &Tensor, noise: &Tensor) -> Tensor {
    pixels + sigma_log.exp().view([-1, 1, 1, 1, 1]) * noise
}

/// Returns a video whose masked pixels are -1.
///
/// `noise` holds the logarithm of the noise level, `[B]`, and the noise. If set, it is added to all unmasked pixels
/// except black ones, whose value is -1 too.
///
/// Source: VideoX-Fun `train.py` and `add_noise_to_reference_video`.
pub fn masked_video(pixels: &Tensor, mask: &Tensor, noise: Option<(&Tensor, &Tensor)>) -> Tensor {
    let hidden = mask.transpose(1, 2).to_kind(Kind::Bool);
    let masked = pixels.masked_fill(&hidden, MASKED);
    match noise {
        None => masked,
        Some((sigma_log, noise)) => {
            let noised = noised_image(&masked, sigma_log, noise);
            masked.where_self(&masked.eq(MASKED), &noised)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn a_latent_is_padded_in_front_and_only_as_far_as_needed() {
        let latent = Tensor::arange(3, (Kind::Float, Device::Cpu)).view([1, 3, 1, 1, 1]);
        let values =
            |latent: &Tensor| Vec::<f64>::try_from(latent.flatten(0, -1).to_kind(Kind::Double)).expect("numbers");
        assert_eq!(values(&padded(&latent, 4)), [0.0, 0.0, 1.0, 2.0]);
        assert_eq!(values(&padded(&latent, 3)), [0.0, 1.0, 2.0]);
        assert_eq!(values(&image(&latent.narrow(1, 1, 1), 3)), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn black_pixels_and_masked_pixels_get_no_noise() {
        let pixels = Tensor::from_slice(&[-1f32, 0.5, 0.5, 0.25]).view([1, 1, 1, 2, 2]);
        let mask = Tensor::from_slice(&[0f32, 0.0, 1.0, 0.0]).view([1, 1, 1, 2, 2]);
        let (level, noise) = (Tensor::zeros([1], (Kind::Float, Device::Cpu)), pixels.ones_like());
        let masked = masked_video(&pixels, &mask, Some((&level, &noise)));
        assert_eq!(masked.flatten(0, -1), Tensor::from_slice(&[-1f32, 1.5, -1.0, 1.25]));
    }
}
