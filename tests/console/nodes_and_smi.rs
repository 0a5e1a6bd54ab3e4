//! Tests of the node screens and commands, on a rig of SSH servers. Where the rig cannot start, they print that they are skipped.

use crate::pty::{ENTER, ESC, Pty};
use crate::test_site::{TestSite, VIDTUI};
use rig::{Options, Rig};
use std::process::Stdio;

fn vidtui(rig: &Rig, args: &[&str]) -> String {
    let mut command = rig.command(VIDTUI);
    let output = command.args(args).env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "vidtui {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Opens the console on the nodes of the rig.
fn console(rig: &Rig, site: &TestSite, size: (u16, u16)) -> Pty {
    let hostfile = rig.hostfile();
    let mut words = rig.prefix();
    words.extend([VIDTUI, "--hostfile", hostfile.as_str()].map(str::to_owned));
    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    Pty::start(size, &words[0], &args, &[], &site.root)
}

/// A shell command that starts a process with the environment of a rank, and returns when it runs.
const RANK: &str =
    "VIDTUI_RUN=2026-11-20T0340-demo-k7f2 RANK=5 LOCAL_RANK=1 setsid sleep 1000 >/dev/null 2>&1 </dev/null &
     until pgrep -f '^sleep 1000' >/dev/null; do sleep 0.01; done";

#[test]
fn the_console_shows_nodes_processes_and_a_fault() {
    let Some(rig) = Options::new(3).gpus(2).up_or_skip() else { return };
    let site = TestSite::new();
    let mut console = console(&rig, &site, (100, 30));
    console.shows(&["No runs yet"]).press("3").shows(&["3 nodes", "3 up", "6 GPUs", "node03"]);
    rig.verb("smi node02 nodriver").unwrap();
    console.shows(&["1 fault", "the NVIDIA driv"]);
    assert!(rig.command_on("node01", "sh").args(["-c", RANK]).status().unwrap().success());
    let comes_first = |screen: &vt100::Screen| {
        let text = screen.contents();
        text.find("node02") < text.find("node01")
    };
    console.until("the node with the fault in the first row", comes_first);
    console.press("j").press(ENTER).shows(&["Processes", "sleep 1000", "demo-k7f2", "root"]);
    console.press("\t").shows(&["NVIDIA-SMI"]);
    rig.verb("reset node03").unwrap();
    console.press(ESC).shows(&["1 unreachable"]);
    rig.verb("heal node03").unwrap();
    console.shows(&["3 up"]).press("q");
    assert_eq!(console.ended(), 0);
}

#[test]
fn a_kill_on_marked_nodes_is_verified_on_each_and_an_unreachable_one_is_unknown() {
    let Some(rig) = Options::new(3).gpus(2).up_or_skip() else { return };
    let site = TestSite::new();
    let console = console(&rig, &site, (100, 40));
    console.shows(&["No runs yet"]).press("3").shows(&["3 up"]);
    for node in ["node01", "node02", "node03"] {
        assert!(rig.command_on(node, "sh").args(["-c", RANK]).status().unwrap().success());
    }
    rig.verb("reset node02").unwrap();
    console.shows(&["1 unreachable"]).press("   ").shows(&["3 marked"]).press("P");
    console.shows(&["2 processes of yours on 3 nodes", "demo-k7f2", "node02  unreachable"]).press(ESC);
    console.shows(&["3 marked"]).press("K").shows(&["Kill 2 processes on 2 nodes?", "its processes are unknown"]);
    console.press(ENTER).shows(&["not verified everywhere", "unreachable, so unknown"]);
    assert_eq!(console.text().matches("1 process ended").count(), 2, "{}", console.text());
}

#[test]
fn nodes_are_listed_with_the_unreachable_ones() {
    let Some(rig) = Options::new(3).gpus(2).up_or_skip() else { return };
    rig.verb("killsshd node02").unwrap();
    rig.verb("gpu node03 1 ecc.errors.uncorrected.volatile.total 4").unwrap();
    let hostfile = rig.hostfile();
    let listed = vidtui(&rig, &["nodes", "--hostfile", hostfile.as_str(), "--sort", "faults"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[1].starts_with("node02  refused") && lines[1].contains("; hint: "), "{listed}");
    assert!(lines[2].starts_with("node03  fault"), "{listed}");
    let document = vidtui(&rig, &["nodes", "--hostfile", hostfile.as_str(), "--json"]);
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let (nodes, summary) = (&document["nodes"], &document["summary"]);
    assert_eq!((summary["up"].as_u64(), summary["gpus"].as_u64()), (Some(2), Some(4)));
    assert_eq!((nodes[2]["node"].as_str(), nodes[2]["faults"][0]["gpu"].as_u64()), (Some("node03"), Some(1)));
    assert_eq!((nodes[1]["state"].as_str(), nodes[1]["gpus"].as_u64()), (Some("unreachable"), Some(0)));
    assert_eq!(nodes[1]["failure"]["code"].as_str(), Some("connection-refused"));
    assert!(nodes[0]["power_w_mean"].as_f64().is_some() && nodes[0]["gpu"][1]["temp_c"].as_f64().is_some());

    let smi = vidtui(&rig, &["smi", "node03", "--hostfile", hostfile.as_str()]);
    for part in ["NVIDIA H100 80GB HBM3", "| NVIDIA-SMI"] {
        assert!(smi.contains(part), "{part}: {smi}");
    }
}

#[test]
fn invalid_requests_have_hints() {
    let site = TestSite::new();
    site.write("gpus.txt", "gpu[001-003] slots=8\n");
    let output = [
        site.fails(&["nodes", "--sort", "colour"]),
        site.fails(&["smi", "gpu009", "--hostfile", "gpus.txt"]),
        site.fails(&["nodes", "--hostfile", "none.txt"]),
    ];
    insta::assert_snapshot!(output.join("\n"));
    // This machine, without SSH.
    let document = site.json(&["nodes", "--local", "--json"]);
    assert_eq!(document["summary"]["up"].as_u64(), Some(1));
    let simulated = site.succeeds(&["nodes", "--simulate", "20"]);
    assert!(simulated.lines().last().is_some_and(|line| line.starts_with("20 nodes, 20 up")), "{simulated}");
}
