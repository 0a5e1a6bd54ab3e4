//! The unsharded parameters of a family on one rank, read from a recorded file with the names of its original.

use super::Tensors;
use super::device::there;
use dit::network::Units;
use dit::params::{SlotGrad, UnitParams};
use recipe::families::FileTensor;
use recipe::{FsdpUnit, ParamRole, ParamSpec};
use tch::{Device, Tensor};
use torch_error::TorchError;

/// Returns our part of a tensor of a file, on the CPU.
pub fn part(whole: &Tensor, place: &FileTensor) -> Tensor {
    match &place.rows {
        Some(rows) => whole.narrow(0, rows.start as i64, rows.len() as i64),
        None => whole.shallow_clone(),
    }
}

/// Unsharded parameters. The gradients are stored by our names.
pub struct Placed {
    specs: Vec<ParamSpec>,
    weights: Tensors,
    pub grads: Tensors,
}

impl Placed {
    /// Takes each parameter from the tensor `prefix` + name of a file.
    pub fn new(
        specs: Vec<ParamSpec>,
        file: &Tensors,
        prefix: &str,
        place: impl Fn(&str) -> Option<FileTensor>,
    ) -> Self {
        let weight = |spec: &ParamSpec| {
            let place = place(&spec.name).unwrap_or_else(|| panic!("{} is not in the file's layout", spec.name));
            let whole = file.get(&format!("{prefix}{}", place.name)).unwrap_or_else(|| panic!("no {}", place.name));
            let weight = part(whole, &place);
            let shape: Vec<i64> = spec.shape.iter().map(|&side| side as i64).collect();
            assert_eq!(weight.size(), shape, "{}", spec.name);
            (spec.name.clone(), there(&weight).copy())
        };
        Placed { weights: specs.iter().map(weight).collect(), specs, grads: Tensors::new() }
    }

    fn of(&self, unit: FsdpUnit) -> impl Iterator<Item = &ParamSpec> {
        self.specs.iter().filter(move |spec| spec.unit == unit)
    }
}

impl Units for Placed {
    type Error = TorchError;

    fn gather(&mut self, unit: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        let tensor =
            |spec: &ParamSpec| self.weights[&spec.name].detach().set_requires_grad(spec.role == ParamRole::Trained);
        Ok(UnitParams::new(self.of(unit).map(tensor).collect()))
    }

    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> Result<(), TorchError> {
        let names: Vec<String> = self.of(unit).map(|spec| spec.name.clone()).collect();
        for (slot, grad) in grads {
            let twice = self.grads.insert(names[slot].clone(), grad.to_device(Device::Cpu));
            assert!(twice.is_none(), "{} got two gradients", names[slot]);
        }
        Ok(())
    }
}
