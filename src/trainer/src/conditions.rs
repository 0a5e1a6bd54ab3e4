//! The conditions of a batch: inputs of the network besides the noised latent and the text.

use crate::seeds::{self, Purpose};
use dataset::{IMAGE, KNOWN, MASKED, condition_tensors};
use dit::family::Conditions;
use dit::wan::{FIRST_FRAME, conditions::MASK, conditions::mask};
use recipe::{ConditionKind, Conditioning, Model};
use rundir::{ErrorCode, Failure};
use std::ops::Range;
use tch::{Kind, Tensor};

/// Returns the purpose of the random draws of a condition's latents, by their place in [`condition_tensors`].
pub fn purpose(place: usize) -> Purpose {
    if place == 0 { Purpose::Image } else { Purpose::Masked }
}

/// Stacks the condition tensors of a batch, fp32, and scales them like latents. `each` returns the unscaled tensors for a place
/// in [`condition_tensors`], one per sample.
///
/// * `image` — latents of the first images, `[B, 1, C, h, w]`.
/// * `known` — the known part of each latent pixel, `[B, T, 1, h, w]`, from 0 to 1.
/// * `masked` — latents of the masked videos, `[B, T, C, h, w]`.
pub fn of_batch(condition: &Conditioning, model: &Model, each: impl Fn(usize) -> Vec<Tensor>) -> Conditions {
    // Like VideoX-Fun, scale the mask as the latent of the masked video.
    let scale = |role| if role == IMAGE { model.image_scale() } else { model.latent_scale };
    let roles = condition_tensors(condition.kind).iter().enumerate();
    roles.map(|(place, role)| (*role, Tensor::stack(&each(place), 0) * scale(*role))).collect()
}

/// Returns the conditions that the network takes with the noised form of `latent`: padded to its frames, and dropped with the
/// probabilities of the recipe.
///
/// * `latent` — the latents without noise, `[B, T, C, h, w]`.
/// * `first` — the number of the first sample of the global batch, which decides whether the images are dropped.
/// * `numbers` — the numbers of the samples of this batch.
///
/// # Errors
/// The samples lack a tensor of the condition.
pub fn inputs(
    mut conditions: Conditions,
    condition: &Conditioning,
    latent: &Tensor,
    seed: u64,
    first: u64,
    numbers: Range<u64>,
) -> Result<Conditions, Failure> {
    let roles = condition_tensors(condition.kind);
    if let Some(role) = roles.iter().find(|role| !conditions.iter().any(|(own, _)| own == *role)) {
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            "cannot train with conditions",
            format!("the samples of the data set have no tensor {role}"),
            "encode the videos for this recipe: vidtui data encode VIDEOS --for RECIPE --model FOLDER --out DATA",
        ));
    }
    let frames = latent.size()[1];
    // There is one draw for the whole batch, as in cogvideox-factory, and it is the same on every mesh.
    let drops_image = || seeds::happens(seed, Purpose::ImageDropout, first, condition.image_dropout);
    let kept = match condition.kind {
        ConditionKind::None => return Ok(conditions),
        // Nothing of an image is left to predict if it is known.
        ConditionKind::FirstFrame if frames == 1 || drops_image() => return Ok(conditions),
        ConditionKind::FirstFrame => return Ok(vec![(FIRST_FRAME, latent.narrow(1, 0, 1))]),
        ConditionKind::ImageClip => {
            let mask = mask([latent.size()[0], frames, latent.size()[3], latent.size()[4]], false);
            let masked = conditions.remove(0).1;
            return Ok(vec![(MASK, mask), (MASKED, masked)]);
        }
        ConditionKind::Image => vec![if drops_image() { 0f32 } else { 1.0 }],
        ConditionKind::Inpaint => {
            let known = &conditions.iter().find(|(role, _)| *role == KNOWN).expect("the role was found above").1;
            let most: Vec<f64> = Vec::try_from(known.flatten(1, -1).amax([1], false).to_kind(Kind::Double))
                .expect("the known part is a number");
            let kept = most.into_iter().zip(numbers).map(|(most, number)| {
                let dropped = seeds::happens(seed, Purpose::MaskDropout, number, condition.mask_dropout);
                if most == 0.0 && dropped { 0.0 } else { 1.0 }
            });
            kept.collect()
        }
    };
    let kept = Tensor::from_slice(&kept).view([-1, 1, 1, 1, 1]);
    for (role, tensor) in &mut conditions {
        *tensor = whole(role, tensor, frames) * &kept;
    }
    Ok(conditions)
}

