//! Tests of runs with `trainer = "command"`: a shell script that logs and saves like cogvideox-factory.

use crate::test_site::TestSite;
use rundir::{EventKind, RunDir};
use runstate::Liveness;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Trains to step 20 and saves every 5 steps. The first attempt hangs while it saves step 12.
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

/// The secret of `keys.env`. No other file may contain it.
const SECRET: &str = "hush-9c1f-e77a";

fn site() -> TestSite {
    // No vidtui-train: a command does not need it.
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
fn a_command_is_launched_killed_and_resumed_from_its_newest_complete_checkpoint() {
    let site = site();
    let run = site.succeeds(&["launch", "configs/own/own.toml"]);
    let run = run.trim();
    let dir = site.runs().remove(0);
    site.until("the command to hang", || dir.root.join("output/hangs").exists());
    site.until_step(run, 12);
    site.until("the checkpoint events", || events(&dir).iter().any(|event| event == "saved checkpoint-10"));
    assert_secret_is_not_stored(&site, &dir);

    let findings = site.json(&["status", run, "--json"])["findings"].clone();
    let rules: Vec<&str> = findings.as_array().unwrap().iter().map(|f| f["rule"].as_str().unwrap()).collect();
    assert!(!rules.contains(&"not_finite"), "a missing gradient norm is not an infinite one: {findings}");
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
    assert_eq!(metrics.iter().filter(|m| m.attempt == 2).count(), 10, "no step is logged twice");
    assert_eq!(metrics.last().unwrap().loss.map(|loss| loss as f32), Some(0.30));
    let events = events(&dir);
    for event in ["started 2", "resumed from 10", "saved checkpoint-15", "saved checkpoint-20", "finished"] {
        assert_eq!(
            events.iter().filter(|other| *other == event).count(),
            if event == "started 2" { 2 } else { 1 },
            "{events:?}"
        );
    }
    assert_secret_is_not_stored(&site, &dir);
}

/// Asserts that no file of the run and no command line of a process contains the secret.
fn assert_secret_is_not_stored(site: &TestSite, dir: &RunDir) {
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
fn a_command_does_not_start_on_gpus_that_are_in_use() {
    let site = site();
    let checked = site.json(&["check", "configs/own/own.toml", "--json"]);
    let result = |id: &str| {
        let found = checked["checks"].as_array().unwrap().iter().find(|check| check["id"] == id);
        found.unwrap_or_else(|| panic!("{id}: {checked}"))["result"].clone()
    };
    assert_eq!([result("gpus"), result("inodes")], ["good", "good"]);
    site.nvidia_smi(
        r#"case $1 in
            --query-gpu=*) printf '%s, GPU-5a7e, 00000000:19:00.0, 0, 81559, 0\n' 0 1 ;;
            *) echo 'GPU-5a7e0000-11d2-4c33-9d00-60b5c0ffee00, 1, python train.py, 70000' ;;
        esac"#,
    );
    assert_eq!(site.error(&["launch", "configs/own/own.toml"]), (1, "check-failed".into()));
    let refused = site.fails(&["launch", "configs/own/own.toml"]);
    assert!(refused.contains("python train.py"), "{refused}");
    assert!(site.runs().is_empty());
    site.succeeds(&["check", "configs/own/own.toml", "--waive", "GPU processes"]);
}

#[test]
fn the_exact_command_line_is_checked_and_shown() {
    let site = site();
    let checked = site.succeeds(&["check", "configs/own/own.toml"]);
    let words = r#"./train.sh --output_dir "#;
    let quoted = r#"--nodes 1 --words '$HOME; two {words}'"#;
    assert!(checked.contains(words) && checked.contains(quoted), "{checked}");
    assert!(checked.contains("TOKEN") && !checked.contains(SECRET), "{checked}");
    let shown = site.succeeds(&["launch", "configs/own/own.toml", "--dry-run"]);
    assert!(shown.contains("\n#   ./train.sh") && shown.contains(quoted), "{shown}");
    assert!(shown.contains("NCCL_IB_DISABLE=1") && !shown.contains(SECRET), "{shown}");

    mode(&site, "keys.env", 0o644);
    assert_eq!(site.error(&["launch", "configs/own/own.toml"]).1, "invalid-secrets");
    let open = site.fails(&["launch", "configs/own/own.toml"]);
    assert!(open.contains("0644") && open.contains("chmod 600") && !open.contains(SECRET), "{open}");
    mode(&site, "keys.env", 0o600);
    fs::remove_file(site.root.join("code/train.sh")).unwrap();
    assert_eq!(site.error(&["launch", "configs/own/own.toml"]).1, "program-missing");
    assert!(site.runs().is_empty());
}

