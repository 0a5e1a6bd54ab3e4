//! Diffusion: the noise schedule, noising, the velocity target and the weighted loss. Tables are computed in fp64,
//! latents and losses in fp32.

use recipe::{BetaSchedule, Loss, LossWeighting, Model};
use tch::{Device, Kind, Tensor};

/// The number of timesteps in CogVideoX's schedule.
pub const TIMESTEPS: i64 = 1000;

/// The signal and noise levels of every timestep.
#[derive(Debug)]
pub struct NoiseSchedule {
    /// `ᾱ`, `[N]`, fp64; index 0 is the cleanest.
    alphas_cumprod: Tensor,
    /// `√ᾱ`, `[N]`, fp32; with zero terminal SNR the last is exactly 0.
    signal: Tensor,
    /// `√(1-ᾱ)`, `[N]`, fp32.
    noise: Tensor,
}

impl Clone for NoiseSchedule {
    /// Returns a schedule that shares the tables, which never change.
    fn clone(&self) -> Self {
        let NoiseSchedule { alphas_cumprod, signal, noise } = self;
        NoiseSchedule {
            alphas_cumprod: alphas_cumprod.shallow_clone(),
            signal: signal.shallow_clone(),
            noise: noise.shallow_clone(),
        }
    }
}

impl Default for NoiseSchedule {
    /// Returns the schedule of CogVideoX-5B: β scaled-linear from 0.00085 to 0.012, ᾱ rescaled to zero terminal SNR.
    fn default() -> Self {
        Self::of_signal(&Tensor::from_slice(&Self::signal_at(&(0..TIMESTEPS).rev().collect::<Vec<_>>())).flip([0]))
    }
}

/// A noised latent and the target of the network. The formulas are those of CogVideoX.
#[derive(Debug)]
pub struct Noised {
    /// `√ᾱ·x0 + √(1-ᾱ)·ε`, shape of the latent, fp32.
    pub latent: Tensor,
    /// The velocity `√ᾱ·ε - √(1-ᾱ)·x0`, shape of the latent, fp32.
    pub velocity: Tensor,
}

impl NoiseSchedule {
    /// Returns the noise schedule that a model was made for.
    ///
    /// β grows according to `model.beta_schedule`, and `ᾱ = Π(1 - β)`. A shift `s` of the signal-to-noise ratio
    /// replaces ᾱ by `ᾱ / (s + (1 - s)·ᾱ)`. Zero terminal SNR then shifts and scales `√ᾱ` so that the last value is 0
    /// and the first is unchanged.
    ///
    /// Source: diffusers `CogVideoXDDIMScheduler`; Lin et al. 2024, "Common Diffusion Noise Schedules and Sample Steps are
    /// Flawed", algorithm 1.
    pub fn new(model: &Model) -> Self {
        let own = model.cogvideox();
        let (count, options) = (own.timesteps as i64, (Kind::Double, Device::Cpu));
        if own.beta_schedule == BetaSchedule::Linear {
            return Self::linear(model);
        }
        let beta = Tensor::linspace(own.beta_start.sqrt(), own.beta_end.sqrt(), count, options).square();
        let one_minus: Tensor = 1.0 - beta;
        let product = one_minus.cumprod(0, Kind::Double);
        let shift = own.snr_shift_scale;
        let shifted = &product / (&product * (1.0 - shift) + shift);
        let root: Vec<f64> = Vec::try_from(shifted.sqrt()).expect("the levels are numbers");
        let root = if own.zero_terminal_snr { rescaled(&root, root[root.len() - 1], root[0]) } else { root };
        Self::of_signal(&Tensor::from_slice(&root))
    }

