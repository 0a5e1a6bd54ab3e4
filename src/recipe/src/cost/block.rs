//! The cost of one block: all that differs between families and kinds of blocks in the formulas of memory, traffic and FLOPs.

use super::{Flops, cogvideox};
use crate::Recipe;

/// The cost of one block for one sample. Numbers have the compute dtype.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockCost {
    /// The forward pass, over all ranks.
    pub flops: Flops,
    /// Numbers of the input, over all streams.
    pub input: u64,
    /// Numbers of the attention outputs on one rank of a TP group.
    pub attended: u64,
    /// The float32 log-sum-exps of attention on one rank of a TP group.
    pub logsumexps: u64,
    /// Numbers of the outputs of TTT scans on one rank of a TP group.
    pub scanned: u64,
    /// Numbers that autograd keeps on one rank of a TP group.
    pub graph: f64,
    /// Numbers that the backward pass needs besides.
    pub temporaries: f64,
    /// Bytes of inner states that the block keeps besides.
    pub states: u64,
    /// Numbers that the ranks of a TP group sum in a forward pass.
    pub summed: u64,
    /// Numbers of replicated parameters whose gradients the ranks of a TP group sum.
    pub summed_grads: u64,
    /// Bytes of statistics that the ranks of a TP group gather in a forward pass.
    pub statistics: u64,
}

impl Recipe {
    /// Returns the cost of every block, in the order of the network.
    pub fn blocks(&self) -> Vec<BlockCost> {
        vec![cogvideox::block(self); self.model.num_layers]
    }

    /// Returns the number of blocks that share one saved input.
    pub(super) fn group(&self) -> usize {
        self.remat.blocks_per_input(self.model.num_layers)
    }

    /// Returns the number of blocks that are recomputed: all blocks except those of the last group.
    pub(super) fn recomputed_blocks(&self) -> usize {
        (self.model.num_layers - 1) / self.group() * self.group()
    }
}