/// Returns a tensor of a condition with as many frames as the noised latent.
pub fn whole(role: &str, tensor: &Tensor, frames: i64) -> Tensor {
    match role {
        IMAGE => dit::conditions::image(tensor, frames),
        FIRST_FRAME => tensor.shallow_clone(),
        _ => dit::conditions::padded(tensor, frames),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    fn ones(size: &[i64]) -> Tensor {
        Tensor::ones(size, (Kind::Float, Device::Cpu))
    }

    fn copy(conditions: &Conditions) -> Conditions {
        conditions.iter().map(|(role, tensor)| (*role, tensor.shallow_clone())).collect()
    }

    fn share(condition: &Conditioning, conditions: &Conditions, draws: u64) -> f64 {
        let is_kept = |k: &u64| {
            let latent = ones(&[1, 2, 2, 2, 2]);
            let inputs = inputs(copy(conditions), condition, &latent, 7, *k, *k..*k + 1).unwrap();
            inputs.iter().any(|(_, tensor)| tensor.abs().sum(Kind::Float).double_value(&[]) > 0.0)
        };
        (0..draws).filter(is_kept).count() as f64 / draws as f64
    }

    #[test]
    fn all_images_of_a_batch_are_dropped_together_and_none_at_probability_0() {
        let conditions = vec![(IMAGE, ones(&[1, 1, 2, 2, 2]))];
        let of = |image_dropout| Conditioning { kind: ConditionKind::Image, image_dropout, ..Conditioning::default() };
        assert!((share(&of(0.25), &conditions, 2000) - 0.75).abs() < 0.05);
        assert_eq!(share(&of(0.0), &conditions, 2000), 1.0);
        // The samples of a global batch share the draw, wherever they are computed.
        let dropped = |numbers: Range<u64>| {
            let input =
                inputs(copy(&conditions), &of(0.5), &ones(&[1, 2, 2, 2, 2]), 7, 40, numbers).unwrap().remove(0).1;
            input.abs().sum(Kind::Float).double_value(&[]) == 0.0
        };
        assert_eq!(dropped(40..41), dropped(43..44));
    }

    #[test]
    fn a_mask_is_dropped_only_if_it_covers_all_and_never_at_probability_0() {
        let of = |mask_dropout| Conditioning { kind: ConditionKind::Inpaint, mask_dropout, ..Conditioning::default() };
        let conditions = |known: Tensor| vec![(KNOWN, known), (MASKED, ones(&[1, 2, 2, 2, 2]))];
        let (all, part) = (conditions(ones(&[1, 2, 1, 2, 2]) * 0.0), conditions(ones(&[1, 2, 1, 2, 2]) * 0.1));
        assert!((share(&of(0.9), &all, 2000) - 0.1).abs() < 0.03);
        assert_eq!((share(&of(0.0), &all, 500), share(&of(0.9), &part, 500)), (1.0, 1.0));
        let padded = inputs(part, &of(0.9), &ones(&[1, 4, 2, 2, 2]), 7, 0, 0..1).unwrap();
        assert!(padded.iter().all(|(_, tensor)| tensor.size()[1] == 4));
    }

    #[test]
    fn a_first_frame_is_that_of_the_latent_unless_it_is_dropped_or_the_only_one() {
        let of = |image_dropout, frames| {
            let kind = ConditionKind::FirstFrame;
            let condition = Conditioning { kind, image_dropout, ..Conditioning::default() };
            let latent = Tensor::arange(frames * 8, (Kind::Float, Device::Cpu)).view([1, frames, 2, 2, 2]);
            let inputs = inputs(Vec::new(), &condition, &latent, 7, 40, 40..41).unwrap();
            inputs.into_iter().map(|(role, tensor)| (role, tensor == latent.narrow(1, 0, 1))).collect::<Vec<_>>()
        };
        assert_eq!(of(0.0, 3), [(FIRST_FRAME, true)]);
        assert_eq!((of(1.0, 3), of(0.0, 1)), (vec![], vec![]));
    }

    #[test]
    fn the_mask_of_an_image_clip_knows_its_first_frame() {
        let condition = Conditioning { kind: ConditionKind::ImageClip, ..Conditioning::default() };
        let (latent, masked) = (ones(&[2, 3, 2, 1, 1]), ones(&[2, 3, 2, 1, 1]) * 0.5);
        let inputs = inputs(vec![(MASKED, masked)], &condition, &latent, 7, 0, 0..2).unwrap();
        let [(MASK, mask), (MASKED, masked)] = &inputs[..] else { panic!("{inputs:?}") };
        assert_eq!((mask.size(), masked.size()), (vec![2, 3, 4, 1, 1], vec![2, 3, 2, 1, 1]));
        assert_eq!(mask.sum(Kind::Float).double_value(&[]), 8.0);
    }

    #[test]
    fn a_data_set_without_the_tensors_of_a_condition_is_refused() {
        for kind in [ConditionKind::Image, ConditionKind::Inpaint, ConditionKind::ImageClip] {
            let condition = Conditioning { kind, ..Conditioning::default() };
            let failure = inputs(Vec::new(), &condition, &ones(&[1, 2, 2, 2, 2]), 7, 0, 0..1).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidDataset);
        }
    }
}
