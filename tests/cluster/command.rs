//! Tests of runs whose trainer is a command, on several nodes over SSH and through Slurm. The command is a shell script that
//! prints and saves like cogvideox-factory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cluster::NodeId;
use cluster::nvidia_smi::SmiError;
use rundir::{AttemptWhy, ErrorCode, ExitReason, NodeSample, RunDir, Tail};

use crate::site::{TestSite, losses, samples};

/// Trains to step STEPS and saves every 5 steps. The first attempt runs PACE after each step. Nodes other than the first wait
/// until the first has ended.
const TRAINER: &str = r#"#!/usr/bin/env bash
set -eu
step=0 output= resumed=
while [ $# -gt 0 ]; do
    case $1 in
        --place) output=$2; echo "$3 of $4 at $5, $GROUP_RANK at $MASTER_ADDR:$MASTER_PORT, secret ${TOKEN-none}" >"$2.$3"; shift 5 ;;
        --resume_from_checkpoint) resumed=$2; step=${2##*-}; shift 2 ;;
        *) exit 64 ;;
    esac
done
if [ $GROUP_RANK != 0 ]; then
    until [ -e "$output/done" ]; do sleep 0.1; done
    exit
fi
echo "***** Running training *****"
while [ $step -lt STEPS ]; do
    step=$((step + 1))
    printf '\rSteps:  %d%%|##   | %d/STEPS [00:01<00:09,  0.05s/it, loss=0.%d, lr=1e-5]' $((100 * step / STEPS)) $step $((999 - step))
    [ -n "$resumed" ] || PACE
    if [ $((step % 5)) = 0 ]; then
        mkdir -p "$output/checkpoint-$step"
        for name in pytorch_model.bin optimizer.bin scheduler.bin random_states_0.pkl; do
            printf 'PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$output/checkpoint-$step/$name"
        done
        printf '\nSaved state to %s\n' "$output/checkpoint-$step"
    fi
done
echo
touch "$output/done"
"#;

const RECIPE: &str = r#"trainer = "command"

[command]
run = ["./train.sh", "--place", "{output}", "{node_rank}", "{nnodes}", "{master_addr}:{master_port}"]
folder = "code"
adapter = "cogvideox_factory"
resume = ["--resume_from_checkpoint", "{checkpoint}"]

[env]
secrets = "keys.env"

[train]
steps = STEPS
"#;

/// A PACE that hangs at step 8.
const HANGS: &str = "[ $step != 8 ] || exec sleep 600";

/// A PACE that hangs at step 8, ignores TERM and leaves a process in another session.
const LEAVES: &str = "[ $step != 8 ] || { trap '' TERM; setsid sleep 601 & exec sleep 600; }";

/// Writes the program and its recipe for this number of nodes to the folder that all nodes share; returns the recipe.
pub fn own(site: &TestSite, nodes: usize, steps: u64, pace: &str) -> String {
    let share = site.rig.share();
    fs::create_dir_all(share.join("code")).unwrap();
    let write = |name: &str, mode: u32, text: &str| {
        fs::write(share.join(name), text.replace("STEPS", &steps.to_string()).replace("PACE", pace)).unwrap();
        fs::set_permissions(share.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    write("code/train.sh", 0o755, TRAINER);
    write("keys.env", 0o600, "TOKEN=hush\n");
    write("own.toml", 0o644, &format!("{RECIPE}\n[mesh]\ndp_replicate = {nodes}\n"));
    share.join("own.toml").into_string()
}

/// Waits until the program has recorded its arguments and variables on each node, and returns them.
fn places(site: &TestSite, run: &RunDir, nodes: usize) -> Vec<String> {
    let read = |rank| fs::read_to_string(run.root.join(format!("output.{rank}"))).unwrap_or_default();
    site.until("the program runs on each node", || (0..nodes).all(|rank| read(rank).ends_with('\n')));
    (0..nodes).map(|rank| read(rank).trim().to_owned()).collect()
}

/// Writes the Slurm request of a job of two nodes; returns the file.
fn job_file(site: &TestSite) -> String {
    let job = site.rig.share().join("job.toml");
    fs::write(&job, "partition = 'train'\nnodes = 2\ngpus_per_node = 1\ntime = '10:00'\n").unwrap();
    job.into_string()
}

fn all_gone(site: &TestSite) -> bool {
    site.rig.nodes().iter().all(|node| site.count_on(node, "train.sh|vidtui supervise") == 0)
}

fn steps(run: &RunDir, attempt: u32) -> Vec<u64> {
    samples(run).iter().filter(|sample| sample.attempt == attempt).map(|sample| sample.step).collect()
}

#[test]
fn a_command_on_two_nodes_ends_when_one_is_lost_and_resumes_from_its_checkpoint() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = own(&site, 2, 12, HANGS);
    let nodes = "--hostfile hostfiles/rig.txt --include node01,node02";
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} {nodes}"))));
    site.until_step(&run, 1, 8);
    site.until("its checkpoint is found", || other_trainers::latest(&run).is_some_and(|saved| saved.step == 5));
    let places = places(&site, &run, 2);
    let master = places[0].split_once(", 0 at ").unwrap().1.to_owned();
    assert!(master.starts_with("10.99.0.1:") && master.ends_with("secret hush"), "{places:?}");
    let address = master.split(',').next().unwrap();
    for (rank, place) in places.iter().enumerate() {
        assert_eq!(*place, format!("{rank} of 2 at {address}, {rank} at {master}"));
    }
    assert_eq!(site.state(), "running");

    site.rig.verb("linkdown node02").unwrap();
    site.until("every process is gone", || all_gone(&site));
    let failure = site.failure();
    assert_eq!(failure.code, ErrorCode::NodeLost);
    assert!(failure.to_string().contains("node02"), "{failure}");
    site.rig.verb("heal node02").unwrap();
    site.does("resume latest --wait");
    assert_eq!(site.state(), "finished");
    assert_eq!(steps(&run, 2), (6..=12).collect::<Vec<u64>>(), "from the checkpoint of step 5");
    assert_eq!(losses(&run).len(), 12);
    assert!(all_gone(&site));
}

