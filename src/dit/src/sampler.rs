//! Sampling: from noise to a latent with a trained network.
//!
//! Every supported scheduler is linear in its tensors, so a [`Sampler`] is a table: the timesteps, the guidance scale of each step
//! and five coefficients. [`cogvideox`](Sampler::ddim) has CogVideoX's DDIM and DPM schedulers, [`vpsde`](Sampler::vpsde) the
//! sampler of ttt-video-dit. Coefficients are computed in f64 and applied in the dtype of the latent, fp32.
//!
//! The caller passes the noise and the network's predictions, so sampling is deterministic.

mod cogvideox;
mod vpsde;

use std::f64::consts::PI;
use tch::Tensor;

/// The scale of classifier-free guidance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Guidance {
    /// The same scale at every step. At 1 or less the text-free prediction is not needed.
    Constant(f64),
    /// A scale between 1 and `1 + scale` that depends on the timestep.
    Dynamic {
        /// The maximum of the guidance scale minus 1.
        scale: f64,
        /// The exponent of time in the scale.
        power: i32,
    },
}

impl Default for Guidance {
    /// Returns CogVideoX's dynamic guidance.
    fn default() -> Self {
        Guidance::Dynamic { scale: 6.0, power: 5 }
    }
}

impl Guidance {
    /// Returns the dynamic guidance of CogVideoX's pipelines for a scale.
    pub fn dynamic(scale: f64) -> Self {
        Guidance::Dynamic { scale, power: 5 }
    }

    /// Returns whether the network must also predict without the text. As in diffusers, the given scale decides, not the scale of a step.
    pub fn is_used(self) -> bool {
        let (Guidance::Constant(scale) | Guidance::Dynamic { scale, .. }) = self;
        scale > 1.0
    }

    /// Returns the scale at a timestep of `steps` steps.
    ///
    /// The dynamic formula expects a scale that rises with the steps. But CogVideoX passes it timesteps up to 999
    /// instead of step numbers, so the scale jumps between 1 and `1 + scale`. vidtui does the same,
    /// because published samples depend on it.
    fn at(self, timestep: i64, steps: usize) -> f64 {
        match self {
            Guidance::Constant(scale) => scale,
            Guidance::Dynamic { scale, power } => {
                let steps = steps as f64;
                let time = ((steps - timestep as f64) / steps).powf(f64::from(power));
                1.0 + scale * (1.0 - (PI * time).cos()) / 2.0
            }
        }
    }
}

/// The network's prediction for a noised latent: its velocities with and without the text.
#[derive(Debug)]
pub struct Prediction {
    /// The velocity for the text.
    pub with_text: Tensor,
    /// The velocity for the empty text; `None` where guidance is not used.
    pub without_text: Option<Tensor>,
}

impl Prediction {
    /// Returns the velocity under classifier-free guidance.
    pub(crate) fn guided(self, scale: f64) -> Tensor {
        match self.without_text {
            None => self.with_text,
            Some(without) => &without + (self.with_text - &without) * scale,
        }
    }
}

/// The results of one sampling step.
#[derive(Debug)]
pub struct Stepped<'a> {
    /// The number of the step, from 0.
    pub step: usize,
    /// The predicted clean latent.
    pub clean: &'a Tensor,
    /// The latent after the step.
    pub latent: &'a Tensor,
}

/// One step of a sampler: `clean = signal·x - noise·v` and `x = kept·x + ahead·clean + before·(clean of the step before) +
/// fresh·(fresh noise)`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Coefficients {
    signal: f64,
    noise: f64,
    kept: f64,
    ahead: f64,
    before: f64,
    fresh: f64,
}

/// The constants of sampling with a given number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    guidance: Guidance,
    /// The timestep of each step, noisiest first.
    timesteps: Vec<i64>,
    /// The guidance scale of each step.
    scales: Vec<f64>,
    steps: Vec<Coefficients>,
}

impl Sampler {
    fn of(timesteps: Vec<i64>, guidance: Guidance, steps: Vec<Coefficients>) -> Self {
        let scales = timesteps.iter().map(|timestep| guidance.at(*timestep, timesteps.len())).collect();
        Sampler { guidance, timesteps, scales, steps }
    }

    /// Returns the timestep of each step, noisiest first.
    pub fn timesteps(&self) -> &[i64] {
        &self.timesteps
    }

    /// Returns the guidance scale of each step.
    pub fn guidance_scales(&self) -> &[f64] {
        &self.scales
    }

