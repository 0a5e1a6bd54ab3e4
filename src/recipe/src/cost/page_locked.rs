//! The sizes of the tensors that a rank on a GPU keeps in page-locked memory of its node: offloaded tensors and the copy of a save.

use super::memory::{F32, Kept};
use super::{BlockCost, UnitSize, UnitSizes};
use crate::{Flat, Recipe};

/// Returns the sizes in bytes of the offloaded tensors: swapped weights and gradients, the optimizer's state, and saved inputs.
pub(super) fn offloaded(recipe: &Recipe, units: &UnitSizes, blocks: &[BlockCost]) -> Vec<u64> {
    let offload = &recipe.memory;
    let is_swapped = offload.swapped(units.blocks.len());
    let swapped = units.blocks.iter().zip(&is_swapped).filter(|(_, swapped)| **swapped);
    let mut sizes: Vec<u64> = swapped.flat_map(|(unit, _)| weights(recipe, *unit, Of::Offload)).collect();
    if offload.optimizer_offload {
        sizes.extend(units.all().flat_map(|unit| unit.state.tensors()));
    }
    let Kept { inputs, input: of_sample, .. } = Kept::of(recipe, blocks);
    if offload.activation_offload && of_sample > 0 {
        sizes.extend(std::iter::repeat_n(input(recipe, blocks), inputs.div_ceil(of_sample) as usize));
    }
    sizes
}

/// Returns the bytes of the saved input of a block.
pub(super) fn input(recipe: &Recipe, blocks: &[BlockCost]) -> u64 {
    recipe.micro_batch() * Kept::of(recipe, blocks).input
}

/// Returns the sizes in bytes of the tensors that a save copies, by unit: weights, state and average. The save copies them in smaller
/// pieces.
pub(super) fn saved(recipe: &Recipe, units: &UnitSizes) -> Vec<u64> {
    let average = |unit: UnitSize| recipe.ema.is_used().then(|| F32 * share(recipe, unit.trained));
    units
        .all()
        .flat_map(|unit| {
            let state = unit.state.tensors().into_iter().chain([unit.state.whole]);
            weights(recipe, unit, Of::Save).into_iter().chain(state).chain(average(unit)).collect::<Vec<_>>()
        })
        .collect()
}

/// The purpose for which weights are copied to node memory.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// Offload of swapped blocks, which have gradients too.
    Offload,
    /// A save. Checkpoints of adapters have no frozen weights.
    Save,
}

fn weights(recipe: &Recipe, unit: UnitSize, of: Of) -> Vec<u64> {
    let trained = F32 * share(recipe, unit.trained);
    let frozen = recipe.train.frozen_dtype().bytes() * share(recipe, unit.frozen);
    match of {
        Of::Offload => vec![trained, trained, frozen],
        Of::Save if recipe.saves_adapters_only() => vec![trained],
        Of::Save => vec![trained, frozen],
    }
}

/// Returns the elements of a rank's shard.
fn share(recipe: &Recipe, flat: Flat) -> u64 {
    flat.shard_len(recipe.mesh.dp_shard)
}

#[cfg(test)]
mod tests {
    use crate::cost::tests::recipe;
    use crate::{OffloadStore, Slab};

    #[test]
    fn the_sizes_are_those_of_the_plan() {
        for kind in ["adamw", "adamw8bit", "prodigy"] {
            let kind = format!("optimizer.kind={kind}");
            let sets =
                ["memory.block_swap=2", "memory.optimizer_offload=true", "memory.activation_offload=true", &kind];
            let recipe = recipe(&[&sets[..], &["mesh.dp_shard=2", "train.device=cuda"]].concat());
            let memory = recipe.rank_memory().offloaded;
            let ranks = [0, 1].map(|shard| recipe.offloaded_tensors(shard));
            let all = ranks.each_ref().map(|sizes| sizes.iter().sum::<u64>());
            assert_eq!(all.iter().max(), Some(&memory.total()), "{kind}: {all:?}");
            assert!(ranks.iter().any(|sizes| memory.page_locked == Slab::of(sizes).bytes()));
            assert!(memory.page_locked >= memory.total());
        }
    }

    #[test]
    fn the_copy_of_a_save_on_gpus_counts_whole_chunks() {
        for sets in [&["ema.decay=0.99"][..], &["optimizer.kind=adafactor"], &["memory.optimizer_offload=true"]] {
            let of = |device: &str| recipe(&[sets, &["mesh.dp_shard=2", device]].concat()).rank_memory();
            let memory = of("train.device=cuda");
            let exact = memory.saved + memory.offloaded.saved + memory.ema + memory.ema_on_node;
            let chunks = memory.save_copy(OffloadStore::Host);
            assert!(chunks >= exact && chunks < 2 * exact + (1 << 20), "{sets:?}: {chunks} {exact}");
        }
    }
}
