//! Compares each optimizer with steps recorded from its Python package, on several meshes.

mod recorded_network;

use super::*;
use crate::oracle;
use crate::parallelize::flat_part;
use c10d::Store;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{FsdpUnit, LrSchedule, Mesh, ParamInit, ParamRole, Split};
use serde_json::Value;
use sharding::flat::Layout;
use std::collections::HashMap;
use std::time::Duration;
use tch::{Device, Kind};

/// Recorded gradients and weights.
struct Recorded {
    config: Value,
    tensors: HashMap<String, Tensor>,
}

impl Recorded {
    /// Returns the files of an optimizer.
    fn files(optimizer: &str) -> Vec<Utf8PathBuf> {
        let wanted = |path: &Utf8Path| {
            path.extension() == Some("safetensors") && Recorded::read(path).config["optimizer"] == optimizer
        };
        oracle::entries("optim", &format!("{optimizer}*.safetensors"), wanted)
    }

    fn read(path: &Utf8Path) -> Self {
        let header = weights::Header::read(path).unwrap();
        Recorded {
            config: serde_json::from_str(&header.metadata["config"]).unwrap(),
            tensors: Tensor::read_safetensors(path).unwrap().into_iter().collect(),
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.config[key].as_f64()
    }

    /// Returns the optimizer settings of the recording.
    fn optimizer(&self, kind: OptimizerKind) -> Optimizer {
        let default = Optimizer::default();
        let or = |key: &str, default: f64| self.number(key).unwrap_or(default);
        let pair = |key: &str, at: usize, default: f64| self.config[key][at].as_f64().unwrap_or(default);
        let flag = |key: &str| self.config[key].as_bool().unwrap_or(false);
        Optimizer {
            kind,
            schedule: LrSchedule::Constant,
            lr: or("lr", 0.0),
            beta1: pair("betas", 0, default.beta1),
            beta2: pair("betas", 1, default.beta2),
            eps: or("eps", default.eps),
            weight_decay: or("weight_decay", 0.0),
            adafactor_decay: -or("beta2_decay", -0.8),
            adafactor_eps1: pair("eps", 0, default.adafactor_eps1),
            adafactor_eps2: pair("eps", 1, default.adafactor_eps2),
            adafactor_clip: or("d", 1.0),
            prodigy_d0: or("d0", default.prodigy_d0),
            prodigy_d_coef: or("d_coef", 1.0),
            prodigy_growth: or("growth_rate", 0.0),
            prodigy_beta3: or("beta3", 0.0),
            prodigy_bias_correction: flag("use_bias_correction"),
            prodigy_safeguard_warmup: flag("safeguard_warmup"),
            ..default
        }
    }

    /// Returns the tensors whose names start with a prefix as one unit. TP splits dimension 0, 1 or 2 of some tensors.
    fn specs(&self, prefix: &str) -> Vec<ParamSpec> {
        let mut names: Vec<&str> = self.tensors.keys().filter_map(|name| name.strip_prefix(prefix)).collect();
        names.sort_unstable();
        let spec = |name: &str| ParamSpec {
            name: name.into(),
            diffusers: None,
            shape: self.tensors[&format!("{prefix}{name}")].size().iter().map(|&size| size as usize).collect(),
            unit: FsdpUnit::Root,
            init: ParamInit::Zeros,
            role: ParamRole::Trained,
            group: ParamGroup::Rest,
            decay: true,
            split: match name {
                "matrix" => Split::Dim(0),
                "zeros" => Split::Dim(1),
                "cube" => Split::Dim(2),
                _ => Split::None,
            },
        };
        names.into_iter().map(spec).collect()
    }

    /// Takes the recorded steps on one rank. Returns the largest difference from the recorded weights, relative to how far the
    /// recorded weights moved, and the scalars of the state after every step.
    fn follow(&self, kind: OptimizerKind, groups: MeshGroups) -> (f64, Vec<BTreeMap<String, f64>>) {
        let tables = vec![self.specs("in.param.")];
        let place = |spec: &ParamSpec| {
            let layout = if spec.is_split() { TpLayout::Sharded } else { TpLayout::Replicated };
            let (_, shape) = spec.part(0, groups.tp.size());
            (shape.iter().map(|&size| size as i64).collect(), ParamKind::Trained, layout)
        };
        let layout = Layout::new(tables[0].iter().map(place), groups.shard.size());
        let fsdp = Fsdp::new(vec![layout], groups, Kind::Float);
        let part = |owned: &OwnedRange, whole: &Tensor| {
            let part = flat_part(&tables[0][owned.range.slot], whole, &fsdp.groups().tp);
            part.narrow(0, owned.range.start, owned.range.len)
        };
        let tensor =
            |which: &str, owned: &OwnedRange| &self.tensors[&format!("{which}.{}", tables[0][owned.range.slot].name)];
        for owned in fsdp.owned() {
            tch::no_grad(|| owned.values.shallow_clone().copy_(&part(&owned, tensor("in.param", &owned))));
        }
        let o = self.optimizer(kind);
        let mut state = OptimizerState::new(&fsdp, &tables, &o).unwrap();
        let kept: Vec<u64> = serde_json::from_value(self.config["recorded"].clone()).unwrap();
        let (mut off, mut moved, mut numbers) = (0f64, 0f64, Vec::new());
        for step in 0..*kept.last().unwrap() {
            for owned in fsdp.owned() {
                let grad = part(&owned, &tensor("in.grad", &owned).get(step as i64));
                let shard = fsdp.shards().next().unwrap();
                let place = shard.grad.narrow(0, owned.range.shard_start, owned.range.len);
                // Twice the gradient, because `grad_scale` below is 0.5.
                tch::no_grad(|| place.shallow_clone().copy_(&(grad * 2.0)));
            }
            state.step(&fsdp, &o, LearningRates::at(&o, step, 1000), 0.5).unwrap();
            numbers.push(state.numbers());
            let Some(row) = kept.iter().position(|kept| *kept == step + 1) else { continue };
            for owned in fsdp.owned() {
                let theirs = part(&owned, &tensor("out.param", &owned).get(row as i64));
                let start = part(&owned, tensor("in.param", &owned));
                off = off.max((&owned.values - &theirs).abs().max().double_value(&[]));
                moved = moved.max((theirs - start).abs().max().double_value(&[]));
            }
        }
        (off / moved, numbers)
    }
}

/// One rank, shards, TP, and both.
const MESHES: [Mesh; 4] = [
    Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 },
    Mesh { dp_replicate: 1, dp_shard: 3, tp: 1 },
    Mesh { dp_replicate: 1, dp_shard: 1, tp: 2 },
    Mesh { dp_replicate: 1, dp_shard: 2, tp: 2 },
];

