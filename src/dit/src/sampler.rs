//! Sampling: from noise to a latent with a trained network.
//!
//! DPM++ 2M SDE for the schedule with zero terminal SNR, as ttt-video-dit samples (`cogvideo/utils.py`, its `VPSDEDPMPP2M`;
//! Lu et al. 2022, "DPM-Solver++", 2M in its stochastic form). The caller passes the noise and
//! the network's predictions, so the sampler is deterministic.
//!
//! Evaluations use it; training does not. Tests compare it with a sampling run recorded
//! from the reference, step by step.

use crate::diffusion::{Schedule, TIMESTEPS};
use std::f64::consts::PI;
use tch::Tensor;

/// The classifier-free guidance of each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// The maximum of the guidance scale minus 1.
    pub scale: f64,
    /// The exponent of time in the scale.
    pub power: i32,
}

impl Default for Guidance {
    /// Returns CogVideoX's values.
    fn default() -> Self {
        Guidance { scale: 6.0, power: 5 }
    }
}

/// The network's prediction for a noised latent: its velocities without and with the text.
#[derive(Debug)]
pub struct Prediction {
    /// The velocity for the empty text.
    pub without_text: Tensor,
    /// The velocity for the text.
    pub with_text: Tensor,
}

/// The constants of sampling with a given number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    guidance: Guidance,
    /// The timestep of each step, noisiest first.
    timesteps: Vec<i64>,
    /// `√ᾱ` before each step, and 1 after the last.
    signal: Vec<f64>,
    /// The `√ᾱ` that converts the network's velocity: the nearest value of the training schedule.
    trained: Vec<f64>,
}

impl Sampler {
    /// Spreads the steps over the timesteps of the training schedule.
    ///
    /// # Panics
    /// `steps` is less than two: the first step has no signal, and the last gives the sample.
    pub fn new(steps: usize, guidance: Guidance) -> Self {
        assert!(steps >= 2, "sampling needs at least 2 steps, not {steps}");
        let last = (TIMESTEPS - 1) as f64;
        let timesteps: Vec<i64> =
            (0..steps).map(|i| (last * (steps - i) as f64 / steps as f64).floor() as i64).collect();
        // The reference rescales the levels of its few steps to zero terminal signal. They are not rows of the table that
        // trained the network.
        let mut signal = Schedule::signal_at(&timesteps);
        let table = Schedule::signal_at(&(0..TIMESTEPS).rev().collect::<Vec<_>>());
        let nearest = |signal: &f64| {
            let far = |other: &&f64| (*other - signal).abs();
            *table.iter().min_by(|a, b| far(a).total_cmp(&far(b))).expect("there are timesteps")
        };
        let trained = signal.iter().map(nearest).collect();
        signal.push(1.0);
        Sampler { guidance, timesteps, signal, trained }
    }

    /// Returns the timestep of each step, noisiest first.
    pub fn timesteps(&self) -> &[i64] {
        &self.timesteps
    }

    /// Returns `√ᾱ` before each step; the first is 0.
    pub fn signal(&self) -> &[f64] {
        &self.signal[..self.timesteps.len()]
    }

    /// Returns the guidance scale of a step.
    ///
    /// The formula is meant for a scale that rises with the steps. But CogVideoX inserts timesteps up to 999 for the step number,
    /// so the scale jumps between 1 and `1 + scale`. It stays, because published samples use it.
    pub fn text_share(&self, step: usize) -> f64 {
        let steps = self.timesteps.len() as f64;
        let time = ((steps - self.timesteps[step] as f64) / steps).powi(self.guidance.power);
        1.0 + self.guidance.scale * (1.0 - (PI * time).cos()) / 2.0
    }

    /// Samples a latent from noise.
    ///
    /// * `noise` — pure noise, in the shape of a latent.
    /// * `network` — returns the prediction for a noised latent at a timestep.
    /// * `draw` — returns fresh noise for a step, in the same shape; not called for the last step.
    /// * `after` — receives the latent after each step.
    ///
    /// # Errors
    /// The error of `network`.
    pub fn sample<E>(
        &self,
        noise: &Tensor,
        mut network: impl FnMut(&Tensor, i64) -> Result<Prediction, E>,
        mut draw: impl FnMut(usize) -> Tensor,
        mut after: impl FnMut(&Tensor),
    ) -> Result<Tensor, E> {
        let mut x = noise.shallow_clone();
        let mut before: Option<Tensor> = None;
        for (step, timestep) in self.timesteps.iter().enumerate() {
            let Prediction { without_text, with_text } = network(&x, *timestep)?;
            let velocity = &without_text + (&with_text - &without_text) * self.text_share(step);
            let signal = self.trained[step];
            let clean = &x * signal - velocity * (1.0 - signal * signal).sqrt();
            x = if step + 1 == self.timesteps.len() {
                clean.shallow_clone()
            } else {
                self.solve(step, &x, &clean, before.as_ref()) + draw(step) * self.fresh(step)
            };
            after(&x);
            before = Some(clean);
        }
        Ok(x)
    }

    /// Returns half the logarithm of the signal-to-noise ratio.
    fn lambda(&self, step: usize) -> f64 {
        let power = self.signal[step] * self.signal[step];
        0.5 * (power / (1.0 - power)).ln()
    }

    /// Returns the level of fresh noise that a step adds.
    fn fresh(&self, step: usize) -> f64 {
        let (next, h) = (self.signal[step + 1], self.lambda(step + 1) - self.lambda(step));
        (1.0 - next * next).sqrt() * (1.0 - (-2.0 * h).exp()).sqrt()
    }

    /// Computes the step without its noise, from the clean latents of this and the previous prediction. Without
    /// signal λ is -∞, but all values derived from it are finite.
    fn solve(&self, step: usize, x: &Tensor, clean: &Tensor, before: Option<&Tensor>) -> Tensor {
        let (now, next) = (self.signal[step], self.signal[step + 1]);
        let h = self.lambda(step + 1) - self.lambda(step);
        let kept = ((1.0 - next * next) / (1.0 - now * now)).sqrt() * (-h).exp();
        let ahead = match before {
            None => clean.shallow_clone(),
            Some(before) => {
                let half = h / (2.0 * (self.lambda(step) - self.lambda(step - 1)));
                clean * (1.0 + half) - before * half
            }
        };
        x * kept - ahead * ((-2.0 * h).exp_m1() * next)
    }
}
