//! The cost of a recipe, computed from its shapes: FLOPs, memory per rank, traffic per step, checkpoint size.
//!
//! All size formulas are in this module, so that `vidtui check`, the launch dialog, the metrics and the documents
//! show the same numbers.

mod batch;
mod block;
mod flops;
mod memory;
mod overhead;
mod page_locked;
mod state;
mod time;
mod traffic;

pub use block::BlockCost;
pub use flops::Flops;
pub(crate) use memory::F32;
pub use memory::{Offloaded, RankMemory};
pub use overhead::{GPU_SHARE, Overhead};
pub(crate) use time::{link_s, speed};
pub use traffic::Traffic;

use crate::{Flat, FsdpUnit, ParamRole, ParamSpec, Recipe, Shape};
use state::{Placed, TrainedUnit, UnitState};

/// The cost of a recipe, over all ranks and for one rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Cost {
    /// Number of parameters of the model, without adapters and learned position tables.
    pub params: u64,
    /// Number of parameters that training updates.
    pub trainable: u64,
    /// Tokens per sample: text and video.
    pub seq_len: u64,
    /// FLOPs of one forward pass over one sample.
    pub forward_flops: f64,
    /// FLOPs of a step without recomputation: forward, and twice as much for gradients. MFU counts these.
    pub model_flops: f64,
    /// FLOPs of a step with recomputation, over all ranks.
    pub step_flops: f64,
    /// Size of a checkpoint in bytes: trained parameters and their moving average in float32, the optimizer's state, and frozen
    /// parameters in their dtype. A checkpoint of adapters has no frozen parameters.
    pub checkpoint_bytes: u64,
    /// The memory of one rank.
    pub memory: RankMemory,
    /// The bytes that one rank sends in a step.
    pub traffic: Traffic,
}

/// The assumed write speed of a save in bytes per second, until a save has been measured.
const SLOW_DISK: f64 = 100e6;

impl Cost {
    /// Returns the assumed duration of a save in seconds, for use until a save has been measured.
    pub fn save_s(&self) -> f64 {
        self.checkpoint_bytes as f64 / SLOW_DISK
    }
}

/// Returns the seconds before a time limit that are reserved for a save. `save_s` is the expected duration of the save.
pub fn save_reserve_s(save_s: f64) -> f64 {
    1.5 * save_s
}

impl Recipe {
    /// Returns the cost of the recipe on its mesh.
    pub fn cost(&self) -> Cost {
        let specs = self.param_specs();
        let sum = |wanted: &dyn Fn(&ParamSpec) -> bool| -> u64 {
            specs.iter().filter(|spec| wanted(spec)).map(|spec| spec.len()).sum()
        };
        let trainable = sum(&|spec| self.train.trains(spec));
        let units = UnitSizes::of(self, &specs);
        let frozen_bytes = match self.saves_adapters_only() {
            true => 0,
            false => self.train.frozen_dtype().bytes() * sum(&|spec| !self.train.trains(spec)),
        };
        let trained = specs.iter().filter(|spec| self.train.trains(spec));
        let state_bytes: u64 = trained.map(|spec| self.optimizer.state_bytes(spec, spec.len()).saved()).sum();
        let forward_flops = Flops::forward(&self.model).total();
        let batch = self.train.global_batch as f64;
        Cost {
            params: sum(&|spec| spec.role == ParamRole::Trained),
            trainable,
            seq_len: self.model.seq_len() as u64,
            forward_flops,
            model_flops: 3.0 * batch * forward_flops,
            step_flops: batch * Flops::step(self).total(),
            checkpoint_bytes: (4 + if self.ema.is_used() { 4 } else { 0 }) * trainable + state_bytes + frozen_bytes,
            memory: RankMemory::of(self, &units, &self.blocks()),
            traffic: Traffic::of(self, &units),
        }
    }

    /// Returns the cost of steps in which all micro-batches have latents of `shape`, with as many samples as the bucket of that shape.
    pub fn cost_at(&self, shape: Shape) -> Cost {
        self.in_steps_of(shape).cost()
    }

    /// Returns the recipe with all micro-batches of `shape`, with as many samples as the bucket of that shape.
    fn in_steps_of(&self, shape: Shape) -> Recipe {
        let mut recipe = self.at(shape);
        recipe.train.global_batch = self.micro_batch_at(shape) * self.mesh.data_ranks() * self.train.grad_accum;
        recipe
    }

