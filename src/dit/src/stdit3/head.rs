//! The output head: a modulated norm, a projection to patches, and the latent of the patches.

use super::{EPS, Grid, shared};
use crate::family::Tokens;
use crate::params::{Slots, UnitParams};
use crate::patches::{ChannelOrder, unpacked};
use recipe::families::stdit3::Stdit3;
use tch::Tensor;

/// Turns the last block's tokens into the network's output.
#[derive(Debug)]
pub(super) struct Head {
    patch: [i64; 3],
    table: usize,
    proj: usize,
}

impl Head {
    /// Finds the root's parameters by name.
    pub fn new(model: &Stdit3, slots: &Slots) -> Self {
        Head {
            patch: model.patch.map(|side| side as i64),
            table: slots.find("final.table").expect("the parameter table has the final modulation"),
            proj: slots.affine("final.proj"),
        }
    }

    /// Returns the network's output `[B, T, C, height, width]`.
    ///
    /// Upstream modulates the tokens of clean frames twice, first as those with noise. No loss and no sampler uses these frames, but the
    /// output is the same here.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, tokens: &Tokens) -> Tensor {
        let x_bld = &tokens.streams[0];
        let modulated = |x: &Tensor, time: i64| {
            // Shift and scale.
            let both = root.tensor(self.table) + tokens.shared[shared::TIME].narrow(1, time, 1);
            let [shift, scale] = [0, 1].map(|which| both.narrow(1, which, 1));
            x.layer_norm([x.size()[2]], None::<&Tensor>, None::<&Tensor>, EPS, true) * (scale + 1.0) + shift
        };
        let mut z_bld = modulated(x_bld, 0);
        if let Some(noised) = tokens.shared.get(shared::NOISED) {
            z_bld = z_bld.where_self(noised, &modulated(&z_bld, 1));
        }
        let patches = root.affine(self.proj).linear(&z_bld);
        let whole = unpacked(&patches, grid.tokens, self.patch, ChannelOrder::ChannelsLast);
        let [frames, rows, columns] = grid.latent;
        whole.narrow(1, 0, frames).narrow(3, 0, rows).narrow(4, 0, columns)
    }
}
