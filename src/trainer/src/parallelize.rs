//! Where the model and parallelism meet: the units of the transformer, kept by FSDP.

use dist::flat::{Layout, Which};
use dist::fsdp::Fsdp;
use dit::network::Units;
use dit::params::{SlotGrad, UnitParams, unit_specs};
use recipe::{ParamSpec, Recipe, Unit};

/// The parameter table of every unit, in the order of FSDP's unit numbers: the root, then the blocks.
pub fn unit_tables(recipe: &Recipe) -> Vec<Vec<ParamSpec>> {
    let blocks = (0..recipe.model.num_layers).map(Unit::Block);
    std::iter::once(Unit::Root).chain(blocks).map(|unit| unit_specs(&recipe.model, unit)).collect()
}

/// The layout of every unit: what trains lies in one flat tensor, what is frozen in another.
pub fn layouts(recipe: &Recipe, tables: &[Vec<ParamSpec>]) -> Vec<Layout> {
    let place = |spec: &ParamSpec| {
        let which = if recipe.train.trains(spec) { Which::Trained } else { Which::Frozen };
        (spec.shape.iter().map(|&d| d as i64).collect(), which)
    };
    tables.iter().map(|specs| Layout::new(specs.iter().map(place), recipe.mesh.dp_shard)).collect()
}

/// FSDP as the network sees it.
pub struct Sharded<'a>(pub &'a mut Fsdp);

impl Units for Sharded<'_> {
    type Error = c10d::Error;

    fn gather(&mut self, unit: Unit, next: Option<Unit>) -> c10d::Result<UnitParams> {
        self.0.gather(number(unit), next.map(number)).map(UnitParams::new)
    }

    fn reduce(&mut self, unit: Unit, grads: Vec<SlotGrad>) -> c10d::Result<()> {
        self.0.reduce(number(unit), grads)
    }
}

fn number(unit: Unit) -> usize {
    match unit {
        Unit::Root => 0,
        Unit::Block(i) => i + 1,
    }
}
