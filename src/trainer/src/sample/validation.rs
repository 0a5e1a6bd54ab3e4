//! The validation loss of held-out clips at nine fixed noise levels. The seed of samples and the number of the clip fix all
//! draws: the latent, its noise, which of its stored conditions is used, and whether that condition is dropped. Two points
//! of a curve therefore differ only by the weights.

use crate::data::Data;
use crate::device::upload;
use crate::exchange::{agree, peer_lost};
use crate::parallelize::Sharded;
use crate::seeds::{self, Purpose};
use crate::step::inputs;
use c10d::Group;
use dit::conditions::padded;
use dit::diffusion::Schedule;
use dit::embed::Inputs;
use dit::network::Network;
use recipe::{Condition, Recipe};
use rundir::Failure;
use sharding::fsdp::Fsdp;
use tch::{Kind, Tensor};

/// The noise levels: the timesteps at 10 % to 90 % of the schedule.
pub const LEVELS: usize = 9;

/// The held-out clips.
pub struct Validation {
    data: Data,
    clips: u64,
    seed: u64,
    condition: Condition,
    /// The latent frames that the network receives.
    frames: i64,
    compute: Kind,
}

impl Validation {
    /// Opens the held-out clips of a recipe, if it has any. A collective.
    ///
    /// # Errors
    /// The index cannot be read or does not fit the model.
    pub fn open(recipe: &Recipe, compute: Kind, world: &Group) -> Result<Option<Self>, Failure> {
        let Some(index) = recipe.sample.validation_index() else { return Ok(None) };
        let mut held_out = recipe.clone();
        held_out.data.index = index.to_owned();
        // The order and the draws of latents depend on the seed of samples, not on the run's seed.
        held_out.train.seed = recipe.sample.seed;
        let data = Data::open(&held_out, world)?;
        let clips = data.len().min(recipe.sample.validation_clips as u64);
        let (condition, frames) = (recipe.condition.clone(), recipe.model.padded_frames() as i64);
        Ok(Some(Validation { data, clips, seed: recipe.sample.seed, condition, frames, compute }))
    }

    /// Returns the mean loss of the clips at each level. A collective.
    ///
    /// # Errors
    /// A clip cannot be read, or a peer is lost.
    pub fn measure(
        &mut self,
        fsdp: &mut Fsdp,
        network: &Network,
        schedule: &Schedule,
    ) -> Result<[f64; LEVELS], Failure> {
        let (place, ranks) = fsdp.groups().data_place();
        let (place, ranks) = (place as u64, ranks as u64);
        let device = fsdp.groups().device;
        let mut sums = [0.0; LEVELS];
        // Every rank makes the same number of passes. A rank without a clip repeats one and does not count it.
        for round in 0..self.clips.div_ceil(ranks) {
            let own = round * ranks + place;
            let clip = own.min(self.clips - 1);
            let batch = self.data.batch(clip..clip + 1, clip..clip + 1, self.seed)?;
            let clean = padded(&batch.latent, self.frames);
            // In training, all images of a batch are dropped together. Here each clip has its own draw.
            let condition = batch.conditions.input(&self.condition, self.frames, self.seed, clip, clip..clip + 1)?;
            for (level, sum) in sums.iter_mut().enumerate() {
                let timestep = Tensor::from_slice(&[timestep(level, schedule.alphas_cumprod().size()[0])]);
                let counter = clip * LEVELS as u64 + level as u64;
                let noise = seeds::normal(self.seed, Purpose::Validation, counter, &clean.size());
                let noised = schedule.noise(&clean, &noise, &timestep);
                let inputs = inputs(&noised.latent, condition.as_ref(), &batch.text, &timestep, self.compute);
                let inputs = Inputs {
                    latent: upload(&inputs.latent, device),
                    text: upload(&inputs.text, device),
                    timestep: upload(&inputs.timestep, device),
                };
                let output = network.forward(&mut Sharded(fsdp), &inputs).map_err(peer_lost)?;
                let error = output.to_kind(Kind::Float) - upload(&noised.velocity, device);
                if own < self.clips {
                    *sum += error.square().mean(Kind::Float).double_value(&[]);
                }
            }
        }
        let first_of_tp = fsdp.groups().tp.rank() == 0;
        let all = agree(&fsdp.groups().world, Ok(if first_of_tp { sums } else { [0.0; LEVELS] }))?;
        Ok(std::array::from_fn(|level| all.iter().map(|sums| sums[level]).sum::<f64>() / self.clips as f64))
    }
}

/// Returns the timestep of a level, from 0.
fn timestep(level: usize, timesteps: i64) -> i64 {
    (level as i64 + 1) * timesteps / (LEVELS as i64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_are_at_the_tenths_of_the_schedule() {
        let all: Vec<i64> = (0..LEVELS).map(|level| timestep(level, 1000)).collect();
        assert_eq!(all, [100, 200, 300, 400, 500, 600, 700, 800, 900]);
    }
}
