use rundir::now_s;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::slurm::{self, Accounted, Job, JobSeen, JobSight, Silence};
use nix::unistd::Uid;

use super::{jobs, run, user_name};

/// How often Slurm is asked, at most. Its controller serves the whole cluster.
const EVERY: Duration = Duration::from_secs(3);
/// It has at least this many times as long to rest as it needed to answer.
const REST: u32 = 10;
/// A job that nobody has looked at for so long is not asked about any more.
const FORGET: Duration = Duration::from_secs(30);

/// What Slurm says of the jobs that runs are: one question for all of them, asked in the background.
#[derive(Debug, Clone, Default)]
pub struct SlurmQueue {
    shared: Arc<(Mutex<Known>, Condvar)>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: BTreeMap<u64, Entry>,
    /// Since when it is being asked, Unix seconds.
    asking_since_s: Option<f64>,
    /// When Slurm may be asked again.
    next: Option<Instant>,
    silence: Option<Silence>,
}

#[derive(Debug)]
struct Entry {
    sight: JobSight,
    /// Whether an answer, or none in time, has come for it.
    is_asked: bool,
    /// Whether nothing more can change.
    is_settled: bool,
    wanted: Instant,
}

impl SlurmQueue {
    /// Says what is known of a job. It is asked for when that is old, and waited for as long as `patience` lasts; a later
    /// call has the answer.
    pub fn see(&self, job: u64, patience: Duration) -> JobSight {
        let deadline = Instant::now() + patience;
        let mut known = self.lock();
        let entry = known.jobs.entry(job).or_insert_with(|| Entry {
            sight: JobSight::unseen(job),
            is_asked: false,
            is_settled: false,
            wanted: Instant::now(),
        });
        entry.wanted = Instant::now();
        let is_new = !entry.is_asked;
        let is_due = is_new || known.next.is_none_or(|next| Instant::now() >= next);
        if is_due && !known.jobs[&job].is_settled && known.asking_since_s.is_none() {
            known.asking_since_s = Some(now_s());
            let queue = self.clone();
            thread::spawn(move || queue.ask());
        }
        // What was said some seconds ago is as good as what is said now, unless nothing was.
        let is_unasked = |known: &mut Known| {
            known.asking_since_s.is_some() && known.jobs.get(&job).is_some_and(|entry| !entry.is_asked)
        };
        let wait = deadline.saturating_duration_since(Instant::now());
        let waited = self.shared.1.wait_timeout_while(known, wait, is_unasked);
        let known = waited.unwrap_or_else(PoisonError::into_inner).0;
        let Some(entry) = known.jobs.get(&job) else { return JobSight::unseen(job) };
        let slow = |since_s| Silence { since_s, why: "its controller is slow to answer".into() };
        let silence = match (entry.is_settled, entry.is_asked) {
            (true, _) => None,
            (false, true) => known.silence.clone(),
            (false, false) => known.silence.clone().or_else(|| known.asking_since_s.map(slow)),
        };
        JobSight { silence, ..entry.sight.clone() }
    }