    /// Returns whether the network must also predict without the text.
    pub fn is_guided(&self) -> bool {
        self.guidance.is_used()
    }

    /// Samples a latent from noise.
    ///
    /// * `noise` — pure noise, in the shape of a latent.
    /// * `network` — returns the prediction for a noised latent at a timestep.
    /// * `draw` — returns fresh noise for a step, in the same shape; called only for steps that add noise.
    /// * `after` — receives the result of each step.
    ///
    /// # Errors
    /// The error of `network` or `after`.
    pub fn sample<E>(
        &self,
        noise: &Tensor,
        mut network: impl FnMut(&Tensor, i64) -> Result<Prediction, E>,
        mut draw: impl FnMut(usize) -> Tensor,
        mut after: impl FnMut(Stepped<'_>) -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let mut x = noise.shallow_clone();
        let mut before: Option<Tensor> = None;
        for (step, (timestep, c)) in self.timesteps.iter().zip(&self.steps).enumerate() {
            let velocity = network(&x, *timestep)?.guided(self.scales[step]);
            let clean = &x * c.signal - velocity * c.noise;
            let mut next = &x * c.kept + &clean * c.ahead;
            if let (Some(before), true) = (&before, c.before != 0.0) {
                next += before * c.before;
            }
            if c.fresh != 0.0 {
                next += draw(step) * c.fresh;
            }
            after(Stepped { step, clean: &clean, latent: &next })?;
            x = next;
            before = Some(clean);
        }
        Ok(x)
    }
}

/// Returns half the logarithm of the signal-to-noise ratio of a level ᾱ: -∞ without signal, ∞ without noise.
fn lambda(power: f64) -> f64 {
    0.5 * (power / (1.0 - power)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::NoiseSchedule;
    use recipe::TimestepSpacing as Spacing;
    use std::convert::Infallible;
    use tch::{Device, Kind};

    /// Every sampler with `steps` steps.
    fn samplers(steps: usize) -> Vec<Sampler> {
        let schedule = NoiseSchedule::default();
        let mut all = vec![Sampler::vpsde(steps, Guidance::default())];
        for spacing in [Spacing::Trailing, Spacing::Linspace, Spacing::Leading] {
            all.push(Sampler::ddim(&schedule, spacing, steps, Guidance::Constant(6.0)));
            all.push(Sampler::dpm(&schedule, spacing, steps, Guidance::default()));
        }
        all
    }

    #[test]
    fn every_coefficient_is_finite_at_any_number_of_steps() {
        for steps in [2, 3, 7, 10, 48, 61, 103, 121, 999] {
            for sampler in samplers(steps) {
                assert_eq!(sampler.timesteps.len(), steps);
                assert!(sampler.timesteps.iter().all(|t| (0..1000).contains(t)), "{:?}", sampler.timesteps);
                for c in &sampler.steps {
                    let all = [c.signal, c.noise, c.kept, c.ahead, c.before, c.fresh];
                    assert!(all.iter().all(|c| c.is_finite()), "{steps}: {c:?}");
                }
            }
        }
    }

    #[test]
    fn guidance_of_one_or_less_needs_no_second_text() {
        for (scale, is_used) in [(0.0, false), (1.0, false), (1.5, true)] {
            assert_eq!(Guidance::Constant(scale).is_used(), is_used, "{scale}");
            assert_eq!(Guidance::dynamic(scale).is_used(), is_used, "{scale}");
        }
    }

    #[test]
    fn sampling_with_a_perfect_prediction_returns_the_clean_latent() {
        let schedule = NoiseSchedule::default();
        let clean = Tensor::from_slice(&[0.5f32, -1.5, 2.0]);
        for sampler in [
            Sampler::ddim(&schedule, Spacing::Trailing, 10, Guidance::Constant(1.0)),
            Sampler::dpm(&schedule, Spacing::Trailing, 10, Guidance::Constant(1.0)),
        ] {
            let network = |x: &Tensor, timestep: i64| {
                let power = cogvideox::powers(&schedule)[timestep as usize];
                let with_text = (x * power.sqrt() - &clean) / (1.0 - power).sqrt();
                Ok::<_, Infallible>(Prediction { with_text, without_text: None })
            };
            let noise = Tensor::randn([3], (Kind::Float, Device::Cpu));
            let sampled = sampler.sample(&noise, network, |_| noise.randn_like(), |_| Ok(())).unwrap();
            assert!((sampled - &clean).abs().max().double_value(&[]) < 1e-4);
        }
    }
}
