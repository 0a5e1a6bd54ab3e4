//! The validation loss of held-out clips at nine fixed noise levels.
//!
//! All random draws of a clip depend only on the seed of samples and the number of the clip: the latent, its noise, which of
//! its stored conditions is used, and whether that condition is dropped. Two points of a loss curve therefore differ only by
//! the weights.

use crate::conditions;
use crate::data::Data;
use crate::device::upload;
use crate::exchange::agree;
use crate::noising::inputs;
use crate::parallelize::Sharded;
use crate::seeds::{self, Purpose};
use crate::torch_failure::failed;
use c10d::Group;
use dit::conditions::padded;
use dit::family::{Conditions, Family, shape_of};
use dit::network::Network;
use dit::objective::Objective;
use recipe::{Conditioning, Recipe};
use rundir::Failure;
use sharding::fsdp::Fsdp;
use tch::Kind;

/// The noise levels: the quantiles of timesteps from 10 % to 90 %.
pub const LEVELS: usize = 9;

/// The held-out clips.
pub struct Validation {
    data: Data,
    clips: u64,
    seed: u64,
    condition: Conditioning,
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
        held_out.data = recipe.data.of(index);
        // The order and the draws of latents depend on the seed of samples, not on the run's seed.
        held_out.train.seed = recipe.sample.seed;
        let data = Data::open_single(&held_out, world)?;
        let clips = data.len().min(recipe.sample.validation_clips as u64);
        let condition = recipe.condition.clone();
        Ok(Some(Validation { data, clips, seed: recipe.sample.seed, condition, compute }))
    }

    /// Returns the mean loss of the clips at each level. A collective.
    ///
    /// # Errors
    /// A clip cannot be read, or a peer is lost.
    pub fn measure<F: Family>(
        &mut self,
        fsdp: &mut Fsdp,
        network: &Network<F>,
        objective: &impl Objective,
    ) -> Result<[f64; LEVELS], Failure> {
        let (place, ranks) = fsdp.groups().data_place();
        let (place, ranks) = (place as u64, ranks as u64);
        let device = fsdp.groups().device;
        let mut sums = [0.0; LEVELS];
        // Every rank makes the same number of passes. A rank without a clip repeats the last clip and does not count it.
        for round in 0..self.clips.div_ceil(ranks) {
            let own = round * ranks + place;
            let clip = own.min(self.clips - 1);
            let batch = self.data.reading(clip..clip + 1).read(self.seed)?;
            let frames = network.family().frames(batch.latent.size()[1]);
            let clean = padded(&batch.latent, frames);
            // In training, all images of a batch are dropped together. Here each clip has its own draw.
            let numbers = clip..clip + 1;
            let conditions = conditions::inputs(batch.conditions, &self.condition, &clean, self.seed, clip, numbers)?;
            let (clean, text) = (upload(&clean, device), upload(&batch.text.to_kind(self.compute), device));
            let conditions: Conditions =
                conditions.iter().map(|(role, tensor)| (*role, upload(tensor, device))).collect();
            for (level, sum) in sums.iter_mut().enumerate() {
                let timestep = upload(&objective.timesteps(&[quantile(level)], shape_of(&clean)), device);
                let counter = clip * LEVELS as u64 + level as u64;
                let noise = seeds::normal(self.seed, Purpose::Validation, counter, &clean.size(), device);
                let (latent, target) = objective.noised(&clean, &noise, &timestep, &conditions);
                let inputs = inputs(&latent, &text, timestep, &conditions, self.compute);
                let output = network.forward(&mut Sharded(fsdp), &inputs).map_err(failed)?;
                if own < self.clips {
                    *sum += target.plain_loss(&output).double_value(&[]);
                }
            }
        }
        let first_of_tp = fsdp.groups().tp.rank() == 0;
        let all = agree(&fsdp.groups().world, Ok(if first_of_tp { sums } else { [0.0; LEVELS] }))?;
        Ok(std::array::from_fn(|level| all.iter().map(|sums| sums[level]).sum::<f64>() / self.clips as f64))
    }
}

/// Returns the quantile of the timesteps of a level, from 0.
fn quantile(level: usize) -> f64 {
    (level + 1) as f64 / (LEVELS + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use dit::diffusion::NoiseSchedule;
    use dit::objective::VPrediction;
    use recipe::{Loss, Shape};

    #[test]
    fn the_levels_are_at_the_tenths_of_the_schedule() {
        let objective = VPrediction { schedule: NoiseSchedule::default(), loss: Loss::default() };
        let quantiles: Vec<f64> = (0..LEVELS).map(quantile).collect();
        let all = objective.timesteps(&quantiles, Shape { frames: 1, height: 2, width: 2 });
        assert_eq!(Vec::<i64>::try_from(all).unwrap(), [100, 200, 300, 400, 500, 600, 700, 800, 900]);
    }
}
