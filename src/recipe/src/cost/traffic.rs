//! Network traffic of one rank in a step.

use serde::Serialize;

use super::{UnitSize, UnitSizes};
use crate::{Layer, ParamSpec, Recipe, Split};

/// Bytes that one rank sends in a step, and as many that it receives, with ring algorithms: for W bytes over n ranks, an
/// all-gather or reduce-scatter sends (n-1)/n W per rank, and an all-reduce twice that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Traffic {
    /// All-gathers of units over `dp_shard`, in the compute dtype: every block, and recomputed blocks twice.
    pub all_gather: f64,
    /// Reduce-scatters of gradients over `dp_shard`, in float32, once a step.
    pub reduce_scatter: f64,
    /// All-reduces of the shards' gradients over `dp_replicate`, in float32.
    pub all_reduce: f64,
    /// Collectives over `tp`: sums of tokens after each output projection, and of gradients before each input projection;
    /// the statistics of norms over all heads; the gradients of norms within a head and of adapters; with `remat.shard_inputs`, gathers
    /// of the saved inputs.
    pub tensor_parallel: f64,
}

impl Traffic {
    pub(super) fn of(recipe: &Recipe, units: &UnitSizes) -> Self {
        let (model, mesh) = (&recipe.model, &recipe.mesh);
        let layers = model.num_layers as f64;
        let (compute, parts) = (recipe.train.dtype.bytes() as f64, recipe.train.grad_accum as f64);
        let passed = |ranks: usize| (ranks as f64 - 1.0) / ranks as f64;
        let whole = |unit: UnitSize| (unit.trained + unit.frozen) as f64;
        let trained: f64 = units.all().map(|unit| unit.trained as f64).sum();

        // A block has a collective after attention, after each direction of its TTT layer and after its MLP: in the forward
        // pass, in the recomputation and in the backward pass.
        let collectives = if model.layer == Layer::None { 2.0 } else { 4.0 };
        let recompute = recipe.recomputed_blocks() as f64;
        let passes = 2.0 * layers + recompute;
        let group = recipe.remat.blocks_per_input(model.num_layers) as f64;
        let joined = if recipe.remat.shard_inputs { recompute / group } else { 0.0 };
        let tokens = recipe.micro_batch() as f64 * (model.seq_len() * model.dim()) as f64 * compute;
        // The norm after each direction of a TTT layer covers the heads of all ranks: they gather each token's mean and
        // variance in float32, and sum the gradients of what they gathered.
        let statistics = if model.layer == Layer::None {
            0.0
        } else {
            2.0 * (layers + recompute + 2.0 * layers)
                * recipe.micro_batch() as f64
                * (model.seq_len() * 2 * 4 * mesh.tp) as f64
        };
        // Every rank has the gain and bias of the norms of queries and keys, and applies them to its own heads.
        let specs = recipe.param_specs();
        let is_head_norm = |spec: &&ParamSpec| spec.name.contains(".attn.q_norm") || spec.name.contains(".attn.k_norm");
        let norms_train = specs.iter().filter(is_head_norm).any(|spec| recipe.train.trains(spec));
        let head_norms = if norms_train { 2.0 * layers * (4 * model.head_dim) as f64 * compute } else { 0.0 };
        let summed: u64 = specs.iter().filter(|spec| spec.split == Split::Summed).map(ParamSpec::len).sum();
        let adapters = 2.0 * summed as f64 * compute;
        let blocks = |blocks: &[UnitSize]| blocks.iter().map(|block| whole(*block)).sum::<f64>();
        Traffic {
            all_gather: parts
                * passed(mesh.dp_shard)
                * compute
                * (whole(units.root) + blocks(&units.blocks) + blocks(&units.blocks[..recipe.recomputed_blocks()])),
            reduce_scatter: passed(mesh.dp_shard) * 4.0 * trained,
            all_reduce: 2.0 * passed(mesh.dp_replicate) * 4.0 * trained / mesh.dp_shard as f64,
            tensor_parallel: parts
                * passed(mesh.tp)
                * ((2.0 * collectives * passes + joined) * tokens + statistics + head_norms + adapters),
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
    use crate::load;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe
    }

    #[test]
    fn one_rank_sends_nothing() {
        assert_eq!(recipe(&["mesh.dp_shard=1"]).cost().traffic.total(), 0.0);
    }

    #[test]
    fn the_traffic_of_two_shards_matches_a_hand_count() {
        let recipe = recipe(&["mesh.dp_shard=2", "train.dtype=float32"]);
        let Traffic { all_gather, reduce_scatter, all_reduce, tensor_parallel } = recipe.cost().traffic;
        let of = |unit: crate::Unit| -> f64 {
            let specs = crate::param_specs(&recipe.model);
            specs.iter().filter(|spec| spec.unit == unit).map(|spec| spec.len() as f64).sum()
        };
        let (root, block) = (of(crate::Unit::Root), of(crate::Unit::Block(0)));
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
        // Attention and MLP of two blocks: two forward, one recomputed, two backward; samples of 64 tokens.
        let tokens = (2 * 64 * recipe.model.dim() * 2) as f64;
        // The gain and bias of two norms of each block's heads, 64 wide.
        let head_norms = (2 * 4 * 64 * 2) as f64;
        assert_eq!(traffic.tensor_parallel, 2.0 * 5.0 * tokens + head_norms);
    }
}
