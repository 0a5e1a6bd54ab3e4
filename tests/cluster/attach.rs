//! Tests of runs that watch a program on other nodes.

use std::fs;
use std::process::{Child, Stdio};

use cluster::NodeId;
use rundir::{NodeSample, RunDir, Tail};

use crate::site::{TestSite, samples};

/// A program that logs a step every 0.2 s up to STEPS, then waits for the file `go`.
const PROGRAM: &str = "for i in $(seq STEPS); do echo step $i loss 0.5 lr 1e-5; sleep 0.2; done; until [ -e SHARE/go ]; do sleep 0.2; done";

fn program(site: &TestSite, steps: u64) -> String {
    PROGRAM.replace("STEPS", &steps.to_string()).replace("SHARE", site.rig.share().as_str())
}

/// Waits until a node has samples in the run.
fn until_sampled(site: &TestSite, run: &RunDir, nodes: &[&str]) {
    let is_sampled = |node: &&str| {
        let path = run.gpu_samples(&NodeId::new(*node).unwrap());
        Tail::<NodeSample>::new(path).poll().is_ok_and(|batch| !batch.items.is_empty())
    };
    site.until("every node has samples", || nodes.iter().all(is_sampled));
}

/// Ends a program when the test ends.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_on_two_nodes_is_watched_with_their_gpus_until_its_process_ends() {
    let Some(site) = TestSite::without_trainer(2) else { return };
    let log = site.rig.share().join("train.log");
    let mut program = Program(
        site.rig
            .command_on("node01", "env")
            .args(["LOCAL_RANK=0", "sh", "-c", &format!("echo $$ >{}/pid; {}", site.rig.share(), program(&site, 12))])
            .stdin(Stdio::null())
            .stdout(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
    );
    let read_pid = || fs::read_to_string(site.rig.share().join("pid")).unwrap_or_default();
    site.until("the program runs", || read_pid().ends_with('\n'));
    let pid = read_pid();
    // The GPUs of the program are busy: this is no reason not to watch them.
    let nodes = format!("--hostfile hostfiles/rig.txt --include node01,node02 --pid {}", pid.trim());
    let plan = site.does(&format!("attach {log} {nodes} --dry-run"));
    assert!(plan.contains("2 nodes of hostfile hostfiles/rig.txt") && plan.contains("node01 reads the log"), "{plan}");
    let run = RunDir::new(site.runs.join(site.does(&format!("attach {log} {nodes}"))));
    site.until_step(&run, 1, 12);
    until_sampled(&site, &run, &["node01", "node02"]);
    assert_eq!(site.state(), "running");
    fs::write(site.rig.share().join("go"), "").unwrap();
    program.0.wait().unwrap();
    site.until("the run ends with the program", || site.state() == "finished");
    assert_eq!(samples(&run).len(), 12);
    site.until("nothing is left", || {
        site.rig.nodes().iter().all(|node| site.count_on(node, "vidtui supervise|tail -n") == 0)
    });
}

#[test]
fn a_program_in_a_slurm_job_is_watched_until_the_job_ends() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let share = site.rig.share();
    let log = share.join("job.log");
    let script = format!("#!/bin/sh\n{}\n", program(&site, 8));
    fs::write(share.join("job.sh"), script).unwrap();
    let job = site.slurm(&format!("sbatch --parsable -p train -N 2 --gres=gpu:2 -o {log} {share}/job.sh"));
    let state = || site.slurm(&format!("squeue -h -j {job} -o %T"));
    site.until("the job runs", || state() == "RUNNING" && log.exists());
    let run = RunDir::new(site.runs.join(site.does(&format!("attach {log} --slurm-job {job}"))));
    site.until_step(&run, 1, 8);
    until_sampled(&site, &run, &["node01", "node02"]);
    assert_eq!(run.latest_attempt().unwrap().unwrap().placement.world(), 4);
    let second = site.does(&format!("attach {log} --slurm-job {job} --name second"));
    site.until_step(&RunDir::new(site.runs.join(&second)), 1, 8);
    site.does(&format!("stop {second} --wait"));
    assert_eq!((site.state().as_str(), state().as_str()), ("stopped", "RUNNING"));
    let watches = |id: &str| site.rig.nodes().iter().map(|node| site.count_on(node, id)).sum::<usize>();
    site.until("no process of the stopped run is left", || watches(&second) == 0 && watches("^tail -n") == 1);
    fs::write(share.join("go"), "").unwrap();
    let id = run.name();
    site.until("the run ends with the job", || site.json(&format!("status {id}"))["state"] == "finished");
    assert_eq!(samples(&run).len(), 8);
    let unknown = site.refuses(&format!("attach {log} --slurm-job 4711"));
    assert!(unknown.why.contains("no such job"), "{unknown}");
}
