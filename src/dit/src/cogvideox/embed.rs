//! CogVideoX's input embedding: latents, text and timestep become tokens and a time embedding.

use super::Grid;
use crate::family::{Inputs, Tokens};
use crate::params::UnitParams;
use kernels::linear::linear;
use recipe::{FsdpUnit, Model};
use tch::{Kind, Tensor};

/// The offset of the first image in CogVideoX 1.5 image-to-video, the same in training and sampling.
pub const OFS: f64 = 2.0;

/// Embeds patches, text and time.
#[derive(Debug)]
pub struct Embedder {
    patch: i64,
    patch_t: i64,
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
            patch: model.patch_size as i64,
            patch_t: model.patch_size_t as i64,
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
        let latent = joined.size();
        let (batch, frames) = (latent[0], latent[1] / self.patch_t);
        let video = root.affine(self.video);
        // A strided convolution whose stride is its kernel, written as one matrix product over patches.
        let (rows, columns) = (latent[3] / self.patch, latent[4] / self.patch);
        let patches = joined
            .view([batch, frames, self.patch_t, latent[2], rows, self.patch, columns, self.patch].as_slice())
            .permute([0, 1, 4, 6, 3, 2, 5, 7].as_slice())
            .reshape([batch, frames * rows * columns, latent[2] * self.patch_t * self.patch * self.patch]);
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

/// Returns the sinusoidal embedding `[B, width]` of timesteps `[B]`, fp32, cosines first.
///
/// Source: reference `dit.py` and diffusers `Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0)`.
pub fn sinusoid(timestep: &Tensor, width: i64) -> Tensor {
    let half = width / 2;
    let exponent = Tensor::arange(half, (Kind::Float, timestep.device())) * (-10_000f64.ln()) / half as f64;
    let angles = timestep.to_kind(Kind::Float).outer(&exponent.exp());
    Tensor::cat(&[angles.cos(), angles.sin()], -1)
}
