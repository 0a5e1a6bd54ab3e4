//! Tests of the queue of runs: order, hold, entries that cannot start, stages that continue each other, and the worker.

use crate::test_site::TestSite;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rig::SmallDisk;
use rundir::{Queue, QueueState, RunDir, StartFrom};
use serde_json::Value;
use std::fs;

fn site() -> TestSite {
    TestSite::new().with("FAKE_STEP_MS", "5")
}

fn queue(site: &TestSite) -> Queue {
    Queue::of(&site.root.join("runs"))
}

const SHORT: [&str; 5] = ["queue", "add", "configs/small/short.toml", "--set", "train.steps=10"];

/// Launches a run that does not finish before it is stopped, on a busy machine either.
const LONG: [&str; 4] = ["launch", "configs/small:short", "--set", "train.steps=100000"];

/// Adds a run with a name.
fn add(site: &TestSite, name: &str, more: &[&str]) {
    site.succeeds(&[&SHORT[..], &["--name", name], more].concat());
}

/// Returns the id and one field of each entry, in the order of the queue.
fn entries(site: &TestSite, field: &str) -> Vec<(u64, String)> {
    let listed = site.json(&["queue", "--json"]);
    let text = |entry: &Value| match &entry[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    listed["entries"].as_array().unwrap().iter().map(|entry| (entry["id"].as_u64().unwrap(), text(entry))).collect()
}

fn states(site: &TestSite) -> Vec<(u64, String)> {
    entries(site, "state")
}

fn are(states: &[(u64, String)], want: &[(u64, &str)]) -> bool {
    states.iter().map(|(id, state)| (*id, state.as_str())).eq(want.iter().copied())
}

/// Returns the names of the runs in the order in which they were created.
fn names(site: &TestSite) -> Vec<String> {
    let mut runs: Vec<_> = site.runs().iter().map(|run| run.read_run().unwrap()).collect();
    runs.sort_by(|a, b| a.created_s.total_cmp(&b.created_s));
    runs.into_iter().map(|run| run.name).collect()
}

fn until_idle(site: &TestSite) {
    site.until("the queue to end", || {
        let ended = ["finished", "failed", "held", "stopped"];
        states(site).iter().all(|(_, state)| ended.contains(&state.as_str())) && queue(site).worker().is_none()
    });
}

#[test]
fn runs_start_one_after_the_other_in_the_order_of_the_queue() {
    let site = site();
    // The node is in use, so that the queue waits while it is changed.
    let first = site.succeeds(&LONG);
    for name in ["a", "b", "c", "d"] {
        add(&site, name, &[]);
    }
    site.succeeds(&["queue", "move", "4", "first"]);
    site.succeeds(&["queue", "move", "1", "last"]);
    site.succeeds(&["queue", "move", "3", "before", "2"]);
    let waiting = ["4", "3", "2", "1"].map(|id| (id.parse().unwrap(), "waiting"));
    assert!(are(&states(&site), &waiting), "{:?}", states(&site));
    assert_eq!(site.runs().len(), 1);
    let list = site.succeeds(&["queue"]);
    assert!(list.contains(&format!("waiting for {} on ", first.trim())), "{list}");
    assert!(list.contains("waiting for entry 4 to start"), "{list}");
    let waits = site.json(&["queue", "--json"])["entries"].clone();
    assert_eq!((&waits[0]["waits_for"]["run"], &waits[1]["waits_for"]["entry"]), (&first.trim().into(), &4.into()));
    site.succeeds(&["stop", first.trim()]);
    until_idle(&site);
    assert_eq!(names(&site)[1..], ["d", "c", "b", "a"]);
    let node = remote::this_node().unwrap().node;
    let times = |run: &RunDir| (run.read_run().unwrap().created_s, run.read_exit(&node, 1).unwrap().unwrap().ended_s);
    let mut ends: Vec<(f64, f64)> = site.runs().iter().map(times).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two runs used the node at once: {ends:?}");
}

#[test]
fn a_held_entry_is_skipped_until_it_is_released() {
    let site = site();
    add(&site, "a", &["--hold"]);
    add(&site, "b", &[]);
    until_idle(&site);
    assert!(are(&states(&site), &[(2, "finished"), (1, "held")]), "{:?}", states(&site));
    site.succeeds(&["queue", "release", "1"]);
    until_idle(&site);
    assert_eq!(names(&site), ["b", "a"]);
    // A started entry cannot be held, and removing an entry keeps its run.
    assert_eq!(site.error(&["queue", "hold", "1"]).1, "run-is-alive");
    assert_eq!(site.error(&["queue", "hold", "7"]), (2, "unknown-name".into()));
    site.succeeds(&["queue", "remove", "--ended"]);
    assert!(states(&site).is_empty());
    assert_eq!(site.runs().len(), 2);
}

#[test]
fn an_entry_that_cannot_start_reports_why_and_the_next_one_starts() {
    let site = site();
    site.succeeds(&[&SHORT[..], &["--name", "source", "--set", "checkpoint.interval=5"]].concat());
    until_idle(&site);
    let source = site.runs().remove(0);
    let checkpoint = source.step_dir(10);
    // The entries are held while a checkpoint is deleted. The data of the second one does not exist yet.
    add(&site, "gone", &["--hold", "--init", checkpoint.as_str()]);
    add(&site, "no-data", &["--hold", "--set", "data.index=data/copy.jsonl"]);
    add(&site, "good", &["--hold"]);
    fs::remove_dir_all(&checkpoint).unwrap();
    site.succeeds(&["queue", "release", "2", "3", "4"]);
    until_idle(&site);
    assert!(
        are(&states(&site), &[(1, "finished"), (2, "failed"), (3, "failed"), (4, "finished")]),
        "{:?}",
        states(&site)
    );
    let failures = entries(&site, "failure");
    assert!(
        failures[1].1.contains(r#""code":"not-found""#) && failures[1].1.contains(checkpoint.as_str()),
        "{failures:?}"
    );
    assert!(failures[2].1.contains("data/copy.jsonl"), "{failures:?}");
    // Once the data exists, the entry can start.
    fs::copy(site.root.join("data/short.jsonl"), site.root.join("data/copy.jsonl")).unwrap();
    site.succeeds(&["queue", "release", "3"]);
    until_idle(&site);
    assert_eq!(names(&site), ["source", "good", "no-data"]);
}

#[test]
fn an_entry_of_another_user_waits_for_a_worker_of_that_user() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give a file to another user");
        return;
    }
    let site = site();
    add(&site, "theirs", &["--hold"]);
    let file = site.root.join("runs/queue/1.toml");
    let text = fs::read_to_string(&file).unwrap().replace("held", "waiting");
    fs::write(&file, &text).unwrap();
    std::os::unix::fs::chown(&file, Some(64_001), None).unwrap();
    add(&site, "own", &[]);
    site.until("the worker to end", || queue(&site).worker().is_none() && !site.runs().is_empty());
    assert_eq!(names(&site), ["own"]);
    assert_eq!(entries(&site, "owner"), [(2, "null".to_owned()), (1, "user 64001".to_owned())]);
    let listed = site.succeeds(&["queue"]);
    assert!(listed.contains("entry 1 belongs to user 64001; waits for a worker of user 64001"), "{listed}");
    assert_eq!(site.error(&["queue", "hold", "1"]).1, "untrusted-file");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_run_of_another_user_is_neither_resumed_nor_continued_nor_healed() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give a file to another user");
        return;
    }
    let site = site();
    add(&site, "theirs", &[]);
    until_idle(&site);
    let run = site.runs().remove(0);
    std::os::unix::fs::chown(run.run_toml(), Some(64_001), None).unwrap();
    for command in ["resume", "next", "heal"] {
        assert_eq!(site.error(&[command, run.name()]).1, "untrusted-file", "{command}");
    }
    site.succeeds(&["status", run.name()]);
    assert_eq!(run.attempt_numbers().unwrap(), [1]);
}

