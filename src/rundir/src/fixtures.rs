//! Small runs for tests.

#![allow(clippy::unwrap_used, reason = "a panic in a fixture is a failed test")]

use crate::{
    Attempt, AttemptWhy, CheckpointManifest, CheckpointSummary, FileSum, GpuModel, LogicalTensor, NodeEnvironment, Run,
    RunDir, RunId, SCHEMA, SampleSidecar, Slice, StartFrom, TrainState,
};
use crate::{file_sum, latest_among, step_checkpoints, write_toml};
use camino::Utf8Path;
use cluster::{NodeId, Placement, RankPlace};
use recipe::Mesh;
use std::fs;

/// Makes an empty run directory, which is removed when the first value is dropped.
pub fn temp() -> (tempfile::TempDir, RunDir) {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(Utf8Path::from_path(folder.path()).unwrap());
    (folder, run)
}

/// Returns the newest complete step directory.
pub fn latest(run: &RunDir) -> Option<CheckpointSummary> {
    latest_among(run, &step_checkpoints(run).unwrap())
}

/// Returns the id of the run of these fixtures.
pub fn run_id() -> RunId {
    RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap()
}

/// Makes the id of a node.
pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// Returns a run of the smallest recipe.
pub fn run() -> Run {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    Run {
        schema: SCHEMA,
        id: run_id(),
        name: "demo-2s".into(),
        curriculum: None,
        stage: None,
        created_s: 1000.0,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: "0.1.0".into(),
        libtorch: "2.11.0".into(),
        start: StartFrom::Random,
        lineage: None,
        imported: None,
        attached: None,
        launched_from: None,
        recipe: recipe::load(recipe.into(), &[]).unwrap().table,
    }
}

/// Returns an attempt that started at second 1000 with one rank on each of `nodes`.
pub fn attempt(number: u32, start_step: u64, nodes: &[&str]) -> Attempt {
    let place = |(rank, name): (usize, &&str)| RankPlace { rank, node: node(name), local_rank: 0 };
    Attempt {
        schema: SCHEMA,
        number,
        why: if number == 1 { AttemptWhy::Launch } else { AttemptWhy::Resume },
        by: "ada@ml-1".into(),
        started_s: 1000.0,
        start_step,
        start: StartFrom::Random,
        asked_step: None,
        steps: None,
        changed: Vec::new(),
        checkpoint: None,
        waived: Vec::new(),
        mesh: Mesh { dp_replicate: 1, dp_shard: nodes.len(), tp: 1 },
        placement: Placement { ranks: nodes.iter().enumerate().map(place).collect() },
        logins: Vec::new(),
        spares: Vec::new(),
        slurm: None,
    }
}

/// Returns the environment of a node with two GPUs.
pub fn node_environment() -> NodeEnvironment {
    let gpu = GpuModel { name: Some("NVIDIA H100 80GB HBM3".into()), mem_total_mib: Some(81_559) };
    NodeEnvironment {
        schema: SCHEMA,
        supervisor: "0.1.0".into(),
        os: Some("Ubuntu 24.04.1 LTS".into()),
        kernel: Some("6.8.0-45-generic".into()),
        cpu: Some("AMD EPYC 9654 96-Core Processor".into()),
        cpus: Some(192),
        mem_total_mib: Some(1_547_000),
        driver: Some("580.65.06".into()),
        gpus: vec![gpu.clone(), gpu],
    }
}

/// Returns the sidecar of a sample.
pub fn sample(step: u64, index: usize) -> SampleSidecar {
    SampleSidecar {
        v: SCHEMA,
        step,
        index,
        prompt: "a rabbit on a meadow".into(),
        negative: "blurry".into(),
        image: None,
        image_end: None,
        video: None,
        mask: None,
        seed: 42,
        width: 128,
        height: 96,
        frames: 17,
        fps: 8.0,
        sampling_steps: 20,
        scheduler: "dpm".into(),
        guidance: 6.0,
        dynamic_guidance: true,
        dtype: "float32".into(),
        ema: false,
        weights: "checkpoints/step-00000120".into(),
        weights_xxh3: "0".repeat(16),
        lora: Vec::new(),
        trainer: "0.1.0".into(),
        libtorch: "2.11.0".into(),
        took_s: 1.5,
        t: 1_795_147_200.0,
    }
}

/// Writes an attempt of one rank on node `ml-1`.
pub fn write_attempt(run: &RunDir, number: u32, start_step: u64) {
    fs::create_dir_all(run.attempt_dir(number)).unwrap();
    run.write_attempt(&attempt(number, start_step, &["ml-1"])).unwrap();
}

/// Writes a complete checkpoint of one tensor in two files.
pub fn save(run: &RunDir, step: u64, attempt: u32) -> CheckpointManifest {
    let dir = run.step_dir(step);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("rank-00000.safetensors"), vec![1; 100]).unwrap();
    fs::write(dir.join("rank-00001.safetensors"), vec![2; 60]).unwrap();
    write_toml(&dir.join("state.toml"), &state(step)).unwrap();
    let files = ["rank-00000.safetensors", "rank-00001.safetensors", "state.toml"];
    let manifest = manifest(step, attempt, files.map(|name| file_sum(&dir.join(name)).unwrap()).into());
    manifest.write(&dir).unwrap();
    manifest
}

/// Returns the state of training after a step.
pub fn state(step: u64) -> TrainState {
    TrainState {
        step,
        samples_seen: 4 * step,
        epoch: 0,
        position: 4 * step,
        seed: 7,
        adam_step: step,
        global_batch: 4,
        data_fingerprint: "00112233445566ff".into(),
        data_order: String::new(),
        bad_steps: 0,
        ..TrainState::default()
    }
}

fn manifest(step: u64, attempt: u32, files: Vec<FileSum>) -> CheckpointManifest {
    let slice = |rank: usize, start, len| Slice {
        file: format!("rank-{rank:05}.safetensors"),
        key: "patch_embed.video.bias".into(),
        start,
        len,
        within: None,
    };
    CheckpointManifest {
        format: SCHEMA,
        run: run_id(),
        attempt,
        step,
        saved_s: 1000.0 + step as f64,
        params: 6,
        mesh: Mesh { dp_replicate: 1, dp_shard: 2, tp: 1 },
        base: None,
        same_as: None,
        files,
        tensors: vec![LogicalTensor {
            name: "patch_embed.video.bias".into(),
            dtype: "F32".into(),
            shape: vec![2, 3],
            slices: vec![slice(1, 4, 2), slice(0, 0, 4)],
        }],
    }
}
