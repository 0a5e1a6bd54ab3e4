//! The conditions of a batch: inputs of the network besides the noised latent and the text.

use crate::seeds::{self, Purpose};
use dataset::{IMAGE, KNOWN, MASKED};
use recipe::{Condition, ConditionKind, Model};
use rundir::{ErrorCode, Failure};
use std::ops::Range;
use tch::{Kind, Tensor};

/// The conditions of a batch's samples, fp32 and scaled like latents. A condition that the recipe does not use is
/// `None`.
#[derive(Debug, Default)]
pub struct Conditions {
    /// Latents of the first images, `[B, 1, C, h, w]`.
    pub image: Option<Tensor>,
    /// The known part of each latent pixel, `[B, T, 1, h, w]`, from 0 to 1.
    pub known: Option<Tensor>,
    /// Latents of the masked videos, `[B, T, C, h, w]`.
    pub masked: Option<Tensor>,
}

/// Returns a stored tensor of sample `number` as a latent. If `moments` is set, the tensor holds means and
/// log-variances, and the latent is drawn from them. `place` is the tensor's index in the condition; each index has its
/// own draws.
pub fn drawn(place: usize, stored: &Tensor, moments: bool, seed: u64, number: u64) -> Tensor {
    if !moments {
        return stored.shallow_clone();
    }
    let halves = stored.chunk(2, 1);
    let purpose = if place == 0 { Purpose::Image } else { Purpose::Masked };
    let noise = seeds::normal(seed, purpose, number, &halves[0].size());
    &halves[0] + (halves[1].clamp(-30.0, 20.0) * 0.5).exp() * noise
}

impl Conditions {
    /// Joins the tensors of a batch's samples. `each(place)` returns one unscaled tensor per sample, for an index of
    /// [`dataset::condition_tensors`].
    pub fn of(condition: &Condition, model: &Model, each: impl Fn(usize) -> Vec<Tensor>) -> Self {
        let mut conditions = Conditions::default();
        for (place, role) in dataset::condition_tensors(condition.kind).iter().enumerate() {
            let (to, scale) = match *role {
                IMAGE => (&mut conditions.image, model.image_scale()),
                KNOWN => (&mut conditions.known, model.latent_scale),
                _ => (&mut conditions.masked, model.latent_scale),
            };
            // VideoX-Fun scales the mask with the latent of the masked video.
            *to = Some(Tensor::stack(&each(place), 0) * scale);
        }
        conditions
    }

    /// Returns the tensor that is concatenated with the noised latents of `frames` frames, or `None` for a recipe
    /// without conditions.
    ///
    /// * `first` — the number of the first sample of the global batch, which decides whether the images are dropped.
    /// * `numbers` — the numbers of the samples of this batch.
    ///
    /// # Errors
    /// Seconds spent waiting for collectives of the forward and backward pass.
    pub fn input(
        &self,
        condition: &Condition,
        frames: i64,
        seed: u64,
        first: u64,
        numbers: Range<u64>,
    ) -> Result<Option<Tensor>, Failure> {
        let missing = |role: &str| {
            Failure::new(
                ErrorCode::InvalidDataset,
                "cannot train with conditions",
                format!("the samples of the data set have no tensor {role}"),
                "encode the videos for this recipe: vidtui data encode VIDEOS --for RECIPE --model FOLDER --out DATA",
            )
        };
        match condition.kind {
            ConditionKind::None => Ok(None),
            ConditionKind::Image => {
                let latent = self.image.as_ref().ok_or_else(|| missing(IMAGE))?;
                // There is one draw for the whole batch, as in cogvideox-factory, and it is the same on every mesh.
                let dropped = seeds::happens(seed, Purpose::ImageDropout, first, condition.image_dropout);
                let input = dit::conditions::image(latent, frames);
                Ok(Some(if dropped { input.zeros_like() } else { input }))
            }
            ConditionKind::Inpaint => {
                let known = self.known.as_ref().ok_or_else(|| missing(KNOWN))?;
                let masked = self.masked.as_ref().ok_or_else(|| missing(MASKED))?;
                let most: Vec<f64> = Vec::try_from(known.flatten(1, -1).amax([1], false).to_kind(Kind::Double))
                    .expect("the known part is a number");
                let keep: Vec<f32> = most
                    .into_iter()
                    .zip(numbers)
                    .map(|(most, number)| {
                        let dropped = seeds::happens(seed, Purpose::MaskDropout, number, condition.mask_dropout);
                        if most == 0.0 && dropped { 0.0 } else { 1.0 }
                    })
                    .collect();
                let pad = |part: &Tensor| dit::conditions::padded(part, frames);
                let input = dit::conditions::inpaint(&pad(known), &pad(masked));
                Ok(Some(input * Tensor::from_slice(&keep).view([-1, 1, 1, 1, 1])))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    fn ones(size: &[i64]) -> Tensor {
        Tensor::ones(size, (Kind::Float, Device::Cpu))
    }

    fn share(condition: &Condition, conditions: &Conditions, draws: u64) -> f64 {
        let input = |k: u64| conditions.input(condition, 2, 7, k, k..k + 1).unwrap().unwrap();
        let kept = (0..draws).filter(|k| input(*k).abs().sum(Kind::Float).double_value(&[]) > 0.0).count();
        kept as f64 / draws as f64
    }

    #[test]
    fn all_images_of_a_batch_are_dropped_together_and_none_at_probability_0() {
        let conditions = Conditions { image: Some(ones(&[1, 1, 2, 2, 2])), ..Conditions::default() };
        let of = |image_dropout| Condition { kind: ConditionKind::Image, image_dropout, ..Condition::default() };
        assert!((share(&of(0.25), &conditions, 2000) - 0.75).abs() < 0.05);
        assert_eq!(share(&of(0.0), &conditions, 2000), 1.0);
        // The samples of a global batch share the draw, wherever they are computed.
        let dropped = |numbers: Range<u64>| {
            let input = conditions.input(&of(0.5), 2, 7, 40, numbers).unwrap().unwrap();
            input.abs().sum(Kind::Float).double_value(&[]) == 0.0
        };
        assert_eq!(dropped(40..41), dropped(43..44));
    }

    #[test]
    fn a_mask_is_dropped_only_if_it_covers_all_and_never_at_probability_0() {
        let of = |mask_dropout| Condition { kind: ConditionKind::Inpaint, mask_dropout, ..Condition::default() };
        let conditions =
            |known: Tensor| Conditions { image: None, known: Some(known), masked: Some(ones(&[1, 2, 2, 2, 2])) };
        let (all, part) = (conditions(ones(&[1, 2, 1, 2, 2]) * 0.0), conditions(ones(&[1, 2, 1, 2, 2]) * 0.1));
        assert!((share(&of(0.9), &all, 2000) - 0.1).abs() < 0.03);
        assert_eq!((share(&of(0.0), &all, 500), share(&of(0.9), &part, 500)), (1.0, 1.0));
        assert_eq!(part.input(&of(0.9), 2, 7, 0, 0..1).unwrap().unwrap().size(), [1, 2, 3, 2, 2]);
    }

    #[test]
    fn a_data_set_without_the_tensors_of_a_condition_is_refused() {
        for kind in [ConditionKind::Image, ConditionKind::Inpaint] {
            let condition = Condition { kind, ..Condition::default() };
            let failure = Conditions::default().input(&condition, 2, 7, 0, 0..1).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidDataset);
        }
    }
}
