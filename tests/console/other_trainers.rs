//! Runs that another program trains: a shell script that prints and saves as cogvideox-factory does.

use crate::test_site::TestSite;
use rundir::{EventKind, RunDir};
use runstate::Liveness;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Trains to step 20 and saves every 5. The first time it begins to save at step 12, and hangs.
const TRAINER: &str = r#"#!/usr/bin/env bash
set -eu
step=0 output= resumed=
while [ $# -gt 0 ]; do
    case $1 in
        --output_dir) output=$2; shift 2 ;;
        --resume_from_checkpoint) resumed=$2; step=${2##*-}; shift 2 ;;
        *) shift ;;
    esac
done
part() { printf 'PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$1"; }
echo "place ${RANK-none} $GROUP_RANK of $WORLD_SIZE, preset ${NCCL_IB_DISABLE-unset}, secret of ${#TOKEN} letters"
echo "***** Running training *****"
[ -z "$resumed" ] || echo "Resuming from checkpoint $resumed"
while [ $step -lt 20 ]; do
    step=$((step + 1))
    printf '\rSteps:  %d%%|##   | %d/20 [00:01<00:09,  0.05s/it, loss=0.%d, lr=1e-5]' $((5 * step)) $step $((50 - step))
    if [ -z "$resumed" ] && [ $step = 12 ]; then
        mkdir -p "$output/checkpoint-12" && part "$output/checkpoint-12/pytorch_model.bin"
        touch "$output/hangs"
        exec sleep 600
    fi
    if [ $((step % 5)) = 0 ]; then
        folder=$output/checkpoint-$step
        mkdir -p "$folder"
        for name in pytorch_model.bin optimizer.bin scheduler.bin random_states_0.pkl; do part "$folder/$name"; done
        printf '\nSaved state to %s\n' "$folder"
    fi
    sleep 0.02
done
echo
"#;

const RECIPE: &str = r#"trainer = "command"

[command]
run = ["./train.sh", "--output_dir", "{output}", "--nodes", "{nnodes}", "--words", "$HOME; two {{words}}"]
folder = "../../code"
adapter = "cogvideox_factory"
resume = ["--resume_from_checkpoint", "{checkpoint}"]

[env]
presets = ["nccl_ethernet"]
secrets = "../../keys.env"

[train]
steps = 20

[mesh]
dp_replicate = 2
"#;

/// Written nowhere but into this file.
const SECRET: &str = "hush-9c1f-e77a";

fn site() -> TestSite {
    // Without the trainer: a run of another program needs none.
    let site = TestSite::new().with("VIDTUI_TRAIN", "/nowhere/vidtui-train");
    site.write("configs/own/own.toml", RECIPE);
    site.write("keys.env", &format!("# for the tracker\nTOKEN={SECRET}\n"));
    script(&site, TRAINER);
    mode(&site, "keys.env", 0o600);
    site
}

fn script(site: &TestSite, text: &str) {
    site.write("code/train.sh", text);
    mode(site, "code/train.sh", 0o755);
}

fn mode(site: &TestSite, path: &str, mode: u32) {
    fs::set_permissions(site.root.join(path), fs::Permissions::from_mode(mode)).unwrap();
}

fn events(dir: &RunDir) -> Vec<String> {
    let in_short = |kind: EventKind| match kind {
        EventKind::CheckpointSaved { path, .. } => format!("saved {}", path.file_name().unwrap()),
        EventKind::Resumed { from_step, .. } => format!("resumed from {from_step}"),
        EventKind::Started { world } => format!("started {world}"),
        EventKind::Finished => "finished".into(),
        _ => String::new(),
    };
    let events = rundir::read_events(dir).unwrap();
    events.into_iter().map(|event| in_short(event.kind)).filter(|event| !event.is_empty()).collect()
}

#[test]
fn any_command_is_launched_watched_killed_and_resumed_from_its_newest_whole_checkpoint() {
    let site = site();
    let run = site.succeeds(&["launch", "configs/own/own.toml"]);
    let run = run.trim();
    let dir = site.runs().remove(0);
    site.until("it to hang", || dir.root.join("output/hangs").exists());
    site.until_step(run, 12);
    site.until("its checkpoints to be seen", || events(&dir).iter().any(|event| event == "saved checkpoint-10"));
    nobody_tells_the_secret(&site, &dir);

    let findings = site.json(&["status", run, "--json"])["findings"].clone();
    assert!(
        findings.is_array() && !findings.to_string().contains("gradient"),
        "a gradient that is not printed is no alarm: {findings}"
    );
    let listed = site.json(&["checkpoints", run, "--json"]);
    let listed: Vec<(u64, bool)> = listed["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["step"].as_u64().unwrap(), c["complete"].as_bool().unwrap()))
        .collect();
    assert_eq!(listed, [(5, true), (10, true), (12, false)]);
    site.succeeds(&["kill", run, "--yes"]);
    assert!(remote::pid_files(&dir).unwrap().iter().all(|(_, live)| *live == Liveness::Dead));
    let killed = site.json(&["status", run, "--json"]);
    assert_eq!(killed["checkpoint"]["step"], 10);

    let shown = site.json(&["resume", run, "--dry-run", "--json"]);
    let command = shown["summary"]["command"].as_str().unwrap();
    let checkpoint = dir.root.join("output/checkpoint-10");
    assert!(command.ends_with(&format!("--resume_from_checkpoint {checkpoint}")), "{command}");
    site.succeeds(&["resume", run, "--wait"]);
    let done = site.json(&["status", run, "--json"]);
    assert_eq!((&done["state"], &done["step"]), (&"finished".into(), &20.into()));
    let log = fs::read_to_string(dir.rank_log(&remote::this_node().unwrap().node, 2, 0)).unwrap();
    assert!(log.starts_with("place none 0 of 2, preset 1, secret of 14 letters"), "{log}");
    let metrics = runstate::recent_metrics(&dir).unwrap();
    let last: Vec<(u32, u64)> = metrics.iter().rev().take(2).map(|m| (m.attempt, m.step)).collect();
    assert_eq!(last, [(2, 20), (2, 19)]);
    assert_eq!(metrics.iter().filter(|m| m.attempt == 2).count(), 10, "no step is told twice");
    assert_eq!(metrics.last().unwrap().loss.map(|loss| loss as f32), Some(0.30));
    let events = events(&dir);
    for event in ["started 2", "resumed from 10", "saved checkpoint-15", "saved checkpoint-20", "finished"] {
        assert_eq!(
            events.iter().filter(|other| *other == event).count(),
            if event == "started 2" { 2 } else { 1 },
            "{events:?}"
        );
    }
    nobody_tells_the_secret(&site, &dir);
}

/// Looks at every file of the run, and at the command line of every process.
fn nobody_tells_the_secret(site: &TestSite, dir: &RunDir) {
    let mut folders = vec![dir.root.clone()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path().to_owned());
                continue;
            }
            files += 1;
            let bytes = fs::read(entry.path()).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{}", entry.path());
        }
    }
    assert!(files > 5, "the run has files");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(SECRET), "{}", process.path().display());
    }
    assert!(fs::read_to_string(site.root.join("keys.env")).unwrap().contains(SECRET));
}

