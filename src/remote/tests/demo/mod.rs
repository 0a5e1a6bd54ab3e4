//! A fixture for the tests of this folder: a folder of runs, a recipe and a fake trainer.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use plan::{
    Context, LaunchPlan, LaunchRequest, ResumeOptions, ResumeRequest, StartOptions, Target, TrainerBinary, Weights,
    launch, resume,
};
use recipe::{ParamSpec, Recipe, param_specs};
use remote::{read_facts, this_node};
use rundir::{CheckpointManifest, Failure, LogicalTensor, RunDir, RunId, Slice};

/// The behaviour of the fake trainer.
pub enum FakeTrainer {
    Train,
    /// Trains like [`FakeTrainer::Train`], but starts when the run's folder has a file `go`.
    TrainLater,
    Die,
}

pub struct Demo {
    pub recipe: Recipe,
    pub runs: Utf8PathBuf,
    pub init: Option<Utf8PathBuf>,
    pub hostname: String,
    trainer: Utf8PathBuf,
    _temp: tempfile::TempDir,
}

impl Demo {
    pub fn new() -> Self {
        Self::with(FakeTrainer::Train)
    }

    pub fn with(does: FakeTrainer) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let runs = root.join("the runs");
        fs::create_dir(&runs).unwrap();
        let trainer = root.join(match does {
            FakeTrainer::Train => "vidtui-train",
            FakeTrainer::TrainLater => "vidtui-train-slow",
            FakeTrainer::Die => "vidtui-train-dies",
        });
        let fake = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fakes/bin/vidtui-train");
        std::os::unix::fs::symlink(fake, &trainer).unwrap();
        let hostname = this_node().unwrap().node.to_string();
        Self { recipe: tiny_recipe(), runs, init: None, hostname, trainer, _temp: temp }
    }

    /// Returns the file names in the folder of runs.
    pub fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.runs).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn context(&self) -> Context {
        Context {
            cores: 2,
            now_s: rundir::now_s(),
            random: 12345,
            by: "ada@vm".into(),
            runs_root: self.runs.clone(),
            git_commit: None,
            trainer: TrainerBinary {
                path: self.trainer.clone(),
                version: "0.1.0".into(),
                tch: "0.24.0".into(),
                libtorch: "2.11.0".into(),
                cuda: false,
                sha256: "5d41402abc4b2a76b9719d911017c592".repeat(2),
            },
            program: "/opt/vidtui/bin/vidtui".into(),
            target: Target::local(&self.hostname, 2),
            options: StartOptions::default(),
        }
    }

    pub fn launch(&self) -> LaunchPlan {
        let init = self.init.clone().map(|path| Weights { path, lineage: None });
        launch(&LaunchRequest { recipe: &self.recipe, name: None, stage: None, init }, &self.context()).unwrap()
    }

    /// Saves a checkpoint with correct sizes and shapes and no real data.
    pub fn save(&self, dir: &RunDir, run: &RunId, step: u64) {
        let folder = dir.step_dir(step);
        fs::create_dir_all(&folder).unwrap();
        let files = ["rank-00000.safetensors", "state.toml"].map(|name| {
            fs::write(folder.join(name), name).unwrap();
            rundir::file_sum(&folder.join(name)).unwrap()
        });
        let tensor = |spec: ParamSpec| LogicalTensor {
            slices: vec![Slice {
                file: files[0].name.clone(),
                key: spec.name.clone(),
                start: 0,
                len: spec.len(),
                within: None,
            }],
            name: spec.name,
            dtype: "F32".into(),
            shape: spec.shape,
        };
        let manifest = CheckpointManifest {
            format: rundir::SCHEMA,
            run: run.clone(),
            attempt: 1,
            step,
            saved_s: 0.0,
            params: 0,
            mesh: self.recipe.mesh,
            tensors: param_specs(&self.recipe.model).into_iter().map(tensor).collect(),
            base: None,
            same_as: None,
            files: files.to_vec(),
        };
        manifest.write(&folder).unwrap();
    }

    pub fn resume(&self, dir: &RunDir) -> Result<LaunchPlan, Failure> {
        let run = dir.read_run()?;
        let latest = other_trainers::latest(dir);
        let request = ResumeRequest {
            run: &run,
            dir,
            facts: &read_facts(dir, &run)?,
            checkpoints: &other_trainers::checkpoints(dir)?,
            latest: latest.as_ref(),
            options: ResumeOptions::default(),
            changed: None,
        };
        resume(&request, &self.context())
    }
}

/// The smallest valid recipe. All other keys have their defaults.
fn tiny_recipe() -> Recipe {
    let table: toml::Table = toml::from_str(
        r#"
        name = "demo"
        [model]
        num_layers = 1
        num_heads = 1
        head_dim = 16
        time_embed_dim = 16
        text_dim = 8
        text_len = 4
        in_channels = 4
        out_channels = 4
        latent_frames = 3
        latent_height = 4
        latent_width = 4
        [data]
        index = "/data/index.jsonl"
        [train]
        steps = 60
        global_batch = 2
        [optimizer]
        lr = 1e-3
        [mesh]
        dp_replicate = 1
        dp_shard = 2
        "#,
    )
    .unwrap();
    Recipe::from_table(&table).unwrap()
}
