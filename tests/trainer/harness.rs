//! Scenes for trainer tests: tiny data, tiny recipes, and ranks started as the supervisor starts them.

use camino::{Utf8Path, Utf8PathBuf};
use cluster::{Node, NodeId, Placement};
use recipe::{Layer, Mesh, Recipe, Resolved};
use rig::SmallDisk;
use rundir::{
    Attempt, AttemptWhy, Checkpoint, CheckpointSummary, ErrorCode, Event, EventKind, MetricSample, RankProgress,
    RequestSource, Run, RunDir, RunId, SCHEMA, StartFrom, Tail, TensorBox, latest_among, read_events, step_checkpoints,
};
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Returns the newest complete checkpoint of a run.
pub fn latest(run: &RunDir) -> Option<CheckpointSummary> {
    latest_among(run, &step_checkpoints(run).ok()?)
}

/// A timeout longer than any step of a test, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// The node of all ranks.
pub const NODE: &str = "test";

/// A temporary folder with data and runs.
pub struct Scene {
    _folder: tempfile::TempDir,
    pub path: Utf8PathBuf,
    index: Utf8PathBuf,
    /// The recipe that all others build on.
    base: &'static str,
    /// Small values for the keys of its family.
    tiny: &'static [&'static str],
    /// The settings of all recipes of this scene.
    sets: &'static [&'static str],
}

/// A run, and the settings of its next attempts.
pub struct RunUnderTest {
    pub dir: RunDir,
    /// The folder with a rendezvous store for each attempt.
    stores: Utf8PathBuf,
    attempt: u32,
    /// The steps of the next attempts, if different from the recipe's.
    steps: Option<u64>,
    /// The step that the user requests for the next attempts.
    asked_step: Option<u64>,
    /// The environment variables of the ranks of the next attempts.
    pub env: Env,
}

