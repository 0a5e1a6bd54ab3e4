//! Decides whether a failed run is resumed automatically.

use cluster::NodeId;
use recipe::RunSettings;
use rundir::{ErrorCode, Event, EventKind, Failure};
use runstate::{RunFacts, RunState};
use units::counted;

/// The seconds over which `run.heals_per_hour` counts.
const HOUR_S: f64 = 3600.0;

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedAttempt {
    /// The attempt.
    pub attempt: u32,
    /// The last logged step, or the step that it started from.
    pub at_step: u64,
    /// The failure.
    pub failure: Failure,
    /// The node that failed, if it is known.
    pub node: Option<NodeId>,
}

impl FailedAttempt {
    /// Returns how the newest attempt of a run failed; `None` if it did not.
    pub fn of(facts: &RunFacts, state: &RunState, now_s: f64) -> Option<Self> {
        let (RunState::Failed(failure) | RunState::Crashed(failure)) = state else { return None };
        Some(FailedAttempt {
            attempt: facts.attempt.as_ref()?.number,
            at_step: facts.last_metric.map_or(facts.start_step(), |(step, _)| step),
            node: facts.failed_node(now_s),
            failure: failure.clone(),
        })
    }

    /// Returns the event that records that the run will be resumed.
    pub fn heal_started(&self) -> EventKind {
        EventKind::HealStarted { code: self.failure.code, at_step: self.at_step, failed_node: self.node.clone() }
    }
}

/// The decision after a failure.
#[derive(Debug, Clone, PartialEq)]
pub enum HealDecision {
    /// The run is resumed.
    Resume,
    /// The run is resumed at this time, Unix seconds, because it was resumed too often before.
    Later(f64),
    /// The run is not resumed, because that would not help.
    End(Failure),
}

/// Decides whether a failed run is resumed; `events` are those of the run's healer.
pub fn heal_decision(settings: &RunSettings, failed: &FailedAttempt, events: &[Event], now_s: f64) -> HealDecision {
    let end = |why: String, fix: String| {
        let what = format!("the run is not resumed after attempt {}", failed.attempt);
        HealDecision::End(Failure { what, why, fix, ..failed.failure.clone() })
    };
    if would_repeat(failed.failure.code) {
        let why = format!("its failure would repeat: {}: {}", failed.failure.what, failed.failure.why);
        return end(why, failed.failure.fix.clone());
    }
    let before = events.iter().rev().find_map(|event| match &event.kind {
        EventKind::HealStarted { code, at_step, .. } if event.attempt < failed.attempt => Some((code, at_step)),
        _ => None,
    });
    // Two nodes may be lost during the same step.
    if before == Some((&failed.failure.code, &failed.at_step)) && failed.failure.code != ErrorCode::NodeLost {
        let why =
            format!("it failed twice at step {}: {}: {}", failed.at_step, failed.failure.what, failed.failure.why);
        return end(why, "read the logs, remove the cause, then resume".into());
    }
    let healed = events.iter().filter(|event| matches!(event.kind, EventKind::Healed { .. }));
    let recent: Vec<f64> = healed.map(|event| event.t).filter(|t| t + HOUR_S > now_s).collect();
    match recent.iter().rev().nth(settings.heals_per_hour.saturating_sub(1) as usize) {
        Some(first) => HealDecision::Later(first + HOUR_S),
        None => HealDecision::Resume,
    }
}

/// Returns the reason for which a healer waits after [`HealDecision::Later`].
pub fn healed_too_often(settings: &RunSettings) -> String {
    format!(
        "the run was resumed {} within an hour (run.heals_per_hour)",
        counted(settings.heals_per_hour as usize, "time")
    )
}

