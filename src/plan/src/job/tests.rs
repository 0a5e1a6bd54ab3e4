//! Tests of batch scripts, and of what a job does each time Slurm starts it.

use std::process::Command;

use camino::Utf8PathBuf;
use recipe::Mesh;
use rundir::{EventKind, ExitFile, ExitReason, RunDir, SCHEMA, StartFrom};

use cluster::slurm::SlurmSpec;
use cluster::{NodeId, Placement};

use super::*;
use crate::fixtures::{self, Past, context, past, recipe, rows};
use crate::job_script::script;
use crate::{LaunchPlan, LaunchRequest, ResumeOptions, Target, launch, resume};

const FILE: &str = "partition = 'train'\nnodes = 4\ngpus_per_node = 1\ntime = '10:00'\nmodules = ['cuda/12.4']\nextra = ['--exclusive']\n";

fn spec() -> SlurmSpec {
    SlurmSpec::parse(FILE).unwrap()
}

fn queued() -> Context {
    Context { target: Target::slurm(spec(), "hostfiles/rig-slurm.toml"), ..context(1) }
}

/// An allocation of four nodes.
fn allocated(job: u64) -> Context {
    let names = [3, 4, 5, 6].map(|n| NodeId::new(format!("node0{n}")).unwrap());
    Context { target: Target::allocation(job, spec(), names.to_vec()), ..context(1) }
}

fn submitted() -> LaunchPlan {
    let mut recipe = recipe();
    recipe.mesh = Mesh { dp_replicate: 1, dp_shard: 4, ..recipe.mesh };
    launch(&LaunchRequest { recipe: &recipe, name: None, stage: None, init: None }, &queued()).unwrap()
}

/// A run that was submitted and, if `job` is given, has started as that job.
fn begun(job: Option<u64>, saved: &[i64]) -> Past {
    let plan = submitted();
    let mut attempt = Attempt { started_s: fixtures::NOW - 3600.0, ..plan.attempt };
    if let Some(job) = job {
        attempt.placement = Placement::new(&allocated(job).target.nodes, 4).unwrap();
        attempt.slurm.as_mut().unwrap().job = Some(job);
    }
    let mut past = past(30, saved);
    (past.run, past.facts.attempt) = (plan.run, Some(attempt));
    past.facts.alive = runstate::Liveness::Unknown;
    past
}

fn request(past: &Past) -> JobStartRequest<'_> {
    let Past { run, dir, facts, checkpoints, latest } = past;
    let options = ResumeOptions::default();
    JobStartRequest {
        submitted: 1,
        resume: ResumeRequest { run, dir, facts, checkpoints, latest: latest.as_ref(), options, changed: None },
    }
}

fn ended(past: &mut Past, reason: ExitReason) {
    let nodes = ["node03", "node04", "node05", "node06"];
    past.facts.exits = nodes
        .map(|node| ExitFile {
            schema: SCHEMA,
            attempt: 1,
            node: NodeId::new(node).unwrap(),
            ended_s: fixtures::NOW - 50.0,
            reason,
            first_failure: None,
            failure: (reason == ExitReason::Failed)
                .then(|| Failure::new(rundir::ErrorCode::RankFailed, "rank 2 failed", "it had no data", "")),
            ranks: vec![],
        })
        .to_vec();
}

#[test]
fn a_queued_launch_shows_the_slurm_request_and_how_to_submit_it_by_hand() {
    let plan = submitted();
    assert!(plan.nodes.is_empty() && plan.attempt.placement.ranks.is_empty());
    insta::assert_snapshot!(format!("{}\n{}", rows(&plan), plan.job_script.unwrap()));
}

