//! The alignment of flat tensors: where the tensors of an FSDP unit begin, and how long a shard is.
//!
//! NCCL moves 16 bytes at a time if every pointer of a chunk is a multiple of 16 bytes, and one element at a time otherwise. One bias of
//! 12 elements would misalign every tensor behind it, and most shards. Megatron aligns tensors and buckets to the same numbers of
//! elements.

/// Each tensor begins at a multiple of this number of elements.
pub const SLOT_ALIGNMENT: u64 = 64;

/// The length of a shard is a multiple of this number of elements, if there is more than one shard.
pub const SHARD_ALIGNMENT: u64 = 128;

/// The layout of a flat tensor: tensors one after another, each aligned. The elements between them are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flat {
    /// The end of the last tensor.
    end: u64,
}

impl Flat {
    /// Places a tensor of `len` elements behind the others. Returns the position of its first element.
    pub fn place(&mut self, len: u64) -> u64 {
        let begin = self.end.next_multiple_of(SLOT_ALIGNMENT);
        self.end = begin + len;
        begin
    }

    /// Returns the number of elements of one of `shards` equal shards, which together contain all tensors. A single shard has no padding
    /// at its end.
    pub fn shard_len(self, shards: usize) -> u64 {
        if shards == 1 { self.end } else { self.end.div_ceil(shards as u64).next_multiple_of(SHARD_ALIGNMENT) }
    }

    /// Returns the number of elements of all shards together.
    pub fn whole_len(self, shards: usize) -> u64 {
        self.shard_len(shards) * shards as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;
    use std::collections::HashMap;

    #[test]
    fn tensors_are_placed_at_multiples_of_64_and_shards_are_multiples_of_128() {
        let mut flat = Flat::default();
        assert_eq!((flat.shard_len(1), flat.shard_len(8)), (0, 0));
        assert_eq!([48, 64, 1, 100].map(|len| flat.place(len)), [0, 64, 128, 192]);
        assert_eq!([1, 2, 3, 4].map(|shards| flat.shard_len(shards)), [292, 256, 128, 128]);
        assert_eq!(flat.whole_len(4), 512);
    }

    #[test]
    fn shards_of_the_ttt_models_are_aligned_for_nccl_and_waste_almost_nothing() {
        for stage in ["3s", "9s", "18s", "30s", "63s"] {
            let recipe = load(format!("../../configs/ttt-mlp/{stage}.toml").as_str().into(), &[]).unwrap().recipe;
            let specs = recipe.param_specs();
            for (tp, shards) in [1, 2, 4].into_iter().flat_map(|tp| (2..=8).map(move |shards| (tp, shards))) {
                let (mut flats, mut logical) = (HashMap::<_, Flat>::new(), 0);
                for spec in &specs {
                    let len = if spec.is_split() { spec.len() / tp } else { spec.len() };
                    let begin = flats.entry((spec.unit, recipe.train.trains(spec))).or_default().place(len);
                    assert_eq!(2 * begin % 16, 0, "{} in bf16", spec.name);
                    logical += len;
                }
                for flat in flats.values() {
                    assert_eq!(2 * flat.shard_len(shards) % 16, 0, "{stage}, tp {tp}, {shards} shards");
                }
                let whole: u64 = flats.values().map(|flat| flat.whole_len(shards)).sum();
                let waste = whole as f64 / logical as f64 - 1.0;
                assert!(waste < 1e-4, "{stage}, tp {tp}, {shards} shards: waste of {waste:e}");
            }
        }
    }
}
