//! Derives the state of a run from facts.

use crate::facts::{Liveness, RunFacts, RunState};
use crate::job_end::{ended_by_queue, ended_without_processes, is_about_to_begin};
use cluster::NodeId;
use cluster::slurm::JobStatus;
use rundir::{Attempt, ErrorCode, EventKind, ExitFile, ExitReason, Failure};

/// Derives the state of a run at `now`, Unix seconds.
///
/// A Slurm job that waits or begins after a requeue counts most, then the exit files of supervisors, then the trainer's
/// events, then whether processes exist.
pub fn derive(facts: &RunFacts, now: f64) -> RunState {
    let Some(attempt) = &facts.attempt else { return RunState::New };
    if facts.job.as_ref().is_some_and(JobStatus::is_waiting) {
        return RunState::Queued;
    }
    if is_about_to_begin(facts) {
        return RunState::Starting;
    }
    if let Some(ended) = ended_by_exit_files(facts, attempt) {
        // If Slurm ended the job, that is the cause: it ends the supervisors one by one, and the later ones record the
        // loss of the earlier ones.
        let outside = matches!(ended, RunState::Failed(_)).then(|| ended_by_queue(facts)).flatten();
        return outside.unwrap_or(ended);
    }
    match facts.alive {
        Liveness::Dead => dead(facts, attempt, now),
        Liveness::Alive => alive(facts, now),
        Liveness::Unknown => unknown(facts, attempt, now),
    }
}

/// Derives the state if nodes cannot be reached. Their files are on a shared disk and may still show steps.
fn unknown(facts: &RunFacts, attempt: &Attempt, now: f64) -> RunState {
    match (ended_by_event(facts), now - facts.attempt_activity_s(attempt) <= facts.stall_after_s()) {
        (Some(ended), _) => ended,
        (None, true) => alive(facts, now),
        (None, false) => RunState::Unknown,
    }
}

/// Derives how the attempt ended from its exit files. One failed node fails the run at once; any other end needs all nodes.
fn ended_by_exit_files(facts: &RunFacts, attempt: &Attempt) -> Option<RunState> {
    let exits = || facts.exits.iter().filter(|e| e.attempt == attempt.number);
    if facts.is_independent {
        return independent_end(facts, attempt);
    }
    // The other nodes fail because of the first one, so the reason is the earliest failure that is not a consequence.
    let failed = exits().filter(|e| e.reason == ExitReason::Failed);
    let follows = |e: &ExitFile| e.failure.as_ref().is_some_and(Failure::is_consequence);
    if let Some(exit) = failed.min_by(|a, b| follows(a).cmp(&follows(b)).then(a.ended_s.total_cmp(&b.ended_s))) {
        return Some(RunState::Failed(exit.failure.clone().unwrap_or_else(|| unexplained(exit))));
    }
    let everywhere = attempt.placement.ranks.iter().all(|place| exits().any(|exit| exit.node == place.node));
    if !everywhere || exits().next().is_none() {
        return None;
    }
    let finished = exits().all(|exit| exit.reason == ExitReason::Finished);
    Some(if finished { RunState::Finished } else { RunState::Stopped })
}

/// Derives the end of an attempt whose ranks work independently, when all nodes have ended except lost ones. Only the
/// completed work counts, not which rank did it.
fn independent_end(facts: &RunFacts, attempt: &Attempt) -> Option<RunState> {
    let exits = || facts.exits.iter().filter(|e| e.attempt == attempt.number);
    let has_ended = |node: &NodeId| exits().any(|exit| exit.node == *node) || facts.lost.contains(node);
    if exits().next().is_none() || !attempt.placement.ranks.iter().all(|place| has_ended(&place.node)) {
        return None;
    }
    if facts.has_finished {
        return Some(RunState::Finished);
    }
    let failed = exits().filter(|e| e.reason == ExitReason::Failed);
    let first = failed.min_by(|a, b| a.ended_s.total_cmp(&b.ended_s));
    Some(match first {
        Some(exit) => RunState::Failed(exit.failure.clone().unwrap_or_else(|| unexplained(exit))),
        None => RunState::Stopped,
    })
}

