//! Stages that are commands: each starts from the newest complete checkpoint of the stage before. Lambda's seven stages of Open-Sora
//! run with a `torchrun` that prints and saves as Lambda's `scripts/train.py` does. Also the commands of `docs/other-trainers.md`.

use crate::pty::ENTER;
use crate::test_site::{Finish, TestSite, VIDTUI};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{EventKind, RunDir, StartFrom};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

/// In place of torchrun and Lambda's `scripts/train.py`: 4 steps of which every second is saved, in one epoch. It saves before the first
/// step unless it resumes, and logs a step twice as a progress bar does.
const OPEN_SORA: &str = r#"#!/usr/bin/env bash
set -eu
outputs= load= scratch= steps=4
printf '%s\n' "$@" >"$(dirname "$0")/../arguments"
while [ $# -gt 0 ]; do
    case $1 in
        --outputs) outputs=$2; shift 2 ;;
        --load) load=$2; shift 2 ;;
        --ckpt-path) [ -e "$2" ] || { echo "Invalid checkpoint path: $2"; exit 1; }; shift 2 ;;
        --start-from-scratch) scratch=yes; shift ;;
        *) shift ;;
    esac
done
log() { printf '[\033[34m2026-11-20 03:40:01\033[0m] %s\n' "$1" >&2; }
part() { mkdir -p "$(dirname "$1")"; printf 'PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$1"; }
folder=$outputs/$(printf '%03d' "$(find "$outputs" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)")-STDiT3-XL-2
mkdir -p "$folder"
save() {
    local at=$folder/epoch0-global_step$1
    part "$at/model/pytorch_model-00001.bin"
    part "$at/optimizer/pytorch_optim-00001.bin"
    part "$at/lr_scheduler"
    printf '{"epoch": 0, "step": %d, "global_step": %d, "batch_size": null}' "$1" "$1" >"$at/running_states.json"
    part "$at/ema.pt"
    part "$at/sampler"
}
log "Experiment directory created at $folder"
log "Training for 1 epochs with $steps steps per epoch"
step=0
if [ -n "$load" ]; then
    log "Loading checkpoint"
    [ -n "$scratch" ] || step=${load##*global_step}
    log "Loaded checkpoint $load at epoch 0 step $step"
else
    save 0
fi
log "Beginning epoch 0..."
while [ "$step" -lt "$steps" ]; do
    step=$((step + 1))
    for loss in "" ", loss=0.$((90 - step)), step=$((step - 1)), global_step=$((step - 1))"; do
        printf '\rEpoch 0:  %d%%|##   | %d/%d [00:01<00:09,  0.05s/it%s]' $((25 * step)) $step $steps "$loss" >&2
    done
    if [ $((step % 2)) = 0 ]; then
        save $step
        log "Saved checkpoint at epoch 0, step $step, global_step $step to $folder/epoch0-global_step$step"
    fi
done
echo >&2
# A checkpoint that was cut off while it was saved.
part "$folder/epoch0-global_step6/model/pytorch_model-00001.bin"
"#;

fn project() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap()
}

/// Makes a site with copies of folders of `configs`, since a curriculum names weights beside them. The copies use two ranks, and an
/// empty folder in place of Open-Sora.
fn site(folders: &[&str]) -> TestSite {
    let site = TestSite::new().with("VIDTUI_TRAIN", "/nowhere/vidtui-train");
    for folder in folders {
        for entry in project().join("configs").join(folder).read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let text = fs::read_to_string(entry.path()).unwrap();
            let text = text.replace("\"/opt/Open-Sora\"", "\"../../Open-Sora\"");
            let text = ["192", "224"].iter().fold(text, |text, ranks| text.replace(&format!("= {ranks}\n"), "= 2\n"));
            site.write(&format!("configs/{folder}/{}", entry.file_name()), &text);
        }
    }
    program(&site, "torchrun", OPEN_SORA);
    fs::create_dir_all(site.root.join("Open-Sora")).unwrap();
    site
}

