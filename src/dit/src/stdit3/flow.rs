//! The objective of STDiT3: rectified flow, with frames that stay clean.

use super::FRAME_MASK;
use crate::diffusion::Target;
use crate::family::{Conditions, condition};
use crate::objective::Objective;
use recipe::Shape;
use recipe::families::stdit3::{Flow, MAX_TIME, ShownSize, TimestepDraw};
use tch::{Kind, Tensor};

/// Prediction of the velocity `x0 - ε` on the straight line from noise `ε` to a clean latent `x0`. Timesteps are from 0 to 1000, pure
/// noise.
///
/// Source: Open-Sora v1.2.0 `opensora/schedulers/rf/rectified_flow.py`; Liu et al., "Flow Straight and Fast" (2023).
#[derive(Debug, Clone, Copy)]
pub struct RectifiedFlow(
    /// The distribution of timesteps and their shift.
    pub Flow,
);

impl RectifiedFlow {
    /// Returns the timesteps `[B]`, fp32, at quantiles of their distribution for clips of a size.
    pub fn timesteps_of(&self, quantiles: &[f64], clip: ShownSize) -> Tensor {
        let most = f64::from(MAX_TIME);
        let draws = Tensor::from_slice(quantiles);
        let draws = match self.0.draw {
            TimestepDraw::Uniform => draws * most,
            TimestepDraw::Discrete => (draws * most).floor().clamp_max(most - 1.0),
            TimestepDraw::LogitNormal { mean, deviation } => {
                (draws.special_ndtri() * deviation + mean).sigmoid() * most
            }
        };
        let draws = Vec::<f32>::try_from(draws.to_kind(Kind::Float)).expect("the draws are numbers");
        Tensor::from_slice(&draws.into_iter().map(|time| self.0.shifted(time, clip)).collect::<Vec<_>>())
    }
}

impl Objective for RectifiedFlow {
    fn timesteps(&self, quantiles: &[f64], shape: Shape) -> Tensor {
        self.timesteps_of(quantiles, ShownSize::of_latent(shape))
    }

    /// Noises the frames for which the condition [`FRAME_MASK`] is not 0. The loss is the mean error of these frames.
    fn noised(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor, conditions: &Conditions) -> (Tensor, Target) {
        let mixed = mixed(clean, noise, timestep);
        let velocity = clean - noise;
        match condition(conditions, FRAME_MASK) {
            None => (mixed, Target::of_velocity(velocity, None)),
            Some(mask) => {
                let mask = mask.ne(0);
                (mixed.where_self(&of_frames(&mask), clean), Target::of_velocity(velocity, Some(mask)))
            }
        }
    }
}

/// Returns `(1 - t/1000)·x + t/1000·ε` for latents `[B, T, C, height, width]` at timesteps `[B]`.
pub(super) fn mixed(x: &Tensor, noise: &Tensor, timestep: &Tensor) -> Tensor {
    let share = timestep.to_kind(Kind::Float).view([-1, 1, 1, 1, 1]) / f64::from(MAX_TIME);
    let rest: Tensor = 1.0 - &share;
    rest * x + share * noise
}

/// Returns numbers of frames, `[B, T]`, in a shape that is broadcast over a latent.
pub(super) fn of_frames(numbers: &Tensor) -> Tensor {
    numbers.unsqueeze(-1).unsqueeze(-1).unsqueeze(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn quantiles_have_the_timesteps_of_their_distribution() {
        let clip = ShownSize { height_px: 512.0, width_px: 512.0, frames: 1.0 };
        let of = |draw, quantiles: &[f64]| {
            let flow = RectifiedFlow(Flow { draw, shift: Some(1.0) });
            Vec::<f32>::try_from(flow.timesteps_of(quantiles, clip)).unwrap()
        };
        let all = [0.0, 0.25, 0.5, 0.9999];
        assert_eq!(of(TimestepDraw::Uniform, &all), [0.0, 250.0, 500.0, 999.9]);
        assert_eq!(of(TimestepDraw::Discrete, &all), [0.0, 250.0, 500.0, 999.0]);
        let logit = of(TimestepDraw::RELEASED, &all);
        assert_eq!((logit[0], logit[2]), (0.0, 500.0));
        // The quartile of the normal distribution is -0.67449.
        assert!((logit[1] - 1000.0 / (1.0 + 0.674_489_75f32.exp())).abs() < 1e-3);
        let moved = of(TimestepDraw::LogitNormal { mean: 1.0, deviation: 0.0 }, &all[1..2]);
        assert!((moved[0] - 1000.0 / (1.0 + (-1f32).exp())).abs() < 1e-3);
    }

    #[test]
    fn clean_frames_have_no_noise_and_no_loss() {
        let clean = Tensor::ones([1, 3, 2, 1, 1], (Kind::Float, Device::Cpu));
        let (noise, timestep) = (clean.zeros_like(), Tensor::from_slice(&[250f32]));
        let flow = RectifiedFlow(Flow::default());
        let masked = |mask: &[u8]| {
            let conditions = vec![(FRAME_MASK, Tensor::from_slice(mask).view([1, 3]))];
            flow.noised(&clean, &noise, &timestep, &conditions)
        };
        let (latent, target) = masked(&[0, 1, 1]);
        let firsts = Vec::<f64>::try_from(latent.select(2, 0).flatten(0, -1)).unwrap();
        assert_eq!(firsts, [1.0, 0.75, 0.75]);
        // The velocity is 1. Channels after those of the latent are not predictions of it.
        let output = Tensor::cat(&[&clean * 3.0, &clean * 100.0], 2);
        let _ = output.get(0).get(0).fill_(50.0);
        assert_eq!(target.loss(&output).double_value(&[0]), 4.0);
        assert_eq!(target.plain_loss(&output).double_value(&[]), 4.0);
        assert_eq!(target.map(Tensor::copy).loss(&output).double_value(&[0]), 4.0);
        let (latent, target) = masked(&[0, 0, 0]);
        assert_eq!((latent, target.loss(&output).double_value(&[0])), (clean, 0.0));
    }
}
