//! Tests of resume plans: which checkpoint and mesh they use, and which runs they refuse.

use super::*;
use crate::fixtures::{NOW, Past, coded, context, past, rows};
use cluster::slurm::JobStatus;
use rundir::{Event, EventKind, ExitFile, ExitReason, RequestSource, SCHEMA};

fn request(past: &Past, options: ResumeOptions) -> ResumeRequest<'_> {
    ResumeRequest {
        run: &past.run,
        dir: &past.dir,
        facts: &past.facts,
        checkpoints: &past.checkpoints,
        latest: past.latest.as_ref(),
        options,
        changed: None,
    }
}

/// Plans a resume that changes keys of the recipe.
fn plan_changed(past: &Past, options: ResumeOptions, ranks: usize, sets: &[&str]) -> Result<LaunchPlan, Failure> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let changed =
        past.run.recipe().unwrap().with_sets("run.toml".into(), &sets).unwrap_or_else(|error| panic!("{error}"));
    resume(&ResumeRequest { changed: Some(changed), ..request(past, options) }, &context(ranks))
}

#[test]
fn a_resume_may_change_keys_that_leave_the_tensors_alone_and_its_plan_shows_their_effect() {
    let past = past(45, &[40]);
    let plan = plan_changed(&past, ResumeOptions::default(), 2, &["optimizer.lr=2e-4", "log.interval=5"]).unwrap();
    assert_eq!(plan.attempt.start, StartFrom::Checkpoint { run: past.run.id.clone(), step: 40 });
    let recipe = plan.run.recipe().unwrap();
    assert_eq!((recipe.optimizer.lr, recipe.log.interval), (2e-4, 5));
    let changed: Vec<_> =
        plan.attempt.changed.iter().map(|changed| (changed.key.as_str(), changed.to.as_str())).collect();
    assert_eq!(changed, [("log.interval", "5"), ("optimizer.lr", "0.0002")]);
    let is_change = |(name, _): &&(String, String)| name == "changed";
    let rows: Vec<_> = plan.summary.iter().take_while(is_change).map(|(_, row)| row.as_str()).collect();
    assert!(rows[0].ends_with("the losses stay the same"), "{rows:?}");
    assert!(rows[1].ends_with("the losses differ from here on"), "{rows:?}");
    assert!(!plan.starts_at_once(), "a plan that changes the recipe is shown first");
}

#[test]
fn a_changed_mesh_is_used_instead_of_that_of_the_last_attempt() {
    let plan = plan_changed(&past(45, &[40]), ResumeOptions::default(), 2, &["mesh.dp_shard=1", "mesh.dp_replicate=2"]);
    let mesh = plan.unwrap().attempt.mesh;
    assert_eq!((mesh.dp_replicate, mesh.dp_shard), (2, 1));
}

#[test]
fn keys_that_change_the_samples_need_fresh_data_and_keys_of_tensors_need_a_new_run() {
    let past = past(45, &[40]);
    let refused = |options: ResumeOptions, set: &str| {
        let failure = plan_changed(&past, options, 2, &[set]).unwrap_err();
        (failure.code, failure.fix)
    };
    let (code, fix) = refused(ResumeOptions::default(), "train.global_batch=8");
    assert_eq!((code, fix.contains("--fresh-data")), (ErrorCode::InvalidArgument, true));
    let fresh = plan_changed(&past, kind(ResumeKind::FreshData), 2, &["train.global_batch=8"]).unwrap();
    assert_eq!(fresh.run.recipe().unwrap().train.global_batch, 8);
    assert_eq!(fresh.attempt.start, StartFrom::CheckpointFreshData { run: past.run.id.clone(), step: 40 });
    for set in ["model.num_layers=3", "optimizer.kind=prodigy", "train.seed=7"] {
        let (code, fix) = refused(kind(ResumeKind::FreshData), set);
        assert_eq!((code, fix.contains("--weights-only")), (ErrorCode::InvalidArgument, true), "{set}: {fix}");
    }
    let (code, fix) = refused(ResumeOptions::default(), "name=other");
    assert_eq!((code, fix.contains("vidtui launch")), (ErrorCode::InvalidArgument, true));
    let new = plan_changed(&past, kind(ResumeKind::WeightsOnly), 2, &["optimizer.kind=prodigy"]).unwrap();
    assert!(new.is_new_run());
    assert_eq!(new.run.recipe().unwrap().optimizer.kind, recipe::OptimizerKind::Prodigy);
    assert_eq!(new.summary[0], ("changed".to_owned(), "optimizer.kind: \"adamw\" -> \"prodigy\"".to_owned()));
    let longer = ResumeOptions { steps: Some(900), ..kind(ResumeKind::WeightsOnly) };
    let new = plan_changed(&past, longer, 2, &["optimizer.kind=prodigy"]).unwrap();
    assert!(
        new.summary[0].1.starts_with("train.steps: ") && new.summary[0].1.ends_with(" -> 900"),
        "{:?}",
        new.summary[0]
    );
}

