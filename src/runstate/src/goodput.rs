//! How the wall time of a run was spent: steps that counted, and lost time by cause.
//!
//! The time from the first start to the end, or to now, is divided without gaps. So the parts sum to the wall time.

mod read;
#[cfg(test)]
mod tests;

pub use read::GoodputReader;

use crate::facts::{STALL_MIN_S, STALL_STEPS};
use rundir::{ErrorCode, Event, EventKind, StepTimes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The use of the wall time of a training run since its first start, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// From the first start to now, or to the end of the last attempt if it has ended.
    pub wall_s: f64,
    /// Steps that counted.
    pub counted_s: f64,
    /// Starting and loading before the first step of an attempt, and ending after its last step.
    pub starting_s: f64,
    /// Steps that did not count: a later attempt repeated them, or the attempt ended before they were logged.
    pub repeated_s: f64,
    /// Training that waited for checkpoints.
    pub checkpoints_s: f64,
    /// Samples and validation.
    pub samples_s: f64,
    /// Longer without a step than the limit after which a run is stalled, less the expected time of the steps.
    pub stalled_s: f64,
    /// The processes ran, and their steps are not logged: a command trains, and no adapter reads its log.
    pub unlogged_s: f64,
    /// Between attempts, by the end of the attempt before, in the order in which the causes first occurred.
    pub down: Vec<Down>,
}

/// Time between attempts after one kind of end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Down {
    /// How the attempts before ended.
    pub cause: EndCause,
    /// How often.
    pub times: u32,
    /// The time in all.
    pub seconds: f64,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// All steps were done. A later attempt trained longer.
    Finished,
    /// It saved and stopped on request.
    Stopped,
    /// A user killed it.
    Killed,
    /// It failed.
    Failed(ErrorCode),
    /// It recorded no end.
    Unknown,
}

/// Formats the cause as in `--json`: `stopped`, or the code of the failure.
impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(code) => write!(f, "{code}"),
            other => other.serialize(f),
        }
    }
}

/// A part of the wall time that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the fields of Goodput")]
pub enum Loss {
    Starting,
    Repeated,
    Checkpoints,
    Samples,
    Stalled,
    Down(EndCause),
}

/// When an attempt ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttemptTimes {
    /// Its number.
    pub number: u32,
    /// When it was started, Unix seconds.
    pub started_s: f64,
    /// The planned step that it continues from. An event [`EventKind::Resumed`] overrides it.
    pub start_step: u64,
    /// When and how it ended; `None` if that is not recorded, or if it has not ended.
    pub ended: Option<(f64, EndCause)>,
}

impl Goodput {
    /// Returns the share of the wall time in steps that counted. `None` if there was no time, or steps are not logged.
    pub fn share(&self) -> Option<f64> {
        (self.wall_s > 0.0 && self.unlogged_s == 0.0).then(|| self.counted_s / self.wall_s)
    }

    /// Returns the lost time by cause, the longest first. Causes without time are left out.
    pub fn losses(&self) -> Vec<(Loss, f64)> {
        let of_attempts = [
            (Loss::Starting, self.starting_s),
            (Loss::Repeated, self.repeated_s),
            (Loss::Checkpoints, self.checkpoints_s),
            (Loss::Samples, self.samples_s),
            (Loss::Stalled, self.stalled_s),
        ];
        let down = self.down.iter().map(|down| (Loss::Down(down.cause), down.seconds));
        let mut losses: Vec<_> = of_attempts.into_iter().chain(down).filter(|(_, seconds)| *seconds > 0.0).collect();
        losses.sort_by(|a, b| b.1.total_cmp(&a.1));
        losses
    }

    /// Adds the times of another run.
    pub fn add(&mut self, other: &Self) {
        self.wall_s += other.wall_s;
        self.counted_s += other.counted_s;
        self.starting_s += other.starting_s;
        self.repeated_s += other.repeated_s;
        self.checkpoints_s += other.checkpoints_s;
        self.samples_s += other.samples_s;
        self.stalled_s += other.stalled_s;
        self.unlogged_s += other.unlogged_s;
        other.down.iter().for_each(|down| self.add_down(down.cause, down.times, down.seconds));
    }

    fn add_down(&mut self, cause: EndCause, times: u32, seconds: f64) {
        match self.down.iter_mut().find(|down| down.cause == cause) {
            Some(down) => {
                down.times += times;
                down.seconds += seconds;
            }
            None => self.down.push(Down { cause, times, seconds }),
        }
    }
}

/// The logged steps of a run by attempt, each in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepLog {
    by_attempt: BTreeMap<u32, Vec<StepTimes>>,
}

impl StepLog {
    /// Returns the steps of an attempt.
    pub fn of(&self, attempt: u32) -> &[StepTimes] {
        self.by_attempt.get(&attempt).map_or(&[], Vec::as_slice)
    }
}

impl Extend<StepTimes> for StepLog {
    fn extend<I: IntoIterator<Item = StepTimes>>(&mut self, steps: I) {
        steps.into_iter().for_each(|step| self.by_attempt.entry(step.attempt).or_default().push(step));
    }
}

