//! Sampling of flow matching: Euler steps from noise to a latent, guided by text and given frames, or by a distilled network itself.
//!
//! Source: Open-Sora `opensora/utils/sampling.py`, `I2VDenoiser` and `DistilledDenoiser`.

use super::flow::shifted;
use crate::sampler::Stepped;
use recipe::families::mmdit::Given;
use tch::{Device, Kind, Tensor};

/// The steps of a sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct Euler {
    /// The timestep of each step, noisiest first, and of the sample, which is 0.
    timesteps: Vec<f64>,
}

impl Euler {
    /// Spreads the steps evenly from 1 to 0, then shifts them as training does ([`super::flow::FlowMatching::shift`]). The timesteps are
    /// rounded to fp32.
    pub fn new(steps: usize, shift: f64) -> Self {
        let even = Tensor::linspace(1.0, 0.0, steps as i64 + 1, (Kind::Float, Device::Cpu));
        let timesteps = shifted(&even, shift).to_kind(Kind::Double);
        Euler { timesteps: Vec::try_from(timesteps).expect("timesteps are numbers") }
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.timesteps.len() - 1
    }

    /// Returns the timestep of each step, noisiest first, and 0, the timestep of the sample.
    pub fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    /// Samples a latent from noise.
    ///
    /// * `noise` — pure noise, in the shape of a latent.
    /// * `velocity` — returns the velocity of a latent at a step, whose number counts from 0. A distilled network predicts it from the scale of
    ///   guidance ([`super::GUIDANCE`]); for others, [`Guidance::velocity`] combines three predictions.
    /// * `after` — receives the result of each step.
    ///
    /// # Errors
    /// The error of `velocity` or `after`.
    pub fn sample<E>(
        &self,
        noise: &Tensor,
        mut velocity: impl FnMut(&Tensor, usize) -> Result<Tensor, E>,
        mut after: impl FnMut(Stepped<'_>) -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let mut x = noise.shallow_clone();
        for (step, times) in self.timesteps.windows(2).enumerate() {
            let velocity = velocity(&x, step)?;
            let clean = &x - &velocity * times[0];
            let next = &x + velocity * (times[1] - times[0]);
            after(Stepped { step, clean: &clean, latent: &next })?;
            x = next;
        }
        Ok(x)
    }
}

/// The velocities that a network predicts for one latent.
#[derive(Debug)]
pub struct Predictions {
    /// With the text and the given frames.
    pub all: Tensor,
    /// With the given frames and the empty text.
    pub given: Tensor,
    /// With the empty text and no given frames: the condition is zero.
    pub nothing: Tensor,
}

/// The scales of guidance by text and by given frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// The scale of the text.
    pub text: f64,
    /// The scale of the given frames.
    pub given: f64,
    /// Whether the scale of the text is 1 at every second step after the first ten.
    pub text_oscillates: bool,
    /// Whether the scale of the given frames is 1 at these steps.
    pub given_oscillates: bool,
    /// Whether the scale of given images rises with the frames: from 1 at the first to the full scale at the last, which falls to 1 over the
    /// steps.
    pub given_rises: bool,
}

impl Default for Guidance {
    /// Returns the guidance of Open-Sora 2.
    fn default() -> Self {
        Guidance { text: 7.5, given: 3.0, text_oscillates: true, given_oscillates: true, given_rises: true }
    }
}

/// The first steps, whose scales do not oscillate.
const STEADY_STEPS: usize = 10;

impl Guidance {
    /// Returns the scale of the text at a step.
    pub fn text_at(&self, step: usize) -> f64 {
        if self.text_oscillates && is_low(step) { 1.0 } else { self.text }
    }

    /// Returns the scale of the given frames for each latent frame at one of `steps` steps.
    pub fn given_at(&self, step: usize, steps: usize, frames: usize, given: Given) -> Vec<f64> {
        let scale = if self.given_oscillates && is_low(step) { 1.0 } else { self.given };
        if !(self.given_rises && given.is_of_images() && scale > 1.0) {
            return vec![scale; frames];
        }
        let last = scale + (1.0 - scale) * step as f64 / steps as f64;
        (0..frames).map(|frame| 1.0 + (last - 1.0) * frame as f64 / (frames - 1).max(1) as f64).collect()
    }

    /// Combines the predictions `[B, T, C, h, w]` at one of `steps` steps: `nothing + s·(given - nothing) + t·(all - given)` with the scales
    /// `s` of the given frames and `t` of the text.
    pub fn velocity(&self, predictions: &Predictions, step: usize, steps: usize, given: Given) -> Tensor {
        let Predictions { all, given: with_given, nothing } = predictions;
        let frames = nothing.size()[1];
        let scales = Tensor::from_slice(&self.given_at(step, steps, frames as usize, given));
        let scales = scales.to_kind(nothing.kind()).to_device(nothing.device()).view([1, frames, 1, 1, 1]);
        nothing + scales * (with_given - nothing) + (all - with_given) * self.text_at(step)
    }
}

/// Returns whether oscillating scales are 1 at a step.
fn is_low(step: usize) -> bool {
    step >= STEADY_STEPS && step % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn sampling_with_a_perfect_prediction_returns_the_clean_latent_at_every_step() {
        let clean = Tensor::from_slice(&[0.5f32, -1.5, 2.0]);
        let noise = Tensor::from_slice(&[1.0f32, 0.25, -1.0]);
        let far = |x: &Tensor| (x - &clean).abs().max().double_value(&[]);
        let velocity = |_: &Tensor, _: usize| Ok::<_, Infallible>(&noise - &clean);
        let mut steps = 0;
        let after = |stepped: Stepped<'_>| {
            assert!(far(stepped.clean) < 1e-5, "step {}", stepped.step);
            steps += 1;
            Ok(())
        };
        let sampled = Euler::new(7, 3.0).sample(&noise, velocity, after).unwrap();
        assert!(far(&sampled) < 1e-5);
        assert_eq!(steps, 7);
    }

    #[test]
    fn scales_of_given_images_rise_with_the_frames_and_fall_with_the_steps() {
        let guidance = Guidance::default();
        assert_eq!(guidance.given_at(0, 50, 3, Given::Head), [1.0, 2.0, 3.0]);
        assert_eq!(guidance.given_at(40, 50, 3, Given::Loop), [1.0, 1.2, 1.4]);
        assert_eq!(guidance.given_at(0, 50, 1, Given::Tail), [1.0]);
        for (step, given) in [(11, Given::Head), (49, Given::Nothing)] {
            assert_eq!(guidance.given_at(step, 50, 3, given), [1.0; 3]);
        }
        for given in [Given::Nothing, Given::VideoHead] {
            assert_eq!(guidance.given_at(0, 50, 3, given), [3.0; 3]);
        }
    }
}
