//! Tests that a rig ends with its `Rig` value, its process or its parent, and that nothing of the rig is left.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rig::Options;

use crate::run;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/rig/rig");

/// Waits until no process, mount or file of a rig is left.
fn assert_nothing_is_left_of(folder: &str) {
    let began = Instant::now();
    loop {
        let left = left_of(folder);
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "still there: {left:?}");
        sleep(Duration::from_millis(5));
    }
}

fn left_of(folder: &str) -> Vec<String> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        for file in ["cmdline", "environ"] {
            let text = fs::read(entry.path().join(file)).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains(folder) && entry.file_name() != *std::process::id().to_string() {
                left.push(format!("{}: {}", entry.path().display(), String::from_utf8_lossy(&text).replace('\0', " ")));
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(folder)).map(str::to_owned));
    left.extend(fs::exists(folder).unwrap().then(|| folder.to_owned()));
    left
}

/// Starts a shell that owns a rig and prints the rig's folder.
fn owner(options: &str, place: &str) -> Child {
    let owner =
        format!("coproc {SCRIPT} serve 3 {options}; while read -r line <&\"${{COPROC[0]}}\"; do echo \"$line\"; done");
    Command::new("bash").args(["-c", &owner]).env("TMPDIR", place).stdout(Stdio::piped()).spawn().unwrap()
}

/// Reads the rig's folder; `None` when no rig is possible here.
fn folder_of(owner: &mut Child) -> Option<String> {
    let mut line = String::new();
    BufReader::new(owner.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let folder = line.strip_prefix("ready ").map(|folder| folder.trim_end().to_owned());
    if folder.is_none() {
        println!("skipped: {line}");
    }
    folder
}

#[test]
fn dropping_a_rig_ends_it_at_once() {
    let Some(rig) = Options::new(3).up_or_skip() else { return };
    let folder = rig.folder().to_string();
    assert!(left_of(&folder).len() > 3, "the test does not find a running rig");
    drop(rig);
    assert_eq!(left_of(&folder), [""; 0]);
}

#[test]
fn a_rig_ends_when_its_owner_is_killed() {
    for options in ["", "--slurm"] {
        let mut owner = owner(options, "/tmp");
        let Some(folder) = folder_of(&mut owner) else { return };
        owner.kill().unwrap();
        owner.wait().unwrap();
        assert_nothing_is_left_of(&folder);
    }
}

#[test]
fn a_rig_ends_when_its_owner_is_killed_before_it_is_up() {
    if Options::new(1).up_or_skip().is_none() {
        return;
    }
    // Search for the parent of the rig's folder, because the owner is killed before it prints the folder.
    let place = format!("/tmp/vidtui-rig-killed.{}", std::process::id());
    fs::create_dir(&place).unwrap();
    for wait_ms in [0, 10, 30, 100, 200, 300] {
        let mut owner = owner("", &place);
        sleep(Duration::from_millis(wait_ms));
        owner.kill().unwrap();
        owner.wait().unwrap();
        let began = Instant::now();
        // During exec, a process has no command line.
        while left_of(&place).len() > 1 || fs::read_dir(&place).unwrap().count() > 0 {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the rig runs on after its owner was killed at {wait_ms} ms"
            );
            sleep(Duration::from_millis(5));
        }
    }
    fs::remove_dir(&place).unwrap();
}

#[test]
fn a_rig_started_by_hand_runs_until_rig_down() {
    let folder = format!("/tmp/vidtui-rig-by-hand.{}", std::process::id());
    let rig = |args: &[&str]| run(Command::new(SCRIPT).env("RIG", &folder).args(args));
    if let Err(why) = rig(&["possible"]) {
        println!("skipped: {why}");
        return;
    }
    let up = rig(&["up", "2", "--gpus", "1"]).unwrap();
    assert_eq!(up, "node01  10.99.0.1     on\nnode02  10.99.0.2     on");
    assert!(rig(&["up", "2"]).unwrap_err().contains("rig down"));
    rig(&["verb", "linkdown", "node01"]).unwrap();
    rig(&["verb", "poweroff", "node02"]).unwrap();
    assert_eq!(rig(&["status"]).unwrap(), "node01  10.99.0.1     cut off, on\nnode02  10.99.0.2     off");
    rig(&["down"]).unwrap();
    // Killed processes disappear with a short delay.
    assert_nothing_is_left_of(&folder);
}
