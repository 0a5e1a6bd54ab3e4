//! Derives alerts from the events, health findings and failures of a run.

use health::{Finding, Rule};
use rundir::{Alert, AlertKind, ErrorCode, Event, EventKind, Failure, Run, SCHEMA};
use units::counted;

/// The fields of an alert that depend on its cause.
struct Parts {
    kind: AlertKind,
    subject: String,
    what: String,
    why: String,
    fix: String,
}

impl Parts {
    fn new(kind: AlertKind, what: impl Into<String>) -> Self {
        Self { kind, subject: String::new(), what: what.into(), why: String::new(), fix: String::new() }
    }

    fn of(kind: AlertKind, failure: &Failure) -> Self {
        let Failure { what, why, fix, .. } = failure.clone();
        Self { kind, subject: String::new(), what, why, fix }
    }

    fn subject(self, subject: impl ToString) -> Self {
        Self { subject: subject.to_string(), ..self }
    }

    fn alert(self, run: &Run, attempt: u32, step: Option<u64>, since_s: f64, now_s: f64) -> Alert {
        let Self { kind, subject, what, why, fix } = self;
        let (run, id) = (run.id.clone(), String::new());
        Alert {
            v: SCHEMA,
            t: now_s,
            id,
            run,
            attempt,
            kind,
            subject,
            ends_attempt: false,
            step,
            what,
            why,
            since_s,
            fix,
        }
        .with_id()
    }
}

/// Returns the alert about an event; `None` for an event that raises no alert. Failures that end an attempt are in the exit files
/// and not among the events: see `of_end`.
pub fn of_event(run: &Run, event: &Event, now_s: f64) -> Option<Alert> {
    let resume = format!("see it: vidtui status {}", run.id);
    let parts = match &event.kind {
        EventKind::Started { world } => {
            let ranks = counted(*world, "rank");
            Parts::new(AlertKind::Started, format!("attempt {} has started with {ranks}", event.attempt))
        }
        EventKind::CheckpointSaved { path, bytes, .. } => {
            let what = format!("a checkpoint of {} is complete", units::size(*bytes));
            Parts { why: path.to_string(), ..Parts::new(AlertKind::Checkpoint, what) }.subject(path)
        }
        EventKind::CheckpointFailed { failure } => {
            let kind = if failure.code == ErrorCode::DiskFull { AlertKind::DiskLow } else { AlertKind::Failed };
            Parts::of(kind, failure).subject("checkpoint")
        }
        // The subject is the folder that all videos of a step share, so that the step has one alert.
        EventKind::SampleSaved { path, .. } => {
            let folder = path.parent().unwrap_or(path);
            Parts { why: folder.to_string(), ..Parts::new(AlertKind::Sample, "videos were made") }.subject(folder)
        }
        EventKind::NodeLost { node, failure } => Parts::of(AlertKind::NodeLost, failure).subject(node),
        EventKind::Finished => match &run.stage {
            Some(stage) => Parts {
                fix: format!("start the next stage: vidtui next {}", run.id),
                ..Parts::new(AlertKind::StageDone, format!("stage {stage} is done"))
            },
            None if run.attached.is_some() => {
                Parts { fix: resume, ..Parts::new(AlertKind::Finished, "the program has ended") }
            }
            None => Parts { fix: resume, ..Parts::new(AlertKind::Finished, "all steps are done") },
        },
        EventKind::Healed { without, down_s } => {
            let what = format!("the run failed and was resumed after {}", units::duration(*down_s));
            let why = match &without[..] {
                [] => String::new(),
                nodes => format!("without {}", units::listed(nodes, 4, ToString::to_string)),
            };
            Parts { why, fix: resume, ..Parts::new(AlertKind::Healed, what) }
        }
        EventKind::HealEnded { failure } => {
            let alert = Parts::of(kind_of(failure), failure).alert(run, event.attempt, event.step, event.t, now_s);
            return Some(Alert { ends_attempt: true, ..alert });
        }
        _ => return None,
    };
    Some(parts.alert(run, event.attempt, event.step, event.t, now_s))
}

/// The time within which two failures of the GPUs of a node raise an alert.
const DAY_S: f64 = 24.0 * 3600.0;

/// Returns the alert about a node whose GPUs failed for the second time within a day; `None` for other events. A single failure only makes
/// the next attempt use other nodes.
///
/// * `before` — the events of the run, which may contain `event` itself.
pub fn of_repeated_fault(run: &Run, before: &[Event], event: &Event, now_s: f64) -> Option<Alert> {
    let faulty_node = |event: &Event| match &event.kind {
        EventKind::HealStarted { code: ErrorCode::DeviceFailed, failed_node, .. } => failed_node.clone(),
        _ => None,
    };
    let node = faulty_node(event)?;
    let is_earlier = |other: &&Event| {
        other.attempt < event.attempt && event.t - other.t < DAY_S && faulty_node(other).as_ref() == Some(&node)
    };
    let earlier = before.iter().rev().find(is_earlier)?;
    let what = format!("the GPUs of node {node} failed twice within a day");
    let parts = Parts {
        why: format!(
            "in attempts {} and {}; the run leaves the node out while there are others",
            earlier.attempt, event.attempt
        ),
        fix: format!(
            "take node {node} out of service and have its GPUs checked: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep Xid"
        ),
        ..Parts::new(AlertKind::Failed, what)
    };
    Some(parts.subject(&node).alert(run, event.attempt, event.step, event.t, now_s))
}

/// Returns the alert about a finding; `None` for a finding that raises no alert.
pub(crate) fn of_finding(run: &Run, attempt: u32, step: Option<u64>, finding: &Finding, now_s: f64) -> Option<Alert> {
    let kind = match finding.rule {
        Rule::Stalled => AlertKind::Stalled,
        Rule::NotFinite | Rule::SkippedSteps => AlertKind::NotFinite,
        Rule::DiskFilling | Rule::Unwritten => AlertKind::DiskLow,
        _ => return None,
    };
    let parts = Parts { fix: finding.fix.clone(), ..Parts::new(kind, finding.sentence()) };
    // A disk that was low an hour ago and is full now raises a second alert.
    let parts = if finding.rule == Rule::Unwritten { parts.subject("unwritten") } else { parts };
    Some(parts.alert(run, attempt, step, finding.since_s.unwrap_or(now_s), now_s))
}

/// Returns the alert about a failure that ended an attempt.
pub(crate) fn of_end(run: &Run, attempt: u32, step: Option<u64>, failure: &Failure, now_s: f64) -> Alert {
    let alert = Parts::of(kind_of(failure), failure).subject("end").alert(run, attempt, step, now_s, now_s);
    Alert { ends_attempt: true, ..alert }
}

fn kind_of(failure: &Failure) -> AlertKind {
    match failure.code {
        ErrorCode::OutOfMemory => AlertKind::OutOfMemory,
        ErrorCode::NodeLost => AlertKind::NodeLost,
        ErrorCode::NotFinite => AlertKind::NotFinite,
        _ => AlertKind::Failed,
    }
}
