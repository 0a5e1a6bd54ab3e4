//! Compares optimizer steps with recorded steps of the reference, on every mesh, with and without recomputed blocks.
//!
//! Reads `ttt/train_*.safetensors` of the oracle, and takes all sizes and settings from the files. The ranks of a mesh are
//! child processes of this test program, over gloo, with their task in an environment variable.

use crate::families::cogvideox;
use crate::init;
use crate::optim::OptimizerState;
use crate::oracle;
use crate::oracle_device;
use crate::parallelize::{flat_part, layouts, unit_tables};
use crate::requests::SaveStopRequests;
use crate::step::{Outcome, Step};
use crate::tensor_file::write;
use crate::tests::support::plan;
use c10d::Store;
use camino::{Utf8Path, Utf8PathBuf};
use dit::diffusion::{NoiseSchedule, Target};
use dit::family::Inputs;
use dit::objective::VPrediction;
use recipe::{
    ComputeDtype, Data, Layer, Log, LrAlignment, Mesh, Model, Optimizer, Positions, Recipe, Remat, RematMode, Train,
    Trainable,
};
use serde::{Deserialize, Serialize};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::process::{Child, Command};
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use weights::Header;

/// The environment variable of a rank's process: its number, and the folder with its runs.
const RANK: &str = "VIDTUI_TRACES_RANK";

/// The text that a rank prints after it compared a run, followed by the error.
const COMPARED: &str = "worst loss";

/// The timeout of ranks, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The mesh of one rank.
const ALONE: Mesh = Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 };

const BLOCK: Remat = Remat { mode: RematMode::Block, group: 1, keep_attention: true, keep_scan: true, scan_group: 4 };
const NONE: Remat = Remat { mode: RematMode::None, ..BLOCK };
const LEAST: Remat = Remat { group: 2, keep_attention: false, keep_scan: false, scan_group: 1, ..BLOCK };

/// Returns a recipe with defaults for the fields that a recorded run does not set.
fn any_recipe() -> Recipe {
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    recipe::load(minimal.into(), &[]).unwrap().recipe
}

/// A recorded run, and the settings with which it is repeated.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TraceRun {
    path: Utf8PathBuf,
    mesh: Mesh,
    grad_accum: usize,
    remat: Remat,
}

