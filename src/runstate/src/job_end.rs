//! Derives the end of an attempt from the state of its Slurm job, if its processes recorded nothing.

use crate::{RunFacts, RunState};
use cluster::slurm::{JobReply, JobState, JobStatus};
use rundir::{Attempt, ErrorCode, Failure};

/// Returns whether the job has begun after a requeue and its next attempt is not written yet.
pub fn is_about_to_begin(facts: &RunFacts) -> bool {
    let job = facts.job.as_ref().and_then(|status| status.job()).filter(|job| !job.state.is_over());
    let began_s = job.and_then(|job| job.start.as_ref()?.unix_s());
    let ended_s = facts.exits.iter().map(|exit| exit.ended_s).reduce(f64::max);
    // Allow 2 s, because the clocks of two machines differ.
    began_s.zip(ended_s).is_some_and(|(began_s, ended_s)| began_s > ended_s + 2.0)
}

/// Returns the state of a run whose job Slurm has ended; `None` if Slurm did not end it. The failures that the
/// processes recorded are consequences of that.
pub fn ended_by_queue(facts: &RunFacts) -> Option<RunState> {
    let status = facts.job.as_ref()?;
    let (id, job) = (status.id, status.job()?);
    let crashed = |code, what: &str, why: &str, fix: &str| {
        let reason = job.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        Some(RunState::Crashed(Failure::new(code, format!("job {id} {what}{reason}"), why, fix)))
    };
    let resume = "resume from the newest checkpoint";
    match job.state {
        JobState::Cancelled => Some(RunState::Stopped),
        JobState::Timeout => crashed(
            ErrorCode::SlurmTimeLimit,
            "reached its time limit",
            "saving took longer than save_before_s, so that it was not requeued before the limit",
            "raise save_before_s in the Slurm file, or time; then resume from the newest checkpoint",
        ),
        JobState::NodeFail => crashed(ErrorCode::NodeLost, "lost a node", "Slurm reports NODE_FAIL", resume),
        JobState::Preempted => {
            crashed(ErrorCode::SlurmPreempted, "was preempted", "a job of higher priority got its nodes", resume)
        }
        JobState::OutOfMemory => crashed(
            ErrorCode::OutOfMemory,
            "ran out of memory",
            "it used more memory on a node than Slurm had allocated",
            "request more memory (extra = [\"--mem=0\"]), use more ranks or a smaller model; then resume",
        ),
        JobState::BootFail => crashed(
            ErrorCode::SlurmFailed,
            "failed because its nodes did not boot",
            "Slurm reports BOOT_FAIL",
            "resume, which submits it again",
        ),
        JobState::Deadline => {
            crashed(ErrorCode::SlurmTimeLimit, "could not end before its deadline", "Slurm reports DEADLINE", resume)
        }
        _ => None,
    }
}

