//! Runs the ranks of a mesh as threads, over gloo, and trains on them.

use crate::data::Batch;
use crate::init;
use crate::offload;
use crate::optim::OptimizerState;
use crate::parallelize::fsdp;
use crate::requests::SaveStopRequests;
use crate::seeds::{self, Purpose};
use crate::step::Step;
use c10d::Store;
use dataset::order::StepPlan;
use dit::family::Family;
use dit::objective::Objective;
use recipe::{Mesh, ParamInit, ParamSpec, Recipe};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::ops::Range;
use std::time::Duration;
use tch::{Device, Tensor};

/// The timeout of collectives, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Returns the recipe `minimal.toml` with some keys set, on a mesh.
pub fn recipe([dp_replicate, dp_shard, tp]: [usize; 3], sets: &[&str]) -> Recipe {
    let mesh = [("dp_replicate", dp_replicate), ("dp_shard", dp_shard), ("tp", tp)]
        .map(|(axis, n)| format!("mesh.{axis}={n}"));
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).chain(mesh).collect();
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    recipe::load(minimal.into(), &sets).unwrap_or_else(|e| panic!("{e}")).recipe
}

/// Runs every rank of a mesh in a thread of its own; returns their results.
pub fn on_ranks<T: Send>(mesh: Mesh, run: impl Fn(MeshGroups) -> T + Sync) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (path, run) = (&path, &run);
            scope.spawn(move || {
                let store = Store::file(path, mesh.world(), LIMIT).unwrap();
                run(MeshGroups::join(&store, mesh, rank, Device::Cpu, LIMIT, Some("lo")).unwrap())
            })
        };
        let ranks: Vec<_> = (0..mesh.world()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns the plan of a step on samples of one shape.
pub fn plan(recipe: &Recipe, step: u64) -> StepPlan {
    let samples = recipe.train.global_batch;
    StepPlan::even(step * samples as u64, samples, recipe.mesh.data_ranks() * recipe.train.grad_accum)
}

/// The sharded state of one rank.
pub struct Rank {
    pub tables: Vec<Vec<ParamSpec>>,
    pub fsdp: Fsdp,
    pub moments: OptimizerState,
}

impl Rank {
    /// Initializes the parameters of a family. No parameter is zero, so that every layer has an effect.
    pub fn new(recipe: &Recipe, mut tables: Vec<Vec<ParamSpec>>, family: &impl Family, groups: MeshGroups) -> Self {
        for spec in tables.iter_mut().flatten().filter(|spec| spec.init == ParamInit::Zeros) {
            spec.init = ParamInit::Linear { fan_in: 16 };
        }
        let swap = offload::of(recipe, &groups, recipe.mesh.world()).unwrap();
        let fsdp = fsdp(recipe, &tables, groups, swap).unwrap();
        init::randomize(&fsdp, &tables, family, 1).unwrap();
        let moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
        Rank { tables, fsdp, moments }
    }

    /// Trains steps and returns their losses. `batch` returns the samples with some numbers, for a step.
    pub fn train<F: Family, O: Objective>(
        &mut self,
        step: &Step<'_, F, O>,
        steps: Range<u64>,
        batch: impl Fn(u64, Range<u64>) -> Batch,
    ) -> Vec<f64> {
        let mut train = |number: u64| {
            let plan = plan(step.recipe, number);
            let first = plan.first;
            let read = |places: Range<u64>| {
                step.noised(batch(number, first + places.start..first + places.end), plan.numbers(), places.start)
            };
            let requests = SaveStopRequests::default();
            step.run_on(&mut self.fsdp, &mut self.moments, number, &plan, requests, read).unwrap().loss
        };
        steps.map(&mut train).collect()
    }
}

/// Asserts that two runs have the same losses, up to rounding.
pub fn assert_same_losses(one: &[f64], other: &[f64]) {
    assert_eq!(one.len(), other.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5 * a.abs();
    assert!(one.iter().zip(other).all(near), "{one:?}\n{other:?}");
}

/// Returns a batch with random latents `[B, T, C, h, w]` and texts, which depend on the numbers of the samples.
pub fn random_batch(numbers: Range<u64>, latent: &[i64], text: &[i64]) -> Batch {
    let stack = |purpose, size: &[i64]| {
        let each: Vec<Tensor> =
            numbers.clone().map(|number| seeds::normal(5, purpose, number, size, Device::Cpu)).collect();
        Tensor::stack(&each, 0)
    };
    Batch { latent: stack(Purpose::Latent, latent), text: stack(Purpose::Image, text), conditions: Vec::new() }
}
