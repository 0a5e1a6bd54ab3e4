//! The input embedding: latent, given frames, text, timestep, pooled text and guidance become tokens and one vector of a sample.

use super::{GIVEN, GUIDANCE, POOLED};
use crate::family::{Inputs, Tokens};
use crate::params::{Slots, UnitParams};
use crate::patches::packed;
use crate::waves::sinusoid;
use recipe::families::mmdit::Mmdit as Sizes;
use tch::{Kind, Tensor};

/// The network's unit of time and of guidance: both are multiplied by this before their sines are computed.
const WAVE_UNIT: f64 = 1000.0;

/// Embeds the inputs of the network.
#[derive(Debug)]
pub struct Embedder {
    patch: [i64; 3],
    video: usize,
    given: Option<usize>,
    text: usize,
    time: [usize; 2],
    guidance: Option<[usize; 2]>,
    pooled: [usize; 2],
}

impl Embedder {
    /// Finds the root's parameters by name.
    pub fn new(sizes: &Sizes, root: &Slots) -> Self {
        let pair = |name: &str| ["linear1", "linear2"].map(|layer| root.affine(&format!("{name}.{layer}")));
        Embedder {
            patch: super::patch(sizes),
            video: root.affine("patch_embed.video"),
            given: sizes.condition.then(|| root.affine("patch_embed.condition")),
            text: root.affine("patch_embed.text"),
            time: pair("time_embed"),
            guidance: sizes.guidance.then(|| pair("guidance_embed")),
            pooled: pair("pooled_embed"),
        }
    }

    /// Embeds the inputs; builds a graph if the parameters or the latent require gradients. Returns the streams of video `[B, N, D]` and text
    /// `[B, L - N, D]`, and the activated vector `[B, D]` that modulates all blocks.
    ///
    /// # Panics
    /// The batch has no pooled text, or no guidance for a network that embeds it.
    pub fn forward(&self, root: &UnitParams, inputs: &Inputs) -> Tokens {
        let condition =
            |name: &str| inputs.condition(name).unwrap_or_else(|| panic!("the batch has no condition {name}"));
        let mut video = root.affine(self.video).linear(&packed(&inputs.latent, self.patch));
        if let Some(slot) = self.given {
            let layer = root.affine(slot);
            // Without given frames the embedding's input is zero, and its output the bias.
            video += match inputs.condition(GIVEN) {
                Some(given) => layer.linear(&packed(given, self.patch)),
                None => layer.bias().shallow_clone(),
            };
        }
        let mlp =
            |[first, second]: [usize; 2], x: &Tensor| root.affine(second).linear(&root.affine(first).linear(x).silu());
        let waves = |[first, second]: [usize; 2], number: &Tensor| {
            let width = root.affine(first).weight.size()[1];
            let number = number.to_kind(Kind::Float) * WAVE_UNIT;
            mlp([first, second], &sinusoid(&number, width).to_kind(inputs.latent.kind()))
        };
        let mut vector = waves(self.time, &inputs.timestep) + mlp(self.pooled, condition(POOLED));
        if let Some(slots) = self.guidance {
            vector += waves(slots, condition(GUIDANCE));
        }
        let text = root.affine(self.text).linear(&inputs.text);
        Tokens { streams: vec![video, text], shared: vec![vector.silu()] }
    }
}
