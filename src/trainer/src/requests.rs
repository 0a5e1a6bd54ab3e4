//! Requests to save, to stop, to make samples or to profile. The ranks exchange them once a step, so that all ranks act at the same step.

use crate::deadline::Deadline;
use crate::exchange::{all_gather_small, peer_lost};
use crate::signals::Signals;
use c10d::Group;
use rundir::{Failure, RunDir};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The requests of one rank, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SaveStopRequests {
    /// Save a checkpoint now.
    pub save: Option<Reason>,
    /// Save and stop.
    pub stop: Option<Reason>,
    /// Make samples now.
    pub sample: bool,
    /// Profile this many steps from the next one on.
    pub profile: u64,
    /// Whether the pending checkpoint, if any, is written.
    pub save_done: bool,
}

impl SaveStopRequests {
    /// Merges the requests of all ranks: any rank may request a save or a stop, and a save is done when every rank has
    /// written its part.
    pub fn merged(ranks: impl Iterator<Item = Self>) -> Self {
        ranks
            .reduce(|a, b| Self {
                save: a.save.max(b.save),
                stop: a.stop.max(b.stop),
                sample: a.sample || b.sample,
                profile: a.profile.max(b.profile),
                save_done: a.save_done && b.save_done,
            })
            .unwrap_or_default()
    }
}

/// The sources of a rank's stop requests.
#[derive(Debug, Clone, Copy)]
pub struct StopSources<'a> {
    /// The signals of this rank.
    pub signals: &'a Signals,
    /// Only on rank 0.
    pub first: Option<(&'a RunDir, &'a Deadline)>,
}

impl StopSources<'_> {
    /// Returns the stop request of this rank, if there is one.
    pub fn requested(self) -> Option<Reason> {
        let file = self.first.is_some_and(|(run, _)| run.stop_file().exists());
        let limit = self.first.is_some_and(|(_, deadline)| deadline.is_near());
        [
            (self.signals.stop(), Reason::Term),
            (file, Reason::File),
            (limit, Reason::TimeLimit),
            (self.signals.orphaned(), Reason::Orphaned),
        ]
        .into_iter()
        .find_map(|(requested, reason)| requested.then_some(reason))
    }

    /// Returns the stop request of any rank. A collective.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn agreed(self, world: &Group) -> Result<Option<Reason>, Failure> {
        let all = all_gather_small(world, &self.requested()).map_err(peer_lost)?;
        Ok(all.into_iter().max().flatten())
    }
}

/// The origin of a request. If there are several origins, the last one in this list is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// The supervisor of a rank is gone.
    Orphaned,
    /// The time limit is near.
    TimeLimit,
    /// A file in the run directory.
    File,
    /// SIGUSR1.
    Usr1,
    /// SIGTERM or SIGINT.
    Term,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Orphaned => "the supervisor is gone",
            Reason::TimeLimit => "the time limit is near",
            Reason::File => "a file in the run directory requests it",
            Reason::Usr1 => "SIGUSR1",
            Reason::Term => "SIGTERM or SIGINT",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_stops_all_and_a_save_is_done_when_every_rank_has_written() {
        let rank = |stop, save_done| SaveStopRequests { stop, save: None, sample: false, profile: 0, save_done };
        let merged = |ranks: &[SaveStopRequests]| SaveStopRequests::merged(ranks.iter().copied());
        assert_eq!(merged(&[rank(None, true), rank(Some(Reason::File), false)]), rank(Some(Reason::File), false));
        let both = [rank(Some(Reason::Term), true), rank(Some(Reason::TimeLimit), true)];
        assert_eq!(merged(&both), rank(Some(Reason::Term), true));
    }
}