#[test]
fn a_launch_is_checked_when_it_is_added() {
    let site = site();
    let code = |args: &[&str]| site.error(&[&["queue", "add"], args].concat()).1;
    assert_eq!(code(&["configs/small/none.toml"]), "not-found");
    assert_eq!(code(&["configs/small/short.toml", "--set", "train.step=1"]), "invalid-recipe");
    assert_eq!(code(&["configs/small/short.toml", "--local", "3"]), "invalid-mesh");
    assert_eq!(code(&["configs/small/short.toml", "--hostfile", "none.txt"]), "not-found");
    assert_eq!(code(&["configs/small/short.toml", "--init", "no-such-run"]), "run-not-found");
    assert_eq!(code(&["configs/small:long"]), "no-checkpoint");
    assert_eq!(code(&["configs/small/short.toml", "--slurm", "x.toml"]), "invalid-argument");
    assert!(states(&site).is_empty() && queue(&site).worker().is_none());
}

#[test]
fn the_stages_of_a_curriculum_continue_each_other() {
    let site = site();
    site.succeeds(&["queue", "add", "configs/small", "--set", "train.steps=10"]);
    let after = entries(&site, "after");
    assert!(are(&after, &[(1, "null"), (2, "1")]), "{after:?}");
    until_idle(&site);
    let runs: Vec<_> = site.runs().iter().map(|run| run.read_run().unwrap()).collect();
    let long = runs.iter().find(|run| run.stage.as_deref() == Some("long")).unwrap();
    let short = runs.iter().find(|run| run.stage.as_deref() == Some("short")).unwrap();
    assert_eq!(long.lineage.as_ref().unwrap().run, short.id);
    assert!(matches!(long.start, StartFrom::Weights { .. }));
}

