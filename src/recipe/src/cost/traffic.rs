//! Network traffic of one rank in a step.

use serde::Serialize;

use super::{BlockCost, UnitSize, UnitSizes};
use crate::{Accumulate, Flat, ParamSpec, Recipe, Split};

/// Bytes that one rank sends in a step, and as many that it receives, with ring algorithms: for W bytes over n ranks, an
/// all-gather or reduce-scatter sends (n-1)/n W per rank, and an all-reduce twice that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Traffic {
    /// All-gathers of units over `dp_shard`, in the compute dtype: every block, and recomputed blocks twice. Frozen weights that stay
    /// gathered are sent once in a run, which is not counted.
    pub all_gather: f64,
    /// Reduce-scatters of gradients over `dp_shard`, in float32: once a step, or with `train.accumulate = "sharded"` once a micro-batch.
    pub reduce_scatter: f64,
    /// All-reduces of the shards' gradients over `dp_replicate`, in float32.
    pub all_reduce: f64,
    /// Collectives over `tp`: gathers of tokens before each input projection and their reductions after each output projection, and the
    /// reverse for gradients; a gather of the tokens before the head; the statistics of norms over all heads; the gradients of norms,
    /// biases, modulations and adapters.
    pub tensor_parallel: f64,
}

impl Traffic {
    pub(super) fn of(recipe: &Recipe, units: &UnitSizes) -> Self {
        let mesh = &recipe.mesh;
        let (compute, parts) = (recipe.train.dtype.bytes() as f64, recipe.train.grad_accum as f64);
        let passed = |ranks: usize| (ranks as f64 - 1.0) / ranks as f64;
        let all = |flat: Flat| flat.whole_len(mesh.dp_shard) as f64;
        let whole = |unit: UnitSize| all(unit.trained) + all(unit.frozen);
        let trained: f64 = units.all().map(|unit| all(unit.trained)).sum();

        let reductions = if recipe.train.accumulate == Accumulate::Sharded { parts } else { 1.0 };

        let (samples, recomputed) = (recipe.micro_batch() as f64, recipe.recomputed_blocks());
        let specs = recipe.param_specs();
        // Bytes that the ranks of a TP group sum or gather for one block.
        let of_block = |(number, block): (usize, &BlockCost)| {
            let recompute = if number < recomputed { 1.0 } else { 0.0 };
            // Gathers and reductions in the forward pass, in the recomputation and in the backward pass.
            let tokens = 2.0 * (2.0 + recompute) * samples * block.mixed as f64 * compute;
            // Statistics are gathered in both passes, and the gradients of what was gathered are summed.
            let statistics = (1.0 + recompute + 2.0) * samples * block.statistics as f64;
            tokens + statistics + 2.0 * block.summed_grads as f64 * compute
        };
        let blocks = recipe.blocks();
        // The tokens after the last block, and their gradients before the first one if the embedding has gradients.
        let ends = if units.root.trained != Flat::default() { 2.0 } else { 1.0 };
        let input = blocks.last().map_or(0, |block| block.input * mesh.tp as u64) as f64;
        let ends = ends * samples * input * compute;
        let tensor_parallel: f64 = ends + blocks.iter().enumerate().map(of_block).sum::<f64>();
        let summed: u64 = specs.iter().filter(|spec| spec.split == Split::Summed).map(ParamSpec::len).sum();
        let adapters = 2.0 * summed as f64 * compute;
        let at_use = units.gathered_at_use(recipe);
        let blocks = |blocks: &[UnitSize]| blocks.iter().map(|block| whole(*block)).sum::<f64>();
        Traffic {
            all_gather: parts
                * passed(mesh.dp_shard)
                * compute
                * (whole(units.root) + blocks(&at_use) + blocks(&at_use[..recomputed])),
            reduce_scatter: reductions * passed(mesh.dp_shard) * 4.0 * trained,
            all_reduce: 2.0 * passed(mesh.dp_replicate) * 4.0 * trained / mesh.dp_shard as f64,
            tensor_parallel: parts * passed(mesh.tp) * (tensor_parallel + adapters),
        }
    }

    /// Returns the sum.
    pub fn total(&self) -> f64 {
        self.all_gather + self.reduce_scatter + self.all_reduce + self.tensor_parallel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tests::{recipe, sharded_lens};

    #[test]
    fn one_rank_sends_nothing() {
        assert_eq!(recipe(&["mesh.dp_shard=1"]).cost().traffic.total(), 0.0);
    }

    #[test]
    fn the_traffic_of_two_shards_matches_a_hand_count() {
        let recipe = recipe(&["mesh.dp_shard=2", "train.dtype=float32"]);
        let Traffic { all_gather, reduce_scatter, all_reduce, tensor_parallel } = recipe.cost().traffic;
        let [root, block, other] =
            sharded_lens(&recipe, 2).try_into().map(|of: [u64; 3]| of.map(|len| len as f64)).unwrap();
        assert_eq!(block, other);
        assert_eq!(
            all_gather,
            0.5 * 4.0 * (root + 3.0 * block),
            "two blocks in the forward pass, and one of them again for recomputation"
        );
        assert_eq!(reduce_scatter, 0.5 * 4.0 * (root + 2.0 * block));
        assert_eq!((all_reduce, tensor_parallel), (0.0, 0.0));
    }

    #[test]
    fn replicas_reduce_shards_and_tp_ranks_reduce_tokens() {
        let sets =
            ["mesh.dp_shard=1", "mesh.dp_replicate=2", "mesh.tp=2", "train.dtype=bfloat16", "train.global_batch=4"];
        let recipe = recipe(&sets);
        let traffic = recipe.cost().traffic;
        assert_eq!((traffic.all_gather, traffic.reduce_scatter), (0.0, 0.0));
        assert_eq!(traffic.all_reduce, recipe.cost().memory.gradients as f64);
        // Attention and MLP of two blocks: two forward, one recomputed, two backward; samples of 64 tokens. A gather and a reduction are
        // half of a sum. Then the gathers before the head and the embedding's gradients.
        let sample = (64 * recipe.model.dim() * 2) as f64;
        let tokens = 2.0 * sample * (2.0 * 5.0 * 2.0 + 2.0);
        // Gain and bias of two norms of tokens, the modulations of two samples and the biases of two output projections, all as wide as
        // tokens; gain and bias of two norms of heads, 64 wide.
        let summed = (recipe.model.dim() * (4 + 2 * 12 + 2) + 4 * 64) as f64;
        assert_eq!(traffic.tensor_parallel, 0.5 * (tokens + 2.0 * 2.0 * 2.0 * summed));
    }
}
