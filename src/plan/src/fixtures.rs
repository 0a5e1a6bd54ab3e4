//! Fixtures of this crate's tests: a tiny recipe, a curriculum of two stages, a run that was launched.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use recipe::{Curriculum, Recipe, Resolved, StageSpec, StageStart};
use rundir::{Attempt, CheckpointEntry, CheckpointSummary, Failure, Run, RunDir};
use runstate::{Liveness, RunFacts};

use crate::{Context, LaunchPlan, LaunchRequest, StartOptions, Target, TrainerBinary, launch};

/// 2026-11-20 03:40:12 UTC.
pub const NOW: f64 = 1_795_146_012.0;

pub fn recipe() -> Recipe {
    let keys = r#"
        name = "demo-2s"
        [model]
        num_layers = 2
        num_heads = 2
        head_dim = 16
        time_embed_dim = 32
        text_dim = 8
        text_len = 4
        in_channels = 4
        out_channels = 4
        latent_frames = 3
        latent_height = 4
        latent_width = 4
        [data]
        index = "/data/demo/2s.jsonl"
        [train]
        steps = 60
        global_batch = 4
        dtype = "float32"
        ttt_scan = "operators"
        fused = "operators"
        [optimizer]
        lr = 1e-3
        lr_ttt = 1e-3
        lr_end = 1e-5
        schedule = "cosine"
        schedule_ttt = "cosine"
        warmup_steps = 5
        [mesh]
        dp_shard = 2
        [checkpoint]
        interval = 20
        keep_last = 2
        [log]
        spike = 0
    "#;
    Recipe::from_table(&keys.parse().unwrap()).unwrap()
}

/// A recipe for a command that saves like Open-Sora.
pub fn command() -> Recipe {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/stages/command.toml");
    let mut recipe = recipe::load(path.into(), &[]).unwrap().recipe;
    recipe.command.resume = vec!["--load".into(), "{checkpoint}".into()];
    recipe
}

/// Two stages: `2s` from random weights, `4s` from the weights of `2s`.
pub fn curriculum() -> Curriculum {
    let stage = |name: &str, start, frames| {
        let mut recipe = recipe();
        recipe.name = format!("demo-{name}");
        recipe.model.latent_frames = frames;
        StageSpec {
            name: name.into(),
            resolved: Resolved { table: recipe.to_table(), recipe, origins: BTreeMap::new() },
            recipe_path: format!("/configs/demo/{name}.toml").into(),
            start,
            changes: Vec::new(),
        }
    };
    Curriculum {
        path: "/configs/demo/curriculum.toml".into(),
        title: "Demo".into(),
        stages: vec![stage("2s", StageStart::Random, 3), stage("4s", StageStart::Previous, 6)],
    }
}

/// A context with this machine as the target, for `ranks` ranks.
pub fn context(ranks: usize) -> Context {
    Context {
        cores: 2,
        now_s: NOW,
        random: 12345,
        by: "ada@vm".into(),
        runs_root: "/runs".into(),
        git_commit: Some("0123abc".into()),
        trainer: TrainerBinary {
            path: "/opt/vidtui/bin/vidtui-train".into(),
            version: "0.1.0".into(),
            tch: "0.24.0".into(),
            libtorch: "2.11.0".into(),
            cuda: false,
            sha256: "5d41402abc4b2a76b9719d911017c592".repeat(2),
        },
        program: "/opt/vidtui/bin/vidtui".into(),
        target: Target::local("vm", ranks),
        options: StartOptions::default(),
    }
}

/// A context with the nodes of a hostfile as the target.
pub fn cluster(hostfile: &str, world: usize) -> Context {
    let nodes = cluster::Hostfile::parse(hostfile).expect("a hostfile");
    let mut target = Target::hostfile(&nodes, world, 0, "hostfiles/four.txt");
    target.address = Some("10.0.0.1".into());
    Context { target, ..context(1) }
}

pub fn launch_plan() -> LaunchPlan {
    let curriculum = curriculum();
    let stage = &curriculum.stages[0];
    let request =
        LaunchRequest { recipe: &stage.resolved.recipe, name: None, stage: Some((&curriculum, stage)), init: None };
    launch(&request, &context(2)).expect("the demo can be launched")
}

pub fn run_and_attempt() -> (Run, Attempt) {
    let plan = launch_plan();
    (plan.run, plan.attempt)
}

/// A run whose attempt ended an hour ago, with its checkpoints.
pub struct Past {
    pub run: Run,
    pub dir: RunDir,
    pub facts: RunFacts,
    pub checkpoints: Vec<CheckpointEntry>,
    pub latest: Option<CheckpointSummary>,
}

/// Makes a run with checkpoints of these steps; a negative step is incomplete.
pub fn past(last_step: u64, saved: &[i64]) -> Past {
    let (run, attempt) = run_and_attempt();
    let dir = RunDir::of("/runs".into(), &run.id);
    let checkpoints: Vec<CheckpointEntry> = saved.iter().map(|step| checkpoint(&dir, *step)).collect();
    let latest = checkpoints.iter().filter_map(CheckpointEntry::complete).next_back().cloned();
    let facts = RunFacts {
        attempt: Some(Attempt { started_s: NOW - 3600.0, ..attempt }),
        alive: Liveness::Dead,
        last_metric: Some((last_step, NOW - 60.0)),
        steps_total: 60,
        ..RunFacts::default()
    };
    Past { run, dir, facts, checkpoints, latest }
}

fn checkpoint(dir: &RunDir, step: i64) -> CheckpointEntry {
    let number = step.unsigned_abs();
    let dir: Utf8PathBuf = dir.step_dir(number);
    if step < 0 {
        return CheckpointEntry::Incomplete {
            step: number,
            dir,
            why: "it has no manifest.toml: its save did not complete".into(),
        };
    }
    CheckpointEntry::Complete(CheckpointSummary {
        step: number,
        dir,
        attempt: 1,
        bytes: 1 << 20,
        saved_s: NOW - 100.0,
        is_pinned: false,
    })
}

/// Formats a failure with its code.
pub fn coded(failure: &Failure) -> String {
    format!("{:?}: {failure}", failure.code)
}

/// Formats a summary, one row per line.
pub fn rows(plan: &LaunchPlan) -> String {
    let mut text: String = plan.summary.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    for warning in &plan.warnings {
        text += &format!("! {warning}\n");
    }
    text
}