#[test]
fn a_run_that_has_saved_nothing_may_change_its_samples() {
    let plan = plan_changed(&self::past(5, &[]), ResumeOptions::default(), 2, &["train.global_batch=8"]).unwrap();
    assert_eq!((plan.attempt.start_step, plan.run.recipe().unwrap().train.global_batch), (0, 8));
}

fn plan_with(past: &Past, options: ResumeOptions, ranks: usize) -> Result<LaunchPlan, Failure> {
    resume(&request(past, options), &context(ranks))
}

fn plan(past: &Past) -> Result<LaunchPlan, Failure> {
    plan_with(past, ResumeOptions::default(), 2)
}

fn step(step: u64) -> ResumeOptions {
    ResumeOptions { step: Some(step), ..ResumeOptions::default() }
}

fn kind(kind: ResumeKind) -> ResumeOptions {
    ResumeOptions { kind, ..ResumeOptions::default() }
}

fn exit(past: &Past, reason: ExitReason) -> ExitFile {
    ExitFile {
        schema: SCHEMA,
        attempt: 1,
        node: past.facts.attempt.as_ref().unwrap().placement.ranks[0].node.clone(),
        ended_s: NOW - 50.0,
        reason,
        first_failure: None,
        failure: None,
        ranks: Vec::new(),
    }
}

#[test]
fn a_resume_continues_from_the_newest_checkpoint_without_warnings() {
    let past = past(45, &[20, 40]);
    let plan = plan(&past).unwrap();
    insta::assert_snapshot!(rows(&plan));
    assert_eq!(plan.attempt.number, 2);
    assert_eq!(plan.attempt.start, StartFrom::Checkpoint { run: past.run.id.clone(), step: 40 });
    assert_eq!((plan.run, plan.dir), (past.run, past.dir));
    assert_eq!(plan.warnings, [""; 0]);
}

#[test]
fn a_run_that_is_or_may_be_alive_is_refused_with_its_state() {
    let alive = |event: Option<EventKind>, metric: Option<(u64, f64)>| {
        let mut past = past(45, &[40]);
        past.facts.alive = Liveness::Alive;
        past.facts.last_metric = metric;
        if let Some(kind) = event {
            let event = Event { v: 1, t: NOW - 1.0, attempt: 1, rank: None, node: None, step: None, kind };
            past.facts.see_event(&event);
        }
        past
    };
    let mut ending = alive(None, Some((45, NOW)));
    ending.facts.exits = vec![exit(&ending, ExitReason::Failed)];
    ending.facts.attempt.as_mut().unwrap().placement.ranks[1].node = cluster::NodeId::from_hostname("vm2");
    let mut just_started = past(0, &[]);
    (just_started.facts.last_metric, just_started.facts.is_incomplete) = (None, true);
    just_started.facts.attempt.as_mut().unwrap().started_s = NOW - 2.0;
    let mut elsewhere = past(45, &[40]);
    elsewhere.facts.alive = Liveness::Unknown;
    let mut elsewhere_at_work = alive(None, Some((45, NOW)));
    elsewhere_at_work.facts.alive = Liveness::Unknown;
    let refused = [
        alive(None, None),
        alive(None, Some((45, NOW))),
        alive(None, Some((45, NOW - 1000.0))),
        alive(Some(EventKind::CheckpointStarted), Some((45, NOW - 2.0))),
        alive(Some(EventKind::Stopping { source: RequestSource::Term, why: "SIGTERM".into() }), Some((45, NOW))),
        ending,
        just_started,
        elsewhere,
        elsewhere_at_work,
    ];
    let refusals = refused.map(|past| coded(&plan(&past).unwrap_err()));
    insta::assert_snapshot!(refusals.join("\n\n"));
}

