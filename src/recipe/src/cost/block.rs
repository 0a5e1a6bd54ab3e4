//! The cost of one transformer block: the terms of the memory, traffic and FLOP formulas that depend on the model family and on
//! the kind of block.

use super::Flops;
use crate::Recipe;

/// The cost of one block for one sample. Element counts are of the compute dtype unless the field states another type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockCost {
    /// The forward pass, over all ranks.
    pub flops: Flops,
    /// Elements of the block's input on one rank of a TP group: its text and video tokens × width.
    pub input: u64,
    /// Elements of the attention outputs on one rank of a TP group.
    pub attended: u64,
    /// Number of float32 log-sum-exps of attention on one rank of a TP group.
    pub logsumexps: u64,
    /// Elements of the outputs of TTT scans on one rank of a TP group.
    pub scanned: u64,
    /// Elements that autograd keeps for the backward pass on one rank of a TP group.
    pub graph: f64,
    /// Elements of the further temporaries of the backward pass.
    pub temporaries: f64,
    /// Bytes of the TTT inner states that the block saves for its backward pass.
    pub states: u64,
    /// Elements that the ranks of a TP group gather in a forward pass; as many are reduced and scattered.
    pub mixed: u64,
    /// Elements of the replicated tensors whose gradients the ranks of a TP group all-reduce.
    pub summed_grads: u64,
    /// Bytes of norm statistics that the ranks of a TP group gather in a forward pass.
    pub statistics: u64,
}

impl Recipe {
    /// Returns the cost of every block, in the order of the network.
    pub fn blocks(&self) -> Vec<BlockCost> {
        self.model.family().blocks(self)
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
