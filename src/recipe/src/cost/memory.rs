use serde::Serialize;

use super::{UnitSize, UnitSizes};
use crate::{Layer, Recipe};

/// Size of a float32.
const F32: u64 = 4;

/// What one rank holds, in bytes. The first three are exact and last the whole run; the others are its peak in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// Its share of the weights: float32 for what is trained, the type of computing for what is frozen.
    pub weights: u64,
    /// Its share of the float32 gradients.
    pub gradients: u64,
    /// Its share of the two moments.
    pub optimizer: u64,
    /// What blocks keep between forward and backward pass.
    pub kept: u64,
    /// Whole units in hand: the root, a group of blocks, and the block that is gathered meanwhile.
    pub gathered: u64,
    /// Whole float32 gradients that add up over the parts of a batch; nothing when there is one part, or one shard.
    pub accumulated: u64,
    /// An estimate of what a group of blocks needs while its backward pass is under way: their graphs, and the gradients
    /// of a block's parameters before they are shared out.
    pub workspace: u64,
}

impl RankMemory {
    pub(super) fn of(recipe: &Recipe, units: &UnitSizes) -> Self {
        let (model, mesh) = (&recipe.model, &recipe.mesh);
        let (layers, compute) = (model.num_layers, recipe.train.dtype.bytes());
        // Each unit is padded to a multiple of the ranks that share it.
        let share = |numbers: u64| numbers.div_ceil(mesh.dp_shard as u64);
        let trained: u64 = units.all(layers).map(|unit| share(unit.trained)).sum();
        let frozen: u64 = units.all(layers).map(|unit| share(unit.frozen)).sum();
        let whole = |unit: UnitSize| compute * (unit.trained + unit.frozen);
        // One rank that computes in float32 uses its weights where they lie.
        let in_place = mesh.dp_shard == 1 && compute == F32;
        let group = recipe.remat.blocks_per_input(layers);
        let in_hand = whole(units.root) + layers.min(group + 1) as u64 * whole(units.block);
        let sums: u64 = units.all(layers).map(|unit| F32 * unit.trained).sum();
        RankMemory {
            weights: F32 * trained + compute * frozen,
            gradients: F32 * trained,
            optimizer: 2 * F32 * trained,
            kept: recipe.micro_batch() * kept(recipe),
            gathered: if in_place { 0 } else { in_hand },
            accumulated: if recipe.train.grad_accum > 1 && mesh.dp_shard > 1 { sums } else { 0 },
            workspace: graphs_of_group(recipe, group as u64) + gradients_of_block(recipe, units.block),
        }
    }

    /// Weights, gradients and moments: what lasts the whole run.
    pub fn state(&self) -> u64 {
        self.weights + self.gradients + self.optimizer
    }

    /// What a save copies before it is written: weights and moments. The copy is in the node's own memory, also where the rank
    /// computes on a GPU, and only ranks of the first replica have one.
    pub fn save_copy(&self) -> u64 {
        self.weights + self.optimizer
    }

    /// The inner states that both directions of a TTT layer save in a pass, float32.
    pub fn scan_states(recipe: &Recipe) -> u64 {
        let m = &recipe.model;
        let head = m.head_dim as u64;
        let state = match m.layer {
            Layer::None => return 0,
            Layer::TttLinear => head * head + head,
            Layer::TttMlp => 2 * 4 * head * head + 4 * head + head,
        };
        let batches = (m.seq_len() / m.ttt_mini_batch) as u64;
        let groups = batches.div_ceil(recipe.remat.scan_group as u64);
        2 * groups * (m.num_heads / recipe.mesh.tp) as u64 * state * F32
    }

    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.state() + self.kept + self.gathered + self.accumulated + self.workspace
    }
}

/// What the blocks that run again keep of one sample: each group its input, or with
/// `remat.shard_inputs` its rank's part, and with `remat.keep_attention` each block the
/// result of attention and the float32 logarithms of its normalisers.
fn kept(recipe: &Recipe) -> u64 {
    let (m, tp) = (&recipe.model, recipe.mesh.tp as u64);
    let compute = recipe.train.dtype.bytes();
    let [tokens, width, heads] = [m.seq_len(), m.dim(), m.num_heads].map(|size| size as u64);
    let attended = (m.segments * m.attention_len()) as u64;
    let attention = attended * (width / tp * compute + heads / tp * F32);
    let (blocks, group) = (recipe.blocks_again(), recipe.remat.blocks_per_input(m.num_layers));
    let attention = if recipe.remat.keep_attention { blocks as u64 * attention } else { 0 };
    let input = tokens * width / if recipe.remat.shard_inputs { tp } else { 1 };
    (blocks / group) as u64 * input * compute + attention
}

