//! Tests of runs as Slurm jobs: stops, requeues, lost nodes, and a controller that does not answer.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use cluster::NodeId;
use rundir::{AttemptWhy, ErrorCode, RunDir, SampleSidecar, now_s};
use serde_json::Value;

use crate::encode::{Videos, hashes, slow_decoder};
use crate::site::{FAST, TestSite, assert_down_soon, losses, samples};

const JOB: &str = "--slurm hostfiles/rig-slurm.toml";

fn job_of(run: &RunDir, attempt: u32) -> u64 {
    run.read_attempt(attempt).unwrap().slurm.unwrap().job.unwrap()
}

/// Returns the state and the reason of a job, as Slurm prints them.
fn state_of(site: &TestSite, job: u64) -> String {
    site.slurm(&format!("squeue --noheader --states=all --jobs={job} --format=%T/%r"))
}

#[test]
fn a_job_that_is_stopped_and_resumed_in_a_new_job_has_the_losses_of_a_local_run() {
    let Some(site) = TestSite::with_slurm() else { return };
    let here = site.losses_here(12);
    let run = site.launch_slowly(JOB, 12);
    site.until_step(&run, 1, 3);
    assert_eq!(site.status()["job"]["nodes"], "node[01-04]");
    let stopped = site.json("stop latest --wait");
    site.until("its job has ended", || state_of(&site, job_of(&run, 1)).starts_with("COMPLETED"));
    let saved = other_trainers::latest(&run).unwrap().step;
    assert!((3..12).contains(&saved) && stopped["checkpoint"]["step"] == saved, "{saved}: {stopped}");

    site.does(&format!("resume latest {FAST} --wait"));
    assert_eq!(losses(&run), here, "as jobs, and with a stop at step {saved}");
    assert!(samples(&run).iter().all(|sample| sample.attempt == if sample.step <= saved { 1 } else { 2 }));
    assert_ne!(job_of(&run, 1), job_of(&run, 2));
    assert_eq!(run.read_attempt(2).unwrap().placement.by_node().len(), 4);
}

#[test]
fn a_cancelled_job_is_shown_as_cancelled_and_a_pending_one_is_removed_from_the_queue() {
    let Some(site) = TestSite::with_slurm() else { return };
    let run = site.launch(JOB, 1000);
    site.until_step(&run, 1, 1);
    let job = job_of(&run, 1);
    assert_eq!(site.json("kill latest --dry-run")["job"]["id"], job);
    site.slurm(&format!("scancel {job}"));
    site.until("it is shown", || {
        site.status()["job"]["state"].as_str().is_some_and(|s| s.to_uppercase().starts_with("CANCELLED"))
    });
    assert_eq!(site.state(), "stopped");
    site.until("every process is gone", || site.all_gone());

    site.slurm("scontrol update NodeName=node[01-04] State=DRAIN Reason=test");
    let waiting = site.launch(JOB, 1000);
    let status = site.status();
    assert!(status["state"] == "queued" && status["job"]["nodes"].is_null(), "{status}");
    site.until("its reason is shown", || site.status()["job"]["reason"].is_string());
    assert_eq!(site.refuses("resume latest").code, ErrorCode::SlurmJobState);
    site.does("stop latest");
    assert_eq!(site.state(), "stopped");
    let job = state_of(&site, job_of(&waiting, 1));
    assert!(job.is_empty() || job.starts_with("CANCELLED"), "{job}");
    // A job may wait for drained nodes, but not for GPUs that no node has.
    assert_eq!(site.failed_checks(&format!("check configs/demo/2s.toml {JOB} --set mesh.dp_shard=4")), []);
    fs::write(site.rig.share().join("odd.toml"), "nodes = 4\ngpus_per_node = 3\ntime = '10:00'\n").unwrap();
    let odd = format!("check configs/demo/2s.toml --slurm {}/odd.toml --set mesh.dp_shard=12", site.rig.share());
    let failed = site.failed_checks(&format!("{odd} --set train.global_batch=12"));
    assert!(failed.contains(&("nodes".into(), String::new(), ErrorCode::TooFewRanks)), "{failed:?}");
}