/// The lines of a run from which its goodput is computed.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// By ascending number.
    pub attempts: &'a [AttemptTimes],
    /// The logged steps of all attempts.
    pub steps: &'a StepLog,
    /// The events of rank 0.
    pub events: &'a [Event],
    /// Whether steps are not logged ([`rundir::Run::is_stepless`]).
    pub is_stepless: bool,
    /// Whether the run has ended. Otherwise, the time since the end of the last attempt is lost too.
    pub is_over: bool,
}

/// Computes how the wall time of a run was spent until `now_s`, Unix seconds.
///
/// If several attempts made a step, the highest attempt counts. If times contradict each other because clocks differ, they are limited
/// to their attempt.
pub fn goodput(record: &Record<'_>, now_s: f64) -> Goodput {
    let mut goodput = Goodput::default();
    let median_of_run = || median(record.steps.by_attempt.values().flatten());
    let Some(first) = record.attempts.first() else { return goodput };
    let mut at_s = first.started_s;
    for (index, attempt) in record.attempts.iter().enumerate() {
        let own = record.steps.of(attempt.number);
        let next = record.attempts.get(index + 1);
        let events = || record.events.iter().filter(|event| event.attempt == attempt.number);
        let began_s = attempt.started_s.max(at_s);
        let last_s = own.iter().map(|line| line.t).chain(events().map(|event| event.t)).fold(began_s, f64::max);
        let (ended_s, cause) = match (attempt.ended, next) {
            (Some(end), _) => end,
            (None, Some(_)) => (last_s, EndCause::Unknown),
            (None, None) => (now_s, EndCause::Unknown),
        };
        let limit_s = next.map_or(f64::INFINITY, |next| next.started_s.max(began_s));
        let ended_s = ended_s.clamp(began_s, limit_s);
        let later = record.attempts[index + 1..].iter().filter(|later| !record.steps.of(later.number).is_empty());
        let mut part = AttemptPart {
            goodput: &mut goodput,
            from_step: first_step(attempt, record.events),
            counts_to: later.map(|later| first_step(later, record.events)).min().unwrap_or(u64::MAX),
            step_s: median(own).or_else(median_of_run),
            steps_per_line: 1,
            is_stepless: record.is_stepless,
            events: events().collect(),
        };
        let is_live = attempt.ended.is_none() && next.is_none();
        part.spend(own, began_s, ended_s, if is_live { None } else { Some(cause) });
        if let Some(next) = next {
            let resumed_s = next.started_s.max(ended_s);
            goodput.add_down(cause, 1, resumed_s - ended_s);
        }
        at_s = ended_s;
    }
    if let Some((_, cause)) = record.attempts.last().and_then(|last| last.ended).filter(|_| !record.is_over) {
        let until_s = now_s.max(at_s);
        goodput.add_down(cause, 1, until_s - at_s);
        at_s = until_s;
    }
    goodput.wall_s = at_s - first.started_s;
    goodput
}

/// Returns the step that an attempt began from: the logged one or, if none was logged, the planned one.
fn first_step(attempt: &AttemptTimes, events: &[Event]) -> u64 {
    let resumed = events.iter().filter(|event| event.attempt == attempt.number).find_map(|event| match event.kind {
        EventKind::Resumed { from_step, .. } => Some(from_step),
        _ => None,
    });
    resumed.unwrap_or(attempt.start_step)
}

