//! The parameters of one unit (the root or a block), as this crate's functions take them.

use crate::dropout::Dropout;
use crate::parallel::{TensorParallel, TokenCollectives};
use kernels::linear::{linear, linear_gradients};
use recipe::{FsdpUnit, Model, ParamSpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use tch::Tensor;
use torch_error::TorchError;

/// The parameters of one unit, in the order of [`recipe::param_specs`].
///
/// A trained tensor is a leaf with `requires_grad`; a frozen tensor does not require a gradient.
#[derive(Debug)]
pub struct UnitParams {
    tensors: Vec<Tensor>,
    adapters: Adapters,
    dropout: Option<Dropout>,
    only_gradients: bool,
}

/// The gradient of one parameter: its slot in the unit's table, and the gradient in the parameter's shape.
pub type SlotGrad = (usize, Tensor);

impl UnitParams {
    /// Takes the tensors of a unit in the order of [`recipe::param_specs`].
    pub fn new(tensors: Vec<Tensor>) -> Self {
        UnitParams { tensors, adapters: Adapters::default(), dropout: None, only_gradients: false }
    }

    /// Enables the unit's adapters. Their tensors follow the unit's own tensors.
    pub fn with_adapters(self, adapters: &Adapters) -> Self {
        UnitParams { adapters: adapters.clone(), ..self }
    }

    /// Enables dropout of the inputs of adapters, for training.
    pub fn with_dropout(self, dropout: Dropout) -> Self {
        UnitParams { dropout: Some(dropout), ..self }
    }

    /// Marks a recomputation of which only the gradients are used, not the output.
    pub(crate) fn for_gradients_only(self) -> Self {
        UnitParams { only_gradients: true, ..self }
    }

    /// Returns all tensors, in the order of the table.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the trained tensors with their slots in the table.
    pub(crate) fn trained(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        self.tensors.iter().enumerate().filter(|(_, t)| t.requires_grad())
    }

    /// Returns the parameters for a rank that applies those in `slots`, and the tensors `others` of the same dtype, to its own tokens or
    /// heads only: their gradients are summed over the ranks of `tp`, in one collective.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub(crate) fn copied_to<const N: usize>(
        &self,
        slots: &[usize],
        others: [Tensor; N],
        tp: &dyn TensorParallel,
    ) -> Result<(Self, [Tensor; N]), TorchError> {
        let mut tensors: Vec<Tensor> = self.tensors.iter().map(Tensor::shallow_clone).collect();
        let mut copied = others;
        if tp.size() > 1 {
            let all = || slots.iter().map(|&slot| &self.tensors[slot]).chain(&copied);
            let flat: Vec<Tensor> = all().map(|tensor| tensor.reshape([-1])).collect();
            let lens: Vec<i64> = flat.iter().map(|tensor| tensor.size()[0]).collect();
            let mut parts = tp.copy_to(&Tensor::cat(&flat, 0))?.split_with_sizes(&lens, 0).into_iter();
            let mut next = |like: &Tensor| parts.next().expect("a part of each tensor").view(&like.size()[..]);
            slots.iter().for_each(|&slot| tensors[slot] = next(&self.tensors[slot]));
            copied = copied.map(|other| next(&other));
        }
        let (adapters, dropout) = (self.adapters.clone(), self.dropout.clone());
        Ok((UnitParams { tensors, adapters, dropout, only_gradients: self.only_gradients }, copied))
    }

    /// Returns the collectives over tokens around the unit's layers. With dropout, which depends on the place of a token, they have one piece.
    pub(crate) fn collectives<'a>(&self, tp: &'a dyn TensorParallel) -> TokenCollectives<'a> {
        TokenCollectives::new(tp, self.dropout.is_none())
    }

    /// Returns the linear layer or norm whose weight is in a slot, and whose bias follows.
    pub fn affine(&self, weight_slot: usize) -> Affine<'_> {
        self.layer(LayerSlot { weight: weight_slot, has_bias: true })
    }

    /// Returns a linear layer with or without a bias.
    pub fn layer(&self, slot: LayerSlot) -> Affine<'_> {
        let adapter = self.adapters.slots.get(&slot.weight).map(|&[a, b]| Adapter {
            a: &self.tensors[a],
            b: &self.tensors[b],
            scale: self.adapters.scale,
            dropout: self.dropout.as_ref(),
        });
        Affine {
            slot: slot.weight,
            weight: &self.tensors[slot.weight],
            bias: slot.has_bias.then(|| &self.tensors[slot.weight + 1]),
            adapter,
            has_value: true,
        }
    }

    /// Returns the last layer before a gate. In a pass of which only the gradients are used, only the gradient of the gate needs the layer's
    /// value.
    pub(crate) fn before_gate<'a>(&self, layer: Affine<'a>, gate: &Tensor) -> Affine<'a> {
        let is_value_used = !self.only_gradients || gate.requires_grad();
        Affine { has_value: is_value_used, ..layer }
    }

    /// Applies an output projection to this rank's heads of all tokens, `[B, L, H·F]`. Returns this rank's part of the tokens.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub(crate) fn project_heads(
        &self,
        o: Affine<'_>,
        heads: &Tensor,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let sum = self.collectives(tp).reduce(heads, Tensor::shallow_clone, |x| o.row_product(x, tp))?;
        Ok(o.plus_bias(sum, tp))
    }

    /// Applies two feed-forward layers with a GELU between them, before a gate. Takes and returns this rank's part of `len` tokens, and computes
    /// this rank's hidden units for all tokens.
    ///
    /// # Errors
    /// A collective of `tp` failed.
    pub(crate) fn feed_forward(
        &self,
        [up, down]: [Affine<'_>; 2],
        gate: &Tensor,
        part: &Tensor,
        len: i64,
        tp: &dyn TensorParallel,
    ) -> Result<Tensor, TorchError> {
        let down = self.before_gate(down, gate);
        let mlp = |all: &Tensor| down.row_product(&up.linear(all).gelu("tanh"), tp);
        let sum = self.collectives(tp).gather_and_reduce(part, len, mlp)?;
        Ok(down.plus_bias(sum, tp))
    }

    /// Returns the tensor in a slot.
    pub fn tensor(&self, slot: usize) -> &Tensor {
        &self.tensors[slot]
    }
}

