//! Tests with nodes that are cut off, stopped or crash, killed ranks, and a killed console.

use rundir::now_s;
use std::io::BufRead;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use cluster::NodeId;
use rundir::Cause;
use rundir::ErrorCode;
use rundir::RunDir;

use crate::operator_faults;
use crate::site::{FAST, SMALL, TestSite, assert_down_soon, losses};

const NODES: &str = "--hostfile hostfiles/rig.txt";

#[test]
fn a_run_whose_node_is_cut_off_ends_on_all_nodes_and_resumes_with_and_without_the_node() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch_slowly(NODES, 16);
    site.until_step(&run, 1, 4);
    let moment_s = now_s();
    site.rig.verb("linkdown node03").unwrap();
    // The processes of the cut-off node end too: its supervisor notices the lost connection.
    site.until("every process is gone", || site.all_gone());
    assert_down_soon(&run, 1, &["node01", "node02", "node03", "node04"], moment_s);
    let failure = site.failure();
    assert_eq!(failure.code, ErrorCode::NodeLost);
    assert!(failure.to_string().contains("node03"), "{failure}");

    let refusal = site.vidtui("resume latest");
    assert!(!refusal.ok && refusal.err.contains("node03"), "{}", refusal.err);
    site.does(&format!("resume latest --exclude node02 {FAST} --wait"));
    assert_eq!(run.read_attempt(2).unwrap().placement.by_node().len(), 2);
    assert_eq!(losses(&run).len(), 16, "every step was made");

    // All four nodes are back.
    site.rig.verb("heal node03").unwrap();
    let longer = site.vidtui(&format!("resume latest {NODES} --set train.steps=18 --wait"));
    assert!(longer.ok, "{}", longer.err);
    assert_eq!(run.read_attempt(3).unwrap().placement.by_node().len(), 4);
}

#[test]
fn a_run_resumed_after_a_node_crashed_has_the_losses_of_a_run_that_never_stopped() {
    let Some(site) = TestSite::new() else { return };
    let undisturbed = site.losses_here(16);
    let run = site.launch_slowly(NODES, 16);
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    let (moment_s, others) = (now_s(), ["node01", "node03", "node04"]);
    site.rig.verb("panic node02").unwrap();
    site.until("every process is gone", || others.iter().all(|node| site.trainers_on(node) == 0));
    assert_down_soon(&run, 1, &others, moment_s);
    let failure = site.failure();
    assert_eq!(failure.code, ErrorCode::NodeLost);
    assert!(failure.to_string().contains("node02"), "{failure}");
    site.rig.verb("poweron node02").unwrap();
    let resumed = site.vidtui(&format!("resume latest {FAST} --wait"));
    assert!(resumed.ok, "{}", resumed.err);
    assert!(!resumed.err.contains("warning"), "the resume has warnings: {}", resumed.err);
    assert_eq!(losses(&run), undisturbed);
}

#[test]
fn a_node_that_is_stopped_for_seconds_delays_its_run_and_does_not_end_it() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch_slowly(NODES, 12);
    site.until_step(&run, 1, 2);
    let began = Instant::now();
    site.rig.verb("stop node02").unwrap();
    let status = site.command("status latest --json").stdout(Stdio::piped()).spawn().unwrap();
    // Real time: longer than the delay of a busy node, and shorter than the heartbeat timeout of 10 s.
    thread::sleep(Duration::from_secs(3));
    site.rig.verb("cont node02").unwrap();
    let stood = began.elapsed();
    let status = String::from_utf8(status.wait_with_output().unwrap().stdout).unwrap();
    if stood > Duration::from_secs(8) {
        println!("skipped: this machine is so busy that the node was stopped for {stood:?}");
        return;
    }
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert!(status["state"] == "running" || status["state"] == "saving", "{status}");
    site.until("it is finished", || site.state() == "finished");
    assert_eq!((losses(&run).len(), run.attempt_numbers().unwrap().len()), (12, 1));
}

#[test]
fn a_killed_rank_is_the_first_cause_and_ends_the_ranks_of_all_nodes() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch(NODES, 1000);
    site.until_step(&run, 1, 1);
    let killed = site.rig.command_on("node03", "pkill").args(["-KILL", "-f", "vidtui-train rank"]).status().unwrap();
    assert!(killed.success());
    site.until("every process is gone", || site.all_gone());
    let failure = site.failure();
    assert_eq!(failure.code, ErrorCode::RankKilled);
    assert!(failure.to_string().contains("node03"), "{failure}");
    let exit = |node: &str| run.read_exit(&NodeId::new(node).unwrap(), 1).unwrap().unwrap();
    let others = ["node01", "node02", "node04"];
    for node in others {
        let failure = exit(node).failure.unwrap();
        assert_eq!(failure.cause, Cause::Peer(NodeId::new("node03").ok()));
        assert!(failure.why.contains("node03"), "{failure}");
    }
    // The time starts when the rank ended, according to its supervisor.
    assert_down_soon(&run, 1, &others, exit("node03").ranks[0].ended_s);
}

