//! Tests of the checks of every node before a launch, and of the copy of the trainer to nodes.

use std::fs;

use crate::command::own;
use rundir::ErrorCode;

use crate::site::{SMALL, TestSite};

const CHECK: &str = "check configs/demo/2s.toml --hostfile hostfiles/rig.txt --set mesh.dp_shard=4";

/// Returns the table of checks. Values that differ between machines or rigs are replaced by placeholders.
fn shown(site: &TestSite, words: &str) -> String {
    let output = site.vidtui(words);
    let text = format!("{}\n{}", output.out, output.err).replace(site.rig.folder().as_str(), "RIG");
    // Durations and free space depend on the other programs of this machine.
    let text = text.replace("nodes, first: ", "nodes, ");
    let root = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap();
    let mut text = text.replace(root.to_str().unwrap(), "PROJECT");
    for (before, after) in
        [("answers in ", " ms"), ("vidtui-train (", ")"), (" needed, ", " free"), ("10.99.0.1 ports ", "\n")]
    {
        text = masked(&text, before, after);
    }
    // The cost of a run follows an empty line, and does not depend on the nodes.
    let costs = ["sequence ", "parameters ", "memory ", "checkpoint ", "traffic ", "work ", "step time "];
    let rows = text
        .lines()
        .filter(|line| !costs.iter().any(|name| line.starts_with(name)) && !line.is_empty())
        .filter(|line| !["inodes", "run directory", "clock"].iter().any(|w| line.contains(w) && !line.contains('✗')));
    rows.collect::<Vec<_>>().join("\n")
}

fn masked(text: &str, before: &str, after: &str) -> String {
    let mut parts = text.split(before);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.find(after).map_or("", |at| &part[at..]);
        masked += &format!("{before}…{rest}");
    }
    masked
}

#[test]
fn every_node_is_checked_before_a_launch() {
    let Some(site) = TestSite::new() else { return };
    let site = site.with_binary();
    insta::assert_snapshot!(shown(&site, CHECK));
}

#[test]
fn every_failed_check_has_its_node_and_code_and_can_be_waived() {
    let Some(site) = TestSite::new() else { return };
    let site = site.with_binary();
    let verbs = ["clock node02 7", "newkey node04"];
    verbs.iter().for_each(|verb| site.rig.verb(verb).unwrap());
    // A process on a GPU of node01 that belongs to no run.
    let orphan = "LOCAL_RANK=1 setsid sleep 1000 >/dev/null 2>&1 </dev/null & until pgrep -f '^sleep 1000'; do :; done";
    assert!(site.rig.command("ssh").args(["node01", orphan]).output().unwrap().status.success());
    let mut failed = site.failed_checks(CHECK);
    failed.sort_by_key(|(id, ..)| id.clone());
    let want = [
        ("clock", "node02", ErrorCode::ClockSkew),
        ("gpu-processes", "node01", ErrorCode::CheckFailed),
        ("node", "node04", ErrorCode::HostKeyChanged),
    ];
    assert_eq!(failed, want.map(|(id, node, code)| (id.to_owned(), node.to_owned(), code)));

    // Nothing starts until the user waives the checks.
    let launch = format!(
        "launch configs/demo/2s.toml {SMALL} --hostfile hostfiles/rig.txt --set mesh.dp_shard=2 --include node[01-02] --set train.steps=1 --set optimizer.warmup_steps=1"
    );
    assert_eq!(site.refuses(&launch).code, ErrorCode::CheckFailed);
    assert!(site.all_gone());
    let mut waived = site.command(&launch);
    let waived = waived.args(["--waive", "clock", "--waive", "GPU processes", "--wait"]).output().unwrap();
    assert!(waived.status.success(), "{}", String::from_utf8_lossy(&waived.stderr));
}

