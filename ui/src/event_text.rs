//! Events as short sentences, with their severity.

use crate::series::{Mark, MarkKind};
use crate::text;
use camino::Utf8Path;
use rundir::{Event, EventKind};

/// The severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Information.
    Plain,
    /// Success.
    Good,
    /// A warning.
    Warn,
    /// An error.
    Bad,
}

/// Returns whether a list shows an event. The begin and the end of an evaluation are times for the goodput; its results are events too.
pub fn is_listed(event: &Event) -> bool {
    !matches!(event.kind, EventKind::EvaluationStarted | EventKind::EvaluationEnded)
}

/// Returns an event as a short sentence, and its severity.
pub fn describe(event: &Event) -> (String, Severity) {
    match &event.kind {
        EventKind::Started { world } => (format!("started on {}", units::counted(*world, "rank")), Severity::Plain),
        EventKind::Resumed { from_step, .. } => (format!("resumed from step {from_step}"), Severity::Plain),
        EventKind::CheckpointDamaged { step, why, back_to } => {
            (format!("checkpoint {step} is damaged, using {back_to}: {why}"), Severity::Bad)
        }
        EventKind::WeightsLoaded { from } => (format!("weights loaded from {}", end_of(from)), Severity::Plain),
        EventKind::Restored { restored, not_restored, .. } if not_restored.is_empty() => {
            (format!("restored {restored}"), Severity::Plain)
        }
        EventKind::Restored { restored, not_restored, .. } => {
            (format!("restored {restored}; initialized: {not_restored}"), Severity::Plain)
        }
        EventKind::SaveRequested { why, .. } => (sentence("save requested", why), Severity::Plain),
        EventKind::LossSpike { loss, usual } => {
            (format!("loss spike: {}, recent median {}", units::number(*loss), units::number(*usual)), Severity::Warn)
        }
        EventKind::CheckpointStarted => ("saving a checkpoint".to_owned(), Severity::Plain),
        EventKind::CheckpointSaved { bytes, seconds, .. } => {
            let size = units::short_size(*bytes);
            let took = units::value(*seconds, units::Unit::Seconds);
            (format!("checkpoint saved, {size} in {took}"), Severity::Good)
        }
        EventKind::CheckpointFailed { failure } => (sentence(&failure.what, &failure.why), Severity::Bad),
        EventKind::CheckpointPruned { step } => (format!("old checkpoint {step} removed"), Severity::Plain),
        EventKind::LogRecognized { format, metrics } => {
            (format!("log recognized: {format} with {}", metrics.join(", ")), Severity::Plain)
        }
        EventKind::LogNotRecognized { why } => (sentence("no steps recognized in the log", why), Severity::Warn),
        EventKind::EvaluationStarted => ("evaluation started".to_owned(), Severity::Plain),
        EventKind::EvaluationEnded => ("evaluation finished".to_owned(), Severity::Plain),
        EventKind::SampleSaved { path, seconds } => {
            let took = units::value(*seconds, units::Unit::Seconds);
            (format!("sample {} saved in {took}", path.file_name().unwrap_or_default()), Severity::Good)
        }
        EventKind::SampleFailed { failure } => (sentence(&failure.what, &failure.why), Severity::Bad),
        EventKind::ItemFailed { item, failure } => {
            (sentence(&format!("{item} left out"), &failure.why), Severity::Warn)
        }
        EventKind::Validated { loss, .. } => (format!("validation loss {}", units::number(*loss)), Severity::Plain),
        EventKind::Profiled { path, steps } => {
            let steps = units::counted(*steps as usize, "step");
            (format!("{steps} profiled: {}", path.file_name().unwrap_or_default()), Severity::Good)
        }
        EventKind::SampleRequested => ("samples requested".to_owned(), Severity::Plain),
        EventKind::LossNotFinite => ("the loss is not finite".to_owned(), Severity::Warn),
        EventKind::StepSkipped { clips, more_clips, in_data } => {
            let mut text = "step skipped: the gradient is not finite".to_owned();
            if !clips.is_empty() {
                let more = if *more_clips > 0 { format!(", {more_clips} more") } else { String::new() };
                let of = if *in_data { "NaN or infinite values in clips" } else { "its clips are" };
                text += &format!("; {of} {}{more}", clips.join(", "));
            }
            (text, Severity::Warn)
        }
        EventKind::Stopping { why, .. } => (sentence("stopping", why), Severity::Plain),
        EventKind::Stopped { why, .. } => (sentence("stopped", why), Severity::Plain),
        EventKind::Finished => ("finished".to_owned(), Severity::Good),
        EventKind::HealStarted { failed_node, .. } => {
            let on = failed_node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
            (format!("failed{on}: the healer resumes the run"), Severity::Warn)
        }
        EventKind::HealWaiting { why } => (sentence("the healer waits", why), Severity::Warn),
        EventKind::Healed { without, down_s } => {
            let without = without.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let without = if without.is_empty() { without } else { format!(" without {without}") };
            (format!("resumed by the healer{without}, {} after the failure", units::duration(*down_s)), Severity::Good)
        }
        EventKind::HealEnded { failure } => (sentence(&failure.what, &failure.why), Severity::Bad),
        EventKind::Failed { failure } => {
            // Only the root cause is coloured.
            let severity = if failure.is_consequence() { Severity::Plain } else { Severity::Bad };
            (sentence(&failure.what, &failure.why), severity)
        }
        EventKind::RankDied { rank, code, signal, message, cause } => {
            let how = match (code, signal) {
                (_, Some(signal)) => format!("rank {rank} was killed by {}", signal_name(*signal)),
                (Some(code), None) => format!("rank {rank} exited with code {code}"),
                (None, None) => format!("rank {rank} exited"),
            };
            let severity = if cause.is_peer() { Severity::Plain } else { Severity::Bad };
            (sentence(&how, message), severity)
        }
        EventKind::NodeLost { node, failure } => {
            (sentence(&format!("node {node} is lost; the other nodes continue"), &failure.why), Severity::Bad)
        }
        EventKind::ConnectionsRefused { port, count, from, why } => {
            let last = from.as_ref().map_or(String::new(), |from| format!(", the last from {from}"));
            let refused = units::counted(*count as usize, "connection");
            (sentence(&format!("refused {refused} to port {port}{last}"), why), Severity::Warn)
        }
        EventKind::SignalReceived { signal } => (format!("received {}", signal_name(*signal)), Severity::Plain),
        EventKind::Other { name, text } => (sentence(&name.replace('_', " "), text), Severity::Plain),
    }
}

