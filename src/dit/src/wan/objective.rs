//! Flow matching, as Wan is trained: a noised latent is `(1 - σ)·x0 + σ·ε`, and the network predicts the velocity `ε - x0`. Its timestep is
//! `1000·σ`.

use super::FIRST_FRAME;
use crate::diffusion::Target;
use crate::family::Conditions;
use crate::objective::Objective;
use recipe::{Flow, FlowWeighting, NoiseLevels, Shape};
use tch::{Kind, Tensor};

/// The timestep of pure noise.
pub(super) const TIMESTEPS: f64 = 1000.0;
/// The smallest quantile of a continuous distribution; the largest is 1 minus it. diffusion-pipe has a table of 10,000 quantiles.
const OUTERMOST: f64 = 1e-4;

/// The flow-matching objective.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowMatching {
    /// The distribution of noise levels before the shift.
    pub levels: Levels,
    /// The shift of noise levels ([`shifted`]); 1: none.
    pub shift: f64,
    /// The least and the greatest noise level that is drawn. An expert of Wan 2.2 is trained on those on its side of the boundary.
    pub range: [f64; 2],
    /// The weights of samples.
    pub weighting: Weighting,
}

/// The distribution of noise levels before the shift.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Levels {
    /// Uniform between 0 and 1.
    Uniform,
    /// The logistic function of a normal distribution with this deviation, as in diffusion-pipe and musubi-tuner.
    LogitNormal {
        /// The deviation: `sigmoid_scale`.
        scale: f64,
    },
    /// One of 1000 equally spaced levels from 0.001 to 1, as in DiffSynth-Studio.
    Steps,
}

/// The weights of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// 1 for every sample.
    None,
    /// A bell around the timestep 500 with mean 1 over the shifted levels, and 0 for pure noise, as in DiffSynth-Studio.
    Bell,
}

impl Default for FlowMatching {
    /// Returns the objective with uniform levels, without shift and weights.
    fn default() -> Self {
        FlowMatching { levels: Levels::Uniform, shift: 1.0, range: [0.0, 1.0], weighting: Weighting::None }
    }
}

/// Returns a shifted noise level, `s·σ / (1 + (s - 1)·σ)`: a shift above 1 raises it.
///
/// Source: Esser et al. 2024, "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", equation 23.
pub fn shifted(sigma: f64, shift: f64) -> f64 {
    shift * sigma / (1.0 + (shift - 1.0) * sigma)
}

/// Returns DiffSynth-Studio's 1000 shifted noise levels, noisiest first.
fn steps(shift: f64) -> impl Iterator<Item = f64> {
    let count = TIMESTEPS as usize;
    (0..count).map(move |i| shifted((count - i) as f64 / TIMESTEPS, shift))
}

impl FlowMatching {
    /// Returns the objective of a recipe.
    pub fn new(keys: &Flow) -> Self {
        FlowMatching {
            levels: match keys.levels {
                NoiseLevels::Uniform => Levels::Uniform,
                NoiseLevels::LogitNormal => Levels::LogitNormal { scale: keys.scale },
                NoiseLevels::Steps => Levels::Steps,
            },
            shift: keys.shift,
            range: [keys.min_level, keys.max_level],
            weighting: match keys.weighting {
                FlowWeighting::None => Weighting::None,
                FlowWeighting::Bell => Weighting::Bell,
            },
        }
    }

    /// Returns the noise levels at quantiles of their distribution within [`FlowMatching::range`].
    fn sigmas(&self, quantiles: &[f64]) -> Vec<f64> {
        let [least, most] = self.range;
        if self.levels == Levels::Steps {
            let mut within: Vec<f64> = steps(self.shift).filter(|sigma| (least..=most).contains(sigma)).collect();
            within.reverse();
            let last = within.len().checked_sub(1).expect("the range of noise levels contains one of the 1000");
            return quantiles
                .iter()
                .map(|quantile| within[((quantile * within.len() as f64) as usize).min(last)])
                .collect();
        }
        // The inverse of a shift is the shift by its inverse.
        let ends = self.share_below(&[least, most].map(|sigma| shifted(sigma, 1.0 / self.shift)));
        let quantile = |quantile: &f64| (ends[0] + quantile * (ends[1] - ends[0])).clamp(OUTERMOST, 1.0 - OUTERMOST);
        let plain = self.level_at(&quantiles.iter().map(quantile).collect::<Vec<_>>());
        plain.into_iter().map(|sigma| shifted(sigma, self.shift).clamp(least, most)).collect()
    }

    /// Returns the share of the continuous distribution below each level, before the shift.
    fn share_below(&self, sigmas: &[f64]) -> Vec<f64> {
        match self.levels {
            Levels::LogitNormal { scale } => {
                // The logits of 0 and 1 are infinite, for which libtorch's function returns no number.
                let finite: Vec<f64> =
                    sigmas.iter().map(|sigma| sigma.clamp(f64::EPSILON, 1.0 - f64::EPSILON)).collect();
                values(&(Tensor::from_slice(&finite).logit(None) / scale).special_ndtr())
            }
            Levels::Uniform | Levels::Steps => sigmas.to_vec(),
        }
    }

    /// Returns the level at each quantile of the continuous distribution, before the shift: the inverse of [`FlowMatching::share_below`].
    fn level_at(&self, quantiles: &[f64]) -> Vec<f64> {
        match self.levels {
            Levels::LogitNormal { scale } => values(&(Tensor::from_slice(quantiles).special_ndtri() * scale).sigmoid()),
            Levels::Uniform | Levels::Steps => quantiles.to_vec(),
        }
    }

