//! Twenty optimizer steps held to the reference's own, on every mesh.
//!
//! Reads `ttt/train_*.safetensors` below `tests/fixtures/oracle`, or below the folder in `VIDTUI_ORACLE`, and takes all
//! sizes and settings from the files. Ranks are threads here, each with groups of its own over gloo.

use crate::init;
use crate::optim::Moments;
use crate::parallelize::{flat_part, layouts, network, unit_tables};
use crate::step::{Outcome, Step};
use crate::wishes::Wishes;
use c10d::Store;
use camino::{Utf8Path, Utf8PathBuf};
use dist::fsdp::Fsdp;
use dist::mesh::MeshGroups;
use dit::diffusion::Schedule;
use dit::embed::Inputs;
use recipe::{
    CheckpointPolicy, Data, Dtype, Layer, Log, LrAlignment, Mesh, Model, Optimizer, Positions, Recipe, Remat,
    RematMode, RunLimits, Train, Trainable,
};
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use weights::Header;

/// A recorded run.
struct Trace {
    header: Header,
}

impl Trace {
    fn open(path: &Utf8Path) -> Self {
        Trace { header: Header::read(path).unwrap() }
    }

    fn tensor(&self, name: &str) -> Tensor {
        let info = self.header.tensor(name).unwrap();
        let shape: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
        Tensor::from_data_size(&self.header.read_tensor(name).unwrap(), &shape, crate::data::kind(info.dtype))
    }

    fn values(&self, name: &str) -> Vec<f64> {
        Vec::try_from(self.tensor(name).to_kind(Kind::Double).flatten(0, -1)).unwrap()
    }

    fn about<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, key: &str) -> T {
        self.header.metadata[key].parse().unwrap()
    }

    /// The recipe that was run, on a mesh of ours.
    fn recipe(&self, mesh: Mesh, grad_accum: usize, remat: Remat) -> Recipe {
        let config: serde_json::Value = serde_json::from_str(&self.header.metadata["config"]).unwrap();
        let size = |key: &str| config[key].as_u64().unwrap() as usize;
        let batch = self.header.tensor("in.timestep").unwrap().shape[1];
        let betas: String = self.about("betas");
        let (beta1, beta2) = betas.split_once(',').unwrap();
        Recipe {
            name: "trace".into(),
            trainer: recipe::Trainer::Embedded,
            command: recipe::Command::default(),
            env: recipe::Env::default(),
            model: Model {
                positions: Positions::Rope,
                num_layers: size("num_layers"),
                num_heads: size("num_heads"),
                head_dim: size("model_dim") / size("num_heads"),
                time_embed_dim: size("time_embed_dim"),
                text_dim: size("text_dim"),
                text_len: self.about("text_len"),
                segments: self.about("segments"),
                in_channels: size("in_channels"),
                out_channels: size("out_channels"),
                patch_size: size("patch_size"),
                patch_size_t: 1,
                ofs_embedding: false,
                latent_frames: self.about("latent_frames"),
                latent_height: size("latent_rows") * size("patch_size"),
                latent_width: size("latent_cols") * size("patch_size"),
                layer: if config["layer"] == "ttt_mlp" { Layer::TttMlp } else { Layer::TttLinear },
                ttt_mini_batch: size("mini_batch_size"),
                ttt_base_lr: config["ttt_base_lr"].as_f64().unwrap(),
                ttt_lr_alignment: LrAlignment::Aligned,
                norm_eps: 1e-6,
                qk_norm_eps: 1e-6,
                latent_scale: 1.0,
                spatial_interpolation: 1.0,
                temporal_interpolation: 1.0,
            },
            data: Data { index: Utf8PathBuf::new(), null_text: Utf8PathBuf::new() },
            train: Train {
                steps: self.about("steps"),
                global_batch: batch,
                grad_accum,
                seed: 1,
                trainable: if config["adapter_method"] == "qkvo" { Trainable::Qkvo } else { Trainable::All },
                text_dropout: 0.0,
                dtype: Dtype::Float32,
                device: recipe::Device::Cpu,
                threads: 1,
                max_bad_steps: 1,
            },
            optimizer: Optimizer {
                lr: self.about("lr"),
                lr_ttt: self.about("lr_ttt"),
                lr_end: self.about("lr_end"),
                schedule: recipe::Schedule::Linear,
                schedule_ttt: recipe::Schedule::Cosine,
                warmup_steps: self.about("warmup"),
                beta1: beta1.parse().unwrap(),
                beta2: beta2.parse().unwrap(),
                eps: self.about("eps"),
                weight_decay: self.about("weight_decay"),
                // The reference groups parameters by what their names contain, and decays gates.
                decay_gates: true,
                clip_norm: self.about("clip"),
            },
            mesh,
            remat,
            checkpoint: CheckpointPolicy { interval: 0, keep_last: 0, keep_every: 0, max_failures: 0 },
            log: Log { interval: 1, peak_tflops: 0.0, spike: 0.0 },
            run: RunLimits { time_limit: "none".parse().unwrap() },
        }
    }
}