#[test]
fn a_run_continues_while_the_controller_is_down_and_a_kill_waits_for_the_controller() {
    let Some(site) = TestSite::with_slurm() else { return };
    let run = site.launch(JOB, 1000);
    site.until_step(&run, 1, 1);
    // Real time: slurmctld writes its state at most 5 s after a change. If it starts again without the state of the running job, it holds
    // the job.
    std::thread::sleep(Duration::from_secs(6));
    site.rig.verb("slurmctld kill").unwrap();
    let away_since = Instant::now();
    let status = site.does("status latest");
    assert!(site.trains(), "{status}");
    let is_silent = |status: &Value| status["job"]["no_reply_since_s"].is_number();
    assert!(is_silent(&site.status()), "{status}");
    assert_eq!(site.refuses("resume latest").code, ErrorCode::RunStateUnknown);
    // Real time: twice the longest timeout between controller and nodes in the rig's slurm.conf, SlurmctldTimeout=10.
    while away_since.elapsed() < Duration::from_secs(20) {
        let seen = samples(&run).len();
        site.until("it continues", || samples(&run).len() > seen);
    }
    assert!(is_silent(&site.status()));
    site.rig.verb("slurmctld start").unwrap();
    let runs_on_all = |status: &Value| !is_silent(status) && status["job"]["nodes"] == "node[01-04]";
    site.until("its job is known again", || runs_on_all(&site.status()));
    let seen = samples(&run).len();
    site.until("it continues", || samples(&run).len() > seen);
    assert_eq!(run.attempt_numbers().unwrap(), [1]);

    // The kill is retried until the controller answers.
    site.rig.verb("slurmctld kill").unwrap();
    let kill = site.command("kill latest --yes").stderr(Stdio::piped()).spawn().unwrap();
    site.rig.verb("slurmctld start").unwrap();
    let killed = kill.wait_with_output().unwrap();
    assert!(killed.status.success(), "{}", String::from_utf8_lossy(&killed.stderr));
    assert!(site.all_gone());
    let status = site.status();
    assert!(status["state"] == "stopped" && !is_silent(&status), "{status}");
}

#[test]
fn a_job_checks_its_nodes_and_starts_no_ranks_if_a_check_fails() {
    let Some(site) = TestSite::with_slurm() else { return };
    // The job gets GPU 0 of each node. A process on the other GPU is allowed.
    for (node, gpu) in [("node03", 0), ("node02", 1)] {
        let orphan = format!(
            "LOCAL_RANK={gpu} setsid sleep 1000 >/dev/null 2>&1 </dev/null & until pgrep -f '^sleep 1000'; do :; done"
        );
        assert!(site.rig.command("ssh").args([node, &orphan]).output().unwrap().status.success());
    }
    let run = site.launch(JOB, 2);
    site.until("it is refused", || site.state() == "failed");
    let failure = site.failure();
    assert!(failure.code == ErrorCode::CheckFailed && failure.why.contains("node03"), "{failure}");
    let log = fs::read_to_string(run.job_log(1)).unwrap();
    let failed: Vec<&str> = log.lines().filter(|line| line.starts_with("no ")).collect();
    assert!(failed.len() == 2 && failed.iter().all(|line| line.contains("node03")), "{log}");
    assert!(log.contains("--exclude=node03"), "{log}");
    assert!(samples(&run).is_empty() && site.all_gone());

    let mut waived = site.command("resume latest --wait");
    let waived = waived.args(["--waive", "GPU processes", "--waive", "GPU memory"]).output().unwrap();
    assert!(waived.status.success(), "{}", String::from_utf8_lossy(&waived.stderr));
    assert_eq!(losses(&run).len(), 2);
    assert_eq!(run.read_attempt(2).unwrap().waived, ["GPU processes", "GPU memory"]);
}

/// Sets how long Slurm waits for a node without heartbeats before it marks the node as down.
fn set_slurmd_timeout(site: &TestSite, seconds: u32) {
    let config = site.rig.folder().join("slurm/slurm.conf");
    let text = fs::read_to_string(&config).unwrap();
    let lines = text.lines().map(|line| match line.starts_with("SlurmdTimeout=") {
        true => format!("SlurmdTimeout={seconds}\n"),
        false => format!("{line}\n"),
    });
    fs::write(&config, lines.collect::<String>()).unwrap();
    site.slurm("scontrol reconfigure");
}

