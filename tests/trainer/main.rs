//! Drives the real `vidtui-train rank` on CPU ranks over gloo: meshes, resumes, stops and faults.

#![expect(clippy::unwrap_used, reason = "a failed unwrap reports its line")]

mod adapters;
mod encode;
mod faults;
mod harness;
mod memory;
#[path = "../faults/mod.rs"]
mod operator_faults;
#[path = "../oracle/mod.rs"]
mod oracle;
mod samples;
mod saves;
mod segments;
mod wan;

use cluster::NodeId;
use harness::{NODE, Scene, assert_close, latest, losses};
use rundir::{Checkpoint, ErrorCode, EventKind, MetricSample, RequestSource, StartFrom};
use std::fs;

#[test]
fn every_mesh_gives_the_same_losses() {
    let scene = Scene::new();
    let sets = ["train.steps=20", "train.global_batch=4", "checkpoint.interval=0"];
    let want = losses(&scene.launch("one", &[1, 1], &sets).finish());
    assert_eq!(want.len(), 20);
    assert!(want.windows(2).any(|w| w[0] != w[1]));
    for mesh in [[1, 2], [1, 4], [2, 1], [2, 2]] {
        let run = scene.launch(&format!("mesh-{}x{}", mesh[0], mesh[1]), &mesh, &sets).finish();
        assert_close(&losses(&run), &want, 1e-4, &format!("mesh {mesh:?}"));
    }
    for mesh in [[1, 1, 2], [1, 2, 2]] {
        let run = scene.launch(&format!("tp-{}", mesh[1]), &mesh, &sets).finish();
        assert_close(&losses(&run), &want, 1e-4, &format!("mesh {mesh:?}"));
    }
    let accumulated = [&sets[..], &["train.grad_accum=2"]].concat();
    for mesh in [[1, 1], [1, 2]] {
        let run = scene.launch(&format!("accum-{}", mesh[1]), &mesh, &accumulated).finish();
        assert_close(&losses(&run), &want, 1e-4, &format!("accumulation 2 on mesh {mesh:?}"));
    }
}

#[test]
fn a_run_of_epochs_ends_after_them_and_counts_them() {
    let scene = Scene::new();
    // There are 11 clips. The last two of 22 samples do not fill a step.
    let run = scene.launch("epochs", &[1, 2], &["train.epochs=2", "train.global_batch=4"]).finish();
    let metrics = run.samples();
    let place = |sample: &MetricSample| (sample.step, (sample.epoch.unwrap() * 11.0).round());
    assert_eq!((place(&metrics[0]), place(&metrics[4]), metrics.len()), ((1, 4.0), (5, 20.0), 5));
    // Repeats make the epoch longer.
    let index = run.dir.read_run().unwrap().recipe().unwrap().data.index;
    let sets = [format!("data.sets=[{{index='{index}', repeats=2}}]"), "train.global_batch=2".into()];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(["train.epochs=1"]).collect();
    let metrics = scene.launch("repeats", &[1, 1], &sets).finish().samples();
    assert_eq!(metrics.last().map(|last| (last.step, last.epoch)), Some((11, Some(1.0))));
}

#[test]
fn recomputing_attention_gives_the_same_losses_as_saving_it() {
    let scene = Scene::new();
    let run = |name, keep: &str| losses(&scene.launch(name, &[1, 1], &["train.steps=6", keep]).finish());
    assert_eq!(run("keep", "remat.keep_attention=true"), run("again", "remat.keep_attention=false"));
}

#[test]
fn blocks_recomputed_one_by_one_in_groups_or_not_at_all_have_the_same_gradients() {
    let scene = Scene::new();
    let run = |name: &str, plan: &[&str]| {
        let sets = [&["train.steps=4", "model.num_layers=5", "train.global_batch=4"][..], plan].concat();
        losses(&scene.launch(name, &[1, 2], &sets).finish())
    };
    let want = run("one-by-one", &[]);
    assert_eq!(run("pairs", &["remat.group=2"]), want);
    assert_eq!(run("threes", &["remat.group=3", "remat.keep_attention=false"]), want);
    assert_eq!(run("not-at-all", &["remat.mode=none"]), want);
}

