//! Tests of checkpoints after crashes, damage and full disks: a resume finds the newest complete checkpoint, and gives
//! the losses of a run without faults.

use crate::harness::{FILE_LIMIT, NODE, RunUnderTest, Running, Scene, latest, losses, small_disk};
use camino::Utf8Path;
use cluster::NodeId;
use rundir::{Checkpoint, CheckpointEntry, ErrorCode, Event, EventKind, LineAppender, RequestSource, step_checkpoints};

const SAVES: [&str; 6] = [
    "train.steps=16",
    "train.global_batch=4",
    "checkpoint.interval=1",
    "checkpoint.keep_last=3",
    "optimizer.warmup_steps=0",
    "optimizer.schedule=constant",
];

/// The phases of a save, in order, and whether the checkpoint may be complete when a rank dies there.
const PHASES: [(&str, bool); 6] = [
    ("asked", false),
    ("prepared", false),
    ("copied", false),
    ("half-written", false),
    ("written", true),
    ("published", true),
];

/// Kills ranks in every phase of a save, resumes each time, and compares the whole run with an undisturbed one.
fn survives(name: &str, victims: &[usize]) {
    let scene = Scene::new();
    let want = losses(&scene.launch(&format!("{name}-calm"), &[1, 2], &SAVES).finish());
    let mut run = scene.launch(name, &[1, 2], &[&SAVES[..], &["train.steps=1"]].concat()).finish();
    run.train_on_to(16);
    // Only rank 0 seals a checkpoint.
    let sealed = victims.contains(&0).then_some(("sealed", false));
    for (phase, complete) in PHASES.into_iter().chain(sealed) {
        let before = latest(&run.dir).unwrap().step;
        let at = format!("{phase}:{}", before + 2);
        let (crashed, outputs) = run.resume_and_die(&[1, 2], victims, &at).wait();
        assert!(outputs.iter().all(|o| !o.status.success()), "no rank died at {at}");
        run = crashed;
        let newest = latest(&run.dir).unwrap();
        // A peer of the dead rank may have completed the checkpoint.
        let wanted = if complete { before + 1..=before + 2 } else { before + 1..=before + 1 };
        assert!(wanted.contains(&newest.step), "after a crash at {at} the newest is {}", newest.step);
        Checkpoint::open(&newest.dir).unwrap().verify_checksums().unwrap();
    }
    let run = run.resume(&[1, 2]).finish();
    assert_eq!(losses(&run), want, "{name}");
    // Incomplete saves of the crashes are removed, except one of a step that was not repeated.
    let steps: Vec<u64> = step_checkpoints(&run.dir).unwrap().iter().map(CheckpointEntry::step).collect();
    assert_eq!(steps, [14, 15, 16]);
}

#[test]
fn metrics_contain_the_stalls_of_steps_that_are_not_logged() {
    // The save of step 5 is complete long before step 10, the first step that is logged.
    let (scene, env) = (Scene::new(), vec![("TRAIN_PACE_S", "0.1".to_owned())]);
    let sets = ["train.steps=10", "train.global_batch=4", "checkpoint.interval=5", "log.interval=10"];
    let samples = scene.launch_with(env, "stalls", &[1, 1], &sets).finish().samples();
    assert_eq!(samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [10]);
    // Starting and ending a save takes some milliseconds. A step without a save takes some microseconds.
    assert!(samples[0].checkpoint_s > 2e-4, "{samples:?}");
}

#[test]
fn killing_the_first_rank_in_any_phase_of_a_save_loses_no_complete_checkpoint() {
    survives("first", &[0]);
}

#[test]
fn killing_another_rank_in_any_phase_of_a_save_loses_no_complete_checkpoint() {
    survives("other", &[1]);
}

#[test]
fn killing_all_ranks_in_any_phase_of_a_save_loses_no_complete_checkpoint() {
    survives("all", &[0, 1]);
}

/// Flips the lowest bit of a byte of a file.
fn flip(file: &Utf8Path, at: impl Fn(usize) -> usize) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

fn truncate(file: &Utf8Path, less: u64) {
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(file.metadata().unwrap().len() - less).unwrap();
}

