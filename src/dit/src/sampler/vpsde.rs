//! The sampler of ttt-video-dit: DPM++ 2M SDE for its own schedule with zero terminal SNR.
//!
//! Source: `cogvideo/utils.py`, its `VPSDEDPMPP2M`; Lu et al. 2022, "DPM-Solver++", 2M in its stochastic form.

use super::{Coefficients, Guidance, Sampler, lambda};
use crate::diffusion::{NoiseSchedule, TIMESTEPS};

impl Sampler {
    /// Spreads the steps over the timesteps of the training schedule as ttt-video-dit does.
    ///
    /// # Panics
    /// `steps` is less than two: the first step has no signal, and the last gives the sample.
    pub fn vpsde(steps: usize, guidance: Guidance) -> Self {
        assert!(steps >= 2, "sampling needs at least 2 steps, not {steps}");
        let timesteps = timesteps(steps);
        let signal = signal(&timesteps);
        let table = NoiseSchedule::signal_at(&(0..TIMESTEPS).rev().collect::<Vec<_>>());
        // λ is -∞ without signal, but all values derived from it are finite.
        let lambda = |i: usize| lambda(signal[i] * signal[i]);
        let coefficients = |i: usize| {
            // The network was trained with the levels of the table, so the nearest one converts its velocity.
            let trained = nearest(&table, signal[i]);
            let (signal_of, noise) = (trained, (1.0 - trained * trained).sqrt());
            if i + 1 == steps {
                return Coefficients { signal: signal_of, noise, kept: 0.0, ahead: 1.0, before: 0.0, fresh: 0.0 };
            }
            let (now, next) = (signal[i], signal[i + 1]);
            let h = lambda(i + 1) - lambda(i);
            let ahead = -(-2.0 * h).exp_m1() * next;
            let half = if i == 0 { 0.0 } else { h / (2.0 * (lambda(i) - lambda(i - 1))) };
            Coefficients {
                signal: signal_of,
                noise,
                kept: ((1.0 - next * next) / (1.0 - now * now)).sqrt() * (-h).exp(),
                ahead: ahead * (1.0 + half),
                before: -ahead * half,
                fresh: (1.0 - next * next).sqrt() * (-(-2.0 * h).exp_m1()).sqrt(),
            }
        };
        Sampler::of(timesteps.clone(), guidance, (0..steps).map(coefficients).collect())
    }

    /// Returns `√ᾱ` before each of `steps` steps of [`Sampler::vpsde`]; the first is 0.
    pub fn vpsde_signal(steps: usize) -> Vec<f64> {
        signal(&timesteps(steps))
    }
}

fn timesteps(steps: usize) -> Vec<i64> {
    let last = (TIMESTEPS - 1) as f64;
    (0..steps).map(|i| (last * (steps - i) as f64 / steps as f64).floor() as i64).collect()
}

/// Returns `√ᾱ` before each step. The reference rescales the levels of its few steps to zero terminal signal, so they are not
/// rows of the table that trained the network.
fn signal(timesteps: &[i64]) -> Vec<f64> {
    NoiseSchedule::signal_at(timesteps)
}

fn nearest(table: &[f64], signal: f64) -> f64 {
    let far = |other: &&f64| (*other - signal).abs();
    *table.iter().min_by(|a, b| far(a).total_cmp(&far(b))).expect("there are timesteps")
}