#[test]
fn a_stage_does_not_start_from_a_run_that_failed() {
    let site = site().with("FAKE_DIES_AT", "5").with("FAKE_DIES_ALWAYS", "1");
    site.succeeds(&["queue", "add", "configs/small", "--set", "train.steps=10"]);
    until_idle(&site);
    let failures = entries(&site, "failure");
    assert!(are(&states(&site), &[(1, "failed"), (2, "failed")]), "{:?}", states(&site));
    assert!(failures[1].1.contains(r#""code":"no-weights""#), "{failures:?}");
    assert_eq!(site.runs().len(), 1);
}

#[test]
fn a_queue_has_one_worker_and_another_one_continues_after_its_end() {
    let site = site();
    let first = site.succeeds(&LONG);
    add(&site, "a", &[]);
    add(&site, "b", &[]);
    site.until("the worker to run", || queue(&site).worker().is_some());
    assert_eq!(site.error(&["queue", "work"]), (1, "already-exists".into()));
    site.succeeds(&["queue", "work", "--detached"]);

    let worker = queue(&site).worker().unwrap();
    kill(Pid::from_raw(worker.pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    site.until("the worker to be gone", || queue(&site).worker().is_none());
    // The worker was killed after it had recorded a run, and before it created the run.
    let record = |entries: &mut Vec<rundir::QueueEntry>, _| {
        let run = rundir::RunId::parse("2026-11-20T0340-a-k7f2").unwrap();
        entries[0].state = QueueState::Starting { run, at_s: 1.0 };
        Ok::<_, rundir::Error>(())
    };
    queue(&site).change(record).unwrap();
    site.succeeds(&["stop", first.trim()]);
    let two = [0, 1].map(|_| site.command(&["queue", "work"]).spawn().unwrap());
    let codes = two.map(|mut worker| worker.wait().unwrap().code());
    assert!(codes.contains(&Some(0)), "{codes:?}");
    until_idle(&site);
    assert!(are(&states(&site), &[(1, "finished"), (2, "finished")]), "{:?}", entries(&site, "failure"));
    assert_eq!(names(&site)[1..], ["a", "b"]);
}

#[test]
fn a_full_disk_loses_no_entry_and_the_next_run_starts_once_there_is_room() {
    let site = site();
    let Some(disk) = SmallDisk::mount(&site.root.join("runs"), "size=2m") else { return };
    let script = "until [ -e go ]; do sleep 0.1; done; touch ended";
    let run = format!("run = ['sh', '-c', '{script}']\nfolder = '{}'", site.root);
    site.write("own.toml", &format!("trainer = 'command'\n[command]\n{run}\n[train]\nsteps = 9\n"));
    for name in ["a", "b"] {
        site.succeeds(&["queue", "add", "own.toml", "--waive", "disk", "--name", name]);
    }
    site.until("the first run runs", || are(&states(&site), &[(1, "running"), (2, "waiting")]));
    disk.fill().unwrap();
    let (code, error) = site.error(&["queue", "add", "own.toml", "--waive", "disk", "--name", "c"]);
    assert_eq!((code, error.as_str()), (1, "disk-full"));
    assert!(are(&states(&site), &[(1, "running"), (2, "waiting")]), "{:?}", states(&site));
    site.write("go", "");
    site.until("the first run has ended", || site.root.join("ended").exists());
    assert!(queue(&site).worker().is_some(), "the worker waits for room");
    disk.grow().unwrap();
    until_idle(&site);
    assert!(are(&states(&site), &[(1, "finished"), (2, "finished")]), "{:?}", entries(&site, "failure"));
    assert_eq!(names(&site), ["a", "b"]);
}