/// Makes a failure for an exit file that records no failure.
fn unexplained(exit: &ExitFile) -> Failure {
    let first = exit.ranks.iter().find(|r| Some(r.rank) == exit.first_failure).or(exit.ranks.first());
    let Some(rank) = first else {
        return Failure::new(
            ErrorCode::RankFailed,
            "the run failed",
            format!("node {} recorded no reason", exit.node),
            format!("read nodes/{}/logs in the run's folder", exit.node.file_name()),
        );
    };
    let how = match (rank.code, rank.signal) {
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (Some(code), None) => format!("ended with exit code {code}"),
        (None, None) => "ended".into(),
    };
    let last = rank.stderr_tail.last().map_or(String::new(), |line| format!("; the last line of its log: {line}"));
    Failure::new(
        if rank.signal.is_some() { ErrorCode::RankKilled } else { ErrorCode::RankFailed },
        format!("rank {} failed", rank.rank),
        format!("it {how} on node {}{last}", exit.node),
        format!("read the log of rank {}, then resume", rank.rank),
    )
}

fn ended_by_event(facts: &RunFacts) -> Option<RunState> {
    if facts.is_independent {
        // The end of one rank is not the end of the run.
        return facts.has_finished.then_some(RunState::Finished);
    }
    match &facts.last_event.as_ref()?.kind {
        EventKind::Finished => Some(RunState::Finished),
        EventKind::Stopped { .. } => Some(RunState::Stopped),
        EventKind::Failed { failure } => Some(RunState::Failed(failure.clone())),
        _ => None,
    }
}

fn dead(facts: &RunFacts, attempt: &Attempt, now: f64) -> RunState {
    let ended = ended_by_event(facts);
    let outside = if matches!(ended, None | Some(RunState::Failed(_))) { ended_by_queue(facts) } else { None };
    if let Some(ended) = outside.or(ended) {
        return ended;
    }
    if let Some(ended) = facts.job.as_ref().and_then(|status| ended_without_processes(facts, status, attempt)) {
        return ended;
    }
    if facts.starting_until_s().is_some_and(|until_s| now < until_s) {
        return RunState::Starting;
    }
    let why = match facts.last_metric {
        Some((step, _)) => format!("its processes ended after step {step} without recording why"),
        None => "its processes ended before the first step without recording why".into(),
    };
    RunState::Crashed(Failure::new(
        ErrorCode::Crashed,
        format!("attempt {} crashed", attempt.number),
        why,
        "check whether the node restarted or ran out of memory, read the logs in nodes/*/logs, then resume",
    ))
}

fn alive(facts: &RunFacts, now: f64) -> RunState {
    if facts.stopping || ended_by_event(facts).is_some() {
        return RunState::Stopping;
    }
    if facts.checkpointing_since.is_some() {
        return RunState::Saving;
    }
    if facts.last_metric.is_none() {
        return if facts.is_stepless { RunState::Running } else { RunState::Starting };
    }
    match facts.inactive_since_s(now) {
        Some(since_s) if facts.idles() && !is_suspended(facts) => RunState::Stalled { since_s },
        _ => RunState::Running,
    }
}