#[test]
fn half_precision_keeps_fp32_weights_and_losses_close_to_fp32() {
    let scene = Scene::new();
    let sets = ["train.steps=8", "train.global_batch=4", "train.trainable=qkvo"];
    let full = scene.launch("full", &[1, 2], &sets).finish();
    let half = scene.launch("half", &[1, 2], &[&sets[..], &["train.dtype=bfloat16"]].concat()).finish();
    // A bfloat16 has eight significant bits: rounding changes a number by at most one part in 256.
    assert_close(&losses(&half), &losses(&full), 0.02, "bfloat16");
    let checkpoint = Checkpoint::open(&latest(&half.dir).unwrap().dir).unwrap();
    let tensors = harness::tensors(&checkpoint.dir);
    let stored: usize = tensors.values().map(Vec::len).sum();
    let foreseen = half.dir.read_run().unwrap().recipe().unwrap().cost().checkpoint_bytes;
    assert_eq!(stored as u64, foreseen, "the size of a checkpoint differs from the forecast");
    let mut finer = 0;
    for (name, bytes) in tensors {
        let dtype = &checkpoint.tensor(&name).unwrap().dtype;
        let trained = name.contains(".attn.");
        assert_eq!(dtype, if trained { "F32" } else { "BF16" }, "{name}");
        assert!(trained || !name.contains('/'), "{name} is frozen and has optimizer state");
        if trained {
            // A number that was rounded to bfloat16 has a low half of zero.
            finer += bytes.chunks_exact(4).filter(|x| x[..2] != [0, 0]).count();
        }
    }
    assert!(finer > 0, "the master weights are not more precise than the compute dtype");
}

#[test]
fn metrics_contain_the_slowest_rank_and_the_achieved_flops() {
    let scene = Scene::new();
    let sets = ["train.steps=4", "train.global_batch=4", "log.peak_tflops=2", "log.interval=2"];
    let one = scene.launch("one", &[1, 1], &sets).finish().samples();
    let four = scene.launch("four", &[2, 2], &sets).finish().samples();
    assert_eq!(four.iter().map(|s| s.step).collect::<Vec<_>>(), [2, 4]);
    for (one, four) in one.iter().zip(&four) {
        let (a, b) = (one.weight_norm.unwrap(), four.weight_norm.unwrap());
        assert!(a > 0.0 && (a - b).abs() < 1e-4 * a, "{a} on one rank, {b} on four");
        assert_eq!(four.busy_s_by_rank.len(), 4);
        assert!(four.busy_s_by_rank.iter().zip(&four.step_s_by_rank).all(|(busy, step)| busy <= step), "{four:?}");
        assert!(four.reduce_s > 0.0 && four.tflops > 0.0, "{four:?}");
        assert!((four.mfu.unwrap() / (four.tflops / 2.0) - 1.0).abs() < 0.01 || four.tflops < 1e-4, "{four:?}");
    }
}

#[test]
fn fresh_data_keeps_the_optimizer_and_reports_the_state_that_is_not_restored() {
    let scene = Scene::new();
    let sets = ["train.steps=6", "train.global_batch=4", "checkpoint.interval=3"];
    let first = scene.launch("first", &[1, 2], &sets).finish();
    let other = scene.dataset("other", 3, [4, 4], 7);
    let index = format!("data.index={}", scene.text_dataset(&other, 16, 1));
    let sets = [&sets[..], &["train.global_batch=2", index.as_str()]].concat();
    let begin = |name: &str, start: StartFrom| scene.launch_from(name, &[1, 2], &sets, start).wait();
    let (refused, outputs) = begin("same-place", StartFrom::Checkpoint { run: first.id(), step: 3 });
    assert_eq!(refused.failure_code(), Some(ErrorCode::InvalidDataset));
    assert!(String::from_utf8_lossy(&outputs[0].stderr).contains("--fresh-data"));
    let (fresh, outputs) = begin("fresh", StartFrom::CheckpointFreshData { run: first.id(), step: 3 });
    assert!(outputs.iter().all(|o| o.status.success()));
    assert_eq!(fresh.samples().iter().map(|s| s.step).collect::<Vec<_>>(), [4, 5, 6]);
    let restored_of = |kind: &EventKind| match kind {
        EventKind::Restored { restored, not_restored, .. } => Some((restored.clone(), not_restored.clone())),
        _ => None,
    };
    let (restored, not_restored) = fresh.events().iter().find_map(|e| restored_of(&e.kind)).unwrap();
    insta::assert_snapshot!(format!("restored: {restored}\nnot restored: {not_restored}"));
}