#[test]
fn one_resume_falls_back_to_the_checkpoint_before_a_damaged_one_and_gives_the_same_losses() {
    let scene = Scene::new();
    let sets = ["train.steps=6", "checkpoint.interval=2", "optimizer.schedule=constant"];
    let want = losses(&scene.launch("calm", &[1, 2], &sets).finish());
    type Damage = fn(&Utf8Path);
    // If all sizes are right, only reading the file reveals the damage, after the attempt has started.
    let damages: [(&str, bool, Damage); 6] = [
        ("missing", false, |step| std::fs::remove_file(step.join("rank-00001.safetensors")).unwrap()),
        ("truncated", false, |step| truncate(&step.join("rank-00001.safetensors"), 4)),
        ("cut-manifest", false, |step| truncate(&step.join("manifest.toml"), 200)),
        ("flipped", true, |step| flip(&step.join("rank-00001.safetensors"), |len| len - 1)),
        ("state", true, |step| flip(&step.join("state.toml"), |_| 0)),
        ("unmarked", true, |step| {
            flip(&step.join("optim-00000.safetensors"), |len| len / 2);
            // A folder with the name of the mark, so that the mark cannot be written.
            std::fs::create_dir_all(step.join("damaged/in/the/way")).unwrap();
        }),
    ];
    for (name, is_found_late, damage) in damages {
        let mut run = scene.launch(name, &[1, 2], &[&sets[..], &["train.steps=4"]].concat()).finish();
        run.train_on_to(6);
        damage(&run.dir.step_dir(4));
        assert_eq!(latest(&run.dir).unwrap().step, if is_found_late { 4 } else { 2 }, "{name}");
        let again = run.resume(&[1, 2]).finish();
        assert_eq!(losses(&again), want, "{name}");
        let back = |kind: &EventKind| match kind {
            EventKind::CheckpointDamaged { step, back_to, .. } => Some((*step, *back_to)),
            _ => None,
        };
        let restored: Vec<_> = again.events().iter().filter_map(|e| back(&e.kind)).collect();
        assert_eq!(restored, if is_found_late { vec![(4, 2)] } else { vec![] }, "{name}");
        let resumed = |kind: &EventKind| matches!(kind, EventKind::Resumed { from_step: 2, .. });
        assert!(again.events().iter().any(|e| resumed(&e.kind)), "{name}");
        assert_eq!(complete(&again), [2, 4, 6], "{name}: the damaged checkpoint is replaced");
    }
}

#[test]
fn resuming_at_a_damaged_checkpoint_fails_if_the_user_requested_it_or_none_is_before_it() {
    let scene = Scene::new();
    let sets = ["train.steps=4", "checkpoint.interval=2"];
    let mut run = scene.launch("asked", &[1, 2], &sets).finish();
    run.train_on_to(6);
    let refused = |running: Running| {
        let (run, outputs) = running.wait();
        for output in &outputs {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && stderr.contains("checksum") && stderr.contains("hint:"), "{stderr}");
        }
        assert_eq!(run.samples().last().unwrap().step, 4, "a step was taken");
        run
    };
    flip(&run.dir.step_dir(4).join("rank-00001.safetensors"), |len| len - 1);
    let run = refused(run.resume_at(&[1, 2], 4));
    assert_eq!(latest(&run.dir).unwrap().step, 2, "it is marked");
    flip(&run.dir.step_dir(2).join("rank-00000.safetensors"), |len| len - 1);
    let run = refused(run.resume(&[1, 2]));
    assert_eq!(latest(&run.dir), None);
}

#[test]
fn a_run_keeps_the_newest_checkpoints_and_some_forever() {
    let scene = Scene::new();
    let sets = ["train.steps=10", "checkpoint.interval=1", "checkpoint.keep_last=2", "checkpoint.keep_every=4"];
    let run = scene.launch("keep", &[1, 1], &sets).finish();
    assert_eq!(complete(&run), [4, 8, 9, 10]);
}

