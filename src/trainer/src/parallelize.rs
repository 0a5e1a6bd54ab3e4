//! Applies FSDP and TP to a network: FSDP shards its units, and TP splits their tensors.

use crate::step::compute_kind;
use c10d::Group;
use dit::block::ActivationCheckpointing;
use dit::dropout::Dropout;
use dit::family::Family;
use dit::mixers::Kept;
use dit::network::{Network, Units};
use dit::parallel::{InFlight, TensorParallel};
use dit::params::{Adapters, SlotGrad, UnitParams};
use recipe::{FsdpUnit, ParamSpec, Recipe, Split};
use sharding::flat::{Layout, ParamKind, TpLayout};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use sharding::offload::Offload;
use tch::{Device, Tensor};
use torch_error::TorchError;

/// Returns the parameter table of every unit of a recipe's network in FSDP's order: the root, then the blocks.
pub fn unit_tables(recipe: &Recipe) -> Vec<Vec<ParamSpec>> {
    by_unit(recipe.param_specs())
}

/// Returns the parameter table of every unit in FSDP's order: the root, then the blocks.
pub fn by_unit(specs: Vec<ParamSpec>) -> Vec<Vec<ParamSpec>> {
    let mut tables = Vec::new();
    for spec in specs {
        let number = number(spec.unit);
        if tables.len() <= number {
            tables.resize_with(number + 1, Vec::new);
        }
        tables[number].push(spec);
    }
    tables
}

/// Builds a network with the activation checkpointing and the adapters of a recipe.
pub fn network_of<F: Family>(family: F, recipe: &Recipe) -> Network<F> {
    let remat = &recipe.remat;
    let checkpointing = match (Kept { attention: remat.keep_attention, scans: remat.keep_scan }, Kept::default()) {
        (kept, none) if kept == none => ActivationCheckpointing::Full,
        (kept, _) => ActivationCheckpointing::Selective(kept),
    };
    let group = remat.blocks_per_input(family.num_blocks());
    Network::of(family, checkpointing).with_adapters(adapters(recipe)).grouped(group)
}

/// Returns the LoRA adapters of each block; empty without adapters.
fn adapters(recipe: &Recipe) -> Vec<Adapters> {
    if !recipe.lora.is_used() {
        return Vec::new();
    }
    let scale = recipe.lora.scale();
    unit_tables(recipe)[1..].iter().map(|specs| Adapters::of(specs, scale)).collect()
}

/// Returns the layout of every unit on one rank of a TP group: one flat tensor of trained parameters, one of frozen ones.
pub fn layouts(recipe: &Recipe, tables: &[Vec<ParamSpec>]) -> Vec<Layout> {
    layouts_of(recipe, tables, |spec| recipe.train.trains(spec))
}

/// Allocates the sharded parameters of a recipe's network on this rank. `swap` is the backing store, and for each unit whether it is
/// swapped.
///
/// # Errors
/// The backing store is exhausted.
pub fn fsdp(
    recipe: &Recipe,
    tables: &[Vec<ParamSpec>],
    groups: MeshGroups,
    swap: Option<(Offload, Vec<bool>)>,
) -> c10d::Result<Fsdp> {
    let [compute, frozen] = [recipe.train.dtype, recipe.train.frozen_dtype()].map(compute_kind);
    let groups = MeshGroups { tp_pieces: recipe.train.tp_pieces, ..groups };
    let fsdp = Fsdp::with(layouts(recipe, tables), groups, compute, frozen, swap)?;
    // The root, the first unit, does not stay gathered.
    let kept: Vec<bool> = std::iter::once(false).chain(recipe.memory.kept(recipe.model.num_layers)).collect();
    Ok(fsdp.accumulating(recipe.train.accumulate).keeping(&kept))
}

/// Returns the layouts for inference: weights in the compute dtype, without gradients.
pub fn frozen_layouts(recipe: &Recipe, tables: &[Vec<ParamSpec>]) -> Vec<Layout> {
    layouts_of(recipe, tables, |_| false)
}

fn layouts_of(recipe: &Recipe, tables: &[Vec<ParamSpec>], trains: impl Fn(&ParamSpec) -> bool) -> Vec<Layout> {
    let place = |spec: &ParamSpec| {
        let which = if trains(spec) { ParamKind::Trained } else { ParamKind::Frozen };
        let held = match spec.split {
            Split::None => TpLayout::Replicated,
            Split::Dim(_) => TpLayout::Sharded,
            Split::Summed => TpLayout::Partial,
        };
        let (_, shape) = spec.part(0, recipe.mesh.tp);
        (shape.iter().map(|&d| d as i64).collect(), which, held)
    };
    tables.iter().map(|specs| Layout::new(specs.iter().map(place), recipe.mesh.dp_shard)).collect()
}

