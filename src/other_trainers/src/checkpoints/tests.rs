//! Tests with synthetic checkpoints of each trainer.

use super::*;
use rundir::fixtures::{temp, write_attempt};
use rundir::{Attempt, PidFile, SCHEMA, now_s};
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

const EMPTY_ZIP: &[u8] = b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn tensors() -> Vec<u8> {
    let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat()
}

/// Makes a checkpoint. The name of each file decides its content.
fn make(run: &RunDir, dir: &str, files: &[&str]) -> Utf8PathBuf {
    let dir = run.root.join(dir);
    fs::create_dir_all(&dir).unwrap();
    for name in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = match path.extension() {
            Some("safetensors") => tensors(),
            Some("json") if name.contains("index") => br#"{"weight_map":{"w":"00001.safetensors"}}"#.to_vec(),
            Some("json") => br#"{"epoch":0,"step":4}"#.to_vec(),
            Some("distcp") | Some("log") => b"tensors".to_vec(),
            None if *name == ".metadata" => {
                let parts = files.iter().filter(|file| file.ends_with(".distcp"));
                parts.map(|part| format!("\u{1}X{part}q")).collect::<String>().into_bytes()
            }
            _ => EMPTY_ZIP.to_vec(),
        };
        fs::write(path, bytes).unwrap();
    }
    dir
}

/// Sets the time of each file to some seconds ago.
fn set_age(dir: &Utf8Path, ago: Duration) {
    for file in Contents::read(dir).files {
        let file = File::options().append(true).open(dir.join(&file.path)).unwrap();
        file.set_modified(SystemTime::now() - ago).unwrap();
    }
}

#[derive(Debug, PartialEq)]
enum Listed {
    Complete,
    Incomplete,
    Unreadable,
}
use Listed::{Complete, Incomplete, Unreadable};

fn listed(run: &RunDir, trainer: OtherTrainer) -> Vec<(u64, Listed)> {
    let state = |entry: CheckpointEntry| match entry {
        CheckpointEntry::Complete(summary) => (summary.step, Complete),
        CheckpointEntry::Incomplete { step, .. } => (step, Incomplete),
        CheckpointEntry::Unreadable { step, .. } => (step, Unreadable),
    };
    list(run, &run.root, trainer).unwrap().into_iter().map(state).collect()
}

/// Returns the reason why the only checkpoint cannot be loaded.
fn why(run: &RunDir, trainer: OtherTrainer) -> String {
    let entries = list(run, &run.root, trainer).unwrap();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    entry.summary().unwrap_err().1.to_owned()
}

const OPEN_SORA: &[&str] = &[
    "model/model.safetensors.index.json",
    "model/00001.safetensors",
    "optimizer/00001.safetensors",
    "lr_scheduler",
    "running_states.json",
    "sampler",
];
const ACCELERATE: &[&str] =
    &["model.safetensors", "optimizer.bin", "scheduler.bin", "sampler_pos_start.pkl", "random_states_0.pkl"];

/// The checkpoint of each trainer at step 40: its folder and its files.
const ALL: &[(OtherTrainer, &str, &[&str])] = &[
    (OtherTrainer::OpenSora, "outputs/demo/epoch0-global_step40", OPEN_SORA),
    (OtherTrainer::Finetrainers, "finetrainers_step_40", &[".metadata", "__0_0.distcp", "__1_0.distcp"]),
    (OtherTrainer::CogvideoxFactory, "checkpoint-40", ACCELERATE),
    (OtherTrainer::VideoxFun, "checkpoint-40", ACCELERATE),
    (OtherTrainer::TttVideoDit, "demo/checkpoint/step-40", &[".metadata", "__0_0.distcp", "all_stat_dict.pth"]),
];

#[test]
fn a_checkpoint_of_each_trainer_is_complete_only_with_all_its_files() {
    for (trainer, name, files) in ALL {
        let (_keep, run) = temp();
        let dir = make(&run, name, files);
        assert_eq!(listed(&run, *trainer), [(40, Complete)], "{trainer:?}");
        for file in *files {
            // These files are not required: a trainer may save without them.
            if ["lr_scheduler", "scheduler.bin", "model/model.safetensors.index.json"].contains(file)
                || (*file == "sampler_pos_start.pkl" && *trainer == OtherTrainer::CogvideoxFactory)
            {
                continue;
            }
            fs::rename(dir.join(file), run.root.join("aside")).unwrap();
            assert_eq!(listed(&run, *trainer), [(40, Incomplete)], "{trainer:?} without {file}");
            fs::rename(run.root.join("aside"), dir.join(file)).unwrap();
        }
    }
}