/// Returns the median seconds of a step, if any were logged.
fn median<'a>(steps: impl IntoIterator<Item = &'a StepTimes>) -> Option<f64> {
    let mut times: Vec<f64> = steps.into_iter().map(|line| line.step_s).filter(|seconds| *seconds > 0.0).collect();
    let middle = times.len() / 2;
    // Selecting is linear: a run may have a million steps.
    (!times.is_empty()).then(|| *times.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// Divides the time of one attempt.
struct AttemptPart<'a> {
    goodput: &'a mut Goodput,
    from_step: u64,
    /// Steps after this one do not count, because a later attempt repeated them.
    counts_to: u64,
    /// The usual seconds of a step.
    step_s: Option<f64>,
    /// The most steps between two logged ones.
    steps_per_line: u64,
    is_stepless: bool,
    events: Vec<&'a Event>,
}

impl AttemptPart<'_> {
    /// Divides the time from `began_s` to `ended_s`. `cause` is `None` if the attempt has not ended.
    fn spend(&mut self, lines: &[StepTimes], began_s: f64, ended_s: f64, cause: Option<EndCause>) {
        let (mut at_s, mut at_step) = (began_s, self.from_step);
        let mut before: Option<StepTimes> = None;
        // The time of samples after the last line is logged with a correction of that line.
        let mut samples_s = 0.0;
        for line in lines {
            if let Some(before) = before.filter(|before| before.step == line.step && line.t <= at_s) {
                samples_s += (line.sample_s - before.sample_s).max(0.0);
                continue;
            }
            let until_s = line.t.clamp(at_s, ended_s);
            let mut left_s = until_s - at_s;
            self.goodput.checkpoints_s += take(&mut left_s, line.checkpoint_s);
            self.goodput.samples_s += take(&mut left_s, line.sample_s + std::mem::take(&mut samples_s));
            let steps = line.step.saturating_sub(at_step);
            if line.is_from_log {
                self.take_events(&mut left_s, at_s, until_s, self.expected_s(steps, line));
            }
            if before.is_none() {
                let expected_s = self.expected_s(steps, line);
                self.goodput.starting_s += (left_s - expected_s).max(0.0);
                left_s = left_s.min(expected_s);
            }
            self.spend_on_steps(left_s, at_step, line.step);
            if before.is_some() {
                self.steps_per_line = self.steps_per_line.max(steps);
            }
            (at_s, at_step, before) = (until_s, line.step, Some(*line));
        }
        let mut left_s = ended_s - at_s;
        self.goodput.samples_s += take(&mut left_s, samples_s);
        if cause.is_some() {
            self.take_events(&mut left_s, at_s, ended_s, 0.0);
        }
        self.spend_after_lines(left_s, before.is_some(), cause);
    }

    /// Returns the time that steps usually take. That of a single step is logged.
    fn expected_s(&self, steps: u64, line: &StepTimes) -> f64 {
        match steps {
            1 if line.step_s > 0.0 => line.step_s,
            _ => steps as f64 * self.step_s.unwrap_or(0.0),
        }
    }

    /// Takes the time of saves and evaluations that events record, except the time that steps need.
    fn take_events(&mut self, left_s: &mut f64, from_s: f64, to_s: f64, needed_s: f64) {
        let (mut saves_s, mut evaluations_s) = (0.0, 0.0);
        let overlap_s = |a: f64, b: f64| (b.min(to_s) - a.max(from_s)).max(0.0);
        let (mut saving, mut evaluating) = (None, None);
        for event in &self.events {
            match event.kind {
                EventKind::CheckpointStarted => saving = Some(event.t),
                EventKind::CheckpointSaved { seconds, .. } => {
                    saving = None;
                    saves_s += overlap_s(event.t - seconds, event.t);
                }
                EventKind::CheckpointFailed { .. } => {
                    saves_s += saving.take().map_or(0.0, |began_s| overlap_s(began_s, event.t));
                }
                EventKind::EvaluationStarted => evaluating = Some(event.t),
                EventKind::EvaluationEnded => {
                    evaluations_s += evaluating.take().map_or(0.0, |began_s| overlap_s(began_s, event.t));
                }
                _ => {}
            }
        }
        // The attempt ended during a save or an evaluation.
        saves_s += saving.map_or(0.0, |began_s| overlap_s(began_s, to_s));
        evaluations_s += evaluating.map_or(0.0, |began_s| overlap_s(began_s, to_s));
        let mut spare_s = (*left_s - needed_s).max(0.0);
        let all_s = spare_s;
        self.goodput.samples_s += take(&mut spare_s, evaluations_s);
        self.goodput.checkpoints_s += take(&mut spare_s, saves_s);
        *left_s -= all_s - spare_s;
    }

    /// Divides the time from one logged step to the next.
    fn spend_on_steps(&mut self, seconds: f64, from: u64, to: u64) {
        let steps = to.saturating_sub(from);
        let stalled_s = match self.step_s {
            Some(step_s) if seconds > stall_after_s(step_s, steps) => (seconds - steps as f64 * step_s).max(0.0),
            _ => 0.0,
        };
        let share = match steps {
            0 => f64::from(u8::from(to <= self.counts_to)),
            steps => self.counts_to.saturating_sub(from).min(steps) as f64 / steps as f64,
        };
        self.goodput.stalled_s += stalled_s;
        self.goodput.counted_s += (seconds - stalled_s) * share;
        self.goodput.repeated_s += (seconds - stalled_s) * (1.0 - share);
    }

    /// Assigns the time after the last logged step.
    fn spend_after_lines(&mut self, seconds: f64, has_steps: bool, cause: Option<EndCause>) {
        let goodput = &mut *self.goodput;
        let is_long = self.step_s.is_some_and(|step_s| seconds > stall_after_s(step_s, self.steps_per_line));
        let part = match cause {
            _ if self.is_stepless => &mut goodput.unlogged_s,
            _ if !has_steps => &mut goodput.starting_s,
            _ if is_long => &mut goodput.stalled_s,
            // The step in progress will probably count.
            None => &mut goodput.counted_s,
            Some(EndCause::Finished | EndCause::Stopped) => &mut goodput.starting_s,
            Some(_) => &mut goodput.repeated_s,
        };
        *part += seconds;
    }
}

/// Returns the seconds without a logged step after which a run is stalled, as [`crate::RunFacts::stall_after_s`].
fn stall_after_s(step_s: f64, steps_per_line: u64) -> f64 {
    STALL_MIN_S.max((STALL_STEPS + steps_per_line.saturating_sub(1) as f64) * step_s)
}

/// Takes up to `seconds` from what is left, and returns what was taken.
fn take(left_s: &mut f64, seconds: f64) -> f64 {
    let taken = seconds.clamp(0.0, left_s.max(0.0));
    *left_s -= taken;
    taken
}
