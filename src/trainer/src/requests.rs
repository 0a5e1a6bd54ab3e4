//! Requests to save, stop, make samples or profile. The ranks exchange their requests once a step, so that all ranks act at the same step.

use crate::deadline::Deadline;
use crate::exchange::all_gather_small;
use crate::signals::Signals;
use crate::torch_failure::failed;
use c10d::Group;
use rundir::{Failure, RequestSource, RunDir};
use serde::{Deserialize, Serialize};

/// The requests of one rank, or the merged requests of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SaveStopRequests {
    /// The source of a request to save a checkpoint now; `None` without a request.
    pub save: Option<RequestSource>,
    /// The source of a request to save and stop; `None` without a request.
    pub stop: Option<RequestSource>,
    /// Whether to make samples now.
    pub sample: bool,
    /// The number of steps to profile, from the next step on; 0 without a request.
    pub profile: u64,
    /// Whether this rank has written its part of the pending checkpoint, or no checkpoint is pending.
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
    /// The run, for its stop file, and the time limit. `None` on ranks other than 0.
    pub first: Option<(&'a RunDir, &'a Deadline)>,
}

impl StopSources<'_> {
    /// Returns the stop request of this rank, if there is one.
    pub fn requested(self) -> Option<RequestSource> {
        let file = self.first.is_some_and(|(run, _)| run.stop_file().exists());
        let limit = self.first.is_some_and(|(_, deadline)| deadline.is_near());
        [
            (self.signals.stop(), RequestSource::Term),
            (file, RequestSource::File),
            (limit, RequestSource::TimeLimit),
            (self.signals.orphaned(), RequestSource::Orphaned),
        ]
        .into_iter()
        .find_map(|(requested, source)| requested.then_some(source))
    }

    /// Returns the stop request of any rank, if there is one. A collective.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn agreed(self, world: &Group) -> Result<Option<RequestSource>, Failure> {
        let all = all_gather_small(world, &self.requested()).map_err(failed)?;
        Ok(all.into_iter().max().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_stops_all_and_a_save_is_done_when_every_rank_has_written() {
        let rank = |stop, save_done| SaveStopRequests { stop, save: None, sample: false, profile: 0, save_done };
        let merged = |ranks: &[SaveStopRequests]| SaveStopRequests::merged(ranks.iter().copied());
        assert_eq!(
            merged(&[rank(None, true), rank(Some(RequestSource::File), false)]),
            rank(Some(RequestSource::File), false)
        );
        let both = [rank(Some(RequestSource::Term), true), rank(Some(RequestSource::TimeLimit), true)];
        assert_eq!(merged(&both), rank(Some(RequestSource::Term), true));
    }
}
