//! Tests with synthetic checkpoints of each trainer.

use super::*;
use crate::contents::Contents;
use recipe::OtherTrainer;
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

fn of(adapter: OtherTrainer) -> Command {
    Command { adapter, ..Command::default() }
}

fn with(checkpoints: &str, complete: &str) -> Command {
    Command { checkpoints: checkpoints.into(), complete: complete.into(), ..Command::default() }
}

#[derive(Debug, PartialEq)]
enum Listed {
    Complete,
    Incomplete,
    Unreadable,
}
use Listed::{Complete, Incomplete, Unreadable};

fn listed(run: &RunDir, trainer: OtherTrainer) -> Vec<(u64, Listed)> {
    listed_by(run, &of(trainer))
}

fn listed_by(run: &RunDir, command: &Command) -> Vec<(u64, Listed)> {
    let state = |entry: CheckpointEntry| match entry {
        CheckpointEntry::Complete(summary) => (summary.step, Complete),
        CheckpointEntry::Incomplete { step, .. } => (step, Incomplete),
        CheckpointEntry::Unreadable { step, .. } => (step, Unreadable),
    };
    list(run, &run.root, command).unwrap().into_iter().map(state).collect()
}

/// Returns the reason why the only checkpoint cannot be loaded.
fn why(run: &RunDir, trainer: OtherTrainer) -> String {
    let entries = list(run, &run.root, &of(trainer)).unwrap();
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
    let error = list(&run, &output, &of(OtherTrainer::Finetrainers)).unwrap_err();
    assert!(
        matches!(&error, Error::File(rundir::FileError::Io { action: "list", path, .. }) if *path == output),
        "{error}"
    );
    assert!(list(&run, &run.root.join("none"), &of(OtherTrainer::Finetrainers)).unwrap().is_empty());
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
    let entries = list(&run, &run.root, &of(OtherTrainer::OpenSora)).unwrap();
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

/// Checkpoints of programs that auto knows: the path, its files, and the file that is written last.
const AUTO: [(&str, &[&str], &str); 6] = [
    (
        "checkpoint-40",
        &[
            "config.json",
            "model.safetensors",
            "training_args.bin",
            "optimizer.pt",
            "scheduler.pt",
            "rng_state.pth",
            "trainer_state.json",
        ],
        "trainer_state.json",
    ),
    (
        "checkpoint-40",
        &["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"],
        "random_states_0.pkl",
    ),
    ("lora-step00000040-state", &["model.safetensors", "optimizer.bin", "random_states_0.pkl"], "random_states_0.pkl"),
    (
        "checkpoint-40",
        &["distributed_checkpoint/__0_0.distcp", "distributed_checkpoint/.metadata"],
        "distributed_checkpoint/.metadata",
    ),
    ("checkpoint/step-40", &["__0_0.distcp", "__1_0.distcp", ".metadata"], ".metadata"),
    ("global_step40", &["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], "../latest"),
];

#[test]
fn checkpoints_of_unknown_programs_are_found_and_complete_when_their_last_file_exists() {
    for (name, files, last) in AUTO {
        let (_keep, run) = temp();
        let dir = make(&run, name, files);
        make(&run, "samples/step-40", &["0.png"]);
        if last == "../latest" {
            fs::write(run.root.join("latest"), "global_step20").unwrap();
            assert_eq!(listed(&run, OtherTrainer::Auto), [(40, Incomplete)], "{name} before latest");
            fs::write(run.root.join("latest"), "global_step60\n").unwrap();
        }
        assert_eq!(listed(&run, OtherTrainer::Auto), [(40, Complete)], "{name}");
        if last != "../latest" {
            fs::remove_file(dir.join(last)).unwrap();
            assert_eq!(listed(&run, OtherTrainer::Auto), [(40, Incomplete)], "{name} without {last}");
        }
    }
}

#[test]
fn a_file_of_weights_is_a_checkpoint_if_the_program_saves_nothing_else() {
    let (_keep, run) = temp();
    for name in ["lora-step00000040.safetensors", "lora_000000060.safetensors", "step-80.safetensors"] {
        fs::write(run.root.join(name), tensors()).unwrap();
    }
    for name in
        ["model-00001-of-00002.safetensors", "epoch-3.safetensors", "lora-000001.safetensors", "wan_14.safetensors"]
    {
        fs::write(run.root.join(name), tensors()).unwrap();
    }
    let all = [(40, Complete), (60, Complete), (80, Complete)];
    assert_eq!(listed(&run, OtherTrainer::Auto), all);
    assert_eq!(listed_by(&run, &with("safetensors", "auto")), all);
    fs::write(run.root.join("step-80.safetensors"), &tensors()[..20]).unwrap();
    assert_eq!(listed(&run, OtherTrainer::Auto)[2], (80, Incomplete), "it is cut off");
    make(&run, "lora-step00000060-state", &["model.safetensors", "optimizer.bin", "random_states_0.pkl"]);
    assert_eq!(listed(&run, OtherTrainer::Auto), [(60, Complete)], "a resume needs the state");
    assert_eq!(listed_by(&run, &with("safetensors", "auto")).len(), 3);
}

#[test]
fn names_and_rules_of_the_recipe_find_checkpoints() {
    let (_keep, run) = temp();
    let dir = make(&run, "exp1/it_40", &["model.pt"]);
    make(&run, "it_60", &["model.pt"]);
    let rule = |complete: &str| listed_by(&run, &with("*/it_{step}", complete));
    assert_eq!(rule("auto"), [(40, Incomplete)], "it has just changed");
    assert_eq!(rule("1h"), [(40, Incomplete)]);
    assert_eq!(rule("done-{step}"), [(40, Incomplete)]);
    fs::write(dir.join("done-40"), "").unwrap();
    assert_eq!(rule("done-{step}"), [(40, Complete)], "a marker may be empty");
    make(&run, "exp1/it_40", &["done-40"]);
    set_age(&dir, Duration::from_secs(60));
    assert_eq!(
        (rule("auto"), rule("30s"), rule("1h")),
        (vec![(40, Complete)], vec![(40, Complete)], vec![(40, Incomplete)])
    );
    // A file beside other files.
    fs::write(run.root.join("net-40.pt"), EMPTY_ZIP).unwrap();
    fs::write(run.root.join("net-40.done"), "").unwrap();
    assert_eq!(listed_by(&run, &with("net-{step}.pt", "net-{step}.done")), [(40, Complete)]);
    assert_eq!(listed_by(&run, &with("net-{step}.pt", "none-{step}")), [(40, Incomplete)]);
    let none = Command { adapter: OtherTrainer::None, ..with("net-{step}.pt", "net-{step}.done") };
    assert_eq!(listed_by(&run, &none), [(40, Complete)], "also without an adapter");
}

/// The recipes of `configs/others` whose logs are recognized: a checkpoint that the program saves, and its files.
const RECIPES: [(&str, &str, &[&str]); 8] = [
    (
        "musubi-tuner",
        "lora-step00000200-state",
        &["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"],
    ),
    ("diffusion-pipe", "20250212_07-06-40/global_step200", &["mp_rank_00_model_states.pt", "../latest"]),
    ("ai-toolkit", "my_first_lora_v1/my_first_lora_v1_000000200.safetensors", &[]),
    ("diffsynth", "step-200.safetensors", &[]),
    (
        "fastvideo",
        "checkpoint-200",
        &["distributed_checkpoint/__0_0.distcp", "distributed_checkpoint/.metadata", "transformer/a.safetensors"],
    ),
    ("torchtitan", "checkpoint/step-200", &["__0_0.distcp", ".metadata"]),
    (
        "diffusers",
        "checkpoint-200",
        &["pytorch_lora_weights.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"],
    ),
    (
        "transformers",
        "checkpoint-200",
        &["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"],
    ),
];

#[test]
fn the_recipes_find_the_checkpoints_of_their_programs() {
    for (name, checkpoint, files) in RECIPES {
        let (_keep, run) = temp();
        let path = format!("../../configs/others/{name}.toml");
        let command = recipe::load(path.as_str().into(), &[]).unwrap().recipe.command;
        if files.is_empty() {
            let path = run.root.join(checkpoint);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, tensors()).unwrap();
        } else {
            let dir = make(&run, checkpoint, files);
            if files.contains(&"../latest") {
                fs::write(dir.join("../latest"), "global_step200").unwrap();
            }
        }
        assert_eq!(listed_by(&run, &command), [(200, Complete)], "{name}");
    }
}