fn program(site: &TestSite, name: &str, text: &str) {
    let path = format!("bin/{name}");
    site.write(&path, text);
    fs::set_permissions(site.root.join(&path), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the arguments of the last command that started, as `--name value` pairs in one line.
fn arguments(site: &TestSite) -> String {
    fs::read_to_string(site.root.join("arguments")).unwrap().replace('\n', " ")
}

fn newest(site: &TestSite) -> RunDir {
    let mut runs = site.runs();
    runs.sort_by(|a, b| a.read_run().unwrap().created_s.total_cmp(&b.read_run().unwrap().created_s));
    runs.pop().unwrap()
}

fn launch(stage: &str) -> [&str; 3] {
    ["launch", stage, "--wait"]
}

#[test]
fn the_seven_stages_of_lambda_start_from_each_other() {
    let site = site(&["lambda"]);
    let next = ["next", "latest", "--wait"];

    // Nothing starts without the weights of the first stage, or without a run of the stage before.
    assert_eq!(site.error(&launch("configs/lambda:stage1")).1, "not-found");
    assert_eq!(site.error(&launch("configs/lambda:stage2")).1, "no-checkpoint");
    assert!(site.runs().is_empty());

    site.write("weights/PixArt-Sigma-XL-2-2K-MS.pth", "weights");
    let mut from = site.root.join("weights/PixArt-Sigma-XL-2-2K-MS.pth");
    for stage in 1..=7 {
        let name = format!("configs/lambda:stage{stage}");
        match stage {
            // The stages continue each other by any of the three commands.
            1 | 5 => drop(site.succeeds(&launch(&name))),
            6 => next_stage_by_key(&site),
            _ => drop(site.succeeds(&next)),
        }
        let run = newest(&site);
        let meta = run.read_run().unwrap();
        assert_eq!(meta.stage, Some(format!("stage{stage}")));
        assert_eq!(meta.start, StartFrom::Weights { path: from.clone() });
        let words = arguments(&site);
        assert!(words.contains(&format!(" configs/opensora-v1-2/lambda/stage{}.py ", stage.min(6))), "{words}");
        assert!(words.ends_with(&format!(" --ckpt-path {from} ")), "{words}");
        let status = site.json(&["status", run.name(), "--json"]);
        assert_eq!((&status["state"], &status["step"]), (&"finished".into(), &4.into()), "stage {stage}");
        // The newest folder, of step 6, is incomplete.
        assert_eq!(status["checkpoint"]["step"], 4);
        from = other_trainers::latest(&run).unwrap().dir;
        assert!(from.ends_with("epoch0-global_step4"), "{from}");
    }
    assert_eq!(site.runs().len(), 7);
    assert_eq!(site.error(&["next", "latest"]).1, "unknown-stage");
}

/// Starts stage 6 with the key of the console.
fn next_stage_by_key(site: &TestSite) {
    let console = site.console((140, 40), &[], &[]);
    console.shows(&["lambda-stage5", "finished"]).press(ENTER).shows(&["n start next stage stage6"]);
    console.press("n").shows(&["Start stage6?"]).press(ENTER).shows_no("Start stage6?");
    let has_ended = || site.runs().len() == 6 && site.json(&["status", "latest", "--json"])["state"] == "finished";
    console.meanwhile("stage 6 to end", has_ended);
}

#[test]
fn fresh_data_and_weights_of_a_command_make_new_runs() {
    let site = site(&["lambda"]);
    site.write("weights/PixArt-Sigma-XL-2-2K-MS.pth", "weights");
    site.succeeds(&["launch", "configs/lambda:stage1", "--wait"]);
    let first = newest(&site);
    let checkpoint = other_trainers::latest(&first).unwrap().dir;

    site.succeeds(&["resume", first.name(), "--fresh-data", "--wait"]);
    let fresh = newest(&site);
    let meta = fresh.read_run().unwrap();
    assert_ne!(fresh.name(), first.name());
    assert_eq!(meta.lineage.unwrap().step, 4);
    assert!(arguments(&site).ends_with(&format!("--load {checkpoint} --start-from-scratch ")));
    assert_eq!(site.json(&["status", fresh.name(), "--json"])["step"], 4);
    let events = rundir::read_events(&fresh).unwrap();
    let resumes =
        |kind: &EventKind| matches!(kind, EventKind::Resumed { of_run, .. } if of_run.as_str() == first.name());
    assert!(events.iter().any(|event| resumes(&event.kind)), "{events:?}");

    site.succeeds(&["resume", first.name(), "--weights-only", "--wait"]);
    assert!(arguments(&site).ends_with(&format!("--ckpt-path {checkpoint} ")));

    // A run can start from an older checkpoint by its path, but not from an incomplete one.
    let older = checkpoint.with_file_name("epoch0-global_step2");
    let init = |path| ["launch", "configs/lambda/stage2.toml", "--wait", "--init", path];
    site.succeeds(&init(older.as_str()));
    assert_eq!(newest(&site).read_run().unwrap().lineage.unwrap().step, 2);
    let cut_off = checkpoint.with_file_name("epoch0-global_step6");
    assert_eq!(site.error(&init(cut_off.as_str())).1, "checkpoint-incomplete");
}

const COMMANDS: &str = include_str!("../../docs/other-trainers.md");

/// In place of a user's own `train.py` and accelerate: the checkpoints and log lines of accelerate's scripts.
const ACCELERATE: &str = r#"#!/usr/bin/env bash
set -eu
output= step=0 steps=0
while [ $# -gt 0 ]; do
    case $1 in
        --output_dir) output=$2; shift 2 ;;
        --max_train_steps) steps=$2; shift 2 ;;
        --resume_from_checkpoint) step=${2##*-}; shift 2 ;;
        --restart_data) step=0; shift ;;
        --init) [ -e "$2" ]; shift 2 ;;
        *) shift ;;
    esac
