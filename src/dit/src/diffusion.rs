//! Diffusion: the noise schedule with zero terminal SNR, noising, and the velocity target.

use tch::{Device, Kind, Tensor};

/// The number of timesteps in the training schedule.
pub const TIMESTEPS: i64 = 1000;

/// The signal and noise levels of every timestep.
#[derive(Debug)]
pub struct Schedule {
    /// `√ᾱ`, `[1000]`, fp32; index 0 is the cleanest, the last is exactly 0.
    signal: Tensor,
    /// `√(1-ᾱ)`, `[1000]`, fp32.
    noise: Tensor,
}

impl Default for Schedule {
    /// Returns CogVideoX's schedule: β scaled-linear from 0.00085 to 0.012, ᾱ rescaled to zero terminal SNR.
    ///
    /// Source: Lin et al. 2024, "Common Diffusion Noise Schedules and Sample Steps are Flawed", algorithm 1.
    fn default() -> Self {
        let signal = Tensor::from_slice(&Self::signal_at(&(0..TIMESTEPS).rev().collect::<Vec<_>>())).flip([0]);
        let noise: Tensor = 1.0 - signal.square();
        Schedule { signal: signal.to_kind(Kind::Float), noise: noise.sqrt().to_kind(Kind::Float) }
    }
}

/// A noised latent and the target of the network.
#[derive(Debug)]
pub struct Noised {
    /// `√ᾱ·x0 + √(1-ᾱ)·ε`, shape of the latent, fp32.
    pub latent: Tensor,
    /// The velocity `√ᾱ·ε - √(1-ᾱ)·x0`, shape of the latent, fp32.
    pub velocity: Tensor,
}

impl Schedule {
    /// Returns `√ᾱ` at the given timesteps, noisiest first, rescaled so that the first has no signal and the last is unchanged.
    pub(crate) fn signal_at(timesteps: &[i64]) -> Vec<f64> {
        let options = (Kind::Double, Device::Cpu);
        let alpha: Tensor = 1.0 - Tensor::linspace(0.00085f64.sqrt(), 0.012f64.sqrt(), TIMESTEPS, options).square();
        let root = alpha.cumprod(0, Kind::Double).sqrt();
        let at: Vec<f64> = timesteps.iter().map(|timestep| root.double_value(&[*timestep])).collect();
        let (noisiest, cleanest) = (at[0], at[at.len() - 1]);
        at.into_iter().map(|signal| (signal - noisiest) * (cleanest / (cleanest - noisiest))).collect()
    }

    /// Returns ᾱ of every timestep, `[1000]`.
    pub fn alphas_cumprod(&self) -> Tensor {
        self.signal.square()
    }

    /// Mixes clean latents `[B, …]` with noise of the same shape at timesteps `[B]`.
    pub fn noise(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor) -> Noised {
        let mut shape = vec![1i64; clean.dim()];
        shape[0] = -1;
        let at = |table: &Tensor| table.index_select(0, timestep).view(shape.as_slice());
        let (signal, level) = (at(&self.signal), at(&self.noise));
        Noised { latent: &signal * clean + &level * noise, velocity: &signal * noise - &level * clean }
    }
}

/// Returns the mean squared error of each sample, `[B]`, fp32.
pub fn velocity_loss(output: &Tensor, velocity: &Tensor) -> Tensor {
    let error = output.to_kind(Kind::Float) - velocity;
    error.square().flatten(1, -1).mean_dim(1, false, Kind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_timestep_is_pure_noise_and_the_first_almost_clean() {
        let schedule = Schedule::default();
        assert_eq!(schedule.signal.double_value(&[999]), 0.0);
        assert_eq!(schedule.noise.double_value(&[999]), 1.0);
        // Values of the reference's table.
        for (index, signal) in [(0, 0.999575), (100, 0.94168), (500, 0.490937), (900, 0.05441), (998, 0.000444)] {
            assert!((schedule.signal.double_value(&[index]) - signal).abs() < 1e-6, "timestep {index}");
        }
    }

    #[test]
    fn the_clean_latent_follows_from_noised_latent_and_velocity() {
        let schedule = Schedule::default();
        let clean = Tensor::randn([3, 2, 4], (Kind::Float, Device::Cpu));
        let noised = schedule.noise(&clean, &clean.randn_like(), &Tensor::from_slice(&[0i64, 500, 999]));
        let at = |table: &Tensor| table.index_select(0, &Tensor::from_slice(&[0i64, 500, 999])).view([3, 1, 1]);
        let again = at(&schedule.signal) * &noised.latent - at(&schedule.noise) * &noised.velocity;
        assert!((again - clean).abs().max().double_value(&[]) < 1e-6);
    }
}
