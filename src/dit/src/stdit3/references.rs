//! References of sampling: latents of images and clips that become frames of a sample.
//!
//! Source: Open-Sora v1.2.0 `apply_mask_strategy` in `opensora/utils/inference_utils.py`.

use recipe::families::stdit3::{Reference, Span};
use std::fmt;
use tch::Tensor;

/// Noise with the frames of references.
#[derive(Debug)]
pub struct WithReferences {
    /// The latents at the start of sampling, `[B, T, C, height, width]`.
    pub latent: Tensor,
    /// For each sample and frame, the share of the steps in which the frame is sampled. 0: the frame stays as it is. 1: it starts as noise.
    pub shares: Vec<Vec<f32>>,
}

/// A reference that a mask string names and that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSuchReference {
    /// The number of the sample.
    pub sample: usize,
    /// The number of the reference.
    pub number: usize,
    /// The number of references of the sample.
    pub references: usize,
}

impl fmt::Display for NoSuchReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoSuchReference { sample, number, references } = self;
        write!(f, "sample {sample} has no reference {number}; it has {references}, counted from 0")
    }
}

impl std::error::Error for NoSuchReference {}

/// Places references into noise `[B, T, C, height, width]`.
///
/// * `samples` — for each sample, its mask string, and the latents of its references, `[T, C, height, width]` each.
/// * `in_loop` — the number of the loop, of samples that continue each other.
/// * `alignment` — as in [`Reference::span`].
///
/// # Errors
/// A mask string names a reference that is not there.
pub fn place(
    noise: &Tensor,
    samples: &[(Vec<Reference>, Vec<Tensor>)],
    in_loop: usize,
    alignment: Option<usize>,
) -> Result<WithReferences, NoSuchReference> {
    let latent = noise.copy();
    let frames = noise.size()[1] as usize;
    let mut shares = vec![vec![1.0; frames]; samples.len()];
    for (sample, (used, references)) in samples.iter().enumerate() {
        for part in used.iter().filter(|part| part.in_loop == in_loop) {
            let (number, count) = (part.number, references.len());
            let reference = references.get(number).ok_or(NoSuchReference { sample, number, references: count })?;
            let Span { from, to, frames } = part.span(reference.size()[0] as usize, frames, alignment);
            let place = latent.get(sample as i64).narrow(0, to as i64, frames as i64);
            let source = reference.narrow(0, from as i64, frames as i64);
            tch::no_grad(|| place.shallow_clone().copy_(&source));
            shares[sample][to..to + frames].fill(part.edit);
        }
    }
    Ok(WithReferences { latent, shares })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn a_reference_is_placed_in_its_loop_only() {
        let noise = Tensor::zeros([1, 5, 1, 1, 1], (Kind::Float, Device::Cpu));
        let reference = Tensor::arange(3, (Kind::Float, Device::Cpu)).view([3, 1, 1, 1]) + 1.0;
        let place = |text: &str, in_loop| {
            let samples = [(Reference::list(text).unwrap(), vec![reference.shallow_clone()])];
            place(&noise, &samples, in_loop, None)
        };
        let both = place("0,0,1,-2,9,0.5;1", 0).unwrap();
        assert_eq!(Vec::<f64>::try_from(both.latent.flatten(0, -1)).unwrap(), [0.0, 0.0, 0.0, 2.0, 3.0]);
        assert_eq!(both.shares, [[1.0, 1.0, 1.0, 0.5, 0.5]]);
        assert_eq!(place("1", 1).unwrap().shares, [[0.0, 1.0, 1.0, 1.0, 1.0]]);
        // A start after the end leaves everything as it is.
        assert_eq!(place("0,0,0,7", 0).unwrap().shares, [[1.0; 5]]);
        assert_eq!(noise.sum(Kind::Float).double_value(&[]), 0.0);
        assert_eq!(place("0,1", 0).unwrap_err(), NoSuchReference { sample: 0, number: 1, references: 1 });
    }
}
