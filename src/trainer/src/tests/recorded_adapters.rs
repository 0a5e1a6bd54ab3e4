//! Compares LoRA adapters with recordings of PEFT on diffusers' networks: outputs, every gradient, and 20 optimizer steps, on
//! several meshes.
//!
//! Reads `lora/*/*/{forward_backward,train}.safetensors` of the oracle. The ranks of a mesh are threads, over gloo.

use crate::checkpoint::{self, Loaded, Restore, SaveInfo, StagingMemory, TrainingState};
use crate::data::kind;
use crate::families::cogvideox;
use crate::optim::OptimizerState;
use crate::oracle;
use crate::parallelize::{Sharded, flat_part, layouts, unit_tables};
use crate::requests::SaveStopRequests;
use crate::step::Step;
use crate::tests::support::plan;
use c10d::Store;
use camino::{Utf8Path, Utf8PathBuf};
use dit::diffusion::{NoiseSchedule, Target};
use dit::family::Inputs;
use dit::objective::VPrediction;
use recipe::{Mesh, ParamRole, ParamSpec, Recipe};
use rundir::{BaseWeights, Checkpoint, RunDir, RunId, TrainState};
use serde_json::Value;
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::ops::ControlFlow;
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use weights::{ConvertRequest, Form, Header, LoraForm, SchedulerConfig};

/// The timeout of collectives, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

const MESHES: [Mesh; 4] = [mesh(1, 1), mesh(2, 1), mesh(1, 2), mesh(2, 2)];

const fn mesh(dp_shard: usize, tp: usize) -> Mesh {
    Mesh { dp_replicate: 1, dp_shard, tp }
}

fn tensor(header: &Header, name: &str) -> Tensor {
    let info = header.tensor(name).unwrap_or_else(|e| panic!("{}: {e}", header.path));
    let shape: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
    Tensor::from_data_size(&header.read_tensor(name).unwrap(), &shape, kind(info.dtype))
}

/// Returns `‖got - want‖ / max(‖want‖, floor)`.
fn relative(got: &Tensor, want: &Tensor, floor: f64) -> f64 {
    let (got, want) = (got.to_kind(Kind::Double).flatten(0, -1), want.to_kind(Kind::Double).flatten(0, -1));
    ((got - &want).norm() / want.norm().clamp_min(floor)).double_value(&[])
}

/// A recorded adapter: the folder of the base as a checkpoint, the inputs, and the recorded files.
struct Case {
    base: Utf8PathBuf,
    recipe_file: Utf8PathBuf,
    scheduler: Utf8PathBuf,
    inputs: Header,
    pass: Header,
    train: Header,
    config: Value,
}

impl Case {
    /// Converts the base model of an adapter into `place`, as a user does.
    fn open(adapter: &Utf8Path, place: &Utf8Path) -> Case {
        let read = |name: &str| Header::read(&adapter.join(name)).unwrap();
        let (pass, train) = (read("forward_backward.safetensors"), read("train.safetensors"));
        let config: Value = serde_json::from_str(&pass.metadata["config"]).unwrap();
        let transformer = oracle::root().join(config["model"].as_str().unwrap());
        let request = ConvertRequest::new(transformer.parent().unwrap(), place.join("base"), Form::Internal);
        let plan = weights::plan_conversion(&request).unwrap_or_else(|failure| panic!("{adapter}: {failure}"));
        plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let recipe_file = place.join("recipe.toml");
        let rest = "[data]\nindex = \"none.jsonl\"\n[train]\nsteps = 1\nglobal_batch = 2\n";
        std::fs::write(&recipe_file, format!("base = \"base/model.toml\"\n{rest}")).unwrap();
        let model = adapter.parent().unwrap();
        let inputs = Header::read(&model.join("inputs.safetensors")).unwrap();
        let scheduler = model.join("scheduler/scheduler_config.json");
        Case { base: place.join("base"), recipe_file, scheduler, inputs, pass, train, config }
    }