impl std::fmt::Display for TraceRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TraceRun { path, mesh, grad_accum, remat } = self;
        write!(f, "{path} on {mesh}, accumulation {grad_accum}, {remat:?}")
    }
}

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
        let value = self.header.metadata.get(key).unwrap_or_else(|| panic!("{}: no {key}", self.header.path));
        value.parse().unwrap_or_else(|e| panic!("{}: {key} is {value}: {e:?}", self.header.path))
    }

    /// Returns the numbers of recorded steps and of samples in a step. The schedule may have more steps.
    fn steps_and_batch(&self) -> (usize, usize) {
        let shape = &self.header.tensor("in.timestep").unwrap().shape;
        (shape[0], shape[1])
    }

    /// Returns, for each column of the recorded learning rates, whether it belongs to TTT layers.
    fn groups(&self) -> Vec<bool> {
        let names: String = self.about("groups");
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        names.map(|name| name.contains("ttt")).collect()
    }

    /// Returns meshes, each with its gradient accumulation. For four samples: 1 rank, 2, 4, 2 × 2, TP 2, 2 × TP 2, and
    /// 1 rank with two micro-batches.
    fn meshes(&self) -> [(Mesh, usize); 7] {
        let least = |n: usize| (2..=n).find(|d| n.is_multiple_of(*d)).unwrap_or(2);
        let model = self.recipe(ALONE, 1, BLOCK).model;
        let (dp, tp) = (least(self.steps_and_batch().1), least(model.num_heads));
        let mesh = |dp_replicate, dp_shard, tp| Mesh { dp_replicate, dp_shard, tp };
        [
            (ALONE, 1),
            (mesh(1, dp, 1), 1),
            (mesh(1, dp * dp, 1), 1),
            (mesh(dp, dp, 1), 1),
            (mesh(1, 1, tp), 1),
            (mesh(1, dp, tp), 1),
            (ALONE, dp),
        ]
    }

    /// Returns why the run is invalid on a mesh. Returns `None` if it is valid, or invalid on one rank for the same
    /// reason.
    fn unfit(&self, mesh: Mesh, grad_accum: usize) -> Option<String> {
        let why = |mesh, grad_accum| self.recipe(mesh, grad_accum, BLOCK).check().err().map(|error| error.why);
        let here = why(mesh, grad_accum);
        if here == why(ALONE, 1) { None } else { here }
    }

    /// Returns the recorded recipe on another mesh.
    fn recipe(&self, mesh: Mesh, grad_accum: usize, remat: Remat) -> Recipe {
        let config: serde_json::Value = serde_json::from_str(&self.about::<String>("config")).unwrap();
        let size = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{}: {key}", self.header.path)) as usize;
        let betas: String = self.about("betas");
        let (beta1, beta2) = betas.split_once(',').unwrap();
        let any = any_recipe();
        Recipe {
            name: "trace".into(),
            model: Model {
                num_layers: size("num_layers"),
                num_heads: size("num_heads"),
                head_dim: size("model_dim") / size("num_heads"),
                text_dim: size("text_dim"),
                text_len: self.about("text_len"),
                in_channels: size("in_channels"),
                out_channels: size("out_channels"),
                patch_size: size("patch_size"),
                patch_size_t: 1,
                latent_frames: self.about("latent_frames"),
                latent_height: size("latent_rows") * size("patch_size"),
                latent_width: size("latent_cols") * size("patch_size"),
                latent_scale: 1.0,
                ..any.model
            }
            .with_cogvideox(|keys| {
                keys.positions = Positions::Rope;
                keys.time_embed_dim = size("time_embed_dim");
                keys.segments = self.about("segments");
                keys.ofs_embedding = false;
                keys.layer = if config["layer"] == "ttt_mlp" { Layer::TttMlp } else { Layer::TttLinear };
                keys.ttt_mini_batch = size("mini_batch_size");
                keys.ttt_base_lr = config["ttt_base_lr"].as_f64().unwrap();
                keys.ttt_lr_alignment = LrAlignment::Aligned;
                keys.norm_eps = 1e-6;
                keys.qk_norm_eps = 1e-6;
                keys.spatial_interpolation = 1.0;
                keys.temporal_interpolation = 1.0;
            }),
            data: Data { index: "none.jsonl".into(), ..Data::default() },
            train: Train {
                length: recipe::Length::Steps(self.about("steps")),
                global_batch: self.steps_and_batch().1,
                grad_accum,
                seed: 1,
                trainable: if config["adapter_method"] == "qkvo" { Trainable::Qkvo } else { Trainable::All },
                text_dropout: 0.0,
                dtype: ComputeDtype::Float32,
                device: recipe::Device::Cpu,
                threads: 1,
                max_bad_steps: 1,
                ttt_scan: recipe::TttScan::Operators,
                fused: recipe::Fused::Operators,
                drift_check: 0,
                ..any.train
            },
            optimizer: Optimizer {
                lr: self.about("lr"),
                lr_ttt: self.about("lr_ttt"),
                lr_end: self.about("lr_end"),
                schedule: recipe::LrSchedule::Linear,
                schedule_ttt: recipe::LrSchedule::Cosine,
                warmup_steps: self.about("warmup"),
                beta1: beta1.trim().parse().unwrap(),
                beta2: beta2.trim().parse().unwrap(),
                eps: self.about("eps"),
                weight_decay: self.about("weight_decay"),
                // The reference groups parameters by substrings of their names, and applies weight decay to gates.
                decay_gates: true,
                clip_norm: self.about("clip"),
                ..Optimizer::default()
            },
            mesh,
            remat,
            log: Log { spike: 0.0, ..any.log },
            ..any
        }
    }
}

