//! CogVideoX 1.0 and 1.5 (Yang et al. 2024, "CogVideoX: Text-to-Video Diffusion Models with An Expert Transformer"), with or without TTT
//! layers (Dalal et al. 2025, "One-Minute Video Generation with Test-Time Training").

mod cost;
mod keys;
mod names;
mod params;
mod rules;

pub use keys::{BetaSchedule, CogVideoXKeys, Layer, LrAlignment, Positions, Rotary, SEGMENT_FRAMES, TimestepSpacing};

use super::{Family, FamilySpec};
use crate::check::Rules;
use crate::sample::decoded_frames;
use crate::{BlockCost, ConditionKind, Flops, Model, ParamSpec, Recipe, SampleScheduler};

impl FamilySpec for CogVideoXKeys {
    fn param_specs(&self, model: &Model) -> Vec<ParamSpec> {
        params::param_specs(model)
    }

    fn blocks(&self, recipe: &Recipe) -> Vec<BlockCost> {
        cost::blocks(recipe)
    }

    fn forward_flops(&self, model: &Model) -> Flops {
        cost::forward_flops(model)
    }

    fn kernel_memory(&self, recipe: &Recipe) -> u64 {
        cost::scan_kernel(recipe)
    }

    fn rules(&self) -> Rules {
        rules::RULES
    }

    fn segments(&self) -> usize {
        self.segments
    }

    fn has_ttt(&self) -> bool {
        self.layer != Layer::None
    }

    fn unfit_for_scan_kernel(&self, model: &Model) -> Option<(&'static str, usize, &'static str)> {
        rules::unfit_for_scan_kernel(model)
    }

    /// A model with TTT layers gets the number of segments for these frames.
    fn for_frames(&self, latent_frames: usize) -> Family {
        let segments = match self.has_ttt() || self.segments > 1 {
            true => ((latent_frames - 1) / SEGMENT_FRAMES).max(1),
            false => 1,
        };
        Family::CogVideoX(CogVideoXKeys { segments, ..self.clone() })
    }

    fn image_scale(&self, model: &Model) -> f64 {
        if self.invert_image_scale { 1.0 / model.latent_scale } else { model.latent_scale }
    }

    fn sampler(&self) -> SampleScheduler {
        match (self.layer, self.positions) {
            (Layer::TttLinear | Layer::TttMlp, _) => SampleScheduler::Vpsde,
            (Layer::None, Positions::SinCos) => SampleScheduler::Ddim,
            (Layer::None, Positions::Rope | Positions::Learned) => SampleScheduler::Dpm,
        }
    }

    fn samplers(&self) -> &'static [SampleScheduler] {
        &[SampleScheduler::Ddim, SampleScheduler::Dpm, SampleScheduler::Vpsde]
    }

    fn decoded_frames(&self, latent_frames: usize) -> usize {
        decoded_frames(latent_frames)
    }

    fn conditions(&self, _: &Model) -> &'static [ConditionKind] {
        &[ConditionKind::None, ConditionKind::Image, ConditionKind::Inpaint]
    }

    /// CogVideoX 1.5 has patches of two frames.
    fn published_fps(&self, model: &Model) -> f64 {
        if model.patch_size_t > 1 { 16.0 } else { 8.0 }
    }

    fn adaptable_keys(&self) -> &'static [&'static str] {
        &[
            "rotary",
            "base_frames",
            "base_height",
            "base_width",
            "timesteps",
            "beta_start",
            "beta_end",
            "beta_schedule",
            "snr_shift_scale",
            "zero_terminal_snr",
        ]
    }
}