#[test]
fn a_command_on_this_machine_is_kept_off_gpus_that_are_in_use() {
    let site = site();
    let checked = site.succeeds(&["check", "configs/own/own.toml"]);
    assert!(checked.contains("✓ GPUs           none, and none needed"), "{checked}");
    assert!(checked.lines().any(|line| line.starts_with("✓ inodes")), "{checked}");
    site.nvidia_smi(
        r#"case $1 in
            --query-gpu=*) printf '%s, GPU-5a7e, 00000000:19:00.0, 0, 81559, 0\n' 0 1 ;;
            *) echo 'GPU-5a7e0000-11d2-4c33-9d00-60b5c0ffee00, 1, python train.py, 70000' ;;
        esac"#,
    );
    let refused = site.fails(&["launch", "configs/own/own.toml"]);
    assert!(refused.contains("its GPUs are in use: process 1 of root with 68.4 GiB (python train.py)"), "{refused}");
    assert!(site.runs().is_empty());
    site.succeeds(&["check", "configs/own/own.toml", "--waive", "GPU processes"]);
}

#[test]
fn what_a_command_will_be_is_checked_and_shown_word_for_word() {
    let site = site();
    let checked = site.succeeds(&["check", "configs/own/own.toml"]);
    let words = r#"./train.sh --output_dir "#;
    let quoted = r#"--nodes 1 --words '$HOME; two {words}'"#;
    assert!(checked.contains(words) && checked.contains(quoted), "{checked}");
    assert!(checked.contains("TOKEN: passed to the ranks when they start") && !checked.contains(SECRET), "{checked}");
    let shown = site.succeeds(&["launch", "configs/own/own.toml", "--dry-run"]);
    assert!(shown.contains("# The supervisor starts here:\n#   ./train.sh") && shown.contains(quoted), "{shown}");
    assert!(shown.contains("NCCL_IB_DISABLE=1") && !shown.contains(SECRET), "{shown}");

    mode(&site, "keys.env", 0o644);
    let open = site.fails(&["launch", "configs/own/own.toml"]);
    assert!(open.contains("mode 0644") && open.contains("chmod 600") && !open.contains(SECRET), "{open}");
    mode(&site, "keys.env", 0o600);
    fs::remove_file(site.root.join("code/train.sh")).unwrap();
    let gone = site.fails(&["launch", "configs/own/own.toml"]);
    assert!(gone.contains("there is no program ./train.sh"), "{gone}");
    assert!(site.runs().is_empty());
}

