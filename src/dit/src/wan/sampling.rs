//! Sampling with flow matching: the noise levels of the schedulers UniPC and Euler, guidance, and two experts.
//!
//! Both schedulers are linear in their tensors. Coefficients are computed in f64 from levels that are rounded to fp32, as diffusers has them,
//! and applied in fp32.

use super::objective::{TIMESTEPS, shifted};
use crate::sampler::{Prediction, Stepped};
use tch::Tensor;

/// The noise level of the first step of UniPC. At 1 the logarithm of the signal would be infinite.
const NOISIEST: f64 = 1.0 - 1e-6;

/// A network that predicts the velocities of some steps. Models of Wan 2.2 have two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expert {
    /// The expert for high noise, and the only network of models with one.
    High,
    /// The expert for low noise.
    Low,
}

/// The scale of classifier-free guidance, `without + scale · (with - without)`, and the boundary between two experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowGuidance {
    /// The scale of the expert for high noise. At 1 or less the prediction without the text is not needed.
    pub scale: f64,
    /// The expert for low noise, if there is one.
    pub low: Option<LowNoise>,
}

/// The expert for low noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowNoise {
    /// The noise level below which this expert predicts.
    pub boundary: f64,
    /// Its scale of guidance.
    pub scale: f64,
}

impl FlowGuidance {
    /// Returns the expert for a timestep.
    pub fn expert(&self, timestep: f64) -> Expert {
        match self.low {
            Some(low) if timestep < low.boundary * TIMESTEPS => Expert::Low,
            _ => Expert::High,
        }
    }

    fn scale(&self, expert: Expert) -> f64 {
        match (expert, self.low) {
            (Expert::Low, Some(low)) => low.scale,
            _ => self.scale,
        }
    }
}

/// A request for the prediction of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// The number of the step, from 0.
    pub step: usize,
    /// The timestep, which is an integer for UniPC.
    pub timestep: f64,
    /// The network.
    pub expert: Expert,
    /// Whether the prediction without the text is needed.
    pub is_guided: bool,
}

/// One step. The predicted clean latent is `x - sigma·v`, where `x` is the input of the network. Then `corrected` replaces `x`, if there is one;
/// it starts from the input of the previous step. `next` computes the next latent from `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    sigma: f64,
    corrected: Option<Linear>,
    next: Linear,
}

/// Factors of a latent and of the predicted clean latents of this step, the one before and the one before that.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Linear {
    latent: f64,
    clean: [f64; 3],
}

impl Linear {
    /// Returns the sum of the latent and the clean latents, newest first, with these factors. Factors of zero need no tensor.
    fn apply(&self, latent: &Tensor, clean: &[Tensor]) -> Tensor {
        let parts = self.clean.iter().zip(clean).filter(|(factor, _)| **factor != 0.0);
        parts.fold(latent * self.latent, |sum, (factor, clean)| sum + clean * *factor)
    }
}

/// The constants of sampling with a number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowSampler {
    /// The noise level before each step, and 0 after the last.
    sigmas: Vec<f64>,
    timesteps: Vec<f64>,
    steps: Vec<Step>,
}

impl FlowSampler {
    /// Returns Euler's method.
    ///
    /// The shift also applies to the least level before it is spread over the steps, so the levels differ from those of
    /// [`FlowSampler::unipc`].
    ///
    /// Source: diffusers `FlowMatchEulerDiscreteScheduler`.
    ///
    /// # Panics
    /// `steps` is 0.
    pub fn euler(steps: usize, shift: f64) -> Self {
        assert!(steps > 0, "sampling needs at least one step");
        let least = shifted(1.0 / TIMESTEPS, shift);
        let distance = if steps == 1 { 0.0 } else { (1.0 - least) / (steps - 1) as f64 };
        let sigmas = with_end(&(0..steps).map(|i| shifted(1.0 - i as f64 * distance, shift)).collect::<Vec<_>>());
        let step = |levels: &[f64]| {
            // x + (next - now)·v, with v = (x - clean) / now.
            let kept = levels[1] / levels[0];
            Step { sigma: levels[0], corrected: None, next: Linear { latent: kept, clean: [1.0 - kept, 0.0, 0.0] } }
        };
        let timesteps = sigmas[..steps].iter().map(|sigma| sigma * TIMESTEPS).collect();
        FlowSampler { timesteps, steps: sigmas.windows(2).map(step).collect(), sigmas }
    }

