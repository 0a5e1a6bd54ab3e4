//! Tests that unreachable nodes, full disks, and two consoles at once do not harm a run.

use std::fs;
use std::process::Stdio;

use rundir::ErrorCode;

use crate::site::TestSite;

#[test]
fn slow_hanging_or_resetting_nodes_and_a_changed_hostfile_do_not_affect_the_run() {
    let Some(site) = TestSite::new() else { return };
    let hostfile = site.rig.share().join("hosts.txt");
    fs::write(&hostfile, "node[01-04] slots=1\n").unwrap();
    let run = site.launch(&format!("--hostfile {hostfile}"), 1000);
    site.until_step(&run, 1, 1);
    // The attempt has its own list of nodes; the file is not read again.
    fs::write(&hostfile, "node09 slots=8\n").unwrap();

    for node in site.rig.nodes() {
        site.rig.verb(&format!("stopsshd {node}")).unwrap();
    }
    assert!(site.trains());
    for node in site.rig.nodes() {
        site.rig.verb(&format!("contsshd {node}")).unwrap();
    }

    site.rig.verb("reset node03").unwrap();
    // gdb reads the symbols of libtorch for seconds, so only node01 uses the one of this machine.
    for node in ["node02", "node04"] {
        site.rig.add_program(node, "gdb", "#!/bin/sh\necho 'Thread 1'\n").unwrap();
    }
    let collected = site.json("stacks latest");
    for node in collected["nodes"].as_array().unwrap() {
        let file = node["file"].as_str();
        assert_eq!(file.is_none(), node["node"] == "node03", "{node}");
        let Some(file) = file else { continue };
        let stacks = fs::read_to_string(file).unwrap();
        assert_eq!(stacks.matches(", rank ").count(), 1, "{stacks}");
        assert!(node["node"] == "node01" || stacks.contains("Thread 1"), "{stacks}");
    }
    site.rig.verb("heal node03").unwrap();
    // All ranks still run.
    site.until_one_on_each();

    site.rig.verb("smi node01 slow 2").unwrap();
    let killed = site.json("kill latest --yes");
    assert!(killed["nodes"].as_array().unwrap().iter().all(|node| node["gpu_memory"] == "released"), "{killed}");
    assert!(site.all_gone());
}

#[test]
fn another_users_console_shows_the_live_run_and_starts_no_second_one() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch("--hostfile hostfiles/rig.txt", 1000);
    site.until_step(&run, 1, 1);
    let config = site.rig.ssh_config();
    let own = fs::read_to_string(&config).unwrap();
    fs::write(&config, own.replace("User root", "User eve")).unwrap();
    assert!(site.trains());
    for words in ["resume latest", "kill latest --yes"] {
        let refused = site.vidtui(words);
        assert!(!refused.ok, "{words}: {}", refused.out);
    }
    // All ranks still run.
    site.until_one_on_each();
    fs::write(&config, own).unwrap();
    site.does("kill latest --yes");
    assert!(site.all_gone());
}

#[test]
fn two_consoles_can_stop_and_resume_the_same_run_without_harm() {
    let Some(site) = TestSite::new() else { return };
    let run = site.launch("--hostfile hostfiles/rig.txt", 1000);
    site.until_step(&run, 1, 1);
    let both = |words: &str| {
        let start = || site.command(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        [start(), start()].map(|console| console.wait_with_output().unwrap())
    };
    assert!(both("stop latest").iter().any(|console| console.status.success()));
    site.until("every process is gone", || site.all_gone());
    let saved = other_trainers::latest(&run).unwrap().step;

    let resumed = both("resume latest");
    let won = resumed.iter().filter(|console| console.status.success()).count();
    let printed: Vec<_> = resumed.iter().map(|console| String::from_utf8_lossy(&console.stderr)).collect();
    assert_eq!(won, 1, "{printed:?}");
    site.until_step(&run, 2, saved + 1);
    assert_eq!(run.attempt_numbers().unwrap(), [1, 2]);
    // Each node runs processes of one attempt only.
    site.until_one_on_each();
    site.does("kill latest --yes");
    assert!(site.all_gone());
}

#[test]
fn a_node_that_answers_half_a_second_late_can_be_used_watched_and_killed() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = site.rig.share().join("wait.toml");
    let text = "trainer = 'command'\n[command]\nrun = ['sleep', '600']\n[mesh]\ndp_replicate = 2\n[train]\nsteps = 9\n";
    fs::write(&recipe, text).unwrap();
    site.rig.verb("slow node02 500").unwrap();
    let run = site.does(&format!("launch {recipe} --hostfile hostfiles/rig.txt --include node[01-02]"));
    site.until(&format!("{run} runs"), || site.state() == "running");
    site.until("both nodes are up", || {
        let document = site.json("nodes latest");
        document["nodes"].as_array().unwrap().iter().filter(|node| node["state"] == "up").count() == 2
    });
    site.does("kill latest --yes");
    assert!(site.rig.nodes().iter().all(|node| site.count_on(node, "sleep 600|vidtui supervise") == 0));
}

#[test]
fn a_disk_that_fills_up_during_a_run_is_reported_and_the_run_can_be_resumed_after_freeing_space() {
    let Some(mut site) = TestSite::without_trainer(2) else { return };
    let small = site.rig.small();
    site.runs = small.join("runs");
    let recipe = site.rig.share().join("chatty.toml");
    let chatty = "until [ -e stop ]; do printf %04096d 1 || exit 7; sleep 0.1; done";
    let text = format!(
        "trainer = 'command'\n[command]\nrun = ['sh', '-c', '{chatty}']\n[mesh]\ndp_replicate = 2\n[train]\nsteps = 9\n"
    );
    fs::write(&recipe, text).unwrap();
    // The disk is smaller than the check requires.
    site.does(&format!("launch {recipe} --hostfile hostfiles/rig.txt --include node[01-02] --waive disk"));
    site.until("it runs", || site.state() == "running");
    let head = |script: String| site.rig.command("sh").args(["-c", &script]).output().unwrap();
    head(format!("cat /dev/zero >{small}/full"));
    let ranks_are_gone = || site.rig.nodes().iter().all(|node| site.count_on(node, "04096d") == 0);
    site.until("no rank is left", ranks_are_gone);
    // The supervisor retries writing its exit file.
    assert!(site.rig.nodes().iter().any(|node| site.count_on(node, "vidtui supervise") > 0));
    head(format!("rm {small}/full"));
    site.until("it has failed", || site.state() == "failed");
    let failure = site.failure();
    assert_eq!(failure.code, ErrorCode::DiskFull, "{failure}");
    site.until("every process is gone", || {
        site.rig.nodes().iter().all(|node| site.count_on(node, "vidtui supervise") == 0)
    });
    site.does("resume latest --waive disk");
    site.until("it runs again", || site.state() == "running");
    site.does("kill latest --yes");
}

#[test]
fn a_full_disk_on_one_node_refuses_the_launch_and_leaves_no_files() {
    let Some(mut site) = TestSite::new() else { return };
    let folder = site.rig.own().join("disk/bin");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(&site.binary, folder.join("vidtui-train")).unwrap();
    site.trainer = folder.join("vidtui-train");
    site.rig.verb("fill node03").unwrap();
    let failure = site.refuses("launch configs/demo/2s.toml --hostfile hostfiles/rig.txt --set mesh.dp_shard=4 --push");
    assert!(failure.to_string().contains("node03") && failure.why.contains("No space left"), "{failure}");
    assert!(site.all_gone() && !site.runs.exists(), "nothing was started");
    let left = site.rig.command_on("node03", "ls").arg(site.rig.own().join("disk/bin")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}