    /// Computes the schedule of a β that grows linearly. Each operation is rounded to fp32, in the order of diffusers, which keeps fp64 only
    /// for the other kind of β.
    ///
    /// Source: diffusers `CogVideoXDDIMScheduler.__init__` and `rescale_zero_terminal_snr`.
    fn linear(model: &Model) -> Self {
        let own = model.cogvideox();
        let options = (Kind::Float, Device::Cpu);
        let alpha: Tensor = 1.0 - Tensor::linspace(own.beta_start, own.beta_end, own.timesteps as i64, options);
        let mut product = alpha.cumprod(0, Kind::Float);
        let shift = own.snr_shift_scale;
        if shift != 1.0 {
            product = &product / (&product * (1.0 - shift) + shift);
        }
        if own.zero_terminal_snr {
            let root = product.sqrt();
            let (cleanest, noisiest) = (root.get(0), root.get(root.size()[0] - 1));
            let scale = &cleanest / (&cleanest - &noisiest);
            product = ((root - noisiest) * scale).square();
        }
        let noise: Tensor = 1.0 - &product;
        NoiseSchedule { signal: product.sqrt(), noise: noise.sqrt(), alphas_cumprod: product.to_kind(Kind::Double) }
    }

    /// Returns the schedule with these values of `√ᾱ`, fp64.
    fn of_signal(signal: &Tensor) -> Self {
        let alphas_cumprod = signal.square();
        let noise: Tensor = 1.0 - &alphas_cumprod;
        NoiseSchedule { signal: signal.to_kind(Kind::Float), noise: noise.sqrt().to_kind(Kind::Float), alphas_cumprod }
    }

    /// Returns `√ᾱ` at the given timesteps, noisiest first, rescaled so that the first has no signal and the last is unchanged.
    pub(crate) fn signal_at(timesteps: &[i64]) -> Vec<f64> {
        let options = (Kind::Double, Device::Cpu);
        let alpha: Tensor = 1.0 - Tensor::linspace(0.00085f64.sqrt(), 0.012f64.sqrt(), TIMESTEPS, options).square();
        let root = alpha.cumprod(0, Kind::Double).sqrt();
        let at: Vec<f64> = timesteps.iter().map(|timestep| root.double_value(&[*timestep])).collect();
        rescaled(&at, at[0], at[at.len() - 1])
    }

    /// Returns the schedule with its tables on a device. Timesteps and latents must be on the same device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        let there = |table: &Tensor| table.to_device(device);
        NoiseSchedule {
            alphas_cumprod: there(&self.alphas_cumprod),
            signal: there(&self.signal),
            noise: there(&self.noise),
        }
    }

    /// Returns the number of timesteps.
    pub fn timesteps(&self) -> i64 {
        self.alphas_cumprod.size()[0]
    }

    /// Returns ᾱ of every timestep, `[N]`, fp64.
    pub fn alphas_cumprod(&self) -> &Tensor {
        &self.alphas_cumprod
    }

    /// Mixes clean latents `[B, …]` with noise of the same shape at timesteps `[B]`.
    pub fn noise(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor) -> Noised {
        let (signal, level) = self.levels(timestep, clean.dim());
        Noised { latent: &signal * clean + &level * noise, velocity: &signal * noise - &level * clean }
    }

    /// Returns the clean latents `[B, …]` that a velocity implies: `√ᾱ·x_t - √(1-ᾱ)·v`, fp32.
    pub fn clean(&self, noisy: &Tensor, velocity: &Tensor, timestep: &Tensor) -> Tensor {
        let (signal, level) = self.levels(timestep, noisy.dim());
        signal * noisy.to_kind(Kind::Float) - level * velocity.to_kind(Kind::Float)
    }

    /// Returns the signal-to-noise ratio `ᾱ / (1 - ᾱ)` at timesteps `[B]`, fp64.
    pub fn snr(&self, timestep: &Tensor) -> Tensor {
        let signal = self.alphas_cumprod.index_select(0, timestep);
        let noise: Tensor = 1.0 - &signal;
        signal / noise
    }

    /// Returns `√ᾱ` and `√(1-ᾱ)` at timesteps `[B]`, each in a shape that is broadcast over the other `dims - 1` dimensions.
    fn levels(&self, timestep: &Tensor, dims: usize) -> (Tensor, Tensor) {
        let mut shape = vec![1i64; dims];
        shape[0] = -1;
        let at = |table: &Tensor| table.index_select(0, timestep).view(shape.as_slice());
        (at(&self.signal), at(&self.noise))
    }
}