    /// Returns UniPC of order 2, which corrects a latent with the prediction for it before each step but the first. The first and the last step
    /// have order 1.
    ///
    /// The network gets the integer part of a timestep.
    ///
    /// Source: Zhao et al. 2023, "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion Models", `B₂(h)`; diffusers
    /// `UniPCMultistepScheduler` with flow sigmas.
    ///
    /// # Panics
    /// `steps` is 0.
    pub fn unipc(steps: usize, shift: f64) -> Self {
        assert!(steps > 0, "sampling needs at least one step");
        let distance = (1.0 / TIMESTEPS - 1.0) / steps as f64;
        let level = |i: usize| shifted(1.0 + i as f64 * distance, shift).min(NOISIEST);
        let levels: Vec<f64> = (0..steps).map(level).collect();
        let sigmas = with_end(&levels);
        let order = |step: usize| if step == 0 || step + 1 == steps { 1 } else { 2 };
        let step = |i: usize| Step {
            sigma: sigmas[i],
            corrected: (i > 0).then(|| corrector(&sigmas, i, order(i - 1))),
            next: predictor(&sigmas, i, order(i)),
        };
        let timesteps = levels.iter().map(|sigma| (sigma * TIMESTEPS).floor()).collect();
        FlowSampler { timesteps, steps: (0..steps).map(step).collect(), sigmas }
    }

    /// Returns the noise level before each step, and 0 after the last.
    pub fn sigmas(&self) -> &[f64] {
        &self.sigmas
    }

    /// Returns the timestep of each step as the network gets it, noisiest first.
    pub fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    /// Samples a latent from noise. The history of UniPC crosses a change of the expert.
    ///
    /// The caller gives the network its conditions. A network with a clean first frame ([`super::FIRST_FRAME`]) ignores that of the latent, so
    /// the caller puts it into the sampled latent ([`with_first_frame`]).
    ///
    /// * `noise` — pure noise, in the shape of a latent, fp32.
    /// * `network` — returns the velocities for a noised latent.
    /// * `after` — receives the result of each step.
    ///
    /// # Errors
    /// The error of `network` or `after`.
    pub fn sample<E>(
        &self,
        noise: &Tensor,
        guidance: &FlowGuidance,
        mut network: impl FnMut(&Tensor, Call) -> Result<Prediction, E>,
        mut after: impl FnMut(Stepped<'_>) -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let mut x = noise.shallow_clone();
        // The latent from which the last step started, and the predicted clean latents, newest first.
        let (mut before, mut clean) = (x.shallow_clone(), Vec::with_capacity(4));
        for (number, (step, timestep)) in self.steps.iter().zip(&self.timesteps).enumerate() {
            let expert = guidance.expert(*timestep);
            let scale = guidance.scale(expert);
            let call = Call { step: number, timestep: *timestep, expert, is_guided: scale > 1.0 };
            let velocity = network(&x, call)?.guided(scale);
            clean.insert(0, &x - velocity * step.sigma);
            clean.truncate(3);
            if let Some(corrected) = &step.corrected {
                x = corrected.apply(&before, &clean);
            }
            let next = step.next.apply(&x, &clean);
            after(Stepped { step: number, clean: &clean[0], latent: &next })?;
            before = std::mem::replace(&mut x, next);
        }
        Ok(x)
    }
}

/// Returns a latent `[B, T, C, h, w]` with this first frame.
pub fn with_first_frame(latent: &Tensor, first: &Tensor) -> Tensor {
    Tensor::cat(&[first, &latent.narrow(1, 1, latent.size()[1] - 1)], 1)
}

/// Returns levels rounded to fp32, and 0 after them.
fn with_end(sigmas: &[f64]) -> Vec<f64> {
    sigmas.iter().map(|sigma| f64::from(*sigma as f32)).chain([0.0]).collect()
}

/// Returns the logarithm of the ratio of signal to noise of a level, ∞ without noise.
fn lambda(sigma: f64) -> f64 {
    ((1.0 - sigma) / sigma).ln()
}

/// The terms of both forms of UniPC between two levels, for predictions of the clean latent.
struct Between {
    /// The factor of the latent, `σ_t / σ_s`.
    kept: f64,
    /// The factor of the clean latent at the first level, `α_t·(1 - e^(-h))`, which is also that of differences.
    ahead: f64,
    h: f64,
}

impl Between {
    fn new(from: f64, to: f64) -> Self {
        // Infinite at the end, where the result is the clean latent.
        let h = lambda(to) - lambda(from);
        Between { kept: to / from, ahead: -(1.0 - to) * (-h).exp_m1(), h }
    }

