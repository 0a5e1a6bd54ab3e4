//! The parameters of one unit (the root or a block), as this crate's functions take them.

use crate::parallel::TensorParallel;
use recipe::{Model, ParamSpec, Unit};
use tch::{TchError, Tensor};

/// The parameters of one unit, in the order of [`recipe::param_specs`].
///
/// A trained tensor is a leaf with `requires_grad`; a frozen tensor does not require a gradient.
#[derive(Debug)]
pub struct UnitParams(Vec<Tensor>);

/// The gradient of one parameter: its slot in the unit's table, and the gradient in the parameter's shape.
pub type SlotGrad = (usize, Tensor);

impl UnitParams {
    /// Takes the tensors of a unit in the order of [`recipe::param_specs`].
    pub fn new(tensors: Vec<Tensor>) -> Self {
        UnitParams(tensors)
    }

    /// Returns all tensors, in the order of the table.
    pub fn tensors(&self) -> &[Tensor] {
        &self.0
    }

    /// Returns the trained tensors with their slots in the table.
    pub(crate) fn trained(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        self.0.iter().enumerate().filter(|(_, t)| t.requires_grad())
    }

    pub(crate) fn affine(&self, weight_slot: usize) -> Affine<'_> {
        Affine { slot: weight_slot, weight: &self.0[weight_slot], bias: &self.0[weight_slot + 1] }
    }

    pub(crate) fn tensor(&self, slot: usize) -> &Tensor {
        &self.0[slot]
    }
}

/// A weight and its bias, adjacent in the unit's table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine<'a> {
    pub slot: usize,
    pub weight: &'a Tensor,
    pub bias: &'a Tensor,
}

impl Affine<'_> {
    pub fn linear(&self, x: &Tensor) -> Tensor {
        x.linear(self.weight, Some(self.bias))
    }

    /// Applies the layer if each rank has some columns of the weight and the matching inputs: the products are summed over ranks,
    /// and the bias, which every rank has, is added once.
    pub fn row_linear(&self, x: &Tensor, tp: &dyn TensorParallel) -> Result<Tensor, TchError> {
        if tp.size() == 1 {
            return Ok(self.linear(x));
        }
        Ok(tp.reduce_from(&x.linear(self.weight, None::<Tensor>))? + self.bias)
    }

    pub fn layer_norm(&self, x: &Tensor, eps: f64) -> Tensor {
        let width = *self.weight.size().last().expect("a norm's weight has one dimension");
        x.layer_norm([width], Some(self.weight), Some(self.bias), eps, true)
    }

    /// Returns the trained ones of the two, with their slots in the unit's table.
    pub fn trained(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        [(self.slot, self.weight), (self.slot + 1, self.bias)].into_iter().filter(|(_, t)| t.requires_grad())
    }
}

/// The slot of each parameter in the unit's table, looked up once by name.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    names: Vec<String>,
}

impl Slots {
    pub fn of(model: &Model, unit: Unit) -> Self {
        let prefix = unit_prefix(unit);
        let names = unit_specs(model, unit)
            .into_iter()
            .map(|spec| spec.name.strip_prefix(&prefix).unwrap_or(&spec.name).to_owned())
            .collect();
        Slots { names }
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Returns the slot of `name.weight`; the slot of its bias follows.
    pub fn affine(&self, name: &str) -> usize {
        let slot = self.find(&format!("{name}.weight")).expect("the parameter table names every layer used here");
        assert_eq!(self.names[slot + 1], format!("{name}.bias"), "the bias follows its weight in the parameter table");
        slot
    }
}

/// Returns the specs of one unit's parameters, in table order.
pub fn unit_specs(model: &Model, unit: Unit) -> Vec<ParamSpec> {
    recipe::param_specs(model).into_iter().filter(|spec| spec.unit == unit).collect()
}

fn unit_prefix(unit: Unit) -> String {
    match unit {
        Unit::Root => String::new(),
        Unit::Block(i) => format!("blocks.{i}."),
    }
}
