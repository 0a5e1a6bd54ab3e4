//! The pieces of a rank: the parts of a checkpoint's tensors that the rank saves and loads.

use super::TrainingState;
use crate::optim::{StateTensor, StateValues};
use recipe::{ParamGroup, ParamRole};
use rundir::TensorBox;
use sharding::flat::ParamKind;
use sharding::fsdp::OwnedRange;
use std::ops::Range;
use tch::Tensor;

/// This rank's piece of a tensor.
pub struct Piece {
    pub name: String,
    /// Whether the tensor may be missing in the initial weights.
    pub addable: bool,
    /// Whether the tensor is a factor of an adapter, or the optimizer state of such a factor.
    pub adapter: bool,
    pub kind: ParamKind,
    pub shape: Vec<usize>,
    /// The part of the tensor that this rank's shard group holds, as a box.
    pub within: TensorBox,
    /// The first element of the piece, counted in the box.
    pub start: i64,
    pub values: Tensor,
    /// The scales of the blocks, if the values are 8-bit codes.
    pub scales: Option<Tensor>,
    /// The unit and the slot of the parameter.
    pub of: (usize, usize),
    /// The prefix of the name: empty for a parameter, otherwise that of optimizer state or of the average.
    pub prefix: &'static str,
    /// Whether this rank saves the piece. Only the first rank of a TP group saves a replicated tensor.
    pub saved: bool,
}

impl Piece {
    /// Returns the elements of the piece, counted in the box.
    pub fn range(&self) -> Range<u64> {
        self.start as u64..(self.start + self.values.size()[0]) as u64
    }

    /// Returns the tensors that a file stores for the piece, with their names: the values, and the scales of 8-bit codes.
    pub fn tensors(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let scales = self.scales.iter().map(|scales| (scales_key(&self.name), scales));
        std::iter::once((self.name.clone(), &self.values)).chain(scales)
    }

    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        std::iter::once(&mut self.values).chain(self.scales.as_mut())
    }
}

/// Returns the name of the tensor with the scales of 8-bit codes.
pub fn scales_key(codes: &str) -> String {
    format!("{codes}.scale")
}

/// The prefix of the names of averages of trained tensors.
pub const AVERAGE: &str = "ema/";

pub fn weight_pieces(sharded: &TrainingState<'_>) -> Vec<Piece> {
    let piece = |owned: OwnedRange| {
        let spec = &sharded.tables[owned.unit][owned.range.slot];
        let addable = spec.group == ParamGroup::Ttt || spec.role == ParamRole::Adapter;
        Piece { addable, ..piece(sharded, &owned, "", owned.values.shallow_clone()) }
    };
    sharded.fsdp.owned().into_iter().map(piece).collect()
}

/// Returns the pieces of the optimizer's state. Every rank loads the state of whole tensors; one rank saves it.
pub fn moment_pieces(sharded: &TrainingState<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for owned in sharded.fsdp.owned().into_iter().filter(|o| o.range.kind == ParamKind::Trained) {
        for StateTensor { prefix, values } in sharded.moments.of(&owned) {
            pieces.push(match values {
                StateValues::Elements(values) => piece(sharded, &owned, prefix, values),
                StateValues::Quantized { codes, scales } => {
                    Piece { scales: Some(scales), ..piece(sharded, &owned, prefix, codes) }
                }
                StateValues::Whole { .. } => unreachable!("state of whole tensors has no range"),
            });
        }
    }
    let groups = sharded.fsdp.groups();
    let saved = groups.shard.rank() == 0 && groups.tp.rank() == 0;
    for (unit, slot, StateTensor { prefix, values }) in sharded.moments.of_whole_tensors() {
        let StateValues::Whole { shape, values } = values else { continue };
        let spec = &sharded.tables[unit][slot];
        pieces.push(Piece {
            name: format!("{prefix}{}", spec.name),
            addable: false,
            adapter: spec.role == ParamRole::Adapter,
            kind: ParamKind::Trained,
            within: TensorBox::whole(&shape),
            shape,
            start: 0,
            values,
            scales: None,
            of: (unit, slot),
            prefix,
            saved,
        });
    }
    pieces
}

pub fn average_pieces(sharded: &TrainingState<'_>) -> Vec<Piece> {
    let Some(ema) = sharded.ema else { return Vec::new() };
    let trained = sharded.fsdp.owned().into_iter().filter(|owned| owned.range.kind == ParamKind::Trained);
    let piece = |owned: OwnedRange| {
        let shard = ema.of(owned.unit).expect("a trained shard has an average");
        let values = shard.narrow(0, owned.range.shard_start, owned.range.len);
        piece(sharded, &owned, AVERAGE, values)
    };
    trained.map(piece).collect()
}

/// Describes this rank's piece of a tensor. `prefix` is empty for a parameter, otherwise that of a tensor of the same shape.
fn piece(sharded: &TrainingState<'_>, owned: &OwnedRange, prefix: &'static str, values: Tensor) -> Piece {
    let spec = &sharded.tables[owned.unit][owned.range.slot];
    let tp = &sharded.fsdp.groups().tp;
    let (offset, size) = spec.part(tp.rank(), tp.size());
    Piece {
        name: format!("{prefix}{}", spec.name),
        addable: false,
        adapter: spec.role == ParamRole::Adapter,
        kind: owned.range.kind,
        shape: spec.shape.clone(),
        within: TensorBox { offset, size },
        start: owned.range.start,
        values,
        scales: None,
        of: (owned.unit, owned.range.slot),
        prefix,
        saved: spec.is_split() || tp.rank() == 0,
    }
}

/// The number of elements that are read or written at a time. They fit in the CPU cache. For 32768 elements or more,
/// libtorch would copy with several threads, which would spin on the cores that compute checksums.
pub const AT_ONCE: u64 = 16 * 1024;
