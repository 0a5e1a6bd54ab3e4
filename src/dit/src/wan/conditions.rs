//! The conditions of Wan's image-to-video: the clip that the VAE encodes, and the mask of its known frames.
//!
//! The network's input is the noised latent, the mask and the latent of the clip, in this order of channels.

use tch::{Device, Kind, Tensor};

/// The condition with the mask of known frames.
pub const MASK: &str = "mask";
/// The condition with the normalised latent of the clip of known frames.
pub const IMAGE: &str = "image";

/// The pixel frames of each latent frame after the first, which has one.
const FRAMES: i64 = 4;

/// Returns the clip whose latent is a condition, `[B, 3, frames, H, W]`: the first image, grey, and the last image if there is one. Images
/// are `[B, 3, H, W]` in -1..1, in which grey is 0.
///
/// Source: the original `WanI2V.generate` and `WanFLF2V.generate`. The VAE encodes the whole clip, because zeros in the latent are not grey.
pub fn clip(first: &Tensor, last: Option<&Tensor>, frames: i64) -> Tensor {
    let mut grey = first.unsqueeze(2).size();
    grey[2] = frames - 1 - i64::from(last.is_some());
    let mut parts = vec![first.unsqueeze(2), first.new_zeros(&grey, (first.kind(), first.device()))];
    parts.extend(last.map(|last| last.unsqueeze(2)));
    Tensor::cat(&parts, 2)
}

/// Returns the mask of a clip whose first image is known, and also the last if `last` is set, `[B, T, 4, h, w]` for latents of this size, fp32:
/// 1 for known pixel frames. A latent frame has the mask of its four pixel frames in its channels; the first has its one frame in all of them.
///
/// Source: the original `WanI2V.generate` and `WanFLF2V.generate`.
pub fn mask([batch, frames, height, width]: [i64; 4], last: bool) -> Tensor {
    let mask = Tensor::zeros([batch, frames, FRAMES, height, width], (Kind::Float, Device::Cpu));
    let _ = mask.select(1, 0).fill_(1.0);
    if last {
        let _ = mask.select(1, frames - 1).select(1, FRAMES - 1).fill_(1.0);
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pixel_frame_is_the_last_channel_of_the_last_latent_frame() {
        let known = |last| {
            let frames = mask([1, 3, 1, 1], last).view([-1]);
            Vec::<f64>::try_from(frames.to_kind(Kind::Double)).unwrap()
        };
        assert_eq!(known(false), [1., 1., 1., 1., 0., 0., 0., 0., 0., 0., 0., 0.]);
        assert_eq!(known(true), [1., 1., 1., 1., 0., 0., 0., 0., 0., 0., 0., 1.]);
    }

    #[test]
    fn a_clip_is_grey_between_its_images() {
        let image = |value: f64| Tensor::full([1, 3, 1, 1], value, (Kind::Double, Device::Cpu));
        let red = |clip: Tensor| Vec::<f64>::try_from(clip.select(1, 0).view([-1])).unwrap();
        assert_eq!(red(clip(&image(0.5), None, 5)), [0.5, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(red(clip(&image(0.5), Some(&image(-1.0)), 5)), [0.5, 0.0, 0.0, 0.0, -1.0]);
    }
}
