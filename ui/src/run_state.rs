//! A run's state and id as the console and the command line show them.

use rundir::RunId;
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
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::New,
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::Saving,
        Self::Stopping,
        Self::Stalled,
        Self::Finished,
        Self::Stopped,
        Self::Failed,
        Self::Crashed,
        Self::Unknown,
    ];

    /// Returns the kind of a state.
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

    /// Returns whether the run's processes should exist now, or will start without user action.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Queued | Self::Starting | Self::Running | Self::Saving | Self::Stopping | Self::Stalled)
    }
}

/// Returns a run's id without its date: `demo-2s-k7f2`.
pub fn short_id(run: &RunId) -> &str {
    run.as_str().get("2026-11-20T0340-".len()..).unwrap_or(run.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_name_of_a_run_is_its_id_without_the_date() {
        let id = RunId::parse("2026-11-20T0340-demo-2s-k7f2").unwrap();
        assert_eq!(short_id(&id), "demo-2s-k7f2");
    }
}