#[test]
fn a_run_that_loses_nodes_continues_in_another_job_or_after_a_requeue_with_the_same_losses() {
    let Some(site) = TestSite::with_slurm() else { return };
    let here = site.losses_here(24);
    // The default timeout of Slurm.
    set_slurmd_timeout(&site, 300);
    let run = site.launch(JOB, 24);
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    let moment_s = now_s();
    site.rig.verb("poweroff node03").unwrap();
    let others = ["node01", "node02", "node04"];
    site.until("every process is gone", || others.iter().all(|node| site.trainers_on(node) == 0));
    assert_down_soon(&run, 1, &others, moment_s);
    let status = site.does("status latest");
    assert_eq!((site.state().as_str(), site.failure().code), ("failed", ErrorCode::NodeLost), "{status}");
    assert!(state_of(&site, job_of(&run, 1)).starts_with("RUNNING"), "Slurm has not detected the lost node");

    // The supervisor of the lost node may still be alive until its own timeout.
    site.until("the run can be resumed", || site.vidtui("resume latest --dry-run").ok);
    assert_eq!(site.json("resume latest --dry-run")["warnings"], Value::Array(Vec::new()));
    site.does("resume latest");
    assert_eq!(site.state(), "queued");
    site.rig.verb("poweron node03").unwrap();
    site.until_step(&run, 2, 1);
    assert_ne!(job_of(&run, 1), job_of(&run, 2));

    // Slurm detects the lost node and requeues the job without a console.
    set_slurmd_timeout(&site, 5);
    let saved = || other_trainers::latest(&run).unwrap().step;
    let before = run.read_attempt(2).unwrap().start_step;
    site.until("it has saved again", || saved() > before);
    site.rig.verb("poweroff node02").unwrap();
    site.until("it is requeued", || state_of(&site, job_of(&run, 2)).starts_with("PENDING"));
    let exit = run.read_exit(&NodeId::new("node01").unwrap(), 2).unwrap().unwrap();
    assert_eq!(exit.failure.unwrap().code, ErrorCode::NodeLost);
    site.rig.verb("poweron node02").unwrap();
    site.until("it is finished", || site.state() == "finished");
    let attempt = run.read_attempt(3).unwrap();
    assert_eq!((attempt.why, attempt.slurm.unwrap().job), (AttemptWhy::Requeue, Some(job_of(&run, 2))));
    assert_eq!(losses(&run), here, "in three starts");
}

#[test]
fn an_encode_as_a_job_goes_on_without_a_lost_node_and_a_job_samples_what_was_trained_on_it() {
    let Some(site) = TestSite::with_slurm() else { return };
    let site = site.with_binary();
    let videos = Videos::make(&site, 12);
    let alone = site.rig.share().join("alone");
    site.does(&videos.encode(&alone, "--local 1 --wait"));
    // Slurm marks the node as down while the others encode.
    set_slurmd_timeout(&site, 5);
    let data = site.rig.share().join("as-job");
    let paced = format!("{JOB} {}", slow_decoder(&site, 8));
    let run = RunDir::new(site.runs.join(site.does(&videos.encode(&data, &paced))));
    // Six captions come first.
    site.until("some clips are done", || samples(&run).last().is_some_and(|sample| sample.step >= 7));
    site.rig.verb("poweroff node03").unwrap();
    site.until("Slurm has lost the node", || {
        site.slurm("sinfo --noheader --nodes=node03 --format=%T").contains("down")
    });
    assert!(state_of(&site, job_of(&run, 1)).starts_with("RUNNING"), "the job ends with its node");
    site.until("the others have finished", || site.state() == "finished");
    site.until("the job has ended", || state_of(&site, job_of(&run, 1)).starts_with("COMPLETED"));
    assert_eq!(run.attempt_numbers().unwrap(), [1]);
    assert_eq!(hashes(&data), hashes(&alone));
    site.rig.verb("poweron node03").unwrap();
    site.until("all nodes are idle", || {
        site.slurm("sinfo --noheader --format=%T").lines().all(|state| state == "idle")
    });

    let trained = site.vidtui(&format!("{} --local 2 --set train.steps=2 --wait", videos.train(&data)));
    assert!(trained.ok, "{}\n{}", trained.err, trained.out);
    let video = |target: &str| {
        let path = site.does(&format!("sample latest --prompt pattern --steps 2 --seed 7 {target}"));
        SampleSidecar::read(&Utf8PathBuf::from(path).with_extension("json")).unwrap().unwrap()
    };
    let (here, job) = (video("--local 2"), video(JOB));
    assert_eq!((job.frames, job.seed, &job.weights_xxh3), (9, 7, &here.weights_xxh3));
}