/// Returns the end of a job whose processes recorded nothing, or `None` if the job has not ended.
pub fn ended_without_processes(facts: &RunFacts, status: &JobStatus, attempt: &Attempt) -> Option<RunState> {
    let (id, number) = (status.id, attempt.number);
    let log = format!("read attempts/{number:04}/job.log in the run's folder");
    let crashed = |what: String, why: String, fix: &str| {
        Some(RunState::Crashed(Failure::new(ErrorCode::SlurmFailed, what, why, fix)))
    };
    match &status.reply {
        // The job began after the stop request, and ended without starting ranks.
        JobReply::Job(job) if job.state == JobState::Completed && facts.stops_for_good => Some(RunState::Stopped),
        JobReply::Job(job) if job.state == JobState::Failed && job.reason.as_deref() == Some("JobLaunchFailure") => {
            crashed(
                format!("Slurm could not start job {id}"),
                "JobLaunchFailure: the most frequent cause is that its node has no access to the run's folder".into(),
                "put the runs on a file system that all nodes share: --runs DIR",
            )
        }
        JobReply::Job(job) if job.state.is_over() => crashed(
            format!("job {id} has ended"),
            format!(
                "Slurm reports {}{}",
                job.state,
                job.reason.as_ref().map_or(String::new(), |why| format!(", {why}"))
            ),
            &format!("{log}, then resume"),
        ),
        JobReply::Purged if attempt.placement.ranks.is_empty() => crashed(
            format!("job {id} never began"),
            "Slurm has no such job any more: it was cancelled in the queue, or could not start".into(),
            &format!("{log}, then resume"),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Liveness, derive};
    use cluster::slurm::read_queue;
    use rundir::fixtures::{attempt, node};
    use rundir::{Event, EventKind, ExitFile, ExitReason, SCHEMA};

    fn job(state: &str, reason: &str) -> Option<JobStatus> {
        let line = format!("42|{state}|{reason}|0:05|10:00|2|ml-[1-2]|1000|1600|ada|train|gres:gpu:1|demo");
        let job = read_queue(&line).rows.remove(0);
        Some(JobStatus { reply: JobReply::Job(Box::new(job)), ..JobStatus::unknown(42) })
    }

    fn facts(job: Option<JobStatus>) -> RunFacts {
        let attempt = Some(attempt(2, 20, &["ml-1", "ml-2"]));
        RunFacts { attempt, alive: Liveness::Dead, last_metric: Some((40, 1100.0)), job, ..RunFacts::default() }
    }

    fn exits(reason: ExitReason) -> Vec<ExitFile> {
        let exit = |name| ExitFile {
            schema: SCHEMA,
            attempt: 2,
            node: node(name),
            ended_s: 1105.0,
            reason,
            first_failure: None,
            failure: None,
            ranks: vec![],
        };
        vec![exit("ml-1"), exit("ml-2")]
    }

    #[test]
    fn a_run_with_a_pending_job_is_queued_and_not_stopped() {
        let waiting = RunFacts { exits: exits(ExitReason::Stopped), ..facts(job("PENDING", "BeginTime")) };
        assert_eq!(derive(&waiting, 9e9), RunState::Queued);
        let over = RunFacts { job: job("COMPLETED", "None"), ..waiting };
        assert_eq!(derive(&over, 9e9), RunState::Stopped);
    }

    #[test]
    fn a_requeued_job_that_has_begun_is_starting_before_its_attempt_is_written() {
        let begun = |reason, start: f64| {
            let line = format!("42|RUNNING|None|0:05|10:00|2|ml-[1-2]|{start}|9000|ada|train|gres:gpu:1|demo");
            let job = read_queue(&line).rows.remove(0);
            let job = Some(JobStatus { reply: JobReply::Job(Box::new(job)), ..JobStatus::unknown(42) });
            derive(&RunFacts { exits: exits(reason), ..facts(job) }, 1200.0)
        };
        assert_eq!(begun(ExitReason::Stopped, 1150.0), RunState::Starting);
        assert_eq!(begun(ExitReason::Stopped, 1000.0), RunState::Stopped, "its own ranks have ended just now");
    }

    #[test]
    fn the_state_of_the_job_counts_more_than_what_its_processes_recorded() {
        let of = |state| {
            let recorded = derive(&RunFacts { exits: exits(ExitReason::Failed), ..facts(job(state, "None")) }, 9e9);
            assert_eq!(recorded, derive(&facts(job(state, "None")), 9e9), "{state}");
            let mut lost_a_peer = facts(job(state, "None"));
            let failed = EventKind::Failed { failure: Failure::peer_lost(None, "connection reset", "") };
            lost_a_peer.see_event(&Event::new(1104.0, 2, Some(40), failed));
            assert_eq!(recorded, derive(&lost_a_peer, 9e9), "{state}");
            match recorded {
                RunState::Crashed(failure) => Some(failure.code),
                state => {
                    assert_eq!(state, RunState::Stopped);
                    None
                }
            }
        };
        assert_eq!(
            ["CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"].map(of),
            [
                None,
                Some(ErrorCode::SlurmTimeLimit),
                Some(ErrorCode::NodeLost),
                Some(ErrorCode::SlurmPreempted),
                Some(ErrorCode::OutOfMemory)
            ]
        );
    }

    #[test]
    fn the_failure_of_a_job_that_could_not_start_has_the_reason_of_slurm() {
        let failure = |job| match derive(&RunFacts { last_metric: None, ..facts(job) }, 9e9) {
            RunState::Crashed(failure) => failure,
            state => panic!("{state:?}"),
        };
        for reason in ["JobLaunchFailure", "NonZeroExitCode"] {
            let failure = failure(job("FAILED", reason));
            assert_eq!(failure.code, ErrorCode::SlurmFailed);
            assert!(failure.why.contains(reason), "{failure}");
        }
    }

    #[test]
    fn a_job_that_began_after_a_stop_request_is_stopped() {
        let requested = RunFacts { stopping: true, stops_for_good: true, ..facts(job("COMPLETED", "None")) };
        assert_eq!(derive(&requested, 9e9), RunState::Stopped);
        let warned = RunFacts { stops_for_good: false, ..requested };
        assert!(matches!(derive(&warned, 9e9), RunState::Crashed(_)));
    }

    #[test]
    fn a_suspended_job_is_not_stalled() {
        let silent = |state| RunFacts { alive: Liveness::Alive, median_step_s: Some(1.0), ..facts(job(state, "None")) };
        assert!(matches!(derive(&silent("RUNNING"), 9e9), RunState::Stalled { .. }));
        for halted in ["SUSPENDED", "STOPPED"] {
            assert_eq!(derive(&silent(halted), 9e9), RunState::Running);
        }
    }

    #[test]
    fn a_run_is_not_dead_while_slurm_does_not_answer() {
        let silent = RunFacts { alive: Liveness::Unknown, ..facts(Some(JobStatus::unknown(42))) };
        assert_eq!(derive(&silent, 1101.0), RunState::Running, "its files show steps");
        assert_eq!(derive(&silent, 9e9), RunState::Unknown);
    }
}
