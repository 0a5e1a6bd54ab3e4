//! The tensors of a clip for models that receive an image or a masked video besides text.
//!
//! The tensors depend only on the seed of the encode, the content of the video and the number of the draw, so that every rank
//! computes the same ones.

// B batch (one clip), C channels, F frames, T latent frames, H and W pixels, h and w latent pixels.

use crate::seeds::{Purpose, bits, normal, uniform};
use dataset::store::ConditionSpec;
use dataset::{IMAGE, KNOWN, MASKED, drawn_role};
use dit::conditions::{IMAGE_NOISE_MEAN, IMAGE_NOISE_STD, known, masked_video, noised_image};
use dit::masks::Mask;
use recipe::{ConditionKind, Conditioning};
use rundir::{ErrorCode, Failure};
use tch::{Kind, Tensor};

/// Returns the tensors of a clip `[B, 3, F, H, W]` in -1…1, by role. The first dimension of each is that of latent frames.
///
/// `encode` returns the moments `[B, 2C, T, h, w]` of a video.
pub fn of_clip(
    spec: &ConditionSpec,
    seed: u64,
    video_bcfhw: &Tensor,
    encode: &mut dyn FnMut(&Tensor) -> Result<Tensor, Failure>,
) -> Result<Vec<(String, Tensor)>, Failure> {
    let mut tensors = Vec::new();
    for draw in 0..spec.draws {
        let noise = |like: &Tensor| {
            let of = |purpose, shape: &[i64]| normal(seed, purpose, draw as u64, shape, like.device());
            let level = of(Purpose::EncodeNoiseLevel, &[1]) * IMAGE_NOISE_STD + IMAGE_NOISE_MEAN;
            (level, of(Purpose::EncodeNoise, &like.size()))
        };
        let mut add = |role: &str, tensor: Tensor| tensors.push((drawn_role(role, draw), tensor));
        match spec.kind {
            ConditionKind::None | ConditionKind::FirstFrame => {}
            ConditionKind::ImageClip => {
                let first_bchw = video_bcfhw.select(2, 0);
                let clip = dit::wan::conditions::clip(&first_bchw, None, video_bcfhw.size()[2]);
                add(MASKED, frames_first(&encode(&clip)?));
            }
            ConditionKind::Image => {
                let mut image = video_bcfhw.narrow(2, 0, 1);
                if spec.noise {
                    let (level, noise) = noise(&image);
                    image = noised_image(&image, &level, &noise);
                }
                add(IMAGE, frames_first(&encode(&image)?));
            }
            ConditionKind::Inpaint => {
                let mask_bf1hw = mask(spec, seed, draw, video_bcfhw)?;
                let noise = spec.noise.then(|| noise(video_bcfhw));
                let masked =
                    masked_video(video_bcfhw, &mask_bf1hw, noise.as_ref().map(|(level, noise)| (level, noise)));
                drop(noise);
                let moments_bcthw = encode(&masked)?;
                let size = moments_bcthw.size();
                add(KNOWN, known(&mask_bf1hw, [size[2], size[3], size[4]]).squeeze_dim(0));
                add(MASKED, frames_first(&moments_bcthw));
            }
        }
    }
    Ok(tensors)
}

/// Returns moments `[B, 2C, T, h, w]` of one clip as `[T, 2C, h, w]`.
pub fn frames_first(moments_bcthw: &Tensor) -> Tensor {
    moments_bcthw.squeeze_dim(0).permute([1, 0, 2, 3])
}