#[test]
fn slurm_ends_a_job_that_loses_a_node_unless_its_ranks_are_independent() {
    let plan = submitted();
    let options = |task: &str| {
        let mut run = plan.run.clone();
        run.recipe.insert("task".into(), task.into());
        let text = script(&plan.dir, &run, &plan.attempt, &queued());
        text.lines().filter(|line| line.contains("--no-kill")).map(|line| line[..7].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(options("encode"), ["#SBATCH", "srun --"]);
    assert_eq!((options("train").len(), options("sample").len()), (0, 0));
}

#[test]
fn a_slurm_request_must_fit_the_mesh() {
    let mut recipe = recipe();
    recipe.mesh = Mesh { dp_replicate: 1, dp_shard: 2, ..recipe.mesh };
    let refusal = launch(&LaunchRequest { recipe: &recipe, name: None, stage: None, init: None }, &queued());
    insta::assert_snapshot!(fixtures::coded(&refusal.unwrap_err()));
}

#[test]
fn the_first_start_of_a_job_starts_the_submitted_attempt() {
    let past = begun(None, &[]);
    let JobStart::SubmittedAttempt(plan) = job_start(&request(&past), &allocated(42)).unwrap() else { panic!() };
    let LaunchPlan { attempt, nodes, .. } = *plan;
    assert_eq!(attempt.placement.ranks[3].node.as_str(), "node06");
    assert!(nodes[3].script.contains("--attempt 1 --node node06"), "{}", nodes[3].script);
    assert!(nodes.iter().all(|node| node.script.contains("export MASTER_ADDR=node03\n")));
}

#[test]
fn a_job_that_samples_needs_no_space_for_checkpoints() {
    let mut past = begun(None, &[]);
    let mut sampling = past.run.recipe().unwrap();
    sampling.task = recipe::Task::Sample;
    sampling.encoders.folder = "/models/CogVideoX-5b".into();
    sampling.sample.prompts = vec!["a rabbit on a meadow".into()];
    past.run.recipe = sampling.to_table();
    let start = job_start(&request(&past), &allocated(7)).unwrap();
    let JobStart::SubmittedAttempt(plan) = start else { panic!("{start:?}") };
    assert_eq!(plan.disk, DiskNeed::of_data_set(0));
}

#[test]
fn a_requeued_job_starts_from_the_newest_checkpoint() {
    let mut past = begun(Some(42), &[20, -25]);
    // The previous attempt ended without exit files, after a stop, or with a failure because the job ended.
    for reason in [None, Some(ExitReason::Stopped), Some(ExitReason::Failed)] {
        reason.into_iter().for_each(|reason| ended(&mut past, reason));
        past.facts.attempt.as_mut().unwrap().waived = vec!["clock".into()];
        let JobStart::NextAttempt(plan) = job_start(&request(&past), &allocated(42)).unwrap() else { panic!() };
        assert_eq!(plan.attempt.waived, ["clock"], "no user is present to choose again");
        assert_eq!((plan.attempt.number, plan.attempt.why, plan.attempt.start_step), (2, AttemptWhy::Requeue, 20));
        assert_eq!(plan.attempt.start, StartFrom::Checkpoint { run: past.run.id.clone(), step: 20 });
        assert_eq!(plan.attempt.slurm.as_ref().unwrap().job, Some(42));
        assert_eq!((plan.nodes.len(), &plan.job_script), (4, &None));
    }
}

#[test]
fn a_job_with_fewer_nodes_uses_as_many_as_the_mesh_can_be_fitted_to() {
    let fewer = |past: &mut Past, shrink: bool| {
        let mut recipe = past.run.recipe().unwrap();
        recipe.run.shrink = shrink;
        past.run.recipe = recipe.to_table();
        let mut cx = allocated(42);
        cx.target.nodes.pop();
        for slurm in [&mut cx.target.slurm, &mut past.facts.attempt.as_mut().unwrap().slurm] {
            slurm.as_mut().unwrap().spec.min_nodes = Some(2);
        }
        job_start(&request(past), &cx)
    };
    for (mut past, start_step) in [(begun(None, &[]), 0), (begun(Some(42), &[20]), 20)] {
        let JobStart::NextAttempt(plan) = fewer(&mut past, true).unwrap() else { panic!() };
        assert_eq!((plan.attempt.start_step, plan.attempt.mesh.dp_shard, plan.nodes.len()), (start_step, 2, 2));
        let refusal = fewer(&mut past, false).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidSlurmFile, "{refusal}");
    }
}

#[test]
fn a_job_whose_run_is_finished_has_nothing_to_do() {
    let mut past = begun(Some(42), &[60]);
    ended(&mut past, ExitReason::Finished);
    assert!(matches!(job_start(&request(&past), &allocated(42)), Ok(JobStart::Nothing(_))));
}

#[test]
fn a_job_with_a_stop_request_starts_no_attempt() {
    for job in [None, Some(42)] {
        let mut past = begun(job, &[20]);
        let mut ends = |stopping, stops_for_good| {
            (past.facts.stopping, past.facts.stops_for_good) = (stopping, stops_for_good);
            matches!(job_start(&request(&past), &allocated(42)), Ok(JobStart::Nothing(_)))
        };
        assert!(!ends(true, false), "the job's own script made the request");
        assert!(ends(true, true));
    }
}

#[test]
fn a_job_does_not_start_a_run_that_may_be_alive_in_another_job() {
    let past = begun(Some(41), &[20]);
    let refusal = job_start(&request(&past), &allocated(42)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::RunIsAlive, "{refusal}");
}

#[test]
fn a_job_is_requeued_after_its_time_limit_or_a_preemption_but_not_after_a_stop_or_failure() {
    let details =
        |preempted: &str| cluster::slurm::read_job(&format!("JobId=42 JobState=RUNNING PreemptTime={preempted}"));
    let settings = RunSettings::default();
    let after = |stops_for_good, reason, warned, preempted: &str| {
        let mut past = begun(Some(42), &[20]);
        past.facts.stops_for_good = stops_for_good;
        ended(&mut past, reason);
        requeue(&past.facts, &settings, &[], warned, details(preempted).as_ref(), fixtures::NOW)
    };
    let cases = [
        after(false, ExitReason::Stopped, true, "None"),
        after(false, ExitReason::Stopped, false, "1795146000"),
        after(false, ExitReason::Stopped, false, "None"),
        after(false, ExitReason::Finished, true, "None"),
        after(false, ExitReason::Failed, true, "None"),
        after(true, ExitReason::Stopped, true, "1795146000"),
    ];
    assert_eq!(cases.each_ref().map(|case| case.is_ok()), [true, true, false, false, false, false]);
    insta::assert_debug_snapshot!(cases);
}

#[test]
fn a_job_whose_run_failed_is_requeued_if_the_recipe_requests_it_and_no_stop_was_requested() {
    let settings = |on_failure| RunSettings { on_failure, heals_per_hour: 4, ..RunSettings::default() };
    let after = |on_failure, stops_for_good, events: &[Event]| {
        let mut past = begun(Some(42), &[20]);
        past.facts.stops_for_good = stops_for_good;
        ended(&mut past, ExitReason::Failed);
        requeue(&past.facts, &settings(on_failure), events, false, None, fixtures::NOW).is_ok()
    };
    assert!(after(OnFailure::Resume, false, &[]));
    assert!(!after(OnFailure::Stop, false, &[]));
    assert!(!after(OnFailure::Resume, true, &[]));
    let healed =
        |number| Event::new(fixtures::NOW - 60.0, number, None, EventKind::Healed { without: vec![], down_s: 1.0 });
    assert!(!after(OnFailure::Resume, false, &[2, 3, 4, 5].map(healed)));
}

#[test]
fn a_run_whose_job_is_pending_or_unknown_is_not_resumed() {
    let mut past = begun(Some(42), &[20]);
    let mut refusals = Vec::new();
    let pending =
        cluster::slurm::read_queue("42|PENDING|Resources|0:00|10:00|4||||ada|train|gres:gpu:1|demo").rows.remove(0);
    let reply = cluster::slurm::JobReply::Job(Box::new(pending));
    for job in [
        cluster::slurm::JobStatus { reply, ..cluster::slurm::JobStatus::unknown(42) },
        cluster::slurm::JobStatus::unknown(42),
    ] {
        past.facts.job = Some(job);
        refusals.push(fixtures::coded(&resume(&request(&past).resume, &queued()).unwrap_err()));
    }
    insta::assert_snapshot!(refusals.join("\n\n"));
}

#[test]
fn paths_with_special_characters_reach_the_commands_of_a_job_unchanged() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let root = Utf8PathBuf::from_path_buf(temp.path().join("it's $HOME; `id` \"runs\" é")).expect("UTF-8");
    std::fs::create_dir_all(root.join("bin")).expect("a folder");
    let program = root.join("bin/vidtui");
    std::fs::write(&program, "#!/bin/sh\nprintf '<%s>' \"$@\" >> \"$(dirname \"$0\")/args\"\n").expect("a file");
    assert!(Command::new("chmod").arg("+x").arg(&program).status().expect("chmod").success());
    let plan = submitted();
    let dir = RunDir::of(&root, &plan.run.id);
    // This machine has no `module` command.
    let mut attempt = plan.attempt;
    attempt.slurm.as_mut().unwrap().spec.modules.clear();
    let text = script(&dir, &plan.run, &attempt, &Context { program, ..queued() });
    let status = Command::new("bash").arg("-c").arg(&text).status().expect("bash starts");
    assert!(status.success(), "the program prints no attempt, so the script ends");
    let arguments = std::fs::read_to_string(root.join("bin/args")).expect("the arguments of vidtui");
    assert_eq!(arguments, format!("<job><begin><--run-dir><{}><--attempt><1>", dir.root));
    let output = text.lines().find(|line| line.contains("--output")).unwrap();
    assert!(output.starts_with("#SBATCH \"--output=") && output.contains(r#"\"runs\""#), "{output}");
}
