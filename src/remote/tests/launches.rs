//! Launches on this machine: a run starts exactly once, and a launch that fails leaves no files. The trainer is the fake
//! `tests/fakes/bin/vidtui-train`, whose ranks sleep.

#![expect(clippy::unwrap_used, reason = "a failed unwrap shows its line")]

mod demo;

use std::fs;
use std::time::{Duration, Instant};

use cluster::NodeId;
use demo::{Demo, FakeTrainer};
use plan::{KillHow, LaunchPlan, RunKill, Weights, kill};
use remote::{
    Patience, execute_kill, execute_launch, find_weights, local_transports, pid_files, read_facts, this_node,
};
use rundir::{Attempt, AttemptWhy, ErrorCode, ExitReason, Failure, Lineage, Run, RunDir, StartFrom};
use runstate::{Liveness, RunState, derive};

/// Launches, and waits for the supervisor. On a busy machine, its start may take longer than a launch waits.
fn launch(plan: &LaunchPlan) -> Result<RunDir, Failure> {
    let dir = execute_launch(plan, None, &mut local_transports().unwrap(), &|_| {})?;
    wait_for_supervisor(&dir);
    Ok(dir)
}

fn wait_for_supervisor(dir: &RunDir) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while pid_files(dir).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the supervisor wrote no process file");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn state(dir: &RunDir) -> RunState {
    let facts = read_facts(dir, &dir.read_run().unwrap()).unwrap();
    derive(&facts, rundir::now_s())
}

fn end(dir: &RunDir, how: KillHow) {
    let plan: RunKill =
        kill(&dir.read_run().unwrap().id, dir, how, &pid_files(dir).unwrap(), None, Vec::new()).unwrap();
    let patience = Patience { stop: Duration::from_secs(60), ..Patience::default() };
    let report = execute_kill(&plan.into(), &mut local_transports().unwrap(), &patience, &mut |_| {});
    assert!(report.all_gone(), "{report:?}");
}

#[test]
fn a_launched_run_is_complete_on_disk_alive_in_its_own_session_and_can_be_stopped() {
    let demo = Demo::new();
    let plan = demo.launch();
    let dir = launch(&plan).unwrap();
    let (run, attempt) = (dir.read_run().unwrap(), dir.read_attempt(1).unwrap());
    assert!(run.created_s > plan.run.created_s, "its time is not that of the plan");
    assert_eq!(Run { created_s: plan.run.created_s, ..run }, plan.run);
    assert!(attempt.started_s > plan.attempt.started_s, "its start time is not that of the plan");
    assert_eq!(Attempt { started_s: plan.attempt.started_s, ..attempt }, plan.attempt);
    let script = fs::read_to_string(dir.launch_script(1, &plan.nodes[0].node)).unwrap();
    assert_eq!(script, plan.nodes[0].script);
    assert_eq!(demo.entries(), [plan.run.id.to_string()], "only the run");

    let (file, alive) = pid_files(&dir).unwrap().remove(0);
    assert_eq!((alive, file.ranks.len()), (Liveness::Alive, 2));
    let session = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(file.pid))).unwrap();
    assert_eq!(session.as_raw(), file.pid, "it has its own session, which outlives the console");
    assert_eq!(state(&dir), RunState::Starting, "it has done no step");

    end(&dir, KillHow::Stop);
    assert_eq!(pid_files(&dir).unwrap()[0].1, Liveness::Dead);
    assert_eq!(dir.read_exit(&file.node, 1).unwrap().unwrap().reason, ExitReason::Stopped);
    assert_eq!(state(&dir), RunState::Stopped);
}

#[test]
fn exactly_one_of_many_consoles_that_start_the_same_attempt_succeeds() {
    let demo = Demo::new();
    let dir = launch(&demo.launch()).unwrap();
    end(&dir, KillHow::Kill);
    let plan = demo.resume(&dir).unwrap();
    assert_eq!(plan.attempt.number, 2);
    let results: Vec<Result<RunDir, Failure>> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8).map(|_| scope.spawn(|| launch(&plan))).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    let losers: Vec<&Failure> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(losers.len(), 7, "{results:?}");
    for failure in losers {
        assert_eq!(failure.code, ErrorCode::AttemptConflict);
        assert!(failure.why.contains("ada@vm"), "{failure}");
    }
    let log = fs::read_to_string(dir.supervisor_log(&plan.nodes[0].node, 2)).unwrap();
    assert_eq!(log.matches("started by").count(), 1, "one supervisor was started");
    assert_eq!(dir.attempt_numbers().unwrap(), [1, 2]);
    let hidden = fs::read_dir(&dir.root)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().as_encoded_bytes()[0] == b'.');
    assert_eq!(hidden.count(), 0, "the losers left temporary folders");
    end(&dir, KillHow::Kill);
}