#[test]
fn a_job_that_loses_a_node_continues_on_fewer_nodes_if_it_may() {
    let Some(site) = TestSite::with_slurm() else { return };
    let request = site.rig.share().join("fewer.toml");
    let spec = "partition = 'train'\nnodes = 4\nmin_nodes = 2\ngpus_per_node = 1\ntime = '10:00'\n";
    fs::write(&request, spec).unwrap();
    let run = site.launch(&format!("--slurm {request} --set run.shrink=true"), 24);
    assert_eq!(run.read_attempt(1).unwrap().mesh.world(), 4);
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    site.rig.verb("poweroff node03").unwrap();
    site.until("it is finished", || site.state() == "finished");
    let attempt = run.read_attempt(2).unwrap();
    let nodes: Vec<_> = attempt.placement.by_node().into_iter().map(|(node, _)| node.to_string()).collect();
    // Three nodes are left, and the batch of four samples needs two or four ranks.
    assert_eq!(
        (attempt.why, attempt.mesh.world(), &nodes[..]),
        (AttemptWhy::Requeue, 2, &["node01".into(), "node02".into()][..])
    );
    assert_eq!(losses(&run).len(), 24, "every step was made");
}

#[test]
fn a_job_continues_from_its_checkpoint_after_a_time_limit_and_after_a_preemption() {
    let Some(site) = TestSite::with_slurm() else { return };
    let file = site.rig.share().join("short.toml");
    fs::write(&file, "nodes = 4\ngpus_per_node = 1\ntime = '10:00'\nsave_before_s = 110\n").unwrap();
    let run = site.launch(&format!("--slurm {file}"), 1000);
    let job = job_of(&run, 1);
    site.until("it has saved", || other_trainers::latest(&run).is_some());
    // Real time: Slurm checks time limits twice a minute, and then warns the job.
    site.slurm(&format!("scontrol update JobId={job} EndTime=now+2minutes"));
    // The controller is away when the job ends.
    site.until("it is warned", || run.stop_file().exists());
    site.rig.verb("slurmctld kill").unwrap();
    site.until("its ranks have stopped", || site.state() == "stopped");
    site.rig.verb("slurmctld start").unwrap();
    site.until("it is requeued", || {
        run.read_attempt(1).is_ok() && state_of(&site, job).starts_with("PENDING/BeginTime")
    });
    let saved = other_trainers::latest(&run).unwrap().step;
    let status = site.status();
    assert!(status["state"] == "queued" && status["job"]["reason"].is_string(), "{status}");
    site.slurm(&format!("scontrol update JobId={job} TimeLimit=30"));
    site.until_step(&run, 2, saved + 1);
    let attempt = run.read_attempt(2).unwrap();
    assert_eq!((attempt.why, attempt.start_step, attempt.slurm.unwrap().job), (AttemptWhy::Requeue, saved, Some(job)));

    site.until_step(&run, 2, saved + 4);
    site.slurm("sbatch --partition=urgent --nodes=4 --exclusive --output=/dev/null --wrap=true");
    site.until("it is preempted", || state_of(&site, job).starts_with("PENDING"));
    site.until("it starts again", || run.read_attempt(3).is_ok());
    let attempt = run.read_attempt(3).unwrap();
    assert!(attempt.why == AttemptWhy::Requeue && attempt.start_step > saved, "{attempt:?}");
    site.until_step(&run, 3, attempt.start_step + 1);
    // Slurm also ends processes on a node that rejects the user's login.
    site.rig.verb("nologin node02").unwrap();
    let killed = site.json("kill latest --yes");
    for node in killed["nodes"].as_array().unwrap() {
        assert_eq!(node["gone"] == true, node["node"] != "node02", "{node}");
    }
    assert!(site.all_gone());
}

