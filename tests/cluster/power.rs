//! Tests that GPU power distinguishes a hang from an evaluation.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rundir::RunDir;

use crate::site::TestSite;

/// Logs one step per second like cogvideox-factory.
const TRAINER: &str = r#"#!/usr/bin/env bash
echo "***** Running training *****"
step=0
while sleep 1; do
    step=$((step + 1))
    printf '\rSteps:  1%%|##   | %d/9999 [00:01<00:09,  1.00s/it, loss=0.5, lr=1e-5]' $step
done
"#;

const RECIPE: &str = r#"trainer = "command"

[command]
run = ["./train.sh"]
folder = "code"
adapter = "cogvideox_factory"
per = "rank"

[train]
steps = 9999
"#;

#[test]
fn a_run_without_steps_is_stalled_if_its_gpu_power_drops_and_running_otherwise() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let share = site.rig.share();
    fs::create_dir_all(share.join("code")).unwrap();
    fs::write(share.join("code/train.sh"), TRAINER).unwrap();
    fs::set_permissions(share.join("code/train.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(share.join("own.toml"), RECIPE).unwrap();
    let launch = |node: &str| {
        let words = format!("launch {share}/own.toml --hostfile hostfiles/rig.txt --include {node}");
        RunDir::new(site.runs.join(site.does(&words)))
    };
    let (evaluates, hangs) = (launch("node01"), launch("node02"));
    // Real time: power is compared with that of a minute of samples, and a run is stalled after 30 s without a step.
    for run in [&evaluates, &hangs] {
        site.until_step(run, 1, 25);
    }
    for node in ["node01", "node02"] {
        let stopped = site.rig.command_on(node, "pkill").args(["-STOP", "-f", "train.sh"]).status().unwrap();
        assert!(stopped.success());
    }
    site.rig.verb("gpu node02 0 power.draw ~120:5").unwrap();
    let state = |run: &RunDir| site.json(&format!("status {}", run.name()))["state"].clone();
    let is_found = |run: &RunDir, rule: &str| {
        let status = site.json(&format!("status {}", run.name()));
        status["findings"].as_array().unwrap().iter().any(|finding| finding["rule"] == rule)
    };
    site.until("one run is stalled", || state(&hangs) == "stalled" && is_found(&hangs, "stalled"));
    // The other run has logged nothing for the same time, and uses no CPU either.
    site.until("the other run is slow", || is_found(&evaluates, "slow_step"));
    assert_eq!(state(&evaluates), "running");
    site.rig.command_on("node01", "pkill").args(["-CONT", "-f", "train.sh"]).status().unwrap();
    site.until("it makes steps", || !is_found(&evaluates, "slow_step"));
    for run in [&evaluates, &hangs] {
        site.does(&format!("kill {} --yes", run.name()));
    }
}
