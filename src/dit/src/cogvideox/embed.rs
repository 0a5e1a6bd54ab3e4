//! CogVideoX's input embedding: latents, text and timestep become tokens and a time embedding.

use super::Grid;
use crate::family::{Inputs, Tokens};
use crate::params::UnitParams;
use crate::patches::packed;
use crate::waves::sinusoid;
use kernels::linear::linear;
use recipe::{FsdpUnit, Model};
use tch::Tensor;

/// The offset of the first image in CogVideoX 1.5 image-to-video, the same in training and sampling.
pub const OFS: f64 = 2.0;

/// Embeds patches, text and time.
#[derive(Debug)]
pub struct Embedder {
    /// Frames, rows and columns of a patch.
    patch: [i64; 3],
    dim: i64,
    video: usize,
    text: usize,
    time1: usize,
    time2: usize,
    ofs: Option<[usize; 2]>,
    /// The slot of the learned position table.
    learned: Option<usize>,
}

impl Embedder {
    /// Finds the root's parameters by name.
    pub fn new(model: &Model) -> Self {
        let slots = super::slots(model, FsdpUnit::Root);
        Embedder {
            patch: super::patch(model),
            dim: model.dim() as i64,
            video: slots.affine("patch_embed.video"),
            text: slots.affine("patch_embed.text"),
            time1: slots.affine("time_embed.linear1"),
            time2: slots.affine("time_embed.linear2"),
            ofs: model
                .cogvideox()
                .ofs_embedding
                .then(|| ["ofs_embed.linear1", "ofs_embed.linear2"].map(|name| slots.affine(name))),
            learned: slots.find("patch_embed.positions"),
        }
    }

    /// Embeds the inputs; builds a graph if the parameters or the latent require gradients.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, inputs: &Inputs) -> Tokens {
        let joined = joined(inputs);
        let video = root.affine(self.video);
        let patches = packed(&joined, self.patch);
        let video_tokens = linear(&patches, &video.weight.view([self.dim, -1]), Some(video.bias()));
        let mut x_bld = Tensor::cat(&[root.affine(self.text).linear(&inputs.text), video_tokens], 1);
        let learned = self.learned.filter(|_| grid.has_learned).map(|slot| root.tensor(slot));
        if let Some(positions) = learned.or(grid.added.as_ref()) {
            x_bld += positions.to_kind(joined.kind());
        }
        let embed = |[first, second]: [usize; 2], number: &Tensor| {
            let width = root.affine(first).weight.size()[1];
            let waves = sinusoid(number, width).to_kind(joined.kind());
            root.affine(second).linear(&root.affine(first).linear(&waves).silu())
        };
        let time = embed([self.time1, self.time2], &inputs.timestep);
        let time = match self.ofs {
            Some(ofs) => time + embed(ofs, &grid.offset),
            None => time,
        };
        Tokens { streams: vec![x_bld], shared: vec![time.silu()] }
    }
}

/// Returns the latent with its conditions, which are concatenated on the channels.
fn joined(inputs: &Inputs) -> Tensor {
    if inputs.conditions.is_empty() {
        return inputs.latent.shallow_clone();
    }
    let parts: Vec<&Tensor> = std::iter::once(&inputs.latent).chain(inputs.conditions.iter().map(|(_, t)| t)).collect();
    Tensor::cat(&parts, 2)
}