#[test]
fn nodes_that_join_a_partition_are_watched_and_nodes_that_leave_it_are_not() {
    let Some(site) = TestSite::without_trainer_with_slurm(3) else { return };
    let file = site.rig.share().join("train.toml");
    fs::write(&file, "partition = 'train'\nnodes = 1\ngpus_per_node = 2\ntime = '10:00'\n").unwrap();
    site.slurm("scontrol update PartitionName=train Nodes=node[01-02]");
    let mut watch =
        site.command(&format!("nodes --slurm {file} --watch --json")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut until_up = |wanted: &[&str]| loop {
        let document: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let nodes = document["nodes"].as_array().unwrap();
        let up = nodes.iter().filter(|node| node["state"] == "up").map(|node| node["node"].as_str().unwrap());
        if nodes.len() == wanted.len() && up.eq(wanted.iter().copied()) {
            break;
        }
    };
    until_up(&["node01", "node02"]);
    site.slurm("scontrol update PartitionName=train Nodes=node[02-03]");
    until_up(&["node02", "node03"]);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn the_nodes_of_a_partition_are_shown_with_slurms_state_even_if_unreachable() {
    let Some(site) = TestSite::without_trainer_with_slurm(2) else { return };
    let file = site.rig.share().join("train.toml");
    fs::write(&file, "partition = 'train'\nnodes = 1\ngpus_per_node = 2\ntime = '10:00'\n").unwrap();
    site.rig.verb("killsshd node02").unwrap();
    site.slurm("scontrol update NodeName=node02 State=DRAIN Reason=loud_fan");
    let states = |document: &Value| -> Vec<[String; 3]> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nodes = document["nodes"].as_array().unwrap().iter();
        nodes.map(|node| [text(&node["node"]), text(&node["state"]), text(&node["slurm"]["state"])]).collect()
    };
    let document = site.json(&format!("nodes --slurm {file}"));
    assert_eq!(states(&document), [["node01", "up", "idle"], ["node02", "unreachable", "drained"]]);
    assert_eq!(document["nodes"][1]["slurm"]["reason"], "loud_fan");

    // A run has no nodes until Slurm has allocated them.
    let recipe = site.rig.share().join("sleep.toml");
    fs::write(
        &recipe,
        "trainer = 'command'\n[command]\nrun = ['sleep', '600']\n[mesh]\ndp_replicate = 2\n[train]\nsteps = 9\n",
    )
    .unwrap();
    let waits = site.rig.share().join("both.toml");
    fs::write(&waits, "partition = 'train'\nnodes = 2\ngpus_per_node = 1\ntime = '10:00'\n").unwrap();
    site.does(&format!("launch {recipe} --slurm {waits}"));
    assert_eq!(site.refuses("nodes latest").code, ErrorCode::SlurmJobState);
    site.slurm("scontrol update NodeName=node02 State=RESUME");
    site.until("its nodes are known", || site.vidtui("nodes latest").ok);
    let shown = states(&site.json("nodes latest"));
    assert_eq!(shown.iter().map(|node| node[1].as_str()).collect::<Vec<_>>(), ["up", "unreachable"]);
    assert!(site.does("smi node01 --run latest").contains("| NVIDIA-SMI"));
    site.slurm("scancel --user=root");
}

/// Writes a recipe whose trainer is a command; returns its path.
fn command_recipe(site: &TestSite, command: &str) -> Utf8PathBuf {
    let recipe = site.rig.share().join("command.toml");
    let text = format!("trainer = 'command'\n[command]\nrun = ['sh', '-c', '{command}']\n[train]\nsteps = 9\n");
    fs::write(&recipe, text).unwrap();
    recipe
}

/// Writes a Slurm file for a node with one GPU; returns its path.
fn slurm_file(site: &TestSite, extra: &str) -> Utf8PathBuf {
    let file = site.rig.share().join("one.toml");
    fs::write(&file, format!("nodes = 1\ngpus_per_node = 1\ntime = '10:00'\nextra = [{extra}]\n")).unwrap();
    file
}

#[test]
fn a_job_that_never_starts_by_itself_is_a_finding_with_its_cure() {
    let Some(site) = TestSite::without_trainer_with_slurm(1) else { return };
    let recipe = command_recipe(&site, "true");
    let failed = site.slurm("sbatch --parsable --output=/dev/null --wrap=false");
    site.until("the first job has failed", || state_of(&site, failed.parse().unwrap()).starts_with("FAILED"));
    let later = ["ReservationName=later", "StartTime=now+60minutes", "Duration=60", "Users=root", "Nodes=node01"];
    site.slurm(&format!("scontrol create reservation {}", later.join(" ")));
    site.does(&format!("launch {recipe} --slurm {}", slurm_file(&site, "'--reservation=later'")));
    site.until("its reason is shown", || site.status()["job"]["reason"] == "Reservation");
    assert_eq!(site.status()["findings"], Value::Array(Vec::new()));
    site.does("kill latest --yes");
    site.slurm("scontrol delete ReservationName=later");
    for (extra, reason) in
        [("'--hold'".to_owned(), "JobHeldUser"), (format!("'-d afterok:{failed}'"), "DependencyNeverSatisfied")]
    {
        site.does(&format!("launch {recipe} --slurm {}", slurm_file(&site, &extra)));
        site.until("its reason is shown", || site.status()["job"]["reason"] == reason);
        let status = site.status();
        assert_eq!(status["state"], "queued", "{status}");
        let found = &status["findings"][0];
        assert_eq!((&found["rule"], &found["urgency"]), (&"job_pending".into(), &"act".into()), "{status}");
        let fix = found["fix"].as_str().unwrap();
        assert!(site.does("status latest").contains(fix), "{fix}");
        // The hint can be done as printed.
        let cure = fix.split('`').nth(1).unwrap();
        assert!(cure.contains(&status["job"]["id"].to_string()), "{cure}");
        site.slurm(cure);
        site.until("it is finished", || site.state() == "finished");
        assert_eq!(site.status()["findings"], Value::Array(Vec::new()));
    }
}

#[test]
fn variables_of_slurms_programs_change_no_query_and_those_that_request_something_are_in_the_plan() {
    let Some(site) = TestSite::without_trainer_with_slurm(1) else { return };
    let recipe = command_recipe(&site, "test -n \"$PATH\" && sleep 3");
    let variables = [
        ("SQUEUE_FORMAT", "%i"),
        ("SQUEUE_STATES", "SUSPENDED"),
        ("SQUEUE_USERS", "nobody"),
        ("SINFO_FORMAT", "%n"),
        ("SINFO_PARTITION", "debug"),
        ("SCANCEL_STATE", "SUSPENDED"),
        ("SCANCEL_INTERACTIVE", "1"),
        ("SCONTROL_FUTURE", "1"),
        ("SLURM_TIME_FORMAT", "relative"),
        ("SLURM_JOB_ID", "99"),
        ("SLURM_EXPORT_ENV", "NONE"),
        ("SLURM_LABELIO", "1"),
        ("SLURM_STDOUTMODE", "none"),
        ("SLURM_WORKING_DIR", "/nowhere"),
        ("SRUN_EXPORT_ENV", "NONE"),
        ("SBATCH_WAIT", "1"),
        ("SBATCH_ARRAY_INX", "0-1"),
        ("SBATCH_TIMELIMIT", "1"),
        ("SBATCH_EXPORT", "NONE"),
        ("SBATCH_MEM_PER_NODE", "100M"),
    ];
    let does = |words: &str| {
        let output = site.command(words).envs(variables).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "vidtui {words}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let launch = format!("launch {recipe} --slurm {}", slurm_file(&site, ""));
    let plan = does(&format!("{launch} --dry-run"));
    assert!(plan.contains("--export=NONE (SBATCH_EXPORT), --mem=100M (SBATCH_MEM_PER_NODE)"), "{plan}");
    assert!(plan.contains("SBATCH_ARRAY_INX=0-1: ") && plan.contains("SBATCH_TIMELIMIT=1: "), "{plan}");

    does(&format!("{launch} --wait"));
    let status: Value = serde_json::from_str(&does("status latest --json")).unwrap();
    assert_eq!(status["state"], "finished", "{status}");
    // The next run lasts until it is killed.
    command_recipe(&site, "sleep 600");
    does(&launch);
    let running = || -> Value { serde_json::from_str(&does("status latest --json")).unwrap() };
    site.until("it is running", || running()["state"] == "running");
    does("kill latest --yes");
    assert_eq!(running()["state"], "stopped");
}

#[test]
fn an_option_that_would_break_a_run_is_refused_before_submission_and_every_option_of_sbatch_has_a_decision() {
    let Some(site) = TestSite::without_trainer_with_slurm(1) else { return };
    let recipe = command_recipe(&site, "true");
    for extra in ["'--array=0-1'", "'--wait'", "'-W'", "'--exclusive --out=x'", "'hetjob'"] {
        let refused = site.refuses(&format!("launch {recipe} --slurm {}", slurm_file(&site, extra)));
        assert_eq!(refused.code, ErrorCode::InvalidSlurmFile, "{extra}: {refused}");
    }
    assert_eq!(site.slurm("squeue --noheader --states=all"), "");

    let help = site.slurm("sbatch --help");
    let names: Vec<&str> = help
        .lines()
        .filter(|line| line.starts_with("  ") && line.trim_start().starts_with('-'))
        .flat_map(|line| line.trim_start().split("  ").next().unwrap_or_default().split(", "))
        .map(|name| name.trim_start_matches('-').split(['=', '[', ' ']).next().unwrap_or_default())
        .collect();
    assert!(names.len() > 100, "{names:?}");
    let unknown: Vec<&&str> = names.iter().filter(|name| cluster::slurm::meaning(name).is_none()).collect();
    assert_eq!(unknown, [&""; 0]);
}