#[test]
fn a_plan_made_before_another_console_resumed_the_run_is_refused() {
    let demo = Demo::new();
    let dir = launch(&demo.launch()).unwrap();
    end(&dir, KillHow::Kill);
    let ours = demo.resume(&dir).unwrap();
    let theirs = demo.resume(&dir).unwrap();
    launch(&theirs).unwrap();
    assert_eq!(launch(&ours).unwrap_err().code, ErrorCode::AttemptConflict);

    // A plan for the next attempt is refused too, because the run is alive.
    let mut later = ours;
    later.attempt.number = 3;
    assert_eq!(launch(&later).unwrap_err().code, ErrorCode::RunIsAlive);
    assert_eq!(demo.resume(&dir).unwrap_err().code, ErrorCode::RunIsAlive);
    end(&dir, KillHow::Kill);
}

#[test]
fn a_killed_run_counts_as_stopped_and_starts_from_random_weights_without_a_checkpoint() {
    let demo = Demo::new();
    let dir = launch(&demo.launch()).unwrap();
    end(&dir, KillHow::Kill);
    assert_eq!(state(&dir), RunState::Stopped);
    let plan = demo.resume(&dir).unwrap();
    assert_eq!((plan.attempt.why, plan.attempt.start), (AttemptWhy::Resume, StartFrom::Random));
    assert_eq!((plan.attempt.start_step, plan.warnings.len()), (0, 1));
}

#[test]
fn a_stop_file_stops_one_attempt_and_not_the_next() {
    let demo = Demo::new();
    let dir = launch(&demo.launch()).unwrap();
    fs::write(dir.stop_file(), "").unwrap();
    assert_eq!(state(&dir), RunState::Stopping);
    end(&dir, KillHow::Stop);
    launch(&demo.resume(&dir).unwrap()).unwrap();
    assert_eq!(state(&dir), RunState::Starting);
    end(&dir, KillHow::Kill);
}

#[test]
fn a_supervisor_that_exits_at_once_is_reported_with_the_end_of_its_log() {
    let demo = Demo::with(FakeTrainer::Die);
    let plan = demo.launch();
    let failure = launch(&plan).unwrap_err();
    assert_eq!(failure.code, ErrorCode::StartFailed);
    assert!(failure.why.ends_with("cannot bind 127.0.0.1:29500: address already in use"), "{failure}");
    assert!(failure.fix.contains("0001-supervisor.log"), "{failure}");
    // The state shows the same failure later, and the run can be resumed.
    assert_eq!(state(&plan.dir), RunState::Failed(failure));
    assert_eq!(demo.resume(&plan.dir).unwrap().attempt.number, 2);
}

#[test]
fn a_run_planned_a_minute_ago_that_starts_slowly_is_starting_and_cannot_be_resumed() {
    let demo = Demo::with(FakeTrainer::TrainLater);
    let mut plan = demo.launch();
    plan.attempt.started_s -= 60.0;
    let dir = execute_launch(&plan, None, &mut local_transports().unwrap(), &|_| {}).unwrap();
    assert!(pid_files(&dir).unwrap().is_empty());
    assert_eq!(state(&dir), RunState::Starting);
    assert_eq!(demo.resume(&dir).unwrap_err().code, ErrorCode::RunIsAlive);
    fs::write(dir.root.join("go"), "").unwrap();
    wait_for_supervisor(&dir);
    end(&dir, KillHow::Kill);
}

#[test]
fn a_full_disk_is_refused_before_files_are_made() {
    let mut demo = Demo::new();
    demo.recipe.train.length = recipe::Length::Steps(10_000_000_000);
    demo.recipe.checkpoint.interval = 1;
    demo.recipe.checkpoint.keep_last = 0;
    let failure = launch(&demo.launch()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::DiskFull);
    assert_eq!(demo.entries(), [""; 0]);
}

#[test]
fn a_runs_folder_that_is_a_file_is_refused() {
    let mut demo = Demo::new();
    fs::write(demo.runs.join("file"), "").unwrap();
    demo.runs = demo.runs.join("file");
    let failure = launch(&demo.launch()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Io);
    assert!(failure.why.contains(demo.runs.as_str()), "{failure}");
}

