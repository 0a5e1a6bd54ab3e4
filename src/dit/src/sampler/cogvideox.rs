//! CogVideoX's DDIM and DPM schedulers, as diffusers' pipelines use them.
//!
//! Of `n` steps, the step at timestep `t` leads to timestep `t - 1000 div n`, or to the clean latent (`ᾱ = 1`) if that
//! is negative. This timestep may differ from that of the following step: with linspace spacing it does.
//!
//! Source: diffusers `CogVideoXDDIMScheduler` and `CogVideoXDPMScheduler`.

use super::{Coefficients, Guidance, Sampler, lambda};
use crate::diffusion::NoiseSchedule;
use recipe::TimestepSpacing as Spacing;
use tch::{Kind, Tensor};

/// Returns the timesteps of `steps` steps for a network that was trained on `trained` timesteps, noisiest first.
///
/// For some numbers of steps (61, 103, 121) diffusers' trailing spacing makes one step too many, at timestep -1. This
/// bug is not reproduced.
fn timesteps(spacing: Spacing, trained: usize, steps: usize) -> Vec<i64> {
    assert!((1..=trained).contains(&steps), "sampling has 1 to {trained} steps, not {steps}");
    let (all, n) = (trained as f64, steps as f64);
    match spacing {
        Spacing::Trailing => {
            // numpy's arange multiplies this difference, and not 1000/n. With 48 steps they round differently.
            let delta = (all - all / n) - all;
            (0..steps).map(|i| (all + i as f64 * delta).round_ties_even() as i64 - 1).collect()
        }
        Spacing::Linspace if steps == 1 => vec![0],
        Spacing::Linspace => {
            let distance = (all - 1.0) / (n - 1.0);
            (0..steps).rev().map(|i| (i as f64 * distance).round_ties_even() as i64).collect()
        }
        Spacing::Leading => {
            let distance = (trained / steps) as i64;
            (0..steps as i64).rev().map(|i| i * distance).collect()
        }
    }
}

/// The levels around one step: ᾱ of its timestep and of the timestep that it leads to.
struct Levels {
    now: f64,
    next: f64,
    /// Whether the step leads to the clean latent.
    last: bool,
}

/// Returns the timesteps of `steps` steps and the levels around each.
fn levels(schedule: &NoiseSchedule, spacing: Spacing, steps: usize) -> (Vec<i64>, Vec<Levels>) {
    let powers = powers(schedule);
    let timesteps = timesteps(spacing, powers.len(), steps);
    let distance = (powers.len() / steps) as i64;
    let of = |timestep: &i64| {
        let next = timestep - distance;
        let last = next < 0;
        Levels { now: powers[*timestep as usize], next: if last { 1.0 } else { powers[next as usize] }, last }
    };
    let levels = timesteps.iter().map(of).collect();
    (timesteps, levels)
}

/// Returns ᾱ of every timestep in f64.
pub(super) fn powers(schedule: &NoiseSchedule) -> Vec<f64> {
    let table: Tensor = schedule.alphas_cumprod().to_kind(Kind::Double);
    Vec::try_from(table).expect("the levels are numbers")
}

impl Sampler {
    /// Returns CogVideoX's DDIM scheduler, without fresh noise.
    ///
    /// # Panics
    /// `steps` is 0 or more than the schedule has timesteps.
    pub fn ddim(schedule: &NoiseSchedule, spacing: Spacing, steps: usize, guidance: Guidance) -> Self {
        let (timesteps, levels) = levels(schedule, spacing, steps);
        let coefficients = |Levels { now, next, .. }: &Levels| {
            let kept = ((1.0 - next) / (1.0 - now)).sqrt();
            Coefficients {
                signal: now.sqrt(),
                noise: (1.0 - now).sqrt(),
                kept,
                ahead: next.sqrt() - kept * now.sqrt(),
                before: 0.0,
                fresh: 0.0,
            }
        };
        let steps = levels.iter().map(coefficients).collect();
        Sampler::of(timesteps, guidance, steps)
    }

    /// Returns CogVideoX's DPM scheduler: DPM++ 2M SDE, of first order at the first and the last step.
    ///
    /// # Panics
    /// `steps` is 0 or more than the schedule has timesteps.
    pub fn dpm(schedule: &NoiseSchedule, spacing: Spacing, steps: usize, guidance: Guidance) -> Self {
        let (timesteps, levels) = levels(schedule, spacing, steps);
        let coefficients = |(i, Levels { now, next, last }): (usize, &Levels)| {
            // Infinite at the noisiest timestep and at the end; the values derived from it are finite.
            let h = lambda(*next) - lambda(*now);
            let ahead = -(-2.0 * h).exp_m1() * next.sqrt();
            let half = match i.checked_sub(1) {
                Some(i) if !last => h / (2.0 * (lambda(*now) - lambda(levels[i].now))),
                _ => 0.0,
            };
            Coefficients {
                signal: now.sqrt(),
                noise: (1.0 - now).sqrt(),
                kept: ((1.0 - next) / (1.0 - now)).sqrt() * (-h).exp(),
                ahead: ahead * (1.0 + half),
                before: -ahead * half,
                fresh: (1.0 - next).sqrt() * (-(-2.0 * h).exp_m1()).sqrt(),
            }
        };
        let steps = levels.iter().enumerate().map(coefficients).collect();
        Sampler::of(timesteps, guidance, steps)
    }
}