/// Returns whether Slurm has suspended the job of the run.
fn is_suspended(facts: &RunFacts) -> bool {
    let job = facts.job.as_ref().and_then(JobStatus::job);
    job.is_some_and(|job| job.state.is_halted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Load;
    use proptest::prelude::*;
    use rundir::fixtures::{attempt, node};
    use rundir::{Event, Heartbeat, MetricSample, RankExit, RequestSource, SCHEMA, Unwritten};

    /// A run of two nodes, started at second 1000, that logged step 40 at second 1100.
    fn running() -> RunFacts {
        RunFacts {
            attempt: Some(attempt(2, 20, &["ml-1", "ml-2"])),
            alive: Liveness::Alive,
            last_metric: Some((40, 1100.0)),
            median_step_s: Some(2.0),
            steps_total: 100,
            ..RunFacts::default()
        }
    }

    fn event(t: f64, kind: EventKind) -> Event {
        Event::new(t, 2, None, kind)
    }

    fn exit(name: &str, reason: ExitReason) -> ExitFile {
        ExitFile {
            schema: SCHEMA,
            attempt: 2,
            node: node(name),
            ended_s: 1105.0,
            reason,
            first_failure: None,
            failure: None,
            ranks: vec![],
        }
    }

    fn failed(name: &str, ended_s: f64, why: &str) -> ExitFile {
        let failure = Some(Failure::new(ErrorCode::RankFailed, "the run failed", why, "read the log"));
        ExitFile { ended_s, failure, ..exit(name, ExitReason::Failed) }
    }

    #[test]
    fn a_run_whose_metrics_cannot_be_written_has_the_step_of_its_heartbeat() {
        let (_keep, run) = rundir::fixtures::temp();
        let node = node("ml-1");
        std::fs::create_dir_all(run.node_dir(&node)).unwrap();
        let why = Unwritten {
            since_s: 1101.0,
            path: run.metrics(),
            code: ErrorCode::DiskFull,
            why: "No space left on device".into(),
            lines: 3,
            lost: 0,
        };
        let beat = |step, unwritten| Heartbeat {
            v: SCHEMA,
            rank: 0,
            t: 1990.0,
            step,
            phase: "backward".into(),
            phase_t: 1989.0,
            unwritten,
            failed_save: None,
        };
        let seen = |step, unwritten| {
            run.write_heartbeat(&node, 2, &beat(step, unwritten)).unwrap();
            let mut facts = running();
            facts.see_heartbeat(&run);
            facts
        };
        let full = seen(400, Some(why.clone()));
        assert_eq!((full.last_metric, full.unwritten.clone()), (Some((400, 1990.0)), Some(why)));
        assert_eq!(derive(&full, 2000.0), RunState::Running);
        let idle = seen(400, None);
        assert_eq!(idle.last_metric, Some((40, 1100.0)));
        assert!(matches!(derive(&idle, 2000.0), RunState::Stalled { .. }));
    }

    #[test]
    fn a_command_whose_steps_are_not_logged_is_running_once_its_processes_exist() {
        let silent = RunFacts { is_stepless: true, last_metric: None, median_step_s: None, ..running() };
        assert_eq!(derive(&silent, 100_000.0), RunState::Running);
        let dead = RunFacts { alive: Liveness::Dead, ..silent.clone() };
        assert!(matches!(derive(&dead, 100_000.0), RunState::Crashed(_)));
        assert_eq!(derive(&RunFacts { is_stepless: false, ..silent }, 100_000.0), RunState::Starting);
    }

    #[test]
    fn independent_ranks_finish_the_run_even_if_some_are_lost() {
        let mut facts = RunFacts { is_independent: true, ..running() };
        facts.exits = vec![failed("ml-1", 1105.0, "killed")];
        assert_eq!(derive(&facts, 1106.0), RunState::Running, "the other node continues");
        assert!(facts.lost_nodes(2000.0).is_empty());
        // The other node has done the remaining items.
        facts.see_event(&event(1110.0, EventKind::Finished));
        facts.exits.push(exit("ml-2", ExitReason::Finished));
        assert_eq!(derive(&facts, 1111.0), RunState::Finished);
    }

    #[test]
    fn independent_ranks_fail_the_run_only_if_all_are_lost() {
        let mut facts = RunFacts { is_independent: true, ..running() };
        let failure = Failure::new(ErrorCode::NodeLost, "node ml-2 was lost", "no heartbeat", "check it");
        facts.see_event(&event(1101.0, EventKind::NodeLost { node: node("ml-2"), failure }));
        assert_eq!(derive(&facts, 1106.0), RunState::Running);
        assert_eq!(facts.lost_nodes(1106.0), [node("ml-2")]);
        // The lost node cannot be reached and writes no exit file.
        facts.alive = Liveness::Unknown;
        facts.exits = vec![failed("ml-1", 1105.0, "killed")];
        let RunState::Failed(failure) = derive(&facts, 1106.0) else { panic!("{:?}", derive(&facts, 1106.0)) };
        assert_eq!(failure.why, "killed");
        facts.exits = vec![exit("ml-1", ExitReason::Stopped)];
        assert_eq!(derive(&facts, 1106.0), RunState::Stopped);
    }

    #[test]
    fn a_run_without_an_attempt_is_new() {
        assert_eq!(derive(&RunFacts::default(), 1e9), RunState::New);
    }

    #[test]
    fn a_run_whose_processes_exist_is_starting_until_the_first_step() {
        let facts = RunFacts { last_metric: None, median_step_s: None, ..running() };
        assert_eq!(derive(&facts, 1001.0), RunState::Starting);
        assert_eq!(derive(&facts, 5000.0), RunState::Starting, "loading a large model takes minutes");
    }

    #[test]
    fn a_run_whose_supervisors_have_not_all_started_is_starting_for_three_minutes() {
        let facts = |alive| RunFacts { alive, is_incomplete: true, last_metric: None, ..running() };
        for now in [1009.0, 1060.0, 1170.0] {
            assert_eq!(derive(&facts(Liveness::Dead), now), RunState::Starting);
        }
        assert_eq!(derive(&facts(Liveness::Unknown), 1009.0), RunState::Starting);
        assert!(matches!(derive(&facts(Liveness::Dead), 1181.0), RunState::Crashed(_)));
        assert_eq!(facts(Liveness::Dead).starting_until_s(), Some(1180.0));
        assert_eq!(facts(Liveness::Alive).starting_until_s(), None);
    }

    #[test]
    fn a_run_whose_supervisors_all_started_and_ended_crashed_at_once() {
        let facts = RunFacts { alive: Liveness::Dead, last_metric: None, ..running() };
        assert!(matches!(derive(&facts, 1001.0), RunState::Crashed(_)));
    }

    #[test]
    fn a_run_that_logs_is_running() {
        assert_eq!(derive(&running(), 1101.0), RunState::Running);
        assert_eq!(derive(&running(), 1090.0), RunState::Running, "clocks of two machines differ");
    }

    #[test]
    fn short_steps_are_stalled_after_thirty_seconds_without_activity() {
        assert_eq!(derive(&running(), 1130.0), RunState::Running);
        assert_eq!(derive(&running(), 1130.1), RunState::Stalled { since_s: 1100.0 });
    }

    #[test]
    fn long_steps_are_stalled_after_five_median_steps_without_activity() {
        let facts = RunFacts { median_step_s: Some(60.0), ..running() };
        assert_eq!(derive(&facts, 1400.0), RunState::Running);
        assert_eq!(derive(&facts, 1400.1), RunState::Stalled { since_s: 1100.0 });
    }

    #[test]
    fn a_run_that_logs_nothing_is_not_stalled_while_power_or_cpu_use_show_work() {
        let at_work = [Load::Power { now_w: 350.0, before_w: 600.0 }, Load::Cpu { most: 0.9 }];
        let idle = [Load::Power { now_w: 75.0, before_w: 600.0 }, Load::Cpu { most: 0.02 }, Load::Unknown];
        let state = |load| derive(&RunFacts { load, ..running() }, 1200.0);
        assert_eq!(at_work.map(state), [RunState::Running, RunState::Running]);
        assert!(idle.map(state).iter().all(|state| *state == RunState::Stalled { since_s: 1100.0 }));
    }

    #[test]
    fn a_run_that_logs_every_tenth_step_is_stalled_later() {
        let facts = RunFacts { median_step_s: Some(20.0), steps_per_line: 10, ..running() };
        assert_eq!(derive(&facts, 1100.0 + 280.0), RunState::Running);
        assert_eq!(derive(&facts, 1100.0 + 280.1), RunState::Stalled { since_s: 1100.0 });
    }

    #[test]
    fn an_evaluation_is_stalled_after_ten_minutes_without_gpu_power() {
        let mut facts = running();
        facts.see_event(&event(1101.0, EventKind::EvaluationStarted));
        let drawing = |now_w| RunFacts { load: Load::Power { now_w, before_w: 650.0 }, ..facts.clone() };
        assert_eq!(derive(&drawing(120.0), 1700.0), RunState::Running, "it may be reading its prompts");
        assert_eq!(derive(&drawing(120.0), 1702.0), RunState::Stalled { since_s: 1101.0 });
        assert_eq!(derive(&drawing(260.0), 5000.0), RunState::Running, "it decodes");
        assert_eq!(derive(&facts, 5000.0), RunState::Running, "the power of its GPUs was not measured");
        facts.see_event(&event(5001.0, EventKind::EvaluationEnded));
        assert_eq!(derive(&facts, 5030.0), RunState::Running);
        assert_eq!(derive(&facts, 5032.0), RunState::Stalled { since_s: 5001.0 });
    }

    #[test]
    fn an_event_counts_as_activity() {
        let mut facts = running();
        facts.see_event(&event(1120.0, EventKind::LossNotFinite));
        assert_eq!(derive(&facts, 1140.0), RunState::Running);
        assert_eq!(derive(&facts, 1151.0), RunState::Stalled { since_s: 1120.0 });
    }

    #[test]
    fn a_run_that_saves_is_never_stalled() {
        let mut facts = running();
        facts.see_event(&event(1101.0, EventKind::CheckpointStarted));
        assert_eq!(derive(&facts, 5000.0), RunState::Saving);
        let saved = EventKind::CheckpointSaved { path: "x".into(), bytes: 1, seconds: 2.0 };
        facts.see_event(&event(5001.0, saved));
        assert_eq!(derive(&facts, 5002.0), RunState::Running);
    }

    #[test]
    fn a_step_ends_a_save_that_logged_no_end() {
        let mut facts = running();
        facts.see_event(&event(1101.0, EventKind::CheckpointStarted));
        facts.see_metric(&MetricSample { attempt: 2, step: 41, t: 1110.0, ..MetricSample::default() });
        assert_eq!(derive(&facts, 1111.0), RunState::Running);
    }

    #[test]
    fn a_run_with_a_stop_request_is_stopping_even_while_it_saves() {
        let mut facts = running();
        facts.see_event(&event(1101.0, EventKind::Stopping { source: RequestSource::Term, why: "SIGTERM".into() }));
        facts.see_event(&event(1102.0, EventKind::CheckpointStarted));
        assert_eq!(derive(&facts, 1103.0), RunState::Stopping);
        facts.see_event(&event(1104.0, EventKind::Stopped { source: RequestSource::Term, why: "SIGTERM".into() }));
        assert_eq!(derive(&facts, 1105.0), RunState::Stopping, "its processes still exist");
    }

    #[test]
    fn a_run_is_finished_or_stopped_once_every_node_has_an_exit_file() {
        let one = RunFacts { exits: vec![exit("ml-1", ExitReason::Finished)], ..running() };
        assert_eq!(derive(&one, 1106.0), RunState::Running);
        let both = |reason| RunFacts {
            alive: Liveness::Dead,
            exits: vec![exit("ml-1", ExitReason::Finished), exit("ml-2", reason)],
            ..running()
        };
        assert_eq!(derive(&both(ExitReason::Finished), 1106.0), RunState::Finished);
        assert_eq!(derive(&both(ExitReason::Stopped), 1106.0), RunState::Stopped);
        assert_eq!(derive(&both(ExitReason::Killed), 1106.0), RunState::Stopped);
    }

    #[test]
    fn one_failed_node_fails_the_run_and_the_first_failure_is_the_reason() {
        let exits = vec![failed("ml-1", 1105.0, "a peer is gone"), failed("ml-2", 1101.0, "out of memory")];
        let first = exits[1].failure.clone().unwrap();
        assert_eq!(derive(&RunFacts { exits, ..running() }, 1106.0), RunState::Failed(first));
    }

    #[test]
    fn a_failure_without_a_record_is_derived_from_the_exit_status_of_the_rank() {
        let rank = |rank, code, signal, line: &str| RankExit {
            rank,
            code,
            signal,
            last_step: Some(40),
            ended_s: 1105.0,
            stderr_tail: vec![line.into()],
        };
        let exit = ExitFile {
            first_failure: Some(1),
            ranks: vec![rank(0, Some(1), None, "peer is gone"), rank(1, None, Some(9), "step 40")],
            ..exit("ml-1", ExitReason::Failed)
        };
        let facts = RunFacts { exits: vec![exit], ..running() };
        let RunState::Failed(failure) = derive(&facts, 1106.0) else { panic!() };
        assert_eq!((failure.code, &failure.what[..]), (ErrorCode::RankKilled, "rank 1 failed"));
        assert!(["signal 9", "ml-1", "step 40"].iter().all(|part| failure.why.contains(part)), "{failure}");
    }

    #[test]
    fn a_node_that_writes_no_exit_file_after_the_others_failed_is_lost() {
        let lost = |exits: Vec<ExitFile>, now| RunFacts { exits, ..running() }.lost_nodes(now);
        let failed = || failed("ml-1", 1105.0, "node ml-2 was lost");
        assert_eq!(lost(vec![failed()], 1120.1), [node("ml-2")]);
        assert_eq!(lost(vec![failed()], 1119.0), [], "it may still end its ranks");
        assert_eq!(lost(vec![failed(), exit("ml-2", ExitReason::Failed)], 2000.0), []);
        assert_eq!(lost(vec![exit("ml-1", ExitReason::Killed)], 2000.0), [], "a kill ends it, node by node");
        assert_eq!(lost(vec![ExitFile { attempt: 1, ..failed() }], 2000.0), []);
        assert_eq!(lost(Vec::new(), 2000.0), []);
    }

    #[test]
    fn exit_files_and_events_of_an_earlier_attempt_are_ignored() {
        let mut facts = running();
        facts.exits = ["ml-1", "ml-2"].map(|name| ExitFile { attempt: 1, ..exit(name, ExitReason::Stopped) }).into();
        facts.see_event(&Event::new(
            1100.5,
            1,
            None,
            EventKind::Stopping { source: RequestSource::Term, why: "SIGTERM".into() },
        ));
        facts.see_metric(&MetricSample { attempt: 1, step: 99, t: 1200.0, ..MetricSample::default() });
        assert_eq!(derive(&facts, 1101.0), RunState::Running);
        assert_eq!(facts.last_metric, Some((40, 1100.0)));
    }

    #[test]
    fn a_run_whose_processes_ended_without_an_exit_file_crashed() {
        let facts = RunFacts { alive: Liveness::Dead, ..running() };
        let RunState::Crashed(failure) = derive(&facts, 1101.0) else { panic!() };
        assert_eq!(failure.code, ErrorCode::Crashed);
        assert!(failure.why.contains("step 40"), "{failure}");
    }

    #[test]
    fn the_last_event_of_the_trainer_counts_when_there_is_no_exit_file() {
        let end = |kind, alive| {
            let mut facts = RunFacts { alive, ..running() };
            facts.see_event(&event(1101.0, kind));
            derive(&facts, 2000.0)
        };
        let failure = Failure::new(ErrorCode::SaveFailed, "a", "b", "c");
        for alive in [Liveness::Dead, Liveness::Unknown] {
            assert_eq!(end(EventKind::Finished, alive), RunState::Finished);
            assert_eq!(
                end(EventKind::Stopped { source: RequestSource::Term, why: "x".into() }, alive),
                RunState::Stopped
            );
            assert_eq!(end(EventKind::Failed { failure: failure.clone() }, alive), RunState::Failed(failure.clone()));
        }
        assert_eq!(end(EventKind::LossNotFinite, Liveness::Unknown), RunState::Unknown);
    }

    #[test]
    fn the_state_is_unknown_only_when_nodes_are_unreachable_and_files_show_no_activity() {
        let facts = RunFacts { alive: Liveness::Unknown, ..running() };
        assert_eq!(derive(&facts, 1101.0), RunState::Running);
        assert_eq!(derive(&facts, 1131.0), RunState::Unknown);
    }

    #[test]
    fn a_state_is_a_json_object_with_its_name() {
        let json = |state: &RunState| serde_json::to_string(state).unwrap();
        assert_eq!(json(&RunState::Running), r#"{"state":"running"}"#);
        assert_eq!(json(&RunState::Stalled { since_s: 5.0 }), r#"{"state":"stalled","since_s":5.0}"#);
        let failed = RunState::Failed(Failure::new(ErrorCode::SaveFailed, "a", "b", "c"));
        assert_eq!(json(&failed), r#"{"state":"failed","code":"save-failed","what":"a","why":"b","fix":"c"}"#);
        assert_eq!(serde_json::from_str::<RunState>(&json(&failed)).unwrap(), failed);
    }

    proptest! {
        #[test]
        fn a_run_with_an_exit_file_on_every_node_has_ended(
            reasons in prop::array::uniform2(0usize..4), alive in 0usize..3, stopping: bool, saving: bool, now in 0.0..1e10f64,
        ) {
            let reason = [ExitReason::Finished, ExitReason::Stopped, ExitReason::Failed, ExitReason::Killed];
            let facts = RunFacts {
                alive: [Liveness::Alive, Liveness::Dead, Liveness::Unknown][alive],
                stopping,
                checkpointing_since: saving.then_some(1101.0),
                exits: vec![exit("ml-1", reason[reasons[0]]), exit("ml-2", reason[reasons[1]])],
                ..running()
            };
            let state = derive(&facts, now);
            prop_assert!(matches!(state, RunState::Finished | RunState::Stopped | RunState::Failed(_)), "{state:?}");
        }
    }
}
