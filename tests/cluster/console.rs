//! A person at the console, over a run on two nodes.

use std::collections::BTreeMap;
use std::process::Command;

use camino::Utf8Path;
use rundir::RunDir;

use crate::command::own;
use crate::place::{Place, VIDTUI, losses, samples};
use crate::pty::{ENTER, Pty};

const STEPS: u64 = 400;

/// Opens the console on the head.
fn open(place: &Place) -> Pty {
    let hostfile = place.rig.hostfile();
    let mut words = place.rig.prefix();
    words.extend([VIDTUI, "--runs", place.runs.as_str(), "--hostfile", hostfile.as_str()].map(str::to_owned));
    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    Pty::start((140, 40), &words[0], &args, &[("VIDTUI_TRAIN", place.trainer.as_str())], &root)
}

#[test]
fn a_console_that_is_killed_and_opened_again_shows_a_lost_node_and_resumes_with_one_key_to_the_same_losses() {
    let Some(place) = Place::without_trainer(2) else { return };
    let recipe = own(&place, 2, STEPS, "sleep 0.5");
    let run = RunDir::new(place.runs.join(place.does(&format!("launch {recipe} --hostfile {}", place.rig.hostfile()))));
    place.until_step(&run, 1, 8);

    let console = open(&place);
    console.shows(&["own", "running"]);
    assert!(Command::new("kill").args(["-KILL", &console.pid().to_string()]).status().unwrap().success());
    drop(console);
    let seen = samples(&run).len();
    place.until("it trains on", || samples(&run).len() > seen);

    let mut console = open(&place);
    console.shows(&["own", "running"]).press("3").shows(&["2 nodes", "2 up"]);
    place.rig.verb("linkdown node02").unwrap();
    console.shows(&["1 unreachable"]).press("1").shows(&["Node node02 was lost"]);
    place.until("both supervisors have ended", || {
        place.rig.nodes().iter().all(|node| place.count_on(node, "train.sh|vidtui supervise") == 0)
    });
    place.rig.verb("heal node02").unwrap();
    console.press("3").shows(&["2 up"]).press("1").press("r").shows(&["finished"]);
    console.press(ENTER).shows(&["Loss", "checkpoint saved"]).press("q");
    assert_eq!(console.ended(), 0);
    assert_eq!(run.attempt_numbers().unwrap(), [1, 2]);
    assert_eq!(run.read_attempt(2).unwrap().placement.by_node().len(), 2);
    let want: BTreeMap<u64, f64> = (1..=STEPS).map(|step| (step, (999 - step) as f64 / 1000.0)).collect();
    assert_eq!(losses(&run), want, "those of a run that never stopped");
}
