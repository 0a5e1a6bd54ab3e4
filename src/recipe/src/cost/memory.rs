//! The memory of one rank: weights, gradients, optimizer state and the peak of a step, on the device and offloaded.

use serde::Serialize;

use super::{BlockCost, UnitSize, UnitSizes, batch, page_locked};
use crate::{Accumulate, Device, EmaDevice, Flat, OffloadStore, OptimizerKind, Recipe, Slab};

/// Size of a float32 in bytes.
pub(crate) const F32: u64 = 4;

/// The memory of one rank, in bytes.
///
/// `weights`, `gradients`, `optimizer` and `ema` are exact and last the whole run; `optimizer` is that of the rank with the most state.
/// The fields from `kept` to `update` are peaks within a step. Only `ema_on_node`, `save_chunks` and `offloaded` count memory outside the
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// The rank's share of the weights: trained ones in float32, frozen ones in their dtype.
    pub weights: u64,
    /// The rank's share of the float32 gradients.
    pub gradients: u64,
    /// The rank's share of the sharded optimizer state, and the state that every rank holds in full.
    pub optimizer: u64,
    /// The rank's share of the float32 average of the trained weights, if the average is on the same device as the weights.
    pub ema: u64,
    /// The rank's share of the average, if the average is in node memory and the weights are on a GPU. No sum includes it.
    pub ema_on_node: u64,
    /// The inputs and targets of two micro-batches: the current one, and the next one, which is made and uploaded ahead.
    pub batches: u64,
    /// The memory that blocks keep between the forward and the backward pass.
    pub kept: u64,
    /// Gathered weights: the root unit, one group of blocks, the block that is being prefetched, and the frozen weights of blocks that
    /// stay gathered.
    pub gathered: u64,
    /// Unsharded float32 gradients that accumulate over micro-batches; with `train.accumulate = "sharded"`, the reduced shard of one unit
    /// before it is added to the accumulated gradients; 0 with one micro-batch or one shard.
    pub accumulated: u64,
    /// The float32 inner states of the TTT layers of a group of blocks, saved for their backward pass.
    pub scan_states: u64,
    /// An estimate of the other memory of the backward pass: the autograd graphs of a group of blocks, the gradients of one block's
    /// parameters before they are reduced, and the buffers of the CUDA kernel of TTT scans.
    pub workspace: u64,
    /// The temporaries of the optimizer's update, and the offloaded tensors of one unit that the update fetches. The update runs after
    /// the backward pass, so that only the larger of the two counts.
    pub update: u64,
    /// The part of `weights` and `optimizer` that a checkpoint has. A save copies it.
    pub saved: u64,
    /// The page-locked node memory, in whole chunks, for the copy that a save on GPUs makes.
    pub save_chunks: u64,
    /// The tensors that are offloaded from the device.
    pub offloaded: Offloaded,
}

/// The offloaded tensors of one rank, in bytes. The backing store is page-locked node memory or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Offloaded {
    /// Weights of swapped blocks.
    pub weights: u64,
    /// Gradients of swapped blocks.
    pub gradients: u64,
    /// State of the optimizer.
    pub optimizer: u64,
    /// Saved inputs of blocks, at their peak.
    pub activations: u64,
    /// The part of `weights` and `optimizer` that a checkpoint has. A save copies it.
    pub saved: u64,
    /// The page-locked node memory, in whole chunks, that holds all of these tensors.
    pub page_locked: u64,
}

impl Offloaded {
    /// Returns the sum of the tensors, without the copy of a save.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.activations
    }

    /// Returns the bytes that a rank needs in `store`. A save copies a tensor that is in a file to another file.
    pub fn in_store(&self, store: OffloadStore) -> u64 {
        if store == OffloadStore::File { self.total() + self.saved } else { self.page_locked }
    }
}