/// Returns what a mark of a chart stands for, as a short phrase.
pub fn describe_mark(kind: MarkKind, mark: &Mark) -> String {
    match kind {
        MarkKind::Checkpoint => "checkpoint saved".to_owned(),
        MarkKind::Sample => "sample saved".to_owned(),
        MarkKind::NotFinite => "loss not finite".to_owned(),
        MarkKind::Alert => format!("alert: {}", text::clean(&mark.about)),
        MarkKind::NodeLost if mark.about.is_empty() => "node lost".to_owned(),
        MarkKind::NodeLost => format!("node {} lost", mark.about),
        MarkKind::Stage => "weights loaded".to_owned(),
        MarkKind::Resume => format!("resumed as attempt {}", mark.attempt),
    }
}

/// Returns the run and the step of a checkpoint's path, and any other path unchanged.
fn end_of(path: &Utf8Path) -> String {
    let parts: Vec<&str> = path.components().map(|part| part.as_str()).collect();
    match &parts[..] {
        [.., run, "checkpoints", step] => format!("{run}, {step}"),
        _ => path.to_string(),
    }
}

fn sentence(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") }
}

/// Returns the name of a Linux signal.
fn signal_name(signal: i32) -> String {
    match signal {
        1 => "SIGHUP".to_owned(),
        2 => "SIGINT".to_owned(),
        6 => "SIGABRT".to_owned(),
        7 => "SIGBUS".to_owned(),
        9 => "SIGKILL".to_owned(),
        10 => "SIGUSR1".to_owned(),
        11 => "SIGSEGV".to_owned(),
        12 => "SIGUSR2".to_owned(),
        15 => "SIGTERM".to_owned(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::Cause;

    #[test]
    fn only_the_root_cause_of_a_failure_is_an_error() {
        let failed = |what: &str| EventKind::Failed {
            failure: rundir::Failure::new(rundir::ErrorCode::RankFailed, what, "why", ""),
        };
        let died = |cause| EventKind::RankDied { rank: 1, code: Some(1), signal: None, message: "why".into(), cause };
        let lost = EventKind::Failed { failure: rundir::Failure::peer_lost(None, "connection reset", "") };
        let kinds = [failed("node gpu03 was lost"), lost, died(Cause::Root), died(Cause::Peer(None))];
        let severities = kinds.map(|kind| describe(&Event::new(0.0, 1, None, kind)).1);
        assert_eq!(severities, [Severity::Bad, Severity::Plain, Severity::Bad, Severity::Plain]);
    }
}