/// Runs one rank through the whole trace.
fn rank(trace: &Trace, recipe: &Recipe, groups: MeshGroups) -> (Vec<Outcome>, f64) {
    let tables = unit_tables(recipe);
    let mut fsdp = Fsdp::new(layouts(recipe, &tables), groups, Kind::Float);
    init::randomize(&fsdp, &tables, &recipe.model, 1);
    let pieces = |fsdp: &Fsdp, prefix: &str| {
        let mut pieces = Vec::new();
        for owned in fsdp.owned() {
            let spec = &tables[owned.unit][owned.run.slot];
            let name = spec.ttt_video().unwrap();
            let whole = trace
                .tensor(&format!("param.{prefix}.dit.{name}"))
                .reshape(spec.shape.iter().map(|&d| d as i64).collect::<Vec<_>>().as_slice());
            let part = flat_part(spec, &whole, &fsdp.groups().tp);
            pieces.push((owned.values, part.narrow(0, owned.run.start, owned.run.len)));
        }
        pieces
    };
    for (mut values, recorded) in pieces(&fsdp, "init") {
        tch::no_grad(|| values.copy_(&recorded));
    }
    let mut moments = Moments::new(&fsdp, &tables, &recipe.optimizer);
    let network = network(recipe);
    let schedule = Schedule::default();
    let step = Step { recipe, network: &network, schedule: &schedule, seed: 0 };
    let [latent, text, noise, timestep] =
        ["latent", "text", "noise", "timestep"].map(|n| trace.tensor(&format!("in.{n}")));
    let mut outcomes = Vec::new();
    for number in 0..recipe.train.steps {
        let outcome = step.run_on(&mut fsdp, &mut moments, number, Wishes::default(), |places| {
            let part =
                |t: &Tensor| t.get(number as i64).narrow(0, places.start as i64, (places.end - places.start) as i64);
            let noised = schedule.noise(&part(&latent), &part(&noise), &part(&timestep));
            let inputs = Inputs { latent: noised.latent, text: part(&text).flatten(1, 2), timestep: part(&timestep) };
            Ok((inputs, noised.velocity))
        });
        outcomes.push(outcome.unwrap());
    }
    // How far the weights are from the recorded last ones.
    let (mut off, mut norm) = (0.0, 0.0);
    for (values, recorded) in pieces(&fsdp, "final") {
        off += (values - &recorded).square().sum(Kind::Double).double_value(&[]);
        norm += recorded.square().sum(Kind::Double).double_value(&[]);
    }
    (outcomes, (off / norm).sqrt())
}