#[test]
fn a_run_continues_and_reports_a_hanging_nvidia_smi_and_a_kill_ends_it() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let recipe = own(&site, 2, 100_000, "sleep 0.2");
    let nodes = "--hostfile hostfiles/rig.txt --include node01,node02";
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} {nodes}"))));
    site.until_step(&run, 1, 2);
    for (node, mode) in [("node01", "hang"), ("node02", "stuck")] {
        site.rig.verb(&format!("smi {node} {mode}")).unwrap();
    }
    let samples_of =
        |node: &str| Tail::<NodeSample>::new(run.gpu_samples(&NodeId::new(node).unwrap())).poll_all().unwrap().0;
    let hangs = SmiError::TimedOut.to_string();
    for node in ["node01", "node02"] {
        site.until("its samples report it", || {
            samples_of(node).iter().any(|sample| sample.smi_errors.contains(&hangs))
        });
        site.until("its finding is shown", || {
            let status = site.status();
            let findings = status["findings"].as_array().unwrap();
            findings.iter().any(|finding| finding["rule"] == "smi" && finding["about"] == node)
        });
    }
    let (seen, sampled) = (samples(&run).len(), samples_of("node02").len());
    site.until("it makes steps, and its node is sampled", || {
        samples(&run).len() > seen + 5 && samples_of("node02").len() > sampled
    });
    assert!(site.trains(), "{}", site.does("status latest"));
    let failure = site.refuses("kill latest --yes");
    assert_eq!(failure.code, ErrorCode::KillIncomplete);
    assert!(failure.why.contains("node01") && failure.why.contains("nvidia-smi"), "{failure}");
    assert!(all_gone(&site) && site.count_on("node01", "bin/nvidia-smi --query-gpu") == 0);
}

#[test]
fn a_command_in_a_cancelled_slurm_job_resumes_in_another_job() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let recipe = own(&site, 2, 12, LEAVES);
    let job = job_file(&site);
    assert_eq!(site.failed_checks(&format!("check {recipe} --slurm {job}")), []);
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --slurm {job}"))));
    site.until_step(&run, 1, 8);
    site.until("its checkpoint is found", || other_trainers::latest(&run).is_some_and(|saved| saved.step == 5));
    let places = places(&site, &run, 2);
    assert!(places[0].starts_with("0 of 2 at ") && places[1].starts_with("1 of 2 at "), "{places:?}");
    assert!(places.iter().all(|place| place.ends_with("secret hush")), "{places:?}");
    let collected = site.json("stacks latest");
    let nodes = collected["nodes"].as_array().unwrap();
    assert!(nodes.len() == 2 && nodes.iter().all(|node| node["file"].is_string()), "{collected}");
    site.until("a process is in another session", || site.count_on("node01", "sleep 601") == 1);
    let killed = site.json("kill latest --yes");
    let first = &killed["nodes"][0];
    assert!(first["node"] == "node01" && first["signalled"].as_u64() >= Some(1), "{killed}");
    assert!(first["gone"] == true && first["gpu_memory"] == "released", "{killed}");
    assert!(all_gone(&site) && site.count_on("node01", "sleep 601") == 0);
    assert_eq!(site.state(), "stopped");
    site.does("resume latest --wait");
    assert_eq!(steps(&run, 2), (6..=12).collect::<Vec<u64>>(), "from the checkpoint of step 5");
    assert_eq!(site.state(), "finished");
}