#[test]
fn gpus_with_errors_or_without_free_memory_are_refused_by_name() {
    let Some(site) = TestSite::new() else { return };
    for verb in [
        "xid node01 79",
        "xid node02 45",
        "gpu node03 0 memory.used 18432",
        "gpu node04 1 ecc.errors.uncorrected.volatile.total 3",
    ] {
        site.rig.verb(verb).unwrap();
    }
    let table = shown(&site, CHECK);
    let rows = table.lines().filter(|line| line.contains("GPU ") || line.contains("hint"));
    insta::assert_snapshot!(rows.collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_node_with_a_broken_driver_is_refused_for_a_command() {
    let Some(site) = TestSite::without_trainer(3) else { return };
    site.rig.verb("smi node03 mismatch").unwrap();
    let recipe = own(&site, 3, 20, "true");
    let failed = site.failed_checks(&format!("check {recipe} --hostfile hostfiles/rig.txt --include node[01-03]"));
    assert_eq!(failed, [("gpus".to_owned(), "node03".to_owned(), ErrorCode::NoGpu)]);
}

#[test]
fn the_trainer_is_copied_on_request_to_nodes_that_lack_it_or_have_another() {
    let Some(mut site) = TestSite::new() else { return };
    // This path is a separate folder on each node and on the head node.
    let folder = site.rig.own().join("home/bin");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(&site.binary, folder.join("vidtui-train")).unwrap();
    site.trainer = folder.join("vidtui-train");
    let of_node = |node: &str| site.rig.node_folder(node).join("home/bin/vidtui-train");
    fs::create_dir_all(of_node("node02").parent().unwrap()).unwrap();
    fs::write(of_node("node02"), "#!/bin/sh\necho an older one\n").unwrap();
    // The SSH server of one node has no SFTP.
    let config = site.rig.node_folder("node03").join("sshd_config");
    let without = fs::read_to_string(&config).unwrap().replace("Subsystem sftp internal-sftp", "");
    fs::write(&config, without).unwrap();
    site.rig.verb("killsshd node03").unwrap();
    site.rig.verb("startsshd node03").unwrap();
    let failed = site.failed_checks(CHECK);
    let without = failed.iter().filter(|(id, _, code)| id == "trainer" && *code == ErrorCode::TrainerUnusable);
    assert_eq!(without.count(), 4, "{failed:?}");

    let launch = format!(
        "launch configs/demo/2s.toml {SMALL} --hostfile hostfiles/rig.txt --set mesh.dp_shard=4 --set train.steps=1 --set optimizer.warmup_steps=1"
    );
    let output = site.vidtui(&format!("{launch} --push --wait"));
    assert!(output.ok && output.err.contains("node02: ") && output.err.contains("1.0 MiB"), "{}", output.err);
    let refusals: Vec<&str> = output.err.lines().filter(|line| line.contains("SFTP")).collect();
    assert!(matches!(refusals[..], [one] if one.contains("node03")), "{}", output.err);
    for node in site.rig.nodes() {
        assert_eq!(fs::read(of_node(&node)).unwrap(), fs::read(&site.trainer).unwrap());
        assert_eq!(fs::read_dir(of_node(&node).parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }
    assert_eq!(site.failed_checks(CHECK), []);
}

#[test]
fn nodes_that_share_the_folder_of_the_trainer_do_not_write_over_each_other() {
    let Some(mut site) = TestSite::new() else { return };
    let (shared, own) = (site.rig.share().join("bin"), site.rig.own().join("home/bin"));
    fs::create_dir_all(&own).unwrap();
    fs::create_dir_all(&shared).unwrap();
    // The nodes share this folder, and this machine does not, like home folders on NFS that only nodes mount.
    for node in site.rig.nodes() {
        std::os::unix::fs::symlink(&shared, site.rig.node_folder(&node).join("home/bin")).unwrap();
    }
    fs::copy(&site.binary, own.join("vidtui-train")).unwrap();
    site.trainer = own.join("vidtui-train");
    let output = site.vidtui(&format!(
        "launch configs/demo/2s.toml {SMALL} --hostfile hostfiles/rig.txt --set mesh.dp_shard=4 --set train.steps=1 --set optimizer.warmup_steps=1 --set run.push_trainer=true --wait",
    ));
    assert!(output.ok && output.err.contains("1.0 MiB"), "{}", output.err);
    assert_eq!(fs::read(shared.join("vidtui-train")).unwrap(), fs::read(&site.trainer).unwrap());
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn two_names_of_the_same_machine_are_refused() {
    let Some(site) = TestSite::new() else { return };
    let file = site.rig.share().join("hosts.txt");
    fs::write(&file, "node01\n10.99.0.2\nnode02\nnode03\n").unwrap();
    let failed = site.failed_checks(&format!("check configs/demo/2s.toml --hostfile {file} --set mesh.dp_shard=4"));
    assert_eq!(failed, [("machine".to_owned(), "node02".to_owned(), ErrorCode::InvalidHostfile)]);
}

#[test]
fn a_folder_that_the_nodes_do_not_share_is_refused() {
    let Some(mut site) = TestSite::new() else { return };
    // This path is a separate folder on each node.
    site.runs = site.rig.own().join("home/runs");
    let failed = site.failed_checks(CHECK);
    let refused = failed.iter().filter(|(id, _, code)| id == "run-folder" && *code == ErrorCode::CheckFailed);
    assert_eq!(refused.count(), 4, "{failed:?}");
}

#[test]
fn a_hostfile_with_a_mistake_is_refused_by_its_line() {
    let Some(site) = TestSite::new() else { return };
    let file = site.rig.share().join("hosts.txt");
    let refused = |text: &str, more: &str| {
        fs::write(&file, text).unwrap();
        let output = site.vidtui(&format!("check configs/demo/2s.toml --hostfile {file} {more}"));
        assert!(!output.ok);
        output
            .out
            .replace(site.rig.folder().as_str(), "RIG")
            .lines()
            .filter(|l| l.starts_with("✗") || l.contains("hint"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let output = [
        refused("node01\nnode01 slots=2\n", ""),
        refused("node[01-02]\n", "--include node07"),
        refused("node[01-04] slots=1\n", ""),
    ];
    insta::assert_snapshot!(output.join("\n\n"));
}