#[test]
fn a_failing_command_reports_its_error_and_leaves_no_process() {
    let site = site();
    script(
        &site,
        "#!/usr/bin/env bash\n\
         setsid sleep 600 & echo $! >\"$(dirname \"$2\")/orphan-$RANK\"\n\
         [ \"$RANK\" = 1 ] || exec sleep 600\n\
         until [ -s \"$(dirname \"$2\")/orphan-0\" ]; do sleep 0.01; done\n\
         echo 'Traceback (most recent call last):'\n\
         echo 'ValueError: no video in /data'\n\
         echo '====='\n\
         exit 1\n",
    );
    let per_rank = ["--set", "command.per=rank", "--set", "env.variables.LOCAL=here"];
    let launch = [&["launch", "configs/own/own.toml", "--wait"], &per_rank[..]].concat();
    assert_eq!(site.error(&launch), (1, "rank-failed".into()));
    let failure = site.json(&["status", "latest", "--json"])["failure"].clone();
    assert!(failure["why"].as_str().unwrap().contains("ValueError: no video in /data"), "{failure}");
    let dir = site.runs().remove(0);
    for rank in [0, 1] {
        let pid = fs::read_to_string(dir.root.join(format!("orphan-{rank}"))).unwrap();
        let line = fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
        assert!(!line.starts_with(b"sleep"), "process {pid} is left");
    }
}

#[test]
fn a_kill_ends_workers_in_other_sessions_when_their_supervisor_is_gone() {
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
    site.until("the worker to start", || worker().is_some());
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
    assert_eq!(alive(), Liveness::Alive, "its worker is alive");
    assert_eq!(site.json(&["kill", run, "--yes", "--json"])["nodes"][0]["gone"], true);
    assert_eq!(alive(), Liveness::Dead);
    let line = fs::read(format!("/proc/{worker}/cmdline")).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&line).contains("while"), "process {worker} is left");
}

#[test]
fn the_steps_of_an_unknown_program_are_recognized_in_its_log() {
    let site = site();
    // A loop of accelerate with a bar of tqdm, which is redrawn after carriage returns.
    script(
        &site,
        "#!/usr/bin/env bash\n\
         echo \"loads, output is unbuffered: $PYTHONUNBUFFERED\"\n\
         printf 'Caching latents: 50%%|##  | 5/10 [00:01<00:01,  5.00it/s, loss=9.0]\\n'\n\
         for step in $(seq 1 20); do\n\
         printf '\\rSteps: %d%%|##  | %d/20 [00:01<00:09,  0.50s/it, loss=0.%d00, lr=1e-5]' $((5 * step)) $step $((60 - step))\n\
         done\n",
    );
    let auto = ["--set", "command.adapter=auto", "--set", "command.resume=[]"];
    let run = site.succeeds(&[&["launch", "configs/own/own.toml", "--wait"], &auto[..]].concat());
    let status = site.json(&["status", run.trim(), "--json"]);
    assert_eq!((&status["state"], &status["step"]), (&"finished".into(), &20.into()));
    let dir = site.runs().remove(0);
    let metrics = runstate::recent_metrics(&dir).unwrap();
    assert_eq!(metrics.len(), 20);
    let last = metrics.last().unwrap();
    assert_eq!((last.loss.map(|loss| loss as f32), last.lr, last.step_s), (Some(0.4), 1e-5, 0.5));
    let found = rundir::read_events(&dir).unwrap().into_iter().find_map(|event| match event.kind {
        EventKind::LogRecognized { format, metrics } => Some((format, metrics)),
        _ => None,
    });
    let want = (
        "progress bars of tqdm named 'Steps'".to_owned(),
        vec!["loss".to_owned(), "lr".to_owned(), "step_s".to_owned()],
    );
    assert_eq!(found, Some(want));
    let log = fs::read_to_string(dir.rank_log(&remote::this_node().unwrap().node, 1, 0)).unwrap();
    assert!(log.starts_with("loads, output is unbuffered: 1"), "{log}");
}