done
part() { printf 'PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$1"; }
echo "***** Running training *****"
while [ $step -lt $steps ]; do
    step=$((step + 1))
    printf '\rSteps:  %d%%|##   | %d/%d [00:01<00:09,  0.05s/it, loss=0.%d, lr=1e-5]' $step $step $steps $((90 - step))
done
folder=$output/checkpoint-$step
mkdir -p "$folder"
for name in pytorch_model.bin optimizer.bin scheduler.bin random_states_0.pkl; do part "$folder/$name"; done
printf '\nSaved state to %s\n' "$folder"
"#;

#[test]
fn each_command_of_the_document_succeeds() {
    let site = site(&["lambda", "open-sora"]);
    symlink(VIDTUI, site.root.join("bin/vidtui")).unwrap();
    program(&site, "accelerate", ACCELERATE);
    for weights in ["PixArt-Sigma-XL-2-2K-MS.pth", "flux1-dev-fused-rope.safetensors"] {
        site.write(&format!("weights/{weights}"), "weights");
    }
    site.write("train.log", "{'loss': 0.9, 'step': 1}\n{'loss': 0.8, 'step': 2}\n");
    let blocks = |language: &str| {
        let begin = format!("```{language}\n");
        COMMANDS.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap()).collect::<Vec<_>>()
    };
    for block in blocks("toml") {
        let name =
            block.lines().next().and_then(|line| line.strip_prefix("# ")).expect("the first line names the file");
        site.write(name, block);
    }
    let mut commands = 0;
    for line in blocks("sh").into_iter().flat_map(str::lines).filter(|line| !line.trim().is_empty()) {
        let command = line.split(" #").next().unwrap().trim();
        // This machine takes the place of a cluster.
        let mut command = command.replace("--hostfile nodes.txt", "--local 2").replace("/opt/Open-Sora", "Open-Sora");
        for begin in ["vidtui launch ", "vidtui next ", "vidtui resume "] {
            if command.starts_with(begin) && !command.contains("--wait") && !command.contains("--dry-run") {
                command += " --wait";
            }
        }
        let done = site.program("sh", &["-c", &command]).finish();
        assert_eq!(done.code, 0, "{command}\n{}{}", done.stdout, done.stderr);
        commands += 1;
    }
    assert!(commands > 8, "{commands}");
    let stages: Vec<_> = site.runs().iter().filter_map(|run| run.read_run().unwrap().stage).collect();
    assert!(stages.iter().any(|stage| stage == "stage2") && stages.iter().any(|stage| stage == "long"), "{stages:?}");
}
