//! Tests with nodes that fail while a run starts: the other nodes end too.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use cluster::NodeId;
use rundir::{ErrorCode, RunDir, now_s};

use crate::site::{TestSite, assert_down_soon};

const TWO: &str = "--hostfile hostfiles/rig.txt --include node01,node02";

/// Writes a recipe whose program is installed on these nodes only; returns its path.
fn recipe(site: &TestSite, nodes: &[&str]) -> String {
    for node in nodes {
        site.rig.add_program(node, "wait-long", "#!/bin/sh\nexec sleep 600\n").unwrap();
    }
    let program = site.rig.own().join("bin/wait-long");
    let recipe = site.rig.share().join("wait.toml");
    let text =
        format!("trainer = 'command'\n[command]\nrun = ['{program}']\n[mesh]\ndp_replicate = 2\n[train]\nsteps = 9\n");
    fs::write(&recipe, text).unwrap();
    recipe.into_string()
}

fn gone(site: &TestSite, node: &str) -> bool {
    site.count_on(node, "vidtui supervise|wait-long|sleep 600") == 0
}

/// Waits until no process of a failed launch is left. On a busy machine, a supervisor may start so late that the launch does not find it; it
/// ends when its peer is missing.
fn until_gone(site: &TestSite) {
    site.until("no process is left", || gone(site, "node01") && gone(site, "node02"));
}

#[test]
fn a_launch_that_fails_on_one_node_ends_the_processes_on_the_other() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = recipe(&site, &["node01"]);
    let refused = site.vidtui(&format!("launch {recipe} {TWO}"));
    assert!(!refused.ok && refused.err.contains("node02") && gone(&site, "node01"), "{}", refused.err);
    let failed = site.refuses(&format!("launch {recipe} {TWO} --waive command"));
    assert_eq!(failed.code, ErrorCode::StartFailed);
    assert!(failed.to_string().contains("node02"), "{failed}");
    until_gone(&site);
    assert_eq!((site.state().as_str(), site.failure().code), ("failed", ErrorCode::StartFailed));
}

#[test]
fn all_nodes_end_without_a_console_when_the_rank_of_one_node_cannot_start() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let recipe = recipe(&site, &["node01"]);
    let job = site.rig.share().join("job.toml");
    fs::write(&job, "partition = 'train'\nnodes = 2\ngpus_per_node = 1\ntime = '10:00'\n").unwrap();
    // Without `--waive`, the check of the job fails.
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --slurm {job} --waive command"))));
    let exit = |node: &str| run.read_exit(&NodeId::new(node).unwrap(), 1).unwrap();
    site.until("both have ended", || exit("node01").is_some() && exit("node02").is_some());
    let (first, second) = (exit("node01").unwrap(), exit("node02").unwrap());
    assert_eq!(second.failure.unwrap().code, ErrorCode::StartFailed);
    let first = first.failure.unwrap();
    assert!(first.code == ErrorCode::PeerLost && first.why.contains("node02"), "{first}");
    assert_down_soon(&run, 1, &["node01"], second.ended_s);
    site.until("its job has ended", || site.state() == "failed");
    until_gone(&site);
}

#[test]
fn a_node_that_dies_right_after_the_launch_ends_the_other_node() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = recipe(&site, &["node01", "node02"]);
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} {TWO}"))));
    // The timeout of a node that has not started is longer.
    let has_begun = |node: &str| run.read_pid(&NodeId::new(node).unwrap(), 1).unwrap().is_some();
    site.until("both have begun", || has_begun("node01") && has_begun("node02"));
    let moment_s = now_s();
    site.rig.verb("poweroff node02").unwrap();
    site.until("node01 has ended", || run.read_exit(&NodeId::new("node01").unwrap(), 1).unwrap().is_some());
    assert_down_soon(&run, 1, &["node01"], moment_s);
    let failure = site.failure();
    assert_eq!(failure.code, ErrorCode::NodeLost);
    assert!(failure.to_string().contains("node02"), "{failure}");
    site.until("its processes are gone", || gone(&site, "node01"));
}

#[test]
fn a_used_rendezvous_port_refuses_a_launch_and_ends_one_that_waives_the_check() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = recipe(&site, &["node01", "node02"]);
    // All ports that the launch may choose.
    let taker = r#"ulimit -n 4096; exec perl -MIO::Socket::INET -e '
        @taken = map { IO::Socket::INET->new(LocalPort => 29501 + 2 * $_, Listen => 1) || die "$!" } 0 .. 999;
        $| = 1; print "taken\n"; sleep 1000'"#;
    let mut taker = site.rig.command_on("node01", "sh").args(["-c", taker]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(taker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "taken\n");
    assert_eq!(site.refuses(&format!("launch {recipe} {TWO}")).code, ErrorCode::PortInUse);
    let failed = site.refuses(&format!("launch {recipe} {TWO} --waive rendezvous"));
    assert!([ErrorCode::PortInUse, ErrorCode::StartFailed].contains(&failed.code), "{failed}");
    until_gone(&site);
    taker.kill().unwrap();
    taker.wait().unwrap();
}