/// The LoRA adapters of one unit: which layers have one, and their common scale.
#[derive(Debug, Clone, Default)]
pub struct Adapters {
    /// The slots of A and B by the slot of the layer's weight.
    slots: Arc<BTreeMap<usize, [usize; 2]>>,
    scale: f64,
}

impl Adapters {
    /// Finds the adapters in the table of a unit.
    pub fn of(specs: &[ParamSpec], scale: f64) -> Self {
        let slot = |name: String| specs.iter().position(|spec| spec.name == name);
        let of_weight = |(at, spec): (usize, &ParamSpec)| {
            let layer = spec.name.strip_suffix(".weight")?;
            Some((at, [slot(format!("{layer}.lora_a"))?, slot(format!("{layer}.lora_b"))?]))
        };
        Adapters { slots: Arc::new(specs.iter().enumerate().filter_map(of_weight).collect()), scale }
    }
}

/// The adapter of a layer: `A [rank, in]`, `B [out, rank]`.
#[derive(Debug, Clone, Copy)]
struct Adapter<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    scale: f64,
    dropout: Option<&'a Dropout>,
}

/// A weight and its bias, adjacent in the unit's table, or a weight alone.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    slot: usize,
    /// The weight.
    pub weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    adapter: Option<Adapter<'a>>,
    /// Whether the output of the linear layer has a value, or only gradients ([`linear_gradients`]).
    has_value: bool,
}