#[test]
fn resuming_at_step_6_gives_the_same_bits_as_never_stopping() {
    let scene = Scene::new();
    let sets = ["train.steps=12", "train.global_batch=4", "checkpoint.interval=6", "checkpoint.keep_last=0"];
    for mesh in [[1, 2], [2, 2]] {
        let name = format!("{}x{}", mesh[0], mesh[1]);
        let whole = scene.launch(&format!("whole-{name}"), &mesh, &sets).finish();
        let first = scene.launch(&format!("first-{name}"), &mesh, &sets).finish();
        // The second attempt starts at step 6 of the first, as after a crash at step 12.
        let start = StartFrom::Checkpoint { run: first.id(), step: 6 };
        let again = first.attempt(&mesh, start, 6).finish();
        assert_eq!(losses(&again), losses(&whole), "mesh {mesh:?}");
        let file = |run: &harness::RunUnderTest, name: &str| std::fs::read(run.dir.step_dir(12).join(name)).unwrap();
        for name in ["rank-00000.safetensors", "optim-00001.safetensors"] {
            assert!(file(&again, name) == file(&whole, name), "{name} differs after a resume on mesh {mesh:?}");
        }
    }
}

#[test]
fn a_checkpoint_of_two_ranks_resumes_on_one_and_on_four() {
    let scene = Scene::new();
    let sets = ["train.steps=12", "train.global_batch=4", "checkpoint.interval=6", "checkpoint.keep_last=0"];
    let want = losses(&scene.launch("whole", &[1, 2], &sets).finish());
    for mesh in [[1, 1], [1, 4], [2, 2]] {
        let run = scene.launch(&format!("from-{}x{}", mesh[0], mesh[1]), &[1, 2], &sets).finish();
        let start = StartFrom::Checkpoint { run: run.id(), step: 6 };
        let again = run.attempt(&mesh, start, 6).finish();
        assert_close(&losses(&again), &want, 1e-4, &format!("resumed on mesh {mesh:?}"));
        // Another mesh rounds differently, so the event lists what is not restored exactly.
        let differs =
            |kind: &EventKind| matches!(kind, EventKind::Restored { not_restored, .. } if !not_restored.is_empty());
        assert!(again.events().iter().any(|e| differs(&e.kind)), "{:?}", again.events());
    }
}

#[test]
fn a_checkpoint_of_one_mesh_with_tp_resumes_on_another_to_the_same_losses() {
    let scene = Scene::new();
    let sets = ["train.steps=12", "train.global_batch=4", "checkpoint.interval=6", "checkpoint.keep_last=0"];
    let want = losses(&scene.launch("whole", &[1, 2], &sets).finish());
    let meshes: [(&[usize], &[usize]); 3] = [(&[1, 2], &[1, 1, 2]), (&[1, 1, 2], &[1, 2]), (&[1, 1, 2], &[1, 2, 2])];
    for (number, (from, to)) in meshes.into_iter().enumerate() {
        let run = scene.launch(&format!("from-{number}"), from, &sets).finish();
        let start = StartFrom::Checkpoint { run: run.id(), step: 6 };
        let again = run.attempt(to, start, 6).finish();
        assert_close(&losses(&again), &want, 1e-4, &format!("from mesh {from:?} on {to:?}"));
    }
}