/// Moves and scales `√ᾱ` so that the noisiest level is 0 and the cleanest is unchanged.
fn rescaled(signal: &[f64], noisiest: f64, cleanest: f64) -> Vec<f64> {
    signal.iter().map(|level| (level - noisiest) * (cleanest / (cleanest - noisiest))).collect()
}

/// The target of the network's output, and the weight of each sample. All tensors are fp32.
#[derive(Debug)]
pub struct Target {
    /// The velocity, `[B, T, C, height, width]`.
    velocity: Tensor,
    /// The weights of samples, `[B]`; `None` if all are 1.
    weight: Option<Tensor>,
    /// If set, the loss is the error of the clean latent that the predicted velocity implies; if `None`, of the velocity.
    clean: Option<Clean>,
    /// The weight of the frame-difference error; the weight of the plain error is `1 - motion`.
    motion: f64,
    /// 1 for the frames of the loss and 0 for others, `[B, T]`; `None`: all frames. Only for the plain error of the velocity.
    frames: Option<Tensor>,
}

/// The constants of the error of the clean latent that a velocity implies: `offset - noise·v`.
#[derive(Debug)]
struct Clean {
    /// `√ᾱ·x_t - x_0`
    offset: Tensor,
    /// `√(1-ᾱ)`
    noise: Tensor,
}

impl From<Noised> for Target {
    /// Returns the target whose loss is the plain mean squared error of the velocity.
    fn from(noised: Noised) -> Self {
        Target::of_velocity(noised.velocity, None)
    }
}

impl NoiseSchedule {
    /// Returns the target of latents `clean` that were noised at timesteps `[B]`.
    ///
    /// * `none`: the mean squared error of the velocity.
    /// * `snr`: cogvideox-factory's and zai-org's form, the error of the clean latent times `1 / (1 - ᾱ)`. The factors cancel: it
    ///   is the same loss up to rounding.
    /// * `min_snr`: the error of the velocity times `min(SNR, γ) / (SNR + 1)`. At zero terminal SNR the weight is 0.
    ///   Source: Hang et al. 2023, "Efficient Diffusion Training via Min-SNR Weighting Strategy", for v-prediction.
    pub fn target(&self, noised: Noised, clean: &Tensor, timestep: &Tensor, loss: &Loss) -> Target {
        let (weight, of_clean) = match loss.weighting {
            LossWeighting::None => (None, None),
            LossWeighting::Snr => {
                let mut shape = vec![1i64; clean.dim()];
                shape[0] = -1;
                // cogvideox-factory rounds ᾱ to fp32 first. The weight and both levels must use the same rounded value, or
                // the factors do not cancel.
                let power = self.alphas_cumprod.to_kind(Kind::Float).index_select(0, timestep).view(shape.as_slice());
                let offset = power.sqrt() * &noised.latent - clean;
                let noise: Tensor = 1.0 - power;
                (Some(self.clean_weight(timestep)), Some(Clean { offset, noise: noise.sqrt() }))
            }
            LossWeighting::MinSnr => {
                let snr = self.snr(timestep);
                let weight = snr.clamp_max(loss.min_snr_gamma) / (snr + 1.0);
                (Some(weight.to_kind(Kind::Float)), None)
            }
        };
        Target { velocity: noised.velocity, weight, clean: of_clean, motion: loss.motion, frames: None }
    }