impl<'a> Affine<'a> {
    /// Returns the bias of a norm, or of a linear layer that has one.
    ///
    /// # Panics
    /// The layer has none.
    pub fn bias(&self) -> &'a Tensor {
        self.bias.expect("the layer has a bias")
    }

    /// Applies the linear layer with its adapter.
    pub fn linear(&self, x: &Tensor) -> Tensor {
        self.adapted(x, self.product(x, self.bias), 1)
    }

    fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let compute = if self.has_value { linear } else { linear_gradients };
        compute(x, self.weight, bias)
    }

    /// Adds `scale · B (A x)` to the layer's output. `parts` is the number of ranks that hold the columns of the whole `x`.
    fn adapted(&self, x: &Tensor, y: Tensor, parts: i64) -> Tensor {
        let Some(Adapter { a, b, scale, dropout }) = self.adapter else { return y };
        let x = dropout.map_or_else(|| x.shallow_clone(), |dropout| dropout.apply(x, self.slot, parts));
        // Scale the smallest tensor. The sum is in place, because no other code needs the layer's output.
        let mut y = y;
        y += linear(&(linear(&x, a, None) * scale), b, None);
        y
    }

    /// Applies a layer whose weight columns and inputs are split over the ranks. Returns the products of this rank. The output is their
    /// sum over the ranks with [`Affine::plus_bias`].
    pub fn row_product(&self, x: &Tensor, tp: &dyn TensorParallel) -> Tensor {
        match tp.size() {
            1 => self.linear(x),
            parts => self.adapted(x, self.product(x, None), parts),
        }
    }

    /// Adds the bias to the sum of [`Affine::row_product`] over the ranks.
    pub fn plus_bias(&self, sum: Tensor, tp: &dyn TensorParallel) -> Tensor {
        match (tp.size(), self.bias) {
            (1, _) | (_, None) => sum,
            (_, Some(bias)) => sum + bias,
        }
    }

    /// Applies the LayerNorm over the last dimension.
    pub fn layer_norm(&self, x: &Tensor, eps: f64) -> Tensor {
        let width = *self.weight.size().last().expect("a norm's weight has one dimension");
        x.layer_norm([width], Some(self.weight), self.bias, eps, true)
    }
}

/// The slot of each parameter in the unit's table, looked up once by name.
#[derive(Debug, Clone)]
pub struct Slots {
    names: Vec<String>,
}

impl Slots {
    /// Finds the parameters of a unit in the table of its network, or in its own. Names are looked up without `blocks.N.`.
    pub fn of(specs: &[ParamSpec], unit: FsdpUnit) -> Self {
        let prefix = match unit {
            FsdpUnit::Root => String::new(),
            FsdpUnit::Block(number) => format!("blocks.{number}."),
        };
        let own = |spec: &ParamSpec| spec.name.strip_prefix(&prefix).unwrap_or(&spec.name).to_owned();
        Slots { names: specs.iter().filter(|spec| spec.unit == unit).map(own).collect() }
    }

    /// Returns the slot of a tensor.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Returns the slot of `name.weight`; the slot of its bias follows.
    pub fn affine(&self, name: &str) -> usize {
        let slot = self.layer(name);
        assert!(slot.has_bias, "the bias of {name} follows its weight in the parameter table");
        slot.weight
    }

    /// Returns the slot of a linear layer, which may have no bias.
    pub fn layer(&self, name: &str) -> LayerSlot {
        let weight = self.find(&format!("{name}.weight")).expect("the parameter table names every layer used here");
        LayerSlot { weight, has_bias: self.names.get(weight + 1) == Some(&format!("{name}.bias")) }
    }
}

/// The slot of a linear layer's weight, and whether the slot of its bias follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSlot {
    /// The slot of the weight.
    pub weight: usize,
    /// Whether the layer has a bias.
    pub has_bias: bool,
}

/// Returns the specs of one unit of CogVideoX, in table order.
pub fn unit_specs(model: &Model, unit: FsdpUnit) -> Vec<ParamSpec> {
    recipe::param_specs(model).into_iter().filter(|spec| spec.unit == unit).collect()
}