/// The optimizers, each with an EMA of the weights.
const OPTIMIZERS: [[&str; 3]; 3] = [
    ["optimizer.kind=adamw8bit", "ema.decay=0.9", "ema.warmup=none"],
    ["optimizer.kind=adafactor", "ema.decay=0.9", "optimizer.lr=0.01"],
    ["optimizer.kind=prodigy", "ema.decay=0.9", "optimizer.lr=1"],
];

#[test]
fn every_optimizer_gives_the_same_losses_on_every_mesh_and_after_a_resume() {
    let scene = Scene::new();
    for own in OPTIMIZERS {
        let sets = [&own[..], &["train.steps=8", "train.global_batch=4", "checkpoint.interval=4"]].concat();
        let name = |what: &str| format!("{}-{what}", own[0].rsplit('=').next().unwrap());
        let whole = scene.launch(&name("whole"), &[1, 2], &sets).finish();
        let first = scene.launch(&name("first"), &[1, 2], &sets).finish();
        let start = StartFrom::Checkpoint { run: first.id(), step: 4 };
        let mut again = first.attempt(&[1, 2], start.clone(), 4).finish();
        assert_eq!(losses(&again), losses(&whole), "{own:?}");
        let tensors = |run: &harness::RunUnderTest| harness::tensors(&run.dir.step_dir(8));
        assert!(tensors(&again) == tensors(&whole), "{own:?}: a tensor differs after a resume");
        assert!(tensors(&whole).keys().any(|name| name.starts_with("ema/")));
        for mesh in [&[1, 1][..], &[1, 1, 2]] {
            let other = scene.launch(&name(&format!("on-{}", mesh.len())), mesh, &sets).finish();
            assert_close(&losses(&other), &losses(&whole), 1e-3, &format!("{own:?} on mesh {mesh:?}"));
            again = again.attempt(mesh, start.clone(), 4).finish();
            assert_close(&losses(&again), &losses(&whole), 1e-3, &format!("{own:?} resumed on mesh {mesh:?}"));
        }
    }
}

#[test]
fn a_checkpoint_moves_from_mesh_to_mesh_without_a_changed_bit() {
    moves_without_a_changed_bit(&["ema.decay=0.9"]);
}

#[test]
fn the_state_of_adafactor_moves_from_mesh_to_mesh_without_a_changed_bit() {
    moves_without_a_changed_bit(&["optimizer.kind=adafactor"]);
}

fn moves_without_a_changed_bit(own: &[&str]) {
    let scene = Scene::new();
    let sets = [
        "train.steps=2",
        "train.global_batch=4",
        "model.num_heads=4",
        "model.layer=ttt_mlp",
        "model.ttt_mini_batch=4",
        "optimizer.warmup_steps=1",
    ];
    let sets = [&sets[..], own].concat();
    let mut last = scene.launch("trained", &[1, 2, 2], &sets).finish();
    let want = harness::tensors(&last.dir.step_dir(2));
    assert!(want.len() > 2 * 60, "{} tensors", want.len());
    // Each run starts at the last checkpoint, has no steps left, and saves the state that it loaded.
    for mesh in [[1, 1, 1], [1, 1, 4], [1, 4, 1], [2, 1, 2], [1, 2, 2]] {
        let start = StartFrom::Checkpoint { run: last.id(), step: 2 };
        let name = mesh.map(|n| n.to_string()).join("x");
        last = scene.launch_from(&name, &mesh, &sets, start).finish();
        let got = harness::tensors(&last.dir.step_dir(2));
        assert!(got.keys().eq(want.keys()));
        let differ: Vec<_> = want.iter().filter(|(name, bytes)| got[*name] != **bytes).map(|(name, _)| name).collect();
        assert!(differ.is_empty(), "on mesh {mesh:?}: {differ:?}");
    }
}

