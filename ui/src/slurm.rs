//! Formats the state of a Slurm job or node as text.

use crate::text;
use cluster::slurm::{Job, JobReply, JobState, JobStatus, SlurmNode, Wait};

/// Returns the state of a job in one or two sentences.
pub fn sentence(status: &JobStatus, now: f64) -> String {
    let id = status.id;
    let what = match (&status.reply, &status.no_reply) {
        (JobReply::None, Some(_)) => format!("Slurm job {id}."),
        (JobReply::None, None) => format!("Slurm has not reported job {id} yet."),
        (JobReply::Purged, _) => format!("Slurm no longer lists job {id}."),
        (JobReply::Job(job), _) => format!("{}.", of_job(id, job, status.cancelled_by.as_deref(), now)),
    };
    match &status.no_reply {
        None => what,
        Some(no_reply) => {
            let since = units::duration((now - no_reply.since_s).max(0.0));
            format!("{what} Slurm has not answered for {since}: {}.", no_reply.why)
        }
    }
}

fn of_job(id: u64, job: &Job, cancelled_by: Option<&str>, now: f64) -> String {
    let reason = job.reason.as_deref().unwrap_or_default();
    match &job.state {
        JobState::Pending | JobState::Requeued => waiting(id, job, now),
        JobState::Other(_) if job.pending_reason().is_some() => waiting(id, job, now),
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

fn waiting(id: u64, job: &Job, now: f64) -> String {
    let reason = job.reason.as_deref().unwrap_or_default();
    let mut text = match job.pending_reason() {
        Some(pending) => text::capitalized(&pending.sentence(id, reason)),
        None => format!("Job {id} waits in the queue{}", in_parentheses(reason)),
    };
    if job.pending_reason().is_some_and(|pending| pending.wait == Wait::Never) {
        // The time before which a held job would not start.
        return text;
    }
    // Slurm reports an expected start only for jobs that it has planned.
    if let Some(start_s) = job.start.as_ref().and_then(|start| start.unix_s()).filter(|start| *start > now) {
        text += &format!("; expected to start in {}", units::duration(start_s - now));
    }
    text
}

fn in_parentheses(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// Returns the reason why a node is down or drained.
pub fn reason(node: &SlurmNode) -> Option<String> {
    node.reason.as_deref().map(text::clean)
}

/// Returns the state of a node in Slurm as one line.
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
pub fn short(status: &JobStatus) -> String {
    let state = match &status.reply {
        JobReply::None => String::new(),
        JobReply::Purged => " no longer listed".to_owned(),
        JobReply::Job(job) => format!(" {}", job.state.to_string().to_lowercase().replace('_', " ")),
    };
    let silent = if status.no_reply.is_some() { ", Slurm not responding" } else { "" };
    format!("job {}{state}{silent}", status.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::slurm::{NoReply, read_queue};

    const NOW: f64 = 1_795_147_200.0;

    fn seen(line: &str) -> JobStatus {
        let job = read_queue(line).rows.remove(0);
        JobStatus { reply: JobReply::Job(Box::new(job)), ..JobStatus::unknown(42) }
    }

    #[test]
    fn every_job_state_is_a_sentence() {
        let start = NOW + 750.0;
        let mut text: Vec<String> = [
            format!("PENDING|Resources|0:00|10:00|4||{start}"),
            "PENDING|Priority|0:00|10:00|4||N/A".into(),
            format!("PENDING|DependencyNeverSatisfied|0:00|10:00|4||{start}"),
            "SPECIAL_EXIT|Whatever|0:00|10:00|4||N/A".into(),
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
        let no_reply = Some(NoReply { since_s: NOW - 40.0, why: "its controller does not answer".into() });
        let running = seen("42|RUNNING|None|0:05|10:00|4|node[01-04]|N/A|N/A|ada|train|gres:gpu:1|demo");
        let cancelled = seen("42|CANCELLED|None|0:05|10:00|4||N/A|N/A|ada|train|gres:gpu:1|demo");
        text.push(sentence(&JobStatus { cancelled_by: Some("grace".into()), ..cancelled }, NOW));
        text.push(sentence(&JobStatus { no_reply: no_reply.clone(), ..running }, NOW));
        text.push(sentence(&JobStatus { no_reply, ..JobStatus::unknown(42) }, NOW));
        text.push(sentence(&JobStatus { reply: JobReply::Purged, ..JobStatus::unknown(42) }, NOW));
        insta::assert_snapshot!(text.join("\n"));
    }

    #[test]
    fn a_job_has_a_short_description() {
        let running = seen("42|OUT_OF_MEMORY|None|0:05|10:00|4||N/A|N/A|ada|train|gres:gpu:1|demo");
        insta::assert_snapshot!(short(&running));
    }
}
