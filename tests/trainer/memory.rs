//! Ranks with little memory: out of memory is a failure that names the phase and what fits, and swapped blocks fit where others do not.

use crate::harness::{NODE, RunUnderTest, Scene, losses};
use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{ErrorCode, EventKind};
use serde_json::Value;

/// 32 blocks of 2.4 million parameters each: 300 MB of frozen weights in float32.
const FROZEN: [&str; 12] = [
    "model.num_layers=32",
    "model.num_heads=6",
    "model.head_dim=64",
    "model.time_embed_dim=128",
    "train.dtype=float32",
    "train.steps=3",
    "train.global_batch=1",
    "train.trainable=lora",
    "lora.rank=4",
    "checkpoint.interval=0",
    "optimizer.warmup_steps=0",
    // The files of the test are on a disk: /tmp may be memory.
    concat!("memory.folder=", env!("CARGO_MANIFEST_DIR")),
];

fn with<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [sets, more].concat()
}

/// Returns the snapshot of rank 0.
fn snapshot(run: &RunUnderTest) -> Value {
    let path = run.dir.memory_snapshot(&NodeId::new(NODE).unwrap(), 1, 0);
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))).unwrap()
}

/// Returns the peak of resident memory in MiB.
fn peak_mib(run: &RunUnderTest) -> f64 {
    run.samples().last().unwrap().mem_peak_gib_by_rank[0] * 1024.0
}

#[test]
fn swapped_blocks_train_in_less_memory_with_the_same_losses() {
    let scene = Scene::new();
    let none = scene.launch("none", &[1, 1], &FROZEN).finish();
    let swap = scene.launch("swap", &[1, 1], &with(&FROZEN, &["memory.block_swap=32"])).finish();
    assert_eq!(losses(&swap), losses(&none));
    // The blocks have 300 MB, and only a few are in memory at a time.
    assert!(peak_mib(&swap) < peak_mib(&none) - 200.0, "{} {}", peak_mib(&swap), peak_mib(&none));
}

#[test]
fn a_resume_may_swap_other_blocks() {
    let scene = Scene::new();
    let sets = ["train.steps=4", "train.global_batch=2", "train.dtype=float32"];
    let folder = concat!("memory.folder=", env!("CARGO_MANIFEST_DIR"));
    let want = losses(&scene.launch("calm", &[1, 2], &sets).finish());
    let all = ["memory.block_swap=2", "memory.optimizer_offload=true", "memory.activation_offload=true", folder];
    let mut run = scene.launch("swap", &[1, 2], &with(&with(&sets, &all), &["train.steps=2"])).finish();
    run.train_on_to(4);
    assert_eq!(losses(&run.resume(&[1, 2]).finish()), want);
}

#[test]
fn a_rank_without_memory_names_the_phase_and_settings_that_fit() {
    let scene = Scene::new();
    let load = scene.launch_within(350 << 20, "load", &FROZEN).wait().0;
    assert_eq!(load.failure_code(), Some(ErrorCode::OutOfMemory));
    let found = snapshot(&load);
    assert_eq!(found["phase"], "load");
    assert!(
        found["limit_bytes"].as_u64().unwrap() <= 350 << 20 && found["plan"]["weights"].as_u64().unwrap() > 300_000_000
    );

    // Without recomputation, the activations of a large batch do not fit.
    let large = with(&FROZEN, &["model.num_layers=6", "train.global_batch=256", "remat.mode=none"]);
    let limit = 900 << 20;
    let (forward, outputs) = scene.launch_within(limit, "forward", &large).wait();
    let log = String::from_utf8_lossy(&outputs[0].stderr);
    assert_eq!(forward.failure_code(), Some(ErrorCode::OutOfMemory), "{log}");
    let found = snapshot(&forward);
    assert_eq!(found["phase"], "forward");
    let fits = found["fits"].as_array().unwrap_or_else(|| panic!("{found}"));
    assert!(!fits.is_empty() && fits[0]["peak"].as_u64().unwrap() <= limit, "{found}");

    // The settings that the failure proposes train within the same limit.
    let sets: Vec<&str> = fits[0]["sets"].as_array().unwrap().iter().map(|set| set.as_str().unwrap()).collect();
    scene.launch_within(limit, "fits", &with(&large, &sets)).finish();
}

#[test]
fn a_request_makes_a_trace_of_the_next_steps_on_every_rank() {
    let scene = Scene::new();
    let mut running = scene.launch("profile", &[1, 2], &["train.steps=100000", "train.global_batch=2"]);
    running.wait_for_step(1);
    std::fs::write(running.run.dir.profile_file(), "2").unwrap();
    running.wait_for("the traces", |run| profiled(run).is_some());
    running.signal(0, "TERM");
    let run = running.finish();
    assert!(!run.dir.profile_file().exists());
    let (path, steps) = profiled(&run).unwrap();
    assert_eq!(steps, 2);
    for rank in 0..2 {
        let path = path.as_str().replace("rank-00000", &format!("rank-{rank:05}"));
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let count = |name: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == "X").count();
        let named =
            |begin: &str| events.iter().filter(|e| e["name"].as_str().is_some_and(|n| n.starts_with(begin))).count();
        assert_eq!((named("step "), count("forward"), count("backward"), count("optimizer")), (2, 2, 2, 2), "{path}");
        assert!(count("aten::mm") + count("aten::addmm") > 10, "{path}");
    }
}

/// Returns the path and the number of steps of the trace of rank 0, if it is written.
fn profiled(run: &RunUnderTest) -> Option<(Utf8PathBuf, u64)> {
    run.events().into_iter().find_map(|event| match event.kind {
        EventKind::Profiled { path, steps } => Some((path, steps)),
        _ => None,
    })
}

#[test]
fn a_stop_writes_the_trace_of_the_steps_made_so_far() {
    let scene = Scene::new();
    let mut running = scene.launch("profile", &[1, 1], &["train.steps=100000", "train.global_batch=2"]);
    running.wait_for_step(1);
    std::fs::write(running.run.dir.profile_file(), "90000").unwrap();
    running.wait_for("the request to be read", |run| !run.dir.profile_file().exists());
    let step = running.run.samples().last().map_or(0, |sample| sample.step);
    running.wait_for_step(step + 4);
    // A second request waits for the end of the trace.
    std::fs::write(running.run.dir.profile_file(), "1").unwrap();
    running.wait_for_step(step + 8);
    running.signal(0, "TERM");
    let run = running.finish();
    assert!(run.dir.profile_file().exists());
    let (path, steps) = profiled(&run).unwrap();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = events.iter().filter(|e| e["name"].as_str().is_some_and(|name| name.starts_with("step "))).count();
    assert!(steps >= 4 && named as u64 == steps, "{named} {steps}");
}

#[test]
fn training_continues_without_a_trace_that_cannot_be_written() {
    let scene = Scene::new();
    let mut run = scene.launch("profile", &[1, 1], &["train.steps=2", "train.global_batch=2"]).finish();
    // The first step reads the request, and the trace begins with the next one.
    std::fs::write(run.dir.profile_file(), "1").unwrap();
    let trace = run.dir.trace(&NodeId::new(NODE).unwrap(), 2, 0, 4);
    std::fs::create_dir_all(trace.join("in-the-way")).unwrap();
    run.train_on_to(6);
    let run = run.resume(&[1, 1]).finish();
    assert!(profiled(&run).is_none() && !run.dir.profile_file().exists());
    assert_eq!(run.samples().last().unwrap().step, 6);
}
