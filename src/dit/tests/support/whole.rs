//! The unsharded parameters of a network on one rank, by their diffusers names.

use super::device::there;
use super::{Tensors, oracle, read};
use camino::Utf8Path;
use dit::network::Units;
use dit::params::{SlotGrad, UnitParams, unit_specs};
use recipe::{FsdpUnit, Model, ParamRole, ParamSpec};
use tch::Device;
use torch_error::TorchError;

/// Reads all weights of a transformer.
pub fn all_weights(transformer: &Utf8Path) -> Tensors {
    let mut tensors = Tensors::new();
    for file in oracle::weight_files(transformer) {
        read(&file, &mut tensors);
    }
    tensors
}

fn diffusers(spec: &ParamSpec) -> &str {
    spec.diffusers.as_deref().expect("diffusers has every tensor of plain CogVideoX")
}

/// Unsharded parameters by their diffusers names; gradients are stored under the same names.
pub struct Whole<'a> {
    pub model: &'a Model,
    pub weights: &'a Tensors,
    pub grads: Tensors,
}

impl Units for Whole<'_> {
    type Error = TorchError;

    fn gather(&mut self, unit: FsdpUnit, _: Option<FsdpUnit>) -> Result<UnitParams, TorchError> {
        let tensors = unit_specs(self.model, unit)
            .iter()
            .map(|spec| {
                there(&self.weights[diffusers(spec)]).detach().set_requires_grad(spec.role == ParamRole::Trained)
            })
            .collect();
        Ok(UnitParams::new(tensors))
    }

    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> Result<(), TorchError> {
        let specs = unit_specs(self.model, unit);
        for (slot, grad) in grads {
            let twice = self.grads.insert(diffusers(&specs[slot]).to_owned(), grad.to_device(Device::Cpu));
            assert!(twice.is_none(), "{} got two gradients", specs[slot].name);
        }
        Ok(())
    }
}
