//! Stop, resume and kill of runs, and of orphan processes, over SSH.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use camino::Utf8Path;
use rundir::ErrorCode;
use serde_json::Value;

use crate::site::{FAST, TestSite, losses, samples};

const NODES: &str = "--hostfile hostfiles/rig.txt";

#[test]
fn a_run_that_is_stopped_and_resumed_on_four_nodes_has_the_losses_of_a_local_run() {
    let Some(site) = TestSite::new() else { return };
    let here = site.losses_here(12);
    let run = site.launch_slowly(NODES, 12);
    site.until_step(&run, 1, 3);
    let stopped = site.json("stop latest --wait");
    // Supervisors exit after they have written their exit files.
    site.until("every process is gone", || site.all_gone());
    let saved = other_trainers::latest(&run).unwrap().step;
    assert!((3..12).contains(&saved) && stopped["checkpoint"]["step"] == saved, "{saved}: {stopped}");
    site.does(&format!("resume latest {FAST} --wait"));
    assert_eq!(losses(&run), here, "over nodes, and with a stop at step {saved}");
    assert!(samples(&run).iter().all(|sample| sample.attempt == if sample.step <= saved { 1 } else { 2 }));
    let attempt = run.read_attempt(2).unwrap();
    assert_eq!(attempt.placement.by_node().len(), 4);
}

#[test]
fn a_kill_ends_every_process_on_every_node_and_reports_it() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch(NODES, 1000);
    site.until_step(&run, 1, 1);
    let plan = site.json("kill latest --dry-run");
    let planned = |plan: &Value| -> Vec<String> {
        let nodes = plan["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["node"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((plan["how"].as_str(), planned(&plan)), (Some("kill"), site.rig.nodes()));
    site.until_one_on_each();
    let killed = site.json("kill latest --yes");
    assert!(site.all_gone());
    assert_eq!(planned(&killed), site.rig.nodes());
    for node in killed["nodes"].as_array().unwrap() {
        // At least the supervisor and its rank. A sampler of the GPUs may run too.
        assert!(node["signalled"].as_u64() >= Some(2) && node["gone"] == true, "{node}");
        assert_eq!(node["gpu_memory"], "released", "{node}");
    }
    assert_eq!(site.state(), "stopped");
}

#[test]
fn orphan_processes_on_the_nodes_of_a_hostfile_are_listed_and_then_ended() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch(NODES, 1000);
    site.until_step(&run, 1, 1);
    let mut orphan = site.rig.command_on("node02", "sleep").arg("98765").spawn().unwrap();
    let sleeps = || site.json("kill --hostfile hostfiles/rig.txt --pattern ^sleep.98765$ --dry-run")["found"].clone();
    site.until("the orphan is listed", || sleeps().as_array().is_some_and(|found| !found.is_empty()));
    let found = sleeps();
    assert_eq!((found.as_array().unwrap().len(), &found[0]["node"]), (1, &"node02".into()), "{found}");
    let processes = found[0]["processes"].as_array().unwrap();
    assert!(processes.len() == 1 && processes[0]["user"] == "root", "{found}");
    let refused = site.vidtui("kill --hostfile hostfiles/rig.txt --pattern ^sleep.98765$");
    assert!(!refused.ok && site.count_on("node02", "^sleep 98765") == 1, "{}", refused.err);
    site.does("kill --hostfile hostfiles/rig.txt --pattern ^sleep.98765$ --yes");
    assert!(!orphan.wait().unwrap().success());
    // The run continues.
    site.until_one_on_each();

    // A node that does not answer is an error, and the other nodes are processed.
    site.rig.verb("refuse node04").unwrap();
    let failure = site.refuses("kill --hostfile hostfiles/rig.txt --pattern ^sleep.98765$ --yes");
    assert_eq!(failure.code, ErrorCode::NodeUnreachable);
    assert!(failure.what.contains("node04"), "{failure}");
    // With --wait, the node is retried, and its processes are killed when it answers.
    let mut orphan = site.rig.command_on("node04", "sleep").arg("98765").spawn().unwrap();
    site.until("the orphan runs", || site.count_on("node04", "^sleep 98765") == 1);
    let mut waits = site.command("kill --hostfile hostfiles/rig.txt --pattern ^sleep.98765$ --yes --wait");
    let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(waits.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(printed.any(|line| line.starts_with("node04 ")));
    site.rig.verb("heal node04").unwrap();
    assert!(printed.any(|line| line.contains("node04:")));
    let output = waits.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("node04"), "{out}");
    assert!(!orphan.wait().unwrap().success());

    // GPU memory is held although its process is gone.
    let pid = run.read_pid(&cluster::NodeId::new("node01").unwrap(), 1).unwrap().unwrap().ranks[0].pid;
    let gpus = site.rig.node_folder("node01").join("gpus");
    let table = fs::read_to_string(gpus.join("table.tsv")).unwrap();
    let uuid = table.split(['\t', '\n']).find(|cell| cell.starts_with("GPU-")).unwrap();
    fs::write(gpus.join("apps.tsv"), format!("{uuid}\t{pid}\tvidtui-train\t18432\n")).unwrap();
    for how in ["kill", "stop"] {
        let planned = site.json(&format!("{how} --hostfile hostfiles/rig.txt --dry-run"));
        let plan = &planned["found"][0];
        assert_eq!((plan["run"].as_str(), plan["how"].as_str()), (Some(run.name()), Some(how)), "{planned}");
        assert_eq!(plan["nodes"].as_array().map(Vec::len), Some(4), "{planned}");
    }
    let failure = site.refuses("kill --hostfile hostfiles/rig.txt --yes");
    assert_eq!(failure.code, ErrorCode::KillIncomplete);
    let names_memory = ["node01", "18.0 GiB", &pid.to_string()].iter().all(|held| failure.why.contains(held));
    assert!(names_memory, "{failure}");
    assert!(site.all_gone());
    site.does("kill --hostfile hostfiles/rig.txt --yes");
}

