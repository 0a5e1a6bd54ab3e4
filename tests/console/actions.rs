//! Actions from the console on processes, checkpoints and several runs.

use crate::pty::{ENTER, ESC};
use crate::test_site::TestSite;
use rundir::{RunDir, StartFrom};
use runstate::Liveness;
use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const SIZE: (u16, u16) = (120, 40);

/// A process that is killed when the test ends.
struct Orphan(Child);

impl Orphan {
    /// Starts a process with the environment of a rank of a run.
    fn of(run: &str) -> Self {
        let mut command = Command::new("sleep");
        command.arg("300").envs([("VIDTUI_RUN", run), ("RANK", "1")]).process_group(0).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_alive(run: &RunDir) -> bool {
    remote::pid_files(run).is_ok_and(|files| files.iter().any(|(_, live)| *live == Liveness::Alive))
}

#[test]
fn an_orphan_process_of_an_ended_run_is_listed_killed_and_verified() {
    let site = TestSite::new().with("FAKE_STEP_MS", "1");
    let run = site.succeeds(&["launch", "configs/small:short", "--set", "train.steps=30", "--wait"]);
    let mut orphan = Orphan::of(run.trim());
    let (pid, other) = (orphan.0.id(), Orphan::of(run.trim()));
    let planned = site.json(&["kill", "--training", "--dry-run", "--json"]);
    let found = planned["found"].as_array().unwrap();
    assert!(found.iter().any(|plan| plan["run"] == run.trim()), "{planned}");

    let console = site.console(SIZE, &[], &[]);
    console.shows(&["finished"]).press("3").shows(&["1 up"]).press("P").shows(&["command"]);
    // Other tests have processes too, so this test looks for its own.
    let details = format!("process {pid} on");
    let tries = Cell::new(0);
    console.meanwhile("the orphan process to be selected", || {
        if console.text().contains(&details) {
            return true;
        }
        // The order of the list changes with the processes of other tests, so it is searched again from its top.
        tries.set(tries.get() + 1);
        console.press(if tries.get() % 50 == 0 { "g" } else { "j" });
        // The console handles keys in their order. Once it has shown and closed its help, it has shown the new selection too.
        console.press("?").shows(&["Keys"]).press(ESC).shows_no("Keys");
        console.text().contains(&details)
    });
    console.shows(&["Orphan process of"]).press("K").shows(&["Kill 1 process on", &pid.to_string()]);
    assert!(!orphan.has_ended());
    console.press(ENTER).shows(&["1 process ended"]);
    site.until("the process to end", || !std::fs::exists(format!("/proc/{pid}/exe")).unwrap_or(false));
    assert!(orphan.has_ended());
    let mut other = other;
    assert!(!other.has_ended(), "only the chosen process was killed");
    console.press(ENTER).press(ESC).shows(&["1 up"]);
}

#[test]
fn a_run_is_resumed_from_an_older_checkpoint_with_fresh_data() {
    let site = TestSite::new().with("FAKE_STEP_MS", "10");
    let run = site.succeeds(&["launch", "configs/small:short"]);
    site.until_step(run.trim(), 45);
    site.succeeds(&["stop", run.trim(), "--wait"]);
    let run = site.runs()[0].clone();
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["stopped"]).press(ENTER).shows(&["Gradient norm"]).press("c").shows(&["Checkpoints of", "* pin"]);
    console.press("G").press("*").shows(&["pinned"]);
    assert!(rundir::step_checkpoints(&run).unwrap()[0].complete().unwrap().is_pinned);
    console
        .press("F")
        .shows(&["Resume small-short", "from step 20?", "trained again"])
        .press(ENTER)
        .shows(&["running"]);
    let start = run.latest_attempt().unwrap().unwrap().start;
    assert!(matches!(start, StartFrom::CheckpointFreshData { step: 20, .. }), "{start:?}");
}

#[test]
fn a_checkpoint_is_deleted_unless_it_is_pinned_or_needed() {
    let site = TestSite::new().with("FAKE_STEP_MS", "10");
    // The run does not finish before the stop, and keeps all checkpoints.
    let longer = ["--set", "train.steps=100000", "--set", "checkpoint.keep_last=0"];
    let run = site.succeeds(&[&["launch", "configs/small:short"], &longer[..]].concat());
    let run = run.trim();
    let delete = |step: &str| ["checkpoints", run, "delete", step, "--yes"].map(str::to_owned);
    let error = |args: [String; 5]| site.error(&args.each_ref().map(String::as_str)).1;
    site.until_step(run, 45);
    let newest = site.json(&["status", run, "--json"])["checkpoint"]["step"].as_u64().unwrap();
    // No checkpoint has this step.
    let refused = error(delete("1000"));
    assert_eq!(refused, "no-checkpoint");
    assert!(newest >= 40);
    site.succeeds(&["stop", run, "--wait"]);
    site.succeeds(&["checkpoints", run, "pin", "20"]);
    assert_eq!(site.json(&["checkpoints", run, "--json"])["checkpoints"][0]["pinned"], true);
    assert_eq!(error(delete("20")), "checkpoint-in-use");
    site.succeeds(&["checkpoints", run, "unpin", "20"]);

    let console = site.console(SIZE, &[], &[]);
    console.shows(&["stopped"]).press(ENTER).shows(&["Gradient norm"]).press("c").shows(&["Checkpoints of", "* pin"]);
    console.press("G").press("D").shows(&["Delete the checkpoint of step 20"]).press(ENTER).shows(&["deleted"]);
    let folder = site.root.join("runs").join(run).join("checkpoints");
    assert!(!folder.join("step-00000020").exists() && folder.join("step-00000040").exists());
    assert!(folder.read_dir_utf8().unwrap().flatten().all(|entry| !entry.file_name().starts_with("removing-")));
}

#[test]
fn several_marked_runs_are_stopped_and_resumed_after_one_dialog() {
    let site = TestSite::new();
    for _ in 0..2 {
        site.succeeds(&["launch", "configs/small:short"]);
    }
    site.until("both runs", || site.runs().iter().filter(|run| is_alive(run)).count() == 2);
    let alive = || site.runs().iter().filter(|run| is_alive(run)).count();
    let console = site.console(SIZE, &[], &[]);
    console.shows(&["running"]).press("  ").press("s").shows(&["Stop 2 runs?"]).press(ENTER).shows(&["done"]);
    console.meanwhile("both to stop", || alive() == 0);
    console.press(ENTER).shows(&["stopped"]).press("g").press("  ").press("r").shows(&["Resume 2 runs?"]).press(ENTER);
    console.meanwhile("both to start", || alive() == 2);
    console.shows(&["is starting", "done"]).press(ENTER).shows(&["running"]);
}
