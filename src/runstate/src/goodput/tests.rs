//! Tests of goodput: the parts into which it splits the wall time of a run.

use super::*;
use crate::RunState;
use proptest::prelude::*;
use rundir::fixtures::{attempt, node, run, temp, write_attempt};
use rundir::{Error, ExitFile, ExitReason, Failure, LineAppender, MetricSample, RunDir, SCHEMA, Tail};

fn part(number: u32, started_s: f64, start_step: u64, ended: Option<(f64, EndCause)>) -> AttemptTimes {
    AttemptTimes { number, started_s, start_step, ended }
}

fn line(attempt: u32, step: u64, t: f64, step_s: f64) -> StepTimes {
    StepTimes { attempt, step, t, step_s, ..StepTimes::default() }
}

fn of(attempts: &[AttemptTimes], steps: &[StepTimes], events: &[Event], now_s: f64) -> Goodput {
    goodput(&Record { attempts, steps: &log(steps), events, is_stepless: false, is_over: true }, now_s)
}

fn log(steps: &[StepTimes]) -> StepLog {
    let mut log = StepLog::default();
    log.extend(steps.iter().copied());
    log
}

/// Reads all lines of a run again.
fn read(reader: &mut GoodputReader, dir: &RunDir, state: &RunState, now_s: f64) -> Result<Option<Goodput>, Error> {
    let lines = Tail::new(dir.metrics()).poll_all().unwrap().0;
    reader.read(&log(&lines), state, now_s)
}

fn parts(goodput: &Goodput) -> Vec<f64> {
    let Goodput { counted_s, starting_s, repeated_s, checkpoints_s, samples_s, stalled_s, unlogged_s, down, .. } =
        goodput;
    let own = [counted_s, starting_s, repeated_s, checkpoints_s, samples_s, stalled_s, unlogged_s];
    own.into_iter().copied().chain(down.iter().map(|down| down.seconds)).collect()
}

fn event(t: f64, attempt: u32, kind: EventKind) -> Event {
    Event::new(t, attempt, None, kind)
}

fn saved(t: f64, seconds: f64) -> Event {
    event(t, 1, EventKind::CheckpointSaved { path: "/c".into(), bytes: 1, seconds })
}

#[test]
fn an_uninterrupted_run_loses_its_start_its_saves_and_its_samples() {
    let steps = [
        line(1, 1, 1020.0, 5.0),
        line(1, 2, 1025.0, 5.0),
        StepTimes { checkpoint_s: 1.0, ..line(1, 3, 1031.0, 5.0) },
        StepTimes { sample_s: 2.0, ..line(1, 4, 1038.0, 5.0) },
        // The same line once more, with the time of the samples after it.
        StepTimes { sample_s: 5.0, ..line(1, 4, 1038.0, 5.0) },
    ];
    let attempts = [part(1, 1000.0, 0, Some((1050.0, EndCause::Finished)))];
    let found = of(&attempts, &steps, &[saved(1046.0, 4.0)], 9e9);
    let wanted = Goodput {
        wall_s: 50.0,
        counted_s: 20.0,
        // 15 s before the first step, and 50 - 38 - 3 - 4 = 5 s after the last save and sample.
        starting_s: 20.0,
        checkpoints_s: 5.0,
        samples_s: 5.0,
        ..Goodput::default()
    };
    assert_eq!(found, wanted);
    assert_eq!(found.share(), Some(0.4));
}

#[test]
fn steps_that_a_later_attempt_repeats_do_not_count() {
    let failed = EndCause::Failed(ErrorCode::NodeLost);
    let attempts = [part(1, 1000.0, 0, Some((1050.0, failed))), part(2, 1060.0, 1, None)];
    let steps = [
        line(1, 1, 1020.0, 10.0),
        line(1, 2, 1030.0, 10.0),
        line(1, 3, 1040.0, 10.0),
        // The plan was to continue after step 1, and the event records step 2. The event counts.
        line(2, 3, 1090.0, 10.0),
        line(2, 4, 1100.0, 10.0),
    ];
    let resumed = EventKind::Resumed { from_step: 2, of_run: run().id };
    let found = of(&attempts, &steps, &[event(1075.0, 2, resumed)], 1105.0);
    let wanted = Goodput {
        wall_s: 105.0,
        // Steps 1 to 4, and 5 s of the step in progress.
        counted_s: 45.0,
        starting_s: 10.0 + 20.0,
        // Step 3 of attempt 1, and the 10 s after it.
        repeated_s: 20.0,
        down: vec![Down { cause: failed, times: 1, seconds: 10.0 }],
        ..Goodput::default()
    };
    assert_eq!(found, wanted);
}

#[test]
fn a_resume_between_two_logged_steps_repeats_a_part_of_their_time() {
    let attempts = [part(1, 0.0, 0, Some((100.0, EndCause::Killed))), part(2, 100.0, 15, None)];
    let steps = [line(1, 10, 50.0, 5.0), line(1, 20, 100.0, 5.0), line(2, 20, 130.0, 5.0)];
    let found = of(&attempts, &steps, &[], 130.0);
    assert_eq!((found.counted_s, found.repeated_s, found.starting_s), (50.0 + 25.0 + 25.0, 25.0, 5.0));
}

