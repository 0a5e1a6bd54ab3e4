//! The estimated time of transfers between the device and its backing store.

use super::{Offloaded, RankMemory};
use crate::Recipe;

/// The assumed speed of copies in bytes per second: page-locked memory over PCIe 4, and a file in the page cache.
const PCIE: f64 = 20e9;
const FILE: f64 = 1.5e9;

/// Returns the seconds by which transfers prolong a step that computes for `compute_s`.
///
/// Fetches of blocks and of saved inputs overlap with the computation of the previous block. The update's transfers do not overlap.
pub(crate) fn link_s(recipe: &Recipe, memory: &RankMemory, compute_s: f64) -> f64 {
    let speed = if recipe.expects_gpus() { PCIE } else { FILE };
    let Offloaded { weights, gradients, optimizer, activations, .. } = memory.offloaded;
    let parts = recipe.train.grad_accum as f64;
    // Each block is fetched for the forward pass and for the backward pass; its gradient and its input are written once.
    let hidden = parts * (2 * weights + gradients + 2 * activations) as f64 / speed;
    // The update reads and writes weights and state, and reads gradients. The gradient norm has read the gradients once before.
    let update = (4 * gradients + 2 * optimizer) as f64 / speed;
    // Even a hidden copy takes some of the memory's bandwidth.
    update + 0.05 * hidden + (hidden - compute_s).max(0.0)
}