#[test]
fn a_job_starts_although_srun_fails_on_a_node() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let (recipe, job) = (own(&site, 2, 12, "true"), job_file(&site));
    // The first node checks all nodes; programs in its own folder come first on the PATH.
    let refuses = "#!/bin/sh\ncase $* in *--nodelist*) echo 'no steps today' >&2; exit 1 ;; esac\n\
        PATH=${PATH#*:} exec srun \"$@\"\n";
    site.rig.add_program("node01", "srun", refuses).unwrap();
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --slurm {job}"))));
    site.until("it has ended", || site.state() == "finished");
    let log = fs::read_to_string(run.job_log(1)).unwrap();
    assert!(log.contains("no steps today"), "{log}");
    assert_eq!(losses(&run).len(), 12);
}

#[test]
fn a_command_that_cannot_save_is_requeued_after_the_warning_of_slurm_and_continues_from_its_checkpoint() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let recipe = own(&site, 2, 12, HANGS);
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --slurm {}", job_file(&site)))));
    site.until_step(&run, 1, 8);
    site.until("its checkpoint is found", || other_trainers::latest(&run).is_some_and(|saved| saved.step == 5));
    let job = run.read_attempt(1).unwrap().slurm.unwrap().job.unwrap();
    // Slurm sends this signal shortly before the time limit.
    site.slurm(&format!("scancel --batch --signal=USR1 {job}"));
    site.until("it is requeued", || {
        site.slurm(&format!("squeue --noheader --jobs={job} --format=%T/%r")) == "PENDING/BeginTime"
    });
    for node in ["node01", "node02"] {
        let exit = run.read_exit(&NodeId::new(node).unwrap(), 1).unwrap().unwrap();
        assert_eq!((exit.reason, exit.failure), (ExitReason::Killed, None), "{node}");
    }
    start_requeued(&site, job);
    site.until("it finishes after the requeue", || site.state() == "finished");
    let attempt = run.read_attempt(2).unwrap();
    assert_eq!((attempt.why, attempt.slurm.unwrap().job), (AttemptWhy::Requeue, Some(job)));
    assert_eq!(steps(&run, 2), (6..=12).collect::<Vec<u64>>(), "from the checkpoint of step 5");
}

/// Starts a requeued job before its time.
///
/// When a job ends, its nodes revoke its credentials, and a credential of the same second counts as revoked.
fn start_requeued(site: &TestSite, job: u64) {
    site.slurm(&format!("scontrol update JobId={job} StartTime=now+2"));
}

#[test]
fn a_stop_reaches_a_command_on_all_nodes_while_the_controller_is_away() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let recipe = own(&site, 2, 100_000, "sleep 0.2");
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --slurm {}", job_file(&site)))));
    site.until_step(&run, 1, 2);
    site.rig.verb("slurmctld kill").unwrap();
    site.does("stop latest");
    assert!(run.stop_file().exists());
    site.until("every process is gone", || all_gone(&site));
    assert_eq!(site.state(), "stopped");
}

#[test]
fn a_stop_request_survives_a_requeue() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    // The program ignores TERM, and Slurm does not wait for it.
    let recipe = own(&site, 2, 60, "trap \"\" TERM; sleep 0.5");
    let run = RunDir::new(site.runs.join(site.does(&format!("launch {recipe} --slurm {}", job_file(&site)))));
    site.until("a checkpoint exists", || other_trainers::latest(&run).is_some());
    let job = run.read_attempt(1).unwrap().slurm.unwrap().job.unwrap();
    site.does("stop latest");
    // A preemption requeues the job in the same way.
    site.slurm(&format!("scontrol requeue {job}"));
    let state = || site.slurm(&format!("squeue --noheader --states=all --jobs={job} --format=%T"));
    site.until("it is requeued", || state() == "PENDING");
    site.until("every process is gone", || all_gone(&site));
    start_requeued(&site, job);
    site.until("the requeued job has ended", || state() == "COMPLETED");
    assert_eq!(site.state(), "stopped");
    assert_eq!(run.attempt_numbers().unwrap(), [1]);

    // A resume removes the stop request.
    site.does("resume latest");
    site.until("it is finished", || site.state() == "finished");
    assert_eq!(run.attempt_numbers().unwrap(), [1, 2]);
}