    /// Returns cogvideox-factory's weight `1 / (1 - ᾱ)` at timesteps `[B]`, computed in fp32 like the original.
    pub fn clean_weight(&self, timestep: &Tensor) -> Tensor {
        let noise: Tensor = 1.0 - self.alphas_cumprod.index_select(0, timestep).to_kind(Kind::Float);
        noise.reciprocal()
    }
}

impl Target {
    /// Returns the target whose loss is the mean squared error of a velocity `[B, T, C, height, width]`, in the frames for which `frames`
    /// `[B, T]` is not 0. A sample without such frames has the loss 0.
    pub fn of_velocity(velocity: Tensor, frames: Option<Tensor>) -> Self {
        let frames = frames.map(|frames| frames.ne(0).to_kind(Kind::Float));
        Target { velocity, weight: None, clean: None, motion: 0.0, frames }
    }

    /// Returns the target with a weight of the loss of each sample, `[B]`, fp32.
    #[must_use]
    pub fn weighted(self, weight: Tensor) -> Self {
        Target { weight: Some(weight), ..self }
    }

    /// Returns the prediction in a network's output: its first channels, as many as the target has, fp32.
    fn predicted(&self, output: &Tensor) -> Tensor {
        let channels = self.velocity.size()[2];
        let all = output.size()[2];
        let output = if all > channels { output.narrow(2, 0, channels) } else { output.shallow_clone() };
        output.to_kind(Kind::Float)
    }

    /// Returns the loss of each sample, `[B]`, fp32.
    pub fn loss(&self, output: &Tensor) -> Tensor {
        let output = self.predicted(output);
        let loss = match &self.frames {
            Some(frames) => self.loss_of(frames, &output),
            None => self.loss_of_all(&output),
        };
        match &self.weight {
            Some(weight) => loss * weight,
            None => loss,
        }
    }

    /// Returns the loss of all frames without the weight of the sample, `[B]`, fp32.
    fn loss_of_all(&self, output: &Tensor) -> Tensor {
        let error = match &self.clean {
            None => output - &self.velocity,
            Some(Clean { offset, noise }) => offset - noise * output,
        };
        let mean = |error: &Tensor| error.square().flatten(1, -1).mean_dim(1, false, Kind::Float);
        let (loss, frames) = (mean(&error), error.size()[1]);
        // Two latent frames are an image and the video after it, so their difference is not motion. VideoX-Fun excludes
        // it too.
        if self.motion == 0.0 || frames <= 2 {
            return loss;
        }
        let difference = error.narrow(1, 1, frames - 1) - error.narrow(1, 0, frames - 1);
        loss * (1.0 - self.motion) + mean(&difference) * self.motion
    }

    /// Returns the mean squared error of the velocity in some frames, `[B]`, fp32.
    fn loss_of(&self, frames: &Tensor, output: &Tensor) -> Tensor {
        let of_frames = (output - &self.velocity).square().flatten(2, -1).mean_dim(2, false, Kind::Float);
        let sum = |x: &Tensor| x.sum_dim_intlist(1, false, Kind::Float);
        sum(&(of_frames * frames)) / sum(frames).clamp_min(1.0)
    }

    /// Returns the mean squared error of the velocity without weights, fp32.
    pub fn plain_loss(&self, output: &Tensor) -> Tensor {
        match &self.frames {
            Some(frames) => self.loss_of(frames, &self.predicted(output)).mean(Kind::Float),
            None => (self.predicted(output) - &self.velocity).square().mean(Kind::Float),
        }
    }