#[test]
fn a_checkpoint_with_a_file_that_cannot_be_read_is_unreadable_and_not_incomplete() {
    for (trainer, name, files) in ALL {
        let (_keep, run) = temp();
        let dir = make(&run, name, files);
        // Even root cannot read through a link to itself.
        let path = dir.join(files[0]);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert_eq!(listed(&run, *trainer), [(40, Unreadable)], "{trainer:?}");
        assert!(why(&run, *trainer).starts_with(&format!("{}: ", files[0])), "{trainer:?}");
    }
    let (_keep, run) = temp();
    let output = run.root.join("output");
    std::os::unix::fs::symlink(&output, &output).unwrap();
    let error = list(&run, &output, OtherTrainer::Finetrainers).unwrap_err();
    assert!(
        matches!(&error, Error::File(rundir::FileError::Io { action: "list", path, .. }) if *path == output),
        "{error}"
    );
    assert!(list(&run, &run.root.join("none"), OtherTrainer::Finetrainers).unwrap().is_empty());
}

#[test]
fn a_file_that_is_cut_off_makes_a_checkpoint_incomplete() {
    for (trainer, name, files) in ALL {
        let (_keep, run) = temp();
        let dir = make(&run, name, files);
        for file in *files {
            let path = dir.join(file);
            let whole = fs::read(&path).unwrap();
            let cut = if path.extension() == Some("distcp") || file.starts_with('.') { 0 } else { whole.len() - 1 };
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(listed(&run, *trainer), [(40, Incomplete)], "{trainer:?} with a part of {file}");
            fs::write(&path, whole).unwrap();
        }
    }
}

#[test]
fn checkpoints_are_sorted_by_their_numbers_and_emptied_folders_are_skipped() {
    let (_keep, run) = temp();
    for name in ["epoch1-global_step100", "epoch0-global_step20", "epoch0-global_step90"] {
        make(&run, name, OPEN_SORA);
    }
    make(&run, "epoch0-global_step10", &["eval/sample.log"]);
    make(&run, "epoch0-global_step5", &[]);
    make(&run, "epoch1-global_step110", &["model/00001.safetensors"]);
    make(&run, "epoch-global_stepx", OPEN_SORA);
    let want = [(20, Complete), (90, Complete), (100, Complete), (110, Incomplete)];
    assert_eq!(listed(&run, OtherTrainer::OpenSora), want);
}

#[test]
fn the_attempt_of_a_checkpoint_follows_from_the_clock_of_the_node_that_saved_it() {
    let (_keep, run) = temp();
    // The clock of the machine that launched the run is three hours ahead.
    for (number, ago_s) in [(1, 2000.0), (2, 1000.0)] {
        write_attempt(&run, number, 0);
        let started_s = now_s() - ago_s;
        let attempt = Attempt { started_s: started_s + 10_800.0, ..run.read_attempt(number).unwrap() };
        run.write_attempt(&attempt).unwrap();
        let node = attempt.placement.ranks[0].node.clone();
        fs::create_dir_all(run.node_dir(&node)).unwrap();
        let (pid, pgid, boot_id, start_ticks, ranks) = (1, 1, "b".into(), 1, vec![]);
        let (schema, attempt) = (SCHEMA, number);
        run.write_pid(&PidFile { schema, attempt, node, pid, pgid, boot_id, start_ticks, started_s, ranks }).unwrap();
    }
    for (step, ago_s) in [(80, 1500), (20, 500)] {
        let name = format!("epoch0-global_step{step}");
        set_age(&make(&run, &name, OPEN_SORA), Duration::from_secs(ago_s));
        // This video is sampled later, so its time does not count as saving.
        make(&run, &name, &["eval/sample.log"]);
    }
    let entries = list(&run, &run.root, OtherTrainer::OpenSora).unwrap();
    let attempts: Vec<_> = entries.iter().map(|entry| entry.complete().map(|c| (c.step, c.attempt))).collect();
    assert_eq!(attempts, [Some((20, 2)), Some((80, 1))]);
}

#[test]
fn a_checkpoint_that_open_sora_writes_in_the_background_is_complete_ten_seconds_after_its_last_change() {
    let (_keep, run) = temp();
    let dir = make(&run, "epoch0-global_step20", OPEN_SORA);
    fs::write(dir.join("async_file_io.log"), "writing").unwrap();
    assert_eq!(listed(&run, OtherTrainer::OpenSora), [(20, Incomplete)]);
    set_age(&dir, Duration::from_secs(20));
    assert_eq!(listed(&run, OtherTrainer::OpenSora), [(20, Complete)]);
}

#[test]
fn a_checkpoint_with_only_weights_cannot_be_resumed() {
    let (_keep, run) = temp();
    fs::write(run.root.join("checkpoint-50.safetensors"), tensors()).unwrap();
    fs::write(run.root.join("checkpoint-50-compatible_with_comfyui.safetensors"), tensors()).unwrap();
    assert_eq!(listed(&run, OtherTrainer::VideoxFun), [(50, Incomplete)]);
    assert!(why(&run, OtherTrainer::VideoxFun).contains("--save_state"));
    make(&run, "finetrainers_step_0", &[".metadata", "__0_0.distcp"]);
    assert_eq!(listed(&run, OtherTrainer::Finetrainers), [(0, Incomplete)]);
}