/// A run in job 42 on two nodes: one failed this many seconds ago, the other has no exit file, and Slurm reports the job as
/// running.
fn lost_a_node(ago_s: f64) -> Past {
    let mut past = past(45, &[40]);
    let line = "42|RUNNING|None|0:05|10:00|2|vm,vm2|1000|1600|ada|train|gres:gpu:1|demo";
    let job = Box::new(cluster::slurm::read_queue(line).rows.remove(0));
    past.facts.job = Some(JobStatus { reply: cluster::slurm::JobReply::Job(job), ..JobStatus::unknown(42) });
    past.facts.alive = Liveness::Alive;
    let spec = cluster::slurm::SlurmSpec::parse("nodes = 2\ngpus_per_node = 1\ntime = '10:00'\n").unwrap();
    let attempt = past.facts.attempt.as_mut().unwrap();
    attempt.slurm = Some(rundir::SlurmJob { job: Some(42), spec });
    attempt.placement.ranks[1].node = cluster::NodeId::from_hostname("vm2");
    past.facts.exits = vec![ExitFile { ended_s: NOW - ago_s, ..exit(&past, ExitReason::Failed) }];
    past
}

#[test]
fn a_job_that_waits_only_for_a_lost_node_is_cancelled_first() {
    let plan = plan(&lost_a_node(16.0)).unwrap();
    let job = plan.replaces.unwrap();
    assert_eq!((job.id, job.is_cancelled), (42, true));
    assert_eq!(job.lost, [cluster::NodeId::from_hostname("vm2")]);
    assert_eq!((plan.attempt.start_step, plan.warnings), (40, vec![]), "no confirmation is needed");
    assert_eq!(plan.summary.last(), Some(&("cancelled first".to_owned(), job.why)));
}

#[test]
fn a_job_that_may_still_train_is_refused() {
    let refused = |past: &Past| coded(&plan(past).unwrap_err());
    let mut silent = lost_a_node(100.0);
    silent.facts.alive = Liveness::Unknown;
    let mut trains = lost_a_node(100.0);
    trains.facts.exits.clear();
    let refusals = [&lost_a_node(14.0), &silent, &trains].map(refused);
    insta::assert_snapshot!(refusals.join("\n\n"));
    let mut ended = lost_a_node(100.0);
    ended.facts.alive = Liveness::Dead;
    assert_eq!(plan(&ended).unwrap().replaces, None);
}

#[test]
fn a_run_whose_ranks_have_ended_can_be_resumed_while_its_supervisor_exits() {
    let mut past = past(45, &[40]);
    past.facts.alive = Liveness::Alive;
    past.facts.exits = vec![exit(&past, ExitReason::Stopped)];
    assert_eq!(plan(&past).unwrap().attempt.start_step, 40);
}

#[test]
fn a_finished_run_without_a_checkpoint_is_not_repeated() {
    let mut past = past(7, &[]);
    past.facts.attempt.as_mut().unwrap().steps = Some(7);
    let refused = plan(&past).unwrap_err();
    assert!(refused.code == ErrorCode::RunFinished && refused.why.contains("all 7 steps are done"), "{refused}");
}

