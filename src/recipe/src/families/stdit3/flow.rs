//! The settings of the rectified flow: how timesteps are drawn, and how clips of other sizes shift them.

use super::ALIGNMENT;
use crate::Shape;

/// The timestep of pure noise; 0 is the clean latent.
pub const MAX_TIME: f32 = 1000.0;

/// Pixels of a latent's row or column.
const PIXELS: usize = 8;
/// Frames and latent frames of a piece of a video, which the VAE encodes alone.
const PIECE: [usize; 2] = [17, ALIGNMENT];

/// The distribution of timesteps in training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TimestepDraw {
    /// Uniform from 0 to 1000.
    Uniform,
    /// The logistic function of a normal distribution, times 1000.
    LogitNormal {
        /// The mean of the normal distribution.
        mean: f64,
        /// The standard deviation of the normal distribution.
        deviation: f64,
    },
    /// Whole numbers from 0 to 999, each as likely.
    Discrete,
}

impl TimestepDraw {
    /// The distribution that the released network was trained with.
    pub const RELEASED: Self = TimestepDraw::LogitNormal { mean: 0.0, deviation: 1.0 };
}

/// A rectified flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flow {
    /// The distribution of timesteps in training.
    pub draw: TimestepDraw,
    /// A factor of the shift towards noise, which grows with the size and length of a clip; `None`: timesteps are not shifted.
    pub shift: Option<f32>,
}

impl Default for Flow {
    /// Returns the flow of the released network.
    fn default() -> Self {
        Flow { draw: TimestepDraw::RELEASED, shift: Some(1.0) }
    }
}

/// The size of a clip as it is shown, on which the shift of timesteps depends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShownSize {
    /// Rows of pixels.
    pub height_px: f32,
    /// Columns of pixels.
    pub width_px: f32,
    /// Frames; 1 for an image.
    pub frames: f32,
}

impl ShownSize {
    /// Returns the size of a clip with a latent of this shape. The VAE cuts sides off at a multiple of 8 pixels, so the sides of a clip may
    /// be up to 7 pixels longer.
    pub fn of_latent(latent: Shape) -> Self {
        let [frames, latents] = PIECE;
        let frames = if latent.frames == 1 { 1 } else { (latent.frames * frames).div_ceil(latents) };
        let px = |side: usize| (side * PIXELS) as f32;
        ShownSize { height_px: px(latent.height), width_px: px(latent.width), frames: frames as f32 }
    }

    /// Returns the latent frames of the clip's whole pieces of 17 frames; 1 for an image.
    ///
    /// A video of less than 17 frames counts as an image. Upstream counts it as 0 frames and never noises it.
    fn latent_frames(self) -> f32 {
        let [frames, latents] = PIECE.map(|count| count as f32);
        if self.frames == 1.0 { 1.0 } else { ((self.frames / frames).floor() * latents).max(1.0) }
    }
}

impl Flow {
    /// Returns the timestep of a clip in place of the timestep `time` of a square image of 512 pixels, both from 0 to 1000.
    ///
    /// The result is `r·τ / (1 + (r - 1)·τ)` with `r = √(pixels / 512²) · √(latent frames) · shift`, computed in fp32 in upstream's order.
    /// Rounding does not take it above 1000, as it may in upstream, whose sampler then loses a step.
    ///
    /// Source: Open-Sora v1.2.0 `timestep_transform`; Esser et al., "Scaling Rectified Flow Transformers for High-Resolution Image
    /// Synthesis" (2024), section 5.3.2.
    pub fn shifted(&self, time: f32, clip: ShownSize) -> f32 {
        let Some(scale) = self.shift else { return time };
        let space = (clip.height_px * clip.width_px / (512.0 * 512.0)).sqrt();
        let ratio = space * clip.latent_frames().sqrt() * scale;
        let share = time / MAX_TIME;
        (ratio * share / (1.0 + (ratio - 1.0) * share) * MAX_TIME).min(MAX_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_has_the_shift_of_its_latent() {
        let flow = Flow::default();
        for (frames, latents) in [(1.0, 1), (17.0, 5), (51.0, 15), (54.0, 16), (102.0, 30), (408.0, 120)] {
            let clip = ShownSize { height_px: 240.0, width_px: 424.0, frames };
            let of_latent = ShownSize::of_latent(Shape { frames: latents, height: 30, width: 53 });
            assert_eq!(flow.shifted(500.0, clip), flow.shifted(500.0, of_latent), "{frames}");
        }
    }

    #[test]
    fn the_ends_stay_and_short_videos_are_noised() {
        let flow = Flow::default();
        for side in 100..1200 {
            for frames in [1.0, 9.0, 17.0, 51.0, 204.0] {
                let clip = ShownSize { height_px: side as f32, width_px: 426.0, frames };
                assert_eq!(flow.shifted(0.0, clip), 0.0);
                let noisiest = flow.shifted(MAX_TIME, clip);
                assert!((999.999..=MAX_TIME).contains(&noisiest), "{side} {frames}: {noisiest}");
                assert!(flow.shifted(500.0, clip) > 100.0);
            }
        }
    }
}