#[test]
fn a_gpu_that_fails_on_one_node_is_the_cause_on_all_nodes_and_healing_leaves_the_node_out() {
    let Some(site) = TestSite::new() else { return };
    let Some(fault) = operator_faults::environment(site.rig.share().as_std_path(), "ecc", 2, 60) else { return };
    let fault: String = fault.iter().map(|(name, value)| format!(" --set env.variables.{name}={value}")).collect();
    let heals = "--set run.on_failure=resume --set run.shrink=true --set checkpoint.interval=2";
    let run = site.launch(&format!("{NODES} {heals}{fault}"), 40);
    site.until("the run was resumed", || run.attempt_numbers().is_ok_and(|attempts| attempts.len() > 1));
    let exit = |node: &str| run.read_exit(&NodeId::new(node).unwrap(), 1).unwrap().unwrap().failure.unwrap();
    let own = exit("node03");
    assert_eq!((own.code, own.cause.clone()), (ErrorCode::DeviceFailed, Cause::Root), "{own}");
    assert!(own.why.contains("uncorrectable ECC error") && own.fix.contains("nvidia-smi"), "{own}");
    for node in ["node01", "node02", "node04"] {
        let other = exit(node);
        assert_eq!(other.cause, Cause::Peer(NodeId::new("node03").ok()), "{other}");
    }
    let second = run.read_attempt(2).unwrap().placement;
    assert!(second.by_node().iter().all(|(node, _)| node.as_str() != "node03"), "{second:?}");
    site.vidtui("kill latest --yes --wait");
}

#[test]
fn a_rank_that_stops_answering_is_named_with_its_node() {
    let Some(site) = TestSite::new() else { return };
    // Without checkpoints: while ranks save, the limit of a collective is half an hour.
    let words = format!(
        "launch configs/demo/2s.toml {NODES} {SMALL} --set mesh.dp_shard=4 --set train.steps=1000 --set checkpoint.interval=0 \
         --set train.collective_timeout_s=25 --set env.variables.TRAIN_PACE_S=0.5"
    );
    let run = RunDir::new(site.runs.join(site.does(&words)));
    site.until_step(&run, 1, 2);
    let stopped = site.rig.command_on("node03", "pkill").args(["-STOP", "-f", "vidtui-train rank"]).status().unwrap();
    assert!(stopped.success());
    site.until("every process is gone", || site.all_gone());
    let failure = site.failure();
    assert_eq!((failure.code, failure.cause.node()), (ErrorCode::PeerLost, NodeId::new("node03").ok().as_ref()));
    assert!(failure.why.starts_with("rank 2 on node node03 stopped answering: no heartbeat for "), "{failure}");
}

#[test]
fn nodes_that_do_not_answer_a_kill_are_reported_and_retried_until_they_do() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch(NODES, 1000);
    site.until_step(&run, 1, 1);
    for node in ["node02", "node03"] {
        site.rig.verb(&format!("drop {node}")).unwrap();
    }
    let refusal = site.vidtui("kill latest --yes");
    let names_both = ["node node02", "node node03"].iter().all(|node| refusal.err.contains(node));
    assert!(!refusal.ok && names_both && refusal.err.contains("--wait"), "{}", refusal.err);
    // The processes of the other nodes are killed; the supervisors of the nodes that are cut off end their ranks.
    let mut kill = site.command("kill latest --yes --wait");
    let mut kill = kill.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(kill.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = lines.inspect(|line| println!("{line}"));
    assert!(lines.any(|line| line.starts_with("node[02-03] ")), "the kill did not retry");
    for node in ["node02", "node03"] {
        site.rig.verb(&format!("heal {node}")).unwrap();
    }
    let rest: Vec<String> = lines.collect();
    assert!(kill.wait().unwrap().success(), "{rest:?}");
    assert!(site.all_gone());
}

#[test]
fn a_run_survives_a_killed_console_and_refused_ssh_connections() {
    let Some(site) = TestSite::new() else { return };
    let mut console = site
        .command(&format!("launch configs/demo/2s.toml {NODES} {SMALL} --set mesh.dp_shard=4 --set train.steps=1000 --set env.variables.TRAIN_PACE_S=0.5 --wait"));
    let mut console = console.stdout(Stdio::null()).spawn().unwrap();
    site.until("it trains", || site.vidtui("status latest --json").out.contains(r#""state": "running""#));
    console.kill().unwrap();
    console.wait().unwrap();
    // New connections are refused, and the run continues.
    for node in site.rig.nodes() {
        site.rig.verb(&format!("killsshd {node}")).unwrap();
    }
    assert!(site.trains());
    assert_eq!(site.refuses("kill latest --yes").code, ErrorCode::KillIncomplete);
    site.until_one_on_each();
    for node in site.rig.nodes() {
        site.rig.verb(&format!("startsshd {node}")).unwrap();
    }
    site.does("kill latest --yes");
    assert!(site.all_gone());
}