#[test]
fn a_run_without_a_checkpoint_starts_at_step_0_with_a_warning() {
    let plan = plan(&past(7, &[])).unwrap();
    assert_eq!((plan.attempt.start, plan.attempt.start_step), (StartFrom::Random, 0));
    insta::assert_snapshot!(plan.warnings.join("\n"), @"the run has no complete checkpoint: it starts at step 0 and repeats 7 steps");
}

#[test]
fn an_encode_or_a_sample_continues_without_a_checkpoint_and_without_a_warning() {
    let mut past = past(7, &[]);
    for task in ["encode", "sample"] {
        past.run.recipe.insert("task".into(), task.into());
        assert_eq!(warnings_about(&request(&past, ResumeOptions::default()), None), [""; 0], "{task}");
    }
}

#[test]
fn an_incomplete_checkpoint_is_skipped_with_a_warning() {
    let plan = plan(&past(45, &[20, -40])).unwrap();
    assert_eq!(plan.attempt.start_step, 20);
    insta::assert_snapshot!(plan.warnings.join("\n"), @"the checkpoint of step 40 is incomplete and is skipped: it has no manifest.toml: its save did not complete");
}

#[test]
fn an_unreadable_checkpoint_is_skipped_only_on_request() {
    let unreadable = |saved: &[i64]| {
        let mut past = past(60, saved);
        for entry in &mut past.checkpoints {
            if let CheckpointEntry::Incomplete { step, dir, .. } = entry.clone() {
                let why = "manifest.toml: Stale file handle (os error 116)".into();
                *entry = CheckpointEntry::Unreadable { step, dir, why };
            }
        }
        past
    };
    let refusals = [
        plan(&unreadable(&[20, -40])),
        plan(&unreadable(&[-40])),
        plan_with(&unreadable(&[20, -40]), step(40), 2),
        plan_with(&unreadable(&[-40]), step(40), 2),
    ];
    insta::assert_snapshot!(refusals.map(|refusal| coded(&refusal.unwrap_err())).join("\n\n"));

    let chosen = plan_with(&unreadable(&[20, -40]), step(20), 2).unwrap();
    assert_eq!(chosen.attempt.start_step, 20);
    insta::assert_snapshot!(chosen.warnings.join("\n"), @"the checkpoint of step 40 cannot be read and is skipped: manifest.toml: Stale file handle (os error 116)");
    assert_eq!(plan(&unreadable(&[-20, 40])).unwrap().attempt.start_step, 40);
}

#[test]
fn a_step_can_be_chosen_if_its_checkpoint_is_complete() {
    let plan = plan_with(&past(60, &[20, 40]), step(20), 2).unwrap();
    assert_eq!(plan.attempt.start_step, 20);
    let repeats = |warning: &String| ["21", "40"].iter().all(|step| warning.contains(step));
    assert!(matches!(&plan.warnings[..], [only] if repeats(only)), "{:?}", plan.warnings);

    let refusals = [
        plan_with(&past(60, &[20, -40]), step(40), 2),
        plan_with(&past(60, &[20, 40]), step(30), 2),
        plan_with(&past(60, &[]), step(30), 2),
    ];
    insta::assert_snapshot!(refusals.map(|refusal| coded(&refusal.unwrap_err())).join("\n\n"));
}

