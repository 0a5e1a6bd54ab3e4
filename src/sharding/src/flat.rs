//! How the tensors of a unit lie in its flat tensors, and which part of each is a rank's own. Arithmetic only.

/// Which of a unit's two flat tensors a slot lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Has a gradient and optimizer state.
    Trained,
    /// Is only read.
    Frozen,
}

/// What the ranks of a TP group have of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// All of it, each.
    Alike,
    /// Each a part of its own.
    Apart,
}

/// One tensor of a unit and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Shape of the tensor.
    pub shape: Vec<i64>,
    /// The flat tensor it lies in.
    pub which: Which,
    /// What the other ranks of the TP group have of it.
    pub held: Held,
    /// Its first element there.
    pub offset: i64,
    /// Its number of elements.
    pub len: i64,
}

/// The places of a unit's tensors.
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
pub struct Run {
    /// The tensor's slot.
    pub slot: usize,
    /// The flat tensor.
    pub which: Which,
    /// What the other ranks of the TP group have of the tensor.
    pub held: Held,
    /// First element, counted in the tensor (row-major).
    pub start: i64,
    /// Number of elements.
    pub len: i64,
    /// First element, counted in the shard.
    pub shard_start: i64,
}

impl Layout {
    /// Lays tensors end to end; each flat tensor is padded to a multiple of the number of shards.
    pub fn new(tensors: impl IntoIterator<Item = (Vec<i64>, Which, Held)>, shards: usize) -> Self {
        let (mut trained, mut frozen) = (0, 0);
        let slots = tensors
            .into_iter()
            .map(|(shape, which, held)| {
                let len = shape.iter().product();
                let end = if which == Which::Trained { &mut trained } else { &mut frozen };
                let slot = Slot { shape, which, held, offset: *end, len };
                *end += len;
                slot
            })
            .collect();
        let shards = shards as i64;
        let part = |len: i64| (len + shards - 1) / shards;
        Layout { slots, trained_shard: part(trained), frozen_shard: part(frozen) }
    }

    /// Elements of one shard.
    pub fn shard_len(&self, which: Which) -> i64 {
        match which {
            Which::Trained => self.trained_shard,
            Which::Frozen => self.frozen_shard,
        }
    }

    /// What a rank owns, in the order of the slots. Over all ranks the runs cover every tensor once.
    pub fn runs(&self, shard: usize) -> Vec<Run> {
        let own = |(slot, s): (usize, &Slot)| {
            let begin = self.shard_len(s.which) * shard as i64;
            let first = s.offset.max(begin);
            let last = (s.offset + s.len).min(begin + self.shard_len(s.which));
            (first < last).then(|| Run {
                slot,
                which: s.which,
                held: s.held,
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
            (vec![3, 5], Which::Trained, Held::Alike),
            (vec![7], Which::Frozen, Held::Apart),
            (vec![1], Which::Trained, Held::Apart),
            (vec![4, 4], Which::Frozen, Held::Alike),
            (vec![2, 2, 3], Which::Trained, Held::Alike),
        ];
        for shards in 1..9 {
            let layout = Layout::new(shapes.clone(), shards);
            let mut seen: Vec<Vec<u32>> = layout.slots.iter().map(|s| vec![0; s.len as usize]).collect();
            for rank in 0..shards {
                for run in layout.runs(rank) {
                    assert!(run.shard_start + run.len <= layout.shard_len(run.which), "{shards} shards, rank {rank}");
                    for i in run.start..run.start + run.len {
                        seen[run.slot][i as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().flatten().all(|&n| n == 1), "{shards} shards: {seen:?}");
        }
    }
}