/// Runs one rank through the whole trace; returns the outcome of each step, and the distance of the final weights from the recorded ones.
fn rank(trace: &Trace, recipe: &Recipe, groups: MeshGroups) -> (Vec<Outcome>, Option<f64>) {
    let tables = unit_tables(recipe);
    let mut fsdp = Fsdp::new(layouts(recipe, &tables), groups, Kind::Float);
    let device = fsdp.groups().device;
    let network = cogvideox(recipe).on(device);
    init::randomize(&fsdp, &tables, network.family(), 1).unwrap();
    let pieces = |fsdp: &Fsdp, prefix: &str| {
        let mut pieces = Vec::new();
        for owned in fsdp.owned() {
            let spec = &tables[owned.unit][owned.range.slot];
            let name = spec.ttt_video().unwrap();
            let whole = trace
                .tensor(&format!("param.{prefix}.dit.{name}"))
                .reshape(spec.shape.iter().map(|&d| d as i64).collect::<Vec<_>>().as_slice());
            let part = flat_part(spec, &whole, &fsdp.groups().tp);
            pieces.push((owned.values, part.narrow(0, owned.range.start, owned.range.len)));
        }
        pieces
    };
    for (mut values, recorded) in pieces(&fsdp, "init") {
        tch::no_grad(|| values.copy_(&recorded));
    }
    let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
    let objective = VPrediction { schedule: NoiseSchedule::default(), loss: recipe.loss.clone() };
    let step = Step { recipe, network: &network, objective: &objective, seed: 0 };
    let [latent, text, noise, timestep] =
        ["latent", "text", "noise", "timestep"].map(|n| trace.tensor(&format!("in.{n}")));
    let mut outcomes = Vec::new();
    for number in 0..trace.steps_and_batch().0 as u64 {
        let outcome = step.run_on(
            &mut fsdp,
            &mut moments,
            number,
            &plan(recipe, number),
            SaveStopRequests::default(),
            |places| {
                let part = |t: &Tensor| {
                    t.get(number as i64).narrow(0, places.start as i64, (places.end - places.start) as i64)
                };
                let noised = objective.schedule.noise(&part(&latent), &part(&noise), &part(&timestep));
                let inputs = Inputs {
                    latent: noised.latent.shallow_clone(),
                    text: part(&text).flatten(1, 2),
                    timestep: part(&timestep),
                    conditions: Vec::new(),
                };
                let there = |tensor: &Tensor| tensor.to_device(device);
                Ok((inputs.map(there), Target::from(noised).map(there)))
            },
        );
        outcomes.push(outcome.unwrap());
    }
    if !trace.header.tensors.keys().any(|name| name.starts_with("param.final.")) {
        return (outcomes, None);
    }
    let (mut off, mut norm) = (0.0, 0.0);
    for (values, recorded) in pieces(&fsdp, "final") {
        off += (values.to_device(Device::Cpu) - &recorded).square().sum(Kind::Double).double_value(&[]);
        norm += recorded.square().sum(Kind::Double).double_value(&[]);
    }
    (outcomes, Some((off / norm).sqrt()))
}

/// Compares a rank's results with the trace: losses, gradient norms and learning rates of every step, and the final weights.
fn compare(trace: &Trace, what: &TraceRun, outcomes: &[Outcome], distance: Option<f64>) {
    let (losses, norms) = (trace.values("out.loss"), trace.values("out.grad_norm_before_clip"));
    let (rates, groups) = (trace.values("out.lr_used_per_step"), trace.groups());
    assert_eq!(rates.len(), groups.len() * outcomes.len(), "{what}: a learning rate for each group and step");
    let last = (trace.about::<usize>("steps") - 1).max(1);
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
        for (is_ttt, want) in groups.iter().zip(&rates[groups.len() * i..]) {
            let got = if *is_ttt { outcome.lr.ttt } else { outcome.lr.rest };
            // The precision of fp32.
            let near = (got - want).abs() <= 1e-6 * want.abs();
            assert!(near, "{what}: learning rate of step {i} is {got}, recorded {want}");
        }
    }
    match distance {
        Some(distance) => {
            println!("{what}: {COMPARED} {worst:e}, final weights {distance:e}");
            assert!(distance < 1e-3, "{what}: final weights are off by {distance:e}");
        }
        None => {
            println!("{what}: {COMPARED} {worst:e}");
            println!("not compared: {} has no param.final.*", what.path);
        }
    }
}