#[test]
fn a_step_that_takes_much_longer_than_the_median_is_a_stall() {
    let attempts = [part(1, 0.0, 0, None)];
    let steps = [line(1, 1, 2.0, 2.0), line(1, 2, 4.0, 2.0), line(1, 3, 104.0, 100.0), line(1, 4, 106.0, 2.0)];
    let within = of(&attempts, &steps, &[], 116.0);
    assert_eq!((within.stalled_s, within.counted_s), (98.0, 8.0 + 10.0));
    let now = of(&attempts, &steps, &[], 206.0);
    assert_eq!((now.stalled_s, now.counted_s), (198.0, 8.0));
    let ended = of(&[part(1, 0.0, 0, Some((206.0, EndCause::Killed)))], &steps, &[], 9e9);
    assert_eq!(ended, now);
}

#[test]
fn the_saves_and_evaluations_of_a_command_are_those_of_its_events() {
    let attempts = [part(1, 0.0, 0, None)];
    let of_log = |step, t| StepTimes { is_from_log: true, ..line(1, step, t, 10.0) };
    let steps = [of_log(1, 30.0), of_log(2, 40.0), of_log(3, 58.0), of_log(4, 75.0)];
    let events =
        [saved(49.0, 8.0), event(59.0, 1, EventKind::EvaluationStarted), event(65.0, 1, EventKind::EvaluationEnded)];
    let found = of(&attempts, &steps, &events, 75.0);
    assert_eq!((found.starting_s, found.checkpoints_s, found.samples_s), (20.0, 8.0, 6.0));
    assert_eq!(found.counted_s, 41.0);
    // A save in the background delays no step.
    let in_background = of(&attempts, &[of_log(1, 30.0), of_log(2, 40.0), of_log(3, 50.0)], &[saved(49.0, 8.0)], 50.0);
    assert_eq!((in_background.checkpoints_s, in_background.counted_s), (0.0, 30.0));
}

#[test]
fn a_run_whose_steps_are_not_logged_has_no_share_but_its_time_between_attempts() {
    let attempts = [part(1, 0.0, 0, Some((60.0, EndCause::Unknown))), part(2, 100.0, 0, None)];
    let record =
        Record { attempts: &attempts, steps: &StepLog::default(), events: &[], is_stepless: true, is_over: false };
    let found = goodput(&record, 120.0);
    assert_eq!((found.wall_s, found.unlogged_s, found.share()), (120.0, 80.0, None));
    assert_eq!(found.down, [Down { cause: EndCause::Unknown, times: 1, seconds: 40.0 }]);
}

#[test]
fn losses_are_sorted_and_add_up_over_runs() {
    let mut all = Goodput { wall_s: 10.0, counted_s: 6.0, starting_s: 1.0, repeated_s: 3.0, ..Goodput::default() };
    let down = Down { cause: EndCause::Stopped, times: 2, seconds: 5.0 };
    let other = Goodput { wall_s: 10.0, counted_s: 5.0, down: vec![down], ..Goodput::default() };
    all.add(&other);
    all.add(&other);
    assert_eq!((all.wall_s, all.share()), (30.0, Some(16.0 / 30.0)));
    assert_eq!(all.losses()[0], (Loss::Down(EndCause::Stopped), 10.0));
    assert_eq!(all.losses()[1..], [(Loss::Repeated, 3.0), (Loss::Starting, 1.0)]);
    assert_eq!(all.down[0].times, 4);
}