#[test]
fn a_finished_run_is_refused_unless_its_steps_are_raised() {
    let mut finished = past(60, &[40, 60]);
    finished.facts.exits = vec![exit(&finished, ExitReason::Finished)];
    insta::assert_snapshot!(coded(&plan(&finished).unwrap_err()));

    // An earlier resume had stopped the run at step 41.
    let mut short = past(41, &[41]);
    short.facts.attempt.as_mut().unwrap().steps = Some(41);
    assert!(plan(&short).unwrap_err().fix.contains("train.steps=110`"), "41 done, and the recipe has 60");

    let longer = ResumeOptions { steps: Some(100), ..ResumeOptions::default() };
    let raised = plan_with(&finished, longer, 2).unwrap();
    assert_eq!((raised.attempt.start_step, raised.attempt.steps), (60, Some(100)));

    // Once raised, they stay raised.
    let mut again = past(80, &[60, 80]);
    again.facts.attempt.as_mut().unwrap().steps = Some(100);
    assert_eq!(plan(&again).unwrap().attempt.steps, Some(100));
}

#[test]
fn a_longer_run_keeps_stretches_or_restarts_its_schedule() {
    let finished = past(60, &[40, 60]);
    let longer = |schedule| {
        let plan = plan_with(&finished, ResumeOptions { steps: Some(100), schedule, ..ResumeOptions::default() }, 2);
        plan.unwrap_or_else(|failure| panic!("{failure}"))
    };
    let rates = |plan: &LaunchPlan| {
        let recipe = plan.attempt.effective(&plan.run.recipe().unwrap());
        let (o, total) = (&recipe.optimizer, recipe.train.length.steps().unwrap());
        [60, 62, 99].map(|step| o.lr_at(o.schedule, o.lr, step, total))
    };
    let chosen = [None, Some(ScheduleChoice::Stretch), Some(ScheduleChoice::Keep), Some(ScheduleChoice::Restart)];
    let [silent, stretched, kept, restarted] = chosen.map(longer);
    assert_eq!(rates(&silent), rates(&stretched), "stretching is the default");
    assert!(rates(&stretched)[0] > 3e-4, "{:?}", rates(&stretched));
    assert_eq!(rates(&kept), [1e-5; 3]);
    let [first, later, _] = rates(&restarted);
    assert_eq!((first, later), (1e-3 / 5.0, 1e-3 * 3.0 / 5.0), "the warm-up of five steps");
    assert!(!kept.starts_at_once(), "the recipe changes");
    let rows = |plan: &LaunchPlan| {
        let of = |(name, _): &&(String, String)| name == "schedule" || name == "or" || name == "changed";
        plan.summary.iter().filter(of).map(|(name, text)| format!("{name:<9} {text}")).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!([&silent, &stretched, &kept, &restarted].map(rows).join("\n\n"));
    // Once kept, it stays kept.
    let mut again = past(80, &[60, 80]);
    again.run = kept.run.clone();
    again.facts.attempt.as_mut().unwrap().steps = Some(100);
    assert_eq!(rates(&plan(&again).unwrap()), [1e-5; 3]);
    // A plain resume and a schedule that does not depend on the steps have no row.
    assert_eq!(rows(&plan(&past(45, &[40])).unwrap()), "");
    let constant = plan_changed(
        &finished,
        ResumeOptions { steps: Some(100), ..ResumeOptions::default() },
        2,
        &["optimizer.schedule=constant"],
    );
    assert!(!rows(&constant.unwrap()).contains("schedule "));
}

#[test]
fn only_training_with_the_embedded_trainer_has_a_schedule() {
    let mut past = past(60, &[40]);
    past.run.recipe = crate::fixtures::command().to_table();
    let options = ResumeOptions { schedule: Some(ScheduleChoice::Keep), ..ResumeOptions::default() };
    let refused = plan_with(&past, options, 2).unwrap_err();
    assert_eq!((refused.code, refused.fix.as_str()), (ErrorCode::InvalidArgument, "remove --schedule"));
    let new = plan_with(
        &self::past(60, &[60]),
        ResumeOptions { steps: Some(90), schedule: Some(ScheduleChoice::Restart), ..ResumeOptions::default() },
        2,
    );
    let mut again = self::past(90, &[90]);
    again.run = new.unwrap().run;
    let weights = plan_with(&again, kind(ResumeKind::WeightsOnly), 2).unwrap();
    assert_eq!(weights.run.recipe().unwrap().optimizer.schedule_start, 0, "the steps of a new run begin at 0");
}

#[test]
fn the_proposed_steps_are_round_and_more_than_those_done() {
    let proposed = [(200, 200), (41, 200), (80, 200), (7, 20), (1234, 1234), (1000, 1), (0, 0), (u64::MAX, 5)];
    let proposed = proposed.map(|(done, length)| longer(done, length));
    assert_eq!(proposed, [400, 250, 280, 27, 2500, 1100, 1, u64::MAX]);
    let done = past(60, &[60]);
    let steps = |step| longer_steps(&done.run.recipe().unwrap(), done.facts.attempt.as_ref(), step);
    assert_eq!([59, 60].map(steps), [None, Some(120)]);
}

#[test]
fn fresh_data_keeps_the_optimizer() {
    let past = past(45, &[40]);
    let plan = plan_with(&past, kind(ResumeKind::FreshData), 2).unwrap();
    assert_eq!(plan.attempt.start, StartFrom::CheckpointFreshData { run: past.run.id, step: 40 });
    assert_eq!((plan.attempt.number, plan.attempt.start_step), (2, 40));
}

#[test]
fn weights_only_makes_a_new_run_and_does_not_change_the_old_one() {
    let parent = past(60, &[40, 60]);
    let plan = plan_with(&parent, kind(ResumeKind::WeightsOnly), 2).unwrap();
    assert!(plan.is_new_run());
    assert_eq!(plan.run.lineage, Some(Lineage { run: parent.run.id, step: 60 }));
    assert_eq!(plan.run.stage, parent.run.stage);
    assert_eq!((plan.attempt.number, plan.attempt.start_step), (1, 0));
    assert_eq!(plan.attempt.start, StartFrom::Weights { path: parent.latest.unwrap().dir });
}

#[test]
fn fresh_data_of_a_command_makes_a_new_run_that_loads_the_checkpoint() {
    let mut parent = past(60, &[40, 60]);
    let mut recipe = crate::fixtures::command();
    parent.run.recipe = recipe.to_table();
    let refused = plan_with(&parent, kind(ResumeKind::FreshData), 2).unwrap_err();
    insta::assert_snapshot!(coded(&refused));

    recipe.command.fresh_data = vec!["--start-from-scratch".into()];
    parent.run.recipe = recipe.to_table();
    let plan = plan_with(&parent, kind(ResumeKind::FreshData), 2).unwrap();
    let folder = parent.latest.clone().unwrap().dir;
    assert!(plan.is_new_run());
    assert_eq!(plan.run.lineage, Some(Lineage { run: parent.run.id.clone(), step: 60 }));
    assert_eq!((plan.attempt.number, plan.attempt.start_step), (1, 0));
    assert!(plan.nodes[0].script.contains(&format!("train.py --load {folder} --start-from-scratch")));

    // The new run fails before it saves: it starts in the same way again.
    let mut failed = past(0, &[]);
    failed.run = plan.run.clone();
    failed.dir = plan.dir.clone();
    failed.facts.attempt = Some(plan.attempt);
    let again = plan_with(&failed, ResumeOptions::default(), 2).unwrap();
    assert_eq!(again.attempt.number, 2);
    assert!(again.nodes[0].script.contains(&format!("train.py --load {folder} --start-from-scratch")));
}

#[test]
fn weights_of_a_command_start_a_new_run_of_it() {
    let mut parent = past(60, &[40, 60]);
    parent.run.recipe = crate::fixtures::command().to_table();
    let plan = plan_with(&parent, kind(ResumeKind::WeightsOnly), 2).unwrap();
    let folder = parent.latest.unwrap().dir;
    assert!(plan.nodes[0].script.contains(&format!("train.py --ckpt-path {folder}")));
}

#[test]
fn weights_of_a_run_without_a_checkpoint_are_refused() {
    for kind in [kind(ResumeKind::WeightsOnly), kind(ResumeKind::FreshData)] {
        let failure = plan_with(&past(7, &[]), kind, 2).unwrap_err();
        assert_eq!(failure.code, ErrorCode::NoCheckpoint);
    }
}

#[test]
fn another_number_of_ranks_reshards_the_model_with_a_warning() {
    let plan = plan_with(&past(45, &[40]), ResumeOptions::default(), 4).unwrap();
    assert_eq!(plan.attempt.mesh, Mesh { dp_replicate: 1, dp_shard: 4, tp: 1 });
    insta::assert_snapshot!(plan.warnings.join("\n"));
}

#[test]
fn another_number_of_ranks_does_not_change_tp() {
    let mut past = past(45, &[40]);
    let mut recipe = past.run.recipe().unwrap();
    recipe.mesh = Mesh { dp_replicate: 1, dp_shard: 1, tp: 2 };
    past.run.recipe = recipe.to_table();
    past.facts.attempt.as_mut().unwrap().mesh = recipe.mesh;
    let plan = plan_with(&past, ResumeOptions::default(), 4).unwrap();
    assert_eq!(plan.attempt.mesh, Mesh { dp_replicate: 1, dp_shard: 2, tp: 2 });
    let refusal = plan_with(&past, ResumeOptions::default(), 3).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::InvalidMesh);
    assert!(refusal.why.contains("1 × 1 × 2"), "{refusal}");
}