#[test]
fn a_stop_signal_to_one_rank_saves_and_stops_all_at_the_same_step() {
    let scene = Scene::new();
    let mut running = scene.launch("stop", &[1, 2], &["train.steps=100000", "checkpoint.interval=0"]);
    running.wait_for_step(3);
    running.signal(1, "TERM");
    let run = running.finish();
    let checkpoint = latest(&run.dir).expect("the stop left a checkpoint");
    assert_eq!(checkpoint.step, run.samples().last().unwrap().step);
    assert_eq!(run.stop_sources(), [RequestSource::Term]);
    // The next attempt resumes from this checkpoint.
    let start = StartFrom::Checkpoint { run: run.id(), step: checkpoint.step };
    let mut again = run.attempt(&[1, 2], start, checkpoint.step);
    again.wait_for_step(checkpoint.step + 2);
    again.signal(0, "TERM");
    again.finish();
}

#[test]
fn a_signal_can_request_a_checkpoint_without_stopping() {
    let scene = Scene::new();
    let mut running = scene.launch("save", &[1, 2], &["train.steps=100000", "checkpoint.interval=0"]);
    running.wait_for_step(2);
    running.signal(0, "USR1");
    running.wait_for("a checkpoint", |run| latest(&run.dir).is_some());
    let step = latest(&running.run.dir).unwrap().step;
    running.wait_for_step(step + 2);
    running.signal(0, "TERM");
    running.finish();
}

#[test]
fn signals_interrupt_no_thread_that_computes() {
    let scene = Scene::new();
    let mut running = scene.launch("masks", &[1, 2], &["train.steps=100000", "checkpoint.interval=2"]);
    running.wait_for_step(3);
    let handled: u64 = [1, 2, 10, 15].iter().map(|signal| 1 << (signal - 1)).sum();
    for pid in running.pids() {
        let mut takers = 0;
        for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
            // A thread may have ended.
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap();
            match field("Name:") {
                "signals" => takers += 1,
                _ => assert_eq!(blocked & handled, handled, "{status}"),
            }
        }
        assert_eq!(takers, 1, "one thread takes the signals");
    }
    running.signal(0, "TERM");
    running.finish();
}

#[test]
fn a_killed_rank_ends_the_others_with_an_error_and_keeps_the_last_checkpoint() {
    let scene = Scene::new();
    for (name, mesh) in [("killed", [1, 2, 1]), ("killed-tp", [1, 1, 2])] {
        let mut running = scene.launch(name, &mesh, &["train.steps=100000", "checkpoint.interval=3"]);
        running.wait_for("a checkpoint", |run| latest(&run.dir).is_some());
        running.signal(1, "KILL");
        let (run, outputs) = running.wait();
        assert!(outputs.iter().all(|o| !o.status.success()));
        assert_eq!(run.failure_code(), Some(ErrorCode::PeerLost));
        let step = latest(&run.dir).unwrap().step;
        Checkpoint::open(&run.dir.step_dir(step)).unwrap().verify_checksums().unwrap();
    }
}

#[test]
fn later_stages_train_attention_alone_and_start_from_the_weights_of_the_stage_before() {
    let scene = Scene::new();
    let first = scene.launch("first", &[1, 2], &["train.steps=4"]).finish();
    let from = latest(&first.dir).unwrap().dir;
    let longer = scene.dataset("longer", 5, [4, 4], 8);
    let sets =
        ["train.steps=4", "train.trainable=qkvo", "model.latent_frames=5", "model.text_len=12", "train.global_batch=2"];
    let index = format!("data.index={}", scene.text_dataset(&longer, 12, 1));
    let sets = [&sets[..], &[index.as_str()]].concat();
    let second = scene.launch_from("second", &[1, 2], &sets, StartFrom::Weights { path: from.clone() }).finish();
    let (before, after) = (harness::tensors(&from), harness::tensors(&latest(&second.dir).unwrap().dir));
    let mut changed = 0;
    for (name, value) in &after {
        if let Some(parameter) = name.strip_prefix("exp_avg/") {
            assert!(parameter.contains(".attn."), "{parameter} is frozen and has optimizer state");
        } else if !name.contains('/') {
            let same = before[name] == *value;
            assert_eq!(same, !name.contains(".attn."), "{name}");
            changed += usize::from(!same);
        }
    }
    assert!(changed > 0);
}