    /// Returns the recipe of the recorded run on a mesh, or why it does not fit the mesh.
    fn recipe(&self, mesh: Mesh) -> Result<Recipe, String> {
        let (config, latent) = (&self.config, &self.inputs.tensors["in.latent"].shape);
        let has_image = self.inputs.tensors.contains_key("in.image_latent");
        let sets = [
            format!("lora.rank={}", config["rank"]),
            format!("lora.alpha={}", config["alpha"]),
            format!("lora.targets={}", config["target_modules"]),
            format!("lora.rslora={}", config["use_rslora"]),
            "train.trainable=lora".into(),
            "train.dtype=float32".into(),
            "train.device=cpu".into(),
            format!("train.steps={}", config["steps"]),
            format!("train.global_batch={}", config["batch"]),
            format!("optimizer.lr={}", config["lr"]),
            "optimizer.schedule=constant".into(),
            format!("optimizer.beta1={}", config["betas"][0]),
            format!("optimizer.beta2={}", config["betas"][1]),
            format!("optimizer.eps={}", config["eps"]),
            format!("optimizer.weight_decay={}", config["weight_decay"]),
            format!("optimizer.clip_norm={}", config["clip_grad_norm"]),
            format!("condition.kind={}", if has_image { "image" } else { "none" }),
            format!("model.text_len={}", self.inputs.tensors["in.text"].shape[1]),
            format!("model.latent_frames={}", latent[1]),
            format!("model.latent_height={}", latent[3]),
            format!("model.latent_width={}", latent[4]),
            format!("mesh.dp_shard={}", mesh.dp_shard),
            format!("mesh.tp={}", mesh.tp),
        ];
        let mut recipe = recipe::load(&self.recipe_file, &sets).map_err(|error| error.why)?.recipe;
        recipe.model = SchedulerConfig::read(&self.scheduler).unwrap().apply(&self.scheduler, &recipe.model).unwrap();
        Ok(recipe)
    }

    /// Returns the input of the network and the target for the samples of a draw.
    fn noised(&self, schedule: &NoiseSchedule, recipe: &Recipe, draw: &Draw) -> (Inputs, Target) {
        let samples = |name: &str| tensor(&self.inputs, name).index_select(0, &draw.index);
        let clean = samples("in.latent");
        let noised = schedule.noise(&clean, &draw.noise, &draw.timestep);
        let latent = match recipe.condition.kind {
            recipe::ConditionKind::Image => {
                let image = dit::conditions::image(&samples("in.image_latent"), clean.size()[1]);
                Tensor::cat(&[&noised.latent, &image], 2)
            }
            _ => noised.latent.shallow_clone(),
        };
        let inputs = Inputs {
            latent,
            text: samples("in.text"),
            timestep: draw.timestep.shallow_clone(),
            conditions: Vec::new(),
        };
        (inputs, schedule.target(noised, &clean, &draw.timestep, &recipe.loss))
    }
}

/// The random numbers of a batch or of a part of a batch.
struct Draw {
    index: Tensor,
    timestep: Tensor,
    noise: Tensor,
}

impl Draw {
    fn read(inputs: &Header, prefix: &str) -> Draw {
        let of = |name: &str| tensor(inputs, &format!("{prefix}.{name}"));
        Draw { index: of("index"), timestep: of("timestep"), noise: of("noise") }
    }

    fn map(&self, part: impl Fn(&Tensor) -> Tensor) -> Draw {
        Draw { index: part(&self.index), timestep: part(&self.timestep), noise: part(&self.noise) }
    }
}

/// One rank with the base weights loaded.
struct Rank {
    recipe: Recipe,
    tables: Vec<Vec<ParamSpec>>,
    fsdp: Fsdp,
    moments: OptimizerState,
}

impl Rank {
    fn new(case: &Case, recipe: Recipe, groups: MeshGroups) -> Rank {
        let tables = unit_tables(&recipe);
        let fsdp = Fsdp::new(layouts(&recipe, &tables), groups, Kind::Float);
        let mut moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
        let mut sharded = TrainingState { fsdp: &fsdp, moments: &mut moments, ema: None, tables: &tables, base: None };
        let loaded = checkpoint::load(&mut sharded, &case.base, Restore::Weights).unwrap_or_else(|f| panic!("{f}"));
        assert!(matches!(loaded, Loaded::Intact(_)), "{loaded:?}");
        Rank { recipe, tables, fsdp, moments }
    }

    /// Returns this rank's part of each adapter factor, together with the same part of the recorded tensor.
    fn adapters(&self, recorded: &Header, prefix: &str) -> Vec<(String, Tensor, Tensor)> {
        let mut pairs = Vec::new();
        for owned in self.fsdp.owned() {
            let spec = &self.tables[owned.unit][owned.range.slot];
            if spec.role == ParamRole::Adapter {
                let name = spec.diffusers.clone().unwrap();
                let whole = tensor(recorded, &format!("{prefix}{name}"));
                let part = flat_part(spec, &whole, &self.fsdp.groups().tp);
                pairs.push((name, owned.values, part.narrow(0, owned.range.start, owned.range.len)));
            }
        }
        pairs
    }