#[test]
fn a_save_request_file_saves_and_a_stop_request_file_stops() {
    let scene = Scene::new();
    let mut running = scene.launch("files", &[1, 2], &["train.steps=100000"]);
    running.wait_for_step(2);
    std::fs::write(running.run.dir.save_file(), "").unwrap();
    running.wait_for("a checkpoint", |run| latest(&run.dir).is_some());
    assert!(!running.run.dir.save_file().exists());
    let step = latest(&running.run.dir).unwrap().step;
    running.wait_for_step(step + 2);
    std::fs::write(running.run.dir.stop_file(), "").unwrap();
    let run = running.finish();
    assert_eq!(latest(&run.dir).unwrap().step, run.samples().last().unwrap().step);
    let events = run.events();
    let saves = events.iter().filter_map(|event| match event.kind {
        EventKind::SaveRequested { source, .. } => Some(source),
        _ => None,
    });
    assert_eq!(saves.collect::<Vec<_>>(), [RequestSource::File]);
    assert_eq!(run.stop_sources(), [RequestSource::File]);
}

#[test]
fn a_run_saves_and_stops_before_its_time_is_up() {
    let scene = Scene::new();
    let run = scene.launch("limit", &[1, 2], &["train.steps=100000", "run.time_limit=2s"]).finish();
    assert_eq!(latest(&run.dir).unwrap().step, run.samples().last().unwrap().step);
    assert_eq!(run.stop_sources(), [RequestSource::TimeLimit]);
}

#[test]
fn the_next_attempt_reserves_the_time_of_the_last_saves_from_its_first_step() {
    let scene = Scene::new();
    let mut run = scene.launch("slow-disk", &[1, 2], &["train.steps=2", "run.time_limit=10m"]).finish();
    let kind = EventKind::CheckpointSaved { path: run.dir.step_dir(2), bytes: 1, seconds: 1000.0 };
    let slow = Event::new(run.events().last().unwrap().t, 1, Some(2), kind);
    let mut events = LineAppender::open(&run.dir.events()).unwrap();
    // One slow save could be a disk that hung once, so two are recorded.
    events.append(&slow).unwrap();
    events.append(&slow).unwrap();
    run.train_on_to(100_000);
    let run = run.resume(&[1, 2]).finish();
    assert_eq!(latest(&run.dir).unwrap().step, 3);
    assert_eq!(run.stop_sources(), [RequestSource::TimeLimit]);
}

fn complete(run: &RunUnderTest) -> Vec<u64> {
    step_checkpoints(&run.dir).unwrap().iter().filter_map(|c| c.complete().map(|c| c.step)).collect()
}

fn failed_saves(run: &RunUnderTest) -> usize {
    let failed = |kind: &EventKind| matches!(kind, EventKind::CheckpointFailed { failure } if failure.code == ErrorCode::DiskFull);
    run.events().iter().filter(|e| failed(&e.kind)).count()
}

/// Returns the number of files and folders, including the folder itself.
fn inodes(folder: &Utf8Path) -> usize {
    let entry = |entry: camino::Utf8DirEntry| match entry.file_type().unwrap().is_dir() {
        true => inodes(entry.path()),
        false => 1,
    };
    1 + folder.read_dir_utf8().unwrap().map(|e| entry(e.unwrap())).sum::<usize>()
}

#[test]
fn a_run_continues_after_a_save_on_a_full_disk_and_saves_again() {
    let scene = Scene::new();
    let sets = ["train.steps=4", "checkpoint.interval=4"];
    let run = scene.launch("counted", &[1, 2], &sets).finish();
    // The root of a disk is an inode too, so the second disk has space, but no inode for the last file of a save.
    let no_inodes = format!("size=50m,nr_inodes={}", inodes(&run.dir.root));
    for (name, options) in [("full", "size=300k"), ("no-inodes", no_inodes.as_str())] {
        let Some(disk) = small_disk(&scene, options) else { return };
        let sets = ["train.steps=100000", "checkpoint.interval=4", "checkpoint.keep_last=1"];
        let mut running = scene.launch_in(&disk.path, name, &[1, 2], &sets);
        running.wait_for("a failed save", |run| failed_saves(run) > 0);
        let step = running.run.samples().last().unwrap().step;
        running.wait_for_step(step + 2);
        disk.grow().unwrap();
        running.wait_for("a save that succeeds", |run| latest(&run.dir).is_some());
        running.signal(0, "TERM");
        let run = running.finish();
        let newest = latest(&run.dir).unwrap();
        Checkpoint::open(&newest.dir).unwrap().verify_checksums().unwrap();
        assert_eq!(newest.step, run.samples().last().unwrap().step);
    }
}

