//! The states of the runs' Slurm jobs, queried in the background for all readers.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::slurm::{self, Accounted, Job, JobReply, JobStatus, NoReply};
use nix::unistd::Uid;
use rundir::now_s;

use super::{cluster_of_user, jobs, run, user_name};
use crate::threads;

/// The shortest time between two queries. The controller serves the whole cluster.
const EVERY: Duration = Duration::from_secs(3);
/// The pause after a query is at least this many times its duration.
const PAUSE_FACTOR: u32 = 10;
/// A job that was not read for this time is no longer queried.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// The states of the runs' Slurm jobs. One query in the background serves all jobs and readers.
#[derive(Debug, Clone, Default)]
pub struct SlurmQueue {
    shared: Arc<(Mutex<Known>, Condvar)>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: BTreeMap<u64, Entry>,
    /// When the running query began, in Unix seconds.
    querying_since_s: Option<f64>,
    /// When Slurm may be queried again.
    next: Option<Instant>,
    no_reply: Option<NoReply>,
}

#[derive(Debug)]
struct Entry {
    status: JobStatus,
    /// Whether a query for the job has completed or failed.
    is_queried: bool,
    /// Whether the state of the job cannot change any more.
    is_final: bool,
    last_read: Instant,
}

impl SlurmQueue {
    /// Returns the latest state of a job. Starts a query if that state is old. Waits up to `timeout` for the first reply; if
    /// the reply takes longer, a later call returns it.
    pub fn job(&self, job: u64, timeout: Duration) -> JobStatus {
        let deadline = Instant::now() + timeout;
        let mut known = self.lock();
        let entry = known.jobs.entry(job).or_insert_with(|| Entry {
            status: JobStatus::unknown(job),
            is_queried: false,
            is_final: false,
            last_read: Instant::now(),
        });
        entry.last_read = Instant::now();
        let is_new = !entry.is_queried;
        let is_due = is_new || known.next.is_none_or(|next| Instant::now() >= next);
        if is_due && !known.jobs[&job].is_final && known.querying_since_s.is_none() {
            known.querying_since_s = Some(now_s());
            let queue = self.clone();
            threads::spawn(move || queue.query());
        }
        // Wait only for the first reply: a state that is some seconds old is recent enough.
        let is_pending = |known: &mut Known| {
            known.querying_since_s.is_some() && known.jobs.get(&job).is_some_and(|entry| !entry.is_queried)
        };
        let wait = deadline.saturating_duration_since(Instant::now());
        let waited = self.shared.1.wait_timeout_while(known, wait, is_pending);
        let known = waited.unwrap_or_else(PoisonError::into_inner).0;
        let Some(entry) = known.jobs.get(&job) else { return JobStatus::unknown(job) };
        let slow = |since_s| NoReply { since_s, why: "the controller is slow to answer".into() };
        let no_reply = match (entry.is_final, entry.is_queried) {
            (true, _) => None,
            (false, true) => known.no_reply.clone(),
            (false, false) => known.no_reply.clone().or_else(|| known.querying_since_s.map(slow)),
        };
        JobStatus { no_reply, ..entry.status.clone() }
    }

