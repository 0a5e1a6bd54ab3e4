//! Turns batches into the inputs and targets of training: draws timesteps, adds noise, and drops texts and conditions.

use crate::conditions;
use crate::data::Batch;
use crate::seeds::{self, Purpose};
use crate::step::compute_kind;
use dit::diffusion::Target;
use dit::family::{Conditions, Family, Inputs, shape_of};
use dit::objective::Objective;
use recipe::{Conditioning, Recipe};
use rundir::Failure;
use std::ops::Range;
use tch::{Kind, Tensor};

/// Turns batches into inputs and targets of training. It owns its settings, so that another thread can use it.
#[derive(Debug)]
pub struct Noising<O> {
    objective: O,
    condition: Conditioning,
    text_dropout: f64,
    patch_frames: usize,
    /// The seed of every random draw.
    seed: u64,
    compute: Kind,
}

impl<O: Objective> Noising<O> {
    /// Creates the noising of a recipe for a family of networks.
    pub fn new(recipe: &Recipe, family: &impl Family, objective: O, seed: u64) -> Self {
        Noising {
            objective,
            condition: recipe.condition.clone(),
            text_dropout: recipe.train.text_dropout,
            patch_frames: family.patch_frames(),
            seed,
            compute: compute_kind(recipe.train.dtype),
        }
    }

    /// Returns the seed of every random draw.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns for each of these samples whether it keeps its text.
    pub fn keeps_texts(&self, numbers: Range<u64>) -> Vec<bool> {
        numbers.map(|k| !seeds::happens(self.seed, Purpose::TextDropout, k, self.text_dropout)).collect()
    }

    /// Pads the latents of a batch, draws its timesteps, and drops conditions, on the CPU.
    ///
    /// * `step` — the numbers of all samples of the step.
    /// * `place` — the place of the batch's first sample within the step.
    ///
    /// # Errors
    /// The batch lacks a condition of the recipe.
    pub fn clean(&self, batch: Batch, step: Range<u64>, place: u64) -> Result<CleanBatch, Failure> {
        let first = step.start;
        let frames = (batch.latent.size()[1] as usize).next_multiple_of(self.patch_frames) as i64;
        let latent = dit::conditions::padded(&batch.latent, frames);
        let samples = latent.size()[0] as u64;
        let numbers = first + place..first + place + samples;
        let quantiles = quantiles(self.seed, first, (step.end - first) as usize);
        let own = &quantiles[place as usize..(place + samples) as usize];
        let timestep = self.objective.timesteps(own, shape_of(&latent));
        let conditions =
            conditions::inputs(batch.conditions, &self.condition, &latent, self.seed, first, numbers.clone())?;
        Ok(CleanBatch { latent, text: batch.text.to_kind(self.compute), timestep, conditions, numbers })
    }

    /// Draws noise and adds it to a batch, on the device of the batch, which must be that of the objective. Returns the inputs, with the
    /// conditions of the batch, and the target.
    pub fn noised(&self, batch: CleanBatch) -> (Inputs, Target) {
        let CleanBatch { latent: clean, text, timestep, conditions, numbers } = batch;
        let (shape, device) = (clean.size(), clean.device());
        let noise = numbers.map(|k| seeds::normal(self.seed, Purpose::Noise, k, &shape[1..], device));
        let noise = Tensor::stack(&noise.collect::<Vec<_>>(), 0);
        let (latent, target) = self.objective.noised(&clean, &noise, &timestep, &conditions);
        (inputs(&latent, &text, timestep, &conditions, self.compute), target)
    }
}

/// A batch without noise.
#[derive(Debug)]
pub struct CleanBatch {
    /// Latents of whole patches, `[B, T, C, h, w]`, fp32.
    latent: Tensor,
    /// Texts, in the compute dtype.
    text: Tensor,
    /// `[B]`
    timestep: Tensor,
    conditions: Conditions,
    /// The numbers of the samples, on which their noise depends.
    numbers: Range<u64>,
}

impl CleanBatch {
    /// Applies `change` to every tensor, for example a copy to another device.
    pub fn map(self, change: impl Fn(&Tensor) -> Tensor) -> Self {
        CleanBatch {
            latent: change(&self.latent),
            text: change(&self.text),
            timestep: change(&self.timestep),
            conditions: self.conditions.iter().map(|(name, tensor)| (*name, change(tensor))).collect(),
            numbers: self.numbers,
        }
    }
}

/// Returns the inputs of the network in its compute dtype.
pub fn inputs(latent: &Tensor, text: &Tensor, timestep: Tensor, conditions: &Conditions, compute: Kind) -> Inputs {
    Inputs {
        latent: latent.to_kind(compute),
        text: text.to_kind(compute),
        timestep,
        conditions: conditions.iter().map(|(name, tensor)| (*name, tensor.to_kind(compute))).collect(),
    }
}

/// Returns the quantiles of the timesteps of a global batch: one from each of `batch` equal bands, in a new random order every step.
///
/// Bands keep the mean noise level of all steps equal. The random order keeps a rank from always seeing the same level.
fn quantiles(seed: u64, first: u64, batch: usize) -> Vec<f64> {
    let bands = seeds::permutation(seed, Purpose::Timestep, first, batch);
    let draw = |(i, band): (usize, usize)| {
        let within = seeds::uniform(seed, Purpose::Timestep, first + i as u64);
        (band as f64 + within) / batch as f64
    };
    bands.into_iter().enumerate().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_has_one_timestep_of_each_band_in_changing_order() {
        let mut orders = std::collections::BTreeSet::new();
        for first in (0..80).step_by(8) {
            let drawn = quantiles(42, first, 8);
            let bands: Vec<i64> = drawn.iter().map(|quantile| (quantile * 8.0) as i64).collect();
            let mut sorted = bands.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..8), "{drawn:?}");
            orders.insert(bands);
        }
        assert!(orders.len() > 5, "{orders:?}");
    }
}
