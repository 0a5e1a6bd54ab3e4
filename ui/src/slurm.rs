//! The state of a Slurm job or node, as sentences.

use crate::text;
use cluster::slurm::{Job, JobSeen, JobSight, JobState, SlurmNode};

/// Why a job is pending, by the beginning of Slurm's reason. The first match counts.
const WAITS: [(&str, &str); 19] = [
    ("Resources", "waits for free nodes"),
    ("Priority", "waits behind jobs with higher priority"),
    ("BeginTime", "waits for its start time"),
    ("Dependency", "waits for another job"),
    ("JobHeldUser", "is held; release it with `scontrol release`"),
    ("job_requeued_in_held_state", "is held after a requeue; release it with `scontrol release`"),
    ("JobHeldAdmin", "is held by an administrator"),
    ("PartitionTimeLimit", "cannot start: its time limit exceeds that of the partition"),
    ("PartitionNodeLimit", "cannot start: it requests more nodes than the partition allows"),
    ("PartitionDown", "waits: its partition is down"),
    ("PartitionInactive", "waits: its partition is inactive"),
    ("ReqNodeNotAvail", "waits for nodes that are down, drained or reserved"),
    ("Nodes required for job are DOWN", "waits for nodes that are down, drained or reserved"),
    ("Reservation", "waits for its reservation"),
    ("Licenses", "waits for a licence"),
    ("QOS", "waits: a limit of its QOS is reached"),
    ("Assoc", "waits: a limit of its account is reached"),
    ("MaxCpuPerAccount", "waits: a limit of its account is reached"),
    ("launch failed requeued held", "is held after a failed launch; release it with `scontrol release`"),
];

/// Returns the state of a job, in a sentence or two.
pub fn sentence(sight: &JobSight, now: f64) -> String {
    let id = sight.id;
    let what = match (&sight.seen, &sight.silence) {
        (JobSeen::NotYet, Some(_)) => format!("Slurm job {id}."),
        (JobSeen::NotYet, None) => format!("Slurm has not reported job {id} yet."),
        (JobSeen::Forgotten, _) => format!("Slurm no longer lists job {id}."),
        (JobSeen::Job(job), _) => format!("{}.", of_job(id, job, sight.cancelled_by.as_deref(), now)),
    };
    match &sight.silence {
        None => what,
        Some(silence) => {
            let since = units::duration((now - silence.since_s).max(0.0));
            format!("{what} Slurm has not answered for {since}: {}.", silence.why)
        }
    }
}

fn of_job(id: u64, job: &Job, cancelled_by: Option<&str>, now: f64) -> String {
    let reason = job.reason.as_deref().unwrap_or_default();
    match &job.state {
        JobState::Pending | JobState::Requeued => {
            let wait = WAITS.iter().find(|(word, _)| reason.starts_with(word)).map(|(_, waits)| *waits);
            let mut text = format!("Job {id} {}", wait.unwrap_or("waits in the queue"));
            if !reason.is_empty() {
                text += &format!(" ({reason})");
            }
            // Slurm has an expected start only for jobs that it has planned.
            if let Some(start_s) = job.start.as_ref().and_then(|start| start.unix_s()).filter(|start| *start > now) {
                text += &format!("; expected to start in {}", units::duration(start_s - now));
            }
            text
        }
        JobState::Configuring => format!("The nodes of job {id} are being prepared"),
        JobState::Running => {
            let nodes = job.node_list.as_ref().map_or(String::new(), |nodes| format!(" on {nodes}"));
            let time = match (job.elapsed_s, job.limit_s) {
                (Some(elapsed), Some(limit)) => {
                    format!(", {} of {}", units::duration(elapsed as f64), units::duration(limit as f64))
                }
                (Some(elapsed), None) => format!(", for {}", units::duration(elapsed as f64)),
                (None, _) => String::new(),
            };
            format!("Job {id} is running{nodes}{time}")
        }
        JobState::Suspended => format!("Job {id} is suspended; its processes are stopped"),
        JobState::Completing => {
            let nodes = job.node_list.as_ref().map_or(String::new(), |nodes| format!(" on {nodes}"));
            format!("Job {id} is completing{nodes}")
        }
        JobState::Completed => format!("Job {id} has completed"),
        JobState::Cancelled => {
            let by = cancelled_by.map_or(String::new(), |user| format!(" by {user}"));
            format!("Job {id} was cancelled{by}")
        }
        JobState::Failed => format!("Job {id} has failed{}", in_parentheses(reason)),
        JobState::Timeout => format!("Job {id} reached its time limit"),
        JobState::NodeFail => format!("Job {id} lost a node"),
        JobState::Preempted => format!("Job {id} was preempted by another job"),
        JobState::OutOfMemory => format!("Job {id} ran out of memory"),
        JobState::BootFail => format!("The nodes of job {id} failed to boot"),
        JobState::Deadline => format!("Job {id} missed its deadline"),
        JobState::Other(word) => format!("Job {id} is in state {word}{}", in_parentheses(reason)),
    }
}

