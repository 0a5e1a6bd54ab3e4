//! Sampling: from noise to a latent, with the network that training made.
//!
//! DPM++ 2M SDE for the schedule with zero terminal SNR, as ttt-video-dit samples (`cogvideo/utils.py`, its `VPSDEDPMPP2M`;
//! Lu et al. 2022, "DPM-Solver++", 2M in its stochastic form). Nothing here is random or knows a network: noise and
//! predictions come from the caller.
//!
//! It is there to see what a network has learned, in evaluations; training does not use it. Tests hold it to a walk recorded
//! from the reference, step by step.

use crate::diffusion::{Schedule, TIMESTEPS};
use std::f64::consts::PI;
use tch::Tensor;

/// How strongly samples follow their text, step by step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// What the text's share rises by, above 1.
    pub scale: f64,
    /// The power of time that it rises with.
    pub power: i32,
}

impl Default for Guidance {
    /// CogVideoX's own.
    fn default() -> Self {
        Guidance { scale: 6.0, power: 5 }
    }
}

/// What the network says of a noised latent: its velocities without and with the text.
#[derive(Debug)]
pub struct Prediction {
    /// For the text that stands for none.
    pub without_text: Tensor,
    /// For the text.
    pub with_text: Tensor,
}

/// The fixed numbers of sampling in so many steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    guidance: Guidance,
    /// The timestep of each step, noisiest first.
    timesteps: Vec<i64>,
    /// `√ᾱ` before each step, and 1 after the last.
    signal: Vec<f64>,
    /// `√ᾱ` by which the network's velocity is read: the nearest that it was trained on.
    trained: Vec<f64>,
}

impl Sampler {
    /// Spreads the steps over the timesteps of training.
    ///
    /// # Panics
    /// With fewer than two steps: the first has no signal, and the last gives the sample.
    pub fn new(steps: usize, guidance: Guidance) -> Self {
        assert!(steps >= 2, "sampling takes at least 2 steps, not {steps}");
        let last = (TIMESTEPS - 1) as f64;
        let timesteps: Vec<i64> =
            (0..steps).map(|i| (last * (steps - i) as f64 / steps as f64).floor() as i64).collect();
        // The reference gives its few steps a table of their own, with zero signal at the end, and not rows of the table that
        // the network was trained with.
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

    /// The timestep of each step, noisiest first.
    pub fn timesteps(&self) -> &[i64] {
        &self.timesteps
    }

    /// `√ᾱ` before each step; the first is 0.
    pub fn signal(&self) -> &[f64] {
        &self.signal[..self.timesteps.len()]
    }

    /// How many times the text's difference counts at a step.
    ///
    /// It was meant to rise along the way. But CogVideoX puts timesteps up to 999 where the number of the step belongs, so that
    /// it jumps about between 1 and `1 + scale`; models are known by how they look with it, so it stays.
    pub fn text_share(&self, step: usize) -> f64 {
        let steps = self.timesteps.len() as f64;
        let time = ((steps - self.timesteps[step] as f64) / steps).powi(self.guidance.power);
        1.0 + self.guidance.scale * (1.0 - (PI * time).cos()) / 2.0
    }

    /// Walks from noise to a sample.
    ///
    /// * `noise` — pure noise, in the shape of a latent.
    /// * `network` — answers for a noised latent at a timestep.
    /// * `draw` — fresh noise for a step, in the same shape; not asked for the last.
    /// * `after` — is shown what came of each step.
    ///
    /// # Errors
    /// Those of `network`.
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

    /// Half the logarithm of signal to noise.
    fn lambda(&self, step: usize) -> f64 {
        let power = self.signal[step] * self.signal[step];
        0.5 * (power / (1.0 - power)).ln()
    }

    /// How much fresh noise a step adds.
    fn fresh(&self, step: usize) -> f64 {
        let (next, h) = (self.signal[step + 1], self.lambda(step + 1) - self.lambda(step));
        (1.0 - next * next).sqrt() * (1.0 - (-2.0 * h).exp()).sqrt()
    }

    /// The step without its noise: from the clean latents that this prediction and the one before mean. Where there is no
    /// signal yet λ is -∞, and all that follows from it is finite again.
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