/// Calls `go` on every rank of a mesh.
fn on<T: Send>(mesh: Mesh, go: impl Fn(MeshGroups) -> T + Sync) -> Vec<T> {
    if mesh.world() == 1 {
        return vec![go(MeshGroups::alone())];
    }
    let (folder, limit) = (tempfile::tempdir().unwrap(), Duration::from_secs(120));
    let rank = |rank: usize| {
        let store = Store::file(&folder.path().join("store"), mesh.world(), limit).unwrap();
        go(MeshGroups::join(&store, mesh, rank, Device::Cpu, limit, Some("lo")).unwrap())
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..mesh.world()).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn oracle_adafactor() {
    for path in Recorded::files("adafactor") {
        for mesh in MESHES {
            for (off, _) in on(mesh, |groups| Recorded::read(&path).follow(OptimizerKind::Adafactor, groups)) {
                assert!(off < 1e-4, "{} on {mesh}: off by {off:e}", path);
            }
        }
    }
}

#[test]
fn oracle_prodigy() {
    for path in Recorded::files("prodigy") {
        for mesh in MESHES {
            for (off, numbers) in on(mesh, |groups| Recorded::read(&path).follow(OptimizerKind::Prodigy, groups)) {
                assert!(off < 1e-3, "{} on {mesh}: off by {off:e}", path);
                let theirs = Vec::<f64>::try_from(&Recorded::read(&path).tensors["out.d"]).unwrap();
                for (step, (ours, theirs)) in numbers.iter().zip(theirs).enumerate() {
                    let off = (ours["d"] / theirs - 1.0).abs();
                    assert!(off < 1e-4, "{} on {mesh}: d of step {step} is {}, not {theirs}", path, ours["d"]);
                }
            }
        }
    }
}

#[test]
fn oracle_adamw8bit() {
    for path in Recorded::files("adamw8bit") {
        for mesh in MESHES {
            for (off, _) in on(mesh, |groups| Recorded::read(&path).follow(OptimizerKind::Adamw8bit, groups)) {
                // If a shard ends within a block, each part of the block has its own scale, so its codes round differently.
                let most = if mesh.dp_shard == 1 { 1e-4 } else { 0.05 };
                assert!(off < most, "{} on {mesh}: off by {off:e}", path);
            }
        }
    }
}

#[test]
fn a_group_sets_the_rate_and_the_weight_decay_of_the_parameters_that_it_matches() {
    let Some(path) = Recorded::files("adafactor").into_iter().next() else { return };
    let recorded = Recorded::read(&path);
    let group = |pattern: &str, lr, weight_decay| recipe::OptimizerGroup {
        pattern: recipe::Pattern::new(pattern).unwrap(),
        lr,
        weight_decay,
    };
    let groups = vec![group("^matrix$", Some(0.5), None), group("matrix|vector", None, Some(0.25))];
    let o = Optimizer { lr: 0.1, weight_decay: 0.125, schedule: LrSchedule::Constant, groups, ..Optimizer::default() };
    let rates = LearningRates::at(&o, 0, 10);
    let found = recorded.specs("in.param.").into_iter().map(|spec| {
        let rate = Rate { group: spec.group, peak: o.peak_of(&spec.name) };
        (rates.of(&o, rate), o.weight_decay_of(&spec))
    });
    // In the order cube, matrix, vector.
    assert_eq!(found.collect::<Vec<_>>(), [(0.1, 0.125), (0.5, 0.125), (0.1, 0.25)]);
}