    fn start_from(&self, recorded: &Header, prefix: &str) -> usize {
        let adapters = self.adapters(recorded, prefix);
        for (_, mut values, wanted) in self.adapters(recorded, prefix) {
            tch::no_grad(|| values.copy_(&wanted));
        }
        adapters.len()
    }
}

/// Compares one forward and backward pass on one rank: output, loss and every gradient.
fn pass(case: &Case) -> usize {
    let mut rank = Rank::new(case, case.recipe(MESHES[0]).unwrap(), MeshGroups::alone());
    rank.start_from(&case.pass, "param.");
    let recipe = rank.recipe.clone();
    let schedule = NoiseSchedule::new(&recipe.model);
    let (inputs, target) = case.noised(&schedule, &recipe, &Draw::read(&case.inputs, "fb"));
    let mut loss = 0.0;
    let done = cogvideox(&recipe)
        .forward_backward(&mut Sharded(&mut rank.fsdp), &inputs, |output| {
            let mean = target.loss(output).mean(Kind::Float);
            loss = mean.double_value(&[]);
            mean
        })
        .unwrap();
    rank.fsdp.finish_reduce().unwrap();
    let path = &case.pass.path;
    let error = relative(&done.output, &tensor(&case.pass, "out.sample"), 0.0);
    assert!(error < 1e-5, "{path}: the output differs by {error:e}");
    let wanted = tensor(&case.pass, "out.loss").double_value(&[]);
    assert!((loss - wanted).abs() < 1e-5 * wanted, "{path}: the loss is {loss}, recorded {wanted}");
    let grads: Vec<(usize, Tensor)> =
        rank.fsdp.shards().map(|shard| (shard.unit, shard.grad.shallow_clone())).collect();
    let mut compared = 0;
    for owned in rank.fsdp.owned() {
        let spec = &rank.tables[owned.unit][owned.range.slot];
        let Some((_, grad)) = grads.iter().find(|(unit, _)| *unit == owned.unit && spec.role == ParamRole::Adapter)
        else {
            continue;
        };
        let name = format!("out.grad.{}", spec.diffusers.as_deref().unwrap());
        let error =
            relative(&grad.narrow(0, owned.range.shard_start, owned.range.len), &tensor(&case.pass, &name), 0.0);
        assert!(error < 1e-4, "{path}: {name} differs by {error:e}");
        compared += 1;
    }
    let recorded = case.pass.tensors.keys().filter(|name| name.starts_with("out.grad.")).count();
    assert_eq!(compared, recorded, "{path}: gradients compared and recorded");
    export(case, &mut rank);
    compared
}

/// Saves the adapters, exports the checkpoint in the formats of other programs, and compares with the files that they wrote.
fn export(case: &Case, rank: &mut Rank) {
    let keep = tempfile::tempdir().unwrap();
    let place = Utf8Path::from_path(keep.path()).unwrap();
    let run = RunDir::new(place.join("run"));
    let base = BaseWeights::of(&Checkpoint::open(&case.base).unwrap(), rank.recipe.lora.scale()).unwrap();
    let Rank { recipe, tables, fsdp, moments } = rank;
    let mut sharded = TrainingState { fsdp, moments, ema: None, tables, base: Some(&base) };
    let state = TrainState {
        step: 1,
        samples_seen: 1,
        epoch: 0,
        position: 1,
        seed: 1,
        adam_step: 0,
        global_batch: 1,
        data_fingerprint: "x".into(),
        data_order: String::new(),
        bad_steps: 0,
        ..TrainState::default()
    };
    let mut memory = StagingMemory::default();
    let writing = checkpoint::begin(&mut sharded, &run, state, &mut memory).unwrap();
    let id = RunId::parse("2026-11-20T0340-lora-test").unwrap();
    let saved = SaveInfo { id: &id, attempt: 1, mesh: recipe.mesh, saved_s: 0.0 };
    checkpoint::finish(fsdp, writing, &saved, &mut memory).unwrap();

    let files =
        [(LoraForm::Diffusers, "pytorch_lora_weights.safetensors"), (LoraForm::Peft, "adapter_model.safetensors")];
    for (form, name) in files {
        let out = place.join(form.to_string());
        let request = ConvertRequest::new(run.step_dir(1), out.clone(), Form::Lora(form));
        let plan = weights::plan_conversion(&request).unwrap_or_else(|failure| panic!("{failure}"));
        plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        let folder = case.pass.path.parent().unwrap().join(form.to_string().to_lowercase());
        let [ours, theirs] = [out, folder].map(|folder| Header::read(&folder.join(name)).unwrap());
        assert!(ours.tensors.keys().eq(theirs.tensors.keys()), "{}", theirs.path);
        for name in ours.tensors.keys() {
            assert_eq!(ours.read_tensor(name).unwrap(), theirs.read_tensor(name).unwrap(), "{name} of {}", theirs.path);
        }
        let alpha = |header: &Header| -> Option<f64> {
            let all: Value = serde_json::from_str(header.metadata.get("lora_adapter_metadata")?).unwrap();
            all["transformer.lora_alpha"].as_f64()
        };
        assert_eq!(alpha(&ours), alpha(&theirs), "{}", theirs.path);
    }
}