#[test]
fn ranks_that_do_not_divide_the_replicas_or_the_batch_are_refused_with_the_arithmetic() {
    let batch = coded(&plan_with(&past(45, &[40]), ResumeOptions::default(), 3).unwrap_err());
    let mut replicated = past(45, &[40]);
    let mut recipe = replicated.run.recipe().unwrap();
    recipe.mesh = Mesh { dp_replicate: 2, dp_shard: 1, tp: 1 };
    replicated.run.recipe = recipe.to_table();
    replicated.facts.attempt.as_mut().unwrap().mesh = recipe.mesh;
    let replicas = coded(&plan_with(&replicated, ResumeOptions::default(), 3).unwrap_err());
    insta::assert_snapshot!([batch, replicas].join("\n\n"));
}

#[test]
fn a_resume_uses_as_many_ranks_as_the_run_last_had() {
    let mut past = past(45, &[40]);
    assert_eq!(last_ranks(&past.run, None), 2);
    past.facts.attempt.as_mut().unwrap().mesh.dp_shard = 4;
    assert_eq!(last_ranks(&past.run, past.facts.attempt.as_ref()), 4);
    assert_eq!(plan_with(&past, ResumeOptions::default(), 4).unwrap().warnings, [""; 0], "the mesh did not change");
}

#[test]
fn a_resume_keeps_the_nodes_and_ranks_of_the_attempt_and_takes_newer_logins_of_its_nodes() {
    let logins = |hostfile: &str| crate::fixtures::cluster(hostfile, 2).target.logins;
    let mut attempt = past(45, &[40]).facts.attempt.unwrap();
    assert_eq!(
        crate::Target::for_resume(&attempt, &logins("gpu01 slots=8\n")),
        None,
        "the login of the node is not known"
    );

    attempt.logins = logins("vm\n");
    let target = crate::Target::for_resume(&attempt, &[]).unwrap();
    assert_eq!(target, crate::Target::of(&attempt));
    let listed = logins("gpu01 slots=8\nada@vm:2222 slots=8\n");
    let target = crate::Target::for_resume(&attempt, &listed).unwrap();
    assert_eq!((target.nodes, target.logins), (crate::Target::of(&attempt).nodes, vec![listed[1].clone()]));
}

#[test]
fn another_trainer_gives_a_warning() {
    let mut past = past(45, &[40]);
    past.run.trainer_sha256 = Some("ffffffff00".into());
    insta::assert_snapshot!(plan(&past).unwrap().warnings.join("\n"));
}
