//! Reports what this rank does, from a thread that runs while the rank hangs: a heartbeat with step and phase, and the collectives that
//! it waits for.

use crate::phase::{self, Position};
use c10d::collectives::{self, Collective};
use cluster::NodeId;
use recipe::Mesh;
use rundir::{
    GroupCollectives, HEARTBEAT_EVERY_S, Heartbeat, RankCollectives, RunDir, SCHEMA, WaitingCollective, now_s,
};
use sharding::mesh::groups_of;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Seconds in one phase before the collectives are recorded, and between later records, at most.
const RECORD_EVERY_S: f64 = 60.0;
/// The most waiting collectives of a group that are recorded.
const WAITING: usize = 16;

/// The rank that is reported.
pub struct Reported {
    pub run: RunDir,
    pub node: NodeId,
    pub attempt: u32,
    pub rank: usize,
    pub mesh: Mesh,
}

/// The time for which a rank that ends waits for its watchdog. The thread may write to a file system that does not answer.
const END: Duration = Duration::from_secs(2);

/// The thread that reports. It ends when this is dropped.
pub struct Watchdog {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to report a rank. `timeout_s` is `train.collective_timeout_s`; 0: derived, at least ten minutes.
    ///
    /// A collective is recorded before it times out: gloo's record does not have it afterwards.
    pub fn start(reported: Reported, timeout_s: u64) -> Self {
        let record_every_s = if timeout_s == 0 { RECORD_EVERY_S } else { RECORD_EVERY_S.min(timeout_s as f64 / 2.0) };
        let tick = Duration::from_secs_f64(HEARTBEAT_EVERY_S.min(record_every_s / 2.0));
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let (mut recorded_s, mut failed) = (0.0, false);
            loop {
                let (now, position) = (now_s(), phase::position());
                let mut result = reported.beat(position, now);
                if is_record_due(position, record_every_s, recorded_s, now) {
                    recorded_s = now;
                    result = result.and(reported.record_collectives());
                }
                // A full or slow disk does not end a rank; one line shows the reason.
                if let (Err(error), false) = (&result, failed) {
                    rundir::log!("{error}");
                }
                failed = result.is_err();
                if ended.recv_timeout(tick) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Watchdog { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        let began = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && began.elapsed() < END {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns whether the rank has been in its phase for so long that its collectives are recorded now.
fn is_record_due(position: Position, every_s: f64, recorded_s: f64, now: f64) -> bool {
    position.since_s > 0.0 && now - position.since_s.max(recorded_s) >= every_s
}

impl Reported {
    fn beat(&self, position: Position, now: f64) -> Result<(), rundir::Error> {
        let Position { step, phase, since_s } = position;
        let beat = Heartbeat {
            v: SCHEMA,
            rank: self.rank,
            t: now,
            step,
            phase: phase.name().into(),
            phase_t: since_s,
            unwritten: rundir::unwritten(),
            failed_save: phase::failed_save(),
        };
        self.run.write_heartbeat(&self.node, self.attempt, &beat)
    }

    /// Records the collectives that this rank waits for.
    fn record_collectives(&self) -> Result<(), rundir::Error> {
        let recent = collectives::recent().unwrap_or_else(|error| {
            rundir::log!("{error}");
            Vec::new()
        });
        let groups = groups_of(self.mesh, self.rank);
        let groups = groups.into_iter().map(|(group, ranks)| in_group(&recent, group, ranks)).collect();
        let record = RankCollectives { v: SCHEMA, rank: self.rank, t: now_s(), groups };
        self.run.write_rank_collectives(&self.node, self.attempt, &record)
    }
}

fn in_group(recent: &[Collective], group: String, ranks: Vec<usize>) -> GroupCollectives {
    let own = || recent.iter().filter(|collective| collective.group == group);
    let waiting = own().filter(|collective| !collective.complete).take(WAITING).map(|collective| WaitingCollective {
        number: collective.number,
        operation: collective.operation.clone(),
        started_s: collective.started_ns as f64 / 1e9,
    });
    GroupCollectives {
        started: own().map(|collective| collective.number).max().unwrap_or(0),
        waiting: waiting.collect(),
        group,
        ranks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::Phase;

    #[test]
    fn collectives_are_recorded_once_a_minute_in_one_phase() {
        let is_due = |since_s, recorded_s, now| {
            is_record_due(Position { step: 3, phase: Phase::Backward, since_s }, 60.0, recorded_s, now)
        };
        assert!(!is_due(0.0, 0.0, 1e9), "no phase has begun");
        assert!(!is_due(100.0, 0.0, 159.0) && is_due(100.0, 0.0, 160.0));
        assert!(!is_due(100.0, 160.0, 219.0) && is_due(100.0, 160.0, 220.0));
        assert!(!is_due(200.0, 160.0, 259.0), "a new phase");
    }

    #[test]
    fn a_group_has_its_last_collective_and_those_that_wait() {
        let one = |group: &str, number, complete| Collective {
            group: group.into(),
            number,
            operation: "nccl:all_reduce".into(),
            complete,
            started_ns: number * 1_000_000_000,
        };
        let recent = [one("tp", 1, true), one("world", 9, false), one("tp", 2, false), one("tp", 3, false)];
        let group = in_group(&recent, "tp".into(), vec![0, 1]);
        assert_eq!(group.started, 3);
        let waiting: Vec<_> = group.waiting.iter().map(|one| (one.number, one.started_s)).collect();
        assert_eq!(waiting, [(2, 2.0), (3, 3.0)]);
        assert_eq!(in_group(&recent, "shard".into(), vec![0, 1]).started, 0);
    }
}