#[test]
fn a_check_of_a_log_prints_what_each_line_yields() {
    let site = site();
    site.write("train.log", "loads\nloads\nit 7 of 9, total 0.5\nit 8 of 9, total 0.25\n");
    let none = site.json(&["check", "--log", "train.log", "--json"]);
    assert_eq!((&none["lines"], &none["recognized"], &none["steps"]), (&4.into(), &serde_json::Value::Null, &0.into()));
    assert!(site.succeeds(&["check", "--log", "train.log"]).contains("command.patterns"), "the hint names the way out");
    let set = |name: &str| format!("command.patterns=[{{match = 'it (?P<step>\\d+) of \\d+, {name} (?P<loss>\\S+)'}}]");
    let with = |name: &str| {
        let (set, recipe) = (set(name), "configs/own/own.toml");
        let sets = ["--set", "command.adapter=auto", "--set", "command.resume=[]", "--set", &set];
        [&["check", recipe, "--log", "train.log"], &sets[..]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let args = with("total");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let read = site.json(&[&args[..], &["--json"]].concat());
    let first = &read["yields"][0];
    assert_eq!((&first["line"], &first["kind"], &first["step"]), (&3.into(), &"pattern".into(), &7.into()));
    assert_eq!(first["values"], serde_json::json!([["loss", 0.5]]));
    assert_eq!((&read["first_step"], &read["last_step"]), (&7.into(), &8.into()));
    assert_eq!(site.error(&["check", "--log", "nowhere.log"]).1, "not-found");
    assert_eq!(site.error(&["check", "--json"]).0, 2, "a recipe or a log is required");
}

#[test]
fn a_program_without_steps_in_its_log_runs_with_a_warning() {
    let site = site();
    script(&site, "#!/usr/bin/env bash\nfor line in $(seq 1 500); do echo \"line of text $line\"; done\n");
    let auto = ["--set", "command.adapter=auto", "--set", "command.resume=[]"];
    site.succeeds(&[&["launch", "configs/own/own.toml", "--wait"], &auto[..]].concat());
    let status = site.json(&["status", "latest", "--json"]);
    assert_eq!((&status["state"], &status["step"]), (&"finished".into(), &20.into()));
    let events = rundir::read_events(&site.runs().remove(0)).unwrap();
    let count = |is: fn(&EventKind) -> bool| events.iter().filter(|event| is(&event.kind)).count();
    assert_eq!(count(|kind| matches!(kind, EventKind::LogNotRecognized { .. })), 1, "{events:?}");
    assert_eq!(count(|kind| matches!(kind, EventKind::Started { .. })), 1);
}

#[test]
fn a_command_without_adapter_has_a_state_and_no_steps() {
    let site = site();
    script(&site, "#!/usr/bin/env bash\nuntil [ -e ../../go ]; do sleep 0.02; done\n");
    let none = ["--set", "command.adapter=none", "--set", "command.resume=[]", "--set", "command.folder="];
    let program = format!("command.run=[\"{}\"]", site.root.join("code/train.sh"));
    let run = site.succeeds(&[&["launch", "configs/own/own.toml", "--set", &program], &none[..]].concat());
    let run = run.trim();
    // On a busy machine, the launch may return before the supervisor has started the command.
    site.until("the run to start", || site.json(&["status", run, "--json"])["state"] == "running");
    assert!(site.succeeds(&["status", run]).contains("command.adapter"), "the reason is shown");
    assert!(site.succeeds(&["runs"]).contains("?/20"));
    site.write("go", "");
    site.until("the run to end", || site.json(&["status", run, "--json"])["state"] == "finished");
    assert_eq!(site.json(&["status", run, "--json"])["step"], 20);
}

#[test]
fn a_stage_with_a_command_shows_the_command_and_no_model() {
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
    assert_eq!(site.error(&["launch", "configs/own/own.toml", "--fit", "4"]).0, 2);
}