    /// Asks for all jobs that are wanted, until there is none that came up meanwhile.
    fn ask(&self) {
        loop {
            let wanted: BTreeMap<u64, JobSight> = {
                let mut known = self.lock();
                known.jobs.retain(|_, entry| entry.wanted.elapsed() < FORGET);
                let open = known.jobs.iter().filter(|(_, entry)| !entry.is_settled);
                open.map(|(id, entry)| (*id, entry.sight.clone())).collect()
            };
            let began = Instant::now();
            let ids: Vec<u64> = wanted.keys().copied().collect();
            let answer = if ids.is_empty() { Ok(Vec::new()) } else { jobs(&ids) };
            let answer = answer.map(|listed| judge_all(&wanted, &listed));
            let mut known = self.lock();
            // One that does not answer at all has little to do, and should be seen to be back.
            let rest = if answer.is_ok() { EVERY.max(began.elapsed() * REST) } else { EVERY };
            known.next = Some(Instant::now() + rest);
            match answer {
                Ok(sights) => {
                    known.silence = None;
                    for (id, (sight, is_settled)) in sights {
                        if let Some(entry) = known.jobs.get_mut(&id) {
                            (entry.sight, entry.is_settled) = (sight, is_settled);
                        }
                    }
                }
                Err(trouble) => {
                    let since_s = known.silence.as_ref().map_or_else(now_s, |silence| silence.since_s);
                    known.silence = Some(Silence { since_s, why: trouble.to_string() });
                }
            }
            for id in ids {
                known.jobs.entry(id).and_modify(|entry| entry.is_asked = true);
            }
            let is_done = known.jobs.values().all(|entry| entry.is_asked);
            known.asking_since_s = known.asking_since_s.filter(|_| !is_done);
            self.shared.1.notify_all();
            if is_done {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Whoever panicked left whole values.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of jobs after the queue was listed, and of which that is the last word.
fn judge_all(before: &BTreeMap<u64, JobSight>, listed: &[Job]) -> Vec<(u64, (JobSight, bool))> {
    let find = |id: u64| listed.iter().find(|job| job.id == id.to_string());
    // Who cancelled a job, and what became of one that the queue has forgotten, is known where jobs are accounted.
    let is_news = |(id, before): &(&u64, &JobSight)| {
        find(**id).is_none_or(|job| job.state.is_over() && before.state() != Some(&job.state))
    };
    let ended: Vec<u64> = before.iter().filter(is_news).map(|(id, _)| *id).collect();
    let records = if ended.is_empty() { Vec::new() } else { accounted(&ended) };
    let judge = |(id, before): (&u64, &JobSight)| {
        let record = records.iter().find(|row| row.id == id.to_string());
        let cancelled_by = record.and_then(|row| row.cancelled_by).map(|user| user_name(Uid::from_raw(user)));
        let seen = match (find(*id), record) {
            (Some(job), _) => JobSeen::Job(Box::new(job.clone())),
            (None, Some(row)) => JobSeen::Job(Box::new(of_record(row.clone()))),
            (None, None) => JobSeen::Forgotten,
        };
        let cancelled_by = cancelled_by.or_else(|| before.cancelled_by.clone());
        // It may be put back into the queue for as long as Slurm lists it.
        (*id, (JobSight { seen, cancelled_by, ..JobSight::unseen(*id) }, find(*id).is_none()))
    };
    before.iter().map(judge).collect()
}

/// Looks jobs up as they were accounted; where they are not, there is nothing.
fn accounted(ids: &[u64]) -> Vec<Accounted> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let list = format!("--jobs={}", ids.join(","));
    let words: Vec<&str> = slurm::ACCOUNTING.into_iter().chain([list.as_str()]).collect();
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

    fn unseen(ids: &[u64]) -> BTreeMap<u64, JobSight> {
        ids.iter().map(|id| (*id, JobSight::unseen(*id))).collect()
    }

    #[test]
    fn each_job_is_found_in_one_list_and_only_one_that_is_gone_from_it_is_settled() {
        let list = listed(&[
            "7|RUNNING|None|0:05|10:00|2|node[01-02]|1000|1600|ada|train|gres:gpu:1|demo",
            "8|CANCELLED|None|0:05|10:00|2|node[01-02]|1000|1600|ada|train|gres:gpu:1|demo",
            "71|PENDING|Resources|0:00|10:00|2|||N/A|ada|train|gres:gpu:1|other",
        ]);
        let judged = judge_all(&unseen(&[7, 8, 9]), &list);
        let told: Vec<_> = judged.iter().map(|(id, (sight, settled))| (*id, sight.state(), *settled)).collect();
        assert_eq!(told[0], (7, Some(&JobState::Running), false));
        assert_eq!(told[1], (8, Some(&JobState::Cancelled), false));
        assert_eq!((told[2], &judged[2].1.0.seen), ((9, None, true), &JobSeen::Forgotten));
    }

    #[test]
    fn a_console_without_slurm_says_so_and_knows_no_less_than_before() {
        let queue = SlurmQueue::default();
        let entry = |sight| Entry { sight, is_asked: false, is_settled: false, wanted: Instant::now() };
        let running = listed(&["7|RUNNING|None|0:05|10:00|2|node01|1000|1600|ada|train|gres:gpu:1|demo"]).remove(0);
        let seen = JobSeen::Job(Box::new(running));
        queue.lock().jobs.insert(7, entry(JobSight { seen: seen.clone(), ..JobSight::unseen(7) }));
        let sight = queue.see(7, Duration::from_secs(60));
        assert_eq!(sight.seen, seen);
        assert!(sight.silence.is_some(), "this machine has no Slurm, or none that runs");
    }
}
