//! The objective of training: the distribution of timesteps, the noised latent and the target of the output.

use crate::diffusion::{NoiseSchedule, Target};
use crate::family::Conditions;
use recipe::{Loss, Model, Shape};
use tch::{Device, Tensor};

/// An objective of training. Its clones may be used in other threads.
pub trait Objective: Clone + Send + 'static {
    /// Returns the timesteps `[B]` at these quantiles of their distribution, each in `0.0..1.0`, for latents of a shape. They are on the
    /// CPU, wherever the tables are.
    ///
    /// The trainer spreads the quantiles of a global batch evenly, and draws them the same on every mesh.
    fn timesteps(&self, quantiles: &[f64], shape: Shape) -> Tensor;

    /// Returns the objective with its tables on a device. Most objectives have none.
    #[must_use]
    fn on(&self, _: Device) -> Self {
        self.clone()
    }

    /// Noises clean latents `[B, T, C, height, width]` with noise of the same shape at timesteps `[B]`, all fp32 and on the device of the
    /// tables. Returns the noised latents and the target of the network's output. An objective may keep frames clean that
    /// `conditions` name; [`VPrediction`] ignores them. The host must not wait for the device.
    fn noised(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor, conditions: &Conditions) -> (Tensor, Target);
}

/// Prediction of the velocity at the timesteps of a noise schedule, as CogVideoX is trained.
#[derive(Debug, Clone)]
pub struct VPrediction {
    /// The noise schedule.
    pub schedule: NoiseSchedule,
    /// The weights of samples and of the frame-difference error.
    pub loss: Loss,
}

impl VPrediction {
    /// Returns the objective with the noise schedule of a model.
    pub fn new(model: &Model, loss: &Loss) -> Self {
        VPrediction { schedule: NoiseSchedule::new(model), loss: loss.clone() }
    }
}

impl Objective for VPrediction {
    fn timesteps(&self, quantiles: &[f64], _: Shape) -> Tensor {
        let count = self.schedule.timesteps();
        let timestep = |quantile: &f64| ((quantile * count as f64) as i64).min(count - 1);
        Tensor::from_slice(&quantiles.iter().map(timestep).collect::<Vec<_>>())
    }

    fn on(&self, device: Device) -> Self {
        VPrediction { schedule: self.schedule.on(device), loss: self.loss.clone() }
    }

    fn noised(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor, _: &Conditions) -> (Tensor, Target) {
        let noised = self.schedule.noise(clean, noise, timestep);
        let latent = noised.latent.shallow_clone();
        (latent, self.schedule.target(noised, clean, timestep, &self.loss))
    }
}