#[test]
fn another_users_orphan_process_is_ended_with_sudo_only() {
    let Some(site) = TestSite::without_trainer(1) else { return };
    if !Utf8Path::new("/usr/bin/sudo").exists() {
        println!("skipped: no sudo; `cargo xtask rig install` installs it");
        return;
    }
    // The sudo rules belong to the node and are removed with it.
    let rules = site.rig.share().join("sudoers.d");
    fs::create_dir(&rules).unwrap();
    fs::write(rules.join("eve"), "eve ALL=(root) NOPASSWD: ALL\n").unwrap();
    fs::set_permissions(rules.join("eve"), fs::Permissions::from_mode(0o440)).unwrap();
    let on_node = |program: &str, words: &[&str]| site.rig.command_on("node01", program).args(words).status().unwrap();
    let hosts = site.rig.share().join("hosts.txt");
    fs::write(&hosts, "eve@node01 slots=2\n").unwrap();
    let kill = format!("kill --hostfile {hosts} --pattern ^sleep.98764$");
    let mut orphan = site.rig.command_on("node01", "sleep").arg("98764").spawn().unwrap();
    let listed = || site.does(&format!("{kill} --all-users --dry-run"));
    site.until("the orphan is listed", || listed().contains("root"));

    let own = site.does(&format!("{kill} --yes"));
    assert!(own.contains("node01") && site.count_on("node01", "^sleep 98764") == 1, "{own}");
    let refused = site.vidtui(&format!("{kill} --all-users --yes"));
    assert!(!refused.ok && refused.err.contains("Operation not permitted"), "{}", refused.err);
    let refused = site.vidtui(&format!("{kill} --sudo --yes"));
    assert!(!refused.ok && refused.err.contains("sudo:"), "{}", refused.err);
    assert!(listed().contains("sleep 98764"), "the process still runs");

    assert!(on_node("mount", &["--bind", rules.as_str(), "/etc/sudoers.d"]).success());
    let ended = site.vidtui(&format!("{kill} --sudo --yes"));
    assert!(ended.ok && ended.out.contains("node01"), "{}\n{}", ended.out, ended.err);
    assert_eq!(site.count_on("node01", "^sleep 98764"), 0, "{}", ended.err);
    assert!(!orphan.wait().unwrap().success());
}

#[test]
fn the_launch_scripts_of_all_nodes_are_on_disk() {
    let Some(site) = TestSite::new() else { return };
    let plan = site.json(&format!("launch configs/demo/2s.toml {NODES} --set mesh.dp_shard=4 --dry-run"));
    assert!(plan["scripts"].as_object().unwrap().keys().eq(&site.rig.nodes()), "{plan}");
    let run = site.launch(NODES, 2);
    site.until("it is finished", || site.state() == "finished");
    let node = run.read_attempt(1).unwrap().placement.ranks[0].node.clone();
    let script = fs::read_to_string(run.launch_script(1, &node)).unwrap();
    assert!(script.contains("export MASTER_ADDR=10.99.0.1\n"), "{script}");
    assert_eq!(run.node_ids().unwrap().len(), 4);
}
