//! The layout of a unit's tensors in its flat tensors, and each rank's shard of them. Arithmetic only.

/// One of the two flat tensors of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// Its slots have gradients and optimizer state.
    Trained,
    /// Its slots are never updated.
    Frozen,
}

/// The distribution of a slot over the ranks of a TP group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TpLayout {
    /// Each rank has the whole slot.
    Replicated,
    /// Each rank has its own part.
    Sharded,
    /// Each rank has the whole slot and a part of its gradient; the parts are summed.
    Partial,
}

/// One tensor of a unit and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The shape of the tensor.
    pub shape: Vec<i64>,
    /// The flat tensor it lies in.
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
    /// In the order of the unit's table.
    pub slots: Vec<Slot>,
    /// Elements of one shard of the trained flat tensor.
    pub trained_shard: i64,
    /// Elements of one shard of the frozen flat tensor.
    pub frozen_shard: i64,
}

/// A run of elements of one tensor that lies in one rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRange {
    /// The tensor's slot.
    pub slot: usize,
    /// The flat tensor.
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
    /// Lays tensors end to end; each flat tensor is padded to a multiple of the number of shards.
    pub fn new(tensors: impl IntoIterator<Item = (Vec<i64>, ParamKind, TpLayout)>, shards: usize) -> Self {
        let (mut trained, mut frozen) = (0, 0);
        let slots = tensors
            .into_iter()
            .map(|(shape, kind, tp_layout)| {
                let len = shape.iter().product();
                let end = if kind == ParamKind::Trained { &mut trained } else { &mut frozen };
                let slot = Slot { shape, kind, tp_layout, offset: *end, len };
                *end += len;
                slot
            })
            .collect();
        let shards = shards as i64;
        let part = |len: i64| (len + shards - 1) / shards;
        Layout { slots, trained_shard: part(trained), frozen_shard: part(frozen) }
    }

    /// Returns the number of elements of one shard.
    pub fn shard_len(&self, kind: ParamKind) -> i64 {
        match kind {
            ParamKind::Trained => self.trained_shard,
            ParamKind::Frozen => self.frozen_shard,
        }
    }

    /// Returns the runs in a rank's shard, in the order of the slots. The runs of all ranks cover every tensor once.
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

    #[test]
    fn over_all_ranks_the_runs_cover_every_element_once() {
        let shapes = [
            (vec![3, 5], ParamKind::Trained, TpLayout::Replicated),
            (vec![7], ParamKind::Frozen, TpLayout::Sharded),
            (vec![1], ParamKind::Trained, TpLayout::Sharded),
            (vec![4, 4], ParamKind::Frozen, TpLayout::Replicated),
            (vec![2, 2, 3], ParamKind::Trained, TpLayout::Replicated),
        ];
        for shards in 1..9 {
            let layout = Layout::new(shapes.clone(), shards);
            let mut seen: Vec<Vec<u32>> = layout.slots.iter().map(|s| vec![0; s.len as usize]).collect();
            for rank in 0..shards {
                for range in layout.ranges(rank) {
                    assert!(
                        range.shard_start + range.len <= layout.shard_len(range.kind),
                        "{shards} shards, rank {rank}"
                    );
                    for i in range.start..range.start + range.len {
                        seen[range.slot][i as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().flatten().all(|&n| n == 1), "{shards} shards: {seen:?}");
        }
    }
}
