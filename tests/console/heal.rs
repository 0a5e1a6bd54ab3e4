//! Tests of the healer on this machine: it resumes a run after a failure, without a user.

use crate::test_site::TestSite;
use rig::SmallDisk;
use rundir::{AttemptWhy, EventKind, RunDir, read_events};

const HEALS: [&str; 4] = ["launch", "configs/small:short", "--set", "run.on_failure=resume"];

fn launch(site: &TestSite) -> RunDir {
    RunDir::new(site.root.join("runs").join(site.succeeds(&HEALS).trim()))
}

/// Returns the names of the healer's events.
fn healer_events(run: &RunDir) -> Vec<&'static str> {
    let events = read_events(run).unwrap();
    let name = |kind: &EventKind| match kind {
        EventKind::HealStarted { .. } => Some("started"),
        EventKind::HealWaiting { .. } => Some("waiting"),
        EventKind::Healed { .. } => Some("healed"),
        EventKind::HealEnded { .. } => Some("ended"),
        _ => None,
    };
    events.iter().filter_map(|event| name(&event.kind)).collect()
}

#[test]
fn a_run_that_fails_once_is_resumed_and_finishes_without_a_console() {
    let site = TestSite::new().with("FAKE_STEP_MS", "5").with("FAKE_DIES_AT", "25");
    let run = launch(&site);
    site.until("it has finished", || site.json(&["status", "latest", "--json"])["state"] == "finished");
    let attempt = run.latest_attempt().unwrap().unwrap();
    assert_eq!((attempt.number, attempt.why), (2, AttemptWhy::Heal));
    assert_eq!(healer_events(&run), ["started", "healed"]);
    site.until("the healer has ended", || run.healer().is_none());
    let log = std::fs::read_to_string(run.healer_log()).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    for part in ["attempt 1: failed", "attempt 2: resumed by the healer", "has finished; the healer ends"] {
        assert!(lines.iter().any(|line| line.contains(part) && line.contains(" UTC ")), "{part}: {log}");
    }
    let again = site.vidtui(&["heal", "latest"]);
    assert!(again.code == 0 && again.stderr.contains("has finished"), "{}", again.stderr);
}

#[test]
fn a_run_that_fails_twice_at_the_same_step_is_not_resumed_again() {
    let site = TestSite::new().with("FAKE_STEP_MS", "5").with("FAKE_DIES_AT", "25").with("FAKE_DIES_ALWAYS", "1");
    let run = launch(&site);
    site.until("the healer has ended", || healer_events(&run).contains(&"ended") && run.healer().is_none());
    assert_eq!(run.attempt_numbers().unwrap().len(), 2);
    assert_eq!(healer_events(&run), ["started", "healed", "ended"]);
}

#[test]
fn a_run_has_one_healer_and_a_user_who_stops_the_run_ends_it() {
    for end in [&["stop", "latest", "--wait"][..], &["kill", "latest", "--yes"]] {
        let site = TestSite::new();
        let run = launch(&site);
        site.until_step("latest", 1);
        site.until("the healer runs", || run.healer().is_some());
        let (code, error) = site.error(&["heal", "latest"]);
        assert_eq!((code, error.as_str()), (1, "already-exists"));
        site.succeeds(end);
        site.until("the healer has ended", || run.healer().is_none());
        assert_eq!((run.attempt_numbers().unwrap().len(), healer_events(&run).len()), (1, 0), "{end:?}");
    }
}

#[test]
fn a_run_that_waits_to_be_resumed_is_not_resumed_any_more_after_a_stop() {
    let site = TestSite::new().with("FAKE_STEP_MS", "5").with("FAKE_DIES_AT", "25");
    let run = RunDir::new(site.root.join("runs").join(site.succeeds(&["launch", "configs/small:short"]).trim()));
    site.until("it has failed", || site.json(&["status", "latest", "--json"])["state"] == "failed");
    // Without a trainer, the healer cannot resume the run, and tries again.
    let mut heal = site.command(&["heal", "latest", "--detached"]);
    assert!(heal.env("VIDTUI_TRAIN", "/nowhere/vidtui-train").status().unwrap().success());
    site.until("it waits", || healer_events(&run) == ["started", "waiting"]);
    site.succeeds(&["stop", "latest"]);
    site.until("the healer has ended", || run.healer().is_none());
    assert_eq!(run.attempt_numbers().unwrap(), [1]);
}

#[test]
fn a_run_that_fails_while_the_disk_is_full_is_resumed_once_there_is_room() {
    let site = TestSite::new();
    let Some(disk) = SmallDisk::mount(&site.root.join("runs"), "size=2m") else { return };
    // The first attempt waits for the file `go`, and is then killed.
    let script = "[ -e again ] || { echo $$ >again; until [ -e go ]; do sleep 0.1; done; kill -9 $$; }";
    let run = format!("run = ['sh', '-c', '{script}']\nfolder = '{}'", site.root);
    site.write("own.toml", &format!("trainer = 'command'\n[command]\n{run}\n[train]\nsteps = 9\n"));
    let run = site.succeeds(&["launch", "own.toml", "--waive", "disk"]);
    let run = RunDir::new(site.root.join("runs").join(run.trim()));
    site.succeeds(&["heal", "latest", "--detached"]);
    site.until("the healer runs", || run.healer().is_some());
    let pid = || std::fs::read_to_string(site.root.join("again")).unwrap_or_default();
    site.until("the command runs", || pid().ends_with('\n'));
    disk.fill().unwrap();
    site.write("go", "");
    site.until("the command has ended", || !std::fs::exists(format!("/proc/{}", pid().trim())).unwrap());
    assert!(run.healer().is_some(), "the healer waits for room");
    disk.grow().unwrap();
    site.until("it has finished", || site.json(&["status", "latest", "--json"])["state"] == "finished");
    let attempt = run.latest_attempt().unwrap().unwrap();
    assert_eq!((attempt.number, attempt.why), (2, AttemptWhy::Heal));
    site.until("the healer has ended", || run.healer().is_none());
}
