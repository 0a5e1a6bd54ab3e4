//! The estimated time of a step: its computation, and its transfers between the device and its backing store.

use super::{Cost, Offloaded, RankMemory};
use crate::{ComputeDtype, Recipe};

/// The assumed speed of a CPU core in FLOP/s. Steps of small models in float32 and bfloat16 reached 0.04 to 0.06 TFLOP/s on each of two
/// cores with AVX-512.
const CORE: f64 = 0.05e12;
/// The cores that a rank on the CPU is assumed to have, if they are not known.
const CORES: f64 = 2.0;

/// The assumed speed of copies in bytes per second: page-locked memory over PCIe 4, and a file in the page cache.
const PCIE: f64 = 20e9;
const FILE: f64 = 1.5e9;

/// Returns the assumed speed of a rank in FLOP/s.
pub(crate) fn speed(recipe: &Recipe) -> f64 {
    match (recipe.expects_gpus(), recipe.train.dtype) {
        // 45 % of an H100's peak.
        (true, ComputeDtype::Bfloat16) => 445e12,
        (true, ComputeDtype::Float32) => 50e12,
        (false, _) => CORES * CORE,
    }
}

impl Cost {
    /// Returns the estimated seconds of a step of the recipe on H100s, without the exchanges between ranks; `None` with
    /// `train.device = "cpu"`.
    pub fn step_s_on_gpus(&self, recipe: &Recipe) -> Option<f64> {
        recipe.expects_gpus().then(|| self.step_flops / (recipe.mesh.world() as f64 * speed(recipe)))
    }

    /// Returns the estimated seconds of a step if all ranks share the `cores` of one machine.
    pub fn step_s_on_cores(&self, cores: usize) -> f64 {
        self.step_flops / (cores.max(1) as f64 * CORE)
    }
}

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