impl RankMemory {
    pub(crate) fn of(recipe: &Recipe, units: &UnitSizes, blocks: &[BlockCost]) -> Self {
        let (mesh, compute, swap) = (&recipe.mesh, recipe.train.dtype.bytes(), recipe.memory.block_swap > 0);
        let share = |flat: Flat| flat.shard_len(mesh.dp_shard);
        let trained: u64 = units.all().map(|unit| share(unit.trained)).sum();
        let is_swapped = recipe.memory.swapped(units.blocks.len());
        let swapped = |wanted: bool| {
            let blocks = units.blocks.iter().zip(&is_swapped).filter(move |(_, swapped)| **swapped == wanted);
            blocks.map(|(block, _)| *block).chain((!wanted).then_some(units.root))
        };
        let frozen_bytes = recipe.train.frozen_dtype().bytes();
        let weights = |unit: UnitSize| F32 * share(unit.trained) + frozen_bytes * share(unit.frozen);
        let gradients = |unit: UnitSize| F32 * share(unit.trained);
        // A rank that has a whole replica in the dtype of the computation uses its weights in place, except those that it fetches.
        let copied =
            |bytes: u64, fetched: bool| if mesh.dp_shard > 1 || bytes != compute || fetched { compute } else { 0 };
        let all = |flat: Flat| flat.whole_len(mesh.dp_shard);
        let whole = |unit: UnitSize, fetched| {
            copied(F32, fetched) * all(unit.trained) + copied(frozen_bytes, fetched) * all(unit.frozen)
        };
        let at_use = units.gathered_at_use(recipe);
        let frozen = |blocks: &[UnitSize]| blocks.iter().map(|block| compute * all(block.frozen)).sum::<u64>();
        let stay = frozen(&units.blocks) - frozen(&at_use);
        let groups = at_use.chunks(recipe.group());
        let largest = at_use.iter().map(|block| whole(*block, swap)).max().unwrap_or(0);
        let prefetched = if groups.len() > 1 { largest } else { 0 };
        let group = |group: &[UnitSize]| group.iter().map(|unit| whole(*unit, swap)).sum();
        let in_hand = whole(units.root, false) + groups.map(group).max().unwrap_or(0) + prefetched + stay;
        let accumulated: u64 = match recipe.train.accumulate {
            _ if recipe.train.grad_accum == 1 || mesh.dp_shard == 1 => 0,
            Accumulate::Whole => units.all().map(|unit| F32 * all(unit.trained)).sum(),
            Accumulate::Sharded => units.all().map(gradients).max().unwrap_or(0),
        };
        let state: u64 = units.all().map(|unit| unit.state.total()).sum();
        let Kept { inputs, input, attention, scans } = Kept::of(recipe, blocks);
        let (samples, offload) = (recipe.micro_batch(), &recipe.memory);
        // One input is in use and another is being fetched.
        let inputs_here = if offload.activation_offload { inputs.min(2 * input) } else { inputs };
        let average = if recipe.ema.is_used() { F32 * trained } else { 0 };
        let state_away = if offload.optimizer_offload { state } else { 0 };
        let saved_weights = |unit: UnitSize| {
            let saved_frozen = if recipe.saves_adapters_only() { Flat::default() } else { unit.frozen };
            weights(UnitSize { frozen: saved_frozen, ..unit })
        };
        let on_node = recipe.ema.device == EmaDevice::Cpu && recipe.train.device != Device::Cpu;
        RankMemory {
            weights: swapped(false).map(weights).sum(),
            gradients: swapped(false).map(gradients).sum(),
            optimizer: state - state_away,
            ema: if on_node { 0 } else { average },
            ema_on_node: if on_node { average } else { 0 },
            batches: 2 * samples * batch::of_sample(recipe),
            kept: samples * (inputs_here + attention + scans),
            gathered: in_hand,
            accumulated,
            scan_states: samples * blocks.chunks(recipe.group()).map(states_of).max().unwrap_or(0),
            workspace: graphs_of_group(recipe, blocks) + gradients_of_block(recipe, units.block),
            update: update(recipe, units),
            saved: swapped(false).map(saved_weights).sum::<u64>() + state - state_away,
            save_chunks: Slab::of(&page_locked::saved(recipe, units)).bytes(),
            offloaded: Offloaded {
                weights: swapped(true).map(weights).sum(),
                gradients: swapped(true).map(gradients).sum(),
                optimizer: state_away,
                activations: if offload.activation_offload { samples * inputs } else { 0 },
                saved: swapped(true).map(saved_weights).sum::<u64>() + state_away,
                page_locked: Slab::of(&page_locked::offloaded(recipe, units, blocks)).bytes(),
            },
        }
    }

    /// Returns the size of weights, gradients, optimizer state and average, which last the whole run.
    pub fn state(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.ema
    }