    /// Returns the weights of samples at timesteps `[B]`, fp32; `None` if all are 1.
    ///
    /// Source: DiffSynth-Studio, `FlowMatchScheduler.set_training_weight`.
    pub fn weight(&self, timestep: &Tensor) -> Option<Tensor> {
        if self.weighting == Weighting::None {
            return None;
        }
        let bell = |timestep: f64| (-2.0 * ((timestep - TIMESTEPS / 2.0) / TIMESTEPS).powi(2)).exp();
        // The noisiest level is the farthest from the middle.
        let least = bell(TIMESTEPS);
        let sum: f64 = steps(self.shift).map(|sigma| bell(TIMESTEPS * sigma) - least).sum();
        let distance = timestep.to_kind(Kind::Double) / TIMESTEPS - 0.5;
        let weight = ((distance.square() * -2.0).exp() - least) * (TIMESTEPS / sum);
        Some(weight.clamp_min(0.0).to_kind(Kind::Float))
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor).expect("a list of f64")
}

impl Objective for FlowMatching {
    fn timesteps(&self, quantiles: &[f64], _: Shape) -> Tensor {
        let timesteps = self.sigmas(quantiles).into_iter().map(|sigma| (TIMESTEPS * sigma) as f32);
        Tensor::from_slice(&timesteps.collect::<Vec<_>>())
    }

    /// Noises all frames. The network replaces the first one with that of the condition [`FIRST_FRAME`], and the target leaves it out of the
    /// loss.
    fn noised(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor, conditions: &Conditions) -> (Tensor, Target) {
        let mut shape = vec![1i64; clean.dim()];
        shape[0] = -1;
        let sigma = (timestep.to_kind(Kind::Float) / TIMESTEPS).view(shape.as_slice());
        let rest: Tensor = 1.0 - &sigma;
        let latent = rest * clean + sigma * noise;
        let counted = conditions.iter().any(|(name, _)| *name == FIRST_FRAME).then(|| {
            let counted = Tensor::ones(&clean.size()[..2], (Kind::Float, clean.device()));
            let _ = counted.narrow(1, 0, 1).zero_();
            counted
        });
        let target = Target::of_velocity(noise - clean, counted);
        (
            latent,
            match self.weight(timestep) {
                Some(weight) => target.weighted(weight),
                None => target,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    const SHAPE: Shape = Shape { frames: 1, height: 2, width: 2 };

    fn timesteps(objective: &FlowMatching, quantiles: &[f64]) -> Vec<f64> {
        values(&objective.timesteps(quantiles, SHAPE).to_kind(Kind::Double))
    }

    fn all() -> impl Iterator<Item = FlowMatching> {
        let levels = [Levels::Uniform, Levels::LogitNormal { scale: 1.0 }, Levels::Steps];
        let ranges = [[0.0, 1.0], [0.875, 1.0], [0.0, 0.9]];
        levels.into_iter().flat_map(move |levels| {
            ranges.map(|range| FlowMatching { levels, shift: 5.0, range, ..FlowMatching::default() })
        })
    }

    #[test]
    fn timesteps_are_within_the_range_of_an_expert_and_rise_with_the_quantile() {
        let quantiles: Vec<f64> = (0..1000).map(|i| i as f64 / 1000.0).collect();
        for objective in all() {
            let timesteps = timesteps(&objective, &quantiles);
            assert!(timesteps.is_sorted(), "{objective:?}");
            let [least, most] = objective.range.map(|sigma| sigma * TIMESTEPS);
            assert!(timesteps[0] >= least && timesteps[999] <= most, "{objective:?}");
            // The logistic function of a normal distribution rarely comes close to 0.
            let reaches_zero = least > 0.0 || !matches!(objective.levels, Levels::LogitNormal { .. });
            assert!(!reaches_zero || timesteps[0] - least < 15.0, "{objective:?} {}", timesteps[0]);
            assert!(most - timesteps[999] < 15.0, "{objective:?} {}", timesteps[999]);
        }
    }

    #[test]
    fn the_quantiles_of_a_range_are_those_of_the_whole_distribution_within_it() {
        let levels = Levels::LogitNormal { scale: 1.0 };
        let whole = FlowMatching { levels, shift: 5.0, ..FlowMatching::default() };
        let half = FlowMatching { range: [timesteps(&whole, &[0.5])[0] / TIMESTEPS, 1.0], ..whole.clone() };
        let differences = timesteps(&whole, &[0.6, 0.8, 0.9]).into_iter().zip(timesteps(&half, &[0.2, 0.6, 0.8]));
        for (of_whole, of_half) in differences {
            assert!((of_whole - of_half).abs() < 1e-3, "{of_whole} {of_half}");
        }
    }

    #[test]
    fn the_expert_for_high_noise_has_the_published_share_of_the_steps() {
        let steps: Vec<f64> = steps(5.0).collect();
        for (boundary, share) in [(0.875, 417), (0.9, 358)] {
            let count = steps.iter().filter(|sigma| **sigma >= boundary).count();
            assert!(count.abs_diff(share) <= 1, "{boundary}: {count}");
        }
    }

    #[test]
    fn a_clean_first_frame_has_no_loss() {
        let options = (Kind::Float, Device::Cpu);
        let clean = Tensor::randn([2, 3, 4, 2, 2], options);
        let (noise, timestep) = (clean.randn_like(), Tensor::from_slice(&[300f32, 900.0]));
        let loss = |conditions: &Conditions, output: &Tensor| {
            FlowMatching::default().noised(&clean, &noise, &timestep, conditions).1.loss(output)
        };
        let output = &noise - &clean;
        let _ = output.select(1, 0).fill_(7.0);
        let first = vec![(FIRST_FRAME, clean.narrow(1, 0, 1))];
        assert_eq!(loss(&first, &output).abs().max().double_value(&[]), 0.0);
        assert!(loss(&Vec::new(), &output).min().double_value(&[]) > 1.0);
    }
}
