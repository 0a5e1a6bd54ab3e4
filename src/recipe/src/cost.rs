//! What a recipe costs, counted from its shapes: arithmetic, memory of a rank, traffic of a step, checkpoints.
//!
//! Every formula about sizes is here or in the parts of this module, so that what `check`, the launch dialog, the metrics
//! and the documents say are the same numbers.

mod flops;
mod memory;
mod traffic;

pub use flops::Flops;
pub use memory::RankMemory;
pub use traffic::Traffic;

use crate::{ParamSpec, Recipe, Role, Split, Unit, param_specs};

/// What a recipe costs, over all ranks and for one of them.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Cost {
    /// Parameters of the model.
    pub params: u64,
    /// Parameters that are trained.
    pub trainable: u64,
    /// Tokens per sample.
    pub seq_len: u64,
    /// Operations of one forward pass over one sample.
    pub forward_flops: f64,
    /// Operations of a step that the model needs, whatever is computed again: forward, and twice as much for gradients.
    pub model_flops: f64,
    /// Operations of a step that are carried out, over all ranks.
    pub step_flops: f64,
    /// Size of a checkpoint: in float32 what is trained and its two moments, in the type of computing what is frozen.
    pub checkpoint_bytes: u64,
    /// What one rank holds.
    pub memory: RankMemory,
    /// What one rank sends in a step.
    pub traffic: Traffic,
}

/// Bytes a second that a save is taken to write until one was measured.
const SLOW_DISK: f64 = 100e6;

impl Cost {
    /// Seconds that a save is taken to need until one was measured.
    pub fn save_s(&self) -> f64 {
        self.checkpoint_bytes as f64 / SLOW_DISK
    }
}

/// Seconds of a time limit that are kept for a save that is taken to need `save_s`.
pub fn save_reserve_s(save_s: f64) -> f64 {
    1.5 * save_s
}

impl Recipe {
    /// Counts what the recipe costs on its mesh.
    pub fn cost(&self) -> Cost {
        let specs = param_specs(&self.model);
        let sum = |wanted: &dyn Fn(&ParamSpec) -> bool| -> u64 {
            specs.iter().filter(|spec| wanted(spec)).map(|spec| spec.len()).sum()
        };
        let trainable = sum(&|spec| self.train.trains(spec));
        let units = UnitSizes::of(self, &specs);
        let forward_flops = Flops::forward(&self.model).total();
        let batch = self.train.global_batch as f64;
        Cost {
            params: sum(&|spec| spec.role == Role::Trained),
            trainable,
            seq_len: self.model.seq_len() as u64,
            forward_flops,
            model_flops: 3.0 * batch * forward_flops,
            step_flops: batch * Flops::step(self).total(),
            checkpoint_bytes: 12 * trainable + self.train.dtype.bytes() * sum(&|spec| !self.train.trains(spec)),
            memory: RankMemory::of(self, &units),
            traffic: Traffic::of(self, &units),
        }
    }

    /// Blocks that run again for their backward pass: all but those of the last group.
    fn blocks_again(&self) -> usize {
        let (layers, group) = (self.model.num_layers, self.remat.blocks_per_input(self.model.num_layers));
        (layers - 1) / group * group
    }

    /// Samples that a rank works on at a time.
    fn micro_batch(&self) -> u64 {
        (self.train.global_batch / self.mesh.data_ranks() / self.train.grad_accum) as u64
    }
}

/// Numbers of a rank's TP part of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct UnitSize {
    trained: u64,
    frozen: u64,
}

/// The parts of one rank's TP place: what is gathered and reduced at a time.
struct UnitSizes {
    root: UnitSize,
    /// All blocks are alike.
    block: UnitSize,
}

impl UnitSizes {
    fn of(recipe: &Recipe, specs: &[ParamSpec]) -> Self {
        let size = |unit: Unit| {
            let mut size = UnitSize::default();
            for spec in specs.iter().filter(|spec| spec.unit == unit) {
                let own = if spec.split == Split::None { spec.len() } else { spec.len() / recipe.mesh.tp as u64 };
                let kind = if recipe.train.trains(spec) { &mut size.trained } else { &mut size.frozen };
                *kind += own;
            }
            size
        };
        UnitSizes { root: size(Unit::Root), block: size(Unit::Block(0)) }
    }

    /// Every unit.
    fn all(&self, num_layers: usize) -> impl Iterator<Item = UnitSize> {
        std::iter::once(self.root).chain(std::iter::repeat_n(self.block, num_layers))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Recipe, load};

    fn recipe(sets: &[&str]) -> Recipe {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe
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
    fn a_small_model_costs_what_a_hand_count_says() {
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
    fn cogvideox_5b_costs_what_is_published() {
        let cost = recipe(&STAGE_3S).cost();
        assert_eq!(cost.params, 5_570_283_072);
        assert_eq!(cost.trainable, 5_570_283_072);
        assert_eq!(cost.seq_len, 18_048);
        // 4.0 TFLOP of attention, 1.4 of projections and 2.7 of MLP in each of 42 layers.
        assert!((cost.forward_flops / (42.0 * 8.1e12) - 1.0).abs() < 0.01, "{:e}", cost.forward_flops);
    }

    #[test]
    fn training_attention_alone_counts_only_attention() {
        let sets = [&STAGE_3S[..], &["train.trainable=qkvo"]].concat();
        assert_eq!(recipe(&sets).cost().trainable, 526_848 + 1_585_446_912);
    }

    #[test]
    fn a_stored_table_of_positions_is_saved_but_is_no_parameter() {
        let (with, without) = (recipe(&["model.positions=learned"]).cost(), recipe(&[]).cost());
        assert_eq!(with.params, without.params);
        assert_eq!(with.checkpoint_bytes - without.checkpoint_bytes, 2 * 64 * 128, "in bfloat16, as what is frozen");
    }
}