/// Trains all recorded steps as one rank of a mesh, and compares losses, gradient norms and the final adapters.
fn train(case: &Case, recipe: Recipe, groups: MeshGroups) {
    let mut rank = Rank::new(case, recipe, groups);
    rank.start_from(&case.train, "param.init.");
    let (recipe, network) = (rank.recipe.clone(), cogvideox(&rank.recipe));
    let objective = VPrediction::new(&recipe.model, &recipe.loss);
    let step = Step { recipe: &recipe, network: &network, objective: &objective, seed: 0 };
    let draws = Draw::read(&case.inputs, "train");
    let [losses, norms] = ["out.loss", "out.grad_norm_before_clip"].map(|name| tensor(&case.train, name));
    for number in 0..recipe.train.steps() {
        let outcome = step
            .run_on(
                &mut rank.fsdp,
                &mut rank.moments,
                number,
                &plan(&recipe, number),
                SaveStopRequests::default(),
                |places| {
                    let (start, len) = (places.start as i64, (places.end - places.start) as i64);
                    let draw = draws.map(|all| all.get(number as i64).narrow(0, start, len));
                    Ok(case.noised(&objective.schedule, &recipe, &draw))
                },
            )
            .unwrap();
        for (name, got, want) in [("loss", outcome.loss, &losses), ("gradient norm", outcome.grad_norm, &norms)] {
            let want = want.double_value(&[number as i64]);
            let error = (got - want).abs() / want;
            let what = format!("{} on {}", case.train.path, recipe.mesh);
            assert!(error < 1e-4, "{what}: {name} of step {number} is {got}, recorded {want}");
        }
    }
    for (name, values, wanted) in rank.adapters(&case.train, "param.final.") {
        // Adam enlarges rounding where gradients are near zero.
        let error = relative(&values, &wanted, 1e-3);
        assert!(error < 1e-3, "{} on {}: {name} differs by {error:e}", case.train.path, recipe.mesh);
    }
}

/// Trains on the recipe's mesh, whose ranks are threads.
fn train_on(case: &Case, recipe: Recipe) {
    let mesh = recipe.mesh;
    if mesh.world() == 1 {
        return train(case, recipe, MeshGroups::alone());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    std::thread::scope(|scope| {
        for rank in 0..mesh.world() {
            let (path, recipe) = (&path, recipe.clone());
            scope.spawn(move || {
                let store = Store::file(path, mesh.world(), LIMIT).unwrap();
                let groups = MeshGroups::join(&store, mesh, rank, Device::Cpu, LIMIT, Some("lo")).unwrap();
                train(case, recipe, groups);
            });
        }
    });
}

#[test]
fn oracle_lora_outputs_gradients_and_steps_are_those_of_peft() {
    let is_folder = |path: &Utf8Path| path.join("inputs.safetensors").is_file();
    for model in oracle::entries("lora", "*/inputs.safetensors", is_folder) {
        let is_adapter = |path: &Utf8Path| path.join("train.safetensors").is_file();
        for adapter in
            oracle::entries(&format!("lora/{}", model.file_name().unwrap()), "*/train.safetensors", is_adapter)
        {
            let keep = tempfile::tempdir().unwrap();
            let case = Case::open(&adapter, Utf8Path::from_path(keep.path()).unwrap());
            let gradients = pass(&case);
            for mesh in MESHES {
                match case.recipe(mesh) {
                    Ok(recipe) => train_on(&case, recipe),
                    Err(why) => println!("skipped: {adapter} on {mesh}: {why}"),
                }
            }
            println!("{adapter}: {gradients} gradients, {} meshes", MESHES.len());
        }
    }
}
