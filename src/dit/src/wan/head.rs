//! Wan's output head: a modulated norm, projection to patches, and unpatchifying to a latent.

use super::Grid;
use super::modulation::modulated_norm;
use crate::parallel::Alone;
use crate::params::{Slots, UnitParams};
use crate::patches::{ChannelOrder, unpacked};
use recipe::families::wan::WanModel;
use tch::{Kind, Tensor};

/// Turns the last block's tokens into the network's output.
#[derive(Debug)]
pub struct Head {
    eps: f64,
    patch_size: [i64; 3],
    modulation: usize,
    proj: usize,
}

impl Head {
    /// Finds the root's parameters by name.
    pub fn new(model: &WanModel, slots: &Slots) -> Self {
        Head {
            eps: model.eps,
            patch_size: model.patch_size.map(|size| size as i64),
            modulation: slots.find("final.modulation").expect("the parameter table names the modulation"),
            proj: slots.affine("final.proj"),
        }
    }

    /// Returns the network's output `[B, T, C, height, width]` from all tokens and the time embedding `[B, G, D]`, which has no activation here.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, x_bld: &Tensor, time: &Tensor) -> Tensor {
        // [1, 2, D]: shift and scale.
        let table = root.tensor(self.modulation).to_kind(Kind::Float).chunk(2, 1);
        let [shift, scale] = [0, 1].map(|i| &table[i] + time);
        let normed = modulated_norm(x_bld, grid.tokens(), [&shift, &scale], self.eps, &Alone);
        let patches = root.affine(self.proj).linear(&normed.to_kind(x_bld.kind()));
        unpacked(&patches, grid.video, self.patch_size, ChannelOrder::ChannelsLast)
    }
}