    /// Applies `change` to every tensor, for example a copy to another device.
    pub fn map(&self, change: impl Fn(&Tensor) -> Tensor) -> Target {
        Target {
            velocity: change(&self.velocity),
            weight: self.weight.as_ref().map(&change),
            clean: self
                .clean
                .as_ref()
                .map(|Clean { offset, noise }| Clean { offset: change(offset), noise: change(noise) }),
            motion: self.motion,
            frames: self.frames.as_ref().map(&change),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(sets: &[&str]) -> Model {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        recipe::load(file.into(), &sets).expect("a valid recipe").recipe.model
    }

    #[test]
    fn the_default_keys_give_the_schedule_of_earlier_runs_bit_for_bit() {
        let (keys, fixed) = (NoiseSchedule::new(&model(&[])), NoiseSchedule::default());
        assert_eq!((keys.signal, keys.noise), (fixed.signal, fixed.noise));
    }

    #[test]
    fn min_snr_weighs_samples_by_their_level_and_snr_weighs_all_equally() {
        let schedule = NoiseSchedule::default();
        let timestep = Tensor::from_slice(&[0i64, 300, 999]);
        let clean = Tensor::randn([3, 4, 2, 2, 2], (Kind::Float, Device::Cpu));
        let (noise, output) = (clean.randn_like(), clean.randn_like());
        let loss = |weighting| {
            let loss = Loss { weighting, min_snr_gamma: 5.0, motion: 0.0 };
            let noised = schedule.noise(&clean, &noise, &timestep);
            Vec::<f64>::try_from(schedule.target(noised, &clean, &timestep, &loss).loss(&output).to_kind(Kind::Double))
                .expect("numbers")
        };
        let [plain, snr, min_snr] = [LossWeighting::None, LossWeighting::Snr, LossWeighting::MinSnr].map(loss);
        for i in 0..3 {
            assert!((plain[i] - snr[i]).abs() < 1e-4 * plain[i], "{plain:?} {snr:?}");
            let ratio = schedule.snr(&timestep).double_value(&[i as i64]);
            assert!((min_snr[i] - plain[i] * ratio.min(5.0) / (ratio + 1.0)).abs() < 1e-6, "{plain:?} {min_snr:?}");
        }
        assert_eq!(min_snr[2], 0.0);
    }

    #[test]
    fn a_motion_share_of_zero_is_the_plain_loss() {
        let schedule = NoiseSchedule::default();
        let timestep = Tensor::from_slice(&[300i64]);
        let clean = Tensor::randn([1, 4, 2, 2, 2], (Kind::Float, Device::Cpu));
        let (noise, output) = (clean.randn_like(), clean.randn_like());
        let noised = || schedule.noise(&clean, &noise, &timestep);
        let loss = |motion| {
            let loss = Loss { motion, ..Loss::default() };
            schedule.target(noised(), &clean, &timestep, &loss).loss(&output)
        };
        let plain = (&output - noised().velocity).square().flatten(1, -1).mean_dim(1, false, Kind::Float);
        assert_eq!(loss(0.0), plain);
        assert_ne!(loss(0.25), plain);
    }

    #[test]
    fn the_last_timestep_is_pure_noise_and_the_first_almost_clean() {
        let schedule = NoiseSchedule::default();
        assert_eq!(schedule.signal.double_value(&[999]), 0.0);
        assert_eq!(schedule.noise.double_value(&[999]), 1.0);
        // Values of the reference's table.
        for (index, signal) in [(0, 0.999575), (100, 0.94168), (500, 0.490937), (900, 0.05441), (998, 0.000444)] {
            assert!((schedule.signal.double_value(&[index]) - signal).abs() < 1e-6, "timestep {index}");
        }
    }

    #[test]
    fn the_clean_latent_follows_from_noised_latent_and_velocity() {
        let schedule = NoiseSchedule::default();
        let clean = Tensor::randn([3, 2, 4], (Kind::Float, Device::Cpu));
        let noised = schedule.noise(&clean, &clean.randn_like(), &Tensor::from_slice(&[0i64, 500, 999]));
        let at = |table: &Tensor| table.index_select(0, &Tensor::from_slice(&[0i64, 500, 999])).view([3, 1, 1]);
        let again = at(&schedule.signal) * &noised.latent - at(&schedule.noise) * &noised.velocity;
        assert!((again - clean).abs().max().double_value(&[]) < 1e-6);
    }
}
