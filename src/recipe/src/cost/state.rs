//! The optimizer's state on one rank, with the sizes that `trainer::optim` allocates; a test of the trainer compares them.
//!
//! AdamW and Prodigy have state for every element of a shard, alignment gaps included. 8-bit AdamW and Adafactor have state for the tensors
//! in a shard, so that the ranks of a shard group differ: small tensors have larger state, and where a shard ends within a quantization
//! block, both ranks have a scale for it.

use super::memory::F32;
use crate::{Flat, Optimizer, ParamSpec};

/// The optimizer's state of one unit on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct UnitState {
    /// Bytes of the tensors of one moment, or of another of the optimizer's numbers: 8-bit codes, their scales, and float32 numbers.
    moment: [u64; 3],
    /// The number of such moments.
    moments: u64,
    /// Bytes that every rank has in full.
    pub whole: u64,
}

/// A trained tensor and its place in the flat tensor of its unit.
pub(super) struct Placed<'a> {
    pub spec: &'a ParamSpec,
    pub begin: u64,
    pub len: u64,
}

/// The trained tensors of a unit on one rank of a TP group.
pub(super) struct TrainedUnit<'a> {
    pub flat: Flat,
    pub tensors: Vec<Placed<'a>>,
}

impl UnitState {
    /// Returns the state of a unit on rank `shard` of `shards`.
    fn of(optimizer: &Optimizer, unit: &TrainedUnit<'_>, shards: usize, shard: usize) -> Self {
        let share = unit.flat.shard_len(shards);
        let begin = share * shard as u64;
        let covers_gaps = optimizer.kind.covers_gaps();
        let mut state = UnitState {
            moment: [0, 0, if covers_gaps { F32 * share } else { 0 }],
            moments: optimizer.kind.moments(),
            whole: 0,
        };
        for tensor in &unit.tensors {
            state.whole += optimizer.state_bytes(tensor.spec, tensor.len).whole;
            let (first, last) = (tensor.begin.max(begin), (tensor.begin + tensor.len).min(begin + share));
            if covers_gaps || first >= last {
                continue;
            }
            let own = optimizer.moment_bytes(tensor.spec, first - tensor.begin, last - first);
            state.moment.iter_mut().zip(own).for_each(|(sum, bytes)| *sum += bytes);
        }
        state
    }

    /// Returns the states of all units on rank `shard`; `None`: on the rank with the most state.
    pub fn of_units(
        optimizer: &Optimizer,
        units: &[TrainedUnit<'_>],
        shards: usize,
        shard: Option<usize>,
    ) -> Vec<UnitState> {
        let on = |shard| units.iter().map(|unit| Self::of(optimizer, unit, shards, shard)).collect::<Vec<_>>();
        // All ranks have the same state of whole shards.
        let ranks = match shard {
            Some(shard) => shard..shard + 1,
            None if optimizer.kind.covers_gaps() => 0..1,
            None => 0..shards,
        };
        let bytes = |units: &Vec<UnitState>| units.iter().map(|unit| unit.sharded()).sum::<u64>();
        ranks.map(on).max_by_key(bytes).unwrap_or_default()
    }

    /// Returns the sizes in bytes of the sharded tensors, in the order in which the trainer allocates them.
    pub fn tensors(self) -> Vec<u64> {
        self.moment.repeat(self.moments as usize)
    }

    /// Returns the bytes of the sharded tensors.
    pub fn sharded(self) -> u64 {
        self.moments * self.moment.iter().sum::<u64>()
    }

    /// Returns all bytes.
    pub fn total(self) -> u64 {
        self.sharded() + self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tests::recipe;
    use crate::{OptimizerKind, Recipe};

    /// Returns a matrix of this many elements.
    fn spec(recipe: &Recipe, elements: usize) -> ParamSpec {
        let spec = recipe.param_specs().into_iter().find(|spec| spec.shape.len() == 2).unwrap();
        ParamSpec { shape: vec![elements / 8, 8], ..spec }
    }

    fn unit(specs: &[ParamSpec]) -> TrainedUnit<'_> {
        let mut flat = Flat::default();
        let begins: Vec<u64> = specs.iter().map(|spec| flat.place(spec.len())).collect();
        let tensors = specs.iter().zip(begins).map(|(spec, begin)| Placed { spec, begin, len: spec.len() }).collect();
        TrainedUnit { flat, tensors }
    }

    #[test]
    fn blocks_are_those_of_tensors_and_a_shard_that_ends_within_one_has_its_scale_too() {
        let recipe = recipe(&["optimizer.kind=adamw8bit"]);
        let specs = [spec(&recipe, 8000), spec(&recipe, 800), spec(&recipe, 4736)];
        let unit = unit(&specs);
        // The tensors begin at 0, 8000 and 8832, and end at 13,568. The second one is too small for 8-bit moments.
        let of = |shards, shard| UnitState::of(&recipe.optimizer, &unit, shards, shard);
        assert_eq!(of(1, 0).moment, [8000 + 4736, 4 * (32 + 19), 4 * 800]);
        // Shards of 6784 elements. The first one ends in the middle of block 26 of the first tensor.
        let (first, second) = (of(2, 0), of(2, 1));
        assert_eq!(first.moment, [6784, 4 * 27, 0]);
        assert_eq!(second.moment, [1216 + 4736, 4 * (6 + 19), 4 * 800]);
        assert_eq!(second.tensors(), [second.moment, second.moment].concat());
        // The plan is that of the rank with the most state.
        let most = UnitState::of_units(&recipe.optimizer, std::slice::from_ref(&unit), 2, None);
        assert_eq!((most.as_slice(), first.sharded() < second.sharded()), (&[second][..], true));
    }

    #[test]
    fn every_rank_has_the_same_state_of_whole_shards() {
        let mut recipe = recipe(&[]);
        let specs = [spec(&recipe, 8000), spec(&recipe, 800)];
        let unit = unit(&specs);
        for (kind, moments) in [(OptimizerKind::Adamw, 2), (OptimizerKind::Prodigy, 4)] {
            recipe.optimizer.kind = kind;
            let share = unit.flat.shard_len(3);
            for shard in 0..3 {
                let state = UnitState::of(&recipe.optimizer, &unit, 3, shard);
                assert_eq!(state.tensors(), [0, 0, 4 * share].repeat(moments));
            }
        }
    }
}
