//! Tests that each fault and repair has the intended effect on SSH and processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rig::{Options, RigError};

use crate::{run, ssh, ssh_within};

/// Applies verbs to node02 in order. After each verb, a login must fail with the given words of OpenSSH, or succeed if they are
/// empty. node01 must stay reachable.
fn assert_logins(steps: &[(&str, &str)]) {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    for (verb, words) in steps {
        rig.verb(verb).unwrap();
        assert_eq!(ssh(&rig, "node01", "hostname").unwrap(), "node01", "after {verb}");
        // The timeout is short only if no answer is possible, because an answer may be late on a busy machine. After 3 s without a
        // hardware address, the node would be unreachable.
        let is_silent = ["timed out", "banner exchange"].contains(words);
        let seconds = if is_silent { 2 } else { 60 };
        match ssh_within(&rig, "node02", "hostname", seconds) {
            Ok(name) => assert_eq!((name.as_str(), *words), ("node02", ""), "after {verb}"),
            Err(error) => assert!(!words.is_empty() && error.contains(words), "after {verb}: {error}"),
        }
    }
}

#[test]
fn connections_to_a_node_without_network_time_out_until_it_is_healed() {
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
fn a_node_without_an_ssh_server_refuses_connections_until_it_has_one() {
    assert_logins(&[
        ("refuse node02", "refused"),
        ("heal node02", ""),
        ("killsshd node02", "refused"),
        ("startsshd node02", ""),
        ("dropsessions node02", ""),
    ]);
}

#[test]
fn a_node_with_stopped_processes_accepts_connections_and_sends_nothing() {
    assert_logins(&[
        ("stop node02", "banner exchange"),
        ("cont node02", ""),
        ("stopsshd node02", "banner exchange"),
        ("contsshd node02", ""),
    ]);
}

#[test]
fn connections_to_a_node_without_power_time_out_and_a_crashed_node_refuses_them() {
    assert_logins(&[
        ("poweroff node02", "timed out"),
        ("poweron node02", ""),
        ("panic node02", "refused"),
        ("poweron node02", ""),
    ]);
}

#[test]
fn a_login_fails_when_the_host_key_changed_or_the_users_key_is_not_accepted() {
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
    // One write, so that the half line has arrived with the whole one.
    let script = "printf 'begun\\nhalf a '; while :; do printf .; sleep 0.1; done";
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
fn a_restarted_node_has_a_new_boot_id_and_keeps_its_home() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let before = ssh(&rig, "node01", &format!("echo kept >file; touch /dev/shm/lost; {boot}")).unwrap();
    rig.verb("poweroff node01").unwrap();
    rig.verb("poweron node01").unwrap();
    assert_ne!(ssh(&rig, "node01", boot).unwrap(), before);
    assert_eq!(ssh(&rig, "node01", "cat file; ls /dev/shm").unwrap(), "kept");
}

#[test]
fn a_full_disk_affects_only_its_node() {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    rig.verb("fill node01").unwrap();
    let write = format!("echo something >{}/disk/file", rig.own());
    assert!(ssh(&rig, "node01", &write).unwrap_err().contains("No space left"));
    ssh(&rig, "node02", &write).unwrap();
    rig.verb("unfill node01").unwrap();
    ssh(&rig, "node01", &write).unwrap();
}

#[test]
fn a_changed_clock_affects_only_its_node() {
    let Some(rig) = Options::new(2).up_or_skip() else { return };
    rig.verb("clock node02 3600").unwrap();
    let clock = |node| ssh(&rig, node, "date +%s").unwrap().parse::<i64>().unwrap();
    let ahead = clock("node02") - clock("node01");
    // The second clock is read later.
    assert!((3500..=3600).contains(&ahead), "{ahead}");
}

#[test]
fn unknown_verbs_and_nodes_are_errors() {
    let Some(rig) = Options::new(1).up_or_skip() else { return };
    for (verb, wrong) in [
        ("explode node01", "explode"),
        ("poweroff node07", "node07"),
        ("poweroff", "poweroff"),
        ("poweron node01", "node01"),
        ("loss node01 much", "percentage"),
    ] {
        let RigError::Verb { words, output } = rig.verb(verb).unwrap_err() else { panic!("{verb} is another error") };
        assert!(words == verb && output.contains(wrong), "{verb}: {output}");
    }
    assert!(run(&mut rig.command_on("node09", "true")).unwrap_err().contains("node09"));
    assert!(fs::exists(rig.folder()).unwrap());
}
