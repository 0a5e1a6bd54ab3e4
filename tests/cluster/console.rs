//! Tests of the console with a run on two nodes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use rundir::RunDir;

use crate::command::own;
use crate::pty::{ENTER, Pty};
use crate::site::{TestSite, VIDTUI, losses, samples};

const STEPS: u64 = 400;

/// Opens the console on the head node.
pub fn open(site: &TestSite) -> Pty {
    open_with(site, &[])
}

/// Opens the console on the head node with these environment variables.
fn open_with(site: &TestSite, variables: &[(&str, &str)]) -> Pty {
    let hostfile = site.rig.hostfile();
    let mut words = site.rig.prefix();
    words.extend([VIDTUI, "--runs", site.runs.as_str(), "--hostfile", hostfile.as_str()].map(str::to_owned));
    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    let variables = [&[("VIDTUI_TRAIN", site.trainer.as_str())], variables].concat();
    Pty::start((140, 40), &words[0], &args, &variables, &root)
}

/// Returns the library that fakes the time of a program, if it is installed.
fn faketime() -> Option<Utf8PathBuf> {
    let folders = Utf8Path::new("/usr/lib").read_dir_utf8().ok()?.filter_map(|folder| folder.ok());
    folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|library| library.exists())
}

#[test]
fn a_console_whose_clock_jumps_by_hours_shows_the_right_state_and_ends_no_run() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let Some(library) = faketime() else {
        println!("skipped: faketime is not installed; it makes a clock jump (Debian: apt-get install faketime)");
        return;
    };
    let recipe = own(&site, 2, STEPS, "sleep 0.5");
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --hostfile {}", site.rig.hostfile()))));
    site.until_step(&run, 1, 4);

    let clock = site.rig.share().join("clock");
    fs::write(&clock, "+0").unwrap();
    let variables = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME_TIMESTAMP_FILE", clock.as_str()),
        ("FAKETIME_NO_CACHE", "1"),
        // Setting a clock changes neither the monotonic clock nor the times of files.
        ("DONT_FAKE_MONOTONIC", "1"),
        ("NO_FAKE_STAT", "1"),
    ];
    let now_s = || -> f64 {
        let output = site.rig.command("date").arg("+%s").envs(variables).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    };
    let mut console = open_with(&site, &variables);
    console.shows(&["own", "running"]).press(ENTER).shows(&["Loss", "running"]);
    let true_s = now_s();
    for (jump, by_s) in [("+3h", 10_800.0), ("-3h", -10_800.0)] {
        fs::write(&clock, jump).unwrap();
        assert!((now_s() - true_s - by_s).abs() < 600.0, "the clock did not jump by {jump}");
        let seen = samples(&run).len();
        site.until("it makes more steps, and its nodes send samples", || samples(&run).len() > seen + 24);
        console.shows(&["running"]).shows_no("stalled").shows_no("crashed").shows_no("was lost");
    }
    console.press("q");
    assert_eq!(console.ended(), 0);
    site.does("kill latest --yes");
    assert_eq!(run.attempt_numbers().unwrap(), [1]);
}

#[test]
fn a_recipe_is_launched_from_the_form_on_the_nodes_that_are_chosen_in_it() {
    let Some(site) = TestSite::without_trainer(3) else { return };
    let recipe = own(&site, 2, 12, ":");
    let mut console = open(&site);
    console.shows(&["No runs yet"]).press("5").press("n").shows(&["vidtui launch"]).press(&recipe).press(ENTER);
    console.shows(&["Start own?", "[x] node01", "[x] node02", "[x] node03", "idle"]);
    console.press("\t").press("j").press(" ").shows(&["[ ] node02"]);
    console.press("+").press("checkpoint.interval=7").press(ENTER).shows(&["override", "Start own?"]);
    console.press(ENTER).shows(&["step 12 of 12", "finished"]).press("q");
    assert_eq!(console.ended(), 0);
    let run = RunDir::new(site.runs.join(site.status()["run"].as_str().unwrap()));
    let nodes: Vec<String> =
        run.read_attempt(1).unwrap().placement.by_node().iter().map(|(node, _)| node.to_string()).collect();
    assert_eq!(nodes, ["node01", "node03"]);
    assert_eq!(run.read_run().unwrap().recipe().unwrap().checkpoint.interval, 7);
}

#[test]
fn a_console_that_is_killed_and_opened_again_shows_a_lost_node_and_resumes_with_one_key_to_the_same_losses() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = own(&site, 2, STEPS, "sleep 0.5");
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --hostfile {}", site.rig.hostfile()))));
    site.until_step(&run, 1, 8);

    let console = open(&site);
    console.shows(&["own", "running"]);
    assert!(Command::new("kill").args(["-KILL", &console.pid().to_string()]).status().unwrap().success());
    drop(console);
    let seen = samples(&run).len();
    site.until("it makes steps", || samples(&run).len() > seen);

    let mut console = open(&site);
    console.shows(&["own", "running"]).press("3").shows(&["2 nodes", "2 up"]);
    site.rig.verb("linkdown node02").unwrap();
    console.shows(&["1 unreachable"]).press("1").shows(&["Node node02 was lost"]);
    site.until("both supervisors have ended", || {
        site.rig.nodes().iter().all(|node| site.count_on(node, "train.sh|vidtui supervise") == 0)
    });
    site.rig.verb("heal node02").unwrap();
    console.press("3").shows(&["2 up"]).press("1").press("r").shows(&["400/400", "finished"]);
    console.press(ENTER).shows(&["Loss", "checkpoint saved"]).press("q");
    assert_eq!(console.ended(), 0);
    assert_eq!(run.attempt_numbers().unwrap(), [1, 2]);
    assert_eq!(run.read_attempt(2).unwrap().placement.by_node().len(), 2);
    let want: BTreeMap<u64, f64> = (1..=STEPS).map(|step| (step, (999 - step) as f64 / 1000.0)).collect();
    assert_eq!(losses(&run), want, "the losses of a run that never stopped");
}
