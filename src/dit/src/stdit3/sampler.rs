//! The sampler of a rectified flow, with frames that stay clean or are edited.

use super::flow::{mixed, of_frames};
use crate::sampler::{Prediction, Stepped};
use recipe::families::stdit3::{Flow, MAX_TIME, ShownSize, TimestepDraw};
use tch::{Device, Tensor};

/// The timesteps and the guidance of sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowSampler {
    /// The scale of classifier-free guidance. At 1 or less the text-free prediction is not needed.
    scale: f64,
    /// The timestep of each sample at each step, noisiest first.
    timesteps: Vec<Vec<f32>>,
}

/// The input of the network at a step.
#[derive(Debug)]
pub struct Noisy<'a> {
    /// The latents, `[B, T, C, height, width]`.
    pub latent: &'a Tensor,
    /// The timesteps, `[B]`, fp32.
    pub timestep: &'a Tensor,
    /// Which frames have noise, `[B, T]`; `None` without references: all frames have noise.
    pub frames: Option<&'a Tensor>,
}

impl FlowSampler {
    /// Spreads `steps` steps evenly over the timesteps of each sample, and shifts them as in training, by a factor of 1. `scale` is that of
    /// classifier-free guidance.
    ///
    /// # Panics
    /// There are no steps.
    pub fn new(flow: &Flow, clips: &[ShownSize], steps: usize, scale: f64) -> Self {
        assert!(steps > 0, "sampling needs a step");
        let flow = Flow { shift: flow.shift.map(|_| 1.0), ..*flow };
        let timestep = |step: usize| {
            let even = (1.0 - step as f64 / steps as f64) * f64::from(MAX_TIME);
            let even = if flow.draw == TimestepDraw::Discrete { even.round_ties_even() } else { even };
            clips.iter().map(|clip| flow.shifted(even as f32, *clip)).collect()
        };
        FlowSampler { scale, timesteps: (0..steps).map(timestep).collect() }
    }

    /// Returns the timestep of each sample at each step, noisiest first.
    pub fn timesteps(&self) -> &[Vec<f32>] {
        &self.timesteps
    }

    /// Returns whether the network must also predict without the text.
    pub fn is_guided(&self) -> bool {
        self.scale > 1.0
    }

    /// Samples latents.
    ///
    /// A frame of a reference with the share `m` is noised when the timestep falls to `1000·m`, and sampled from then on. Before, the
    /// network gets it as a clean frame.
    ///
    /// * `start` — pure noise, `[B, T, C, height, width]`, or the frames of references and noise.
    /// * `shares` — as in [`super::references::WithReferences`]; `None`: all frames are sampled.
    /// * `network` — returns the outputs of the network for noised latents.
    /// * `draw` — returns fresh noise for a step, in the same shape; called only for steps that add noise.
    /// * `after` — receives the result of each step.
    ///
    /// # Errors
    /// The error of `network` or `after`.
    ///
    /// Source: Open-Sora v1.2.0 `RFLOW.sample`.
    pub fn sample<E>(
        &self,
        start: &Tensor,
        shares: Option<&[Vec<f32>]>,
        mut network: impl FnMut(Noisy<'_>) -> Result<Prediction, E>,
        mut draw: impl FnMut(usize) -> Tensor,
        mut after: impl FnMut(Stepped<'_>) -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let (device, channels) = (start.device(), start.size()[2]);
        let is_sampled = |step: usize, sample: usize, share: f32| share * MAX_TIME >= self.timesteps[step][sample];
        let mut x = start.shallow_clone();
        for (step, now) in self.timesteps.iter().enumerate() {
            let last = vec![0.0; now.len()];
            let next = self.timesteps.get(step + 1).unwrap_or(&last);
            let timestep = Tensor::from_slice(now).to_device(device);
            let frames = shares.map(|shares| {
                let is_new = |sample: usize, share: f32| {
                    let was_sampled = share == 1.0 || step > 0 && is_sampled(step - 1, sample, share);
                    is_sampled(step, sample, share) && !was_sampled
                };
                let new = chosen(shares, is_new);
                if new.iter().flatten().any(|is_new| *is_new) {
                    x = mixed(&x, &draw(step), &timestep).where_self(&of_frames(&mask(&new, device)), &x);
                }
                mask(&chosen(shares, |sample, share| is_sampled(step, sample, share)), device)
            });
            let output = network(Noisy { latent: &x, timestep: &timestep, frames: frames.as_ref() })?;
            // The channels after those of the latent are variances.
            let velocity = output.guided(self.scale).narrow(2, 0, channels);
            let ahead = |distances: Vec<f32>| {
                let distance = Tensor::from_slice(&distances).to_device(device).view([-1, 1, 1, 1, 1]);
                let moved = &x + &velocity * distance;
                frames.as_ref().map_or_else(|| moved.shallow_clone(), |frames| moved.where_self(&of_frames(frames), &x))
            };
            let clean = ahead(now.iter().map(|now| now / MAX_TIME).collect());
            let moved = ahead(now.iter().zip(next).map(|(now, next)| (now - next) / MAX_TIME).collect());
            after(Stepped { step, clean: &clean, latent: &moved })?;
            x = moved;
        }
        Ok(x)
    }
}

/// Returns which frames of which samples are chosen by their sample and share.
fn chosen(shares: &[Vec<f32>], is_chosen: impl Fn(usize, f32) -> bool) -> Vec<Vec<bool>> {
    let of_sample =
        |(sample, shares): (usize, &Vec<f32>)| shares.iter().map(|share| is_chosen(sample, *share)).collect();
    shares.iter().enumerate().map(of_sample).collect()
}

/// Returns a mask of frames, `[B, T]`.
fn mask(frames: &[Vec<bool>], device: Device) -> Tensor {
    let flat: Vec<bool> = frames.iter().flatten().copied().collect();
    Tensor::from_slice(&flat).view([frames.len() as i64, -1]).to_device(device)
}
