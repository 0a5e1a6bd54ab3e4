//! A rig with the console on its head and the trainer on its nodes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rig::{Options, Rig};
use rundir::{ErrorCode, Failure, MetricSample, RunDir, Tail};
use serde_json::Value;

pub const VIDTUI: &str = env!("CARGO_BIN_EXE_vidtui");
/// The longest wait; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(180);
/// A model whose steps cost little CPU, so that many runs train side by side.
pub const SMALL: &str = "--set model.num_layers=1 --set model.num_heads=2 --set model.head_dim=16";
/// The shortest time of a step, so that a run outlasts the actions of a test, and a waiting test takes little CPU.
const PACE_S: f64 = 0.5;
/// The shortest time of a step of a run that a test must disturb before its last step: a busy machine needs seconds for that.
const SLOW_PACE_S: f64 = 2.0;
/// The arguments with which a resume continues a slow run at full speed.
pub const FAST: &str = "--set env.variables.TRAIN_PACE_S=0";

pub struct TestSite {
    pub rig: Rig,
    pub runs: Utf8PathBuf,
    /// The trainer that the console finds: a script that knows the version of [`TestSite::binary`], supervises with `vidtui supervise` and
    /// runs the binary for everything else. A third of the CPU time of these tests would be libtorch that is loaded to print a version or
    /// to supervise. [`TestSite::with_binary`] is without the script.
    pub trainer: Utf8PathBuf,
    /// `vidtui-train`.
    pub binary: Utf8PathBuf,
}

/// The result of a command of the console.
pub struct CommandOutput {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

impl TestSite {
    /// Starts four nodes. Where no rig is possible, prints why and returns `None`, which skips the test.
    pub fn new() -> Option<Self> {
        Self::of(Options::new(4).gpus(2))
    }

    /// Starts four nodes with Slurm. Skips the test like [`TestSite::new`].
    pub fn with_slurm() -> Option<Self> {
        Self::of(Options::new(4).gpus(2).slurm())
    }

    /// Starts nodes for runs whose trainer is a command. There is no `vidtui-train`.
    pub fn without_trainer(nodes: usize) -> Option<Self> {
        Self::with(Options::new(nodes).gpus(2), "/nowhere/vidtui-train".into())
    }

    /// Starts nodes with Slurm for runs whose trainer is a command. There is no `vidtui-train`.
    pub fn without_trainer_with_slurm(nodes: usize) -> Option<Self> {
        Self::with(Options::new(nodes).gpus(2).slurm(), "/nowhere/vidtui-train".into())
    }

    fn of(options: Options) -> Option<Self> {
        let folder = Utf8Path::new(VIDTUI).parent().unwrap();
        let candidates = [folder.join("vidtui-train"), folder.with_file_name("release").join("vidtui-train")];
        let Some(binary) = candidates.into_iter().find(|path| path.exists()) else {
            println!("skipped: no vidtui-train beside {VIDTUI}; `cargo xtask test` builds it");
            return None;
        };
        let mut site = Self::with(options, binary)?;
        site.trainer = site.rig.share().join("trainer/vidtui-train");
        fs::create_dir(site.trainer.parent().unwrap()).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let script = format!(
            "#!/bin/bash\n\
             case $1 in\n\
             version) echo '{{\"version\":\"{version}\",\"tch\":\"\",\"libtorch\":\"2.11.0\",\"cuda\":false}}' ;;\n\
             supervise) VIDTUI_TRAIN='{binary}' exec -a vidtui-train '{VIDTUI}' \"$@\" ;;\n\
             *) exec '{binary}' \"$@\" ;;\n\
             esac\n",
            binary = site.binary
        );
        fs::write(&site.trainer, script).unwrap();
        fs::set_permissions(&site.trainer, fs::Permissions::from_mode(0o755)).unwrap();
        Some(site)
    }

    /// Makes the console find `vidtui-train` itself.
    pub fn with_binary(mut self) -> Self {
        self.trainer = self.binary.clone();
        self
    }

    fn with(options: Options, trainer: Utf8PathBuf) -> Option<Self> {
        let rig = options.up_or_skip()?;
        let runs = rig.share().join("runs");
        Some(Self { rig, runs, trainer: trainer.clone(), binary: trainer })
    }

    /// Runs the console on the head.
    pub fn vidtui(&self, words: &str) -> CommandOutput {
        let mut command = self.command(words);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        CommandOutput { ok: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Runs the console, which must succeed; returns its output.
    pub fn does(&self, words: &str) -> String {
        let output = self.vidtui(words);
        assert!(output.ok, "vidtui {words}: {}\n{}", output.err, output.out);
        output.out
    }

    /// Runs the console with `--json`; it must succeed. Returns its document.
    pub fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.does(&format!("{words} --json"))).unwrap()
    }

    /// Runs `check` with `--json` and returns the checks that failed, each with its id, its node and its code.
    pub fn failed_checks(&self, words: &str) -> Vec<(String, String, ErrorCode)> {
        let output = self.vidtui(&format!("{words} --json"));
        let document: Value = serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("{}", output.err));
        let failed = document["checks"].as_array().unwrap().iter().filter(|check| check["result"] == "bad");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let code = |check: &Value| serde_json::from_value(check["failure"]["code"].clone()).unwrap();
        failed.map(|check| (text(&check["id"]), text(&check["node"]), code(check))).collect()
    }

    /// Returns the document of the newest run.
    pub fn status(&self) -> Value {
        self.json("status latest")
    }

    /// Returns the state of the newest run.
    pub fn state(&self) -> String {
        self.status()["state"].as_str().unwrap().to_owned()
    }