    /// Returns the size of the copy that a save makes in node memory before it writes: weights, optimizer state and average. Only
    /// ranks of the first replica make a copy. Copies of tensors in files are in files: [`Offloaded::in_store`] counts them.
    pub fn save_copy(&self, store: OffloadStore) -> u64 {
        match store {
            OffloadStore::File => self.saved + self.ema + self.ema_on_node,
            _ => self.save_chunks,
        }
    }

    /// Returns the peak device memory of the rank's tensors in a step.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the parts of the peak by name: the state, the batches, and the larger of the backward pass and the update. The parts of the
    /// smaller one are 0.
    pub fn parts(&self) -> [(&'static str, u64); 11] {
        let backward = self.kept + self.gathered + self.accumulated + self.scan_states + self.workspace;
        let in_backward = |bytes| if backward >= self.update { bytes } else { 0 };
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("average", self.ema),
            ("batches", self.batches),
            ("saved activations", in_backward(self.kept)),
            ("gathered blocks", in_backward(self.gathered)),
            ("accumulated gradients", in_backward(self.accumulated)),
            ("states of TTT scans", in_backward(self.scan_states)),
            ("workspace, estimated", in_backward(self.workspace)),
            ("update", if backward >= self.update { 0 } else { self.update }),
        ]
    }
}

/// The bytes that the recomputed blocks keep for one sample.
pub(super) struct Kept {
    /// The rank's part of the input of each group.
    pub inputs: u64,
    /// The largest of these inputs.
    pub input: u64,
    /// With `remat.keep_attention`, the attention output and the float32 log-sum-exp of each block.
    attention: u64,
    /// With `remat.keep_scan`, the outputs and the inner states of the TTT scans of each block.
    scans: u64,
}

impl Kept {
    pub fn of(recipe: &Recipe, blocks: &[BlockCost]) -> Self {
        let compute = recipe.train.dtype.bytes();
        let recomputed = &blocks[..recipe.recomputed_blocks()];
        let inputs = recomputed.iter().step_by(recipe.group()).map(|block| block.input * compute);
        let attention = |block: &BlockCost| block.attended * compute + block.logsumexps * F32;
        let scans = |block: &BlockCost| block.scanned * compute + block.states;
        Kept {
            input: inputs.clone().max().unwrap_or(0),
            inputs: inputs.sum(),
            attention: if recipe.remat.keep_attention { recomputed.iter().map(attention).sum() } else { 0 },
            scans: if recipe.remat.keep_scan { recomputed.iter().map(scans).sum() } else { 0 },
        }
    }
}

/// Returns the size of the optimizer's temporaries and of the offloaded tensors of one unit that the update fetches.
///
/// The numbers follow the code of `trainer::optim`; tests of the trainer compare them with measured peaks on the CPU.
fn update(recipe: &Recipe, units: &UnitSizes) -> u64 {
    let shards = recipe.mesh.dp_shard;
    let largest = |of: &dyn Fn(UnitSize) -> u64| units.all().map(of).max().unwrap_or(0);
    let trained = largest(&|unit| unit.trained.shard_len(shards));
    // A shard has at most a whole tensor.
    let tensor = largest(&|unit| unit.largest_trained.min(unit.trained.shard_len(shards)));
    let temporaries = match recipe.optimizer.kind {
        // One fused operator updates in place.
        OptimizerKind::Adamw => 0,
        // The CPU uses one fused operator. A GPU needs the codes as 64-bit indices, both moments and their quotients.
        OptimizerKind::Adamw8bit if !recipe.expects_gpus() => 0,
        OptimizerKind::Adamw8bit => (8 + 5 * F32) * tensor,
        // The second moment, its lower limit and its root.
        OptimizerKind::Adafactor => 3 * F32 * tensor,
        // The quotient of the first moment and the root of the second, and its product with the learning rate.
        OptimizerKind::Prodigy => 2 * F32 * trained,
    };
    let swapped = if recipe.memory.block_swap > 0 { 2 * F32 * units.block.trained.shard_len(shards) } else { 0 };
    let state = if recipe.memory.optimizer_offload { largest(&|unit| unit.state.sharded()) } else { 0 };
    temporaries + swapped + state
}

fn states_of(blocks: &[BlockCost]) -> u64 {
    blocks.iter().map(|block| block.states).sum()
}

