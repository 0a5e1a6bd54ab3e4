//! CogVideoX's output head: final norms, projection to patches, and unpatchifying to a latent.

use super::Grid;
use crate::params::UnitParams;
use recipe::{FsdpUnit, Model};
use tch::Tensor;

/// Turns the last block's video tokens into the network's output.
#[derive(Debug)]
pub struct Head {
    eps: f64,
    patch: i64,
    patch_t: i64,
    channels: i64,
    norm: usize,
    adaln_linear: usize,
    adaln_norm: usize,
    proj: usize,
}

impl Head {
    /// Finds the root's parameters by name.
    pub fn new(model: &Model) -> Self {
        let slots = super::slots(model, FsdpUnit::Root);
        Head {
            eps: model.cogvideox().norm_eps,
            patch: model.patch_size as i64,
            patch_t: model.patch_size_t as i64,
            channels: model.out_channels as i64,
            norm: slots.affine("final.norm"),
            adaln_linear: slots.affine("final.adaln.linear"),
            adaln_norm: slots.affine("final.adaln.norm"),
            proj: slots.affine("final.proj"),
        }
    }

    /// Returns the network's output `[B, T, C, height, width]`.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, x_bld: &Tensor, act_be: &Tensor) -> Tensor {
        let video = x_bld.narrow(1, grid.text_tokens, x_bld.size()[1] - grid.text_tokens);
        let normed = root.affine(self.norm).layer_norm(&video, self.eps);
        let modulation = root.affine(self.adaln_linear).linear(act_be).unsqueeze(1).chunk(2, -1);
        let normed = root.affine(self.adaln_norm).layer_norm(&normed, self.eps);
        let modulated = modulation[0].addcmul(&normed, &(&modulation[1] + 1.0));
        let patches = root.affine(self.proj).linear(&modulated);
        let (p, pt, batch) = (self.patch, self.patch_t, x_bld.size()[0]);
        let [frames, rows, columns] = grid.video;
        patches
            .view([batch, frames, rows, columns, self.channels, pt, p, p].as_slice())
            .permute([0, 1, 5, 4, 2, 6, 3, 7])
            .reshape([batch, frames * pt, self.channels, rows * p, columns * p])
    }
}
