//! Wan 2.1 and 2.2: one stream of video tokens that attends to itself and to the text.
//!
//! Source: Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models", and its code.

mod cost;
mod keys;
mod lora;
mod model;
mod names;
mod objective;
mod params;
mod recognise;
mod rules;

pub use keys::WanKeys;
pub use lora::{AdapterForm, AdapterNames, adapter_names};
pub use model::{ImageKeys, Release, WanModel};
pub use names::{Layout, file_tensor};
pub use objective::{Flow, FlowWeighting, NoiseLevels};
pub use params::param_specs;
pub use recognise::{NotWan, Recognised, Shapes, recognise};

use super::{Family, FamilySpec};
use crate::check::Rules;
use crate::{BlockCost, ConditionKind, Flops, Model, ParamSpec, Recipe, SampleScheduler};

/// The latent channels of the VAE of Wan 2.2, which only TI2V 5B has.
const CHANNELS_5B: usize = 48;

impl FamilySpec for WanKeys {
    fn param_specs(&self, model: &Model) -> Vec<ParamSpec> {
        let named = |spec: ParamSpec| {
            let diffusers = file_tensor(Layout::Diffusers, &spec.name).map(|tensor| tensor.name);
            ParamSpec { diffusers, ..spec }
        };
        param_specs(&self.network(model)).into_iter().map(named).collect()
    }

    fn blocks(&self, recipe: &Recipe) -> Vec<BlockCost> {
        cost::blocks(self, recipe)
    }

    fn forward_flops(&self, model: &Model) -> Flops {
        cost::forward_flops(self, model)
    }

    fn rules(&self) -> Rules {
        rules::RULES
    }

    /// The text is no part of the stream: every block attends to it.
    fn tokens(&self, model: &Model) -> usize {
        model.video_tokens()
    }

    fn for_frames(&self, _: usize) -> Family {
        Family::Wan(self.clone())
    }

    fn sampler(&self) -> SampleScheduler {
        SampleScheduler::Unipc
    }

    fn samplers(&self) -> &'static [SampleScheduler] {
        &[SampleScheduler::Unipc, SampleScheduler::Euler]
    }

    fn conditions(&self, model: &Model) -> &'static [ConditionKind] {
        use ConditionKind::{FirstFrame, ImageClip, None};
        // TI2V 5B has the same network with and without an image.
        if model.out_channels == CHANNELS_5B { &[FirstFrame, None, ImageClip] } else { &[None, ImageClip, FirstFrame] }
    }

    fn published_fps(&self, model: &Model) -> f64 {
        if model.out_channels == CHANNELS_5B { 24.0 } else { 16.0 }
    }

    fn adaptable_keys(&self) -> &'static [&'static str] {
        &[]
    }
}