/// Runs one rank through a trace, and compares.
fn run(what: &TraceRun, groups: MeshGroups) {
    let trace = Trace::open(&what.path);
    let recipe = trace.recipe(what.mesh, what.grad_accum, what.remat.clone());
    let (outcomes, distance) = rank(&trace, &recipe, groups);
    compare(&trace, what, &outcomes, distance);
}

/// A child process that is killed when the test ends.
struct Process {
    child: Child,
    log: Utf8PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a process for each rank of the largest mesh. Each repeats and compares the runs that have its rank, one after the other: a
/// process for each rank of each mesh would load libtorch several times as often.
fn run_in_processes(runs: &[TraceRun]) {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    std::fs::write(folder.join("runs.json"), serde_json::to_string(runs).unwrap()).unwrap();
    let start = |rank: usize| {
        let log = folder.join(format!("rank-{rank}.log"));
        let file = File::create(&log).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "tests::recorded_training::a_rank_of_a_mesh"])
            .env(RANK, format!("{rank} {folder}"))
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Process { child, log }
    };
    let world = runs.iter().map(|what| what.mesh.world()).max().unwrap();
    let mut ranks: Vec<Process> = (0..world).map(start).collect();
    // If one rank fails, the others lose contact and exit too.
    let done: Vec<bool> = ranks.iter_mut().map(|rank| rank.child.wait().unwrap().success()).collect();
    let log = |rank: &Process| std::fs::read_to_string(&rank.log).unwrap();
    println!("{}", log(&ranks[0]));
    let failed = ranks.iter().zip(done).filter(|(_, done)| !done).map(|(rank, _)| log(rank));
    let failed = failed.collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{failed}");
    // A test program also exits with success if no test has the name.
    for (number, rank) in ranks.iter().enumerate() {
        let printed = log(rank);
        for what in runs.iter().filter(|what| number < what.mesh.world()) {
            assert!(printed.contains(&format!("{what}: {COMPARED}")), "{what} was not compared: {printed}");
        }
    }
}

#[test]
fn a_rank_of_a_mesh() {
    let Ok(task) = std::env::var(RANK) else { return };
    let (rank, folder) = task.split_once(' ').unwrap();
    let folder = Utf8Path::new(folder);
    tch::set_num_threads(1);
    let runs: Vec<TraceRun> = serde_json::from_slice(&std::fs::read(folder.join("runs.json")).unwrap()).unwrap();
    let rank: usize = rank.parse().unwrap();
    for (number, what) in runs.iter().enumerate().filter(|(_, what)| rank < what.mesh.world()) {
        if what.mesh == ALONE {
            run(what, MeshGroups::alone_on(oracle_device::device()));
            continue;
        }
        let store = folder.join(format!("store-{number}"));
        let store = Store::file(store.as_std_path(), what.mesh.world(), LIMIT).unwrap();
        run(what, MeshGroups::join(&store, what.mesh, rank, Device::Cpu, LIMIT, Some("lo")).unwrap());
    }
}

/// Repeats each trace on the meshes that `wanted` selects. Recomputing changes no bit on one mesh, so meshes of several ranks share the
/// two settings: each has both, on different traces.
fn follow_on_meshes(wanted: impl Fn(&Mesh) -> bool) {
    let settings = [&[BLOCK][..], &[NONE]].into_iter().cycle();
    follow(traces().iter().zip(settings), wanted);
}

/// Repeats traces, each with its remat settings, on the meshes that `wanted` selects. Prints the invalid combinations, and returns the
/// number of runs.
fn follow<'a>(
    traces: impl IntoIterator<Item = (&'a Utf8PathBuf, &'a [Remat])>,
    wanted: impl Fn(&Mesh) -> bool,
) -> usize {
    let mut runs = Vec::new();
    for (path, remats) in traces {
        let trace = Trace::open(path);
        for (mesh, grad_accum) in trace.meshes().into_iter().filter(|(mesh, _)| wanted(mesh)) {
            if let Some(why) = trace.unfit(mesh, grad_accum) {
                println!("not compared: {path} on {mesh}, accumulation {grad_accum}: {why}");
                continue;
            }
            let again = |remat: &Remat| TraceRun { path: path.clone(), mesh, grad_accum, remat: remat.clone() };
            runs.extend(remats.iter().map(again));
        }
    }
    // The largest meshes come first, so that no rank waits for the runs of others.
    runs.sort_by_key(|what| std::cmp::Reverse(what.mesh.world()));
    if !runs.is_empty() {
        run_in_processes(&runs);
    }
    runs.len()
}

