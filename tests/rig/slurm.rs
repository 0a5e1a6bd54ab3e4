//! Tests that Slurm on the rig runs jobs on all nodes.

use rig::Options;

use crate::run;

#[test]
fn a_job_runs_on_all_nodes_with_their_gpus() {
    let Some(rig) = Options::new(4).gpus(2).slurm().up_or_skip() else { return };
    let task = r#"echo "$(hostname) $SLURM_PROCID/$SLURM_NTASKS gpus $CUDA_VISIBLE_DEVICES""#;
    let mut srun = rig.command("srun");
    let ran = run(srun.args(["--nodes=4", "--ntasks-per-node=1", "--gres=gpu:2", "sh", "-c", task])).unwrap();
    let mut lines: Vec<&str> = ran.lines().collect();
    lines.sort();
    assert_eq!(lines, ["node01 0/4 gpus 0,1", "node02 1/4 gpus 0,1", "node03 2/4 gpus 0,1", "node04 3/4 gpus 0,1"]);
}

#[test]
fn the_controller_can_be_killed_and_started() {
    let Some(rig) = Options::new(1).slurm().up_or_skip() else { return };
    let ping = || run(rig.command("scontrol").arg("ping"));
    assert!(ping().unwrap().contains("UP"));
    rig.verb("slurmctld kill").unwrap();
    assert!(ping().unwrap_err().contains("DOWN"));
    rig.verb("slurmctld start").unwrap();
    assert!(ping().unwrap().contains("UP"));
}