#[test]
fn weights_that_are_missing_or_incomplete_are_refused_before_files_are_made() {
    let mut demo = Demo::new();
    let step = demo.runs.join("elsewhere/checkpoints/step-00000060");
    demo.init = Some(step.clone());
    let missing = launch(&demo.launch()).unwrap_err();
    fs::create_dir_all(&step).unwrap();
    let incomplete = launch(&demo.launch()).unwrap_err();
    for failure in [missing, incomplete] {
        assert!(failure.why.contains("manifest.toml"), "{failure}");
    }
    assert_eq!(demo.entries(), ["elsewhere"]);
}

#[test]
fn weights_of_another_shape_are_refused_before_files_are_made() {
    let mut demo = Demo::new();
    let parent = RunDir::new(demo.runs.join("parent"));
    demo.save(&parent, &demo.launch().run.id, 60);
    demo.init = Some(parent.step_dir(60));
    demo.recipe.model.num_layers = 2;
    let failure = launch(&demo.launch()).unwrap_err();
    assert_eq!(failure.code, rundir::ErrorCode::TensorMismatch);
    assert!(failure.why.contains("blocks.1.norm1.linear.weight"), "{failure}");
    assert_eq!(demo.entries(), ["parent"]);
}

#[test]
fn a_resume_starts_from_the_newest_complete_checkpoint() {
    let demo = Demo::new();
    let dir = launch(&demo.launch()).unwrap();
    end(&dir, KillHow::Stop);
    let run = dir.read_run().unwrap().id;
    demo.save(&dir, &run, 20);
    demo.save(&dir, &run, 40);
    fs::remove_file(dir.step_dir(40).join("state.toml")).unwrap();
    let plan = demo.resume(&dir).unwrap();
    assert_eq!(plan.attempt.start, StartFrom::Checkpoint { run, step: 20 });
    launch(&plan).unwrap();
    assert_eq!(pid_files(&dir).unwrap()[0].1, Liveness::Alive);
    end(&dir, KillHow::Kill);
}

#[test]
fn weights_are_found_by_step_directory_run_folder_and_run_id() {
    let demo = Demo::new();
    let plan = demo.launch();
    let dir = launch(&plan).unwrap();
    end(&dir, KillHow::Kill);
    let id = plan.run.id.as_str();
    let here = std::env::current_dir().unwrap();
    let paths = [(demo.runs.as_str(), "RUNS"), (id, "RUN"), (here.to_str().unwrap(), "HERE")];
    let refusals = [id, dir.checkpoints().as_str(), "no/such/place"].map(|given| {
        let text = find_weights(given, &demo.runs, recipe::TrainerKind::Embedded).unwrap_err().to_string();
        paths.iter().fold(text, |text, (path, name)| text.replace(path, name))
    });
    insta::assert_snapshot!(refusals.join("\n\n"));

    demo.save(&dir, &plan.run.id, 20);
    let expected = Weights { path: dir.step_dir(20), lineage: Some(Lineage { run: plan.run.id.clone(), step: 20 }) };
    for given in [dir.step_dir(20).as_str(), dir.root.as_str(), id] {
        assert_eq!(find_weights(given, &demo.runs, recipe::TrainerKind::Embedded).unwrap(), expected, "{given}");
    }
}

#[test]
fn a_node_that_is_not_this_machine_is_refused_before_files_are_made() {
    let mut demo = Demo::new();
    demo.hostname = "ml-64-003".into();
    let failure = launch(&demo.launch()).unwrap_err();
    assert_eq!(failure.code, ErrorCode::NodeUnreachable);
    assert_eq!(demo.entries(), [""; 0]);
}

#[test]
fn a_trainer_that_was_deleted_is_refused_before_files_are_made() {
    let demo = Demo::new();
    let mut plan = demo.launch();
    plan.trainer.path = demo.runs.join("vidtui-train");
    assert_eq!(launch(&plan).unwrap_err().code, ErrorCode::TrainerUnusable);
    assert_eq!(demo.entries(), [""; 0]);
}

#[test]
fn processes_of_another_node_are_unknown_and_of_another_boot_dead() {
    let demo = Demo::new();
    let dir = launch(&demo.launch()).unwrap();
    let run = dir.read_run().unwrap().id;
    let (file, _) = pid_files(&dir).unwrap().remove(0);
    let mut here = this_node().unwrap();
    assert_eq!(remote::liveness(&dir, &run, &file, &here), Liveness::Alive);
    here.boot_id = "00000000-0000-0000-0000-000000000000".into();
    assert_eq!(remote::liveness(&dir, &run, &file, &here), Liveness::Dead);
    here.node = NodeId::new("ml-64-003").unwrap();
    assert_eq!(remote::liveness(&dir, &run, &file, &here), Liveness::Unknown);
    end(&dir, KillHow::Kill);
}
