use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rig::Options;

use crate::{said, ssh, ssh_within};

/// Does one thing after another to node02 of a rig, and holds that a login then fails with these words, or works where there are none.
///
/// node01 must not notice.
fn assert_logins(steps: &[(&str, &str)]) {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    for (verb, words) in steps {
        rig.verb(verb).unwrap();
        assert_eq!(ssh(&rig, "node01", "hostname").unwrap(), "node01", "after {verb}");
        // Only silence is waited out; an answer may be late on a busy machine.
        let is_silent = ["timed out", "banner exchange"].contains(words);
        let seconds = if is_silent { 3 } else { 60 };
        match ssh_within(&rig, "node02", "hostname", seconds) {
            Ok(name) => assert_eq!((name.as_str(), *words), ("node02", ""), "after {verb}"),
            Err(said) => assert!(!words.is_empty() && said.contains(words), "after {verb}: {said}"),
        }
    }
}

#[test]
fn a_node_that_is_cut_off_is_silent_until_it_is_healed() {
    assert_logins(&[
        ("linkdown node02", "timed out"),
        ("linkup node02", ""),
        ("drop node02", "timed out"),
        ("heal node02", ""),
        ("linkdown node02", "timed out"),
        ("heal node02", ""),
    ]);
}

#[test]
fn a_node_without_an_ssh_server_refuses_until_it_has_one() {
    assert_logins(&[
        ("refuse node02", "refused"),
        ("heal node02", ""),
        ("killsshd node02", "refused"),
        ("startsshd node02", ""),
        ("dropsessions node02", ""),
    ]);
}

#[test]
fn a_node_whose_processes_are_stopped_connects_and_says_nothing() {
    assert_logins(&[
        ("stop node02", "banner exchange"),
        ("cont node02", ""),
        ("stopsshd node02", "banner exchange"),
        ("contsshd node02", ""),
    ]);
}

#[test]
fn a_node_without_power_is_silent_and_one_that_crashed_refuses() {
    assert_logins(&[
        ("poweroff node02", "timed out"),
        ("poweron node02", ""),
        ("panic node02", "refused"),
        ("poweron node02", ""),
    ]);
}

#[test]
fn a_node_with_another_key_or_without_ours_is_not_logged_in_to() {
    assert_logins(&[
        ("nologin node02", "Permission denied"),
        ("login node02", ""),
        ("newkey node02", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ]);
}

#[test]
fn a_bad_network_is_slow_but_works() {
    assert_logins(&[("loss node02 10", ""), ("heal node02", ""), ("slow node02 500", ""), ("heal node02", "")]);
}

#[test]
fn a_connection_is_reset_in_the_middle_of_a_line() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    let script = "echo begun; printf 'half a '; while :; do printf .; sleep 0.1; done";
    let mut session = rig.command("ssh");
    let mut session = session.args(["node01", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(session.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    rig.verb("reset node01").unwrap();
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("half a") && !line.ends_with('\n'), "{line:?}");
    let output = session.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(255), "{output:?}");
    rig.verb("heal node01").unwrap();
    assert_eq!(ssh(&rig, "node01", "hostname").unwrap(), "node01");
}

#[test]
fn a_node_that_is_started_again_has_a_new_boot_id_and_its_old_home() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let before = ssh(&rig, "node01", &format!("echo kept >file; touch /dev/shm/lost; {boot}")).unwrap();
    rig.verb("poweroff node01").unwrap();
    rig.verb("poweron node01").unwrap();
    assert_ne!(ssh(&rig, "node01", boot).unwrap(), before);
    assert_eq!(ssh(&rig, "node01", "cat file; ls /dev/shm").unwrap(), "kept");
}

#[test]
fn a_full_disk_is_full_for_its_node_alone() {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    rig.verb("fill node01").unwrap();
    let write = format!("echo something >{}/disk/file", rig.own());
    assert!(ssh(&rig, "node01", &write).unwrap_err().contains("No space left"));
    ssh(&rig, "node02", &write).unwrap();
    rig.verb("unfill node01").unwrap();
    ssh(&rig, "node01", &write).unwrap();
}

#[test]
fn a_clock_that_is_ahead_is_so_on_its_node_alone() {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    rig.verb("clock node02 3600").unwrap();
    let clock = |node| ssh(&rig, node, "date +%s").unwrap().parse::<i64>().unwrap();
    let ahead = clock("node02") - clock("node01");
    assert!((3590..3700).contains(&ahead), "{ahead}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    let errors = ["explode node01", "poweroff node07", "poweroff", "poweron node01", "loss node01 much"]
        .map(|verb| rig.verb(verb).unwrap_err().to_string());
    assert_eq!(
        errors,
        [
            "the rig cannot \"explode node01\": cannot run the rig: explode is not a verb; `rig verbs` lists them",
            "the rig cannot \"poweroff node07\": cannot run the rig: poweroff wants a node, and node07 is none",
            "the rig cannot \"poweroff\": cannot run the rig: poweroff wants a node, and none is none",
            "the rig cannot \"poweron node01\": cannot run the rig: node node01 is on",
            "the rig cannot \"loss node01 much\": cannot run the rig: loss wants a percentage",
        ]
    );
    assert!(said(&mut rig.command_on("node09", "true")).unwrap_err().contains("there is no node node09"));
    assert!(fs::exists(rig.folder()).unwrap());
}
