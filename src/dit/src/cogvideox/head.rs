//! CogVideoX's output head: final norms, projection to patches, and unpatchifying to a latent.

use super::Grid;
use crate::params::UnitParams;
use crate::patches::{ChannelOrder, unpacked};
use recipe::{FsdpUnit, Model};
use tch::Tensor;

/// Turns the last block's video tokens into the network's output.
#[derive(Debug)]
pub struct Head {
    eps: f64,
    patch: [i64; 3],
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
            patch: super::patch(model),
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
        unpacked(&patches, grid.video, self.patch, ChannelOrder::ChannelsFirst)
    }
}