/// Returns the part of a tensor that a rank of a TP group holds, flattened.
pub fn flat_part(spec: &ParamSpec, whole: &Tensor, tp: &Group) -> Tensor {
    let (offset, shape) = spec.part(tp.rank(), tp.size());
    let part = match spec.split {
        Split::None | Split::Summed => whole.shallow_clone(),
        Split::Dim(dim) => whole.narrow(dim as i64, offset[dim] as i64, shape[dim] as i64),
    };
    part.reshape([-1])
}

/// Implements the network's traits with FSDP and TP.
pub struct Sharded<'a>(pub &'a mut Fsdp);

impl Units for Sharded<'_> {
    type Error = c10d::Error;

    fn gather(&mut self, unit: FsdpUnit, next: Option<FsdpUnit>) -> c10d::Result<UnitParams> {
        self.0.gather(number(unit), next.map(number)).map(UnitParams::new)
    }

    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> c10d::Result<()> {
        self.0.reduce(number(unit), grads)
    }

    fn tensor_parallel(&self) -> &dyn TensorParallel {
        self
    }

    fn offload_input(&mut self, input: Tensor) -> c10d::Result<Tensor> {
        match self.0.offload_mut() {
            Some(offload) if offload.takes_inputs => offload.offload_input(&input),
            _ => Ok(input),
        }
    }

    fn fetch_input(&mut self, kept: Tensor, next: Option<&Tensor>) -> c10d::Result<Tensor> {
        match self.0.offload_mut() {
            Some(offload) if offload.takes_inputs => offload.fetch_input(kept, next),
            _ => Ok(kept),
        }
    }
}

/// The units of a training step, with the dropout of adapters.
pub struct Training<'a> {
    pub units: Sharded<'a>,
    /// `None` without dropout.
    pub dropout: Option<Dropout>,
}

impl Units for Training<'_> {
    type Error = c10d::Error;

    fn gather(&mut self, unit: FsdpUnit, next: Option<FsdpUnit>) -> c10d::Result<UnitParams> {
        let params = self.units.gather(unit, next)?;
        Ok(match &self.dropout {
            Some(dropout) => params.with_dropout(dropout.of_unit(number(unit))),
            None => params,
        })
    }

    fn reduce(&mut self, unit: FsdpUnit, grads: Vec<SlotGrad>) -> c10d::Result<()> {
        self.units.reduce(unit, grads)
    }

    fn offload_input(&mut self, input: Tensor) -> c10d::Result<Tensor> {
        self.units.offload_input(input)
    }

    fn fetch_input(&mut self, kept: Tensor, next: Option<&Tensor>) -> c10d::Result<Tensor> {
        self.units.fetch_input(kept, next)
    }

    fn tensor_parallel(&self) -> &dyn TensorParallel {
        &self.units
    }
}

impl TensorParallel for Sharded<'_> {
    fn size(&self) -> i64 {
        self.0.groups().tp.size() as i64
    }

    fn rank(&self) -> i64 {
        self.0.groups().tp.rank() as i64
    }

    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        self.0.groups().tp.copy_to(x).map_err(TorchError::from)
    }

    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        self.0.groups().tp.gather_from(x).map_err(TorchError::from)
    }

    fn start_gather_tokens(&self, part: &Tensor, len: i64) -> Result<InFlight, TorchError> {
        in_flight(self.0.groups().tp.start_gather_tokens(part, len))
    }

    fn start_reduce_tokens(&self, x: &Tensor) -> Result<InFlight, TorchError> {
        in_flight(self.0.groups().tp.start_reduce_tokens(x))
    }

    fn pieces(&self, bytes: i64) -> i64 {
        let groups = self.0.groups();
        groups.tp_pieces.of(bytes as u64, groups.device != Device::Cpu) as i64
    }
}

fn in_flight(started: c10d::Result<c10d::TokensInFlight>) -> Result<InFlight, TorchError> {
    let started = started.map_err(TorchError::from)?;
    Ok(Box::new(move || started.wait().map_err(TorchError::from)))
}

fn number(unit: FsdpUnit) -> usize {
    match unit {
        FsdpUnit::Root => 0,
        FsdpUnit::Block(i) => i + 1,
    }
}
