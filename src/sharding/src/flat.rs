//! The layout of a unit's tensors in its flat tensors, and the shard of each rank. Only arithmetic, without tensors.

use recipe::Flat;

/// One of the two flat tensors of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// The flat tensor of trained slots, which have gradients and optimizer state.
    Trained,
    /// The flat tensor of frozen slots, which are never updated.
    Frozen,
}

/// The distribution of a slot over the ranks of a TP group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TpLayout {
    /// Each rank has the whole slot.
    Replicated,
    /// Each rank has its own part.
    Sharded,
    /// Each rank has the whole slot and a partial gradient; the gradients are summed over the TP group.
    Partial,
}

/// One tensor of a unit, and its position in a flat tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The shape of the tensor.
    pub shape: Vec<i64>,
    /// The flat tensor that contains it.
    pub kind: ParamKind,
    /// Its distribution over the TP group.
    pub tp_layout: TpLayout,
    /// The position of its first element in the flat tensor.
    pub offset: i64,
    /// Its number of elements.
    pub len: i64,
}

/// The layout of a unit's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The tensors of the unit, in the order in which the unit lists them.
    pub slots: Vec<Slot>,
    /// Elements of one shard of the trained flat tensor.
    pub trained_shard: i64,
    /// Elements of one shard of the frozen flat tensor.
    pub frozen_shard: i64,
}

/// A contiguous range of elements of one tensor that lies in one rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRange {
    /// The index of the tensor's slot.
    pub slot: usize,
    /// The flat tensor that contains the slot.
    pub kind: ParamKind,
    /// The distribution of the tensor over the TP group.
    pub tp_layout: TpLayout,
    /// The first element, as an index into the tensor (row-major).
    pub start: i64,
    /// The number of elements.
    pub len: i64,
    /// The first element, as an index into the shard.
    pub shard_start: i64,
}

impl Layout {
    /// Places the tensors one after another in two flat tensors, with the alignment of [`recipe::Flat`].
    pub fn new(tensors: impl IntoIterator<Item = (Vec<i64>, ParamKind, TpLayout)>, shards: usize) -> Self {
        let (mut trained, mut frozen) = (Flat::default(), Flat::default());
        let slots = tensors
            .into_iter()
            .map(|(shape, kind, tp_layout)| {
                let len: i64 = shape.iter().product();
                let flat = if kind == ParamKind::Trained { &mut trained } else { &mut frozen };
                Slot { shape, kind, tp_layout, offset: flat.place(len as u64) as i64, len }
            })
            .collect();
        let part = |flat: Flat| flat.shard_len(shards) as i64;
        Layout { slots, trained_shard: part(trained), frozen_shard: part(frozen) }
    }

    /// Returns the ranges (start and length) of a flat tensor that belong to no slot: padding. `shards` is the number
    /// of shards of the flat tensor.
    pub fn gaps(&self, kind: ParamKind, shards: usize) -> Vec<(i64, i64)> {
        let starts = self.slots.iter().filter(|slot| slot.kind == kind).map(|slot| (slot.offset, slot.len));
        let end = (self.shard_len(kind) * shards as i64, 0);
        let mut used = 0;
        let gap = |(start, len)| {
            let gap = (used, start - used);
            used = start + len;
            gap
        };
        starts.chain([end]).map(gap).filter(|(_, len)| *len > 0).collect()
    }

    /// Returns the number of elements of one shard.
    pub fn shard_len(&self, kind: ParamKind) -> i64 {
        match kind {
            ParamKind::Trained => self.trained_shard,
            ParamKind::Frozen => self.frozen_shard,
        }
    }

    /// Returns the ranges in a rank's shard, in the order of the slots. The ranges of all ranks cover every tensor
    /// once.
    pub fn ranges(&self, shard: usize) -> Vec<ShardRange> {
        let own = |(slot, s): (usize, &Slot)| {
            let begin = self.shard_len(s.kind) * shard as i64;
            let first = s.offset.max(begin);
            let last = (s.offset + s.len).min(begin + self.shard_len(s.kind));
            (first < last).then(|| ShardRange {
                slot,
                kind: s.kind,
                tp_layout: s.tp_layout,
                start: first - s.offset,
                len: last - first,
                shard_start: first - begin,
            })
        };
        self.slots.iter().enumerate().filter_map(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a layout of up to 12 tensors of random shapes and kinds.
    fn layouts() -> impl Strategy<Value = (Layout, usize)> {
        let kind = prop_oneof![Just(ParamKind::Trained), Just(ParamKind::Frozen)];
        let shape =
            prop_oneof![prop::collection::vec(1..40i64, 1..4), Just(vec![1]), Just(vec![64, 3]), Just(vec![48])];
        (prop::collection::vec((shape, kind, Just(TpLayout::Replicated)), 0..12), 1..9usize)
            .prop_map(|(tensors, shards)| (Layout::new(tensors, shards), shards))
    }

    proptest! {
        #[test]
        fn over_all_ranks_the_runs_cover_every_element_once((layout, shards) in layouts()) {
            let mut seen: Vec<Vec<u32>> = layout.slots.iter().map(|s| vec![0; s.len as usize]).collect();
            for range in (0..shards).flat_map(|rank| layout.ranges(rank)) {
                prop_assert!(range.shard_start + range.len <= layout.shard_len(range.kind));
                for i in range.start..range.start + range.len {
                    seen[range.slot][i as usize] += 1;
                }
            }
            prop_assert!(seen.iter().flatten().all(|&n| n == 1), "{:?}", seen);
        }

        #[test]
        fn slots_and_gaps_cover_every_element_of_a_flat_tensor_once((layout, shards) in layouts()) {
            for kind in [ParamKind::Trained, ParamKind::Frozen] {
                let mut seen = vec![0; layout.shard_len(kind) as usize * shards];
                let slots = layout.slots.iter().filter(|slot| slot.kind == kind).map(|slot| (slot.offset, slot.len));
                for (start, len) in slots.chain(layout.gaps(kind, shards)) {
                    seen[start as usize..(start + len) as usize].iter_mut().for_each(|n| *n += 1);
                }
                prop_assert!(seen.iter().all(|&n| n == 1), "{:?}", seen);
            }
        }

        #[test]
        fn slots_and_shards_begin_at_16_bytes_in_every_dtype((layout, shards) in layouts()) {
            prop_assert!(layout.slots.iter().all(|slot| slot.offset % 64 == 0));
            for kind in [ParamKind::Trained, ParamKind::Frozen] {
                prop_assert!(shards == 1 || layout.shard_len(kind) % 128 == 0);
            }
        }
    }
}
