//! Computes the goodput of a run from its directory. Reads each event once; the caller provides the logged steps.

use super::{AttemptTimes, EndCause, Goodput, Record, StepLog, goodput};
use crate::RunState;
use cluster::NodeId;
use recipe::Task;
use rundir::{Attempt, Error, Event, EventKind, ExitFile, ExitReason, Run, RunDir, Tail};
use std::collections::BTreeMap;

/// Follows one run and computes its goodput.
#[derive(Debug)]
pub struct GoodputReader {
    dir: RunDir,
    /// Whether steps are not logged, without and with a logged step.
    is_stepless: [bool; 2],
    events: Tail<Event>,
    marks: Vec<Event>,
    /// The attempts that have ended, which do not change any more.
    ended: BTreeMap<u32, AttemptTimes>,
}

impl GoodputReader {
    /// Makes a reader. Returns `None` for a run that does not train, was imported, or only watches a program: its log does not tell how the
    /// program spent its time.
    pub fn new(dir: &RunDir, run: &Run) -> Option<Self> {
        let trains_here = run.task() == Task::Train && run.imported.is_none() && run.attached.is_none();
        trains_here.then(|| Self {
            dir: dir.clone(),
            is_stepless: [run.is_stepless(0), run.is_stepless(1)],
            events: Tail::new(dir.events()),
            marks: Vec::new(),
            ended: BTreeMap::new(),
        })
    }

    /// Returns how the time of the run was spent until `now_s`. Returns `None` before the first attempt.
    ///
    /// * `steps` — all logged steps of the run. The console has parsed them for its charts, so they are not read twice.
    ///
    /// # Errors
    /// When a file of the run exists and cannot be read.
    pub fn read(&mut self, steps: &StepLog, state: &RunState, now_s: f64) -> Result<Option<Goodput>, Error> {
        let (events, restarted) =
            self.events.poll_all().map_err(|error| Error::io("read", self.events.path(), error))?;
        if restarted {
            self.marks.clear();
        }
        self.marks.extend(events.into_iter().filter(|event| is_mark(&event.kind)));
        // A running run, and one in an unknown state, counts until its last line: it is within a step, and the clock of
        // this machine may differ from those of the nodes.
        let numbers = self.dir.attempt_numbers()?;
        let has_steps = numbers.iter().any(|number| !steps.of(*number).is_empty());
        let is_stepless = self.is_stepless[usize::from(has_steps)];
        let ends_with_lines = matches!(state, RunState::Running | RunState::Unknown) && !is_stepless;
        let is_over = state.is_end() || ends_with_lines;
        let mut attempts = Vec::new();
        for number in &numbers {
            if let Some(known) = self.ended.get(number) {
                attempts.push(*known);
                continue;
            }
            // An attempt whose file is damaged or not complete yet is left out.
            let Ok(attempt) = self.dir.read_attempt(*number) else { continue };
            let is_last = Some(number) == numbers.last();
            let has_ended = !is_last || is_over || (*state == RunState::Queued && self.has_exit(&attempt));
            let times = self.times(steps, &attempt, has_ended);
            if !is_last {
                self.ended.insert(*number, times);
            }
            attempts.push(times);
        }
        let record = Record { attempts: &attempts, steps, events: &self.marks, is_stepless, is_over };
        Ok((!attempts.is_empty()).then(|| goodput(&record, now_s)))
    }

    /// Returns whether an attempt whose job was requeued has ended.
    fn has_exit(&self, attempt: &Attempt) -> bool {
        let mut places = attempt.placement.ranks.iter();
        places.any(|place| matches!(self.dir.read_exit(&place.node, attempt.number), Ok(Some(_))))
    }

    fn times(&self, steps: &StepLog, attempt: &Attempt, has_ended: bool) -> AttemptTimes {
        AttemptTimes {
            number: attempt.number,
            started_s: attempt.started_s,
            start_step: attempt.start_step,
            ended: has_ended.then(|| self.end_of(steps, attempt)),
        }
    }

    /// Returns when and how an attempt ended: from its exit files or, without them, from its last line or event.
    fn end_of(&self, steps: &StepLog, attempt: &Attempt) -> (f64, EndCause) {
        let by_node = attempt.placement.by_node();
        let mut nodes = by_node.into_iter().map(|(node, _)| node);
        let read = |node: &NodeId| self.dir.read_exit(node, attempt.number).ok().flatten();
        // The other files are read only if the first one does not contain the cause: there may be hundreds.
        let mut exits: Vec<ExitFile> = nodes.next().and_then(read).into_iter().collect();
        if exits.first().is_none_or(ExitFile::is_consequence) {
            exits.extend(nodes.filter_map(read));
        }
        let last_s = exits.iter().map(|exit| exit.ended_s).reduce(f64::max);
        let activity = || {
            let lines = steps.of(attempt.number).iter().map(|line| line.t);
            let events = self.marks.iter().filter(|event| event.attempt == attempt.number).map(|event| event.t);
            lines.chain(events).fold(attempt.started_s, f64::max)
        };
        let cause = exits.iter().filter(|exit| !exit.is_consequence()).map(cause_of_exit).max_by_key(severity);
        let failed = exits.iter().map(cause_of_exit).max_by_key(severity);
        (
            last_s.unwrap_or_else(activity),
            cause.or(failed).or_else(|| self.logged_cause(attempt.number)).unwrap_or(EndCause::Unknown),
        )
    }

    fn logged_cause(&self, attempt: u32) -> Option<EndCause> {
        self.marks.iter().rev().filter(|event| event.attempt == attempt).find_map(|event| match &event.kind {
            EventKind::Failed { failure } => Some(EndCause::Failed(failure.code)),
            EventKind::Stopped { .. } => Some(EndCause::Stopped),
            EventKind::Finished => Some(EndCause::Finished),
            _ => None,
        })
    }
}

/// Returns whether the goodput depends on events of this kind. Others, such as removed checkpoints, are not kept.
fn is_mark(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Resumed { .. }
            | EventKind::CheckpointStarted
            | EventKind::CheckpointSaved { .. }
            | EventKind::CheckpointFailed { .. }
            | EventKind::EvaluationStarted
            | EventKind::EvaluationEnded
            | EventKind::Failed { .. }
            | EventKind::Stopped { .. }
            | EventKind::Finished
    )
}

fn cause_of_exit(exit: &ExitFile) -> EndCause {
    match (exit.reason, &exit.failure) {
        (ExitReason::Finished, _) => EndCause::Finished,
        (ExitReason::Stopped, _) => EndCause::Stopped,
        (ExitReason::Killed, _) => EndCause::Killed,
        (ExitReason::Failed, Some(failure)) => EndCause::Failed(failure.code),
        (ExitReason::Failed, None) => EndCause::Unknown,
    }
}

/// Orders the ends of nodes: a failure of one node explains the end of the others.
fn severity(cause: &EndCause) -> u8 {
    match cause {
        EndCause::Unknown => 0,
        EndCause::Finished => 1,
        EndCause::Stopped => 2,
        EndCause::Killed => 3,
        EndCause::Failed(_) => 4,
    }
}
