//! The output head: a modulated norm, and the projection of tokens to patches.

use super::{EPS, Grid};
use crate::params::{Slots, UnitParams};
use crate::patches::{ChannelOrder, unpacked};
use recipe::families::mmdit::Mmdit as Sizes;
use tch::Tensor;

/// Turns the video tokens after the last block into the network's output.
#[derive(Debug)]
pub struct Head {
    patch: [i64; 3],
    modulation: usize,
    proj: usize,
}

impl Head {
    /// Finds the root's parameters by name.
    pub fn new(sizes: &Sizes, root: &Slots) -> Self {
        Head {
            patch: super::patch(sizes),
            modulation: root.affine("final.adaln.linear"),
            proj: root.affine("final.proj"),
        }
    }

    /// Returns the velocity `[B, T, C, height, width]` of video tokens `[B, N, D]`, modulated by the activated vector `[B, D]`.
    pub fn forward(&self, grid: &Grid, root: &UnitParams, video: &Tensor, act_bd: &Tensor) -> Tensor {
        let modulation = root.affine(self.modulation).linear(act_bd).unsqueeze(1).chunk(2, -1);
        let normed = video.layer_norm([video.size()[2]], None::<Tensor>, None::<Tensor>, EPS, true);
        let modulated = modulation[0].addcmul(&normed, &(&modulation[1] + 1.0));
        let patches = root.affine(self.proj).linear(&modulated);
        unpacked(&patches, grid.video, self.patch, ChannelOrder::ChannelsFirst)
    }
}