    /// Returns whether the newest run trains or saves.
    pub fn trains(&self) -> bool {
        ["running", "saving"].contains(&self.state().as_str())
    }

    /// Returns why the newest run failed.
    pub fn failure(&self) -> Failure {
        serde_json::from_value(self.status()["failure"].clone()).unwrap()
    }

    /// Runs the console with `--json`; it must fail. Returns its error.
    pub fn refuses(&self, words: &str) -> Failure {
        let output = self.vidtui(&format!("{words} --json"));
        assert!(!output.ok, "vidtui {words}: {}", output.out);
        let error = output.err.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let error = error.unwrap_or_else(|| panic!("vidtui {words}: {}", output.err));
        serde_json::from_value(error["error"].clone()).unwrap()
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = self.rig.command(VIDTUI);
        command.args(["--runs", self.runs.as_str()]).args(words.split_whitespace()).stdin(Stdio::null());
        let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
        command.current_dir(root).env("VIDTUI_TRAIN", &self.trainer).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Launches a small model with one rank on each of four nodes; returns the run. Its steps take as long as [`PACE_S`].
    ///
    /// A rank has one thread, because the order of sums depends on the number of threads.
    pub fn launch(&self, target: &str, steps: u64) -> RunDir {
        self.launch_at(target, steps, PACE_S)
    }

    /// Launches like [`TestSite::launch`], but each step takes [`SLOW_PACE_S`], so that the test can disturb the run before its last step.
    pub fn launch_slowly(&self, target: &str, steps: u64) -> RunDir {
        self.launch_at(target, steps, SLOW_PACE_S)
    }

    /// Trains like [`TestSite::launch`], but on this machine and without an interruption; returns the losses.
    pub fn losses_here(&self, steps: u64) -> BTreeMap<u64, f64> {
        losses(&self.launch_at("--local 4 --wait", steps, 0.0))
    }

    fn launch_at(&self, target: &str, steps: u64, pace_s: f64) -> RunDir {
        let words = format!(
            "launch configs/demo/2s.toml {target} {SMALL} --set mesh.dp_shard=4 --set train.threads=1 --set train.steps={steps} \
             --set checkpoint.interval=3 --set optimizer.warmup_steps=1 --set env.variables.TRAIN_PACE_S={pace_s}"
        );
        RunDir::new(self.runs.join(self.does(&words)))
    }

    /// Runs a command of Slurm on the head, which must succeed; returns its output.
    pub fn slurm(&self, words: &str) -> String {
        let mut words = words.split_whitespace();
        let output = self.rig.command(words.next().unwrap()).args(words.clone()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Waits until a condition holds; `what` describes it.
    pub fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let began = Instant::now();
            if holds() {
                return;
            }
            assert!(Instant::now() < deadline, "never: {what}\n{}\n{}", self.does("status latest"), self.job_logs());
            // A check that starts programs must take little of a core.
            thread::sleep((6 * began.elapsed()).clamp(Duration::from_millis(50), Duration::from_secs(1)));
        }
    }

    /// Returns the logs of the jobs of all runs.
    fn job_logs(&self) -> String {
        let mut find = Command::new("find");
        find.args([self.runs.as_str(), "-name", "job.log", "-exec", "tail", "-n", "50", "-v", "{}", "+"]);
        String::from_utf8_lossy(&find.output().unwrap().stdout).into_owned()
    }

    pub fn until_step(&self, run: &RunDir, attempt: u32, step: u64) {
        let reached = || samples(run).iter().any(|sample| sample.attempt == attempt && sample.step >= step);
        self.until(&format!("step {step} of attempt {attempt}"), reached);
    }

    /// Counts the processes on a node whose command line matches.
    pub fn count_on(&self, node: &str, pattern: &str) -> usize {
        let output = self.rig.command_on(node, "pgrep").args(["-fc", pattern]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
    }

    /// Counts the processes of the trainer on a node.
    pub fn trainers_on(&self, node: &str) -> usize {
        self.count_on(node, "vidtui-train (rank|supervise)")
    }

    /// Waits until every node has one supervisor and one rank. A process that a supervisor forks looks like another supervisor
    /// until it runs its program.
    pub fn until_one_on_each(&self) {
        let one = |node: &String| self.trainers_on(node) == 2;
        self.until("a supervisor and a rank on each node", || self.rig.nodes().iter().all(one));
    }

    pub fn all_gone(&self) -> bool {
        self.rig.nodes().iter().all(|node| self.trainers_on(node) == 0)
    }
}

/// Asserts that the ranks of these nodes ended within a minute of a moment, according to their supervisors' records. The
/// heartbeat timeout is 10 s; the rest is for a busy machine. Without heartbeats, ranks would wait for minutes.
pub fn assert_down_soon(run: &RunDir, attempt: u32, nodes: &[&str], moment_s: f64) {
    for node in nodes {
        let exit = run.read_exit(&NodeId::new(*node).unwrap(), attempt).unwrap().unwrap();
        let took_s = exit.ended_s - moment_s;
        assert!(took_s < 60.0, "{node} was down after {took_s:.1} s: {exit:?}");
    }
}

pub fn samples(run: &RunDir) -> Vec<MetricSample> {
    if !run.metrics().exists() {
        return Vec::new();
    }
    let text = fs::read_to_string(run.metrics()).unwrap();
    assert!(text.lines().all(|line| !line.is_empty()));
    Tail::<MetricSample>::new(run.metrics()).poll().unwrap().items
}

/// The loss of each step; the higher attempt wins.
pub fn losses(run: &RunDir) -> BTreeMap<u64, f64> {
    samples(run).into_iter().map(|sample| (sample.step, sample.loss.unwrap())).collect()
}