    /// Returns the memory of one rank; with buckets, in steps of the largest bucket.
    pub fn rank_memory(&self) -> RankMemory {
        self.largest_bucket().map_or_else(|| self.cost(), |bucket| self.cost_at(self.latent_of(bucket))).memory
    }

    /// Returns the sizes in bytes of the tensors that a rank on a GPU offloads to the memory of its node; with buckets, in steps of the
    /// largest bucket. `shard` is the number of the rank in its shard group.
    pub fn offloaded_tensors(&self, shard: usize) -> Vec<u64> {
        let recipe = self.in_largest_steps();
        page_locked::offloaded(&recipe, &UnitSizes::on(&recipe, &recipe.param_specs(), Some(shard)), &recipe.blocks())
    }

    /// Returns the size in bytes of a block's saved input that a rank offloads; with buckets, in steps of the largest bucket.
    pub fn offloaded_input(&self) -> u64 {
        let recipe = self.in_largest_steps();
        page_locked::input(&recipe, &recipe.blocks())
    }

    /// Returns the recipe; with buckets, reduced to steps of the largest bucket.
    fn in_largest_steps(&self) -> Recipe {
        self.largest_bucket().map_or_else(|| self.clone(), |bucket| self.in_steps_of(self.latent_of(bucket)))
    }

    /// Returns the number of samples in a micro-batch of one rank.
    pub(crate) fn micro_batch(&self) -> u64 {
        (self.train.global_batch / self.mesh.data_ranks() / self.train.grad_accum) as u64
    }
}

/// The size of one FSDP unit on one rank of a TP group, before FSDP shards it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct UnitSize {
    trained: Flat,
    frozen: Flat,
    /// Elements of the largest trained tensor.
    largest_trained: u64,
    /// The optimizer's state of the trained tensors on one rank.
    state: UnitState,
}

/// The FSDP units of one rank of a TP group. FSDP gathers or reduces one unit at a time.
pub(crate) struct UnitSizes {
    root: UnitSize,
    blocks: Vec<UnitSize>,
    /// The largest block. Blocks differ if only some have adapters or trained parameters.
    block: UnitSize,
}

impl UnitSizes {
    /// Returns the units of the rank with the most optimizer state.
    pub(crate) fn of(recipe: &Recipe, specs: &[ParamSpec]) -> Self {
        Self::on(recipe, specs, None)
    }