    /// Returns the ratio of the distance to an earlier level to that of the step.
    fn ratio(&self, earlier: f64, from: f64) -> f64 {
        (lambda(earlier) - lambda(from)) / self.h
    }
}

/// Returns the factors of the step from level `i` to the next one.
fn predictor(sigmas: &[f64], i: usize, order: usize) -> Linear {
    let between = Between::new(sigmas[i], sigmas[i + 1]);
    // Half of the difference quotient of the last two predictions.
    let half = if order == 1 { 0.0 } else { between.ahead * 0.5 / between.ratio(sigmas[i - 1], sigmas[i]) };
    Linear { latent: between.kept, clean: [between.ahead - half, half, 0.0] }
}

/// Returns the factors that replace the latent at level `i` with the prediction for it, after a step of this order.
fn corrector(sigmas: &[f64], i: usize, order: usize) -> Linear {
    let between = Between::new(sigmas[i - 1], sigmas[i]);
    let Between { kept, ahead, h } = between;
    if order == 1 {
        return Linear { latent: kept, clean: [ahead * 0.5, ahead * 0.5, 0.0] };
    }
    // The weights of both difference quotients solve two conditions of order:
    // `earlier + now = b₁` and `r·earlier + now = b₂`, with φ-functions of `-h`.
    let phi1 = (-h).exp_m1();
    let phi2 = phi1 / -h - 1.0;
    let phi3 = phi2 / -h - 0.5;
    let (b1, b2) = (phi2 / phi1, 2.0 * phi3 / phi1);
    let r = between.ratio(sigmas[i - 2], sigmas[i - 1]);
    let earlier = (b1 - b2) / (1.0 - r);
    let (now, earlier) = (ahead * (b1 - earlier), ahead * earlier / r);
    Linear { latent: kept, clean: [now, ahead - now - earlier, earlier] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tch::{Device, Kind};

    const ALONE: FlowGuidance = FlowGuidance { scale: 1.0, low: None };

    fn samplers(steps: usize) -> [FlowSampler; 2] {
        [FlowSampler::unipc(steps, 5.0), FlowSampler::euler(steps, 5.0)]
    }

    #[test]
    fn every_coefficient_is_finite_at_any_number_of_steps() {
        for sampler in [1, 2, 3, 8, 50, 999].into_iter().flat_map(samplers) {
            assert!(sampler.sigmas.is_sorted_by(|a, b| a > b), "{:?}", sampler.sigmas);
            for step in &sampler.steps {
                let factors =
                    step.corrected.iter().chain([&step.next]).flat_map(|f| f.clean.into_iter().chain([f.latent]));
                assert!(factors.chain([step.sigma]).all(f64::is_finite), "{step:?}");
            }
        }
    }

    #[test]
    fn sampling_with_a_perfect_prediction_returns_the_clean_latent() {
        let clean = Tensor::from_slice(&[0.5f32, -1.5, 2.0]);
        for sampler in [1, 2, 3, 10].into_iter().flat_map(samplers) {
            let noise = Tensor::randn([3], (Kind::Float, Device::Cpu));
            let network = |x: &Tensor, call: Call| {
                let with_text = (x - &clean) / sampler.sigmas[call.step];
                Ok::<_, Infallible>(Prediction { with_text, without_text: None })
            };
            let sampled = sampler.sample(&noise, &ALONE, network, |_| Ok(())).unwrap();
            assert!((sampled - &clean).abs().max().double_value(&[]) < 1e-4);
        }
    }

    #[test]
    fn the_expert_for_low_noise_predicts_below_the_boundary_with_its_own_scale() {
        let guidance = FlowGuidance { scale: 4.0, low: Some(LowNoise { boundary: 0.875, scale: 3.0 }) };
        let experts = [999.0, 875.0, 874.0, 0.0].map(|timestep| guidance.expert(timestep));
        assert_eq!(experts, [Expert::High, Expert::High, Expert::Low, Expert::Low]);
        assert_eq!([Expert::High, Expert::Low].map(|expert| guidance.scale(expert)), [4.0, 3.0]);
        assert_eq!(FlowGuidance { low: None, ..guidance }.expert(0.0), Expert::High);
    }

    #[test]
    fn guidance_of_one_or_less_needs_no_second_text() {
        for (scale, is_used) in [(0.0, false), (1.0, false), (1.5, true)] {
            let mut calls = 0;
            let network = |x: &Tensor, call: Call| {
                assert_eq!(call.is_guided, is_used);
                calls += 1;
                Ok::<_, Infallible>(Prediction { with_text: x.zeros_like(), without_text: None })
            };
            let noise = Tensor::zeros([1], (Kind::Float, Device::Cpu));
            let guidance = FlowGuidance { scale, low: None };
            let _ = FlowSampler::unipc(3, 3.0).sample(&noise, &guidance, network, |_| Ok(())).unwrap();
            assert_eq!(calls, 3);
        }
    }
}