/// The graphs of a group of blocks, and what the backward pass of one of them needs beside, in rows: a row is a number for each
/// token and each unit of the model's width.
///
/// Counted from what autograd keeps of `dit`'s block, and held to measured peaks by the trainer's tests. Of the whole width: the
/// results of two norms and two modulations, two updates with their gates, what lies between, and the output, which is the
/// next block's input. Of a TP rank's heads and hidden units: queries and keys before their norms, each segment's queries, keys,
/// values and results, those results joined where there are several segments, and the MLP's hidden layer before and after
/// its activation. A TTT layer adds an input and an output in each direction, and 10 rows of a rank's heads. At work on one
/// block: the group's input, the gradient that comes in, twice, and the gradients of the MLP's update and hidden layer.
fn graphs_of_group(recipe: &Recipe, group: u64) -> u64 {
    let (m, tp) = (&recipe.model, recipe.mesh.tp as f64);
    let (tokens, attended) = (m.seq_len() as f64, (m.segments * m.attention_len()) as f64);
    let joined = if m.segments == 1 { 0.0 } else { 1.0 };
    let (ttt_whole, ttt_split) = if m.layer == Layer::None { (0.0, 0.0) } else { (4.0, 20.0) };
    let graph = 8.0 + ttt_whole + (2.0 + 4.0 * attended / tokens + joined + 8.0 + ttt_split) / tp;
    let at_work = 4.0 + 4.0 / tp;
    let (samples, group) = (recipe.micro_batch() as f64, group as f64);
    let rows = samples * (group * graph + at_work);
    let states = samples * group * RankMemory::scan_states(recipe) as f64;
    (rows * tokens * m.dim() as f64 * recipe.train.dtype.bytes() as f64 + states) as u64
}

/// The gradients of a block's parameters as they come, and in float32 on their way to the ranks that share them.
fn gradients_of_block(recipe: &Recipe, block: UnitSize) -> u64 {
    let flat = if recipe.mesh.dp_shard > 1 { F32 } else { 0 };
    block.trained * (recipe.train.dtype.bytes() + flat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{load, param_specs};

    fn recipe(sets: &[&str]) -> Recipe {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe
    }

    #[test]
    fn replicas_do_not_make_a_rank_smaller_but_shards_do_and_tp_does_where_it_splits() {
        let memory =
            |sets: &[&str]| recipe(&[sets, &["train.global_batch=8", "train.dtype=float32"]].concat()).cost().memory;
        let one = memory(&["mesh.dp_shard=1"]);
        assert_eq!(memory(&["mesh.dp_shard=1", "mesh.dp_replicate=4"]).state(), one.state());
        let specs = param_specs(&recipe(&[]).model);
        let all: u64 = specs.iter().map(|spec| spec.len()).sum();
        assert_eq!((one.weights, one.gradients, one.optimizer, one.gathered), (4 * all, 4 * all, 8 * all, 0));
        let two = memory(&["mesh.dp_shard=2"]);
        assert!(two.state().abs_diff(one.state() / 2) <= 16 * 3, "padding is at most a number per unit");
        let split: u64 = specs.iter().filter(|spec| spec.split != crate::Split::None).map(|spec| spec.len()).sum();
        assert_eq!(memory(&["mesh.dp_shard=1", "mesh.tp=2"]).weights, 4 * (all - split / 2));
    }

    #[test]
    fn what_is_frozen_has_weights_of_the_computing_type_and_nothing_else() {
        let cost = recipe(&["mesh.dp_shard=1", "train.trainable=qkvo", "train.dtype=bfloat16"]).cost();
        assert_eq!(cost.memory.weights, 4 * cost.trainable + 2 * (cost.params - cost.trainable));
        assert_eq!((cost.memory.gradients, cost.memory.optimizer), (4 * cost.trainable, 8 * cost.trainable));
    }

    #[test]
    fn keeping_attention_costs_its_results() {
        let kept = |keep: &str| recipe(&["train.dtype=bfloat16", keep]).cost().memory.kept;
        // Two layers of which the last keeps all: one input, 64 tokens of width 128, for two samples of each rank.
        let (without, with) = (kept("remat.keep_attention=false"), kept("remat.keep_attention=true"));
        assert_eq!(without % (64 * 128 * 2), 0);
        let samples = without / (64 * 128 * 2);
        assert_eq!(with - without, samples * 64 * (128 * 2 + 2 * 4));
    }

    #[test]
    fn a_group_of_blocks_shares_an_input_and_has_its_graphs_at_once() {
        let memory = |group: &str| {
            let sets = ["model.num_layers=7", "remat.keep_attention=false", group];
            recipe(&sets).cost().memory
        };
        let (alone, pairs) = (memory("remat.group=1"), memory("remat.group=2"));
        assert_eq!(alone.kept, 2 * pairs.kept);
        assert!(pairs.workspace > alone.workspace && pairs.workspace < 2 * alone.workspace);
        let all = memory("remat.mode=none");
        assert_eq!((all.kept, alone.state()), (0, all.state()));
        assert!(all.gathered > pairs.gathered && pairs.gathered > alone.gathered);
    }

    #[test]
    fn parts_of_a_batch_add_up_whole_gradients_where_they_are_sharded() {
        let accumulated = |shards: &str, parts: &str| recipe(&[shards, parts]).cost().memory.accumulated;
        assert_eq!(accumulated("mesh.dp_shard=2", "train.grad_accum=1"), 0);
        assert_eq!(accumulated("mesh.dp_shard=1", "train.grad_accum=4"), 0);
        let two = recipe(&["mesh.dp_shard=2", "train.grad_accum=2"]).cost();
        assert_eq!(two.memory.accumulated, 4 * two.trainable);
    }
}