#[test]
fn a_run_whose_last_save_fails_waits_for_room_and_saves_then() {
    let scene = Scene::new();
    let Some(disk) = small_disk(&scene, "size=300k") else { return };
    let mut running = scene.launch_in(&disk.path, "full", &[1, 2], &["train.steps=3"]);
    running.wait_for("a failed save", |run| failed_saves(run) > 0);
    disk.grow().unwrap();
    let run = running.finish();
    assert_eq!(latest(&run.dir).unwrap().step, 3);
}

#[test]
fn a_run_that_cannot_save_when_it_is_stopped_trains_on_and_stops_once_there_is_room() {
    let scene = Scene::new();
    let Some(disk) = small_disk(&scene, "size=300k") else { return };
    let mut running = scene.launch_in(&disk.path, "stopped", &[1, 2], &["train.steps=100000"]);
    running.wait_for_step(2);
    running.signal(0, "TERM");
    running.wait_for("a failed save", |run| failed_saves(run) > 0);
    let step = running.run.samples().last().unwrap().step;
    running.wait_for_step(step + 2);
    disk.grow().unwrap();
    let run = running.finish();
    let stopping = |kind: &EventKind| matches!(kind, EventKind::Stopping { .. });
    assert_eq!(run.events().iter().filter(|event| stopping(&event.kind)).count(), 1);
    assert_eq!(latest(&run.dir).unwrap().step, run.samples().last().unwrap().step);
}

#[test]
fn metrics_of_a_full_disk_are_written_when_there_is_room() {
    let scene = Scene::new();
    let Some(disk) = small_disk(&scene, "size=300k") else { return };
    let mut running = scene.launch_in(&disk.path, "metrics", &[1, 2], &["train.steps=100000", "log.interval=1"]);
    running.wait_for_step(2);
    disk.fill().unwrap();
    running.wait_for("a heartbeat with lines that wait", |run| {
        let node = NodeId::new(NODE).unwrap();
        run.dir.read_heartbeat(&node, 1, 0).is_some_and(|beat| beat.unwritten.is_some_and(|waits| waits.lines > 1))
    });
    disk.grow().unwrap();
    let step = running.run.samples().last().unwrap().step;
    running.wait_for_step(step + 20);
    running.signal(0, "TERM");
    let run = running.finish();
    let lines = std::fs::read_to_string(run.dir.metrics()).unwrap();
    assert!(lines.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "no line is written in part");
    let steps: Vec<u64> = run.samples().iter().map(|sample| sample.step).collect();
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>(), "no step is missing, and each is there once");
}

#[test]
fn a_limit_on_the_size_of_files_is_the_reason_of_a_failed_save_and_ends_no_rank_by_a_signal() {
    let scene = Scene::new();
    let env = vec![(FILE_LIMIT, (64 << 10).to_string())];
    let (run, outputs) = scene.launch_with(env, "limited", &[1, 1], &["train.steps=3"]).wait();
    assert_eq!(outputs[0].status.code(), Some(1), "{:?}", outputs[0]);
    assert_eq!((run.failure_code(), failed_saves(&run)), (Some(ErrorCode::FileTooLarge), 0));
    let is_limit =
        |kind: &EventKind| matches!(kind, EventKind::CheckpointFailed { failure } if failure.fix.contains("ulimit -f"));
    assert_eq!(run.events().iter().filter(|event| is_limit(&event.kind)).count(), 1);
}

#[test]
fn repeated_failed_saves_end_the_run_if_the_recipe_sets_a_limit() {
    let scene = Scene::new();
    let Some(disk) = small_disk(&scene, "size=300k") else { return };
    let sets = ["train.steps=100000", "checkpoint.interval=1", "checkpoint.max_failures=3"];
    let (run, outputs) = scene.launch_in(&disk.path, "give-up", &[1, 2], &sets).wait();
    assert!(outputs.iter().all(|output| !output.status.success()));
    assert_eq!((run.failure_code(), failed_saves(&run)), (Some(ErrorCode::SaveFailed), 3));
}
