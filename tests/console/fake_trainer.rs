//! A fake of `vidtui-train`: a supervisor and ranks that write the files of the real ones and compute nothing.
//!
//! The fake is the test binary itself: a script named `vidtui-train` runs [`act`] with the arguments in
//! `FAKE_TRAINER_ARGS`. So the fake needs no other binary, and writes its files with the crate with which the console reads them.
//!
//! `FAKE_STEP_MS` is the time of a step in ms. `FAKE_DIES_AT` is a step at which rank 1 of the first
//! attempt is killed, or of each attempt with `FAKE_DIES_ALWAYS`.

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::{
    Attempt, CheckpointManifest, ErrorCode, Event, EventKind, ExitFile, ExitReason, Failure, LineAppender,
    LogicalTensor, MetricSample, PidFile, RankExit, RankPid, RequestSource, Run, RunDir, SCHEMA, Slice, StartFrom,
    now_s,
};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The longest time that a fake runs.
const LIFE: Duration = Duration::from_secs(300);

/// Writes the script `vidtui-train` into `folder` and returns its path.
pub fn install(folder: &Utf8Path) -> Utf8PathBuf {
    let script = folder.join("vidtui-train");
    let me = std::env::current_exe().unwrap();
    let text = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = version ]; then\n\
         echo '{{\"version\":\"0.1.0\",\"tch\":\"0.24.0\",\"libtorch\":\"2.11.0\",\"cuda\":false}}'\n\
         exit\n\
         fi\n\
         FAKE_TRAINER_ARGS=\"$*\" exec '{}' --exact fake_trainer::act --nocapture\n",
        me.display()
    );
    std::fs::write(&script, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    script
}

/// The main function of the fake. As a test, without the variable, it does nothing.
#[test]
fn act() {
    let Ok(args) = std::env::var("FAKE_TRAINER_ARGS") else { return };
    // `supervise --run-dir DIR --attempt N --node NAME`; the paths have no spaces.
    let words: Vec<&str> = args.split(' ').collect();
    let after = |flag: &str| words.iter().position(|word| *word == flag).map(|at| words[at + 1]).unwrap();
    assert_eq!(words[0], "supervise");
    let dir = RunDir::new(after("--run-dir"));
    supervise(&dir, after("--attempt").parse().unwrap(), &NodeId::new(after("--node")).unwrap());
}

struct Fake<'a> {
    dir: &'a RunDir,
    run: Run,
    attempt: Attempt,
    events: LineAppender,
}

fn supervise(dir: &RunDir, number: u32, node: &NodeId) {
    // Fails if this process already leads its group, which is the wanted state.
    let _ = nix::unistd::setsid();
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.clone()).unwrap();
    let attempt = dir.read_attempt(number).unwrap();
    std::fs::create_dir_all(dir.log_dir(node)).unwrap();
    let mut ranks = spawn_ranks(dir, &attempt, node);
    let me = std::process::id() as i32;
    let rank_pids = ranks.iter().enumerate().map(|(rank, child)| {
        let pid = child.id() as i32;
        RankPid { rank, pid, start_ticks: start_ticks(pid) }
    });
    dir.write_pid(&PidFile {
        schema: SCHEMA,
        attempt: number,
        node: node.clone(),
        pid: me,
        pgid: nix::unistd::getpgrp().as_raw(),
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned(),
        start_ticks: start_ticks(me),
        started_s: now_s(),
        ranks: rank_pids.collect(),
    })
    .unwrap();
    let events = LineAppender::open(&dir.events()).unwrap();
    let mut fake = Fake { dir, run: dir.read_run().unwrap(), attempt, events };
    let (reason, step) = fake.train(&stop, &mut ranks);
    for rank in &mut ranks {
        let _ = rank.kill();
        let _ = rank.wait();
    }
    fake.write_exit(node, reason, step);
}

/// Starts processes that sleep, which tests can signal.
fn spawn_ranks(dir: &RunDir, attempt: &Attempt, node: &NodeId) -> Vec<Child> {
    let spawn = |rank: usize| {
        let log = std::fs::File::create(dir.rank_log(node, attempt.number, rank)).unwrap();
        let script = format!("echo rank {rank} begins; exec sleep {}", LIFE.as_secs());
        Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).stdout(log).spawn().unwrap()
    };
    (0..attempt.placement.world()).map(spawn).collect()
}