    /// Queries all jobs that readers requested recently. Repeats the query if jobs were added meanwhile.
    fn query(&self) {
        loop {
            let before: BTreeMap<u64, JobStatus> = {
                let mut known = self.lock();
                known.jobs.retain(|_, entry| entry.last_read.elapsed() < FORGET_AFTER);
                let open = known.jobs.iter().filter(|(_, entry)| !entry.is_final);
                open.map(|(id, entry)| (*id, entry.status.clone())).collect()
            };
            let began = Instant::now();
            let ids: Vec<u64> = before.keys().copied().collect();
            let listed = if ids.is_empty() { Ok(Vec::new()) } else { jobs(&ids) };
            let updated = listed.map(|listed| update(&before, &listed));
            let mut known = self.lock();
            // If the controller does not reply, retry soon: the query causes it no load.
            let pause = if updated.is_ok() { EVERY.max(began.elapsed() * PAUSE_FACTOR) } else { EVERY };
            known.next = Some(Instant::now() + pause);
            match updated {
                Ok(statuses) => {
                    known.no_reply = None;
                    for (id, (status, is_final)) in statuses {
                        if let Some(entry) = known.jobs.get_mut(&id) {
                            (entry.status, entry.is_final) = (status, is_final);
                        }
                    }
                }
                Err(error) => {
                    let since_s = known.no_reply.as_ref().map_or_else(now_s, |no_reply| no_reply.since_s);
                    known.no_reply = Some(NoReply { since_s, why: error.to_string() });
                }
            }
            for id in ids {
                known.jobs.entry(id).and_modify(|entry| entry.is_queried = true);
            }
            let is_done = known.jobs.values().all(|entry| entry.is_queried);
            known.querying_since_s = known.querying_since_s.filter(|_| !is_done);
            self.shared.1.notify_all();
            if is_done {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // A thread that panicked left consistent values.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the states of jobs from the listed queue, and whether each is final.
fn update(before: &BTreeMap<u64, JobStatus>, listed: &[Job]) -> Vec<(u64, (JobStatus, bool))> {
    let find = |id: u64| listed.iter().find(|job| job.id == id.to_string());
    // Accounting has the user who cancelled a job, and the end of a job that is no longer in the queue.
    let needs_accounting = |(id, before): &(&u64, &JobStatus)| {
        find(**id).is_none_or(|job| job.state.is_over() && before.state() != Some(&job.state))
    };
    let ended: Vec<u64> = before.iter().filter(needs_accounting).map(|(id, _)| *id).collect();
    let records = if ended.is_empty() { Vec::new() } else { accounted(&ended) };
    let update = |(id, before): (&u64, &JobStatus)| {
        let record = records.iter().find(|row| row.id == id.to_string());
        let cancelled_by = record.and_then(|row| row.cancelled_by).map(|user| user_name(Uid::from_raw(user)));
        let reply = match (find(*id), record) {
            (Some(job), _) => JobReply::Job(Box::new(job.clone())),
            (None, Some(row)) => JobReply::Job(Box::new(of_record(row.clone()))),
            (None, None) => JobReply::Purged,
        };
        let cancelled_by = cancelled_by.or_else(|| before.cancelled_by.clone());
        // A job that Slurm still lists may be requeued, so it is not final.
        (*id, (JobStatus { reply, cancelled_by, ..JobStatus::unknown(*id) }, find(*id).is_none()))
    };
    before.iter().map(update).collect()
}

/// Reads the accounting records of jobs; empty where the cluster has no accounting.
fn accounted(ids: &[u64]) -> Vec<Accounted> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let list = format!("--jobs={}", ids.join(","));
    // Unlike the other commands, sacct does not read the variable.
    let cluster = cluster_of_user().map(|cluster| format!("--clusters={cluster}"));
    let words: Vec<&str> = slurm::ACCOUNTING.into_iter().chain([list.as_str()]).chain(cluster.as_deref()).collect();
    let rows =
        run("look up its jobs", &words).map_or_else(|_| Vec::new(), |answer| slurm::read_accounting(&answer).rows);
    rows.into_iter().filter(|row| row.step.is_none()).collect()
}

fn of_record(row: Accounted) -> Job {
    Job {
        id: row.id,
        state: row.state,
        reason: None,
        elapsed_s: row.elapsed_s,
        limit_s: None,
        node_count: None,
        node_list: row.node_list,
        start: row.start,
        end: row.end,
        user: String::new(),
        partition: String::new(),
        gpus_per_node: None,
        name: row.name,
    }
}

#[cfg(test)]
mod tests {
    use cluster::slurm::JobState;

    use super::*;

    fn listed(lines: &[&str]) -> Vec<Job> {
        slurm::read_queue(&lines.join("\n")).rows
    }

    fn unseen(ids: &[u64]) -> BTreeMap<u64, JobStatus> {
        ids.iter().map(|id| (*id, JobStatus::unknown(*id))).collect()
    }

    #[test]
    fn only_a_job_that_left_the_queue_has_a_final_state() {
        let list = listed(&[
            "7|RUNNING|None|0:05|10:00|2|node[01-02]|1000|1600|ada|train|gres:gpu:1|demo",
            "8|CANCELLED|None|0:05|10:00|2|node[01-02]|1000|1600|ada|train|gres:gpu:1|demo",
            "71|PENDING|Resources|0:00|10:00|2|||N/A|ada|train|gres:gpu:1|other",
        ]);
        let updated = update(&unseen(&[7, 8, 9]), &list);
        let states: Vec<_> = updated.iter().map(|(id, (status, is_final))| (*id, status.state(), *is_final)).collect();
        assert_eq!(states[0], (7, Some(&JobState::Running), false));
        assert_eq!(states[1], (8, Some(&JobState::Cancelled), false));
        assert_eq!((states[2], &updated[2].1.0.reply), ((9, None, true), &JobReply::Purged));
    }

    #[test]
    fn without_slurm_the_last_known_state_and_the_missing_reply_are_reported() {
        let queue = SlurmQueue::default();
        let entry = |status| Entry { status, is_queried: false, is_final: false, last_read: Instant::now() };
        let running = listed(&["7|RUNNING|None|0:05|10:00|2|node01|1000|1600|ada|train|gres:gpu:1|demo"]).remove(0);
        let reply = JobReply::Job(Box::new(running));
        queue.lock().jobs.insert(7, entry(JobStatus { reply: reply.clone(), ..JobStatus::unknown(7) }));
        let status = queue.job(7, Duration::from_secs(60));
        assert_eq!(status.reply, reply);
        assert!(status.no_reply.is_some(), "this machine has a running Slurm");
    }
}