/// Returns whether the next attempt would fail in the same way, because the cause is the recipe, the data, a limit or the newest
/// checkpoint. For example, if the weights of replicas differ, the newest checkpoint may contain wrong weights.
///
/// A full disk is not such a cause: the checks of the next attempt fail until there is room, and the healer waits.
fn would_repeat(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::InvalidArgument
            | ErrorCode::InvalidRecipe
            | ErrorCode::InvalidSecrets
            | ErrorCode::InvalidMesh
            | ErrorCode::InvalidDataset
            | ErrorCode::TooManyDropped
            | ErrorCode::UnsupportedModel
            | ErrorCode::TensorMismatch
            | ErrorCode::NotFound
            | ErrorCode::PermissionDenied
            | ErrorCode::FileTooLarge
            | ErrorCode::Malformed
            | ErrorCode::NewerFormat
            | ErrorCode::OutOfMemory
            | ErrorCode::NotFinite
            | ErrorCode::WeightsDiffer
            | ErrorCode::TrainerUnusable
            | ErrorCode::ProgramMissing
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(heals_per_hour: u64) -> RunSettings {
        RunSettings { heals_per_hour, ..RunSettings::default() }
    }

    fn failed(attempt: u32, at_step: u64, code: ErrorCode) -> FailedAttempt {
        FailedAttempt { attempt, at_step, failure: Failure::new(code, "what", "why", "fix"), node: None }
    }

    fn heal_started(attempt: u32, at_step: u64, code: ErrorCode) -> Event {
        let kind = EventKind::HealStarted { code, at_step, failed_node: None };
        Event::new(0.0, attempt, None, kind)
    }

    fn healed(t: f64, attempt: u32) -> Event {
        Event::new(t, attempt, None, EventKind::Healed { without: vec![], down_s: 1.0 })
    }

    fn ends(decision: &HealDecision) -> bool {
        matches!(decision, HealDecision::End(_))
    }

    #[test]
    fn a_failure_that_would_repeat_is_not_healed() {
        use ErrorCode::{FileTooLarge, InvalidDataset, NotFinite, OutOfMemory, TooManyDropped, WeightsDiffer};
        for code in [OutOfMemory, InvalidDataset, TooManyDropped, FileTooLarge, NotFinite, WeightsDiffer] {
            let decision = heal_decision(&settings(4), &failed(1, 10, code), &[], 0.0);
            assert!(matches!(decision, HealDecision::End(failure) if failure.code == code));
        }
        use ErrorCode::{Crashed, DeviceFailed, DiskFull, NodeLost, RankKilled};
        for code in [NodeLost, RankKilled, Crashed, DeviceFailed, DiskFull] {
            assert_eq!(heal_decision(&settings(4), &failed(1, 10, code), &[], 0.0), HealDecision::Resume);
        }
    }

    #[test]
    fn the_same_failure_at_the_same_step_is_healed_once() {
        let before = [heal_started(1, 40, ErrorCode::RankFailed), healed(10.0, 2)];
        let decide = |failed: &FailedAttempt| heal_decision(&settings(4), failed, &before, 20.0);
        assert!(ends(&decide(&failed(2, 40, ErrorCode::RankFailed))));
        assert_eq!(decide(&failed(2, 41, ErrorCode::RankFailed)), HealDecision::Resume);
        assert_eq!(decide(&failed(2, 40, ErrorCode::RankKilled)), HealDecision::Resume);
        // The healer that decided about attempt 1 ended, and a new healer repeats the decision.
        assert_eq!(decide(&failed(1, 40, ErrorCode::RankFailed)), HealDecision::Resume);
        let lost = [heal_started(1, 40, ErrorCode::NodeLost)];
        let twice = heal_decision(&settings(4), &failed(2, 40, ErrorCode::NodeLost), &lost, 20.0);
        assert_eq!(twice, HealDecision::Resume);
    }

    #[test]
    fn a_run_that_was_resumed_too_often_waits_for_the_end_of_the_hour() {
        let events = [healed(100.0, 2), healed(200.0, 3), healed(300.0, 4)];
        let failed = failed(4, 70, ErrorCode::RankKilled);
        assert_eq!(heal_decision(&settings(3), &failed, &events, 400.0), HealDecision::Later(3700.0));
        assert_eq!(heal_decision(&settings(3), &failed, &events, 3701.0), HealDecision::Resume);
        assert_eq!(heal_decision(&settings(2), &failed, &events, 400.0), HealDecision::Later(3800.0));
        assert_eq!(heal_decision(&settings(4), &failed, &events, 400.0), HealDecision::Resume);
    }

    proptest! {
        #[test]
        fn no_hour_has_more_heals_than_its_limit(gaps in proptest::collection::vec(0.0..2000.0f64, 1..40), limit in 1u64..6) {
            let (mut now, mut events) = (0.0, Vec::new());
            for (number, gap) in gaps.into_iter().enumerate() {
                now += gap;
                let attempt = number as u32 + 1;
                let failed = failed(attempt, u64::from(attempt), ErrorCode::RankKilled);
                if let HealDecision::Later(at) = heal_decision(&settings(limit), &failed, &events, now) {
                    prop_assert!(at > now && at <= now + HOUR_S);
                    now = at;
                }
                prop_assert_eq!(heal_decision(&settings(limit), &failed, &events, now), HealDecision::Resume);
                events.push(healed(now, attempt + 1));
                let within = events.iter().filter(|event| event.t + HOUR_S > now).count() as u64;
                prop_assert!(within <= limit);
            }
        }
    }
}
