//! The objective of Open-Sora 2: flow matching whose timesteps shift with the resolution and the length of a clip.
//!
//! At timestep `t`, 0 for clean and 1 for noise, a noised latent is nearly `(1 - t)·x + t·ε`, and the target `ε - x`. Each tensor is formed in
//! the dtype of the clean latent, after the timestep was rounded to it. So bf16 latents give Open-Sora's tensors bit for bit.
//!
//! Sources: Lipman et al. 2023, "Flow Matching for Generative Modeling"; Esser et al. 2024, "Scaling Rectified Flow Transformers for
//! High-Resolution Image Synthesis", section 5.3.2; Open-Sora `scripts/diffusion/train.py` and `opensora/utils/sampling.py`.

use super::GIVEN;
use crate::diffusion::Target;
use crate::family::{Conditions, condition};
use crate::objective::Objective;
use recipe::Shape;
use recipe::families::mmdit::Mmdit as Sizes;
use tch::{Kind, Tensor};

/// The noise that is left in a clean latent, and that the target lacks.
const SIGMA_MIN: f64 = 1e-5;

/// Flow matching for the tokens of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowMatching {
    /// Rows and columns of latent pixels in a token.
    patch_size: usize,
    counted: CountedFrames,
}

/// The latent frames that the loss counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CountedFrames {
    /// All of them, as Open-Sora 2 was trained.
    #[default]
    All,
    /// All but images that are given at the ends. Frames of given videos count. This is the loss of Open-Sora's option `no_i2v_ref_loss`, to
    /// which Open-Sora never passes the mask.
    WithoutGivenImages,
}

impl FlowMatching {
    /// Returns the objective of a network.
    pub fn new(sizes: &Sizes, counted: CountedFrames) -> Self {
        FlowMatching { patch_size: sizes.patch_size, counted }
    }

    /// Returns the shift of the timesteps of a latent, `(1 + (tokens of a frame - 256) · 2 / 3840) · √T`.
    ///
    /// Open-Sora counts 2 × 2 latent pixels as a token in training, also for networks whose tokens are single pixels, and samples these with
    /// the right number of tokens. Both are right here.
    pub fn shift(&self, shape: Shape) -> f64 {
        let tokens = (shape.height * shape.width / (self.patch_size * self.patch_size)) as f64;
        (1.0 + (tokens - 256.0) * 2.0 / 3840.0) * (shape.frames as f64).sqrt()
    }

    /// Returns the timesteps `[B]` of normally distributed numbers, for latents of a shape: their logistic function, shifted.
    pub fn timesteps_of(&self, normal: &Tensor, shape: Shape) -> Tensor {
        shifted(&normal.sigmoid(), self.shift(shape))
    }

    /// Returns 1 for each frame that counts in the loss, `[B, T]`; `None` if all do.
    fn counted(&self, conditions: &Conditions) -> Option<Tensor> {
        let given = match self.counted {
            CountedFrames::All => return None,
            CountedFrames::WithoutGivenImages => condition(conditions, GIVEN),
        };
        given.map(|given| counted(&given.select(2, 0).flatten(2, -1).amax([2], false)))
    }
}

/// Returns timesteps from 0 to 1, shifted to noisier ones: `shift · t / (1 + (shift - 1) · t)`.
pub(super) fn shifted(timesteps: &Tensor, shift: f64) -> Tensor {
    timesteps * shift / (timesteps * (shift - 1.0) + 1.0)
}

/// Returns 1 for frames that count in the loss. `mask` `[B, T]` is 1 for given frames. A given frame at an end does not count if no frame between
/// the ends is given.
fn counted(mask: &Tensor) -> Tensor {
    let frames = mask.size()[1];
    let counted = mask.ones_like();
    if frames > 1 {
        let spared = |end: i64| {
            let is_given = mask.narrow(1, end, 1);
            let between = (frames > 2).then(|| mask.narrow(1, 1, frames - 2).amax([1], true));
            between.map_or_else(|| is_given.shallow_clone(), |between| &is_given * (1.0 - between))
        };
        for end in [0, frames - 1] {
            let _ = counted.narrow(1, end, 1).g_sub_(&spared(end));
        }
    }
    counted
}

impl Objective for FlowMatching {
    fn timesteps(&self, quantiles: &[f64], shape: Shape) -> Tensor {
        let normal = Tensor::from_slice(quantiles).special_ndtri().to_kind(Kind::Float);
        self.timesteps_of(&normal, shape)
    }

    fn noised(&self, clean: &Tensor, noise: &Tensor, timestep: &Tensor, conditions: &Conditions) -> (Tensor, Target) {
        let timestep = timestep.to_kind(clean.kind()).view([-1, 1, 1, 1, 1]);
        let signal: Tensor = 1.0 - timestep;
        let level: Tensor = 1.0 - &signal * (1.0 - SIGMA_MIN);
        let latent = signal * clean + level * noise;
        let velocity = noise * (1.0 - SIGMA_MIN) - clean;
        (latent, Target::of_velocity(velocity, self.counted(conditions)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Shape = Shape { frames: 9, height: 24, width: 42 };

    fn values(tensor: &Tensor) -> Vec<f64> {
        Vec::try_from(tensor.flatten(0, -1).to_kind(Kind::Double)).expect("numbers")
    }

    #[test]
    fn timesteps_rise_from_0_to_1_with_the_quantiles_and_their_median_is_the_shifted_half() {
        let objective = FlowMatching::new(&Sizes::open_sora_2(), CountedFrames::All);
        let shift = objective.shift(CLIP);
        let got = values(&objective.timesteps(&[0.0, 1e-9, 0.1, 0.5, 0.9, 1.0 - 1e-9], CLIP));
        assert!(got.is_sorted() && got[0] == 0.0 && got[5] <= 1.0, "{got:?}");
        assert!((got[3] - shift / (1.0 + shift)).abs() < 1e-6, "{got:?}");
        // Below 256 tokens in a frame an image has less noise.
        let small = Shape { frames: 1, height: 8, width: 8 };
        assert!(objective.shift(small) < 1.0);
    }

    #[test]
    fn tokens_of_one_pixel_count_as_tokens() {
        let of = |sizes: &Sizes, shape| FlowMatching::new(sizes, CountedFrames::All).shift(shape);
        let half = Shape { height: CLIP.height / 2, width: CLIP.width / 2, ..CLIP };
        assert_eq!(of(&Sizes::open_sora_2_high_compression(), half), of(&Sizes::open_sora_2(), CLIP));
    }

    #[test]
    fn given_images_at_the_ends_do_not_count_unless_a_frame_between_them_is_given() {
        let mask = |rows: &[f32], frames: i64| Tensor::from_slice(rows).view([-1, frames]);
        let got = counted(&mask(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], 4));
        assert_eq!(values(&got), [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        // A clip of two given images has no frame to generate, and an image always counts.
        assert_eq!(values(&counted(&mask(&[1.0, 1.0, 1.0, 0.0], 2))), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(values(&counted(&mask(&[1.0], 1))), [1.0]);
    }
}