/// Draws the mask `[B, F, 1, H, W]` of a clip: 1 for pixels to generate.
fn mask(spec: &ConditionSpec, seed: u64, draw: usize, video_bcfhw: &Tensor) -> Result<Tensor, Failure> {
    let condition = Conditioning { masks: spec.masks.clone(), ..Conditioning::default() };
    let kinds = condition
        .mask_kinds()
        .map_err(|why| Failure::new(ErrorCode::InvalidDataset, "cannot draw a mask", why, "start the encode again"))?;
    let size = video_bcfhw.size();
    let (key, mut drawn) = (bits(seed, Purpose::EncodeMask, draw as u64), 0);
    let mut next = || {
        drawn += 1;
        uniform(key, Purpose::EncodeMask, drawn)
    };
    let mask = Mask::draw(&kinds, [size[2] as usize, size[3] as usize, size[4] as usize], &mut next);
    let mask = Tensor::from_slice(&mask.pixels).view([1, size[2], 1, size[3], size[4]]);
    Ok(mask.to_device(video_bcfhw.device()).to_kind(Kind::Float))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    fn spec(kind: ConditionKind, noise: bool, draws: usize) -> ConditionSpec {
        let condition = Conditioning { kind, image_noise: noise, draws, ..Conditioning::default() };
        ConditionSpec::of(&condition).unwrap().unwrap()
    }

    /// Returns the tensors of a small clip. The encoder averages blocks of 8 × 8 pixels: the mean, then a log-variance of 0.
    fn made(spec: &ConditionSpec, seed: u64) -> Vec<(String, Tensor)> {
        let clip = Tensor::arange(3 * 5 * 16 * 24, (Kind::Float, Device::Cpu)).view([1, 3, 5, 16, 24]) / 10_000.0;
        let mut encode = |video: &Tensor| {
            let frames = (video.size()[2] + 3) / 4;
            let mean = video.narrow(2, 0, frames).avg_pool3d([1, 8, 8], [1, 8, 8], [0, 0, 0], false, true, None::<i64>);
            Ok(Tensor::cat(&[&mean, &mean.zeros_like()], 1))
        };
        of_clip(spec, seed, &clip, &mut encode).unwrap()
    }

    #[test]
    fn an_image_is_the_first_frame_and_its_noise_depends_on_clip_and_draw() {
        let clean = made(&spec(ConditionKind::Image, false, 4), 1);
        let roles = |made: &[(String, Tensor)]| made.iter().map(|(role, _)| role.clone()).collect::<Vec<_>>();
        assert_eq!((roles(&clean), clean[0].1.size()), (vec!["image".to_owned()], vec![1, 6, 2, 3]));
        let noised = made(&spec(ConditionKind::Image, true, 2), 1);
        assert_eq!(roles(&noised), ["image", "image.1"]);
        let apart = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
        // The noise level is about e^-3, averaged over 64 pixels.
        assert!((1e-4..0.2).contains(&apart(&noised[0].1, &clean[0].1)));
        assert!(apart(&noised[0].1, &noised[1].1) > 1e-4);
        assert!(apart(&noised[0].1, &made(&spec(ConditionKind::Image, true, 2), 2)[0].1) > 1e-4);
        assert_eq!(noised[1].1, made(&spec(ConditionKind::Image, true, 2), 1)[1].1);
    }

    #[test]
    fn an_image_clip_is_grey_after_its_first_frame() {
        let [(role, latent)] = &made(&spec(ConditionKind::ImageClip, false, 1), 1)[..] else { panic!() };
        assert_eq!((role.as_str(), latent.size()), ("masked", vec![2, 6, 2, 3]));
        assert!(latent.get(0).narrow(0, 0, 3).min().double_value(&[]) > 0.0);
        assert_eq!(latent.get(1).abs().max().double_value(&[]), 0.0);
    }

    #[test]
    fn a_masked_video_is_minus_one_where_nothing_is_known() {
        let only =
            |kind: &str| ConditionSpec { masks: vec![format!("{kind}=1")], ..spec(ConditionKind::Inpaint, false, 1) };
        let all = made(&only("all"), 3);
        let sizes: Vec<(&str, Vec<i64>)> = all.iter().map(|(role, tensor)| (role.as_str(), tensor.size())).collect();
        assert_eq!(sizes, [("known", vec![2, 1, 2, 3]), ("masked", vec![2, 6, 2, 3])]);
        assert_eq!(all[0].1.sum(Kind::Float).double_value(&[]), 0.0);
        assert_eq!(all[1].1.narrow(1, 0, 3).min().double_value(&[]), -1.0);
        assert_eq!(all[1].1.narrow(1, 0, 3).max().double_value(&[]), -1.0);
        // The first frame is known, so it has the pixels of the clip.
        let tail = made(&only("tail"), 3);
        assert_eq!(tail[0].1.get(0).min().double_value(&[]), 1.0);
        assert!(tail[1].1.get(0).narrow(0, 0, 3).min().double_value(&[]) >= 0.0);
        // Each draw has its own mask, which is the same on every rank.
        let many = spec(ConditionKind::Inpaint, false, 16);
        let (first, second) = (made(&many, 3), made(&many, 3));
        assert_eq!((first.len(), &first), (32, &second));
        assert!((1..16).any(|draw| first[2 * draw].1 != first[0].1));
    }
}
