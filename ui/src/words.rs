//! States and events in plain words.

use rundir::{Event, EventKind, LOST_PEER, RunId};
use runstate::RunState;

/// A run's state without its details; indexes [`crate::Symbols::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "same names as RunState")]
pub enum StateKind {
    New,
    Queued,
    Starting,
    Running,
    Saving,
    Stopping,
    Stalled,
    Finished,
    Stopped,
    Failed,
    Crashed,
    Unknown,
}

impl StateKind {
    /// Drops the details of a state.
    pub fn of(state: &RunState) -> Self {
        match state {
            RunState::New => Self::New,
            RunState::Queued => Self::Queued,
            RunState::Starting => Self::Starting,
            RunState::Running => Self::Running,
            RunState::Saving => Self::Saving,
            RunState::Stopping => Self::Stopping,
            RunState::Stalled { .. } => Self::Stalled,
            RunState::Finished => Self::Finished,
            RunState::Stopped => Self::Stopped,
            RunState::Failed(_) => Self::Failed,
            RunState::Crashed(_) => Self::Crashed,
            RunState::Unknown => Self::Unknown,
        }
    }

    /// Returns the state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Saving => "saving",
            Self::Stopping => "stopping",
            Self::Stalled => "stalled",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Crashed => "crashed",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether the run's processes should exist, or will without anybody's doing.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Queued | Self::Starting | Self::Running | Self::Saving | Self::Stopping | Self::Stalled)
    }
}

/// Returns a run's id without its date: `demo-2s-k7f2`.
pub fn short_id(run: &RunId) -> &str {
    run.as_str().get("2026-11-20T0340-".len()..).unwrap_or(run.as_str())
}

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Ordinary.
    Plain,
    /// Something was achieved.
    Good,
    /// Worth a look.
    Warn,
    /// Something broke.
    Bad,
}

/// Returns an event as a short sentence, and how serious it is.
pub fn event(event: &Event) -> (String, Weight) {
    match &event.kind {
        EventKind::Started { world } => (format!("started on {}", ranks(*world)), Weight::Plain),
        EventKind::Resumed { from_step, .. } => (format!("resumed from step {from_step}"), Weight::Plain),
        EventKind::CheckpointDamaged { step, why, back_to } => {
            (format!("checkpoint {step} is damaged, back to {back_to}: {why}"), Weight::Bad)
        }
        EventKind::WeightsLoaded { from } => (format!("weights loaded from {from}"), Weight::Plain),
        EventKind::Restored { restored, anew, .. } if anew.is_empty() => {
            (format!("restored {restored}"), Weight::Plain)
        }
        EventKind::Restored { restored, anew, .. } => (format!("restored {restored}; anew: {anew}"), Weight::Plain),
        EventKind::SaveAsked { why } => (sentence("asked to save", why), Weight::Plain),
        EventKind::LossSpike { loss, usual } => {
            (format!("the loss jumped to {}, from {}", units::number(*loss), units::number(*usual)), Weight::Warn)
        }
        EventKind::CheckpointStarted => ("saving a checkpoint".to_owned(), Weight::Plain),
        EventKind::CheckpointSaved { bytes, seconds, .. } => {
            let size = units::bytes(*bytes);
            let took = units::value(*seconds, units::Unit::Seconds);
            (format!("checkpoint saved, {size} in {took}"), Weight::Good)
        }
        EventKind::CheckpointFailed { failure } => (sentence(&failure.what, &failure.why), Weight::Bad),
        EventKind::CheckpointPruned { step } => (format!("old checkpoint {step} removed"), Weight::Plain),
        EventKind::EvaluationStarted => ("evaluating".to_owned(), Weight::Plain),
        EventKind::EvaluationEnded => ("evaluated".to_owned(), Weight::Plain),
        EventKind::LossNotFinite => ("the loss was not a finite number".to_owned(), Weight::Warn),
        EventKind::StepSkipped => ("step skipped: its gradient was not finite".to_owned(), Weight::Warn),
        EventKind::Stopping { why } => (sentence("stopping", why), Weight::Plain),
        EventKind::Stopped { why } => (sentence("stopped", why), Weight::Plain),
        EventKind::Finished => ("finished".to_owned(), Weight::Good),
        EventKind::Failed { failure } => {
            // What it follows from has the colour.
            let weight = if failure.is_consequence() { Weight::Plain } else { Weight::Bad };
            (sentence(&failure.what, &failure.why), weight)
        }
        EventKind::RankDied { rank, code, signal, message } => {
            let how = match (code, signal) {
                (_, Some(signal)) => format!("rank {rank} was ended by signal {}", signal_name(*signal)),
                (Some(code), None) => format!("rank {rank} ended with code {code}"),
                (None, None) => format!("rank {rank} ended"),
            };
            let weight = if message.starts_with(LOST_PEER) { Weight::Plain } else { Weight::Bad };
            (sentence(&how, message), weight)
        }
        EventKind::SignalReceived { signal } => (format!("received signal {}", signal_name(*signal)), Weight::Plain),
        EventKind::Other { name, text } => (sentence(&name.replace('_', " "), text), Weight::Plain),
    }
}

fn sentence(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") }
}

/// Returns `1 rank`, `2 ranks`.
pub fn ranks(n: usize) -> String {
    units::counted(n, "rank")
}

/// Returns a signal's name; numbers are those of Linux.
fn signal_name(signal: i32) -> String {
    match signal {
        1 => "HUP".to_owned(),
        2 => "INT".to_owned(),
        6 => "ABRT".to_owned(),
        7 => "BUS".to_owned(),
        9 => "KILL".to_owned(),
        10 => "USR1".to_owned(),
        11 => "SEGV".to_owned(),
        12 => "USR2".to_owned(),
        15 => "TERM".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_an_end_has_the_colour_and_what_follows_from_it_has_none() {
        let failed = |what: &str| EventKind::Failed {
            failure: rundir::Failure::new(rundir::ErrorCode::Unclassified, what, "why", ""),
        };
        let died =
            |message: &str| EventKind::RankDied { rank: 1, code: Some(1), signal: None, message: message.into() };
        let lost = format!("{LOST_PEER}: connection reset");
        let kinds = [failed("node gpu03 was lost"), failed(LOST_PEER), died("out of memory"), died(&lost)];
        let weights = kinds.map(|kind| event(&Event::new(0.0, 1, None, kind)).1);
        assert_eq!(weights, [Weight::Bad, Weight::Plain, Weight::Bad, Weight::Plain]);
    }

    #[test]
    fn a_run_is_called_by_its_id_without_the_date() {
        let id = RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap();
        assert_eq!(short_id(&id), "demo-2s-k7f2");
    }
}