/// Environment variables of ranks.
pub type Env = Vec<(&'static str, String)>;

/// A run with running ranks.
pub struct Running {
    pub run: RunUnderTest,
    ranks: Vec<Child>,
}

/// The recipe of a scene with CogVideoX, and the keys of its family.
const COGVIDEOX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/demo/2s.toml");
const TINY_COGVIDEOX: &[&str] =
    &["model.time_embed_dim=16", "model.layer=none", "model.segments=1", "model.ttt_mini_batch=0"];
/// The recipe of a scene with Wan.
const WAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/wan.toml");

impl Scene {
    /// Makes a scene with videos of three latent frames and a CogVideoX without TTT layers.
    pub fn new() -> Self {
        Self::with(3, 1, &[])
    }

    /// Makes a scene with videos of two segments, each with a text, and a network with TTT layers.
    pub fn of_segments() -> Self {
        Self::with(
            25,
            2,
            &[
                "model.layer=ttt_mlp",
                "model.ttt_mini_batch=4",
                "model.segments=2",
                "model.latent_frames=25",
                "model.num_layers=3",
            ],
        )
    }

    /// Makes a scene with videos of three latent frames and a model of Wan.
    pub fn of_wan() -> Self {
        Scene { base: WAN, tiny: &[], ..Self::with(3, 1, &["model.ffn_dim=64", "model.freq_dim=16"]) }
    }

    fn with(frames: usize, texts: u64, sets: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        let mut scene =
            Scene { _folder: folder, path, index: Utf8PathBuf::new(), base: COGVIDEOX, tiny: TINY_COGVIDEOX, sets };
        let latents = scene.dataset("data", frames, [4, 4], 11);
        scene.index = scene.text_dataset(&latents, 16, texts);
        scene
    }

    /// Writes `items` latents `[frames, 4, height, width]` of a deterministic pattern; returns their folder.
    pub fn dataset(&self, name: &str, frames: usize, size: [usize; 2], items: usize) -> Utf8PathBuf {
        let folder = self.path.join(name);
        fs::create_dir_all(&folder).unwrap();
        for item in 0..items {
            let shape = vec![frames, 4, size[0], size[1]];
            let values = pattern(shape.iter().product(), item as u64);
            write(&folder.join(format!("latent-{item}.safetensors")), "latent", &shape, &values);
        }
        folder
    }

    /// Like [`Scene::dataset`]; each latent also has the latent of a masked video.
    pub fn masked_dataset(&self, name: &str, frames: usize, size: [usize; 2], items: usize) -> Utf8PathBuf {
        let folder = self.dataset(name, frames, size, items);
        for item in 0..items {
            let shape = [frames, 4, size[0], size[1]];
            let values = |number: usize| pattern(shape.iter().product(), number as u64);
            let tensors = [("latent", &values(item)[..]), ("masked", &values(100 + item))];
            write_all(&folder.join(format!("latent-{item}.safetensors")), &tensors, &shape);
        }
        folder
    }

    /// Writes as many `texts` of `text_len` tokens beside each latent of a folder, and the index; returns the index.
    pub fn text_dataset(&self, folder: &Utf8Path, text_len: usize, texts: u64) -> Utf8PathBuf {
        self.text_dataset_of_width(folder, text_len, texts, 8)
    }

    /// Like [`Scene::text_dataset`], with texts of `width` features.
    pub fn text_dataset_of_width(&self, folder: &Utf8Path, text_len: usize, texts: u64, width: usize) -> Utf8PathBuf {
        let mut lines = String::new();
        for item in 0.. {
            if !folder.join(format!("latent-{item}.safetensors")).exists() {
                break;
            }
            let text = |number: u64| {
                let name = format!("text-{item}-{number}.safetensors");
                write(
                    &folder.join(&name),
                    "text",
                    &[text_len, width],
                    &pattern(text_len * width, 1000 + item + 100 * number),
                );
                format!("\"{name}\"")
            };
            let texts = (0..texts).map(text).collect::<Vec<_>>().join(",");
            lines += &format!("{{\"vid_emb\":\"latent-{item}.safetensors\",\"text_chunk_emb\":[{texts}]}}\n");
        }
        let index = folder.join("index.jsonl");
        fs::write(&index, lines).unwrap();
        index
    }

    /// Starts a run with new weights on a mesh `[dp_replicate, dp_shard]` or `[dp_replicate, dp_shard, tp]`.
    pub fn launch(&self, name: &str, mesh: &[usize], sets: &[&str]) -> Running {
        self.start(&self.path.join("runs"), name, mesh, sets, StartFrom::Random, Vec::new())
    }

    pub fn launch_from(&self, name: &str, mesh: &[usize], sets: &[&str], start: StartFrom) -> Running {
        self.start(&self.path.join("runs"), name, mesh, sets, start, Vec::new())
    }

    /// Starts a run of one rank whose process may have this many bytes of private memory.
    pub fn launch_within(&self, bytes: u64, name: &str, sets: &[&str]) -> Running {
        let env = vec![(DATA_LIMIT, bytes.to_string())];
        self.start(&self.path.join("runs"), name, &[1, 1], sets, StartFrom::Random, env)
    }

    /// Starts a run with variables in the environment of its ranks.
    pub fn launch_with(&self, env: Env, name: &str, mesh: &[usize], sets: &[&str]) -> Running {
        self.start(&self.path.join("runs"), name, mesh, sets, StartFrom::Random, env)
    }

    pub fn launch_in(&self, runs: &Utf8Path, name: &str, mesh: &[usize], sets: &[&str]) -> Running {
        self.start(runs, name, mesh, sets, StartFrom::Random, Vec::new())
    }

    fn start(&self, runs: &Utf8Path, name: &str, mesh: &[usize], sets: &[&str], start: StartFrom, env: Env) -> Running {
        let base = Utf8Path::new(self.base);
        let tiny = [
            "model.num_layers=2",
            "model.num_heads=2",
            "model.head_dim=16",
            "model.text_dim=8",
            "model.text_len=16",
            "model.in_channels=4",
            "model.out_channels=4",
            "model.latent_frames=3",
            "model.latent_height=4",
            "model.latent_width=4",
            "train.threads=1",
            "optimizer.warmup_steps=2",
            "checkpoint.keep_last=0",
        ];
        let own = [
            format!("data.index={}", self.index),
            format!("mesh.dp_replicate={}", mesh[0]),
            format!("mesh.dp_shard={}", mesh[1]),
            format!("mesh.tp={}", mesh.get(2).unwrap_or(&1)),
        ];
        // The last setting of a key wins, here and in a test's list.
        let mut by_key = BTreeMap::new();
        for set in tiny
            .iter()
            .chain(self.tiny)
            .chain(self.sets)
            .copied()
            .chain(own.iter().map(String::as_str))
            .chain(sets.iter().copied())
        {
            by_key.insert(set.split('=').next().unwrap().to_owned(), set.to_owned());
        }
        let resolved = recipe::load(base, &by_key.into_values().collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
        self.begin(runs, name, mesh, resolved.table, start, env)
    }

    /// Starts a run of a recipe that does not use the settings of this scene.
    pub fn launch_recipe(&self, name: &str, ranks: usize, recipe: Resolved, env: Env) -> Running {
        let runs = self.path.join("runs");
        self.begin(&runs, name, &[ranks, 1], recipe.table, StartFrom::Random, env)
    }

    /// Starts a run that samples weights at tiny cost; `change` completes its recipe. `env` is for its ranks.
    pub fn sample(
        &self,
        name: &str,
        mesh: &[usize],
        weights: &Utf8Path,
        env: Env,
        change: impl FnOnce(&mut Recipe),
    ) -> Running {
        let source = weights::WeightsSource::open(weights).unwrap_or_else(|failure| panic!("{failure}"));
        let mut model = source.model().unwrap().clone();
        if model.cogvideox().layer != Layer::None {
            // The sequence lengths of all tests are multiples of 2.
            model = model.with_cogvideox(|keys| keys.ttt_mini_batch = 2);
        }
        let mut recipe = Recipe::for_sampling(&model, None).unwrap();
        recipe.mesh = mesh_of(mesh);
        recipe.train.dtype = recipe::ComputeDtype::Float32;
        recipe.train.threads = 1;
        recipe.encoders.dtype = recipe::ComputeDtype::Float32;
        recipe.sample.steps = 2;
        change(&mut recipe);
        let start = StartFrom::Weights { path: weights.to_owned() };
        self.begin(&self.path.join("runs"), name, mesh, recipe.to_table(), start, env)
    }

    fn begin(
        &self,
        runs: &Utf8Path,
        name: &str,
        mesh: &[usize],
        recipe: toml::Table,
        start: StartFrom,
        env: Env,
    ) -> Running {
        let id = RunId::parse(&format!("2026-11-20T0340-{name}-test")).unwrap();
        let dir = RunDir::of(runs, &id);
        fs::create_dir_all(&dir.root).unwrap();
        dir.write_run(&Run {
            schema: SCHEMA,
            id,
            name: name.into(),
            curriculum: None,
            stage: None,
            created_s: 0.0,
            git_commit: None,
            trainer_sha256: None,
            trainer_version: String::new(),
            libtorch: String::new(),
            start: start.clone(),
            lineage: None,
            imported: None,
            attached: None,
            launched_from: None,
            recipe,
        })
        .unwrap();
        let stores = self.path.join("stores");
        fs::create_dir_all(&stores).unwrap();
        RunUnderTest { dir, stores, attempt: 0, steps: None, asked_step: None, env }.attempt(mesh, start, 0)
    }
}

impl RunUnderTest {
    /// Returns the progress that a rank of the first attempt reported last.
    pub fn progress(&self, rank: usize) -> Option<RankProgress> {
        self.dir.read_rank_progress(&NodeId::new(NODE).unwrap(), 1, rank)
    }

    /// Returns the code of the failure that ended a rank of the last attempt.
    pub fn rank_failure(&self, rank: usize) -> Option<ErrorCode> {
        self.dir.read_rank_failure(&NodeId::new(NODE).unwrap(), self.attempt, rank).map(|failure| failure.code)
    }

    pub fn id(&self) -> RunId {
        self.dir.read_run().unwrap().id
    }

    /// Starts the next attempt.
    pub fn attempt(self, mesh: &[usize], start: StartFrom, start_step: u64) -> Running {
        self.attempt_that_dies(mesh, start, start_step, &[], "")
    }

    /// Makes the next attempts train longer.
    pub fn train_on_to(&mut self, steps: u64) {
        self.steps = Some(steps);
    }

    /// Starts an attempt at a step that the user requests.
    pub fn resume_at(mut self, mesh: &[usize], step: u64) -> Running {
        self.asked_step = Some(step);
        let start = StartFrom::Checkpoint { run: self.id(), step };
        self.attempt(mesh, start, step)
    }

    /// Starts an attempt from the newest complete checkpoint.
    pub fn resume(self, mesh: &[usize]) -> Running {
        self.resume_and_die(mesh, &[], "")
    }

    /// Resumes as [`RunUnderTest::resume`] does, with `victims` that kill themselves at a `PHASE:STEP` of a save.
    pub fn resume_and_die(self, mesh: &[usize], victims: &[usize], at: &str) -> Running {
        let step = latest(&self.dir).expect("a complete checkpoint").step;
        let start = StartFrom::Checkpoint { run: self.id(), step };
        self.attempt_that_dies(mesh, start, step, victims, at)
    }

    fn attempt_that_dies(
        self,
        mesh: &[usize],
        start: StartFrom,
        start_step: u64,
        victims: &[usize],
        at: &str,
    ) -> Running {
        let mesh = mesh_of(mesh);
        let (number, world) = (self.attempt + 1, mesh.world());
        let placement = Placement::new(&[Node::local(NODE, world)], world).unwrap();
        fs::create_dir_all(self.dir.attempt_dir(number)).unwrap();
        fs::create_dir_all(self.dir.node_dir(&NodeId::new(NODE).unwrap())).unwrap();
        self.dir
            .write_attempt(&Attempt {
                schema: SCHEMA,
                number,
                why: if number == 1 { AttemptWhy::Launch } else { AttemptWhy::Resume },
                by: "test".into(),
                started_s: 0.0,
                start_step,
                start,
                asked_step: self.asked_step,
                checkpoint: None,
                waived: Vec::new(),
                steps: self.steps,
                changed: Vec::new(),
                mesh,
                placement,
                logins: Vec::new(),
                spares: Vec::new(),
                slurm: None,
            })
            .unwrap();
        static STORES: AtomicU32 = AtomicU32::new(0);
        let store = self.stores.join(STORES.fetch_add(1, Ordering::Relaxed).to_string());
        let rank = |rank: usize| {
            let limit = |name| {
                let set = self.env.iter().find(|(variable, _)| *variable == name);
                set.map_or(String::new(), |(_, bytes)| bytes.clone())
            };
            let mut command = limited(&limit(DATA_LIMIT), &limit(FILE_LIMIT));
            command
                .args(["rank", "--run-dir", self.dir.root.as_str(), "--attempt", &number.to_string()])
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", world.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("LOCAL_WORLD_SIZE", world.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", "0")
                .env(supervise::STORE_VARIABLE, &store)
                .env("RUST_BACKTRACE", "0")
                .env("VIDTUI_NODE", NODE)
                .env("ENCODE_LEASE_S", "3")
                .env("ENCODE_RANGE", "4")
                // The allocator returns freed memory to the system at once, so that resident memory equals allocated memory.
                .env("MALLOC_MMAP_THRESHOLD_", "1048576")
                .env("VIDTUI_DIE", if victims.contains(&rank) { at } else { "" })
                .envs(self.env.iter().map(|(name, value)| (name, value)))
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let ranks = (0..world).map(rank).collect();
        Running { run: RunUnderTest { attempt: number, asked_step: None, ..self }, ranks }
    }

    /// Returns the logged steps in order; for a repeated step, the line of the later attempt.
    pub fn samples(&self) -> Vec<MetricSample> {
        let mut by_step = BTreeMap::new();
        for sample in Tail::<MetricSample>::new(self.dir.metrics()).poll().unwrap().items {
            by_step.insert(sample.step, sample);
        }
        by_step.into_values().collect()
    }

    pub fn events(&self) -> Vec<Event> {
        read_events(&self.dir).unwrap_or_default()
    }

    /// Returns the origins of the requests that stopped the run.
    pub fn stop_sources(&self) -> Vec<RequestSource> {
        let source = |event: Event| match event.kind {
            EventKind::Stopped { source, .. } => Some(source),
            _ => None,
        };
        self.events().into_iter().filter_map(source).collect()
    }

    /// Returns the code of the failure that ended the run.
    pub fn failure_code(&self) -> Option<ErrorCode> {
        let code =
            |event: Event| if let EventKind::Failed { failure } = event.kind { Some(failure.code) } else { None };
        self.events().into_iter().rev().find_map(code)
    }
}

impl Running {
    /// Waits until all ranks exit; each must succeed.
    pub fn finish(self) -> RunUnderTest {
        let (run, outputs) = self.wait();
        for (rank, output) in outputs.iter().enumerate() {
            assert!(output.status.success(), "rank {rank}: {}", String::from_utf8_lossy(&output.stderr));
        }
        run
    }

    /// Waits until all ranks exit, with any status.
    pub fn wait(mut self) -> (RunUnderTest, Vec<Output>) {
        let deadline = Instant::now() + PATIENCE;
        while self.ranks.iter_mut().any(|r| r.try_wait().unwrap().is_none()) {
            if Instant::now() > deadline {
                self.ranks.iter_mut().for_each(|r| drop(r.kill()));
                panic!("ranks still live after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let outputs = self.ranks.into_iter().map(|r| r.wait_with_output().unwrap()).collect();
        (self.run, outputs)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.ranks.iter().map(Child::id).collect()
    }

    pub fn signal(&mut self, rank: usize, signal: &str) {
        let pid = self.ranks[rank].id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
    }

    pub fn wait_for_step(&mut self, step: u64) {
        self.wait_for(&format!("step {step}"), |run| run.samples().last().is_some_and(|s| s.step >= step));
    }

    pub fn wait_for(&mut self, what: &str, holds: impl Fn(&RunUnderTest) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(&self.run) {
            if Instant::now() > deadline || self.ranks.iter_mut().all(|r| r.try_wait().unwrap().is_some()) {
                self.ranks.iter_mut().for_each(|r| drop(r.kill()));
                let output: Vec<String> = std::mem::take(&mut self.ranks)
                    .into_iter()
                    .map(|r| String::from_utf8_lossy(&r.wait_with_output().unwrap().stderr).into_owned())
                    .collect();
                panic!("timeout while waiting for {what}; the ranks printed {output:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The variable of [`Env`] that limits the data of a rank, in bytes.
const DATA_LIMIT: &str = "TEST_DATA_LIMIT";
/// The variable of [`Env`] that limits the size of files that a rank writes, in bytes.
pub const FILE_LIMIT: &str = "TEST_FILE_LIMIT";

/// Returns the command of the trainer, with limits of its private memory and of the files that it writes, in bytes.
fn limited(data: &str, file: &str) -> Command {
    let trainer = env!("CARGO_BIN_EXE_vidtui-train");
    let limits =
        "[ -z \"$1\" ] || ulimit -d $(($1 / 1024)); [ -z \"$2\" ] || ulimit -f $(($2 / 1024)); shift 2; exec \"$@\"";
    let mut shell = Command::new("bash");
    shell.args(["-c", limits, "bash", data, file, trainer]);
    shell
}

fn mesh_of(mesh: &[usize]) -> Mesh {
    Mesh { dp_replicate: mesh[0], dp_shard: mesh[1], tp: mesh.get(2).copied().unwrap_or(1) }
}

/// Returns the losses of a run, by step.
pub fn losses(run: &RunUnderTest) -> Vec<f64> {
    run.samples().iter().map(|s| s.loss.expect("a finite loss")).collect()
}

pub fn assert_close(got: &[f64], want: &[f64], relative: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (step, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= relative * w.abs(), "{what}: step {} has loss {g}, expected {w}", step + 1);
    }
}

/// Returns the raw bytes of every logical tensor of a checkpoint, its slices joined.
pub fn tensors(step_dir: &Utf8Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = Checkpoint::open(step_dir).unwrap();
    let joined = |tensor: &rundir::LogicalTensor| {
        let (elements, whole) = (tensor.elements().unwrap(), TensorBox::whole(&tensor.shape));
        let mut bytes = Vec::new();
        for slice in &tensor.slices {
            let read = weights::Header::read(&step_dir.join(&slice.file)).unwrap().read_tensor(&slice.key).unwrap();
            let size = read.len() / slice.len as usize;
            bytes.resize(elements as usize * size, 0);
            for run in whole.overlaps(0..elements, &slice.within(&tensor.shape), slice.range()) {
                let [here, there, len] = [run.here, run.there, run.len].map(|n| n as usize * size);
                bytes[here..here + len].copy_from_slice(&read[there..there + len]);
            }
        }
        bytes
    };
    checkpoint.manifest.tensors.iter().map(|t| (t.name.clone(), joined(t))).collect()
}

/// Mounts a small disk in a scene.
pub fn small_disk(scene: &Scene, options: &str) -> Option<SmallDisk> {
    SmallDisk::mount(&scene.path.join("disk"), options)
}

/// Returns numbers like a latent: a wave whose phase and frequency depend on the item, plus noise.
fn pattern(len: usize, item: u64) -> Vec<f32> {
    let value = |i: usize| {
        let scatter = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(item * 77) >> 40;
        (i as f32 * (0.1 + item as f32 * 0.01)).sin() + (scatter as f32 / (1 << 24) as f32 - 0.5) * 0.2
    };
    (0..len).map(value).collect()
}

fn write(path: &Utf8Path, name: &str, shape: &[usize], values: &[f32]) {
    write_all(path, &[(name, values)], shape);
}

/// Writes tensors of one shape.
fn write_all(path: &Utf8Path, tensors: &[(&str, &[f32])], shape: &[usize]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let tensors: Vec<_> = tensors.iter().map(|(name, values)| (*name, bytes(values))).collect();
    let view = |bytes| TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).unwrap();
    let views = tensors.iter().map(|(name, bytes)| (*name, view(bytes)));
    safetensors::serialize_to_file(views, None, path.as_std_path()).unwrap();
}