/// Runs all ranks of a mesh as threads and returns what rank 0 saw, and the worst distance of final weights.
fn run(trace: &Trace, recipe: &Recipe) -> (Vec<Outcome>, f64) {
    let world = recipe.mesh.world();
    if world == 1 {
        return rank(trace, recipe, MeshGroups::alone());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().join("store")).unwrap();
    let mut all: Vec<(Vec<Outcome>, f64)> = std::thread::scope(|scope| {
        let start = |number: usize| {
            let path = &path;
            scope.spawn(move || {
                let limit = Duration::from_secs(120);
                let store = Store::file(path.as_std_path(), world, limit).unwrap();
                let groups = MeshGroups::join(&store, recipe.mesh, number, Device::Cpu, limit, Some("lo")).unwrap();
                rank(trace, recipe, groups)
            })
        };
        let ranks: Vec<_> = (0..world).map(start).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let worst = all.iter().map(|r| r.1).fold(0.0, f64::max);
    (all.swap_remove(0).0, worst)
}

fn traces() -> Vec<Utf8PathBuf> {
    let root = std::env::var("VIDTUI_ORACLE")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle").into());
    let folder = Utf8PathBuf::from(root).join("ttt");
    let found: Vec<_> = folder
        .read_dir_utf8()
        .map(|entries| entries.filter_map(Result::ok).map(|e| e.into_path()).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
        .filter(|p| p.file_name().is_some_and(|name| name.starts_with("train_")))
        .collect();
    if found.is_empty() {
        eprintln!("SKIPPED: no recorded runs below {folder}");
    }
    found
}

/// Compares a run with the trace: losses, gradient norms and learning rates of every step, and the last weights.
fn check(path: &Utf8Path, mesh: Mesh, grad_accum: usize, remat: Remat) {
    let trace = Trace::open(path);
    let recipe = trace.recipe(mesh, grad_accum, remat.clone());
    let what = format!("{path} on {mesh:?}, accumulation {grad_accum}, {remat:?}");
    let (outcomes, distance) = run(&trace, &recipe);
    let (losses, norms) = (trace.values("out.loss"), trace.values("out.grad_norm_before_clip"));
    let rates = trace.values("out.lr_used_per_step");
    let last = outcomes.len() - 1;
    let mut worst: f64 = 0.0;
    for (i, outcome) in outcomes.iter().enumerate() {
        // The bound widens from the first step to the last: rounding grows through the optimizer.
        let bound = 1e-5 + (1e-3 - 1e-5) * i as f64 / last as f64;
        let compare = |name: &str, got: f64, want: f64| {
            let error = (got - want).abs() / want.abs();
            assert!(error <= bound, "{what}: {name} of step {i} is {got}, recorded {want} (off by {error:e})");
            error
        };
        worst = worst.max(compare("loss", outcome.loss, losses[i]));
        compare("gradient norm", outcome.grad_norm, norms[i]);
        // Groups in the file: TTT without and with decay, the rest without and with decay.
        let recorded = &rates[4 * i..4 * i + 4];
        for (got, want) in [
            (outcome.lr.ttt, recorded[0]),
            (outcome.lr.ttt, recorded[1]),
            (outcome.lr.rest, recorded[2]),
            (outcome.lr.rest, recorded[3]),
        ] {
            assert!((got - want).abs() <= 1e-12, "{what}: learning rate of step {i} is {got}, recorded {want}");
        }
    }
    println!("{what}: worst loss {worst:e}, final weights {distance:e}");
    assert!(distance < 1e-3, "{what}: final weights are off by {distance:e}");
}

const REMAT: Remat =
    Remat { mode: RematMode::Block, group: 1, keep_attention: true, scan_group: 4, shard_inputs: false };

#[test]
fn oracle_one_rank_follows_the_reference_for_twenty_steps() {
    for path in traces() {
        check(&path, Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 }, 1, REMAT);
    }
}

#[test]
fn oracle_every_data_parallel_mesh_follows_the_reference() {
    for path in traces() {
        for (dp_replicate, dp_shard) in [(1, 2), (1, 4), (2, 2)] {
            check(&path, Mesh { dp_replicate, dp_shard, tp: 1 }, 1, REMAT);
        }
    }
}

#[test]
fn oracle_every_mesh_with_tp_follows_the_reference() {
    for path in traces() {
        let least = Remat { group: 2, keep_attention: false, scan_group: 1, shard_inputs: true, ..REMAT };
        let most = Remat { mode: RematMode::None, ..REMAT };
        for (dp_shard, remat) in [(1, REMAT), (1, most), (2, REMAT), (2, least)] {
            check(&path, Mesh { dp_replicate: 1, dp_shard, tp: 2 }, 1, remat);
        }
    }
}

#[test]
fn oracle_accumulation_and_full_recomputation_follow_the_reference() {
    for path in traces() {
        let mesh = Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 };
        check(&path, mesh, 2, REMAT);
        check(&path, mesh, 1, Remat { keep_attention: false, scan_group: 1, ..REMAT });
        check(&path, mesh, 1, Remat { mode: RematMode::None, ..REMAT });
    }
}
