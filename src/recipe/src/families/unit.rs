//! The tensors of one unit of a network, for the table of its family.

use crate::{FsdpUnit, ParamGroup, ParamInit, ParamRole, ParamSpec, Split};

/// The tensors that every family splits over the ranks of a TP group, by the ends of their names.
///
/// Heads and hidden units are rows of input projections and columns of output projections; the bias of an output projection is added once.
const SPLITS: &[(&str, Split)] = &[
    ("attn.q.weight", Split::Dim(0)),
    ("attn.q.bias", Split::Dim(0)),
    ("attn.k.weight", Split::Dim(0)),
    ("attn.k.bias", Split::Dim(0)),
    ("attn.v.weight", Split::Dim(0)),
    ("attn.v.bias", Split::Dim(0)),
    ("attn.o.weight", Split::Dim(1)),
    ("mlp.up.weight", Split::Dim(0)),
    ("mlp.up.bias", Split::Dim(0)),
    ("mlp.down.weight", Split::Dim(1)),
];

/// Collects the tensors of one unit.
pub(super) struct Unit {
    unit: FsdpUnit,
    prefix: String,
    splits: &'static [(&'static str, Split)],
    pub(super) specs: Vec<ParamSpec>,
}

impl Unit {
    /// Starts a unit. `splits` has the tensors that only its family splits, by the ends of their names. Each rank has all other tensors in full.
    pub(super) fn new(unit: FsdpUnit, splits: &'static [(&'static str, Split)]) -> Self {
        let prefix = match unit {
            FsdpUnit::Root => String::new(),
            FsdpUnit::Block(number) => format!("blocks.{number}."),
        };
        Unit { unit, prefix, splits, specs: Vec::new() }
    }

    /// Adds a linear layer or convolution: a weight, and a bias as long as the weight's first axis. The bias starts as the weight does if `init` is
    /// [`ParamInit::Linear`], otherwise at zero.
    pub(super) fn layer(&mut self, name: &str, shape: &[usize], init: ParamInit) {
        self.push(&format!("{name}.weight"), shape, init);
        let of_bias = if matches!(init, ParamInit::Linear { .. }) { init } else { ParamInit::Zeros };
        self.push(&format!("{name}.bias"), &shape[..1], of_bias);
    }

    /// Adds a LayerNorm.
    pub(super) fn norm(&mut self, name: &str, width: usize) {
        self.push(&format!("{name}.weight"), &[width], ParamInit::Ones);
        self.push(&format!("{name}.bias"), &[width], ParamInit::Zeros);
    }

    /// Adds a tensor. Weight decay applies to the weights of layers.
    pub(super) fn push(&mut self, name: &str, shape: &[usize], init: ParamInit) -> &mut ParamSpec {
        let split = SPLITS.iter().chain(self.splits).find(|(end, _)| name.ends_with(end));
        self.specs.push(ParamSpec {
            name: format!("{}{name}", self.prefix),
            diffusers: None,
            shape: shape.to_vec(),
            unit: self.unit,
            init,
            role: ParamRole::Trained,
            group: ParamGroup::Rest,
            decay: name.ends_with(".weight") && shape.len() > 1,
            split: split.map_or(Split::None, |(_, split)| *split),
        });
        self.specs.last_mut().expect("a tensor was added")
    }
}
