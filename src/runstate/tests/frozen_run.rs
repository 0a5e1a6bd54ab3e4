//! Opens a run directory that was written with version 1 of the formats. Every later version must open it.
//!
//! `tests/fixtures/runs/v1` never changes: a new version of the formats gets a folder of its own beside it.

#![expect(clippy::unwrap_used, reason = "a fixture that cannot be read is a failed test")]

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::*;
use runstate::*;

const ID: &str = "2026-11-20T0340-demo-2s-k7f2";
const NOW: f64 = 1_795_147_000.0;

fn frozen() -> Utf8PathBuf {
    Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/runs/v1")).to_owned()
}

fn run() -> RunDir {
    RunDir::new(frozen().join(ID))
}

fn node() -> NodeId {
    NodeId::new("ml-1").unwrap()
}

#[test]
fn the_frozen_run_is_listed_and_its_recipe_is_valid() {
    let runs = list_runs(&frozen());
    assert_eq!(runs, [Ok(run())]);
    let frozen = run().read_run().unwrap();
    assert_eq!(frozen.id.as_str(), ID);
    assert_eq!((frozen.stage.as_deref(), frozen.start.clone()), (Some("2s"), StartFrom::Random));
    let recipe = frozen.recipe().unwrap();
    assert_eq!((recipe.train.length, recipe.mesh.world()), (recipe::Length::Steps(20), 2));
}

#[test]
fn the_frozen_attempts_are_read() {
    let run = run();
    assert_eq!(run.attempt_numbers().unwrap(), [1, 2]);
    let first = run.read_attempt(1).unwrap();
    assert_eq!((first.why, first.start_step, first.placement.ranks.len()), (AttemptWhy::Launch, 0, 2));
    let second = run.latest_attempt().unwrap().unwrap();
    assert_eq!((second.number, second.why, second.start_step), (2, AttemptWhy::Resume, 8));
    assert_eq!(second.start, StartFrom::Checkpoint { run: RunId::parse(ID).unwrap(), step: 8 });
    assert!(std::fs::read_to_string(run.launch_script(1, &node())).unwrap().starts_with("#!"));
}

#[test]
fn the_frozen_metrics_are_merged_without_their_torn_last_line() {
    let mut tail = Tail::<MetricSample>::new(run().metrics());
    let batch = tail.poll().unwrap();
    // The first attempt was killed in the middle of step 13, and the second ended that line before it began its own.
    assert_eq!(batch.bad.len(), 1);
    let mut history = History::new();
    history.extend(batch.items);
    let counts: Vec<(u32, u64)> = history.effective().iter().map(|s| (s.attempt, s.step)).collect();
    let wanted: Vec<(u32, u64)> = (1..=8).map(|step| (1, step)).chain((9..=14).map(|step| (2, step))).collect();
    assert_eq!(counts, wanted);
    assert_eq!(history.superseded().len(), 4);
    assert_eq!(history.effective()[10].loss, None, "step 11 was not finite");
    assert_eq!(history.last().unwrap().mem_peak_gib_by_rank, [0.75, 0.5]);
    assert!(tail.offset() < std::fs::metadata(run().metrics()).unwrap().len(), "the last line is torn");
}

#[test]
fn the_frozen_events_of_the_run_and_its_node_are_read() {
    let events = read_events(&run()).unwrap();
    let names: Vec<String> =
        events.iter().map(|e| serde_json::to_value(e).unwrap()["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [
            "started",
            "checkpoint_started",
            "checkpoint_saved",
            "rank_died",
            "started",
            "resumed",
            "loss_not_finite",
            "step_skipped",
            "spare_node_offered",
            "checkpoint_started",
        ]
    );
    let EventKind::Other { text, .. } = &events[8].kind else { panic!("{:?}", events[8]) };
    assert_eq!(text, "spare: ml-9");
}

#[test]
fn one_frozen_checkpoint_is_complete_and_the_other_is_not() {
    let entries = other_trainers::checkpoints(&run()).unwrap();
    assert_eq!(entries.iter().map(CheckpointEntry::step).collect::<Vec<_>>(), [8, 14]);
    assert!(matches!(&entries[1], CheckpointEntry::Incomplete { step: 14, .. }));
    let latest = other_trainers::latest(&run()).unwrap();
    assert_eq!((latest.step, latest.attempt), (8, 1));
    let checkpoint = Checkpoint::open(&latest.dir).unwrap();
    checkpoint.verify_checksums().unwrap();
    assert_eq!(checkpoint.state().unwrap().samples_seen, 32);
    let tensor = checkpoint.tensor("exp_avg/final.norm.bias").unwrap();
    assert_eq!((tensor.elements(), tensor.slices.len()), (Some(6), 2));
}

#[test]
fn the_frozen_run_crashed() {
    let run = run();
    let pid = run.read_pid(&node(), 2).unwrap().unwrap();
    assert_eq!((pid.pid, pid.ranks.len()), (5200, 2));
    let exit = run.read_exit(&node(), 1).unwrap().unwrap();
    assert_eq!((exit.reason, exit.first_failure), (ExitReason::Failed, Some(1)));
    assert_eq!(exit.ranks[1].stderr_tail, ["step 12", "Killed"]);

    let mut facts = RunFacts {
        attempt: run.latest_attempt().unwrap(),
        alive: Liveness::Dead,
        steps_total: 20,
        ..RunFacts::default()
    };
    facts.exits.extend(run.read_exit(&node(), 2).unwrap());
    read_events(&run).unwrap().iter().for_each(|event| facts.see_event(event));
    facts.newest = NewestCache::default().newest(&run, []).unwrap();
    facts.newest.clone().metrics.iter().for_each(|sample| facts.see_metric(sample));
    let summary = RunSummary::new(run.read_run().unwrap(), run.clone(), &facts, NOW);
    assert!(matches!(summary.state, RunState::Crashed(_)), "{:?}", summary.state);
    assert_eq!((summary.step, summary.steps_total), (14, 20));
    let log = Tail::<String>::new(run.rank_log(&node(), 2, 1)).poll().unwrap();
    assert_eq!(log.items.last().map(String::as_str), Some("step 14"));
}