/// Returns the size of the graphs of the largest group of blocks and of the temporaries of one block's backward pass: those of its MLP,
/// or those of the kernel of its TTT scans, which come later.
fn graphs_of_group(recipe: &Recipe, blocks: &[BlockCost]) -> u64 {
    let (samples, compute) = (recipe.micro_batch() as f64, recipe.train.dtype.bytes() as f64);
    let graph = |block: &BlockCost| block.graph * compute;
    let graphs = blocks.chunks(recipe.group()).map(|group| group.iter().map(graph).sum()).fold(0.0, f64::max);
    let temporaries = blocks.iter().map(|block| block.temporaries * compute).fold(0.0, f64::max);
    let of_kernels = recipe.model.family().kernel_memory(recipe) as f64;
    (samples * graphs + (samples * temporaries).max(of_kernels)) as u64
}

/// Returns the size of the gradients of a block's parameters, in the compute dtype and in float32 for the reduction.
fn gradients_of_block(recipe: &Recipe, block: UnitSize) -> u64 {
    let (shards, flat) = (recipe.mesh.dp_shard, block.trained);
    let reduced = if shards > 1 { F32 * flat.whole_len(shards) } else { 0 };
    // The gradient shard of a swapped block is on the device until it is copied to the backing store.
    let swapped = if recipe.memory.block_swap > 0 { F32 * flat.shard_len(shards) } else { 0 };
    recipe.train.dtype.bytes() * flat.shard_len(1) + reduced + swapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flops;
    use crate::cost::tests::{flat_lens, recipe, sharded_lens};

    /// Returns the elements of all flat tensors of the trained or frozen parameters.
    fn flat(recipe: &Recipe, trained: bool) -> u64 {
        flat_lens(recipe, |spec| recipe.train.trains(spec) == trained).iter().sum()
    }

    #[test]
    fn replicas_keep_the_memory_of_a_rank_and_shards_and_tp_reduce_it() {
        let memory =
            |sets: &[&str]| recipe(&[sets, &["train.global_batch=8", "train.dtype=float32"]].concat()).cost().memory;
        let one = memory(&["mesh.dp_shard=1"]);
        assert_eq!(memory(&["mesh.dp_shard=1", "mesh.dp_replicate=4"]).state(), one.state());
        let all = flat(&recipe(&[]), true);
        assert_eq!((one.weights, one.gradients, one.optimizer, one.gathered), (4 * all, 4 * all, 8 * all, 0));
        let two = memory(&["mesh.dp_shard=2"]);
        assert_eq!(two.state(), 16 * sharded_lens(&recipe(&[]), 2).iter().sum::<u64>() / 2);
        let tp = ["mesh.dp_shard=1", "mesh.tp=2"];
        assert_eq!(memory(&tp).weights, 4 * flat(&recipe(&tp), true));
        // Half of the split weights; small tensors of this model are mostly padding.
        assert!(memory(&tp).weights < 4 * all);
    }

    #[test]
    fn frozen_parameters_have_only_weights_in_the_compute_dtype() {
        let recipe = recipe(&["mesh.dp_shard=1", "train.trainable=qkvo", "train.dtype=bfloat16"]);
        let (memory, trained) = (recipe.cost().memory, flat(&recipe, true));
        assert_eq!(memory.weights, 4 * trained + 2 * flat(&recipe, false));
        assert_eq!((memory.gradients, memory.optimizer), (4 * trained, 8 * trained));
    }

    #[test]
    fn frozen_parameters_can_be_kept_in_float32() {
        let sets = ["mesh.dp_shard=1", "train.frozen=['attn']", "train.dtype=bfloat16", "train.frozen_dtype=float32"];
        let recipe = recipe(&sets);
        let (trained, frozen) = (flat(&recipe, true), flat(&recipe, false));
        assert!(frozen > 0);
        assert_eq!(recipe.cost().memory.weights, 4 * (trained + frozen));
        assert_eq!(recipe.cost().memory.gradients, 4 * trained);
    }

    #[test]
    fn each_optimizer_has_the_memory_of_its_state() {
        let cost = |kind: &str, shards: &str| recipe(&[kind, shards, "train.global_batch=8"]).cost();
        let [adamw, adamw8bit, adafactor, prodigy] = ["adamw", "adamw8bit", "adafactor", "prodigy"].map(|kind| {
            let cost = cost(&format!("optimizer.kind={kind}"), "mesh.dp_shard=1");
            // AdamW and Prodigy also have state for the alignment gaps between tensors, which a checkpoint does not contain.
            let state = cost.checkpoint_bytes - 4 * cost.trainable;
            let gaps = flat(&recipe(&["mesh.dp_shard=1"]), true) - cost.trainable;
            let of_gaps = match kind {
                "adamw" => 8 * gaps,
                "prodigy" => 16 * gaps,
                _ => 0,
            };
            assert_eq!(cost.memory.optimizer, state + of_gaps, "{kind}");
            state as f64 / cost.trainable as f64
        });
        assert_eq!((adamw, prodigy), (8.0, 16.0));
        // Small tensors have moments of 8 bytes.
        assert!((2.03..2.2).contains(&adamw8bit), "{adamw8bit}");
        assert!(adafactor < 0.1, "{adafactor}");
        // Every rank has the rows and columns of Adafactor.
        let sharded = |kind: &str| [1, 4].map(|shards| cost(kind, &format!("mesh.dp_shard={shards}")).memory.optimizer);
        let [one, four] = sharded("optimizer.kind=adafactor");
        assert!(four > one / 2, "{one} {four}");
        // Shards differ, and the plan is that of the rank with the most state.
        let [one, four] = sharded("optimizer.kind=adamw8bit");
        assert!((one.div_ceil(4)..one).contains(&four), "{one} {four}");
    }

    #[test]
    fn an_average_costs_as_much_as_the_trained_weights() {
        let memory = |sets: &[&str]| {
            let sets = [sets, &["mesh.dp_shard=1", "train.trainable=qkvo", "train.dtype=bfloat16"]].concat();
            let recipe = recipe(&sets);
            (recipe.cost().memory, recipe.cost(), 4 * flat(&recipe, true))
        };
        let (without, before, average) = memory(&[]);
        let (with, after, _) = memory(&["ema.decay=0.99"]);
        assert_eq!((with.ema, with.ema_on_node, with.state()), (average, 0, without.state() + average));
        let copy = |memory: RankMemory| memory.save_copy(OffloadStore::Host);
        // The copy takes whole chunks: a test in `page_locked` checks its size.
        assert!(copy(with) >= copy(without));
        assert_eq!(after.checkpoint_bytes, before.checkpoint_bytes + 4 * before.trainable);
        let node = memory(&["ema.decay=0.99", "ema.device=cpu", "train.device=cuda"]).0;
        assert_eq!((node.ema, node.ema_on_node, node.total()), (0, average, without.total()));
        assert_eq!(copy(node), copy(with));
        assert_eq!(memory(&["ema.decay=0.99", "ema.device=cpu", "train.device=cpu"]).0, with);
    }

    #[test]
    fn a_save_copies_what_is_in_files_to_files() {
        let memory = |sets: &[&str]| {
            recipe(&[sets, &["mesh.dp_shard=1", "memory.block_swap=2", "memory.optimizer_offload=true"]].concat())
                .cost()
                .memory
        };
        let all = memory(&[]);
        let Offloaded { weights, optimizer, saved, .. } = all.offloaded;
        assert!(saved == weights + optimizer && optimizer > 0);
        assert_eq!(all.offloaded.in_store(OffloadStore::File), all.offloaded.total() + saved);
        // Page-locked memory is allocated in chunks whose sizes are powers of two.
        assert!(
            (all.offloaded.total()..2 * all.offloaded.total()).contains(&all.offloaded.in_store(OffloadStore::Host))
        );
        assert!(all.save_copy(OffloadStore::Host) >= saved);
        // A checkpoint of adapters has no frozen weights.
        let memory = memory(&["train.trainable=lora", "lora.rank=4"]);
        let adapters = memory.offloaded;
        assert_eq!((memory.saved, adapters.saved), (0, adapters.gradients + adapters.optimizer));
        assert!(adapters.weights > adapters.gradients);
    }

    #[test]
    fn the_parts_of_the_peak_have_the_larger_of_backward_pass_and_update() {
        let memory = recipe(&["optimizer.kind=prodigy"]).cost().memory;
        let part = |memory: &RankMemory, name| memory.parts().iter().find(|part| part.0 == name).unwrap().1;
        assert_eq!((part(&memory, "update"), part(&memory, "workspace, estimated")), (0, memory.workspace));
        let update = RankMemory { update: memory.total(), ..memory };
        assert_eq!((part(&update, "update"), part(&update, "workspace, estimated")), (update.update, 0));
        assert_eq!(update.total(), update.state() + update.batches + update.update);
    }

    #[test]
    fn keeping_attention_costs_the_size_of_its_outputs() {
        let kept = |keep: &str| recipe(&["train.dtype=bfloat16", keep]).cost().memory.kept;
        // Two layers; the last one is not recomputed: one input of 64 tokens of width 128 per sample.
        let (without, with) = (kept("remat.keep_attention=false"), kept("remat.keep_attention=true"));
        assert_eq!(without % (64 * 128 * 2), 0);
        let samples = without / (64 * 128 * 2);
        assert_eq!(with - without, samples * 64 * (128 * 2 + 2 * 4));
    }

    #[test]
    fn keeping_scans_costs_their_outputs_and_states_and_saves_a_scan() {
        let cost = |keep: &str| {
            let ttt = ["model.layer=ttt_mlp", "model.ttt_mini_batch=16", "model.num_layers=3", keep];
            let recipe = recipe(&ttt);
            (recipe.cost(), recipe.blocks()[0], Flops::step(&recipe).ttt_scan)
        };
        let (without, block, work) = cost("remat.keep_scan=false");
        let (with, _, less) = cost("remat.keep_scan=true");
        // Two directions of 64 tokens of width 128 in bf16. The last of three layers is not recomputed.
        assert_eq!(block.scanned, 2 * 64 * 128);
        let samples = 2 * (block.scanned * 2 + block.states);
        assert_eq!((with.memory.kept - without.memory.kept) % samples, 0);
        assert!(with.memory.kept > without.memory.kept);
        assert_eq!((work - less) / block.flops.ttt_scan, 2.0);
    }

    #[test]
    fn a_larger_group_keeps_fewer_inputs_and_needs_more_workspace() {
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
    fn frozen_blocks_that_stay_gathered_take_their_whole_size_and_are_not_sent_again() {
        let lora =
            ["mesh.dp_shard=2", "lora.rank=4", "train.trainable=lora", "model.num_layers=6", "train.dtype=bfloat16"];
        let cost = |keep: &str| recipe(&[&lora[..], &[keep]].concat()).cost();
        let recipe = recipe(&lora);
        let frozen = flat_lens(&recipe, |spec| !recipe.train.trains(spec))[1].div_ceil(256) * 256;
        let (none, some, all) =
            (cost("memory.keep_gathered=0"), cost("memory.keep_gathered=2"), cost("memory.keep_gathered=6"));
        // At most two blocks are gathered at a time: the one in use and the prefetched one.
        assert_eq!(some.memory.gathered - none.memory.gathered, 2 * 2 * frozen);
        assert_eq!(all.memory.gathered - none.memory.gathered, (6 - 2) * 2 * frozen);
        // A rank sends half of the 2 bytes of each element in the forward pass, and again in the recomputation of all but the last block.
        assert_eq!(none.traffic.all_gather - some.traffic.all_gather, (4 * frozen) as f64);
        assert_eq!(none.traffic.all_gather - all.traffic.all_gather, (11 * frozen) as f64);
    }

    #[test]
    fn micro_batches_accumulate_unsharded_gradients_only_with_shards() {
        let accumulated = |shards: &str, parts: &str| recipe(&[shards, parts]).cost().memory.accumulated;
        assert_eq!(accumulated("mesh.dp_shard=2", "train.grad_accum=1"), 0);
        assert_eq!(accumulated("mesh.dp_shard=1", "train.grad_accum=4"), 0);
        let two = recipe(&["mesh.dp_shard=2", "train.grad_accum=2"]);
        assert_eq!(two.cost().memory.accumulated, 4 * sharded_lens(&two, 2).iter().sum::<u64>());
        let sharded = |parts: &str| recipe(&["mesh.dp_shard=2", parts, "train.accumulate=sharded"]).cost();
        let shards = sharded_lens(&two, 2).into_iter().map(|len| len / 2);
        assert_eq!(sharded("train.grad_accum=2").memory.accumulated, 4 * shards.max().unwrap());
        assert_eq!(sharded("train.grad_accum=2").traffic.reduce_scatter, 2.0 * two.cost().traffic.reduce_scatter);
        assert_eq!(sharded("train.grad_accum=2").traffic.all_reduce, two.cost().traffic.all_reduce);
    }
}