#[test]
fn the_reader_takes_the_end_of_an_attempt_from_its_exit_files() {
    let (_keep, dir) = temp();
    dir.write_run(&run()).unwrap();
    let mut first = attempt(1, 0, &["ml-1", "ml-2"]);
    std::fs::create_dir_all(dir.attempt_dir(1)).unwrap();
    dir.write_attempt(&first).unwrap();
    let mut lines = LineAppender::open(&dir.metrics()).unwrap();
    let sample = |attempt, step, t| MetricSample { attempt, step, t, step_s: 10.0, ..MetricSample::default() };
    lines.append(&sample(1, 1, 1020.0)).unwrap();
    lines.append(&sample(1, 2, 1030.0)).unwrap();
    let mut reader = GoodputReader::new(&dir, &run()).unwrap();
    let live = read(&mut reader, &dir, &RunState::Running, 1035.0).unwrap().unwrap();
    assert_eq!((live.wall_s, live.counted_s, live.starting_s), (30.0, 20.0, 10.0), "until its last line");

    let exit = |name, failure: Failure| ExitFile {
        schema: SCHEMA,
        attempt: 1,
        node: node(name),
        ended_s: 1040.0,
        reason: ExitReason::Failed,
        first_failure: None,
        failure: Some(failure),
        ranks: vec![],
    };
    for (name, failure) in [
        ("ml-1", Failure::peer_lost(None, "connection reset", "")),
        ("ml-2", Failure::new(ErrorCode::OutOfMemory, "a", "b", "c")),
    ] {
        std::fs::create_dir_all(dir.node_dir(&node(name))).unwrap();
        dir.write_exit(&exit(name, failure)).unwrap();
    }
    let requeued = read(&mut reader, &dir, &RunState::Queued, 1070.0).unwrap().unwrap();
    let cause = EndCause::Failed(ErrorCode::OutOfMemory);
    assert_eq!((requeued.wall_s, requeued.down), (70.0, vec![Down { cause, times: 1, seconds: 30.0 }]));
    let over = read(&mut reader, &dir, &RunState::Stopped, 9e9).unwrap().unwrap();
    assert_eq!((over.wall_s, over.repeated_s), (40.0, 10.0));

    (first.number, first.started_s, first.start_step) = (2, 1100.0, 1);
    std::fs::create_dir_all(dir.attempt_dir(2)).unwrap();
    dir.write_attempt(&first).unwrap();
    lines.append(&sample(2, 2, 1125.0)).unwrap();
    let wanted = Down { cause: EndCause::Failed(ErrorCode::OutOfMemory), times: 1, seconds: 60.0 };
    for mut reader in [reader, GoodputReader::new(&dir, &run()).unwrap()] {
        let resumed = read(&mut reader, &dir, &RunState::Running, 1125.0).unwrap().unwrap();
        assert_eq!(resumed.down, std::slice::from_ref(&wanted));
        assert_eq!((resumed.wall_s, resumed.counted_s, resumed.repeated_s), (125.0, 20.0, 20.0));
        assert_eq!(resumed.starting_s, 10.0 + 15.0);
    }
}

#[test]
fn an_attempt_without_exit_files_ended_with_its_last_line() {
    let (_keep, dir) = temp();
    dir.write_run(&run()).unwrap();
    write_attempt(&dir, 1, 0);
    let mut lines = LineAppender::open(&dir.metrics()).unwrap();
    lines.append(&MetricSample { step: 1, t: 1020.0, step_s: 5.0, ..MetricSample::default() }).unwrap();
    let mut reader = GoodputReader::new(&dir, &run()).unwrap();
    let crashed = RunState::Crashed(Failure::new(ErrorCode::RanksKilled, "a", "b", "c"));
    let found = read(&mut reader, &dir, &crashed, 9e9).unwrap().unwrap();
    assert_eq!((found.wall_s, found.counted_s), (20.0, 5.0));
    assert_eq!(read(&mut reader, &dir, &RunState::Unknown, 9e9).unwrap(), Some(found), "its node cannot be reached");
}

fn any_cause() -> impl Strategy<Value = Option<(f64, EndCause)>> {
    let cause = prop_oneof![Just(EndCause::Stopped), Just(EndCause::Failed(ErrorCode::NodeLost))];
    prop::option::of((0.0..2000.0, cause))
}

fn any_event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        Just(EventKind::CheckpointStarted),
        (0.0..100.0).prop_map(|seconds| EventKind::CheckpointSaved { path: "/c".into(), bytes: 1, seconds }),
        Just(EventKind::EvaluationStarted),
        Just(EventKind::EvaluationEnded),
        (0u64..50).prop_map(|from_step| EventKind::Resumed { from_step, of_run: run().id }),
    ];
    (0.0..2000.0, 1u32..5, kind).prop_map(|(t, attempt, kind)| Event::new(t, attempt, None, kind))
}

fn any_line() -> impl Strategy<Value = StepTimes> {
    (1u32..5, 0u64..60, 0.0..2000.0, 0.0..20.0, 0.0..20.0, 0.0..20.0, any::<bool>()).prop_map(
        |(attempt, step, t, step_s, checkpoint_s, sample_s, is_from_log)| StepTimes {
            attempt,
            step,
            t,
            step_s,
            checkpoint_s,
            sample_s,
            is_from_log,
        },
    )
}

proptest! {
    /// This holds even if clocks disagree and lines are in any order.
    #[test]
    fn no_part_is_negative_and_the_parts_sum_to_the_wall_time(
        starts in prop::collection::vec((0.0..2000.0, 0u64..40, any_cause()), 0..5),
        steps in prop::collection::vec(any_line(), 0..60),
        events in prop::collection::vec(any_event(), 0..12),
        now_s in 0.0..3000.0,
        is_stepless in any::<bool>(),
        is_over in any::<bool>(),
    ) {
        let numbered = (1u32..).zip(starts);
        let attempts: Vec<AttemptTimes> = numbered
            .map(|(number, (started_s, start_step, ended))| AttemptTimes { number, started_s, start_step, ended })
            .collect();
        let record = Record { attempts: &attempts, steps: &log(&steps), events: &events, is_stepless, is_over };
        let found = goodput(&record, now_s);
        prop_assert!(parts(&found).iter().all(|part| *part >= 0.0), "{found:?}");
        let sum: f64 = parts(&found).iter().sum();
        prop_assert!((sum - found.wall_s).abs() < 1e-6 * found.wall_s.max(1.0), "{sum} of {found:?}");
        prop_assert!(found.share().is_none_or(|share| (0.0..=1.0 + 1e-9).contains(&share)));
    }
}