    /// Returns the units of a rank of a shard group; `None`: of the rank with the most optimizer state.
    fn on(recipe: &Recipe, specs: &[ParamSpec], shard: Option<usize>) -> Self {
        let size = |unit: FsdpUnit| {
            let (mut size, mut tensors) = (UnitSize::default(), Vec::new());
            for spec in specs.iter().filter(|spec| spec.unit == unit) {
                let own = if spec.is_split() { spec.len() / recipe.mesh.tp as u64 } else { spec.len() };
                if !recipe.train.trains(spec) {
                    size.frozen.place(own);
                    continue;
                }
                tensors.push(Placed { spec, begin: size.trained.place(own), len: own });
                size.largest_trained = size.largest_trained.max(own);
            }
            (size, TrainedUnit { flat: size.trained, tensors })
        };
        let blocks = (0..recipe.model.num_layers).map(FsdpUnit::Block);
        let (mut sizes, units): (Vec<UnitSize>, Vec<TrainedUnit<'_>>) =
            std::iter::once(FsdpUnit::Root).chain(blocks).map(size).unzip();
        let states = UnitState::of_units(&recipe.optimizer, &units, recipe.mesh.dp_shard, shard);
        sizes.iter_mut().zip(states).for_each(|(size, state)| size.state = state);
        let blocks = sizes.split_off(1);
        let block = blocks
            .iter()
            .copied()
            .max_by_key(|block| (block.trained.shard_len(1), block.frozen.shard_len(1)))
            .unwrap_or_default();
        UnitSizes { root: sizes.pop().unwrap_or_default(), blocks, block }
    }

    /// Returns the sizes of the blocks, without the frozen weights of the blocks that stay gathered.
    fn gathered_at_use(&self, recipe: &Recipe) -> Vec<UnitSize> {
        let stays = recipe.memory.kept(self.blocks.len());
        let at_use = |(block, stays): (&UnitSize, bool)| match stays && recipe.mesh.dp_shard > 1 {
            true => UnitSize { frozen: Flat::default(), ..*block },
            false => *block,
        };
        self.blocks.iter().zip(stays).map(at_use).collect()
    }

    /// Returns the root unit and every block.
    fn all(&self) -> impl Iterator<Item = UnitSize> {
        std::iter::once(self.root).chain(self.blocks.iter().copied())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load;

    /// Loads a small recipe with these settings.
    pub(super) fn recipe(sets: &[&str]) -> Recipe {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe
    }

    /// Returns the length of each unit's flat tensor of the parameters that are `wanted`, on one rank of a TP group. Each tensor begins at
    /// a multiple of 64 elements.
    pub(crate) fn flat_lens(recipe: &Recipe, wanted: impl Fn(&ParamSpec) -> bool) -> Vec<u64> {
        let mut ends = std::collections::BTreeMap::new();
        for spec in recipe.param_specs().iter().filter(|spec| wanted(spec)) {
            let end: &mut u64 = ends.entry(spec.unit).or_default();
            let parts = if spec.is_split() { recipe.mesh.tp as u64 } else { 1 };
            *end = end.div_ceil(64) * 64 + spec.len() / parts;
        }
        ends.into_values().collect()
    }

    /// Returns the length of each unit's flat tensor over `shards` shards, which are multiples of 128 elements.
    pub(super) fn sharded_lens(recipe: &Recipe, shards: u64) -> Vec<u64> {
        let whole = |len: &u64| len.div_ceil(128 * shards) * 128 * shards;
        flat_lens(recipe, |_| true).iter().map(whole).collect()
    }

    /// CogVideoX-5B at the first stage of the TTT-video curriculum.
    const STAGE_3S: [&str; 6] = [
        "model.num_layers=42",
        "model.num_heads=48",
        "model.text_len=498",
        "model.latent_frames=13",
        "model.latent_height=60",
        "model.latent_width=90",
    ];

    #[test]
    fn the_cost_of_a_small_model_matches_a_hand_count() {
        let sets = ["model.head_dim=16", "model.time_embed_dim=8", "model.text_dim=4", "train.trainable=qkvo"];
        let cost = recipe(&sets).cost();
        // Width 32: embeddings, time embedding, final norms, their modulation and projection.
        let root =
            (32 * 64 + 32) + (32 * 4 + 32) + (8 * 32 + 8) + (8 * 8 + 8) + 64 + (64 * 8 + 64) + 64 + (64 * 32 + 64);
        let attention = 4 * (32 * 32 + 32) + 4 * 16;
        let block = 2 * (192 * 8 + 192 + 64) + attention + (128 * 32 + 128) + (32 * 128 + 32);
        assert_eq!(cost.params, root + 2 * block);
        assert_eq!(cost.trainable, 2 * attention);
        assert_eq!(cost.seq_len, 16 + 3 * 16);
        for (dtype, bytes) in [("train.dtype=float32", 4), ("train.dtype=bfloat16", 2)] {
            let stored = recipe(&[&sets[..], &[dtype]].concat()).cost().checkpoint_bytes;
            assert_eq!(stored, 12 * cost.trainable + bytes * (cost.params - cost.trainable), "{dtype}");
        }
        let (video, text, all, width) = (48, 16, 64, 32);
        let block = 12 * width * 8 + 4 * all * width * width + 2 * all * all * width + 8 * all * width * width;
        let root = video * width * 64 + text * 4 * width + 8 * width + 8 * 8 + 2 * width * 8 + video * width * 64;
        assert_eq!(cost.forward_flops, 2.0 * f64::from(root + 2 * block));
    }

    #[test]
    fn the_cost_of_cogvideox_5b_matches_published_numbers() {
        let cost = recipe(&STAGE_3S).cost();
        assert_eq!(cost.params, 5_570_283_072);
        assert_eq!(cost.trainable, 5_570_283_072);
        assert_eq!(cost.seq_len, 18_048);
        // 4.0 TFLOP of attention, 1.4 of projections and 2.7 of MLP in each of 42 layers.
        assert!((cost.forward_flops / (42.0 * 8.1e12) - 1.0).abs() < 0.01, "{:e}", cost.forward_flops);
    }

    #[test]
    fn training_only_attention_counts_only_attention() {
        let sets = [&STAGE_3S[..], &["train.trainable=qkvo"]].concat();
        assert_eq!(recipe(&sets).cost().trainable, 526_848 + 1_585_446_912);
    }

    #[test]
    fn a_learned_position_table_is_saved_but_not_counted_as_a_parameter() {
        let (with, without) = (recipe(&["model.positions=learned"]).cost(), recipe(&[]).cost());
        assert_eq!(with.params, without.params);
        assert_eq!(
            with.checkpoint_bytes - without.checkpoint_bytes,
            2 * 64 * 128,
            "in bfloat16, as frozen parameters are"
        );
    }
}