impl Fake<'_> {
    fn train(&mut self, stop: &AtomicBool, ranks: &mut [Child]) -> (ExitReason, u64) {
        let recipe = self.run.recipe().unwrap();
        let (seed, interval) = (recipe.train.seed as f64, recipe.checkpoint.interval);
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let step_time = Duration::from_millis(number("FAKE_STEP_MS").unwrap_or(50));
        let dies_at =
            number("FAKE_DIES_AT").filter(|_| self.attempt.number == 1 || number("FAKE_DIES_ALWAYS").is_some());
        let mut step = self.attempt.start_step;
        self.record(step, EventKind::Started { world: ranks.len() });
        match self.attempt.start.clone() {
            StartFrom::Random => {}
            StartFrom::Weights { path } => self.record(step, EventKind::WeightsLoaded { from: path }),
            StartFrom::Checkpoint { run, step: from_step }
            | StartFrom::CheckpointFreshData { run, step: from_step } => {
                self.record(step, EventKind::Resumed { from_step, of_run: run });
            }
        }
        let mut metrics = LineAppender::open(&self.dir.metrics()).unwrap();
        let total = self.attempt.effective(&recipe).train.steps();
        let lives_until = now_s() + LIFE.as_secs_f64();
        while step < total && now_s() < lives_until {
            thread::sleep(step_time);
            if stop.load(Ordering::SeqCst) {
                self.record(step, EventKind::SignalReceived { signal: 15 });
                self.record(step, EventKind::Stopping { source: RequestSource::Term, why: "received TERM".into() });
                self.save(step);
                self.record(step, EventKind::Stopped { source: RequestSource::Term, why: "received TERM".into() });
                return (ExitReason::Stopped, step);
            }
            if dies_at == Some(step) {
                return (ExitReason::Failed, step);
            }
            step += 1;
            metrics.append(&self.sample(step, seed, step_time.as_secs_f64())).unwrap();
            if interval > 0 && step.is_multiple_of(interval) && step < total {
                self.save(step);
            }
        }
        self.save(step);
        self.record(step, EventKind::Finished);
        (ExitReason::Finished, step)
    }

    /// Returns a sample with a falling loss and deterministic noise.
    fn sample(&self, step: u64, seed: f64, step_s: f64) -> MetricSample {
        let t = step as f64;
        let noise = ((t * 12.9898 + seed).sin() * 43_758.545).fract() * 0.04;
        MetricSample {
            attempt: self.attempt.number,
            step,
            t: now_s(),
            loss: Some(0.1 + 0.9 * (-t / 25.0).exp() + noise * 0.5),
            grad_norm: Some(0.4 + noise.abs()),
            lr: 1e-4,
            step_s,
            mem_gib_by_rank: vec![1.21, 1.19],
            mem_peak_gib_by_rank: vec![1.5, 1.4],
            ..MetricSample::default()
        }
    }

    /// Writes a valid checkpoint: all tensors with names and shapes, and one byte of data.
    fn save(&mut self, step: u64) {
        self.record(step, EventKind::CheckpointStarted);
        let recipe = self.run.recipe().unwrap();
        let folder = self.dir.step_dir(step);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("rank-00000.safetensors"), [0]).unwrap();
        std::fs::write(folder.join("state.toml"), format!("step = {step}\n")).unwrap();
        let names = ["rank-00000.safetensors", "state.toml"];
        let files = names.map(|name| rundir::file_sum(&folder.join(name)).unwrap()).to_vec();
        let specs = recipe::param_specs(&recipe.model);
        let tensors = specs.iter().map(|spec| LogicalTensor {
            name: spec.name.clone(),
            dtype: "F32".into(),
            shape: spec.shape.clone(),
            slices: vec![Slice {
                file: names[0].into(),
                key: spec.name.clone(),
                start: 0,
                len: spec.len(),
                within: None,
            }],
        });
        let manifest = CheckpointManifest {
            format: SCHEMA,
            run: self.run.id.clone(),
            attempt: self.attempt.number,
            step,
            saved_s: now_s(),
            params: specs.iter().map(recipe::ParamSpec::len).sum(),
            mesh: self.attempt.mesh,
            base: None,
            same_as: None,
            files,
            tensors: tensors.collect(),
        };
        manifest.write(&folder).unwrap();
        self.record(step, EventKind::CheckpointSaved { path: folder, bytes: 1, seconds: 0.01 });
    }

    fn record(&mut self, step: u64, kind: EventKind) {
        let event = Event::new(now_s(), self.attempt.number, Some(step), kind).by_rank(0);
        self.events.append(&event).unwrap();
    }

    fn write_exit(&self, node: &NodeId, reason: ExitReason, step: u64) {
        let failed = reason == ExitReason::Failed;
        let rank = |rank| RankExit {
            rank,
            code: (!failed).then_some(0),
            signal: failed.then_some(9),
            last_step: Some(step),
            ended_s: now_s(),
            stderr_tail: Vec::new(),
        };
        let failure = || {
            let why = format!("signal KILL ended it at step {step}; the kernel sends it when memory runs out");
            Failure::new(
                ErrorCode::RankKilled,
                format!("rank 1 died on node {node}"),
                why,
                "free memory on the node, then resume",
            )
        };
        let exit = ExitFile {
            schema: SCHEMA,
            attempt: self.attempt.number,
            node: node.clone(),
            ended_s: now_s(),
            reason,
            first_failure: failed.then_some(1),
            failure: failed.then(failure),
            ranks: (0..self.attempt.placement.world()).map(rank).collect(),
        };
        self.dir.write_exit(&exit).unwrap();
    }
}

fn start_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
}