fn traces() -> Vec<Utf8PathBuf> {
    oracle::ttt_files("train_")
}

#[test]
fn oracle_one_rank_matches_every_step_of_the_reference() {
    follow(traces().iter().map(|path| (path, &[BLOCK, NONE][..])), |mesh| *mesh == ALONE);
}

#[test]
fn oracle_every_data_parallel_mesh_matches_the_reference() {
    follow_on_meshes(|mesh| *mesh != ALONE && mesh.tp == 1);
}

#[test]
fn oracle_every_mesh_with_tp_matches_the_reference() {
    follow_on_meshes(|mesh| mesh.tp > 1);
}

/// Runs a trace on one rank without recomputation and writes it like a recorded one. It has the given numbers of blocks
/// (the file's blocks, repeated), samples and steps. Its parameter groups are in another order, and it has no final
/// weights.
fn record(from: &str, to: &Utf8Path, blocks: usize, samples: i64, steps: i64) {
    let folder = Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/oracle/ttt"));
    let trace = Trace::open(&folder.join(from));
    let mut config: serde_json::Value = serde_json::from_str(&trace.about::<String>("config")).unwrap();
    let recorded = config["num_layers"].as_u64().unwrap() as usize;
    config["num_layers"] = blocks.into();
    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    for name in trace.header.tensors.keys() {
        let whole = || trace.tensor(name);
        if name.starts_with("in.") {
            tensors.insert(name.clone(), whole().narrow(0, 0, steps).narrow(1, 0, samples));
        } else if let Some(rest) = name.strip_prefix("param.init.dit.layers.") {
            let (block, rest) = rest.split_once('.').unwrap();
            for again in (block.parse().unwrap()..blocks).step_by(recorded) {
                tensors.insert(format!("param.init.dit.layers.{again}.{rest}"), whole());
            }
        } else if name.starts_with("param.init.") {
            tensors.insert(name.clone(), whole());
        }
    }
    let mut about: HashMap<String, String> = trace.header.metadata.clone().into_iter().collect();
    about.insert("config".into(), config.to_string());
    about.insert("steps".into(), steps.to_string());
    about.insert("groups".into(), r#"["other_wd", "ttt_wd", "other_no_wd", "ttt_no_wd"]"#.into());
    write(to, &tensors, about.clone());
    let trace = Trace::open(to);
    let (outcomes, _) = rank(&trace, &trace.recipe(ALONE, 1, NONE), MeshGroups::alone());
    let column = |of: fn(&Outcome) -> f64| Tensor::from_slice(&outcomes.iter().map(of).collect::<Vec<_>>());
    let (rest, ttt) = (column(|o| o.lr.rest), column(|o| o.lr.ttt));
    tensors.insert("out.loss".into(), column(|o| o.loss));
    tensors.insert("out.grad_norm_before_clip".into(), column(|o| o.grad_norm));
    tensors.insert("out.lr_used_per_step".into(), Tensor::stack(&[&rest, &ttt, &rest, &ttt], 1));
    write(to, &tensors, about);
}

#[test]
fn recomputing_groups_of_blocks_gives_the_steps_of_a_run_without_recomputation() {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap().join("train_four_blocks.safetensors");
    // Four blocks in groups of two: the parameters of the first group are freed before its backward pass.
    record("train_ttt_mlp_1seg_sft.safetensors", &path, 4, 2, 2);
    // Two samples are valid on all meshes except those of four data ranks.
    let runs = follow([(&path, &[LEAST][..])], |_| true);
    assert_eq!(runs, 5);
}

#[test]
fn a_trace_of_one_step_and_three_samples_is_compared_on_meshes_of_three() {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap().join("train_one_step.safetensors");
    record("train_ttt_linear_3seg_sft.safetensors", &path, 2, 3, 1);
    assert_eq!(follow([(&path, &[BLOCK][..])], |mesh| mesh.tp == 1), 3);
}