fn in_parentheses(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// Returns the reason why a node is down or drained.
pub fn reason(node: &SlurmNode) -> Option<String> {
    node.reason.as_deref().map(text::clean)
}

/// Returns Slurm's state of a node, in one line.
pub fn of_node(node: &SlurmNode, now: f64) -> String {
    let state = &node.state;
    let besides = [
        (!state.responds, "not responding"),
        (!state.powered, "powered off"),
        (state.in_maintenance, "in maintenance"),
    ];
    let mut text = format!("Slurm: {} in {}", text::clean(&state.base.to_string()), text::clean(&node.partition));
    besides.iter().filter(|(is_so, _)| *is_so).for_each(|(_, what)| text += &format!(", {what}"));
    if let Some(reason) = reason(node) {
        let since_s = node.reason_since.as_ref().and_then(|since| since.unix_s());
        let since =
            since_s.map_or(String::new(), |since| format!(", for {}", units::short_duration((now - since).max(0.0))));
        text += &format!("{since}: {reason}");
    }
    text
}

/// Returns a job's state in a few words: `job 42 pending`.
pub fn short(sight: &JobSight) -> String {
    let state = match &sight.seen {
        JobSeen::NotYet => String::new(),
        JobSeen::Forgotten => " forgotten".to_owned(),
        JobSeen::Job(job) => format!(" {}", job.state.to_string().to_lowercase().replace('_', " ")),
    };
    let silent = if sight.silence.is_some() { ", Slurm not responding" } else { "" };
    format!("job {}{state}{silent}", sight.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::slurm::{Silence, read_queue};

    const NOW: f64 = 1_795_147_200.0;

    fn seen(line: &str) -> JobSight {
        let job = read_queue(line).rows.remove(0);
        JobSight { seen: JobSeen::Job(Box::new(job)), ..JobSight::unseen(42) }
    }

    #[test]
    fn every_job_state_is_a_sentence() {
        let start = NOW + 750.0;
        let mut text: Vec<String> = [
            format!("PENDING|Resources|0:00|10:00|4||{start}"),
            "PENDING|Priority|0:00|10:00|4||N/A".into(),
            "PENDING|QOSMaxJobsPerUserLimit|0:00|10:00|4||N/A".into(),
            "PENDING|Whatever|0:00|10:00|4||N/A".into(),
            "CONFIGURING|None|0:00|10:00|4|node[01-04]|N/A".into(),
            "RUNNING|None|0:05|10:00|4|node[01-04]|N/A".into(),
            "RUNNING|None|1-02:00:05|UNLIMITED|4|node[01-04]|N/A".into(),
            "COMPLETING|None|0:05|10:00|2|node[03-04]|N/A".into(),
            "CANCELLED|None|0:05|10:00|4||N/A".into(),
            "TIMEOUT|TimeLimit|0:05|10:00|4||N/A".into(),
            "FAILED|NonZeroExitCode|0:05|10:00|4||N/A".into(),
            "NODE_FAIL|None|0:05|10:00|4||N/A".into(),
            "PREEMPTED|None|0:05|10:00|4||N/A".into(),
            "OUT_OF_MEMORY|OutOfMemory|0:05|10:00|4||N/A".into(),
            "LEVITATING|Magic|0:05|10:00|4||N/A".into(),
        ]
        .map(|cells: String| sentence(&seen(&format!("42|{cells}|N/A|ada|train|gres:gpu:1|demo")), NOW))
        .to_vec();
        let silence = Some(Silence { since_s: NOW - 40.0, why: "its controller does not answer".into() });
        let running = seen("42|RUNNING|None|0:05|10:00|4|node[01-04]|N/A|N/A|ada|train|gres:gpu:1|demo");
        let cancelled = seen("42|CANCELLED|None|0:05|10:00|4||N/A|N/A|ada|train|gres:gpu:1|demo");
        text.push(sentence(&JobSight { cancelled_by: Some("grace".into()), ..cancelled }, NOW));
        text.push(sentence(&JobSight { silence: silence.clone(), ..running }, NOW));
        text.push(sentence(&JobSight { silence, ..JobSight::unseen(42) }, NOW));
        text.push(sentence(&JobSight { seen: JobSeen::Forgotten, ..JobSight::unseen(42) }, NOW));
        insta::assert_snapshot!(text.join("\n"));
    }

    #[test]
    fn a_job_has_a_short_description() {
        let running = seen("42|OUT_OF_MEMORY|None|0:05|10:00|4||N/A|N/A|ada|train|gres:gpu:1|demo");
        assert_eq!(short(&running), "job 42 out of memory");
    }
}