#[test]
fn every_rank_rejects_a_data_set_that_does_not_match_the_recipe() {
    let scene = Scene::new();
    for (set, word) in
        [("data.index=/nowhere/index.jsonl", "/nowhere/index.jsonl"), ("model.latent_height=8", "latent")]
    {
        let (run, outputs) = scene.launch("misfit", &[1, 2], &["train.steps=2", set]).wait();
        for output in &outputs {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && stderr.contains(word) && stderr.contains("hint:"), "{stderr}");
        }
        assert!(run.samples().is_empty());
        std::fs::remove_dir_all(&run.dir.root).unwrap();
    }
}

#[test]
fn every_rank_reports_missing_gpus() {
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_vidtui-train"));
    let version = program.args(["version", "--json"]).output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains("\"cuda\":true") {
        println!("skipped: this machine has a GPU, and the trainer uses it");
        return;
    }
    let (run, outputs) = Scene::new().launch("gpus", &[1, 2], &["train.steps=2", "train.device=cuda"]).wait();
    for output in &outputs {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains("hint:") && stderr.contains("train.device"), "{stderr}");
    }
    assert!(run.samples().is_empty());
}

#[test]
fn steps_that_are_not_finite_are_not_applied_and_end_the_run_after_three_in_a_row() {
    let scene = Scene::new();
    // A latent of infinities makes every gradient undefined.
    let sets = ["train.steps=50", "train.max_bad_steps=3", "model.latent_scale=1e38", "checkpoint.interval=0"];
    let (run, _) = scene.launch("nan", &[1, 2], &sets).wait();
    assert_eq!(run.failure_code(), Some(ErrorCode::NotFinite));
    assert!(run.samples().iter().all(|s| s.loss.is_none() && s.grad_norm.is_none()));
    assert_eq!(run.events().iter().filter(|e| matches!(e.kind, EventKind::StepSkipped { .. })).count(), 3);
    // The save of step 2 is in progress when step 3 exceeds the limit.
    let sets = [&sets[..], &["checkpoint.interval=1"]].concat();
    let (saving, _) = scene.launch("nan-saving", &[1, 2], &sets).wait();
    let begun = saving.events().into_iter().filter(|e| e.kind == EventKind::CheckpointStarted);
    assert_eq!(begun.filter_map(|e| e.step).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(latest(&saving.dir).unwrap().step, 2);
}

/// Forecast: weights, gradients, optimizer state and average, from the formulas of `vidtui check`. Measured: the growth of resident memory
/// with 3 more blocks of 3 million parameters, so that libtorch and all other constant memory cancel. A
/// tolerance of 10% covers the activations of 28 tokens.
#[test]
fn the_state_of_a_model_takes_the_forecast_memory() {
    let scene = Scene::new();
    let held = |name: &str, layers: usize, mesh: [usize; 2], own: &str| {
        let sizes = [format!("model.num_layers={layers}"), own.to_owned()];
        let sets = ["model.num_heads=8", "model.head_dim=64", "train.steps=2", "train.global_batch=2"];
        let sizes = sizes.iter().map(String::as_str);
        let sets: Vec<&str> = sets.into_iter().chain(["checkpoint.interval=0"]).chain(sizes).collect();
        let run = scene.launch(&format!("{name}-{layers}"), &mesh, &sets).finish();
        let resident = run.samples().last().unwrap().mem_gib_by_rank[0];
        (run.dir.read_run().unwrap().recipe().unwrap().cost().memory.state() as f64 / f64::from(1 << 30), resident)
    };
    let cases = [
        ("one", [1, 1], "train.trainable=all"),
        ("two", [1, 2], "train.trainable=all"),
        ("part", [1, 1], "train.trainable=qkvo"),
        ("adamw8bit", [1, 1], "optimizer.kind=adamw8bit"),
        ("adafactor", [1, 1], "optimizer.kind=adafactor"),
        ("prodigy", [1, 1], "optimizer.kind=prodigy"),
        ("average", [1, 1], "ema.decay=0.99"),
    ];
    for (name, mesh, own) in cases {
        let ((few_foreseen, few), (many_foreseen, many)) = (held(name, 1, mesh, own), held(name, 4, mesh, own));
        let (foreseen, measured) = (many_foreseen - few_foreseen, many - few);
        println!("{name}: {measured:.4} GiB, forecast {foreseen:.4} GiB");
        assert!(foreseen > 0.06, "{foreseen}");
        assert!((measured / foreseen - 1.0).abs() < 0.1, "{name}: {measured:.4} GiB, forecast {foreseen:.4} GiB");
    }
}

/// Forecast: the peak of a step with an optimizer, minus the peak with AdamW, whose update has no temporaries. With few tokens and
/// large blocks, the update is the peak.
#[test]
fn the_update_of_each_optimizer_has_the_forecast_temporaries() {
    let scene = Scene::new();
    let peak = |kind: &str| {
        let kind = format!("optimizer.kind={kind}");
        let sets = [
            "model.num_heads=16",
            "model.head_dim=64",
            "train.steps=2",
            "checkpoint.interval=0",
            "train.global_batch=1",
        ];
        let run = scene.launch(&kind.replace(['.', '='], "-"), &[1, 1], &[&sets[..], &[&kind]].concat()).finish();
        let measured = run.samples().last().unwrap().mem_peak_gib_by_rank[0];
        (run.dir.read_run().unwrap().recipe().unwrap().cost().memory.total() as f64 / f64::from(1 << 30), measured)
    };
    let (adamw_foreseen, adamw) = peak("adamw");
    for kind in ["adafactor", "prodigy"] {
        let (foreseen, measured) = peak(kind);
        let (foreseen, measured) = (foreseen - adamw_foreseen, measured - adamw);
        // 30 MB for fragments of the heap.
        assert!((measured - foreseen).abs() < 0.03, "{kind}: {measured:.4} GiB, forecast {foreseen:.4} GiB");
    }
}

/// Forecast: the peak of a step, from the formulas of `vidtui check`. Measured: the growth of the peak of the process
/// from two samples at a time to several, or from four blocks to ten, so that libtorch and the program cancel.
#[test]
fn the_peak_memory_of_a_step_is_the_forecast() {
    let scene = Scene::new();
    let long = scene.dataset("long", 13, [16, 16], 8);
    let long = format!("data.index={}", scene.text_dataset(&long, 16, 1));
    let peak = |name: &str, mesh: [usize; 3], sets: &[&str]| {
        let base = ["model.head_dim=64", "train.steps=1", "optimizer.warmup_steps=1", "checkpoint.interval=0"];
        let sets = [&base[..], sets].concat();
        let run = scene.launch(name, &mesh, &sets).finish();
        let measured = run.samples().last().unwrap().mem_peak_gib_by_rank[0];
        (run.dir.read_run().unwrap().recipe().unwrap().cost().memory.total() as f64 / f64::from(1 << 30), measured)
    };
    // 848 tokens of width 256: activations dominate.
    let to = |samples| ["train.global_batch=2", samples];
    let size = ["model.latent_height=16", "model.latent_width=16", "model.latent_frames=13"];
    let activations = [&size[..], &["model.num_heads=4", "model.num_layers=2", long.as_str()]].concat();
    // 28 tokens, and blocks of 3 million parameters, which two ranks gather.
    let blocks = ["model.num_layers=4", "model.num_layers=10"];
    let gathered = ["train.global_batch=2", "model.num_heads=8"];
    let ttt = ["model.layer=ttt_mlp", "model.ttt_mini_batch=16"];
    let none = ["remat.mode=none"];
    let cases = [
        ("block", [1, 1, 1], to("train.global_batch=8"), activations.clone()),
        ("none", [1, 1, 1], to("train.global_batch=6"), [&activations[..], &none].concat()),
        ("ttt-block", [1, 1, 1], to("train.global_batch=5"), [&activations[..], &ttt].concat()),
        ("ttt-none", [1, 1, 1], to("train.global_batch=4"), [&activations[..], &ttt, &none].concat()),
        (
            "ttt-frozen-mlp",
            [1, 1, 1],
            to("train.global_batch=4"),
            [&activations[..], &ttt, &none, &["train.trainable=qkvo"]].concat(),
        ),
        // Two ranks of a TP group share the activations.
        ("tp-block", [1, 1, 2], to("train.global_batch=12"), activations.clone()),
        ("tp-ttt-none", [1, 1, 2], to("train.global_batch=8"), [&activations[..], &ttt, &none].concat()),
        (
            "tp-pieces-none",
            [1, 1, 2],
            to("train.global_batch=8"),
            [&activations[..], &none, &["train.tp_pieces=3"]].concat(),
        ),
        ("gathered-block", [1, 2, 1], blocks, gathered.to_vec()),
        ("gathered-none", [1, 2, 1], blocks, [&gathered[..], &none].concat()),
    ];
    for (name, mesh, sizes, sets) in cases {
        let [(few_foreseen, few), (many_foreseen, many)] = sizes.map(|size| {
            peak(&format!("{name}-{}", size.split('=').next_back().unwrap()), mesh, &[&sets[..], &[size]].concat())
        });
        let (foreseen, measured) = (many_foreseen - few_foreseen, many - few);
        println!("{name}: {measured:.4} GiB, forecast {foreseen:.4} GiB");
        assert!(foreseen > 0.12, "{name}: {foreseen}");
        // The memory of collectives in flight at the peak depends on which of the two ranks is ahead.
        let tolerance = if mesh == [1, 1, 1] { 0.1 } else { 0.2 };
        assert!((measured / foreseen - 1.0).abs() < tolerance, "{name}: {measured:.4} GiB, forecast {foreseen:.4} GiB");
    }
}

#[test]
fn a_rank_that_hangs_ends_the_others_after_the_timeout_and_is_named() {
    let scene = Scene::new();
    let sets = ["train.steps=100000", "checkpoint.interval=0", "train.collective_timeout_s=5"];
    let mut running = scene.launch("hangs", &[2, 1, 1], &sets);
    running.wait_for_step(2);
    running.signal(1, "STOP");
    running.wait_for("the failure of rank 0", |run| run.failure_code().is_some());
    running.signal(1, "KILL");
    let (run, _) = running.wait();
    assert_eq!(run.failure_code(), Some(ErrorCode::PeerLost));
    let node = NodeId::new(NODE).unwrap();
    let records: Vec<_> = [0, 1].iter().filter_map(|&rank| run.dir.read_rank_collectives(&node, 1, rank)).collect();
    let waits = health::collective_waits(&records);
    assert!(waits.iter().any(|wait| wait.absent == [1] || wait.unrecorded == [1]), "{records:?}");
    let beat = run.dir.read_heartbeat(&node, 1, 1).unwrap();
    assert!((beat.rank, beat.v) == (1, rundir::SCHEMA) && beat.phase_t <= beat.t, "{beat:?}");
}

#[test]
fn weights_that_differ_end_the_run_with_the_ranks_and_the_tensor() {
    let scene = Scene::new();
    let mut sets = vec!["train.steps=100000", "checkpoint.interval=0", "train.drift_check=2"];
    for mesh in [[2, 1, 1], [1, 1, 2]] {
        let env = vec![("VIDTUI_CORRUPT", "1:3".to_owned())];
        let (run, outputs) = scene.launch_with(env, "differs", &mesh, &sets).wait();
        assert!(outputs.iter().all(|output| !output.status.success()));
        assert_eq!(run.failure_code(), Some(ErrorCode::WeightsDiffer), "{mesh:?}");
        // The weight was changed after step 3, and step 4 is the next that is checked.
        assert_eq!(run.samples().last().unwrap().step, 4);
        std::fs::remove_dir_all(&run.dir.root).unwrap();
    }
    sets.extend(["train.steps=4"]);
    scene.launch("same", &[2, 1, 2], &sets).finish();
}