#[test]
fn a_command_that_fails_is_told_by_its_error_and_leaves_nothing_behind() {
    let site = site();
    script(
        &site,
        "#!/usr/bin/env bash\n\
         setsid sleep 600 & echo $! >\"$(dirname \"$2\")/stray-$RANK\"\n\
         [ \"$RANK\" = 1 ] || exec sleep 600\n\
         until [ -s \"$(dirname \"$2\")/stray-0\" ]; do sleep 0.01; done\n\
         echo 'Traceback (most recent call last):'\n\
         echo 'ValueError: no video in /data'\n\
         echo '====='\n\
         exit 1\n",
    );
    let per_rank = ["--set", "command.per=rank", "--set", "env.variables.LOCAL=here"];
    let failed = site.fails(&[&["launch", "configs/own/own.toml", "--wait"], &per_rank[..]].concat());
    assert!(failed.contains("rank 1 on node") && failed.contains("ValueError: no video in /data"), "{failed}");
    let dir = site.runs().remove(0);
    for rank in [0, 1] {
        let pid = fs::read_to_string(dir.root.join(format!("stray-{rank}"))).unwrap();
        let line = fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
        assert!(!line.starts_with(b"sleep"), "process {pid} is left");
    }
}

#[test]
fn a_kill_ends_workers_in_sessions_of_their_own_even_when_their_supervisor_is_gone() {
    let site = site();
    script(
        &site,
        "#!/usr/bin/env bash\n\
         setsid bash -c 'trap \"\" TERM; echo $$ >\"$0\"; while :; do sleep 0.1; done' \"$(dirname \"$2\")/worker\" &\n\
         exec sleep 600\n",
    );
    let run = site.succeeds(&["launch", "configs/own/own.toml"]);
    let run = run.trim();
    let dir = site.runs().remove(0);
    let worker = || fs::read_to_string(dir.root.join("worker")).unwrap_or_default().trim().parse::<i32>().ok();
    site.until("its worker to run", || worker().is_some());
    let worker = worker().unwrap();
    let (file, _) = remote::pid_files(&dir).unwrap().remove(0);
    let kill = |pid: i32| {
        fs::metadata(format!("/proc/{pid}")).is_ok()
            && std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success()
    };
    assert!(kill(file.pid));
    for rank in &file.ranks {
        kill(rank.pid);
    }
    let alive = || remote::pid_files(&dir).unwrap()[0].1;
    assert_eq!(alive(), Liveness::Alive, "its worker still trains");
    let killed = site.succeeds(&["kill", run, "--yes", "--json"]);
    assert!(killed.contains("\"gone\": true") || killed.contains("\"gone\":true"), "{killed}");
    assert_eq!(alive(), Liveness::Dead);
    let line = fs::read(format!("/proc/{worker}/cmdline")).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&line).contains("while"), "process {worker} is left");
}

#[test]
fn a_command_whose_steps_nobody_reads_is_running_and_finished_and_says_why_it_has_no_charts() {
    let site = site();
    script(&site, "#!/usr/bin/env bash\nuntil [ -e ../../go ]; do sleep 0.02; done\n");
    let none = ["--set", "command.adapter=none", "--set", "command.resume=[]", "--set", "command.folder="];
    let program = format!("command.run=[\"{}\"]", site.root.join("code/train.sh"));
    let run = site.succeeds(&[&["launch", "configs/own/own.toml", "--set", &program], &none[..]].concat());
    let run = run.trim();
    let shown = site.succeeds(&["status", run]);
    assert!(shown.contains("running") && shown.contains("adapter = \"none\""), "{shown}");
    assert!(site.succeeds(&["runs"]).contains("?/20"));
    site.write("go", "");
    site.until("it to end", || site.json(&["status", run, "--json"])["state"] == "finished");
    assert_eq!(site.json(&["status", run, "--json"])["step"], 20);
}

#[test]
fn a_stage_that_a_command_trains_shows_the_command_and_no_figures_of_a_model() {
    let site = site();
    site.write(
        "configs/own/curriculum.toml",
        "title = \"Own\"\n[[stage]]\nname = \"short\"\nrecipe = \"own.toml\"\nstart = \"random\"\n",
    );
    let listed = site.succeeds(&["stages", "configs/own"]);
    assert!(listed.contains("20 steps, 2 ranks\n   command: ./train.sh --output_dir"), "{listed}");
    assert!(!listed.contains("parameters"), "{listed}");
    let stage = &site.json(&["stages", "configs/own", "--json"])["stages"][0];
    assert!(stage["params"].is_null() && stage["command"].as_str().unwrap().starts_with("./train.sh"), "{stage}");
    let fitted = site.fails(&["launch", "configs/own/own.toml", "--fit", "4"]);
    assert!(fitted.contains("divides its batch itself"), "{fitted}");
}
