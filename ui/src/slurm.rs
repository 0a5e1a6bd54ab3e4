//! A run's Slurm job in plain words.

use crate::text;
use cluster::slurm::{Job, JobSeen, JobSight, JobState, SlurmNode};

/// What a job waits for, by Slurm's word for it or its beginning. The first that fits counts.
const WAITS: [(&str, &str); 19] = [
    ("Resources", "waits for nodes to be free"),
    ("Priority", "waits behind jobs of higher priority"),
    ("BeginTime", "waits for its time to begin"),
    ("Dependency", "waits for another job"),
    ("JobHeldUser", "is held; `scontrol release` lets it go"),
    ("job_requeued_in_held_state", "is held since it was requeued; `scontrol release` lets it go"),
    ("JobHeldAdmin", "is held by who runs the cluster"),
    ("PartitionTimeLimit", "will not begin: it asks for more time than its partition gives"),
    ("PartitionNodeLimit", "will not begin: it asks for more nodes than its partition has"),
    ("PartitionDown", "waits for its partition to be up"),
    ("PartitionInactive", "waits for its partition to be up"),
    ("ReqNodeNotAvail", "waits for nodes that are down, drained or reserved"),
    ("Nodes required for job are DOWN", "waits for nodes that are down, drained or reserved"),
    ("Reservation", "waits for its reservation"),
    ("Licenses", "waits for a licence"),
    ("QOS", "waits: a limit of its quality of service is reached"),
    ("Assoc", "waits: a limit of its account is reached"),
    ("MaxCpuPerAccount", "waits: a limit of its account is reached"),
    ("launch failed requeued held", "is held since it could not be started; `scontrol release` lets it go"),
];

/// Says what is known of a job, in a sentence or two.
pub fn sentence(sight: &JobSight, now: f64) -> String {
    let id = sight.id;
    let what = match (&sight.seen, &sight.silence) {
        (JobSeen::NotYet, Some(_)) => format!("It is job {id}."),
        (JobSeen::NotYet, None) => format!("It is job {id}, of which Slurm has not said anything yet."),
        (JobSeen::Forgotten, _) => format!("It was job {id}, which Slurm knows no more."),
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
            let known = WAITS.iter().find(|(word, _)| reason.starts_with(word)).map(|(_, waits)| *waits);
            let mut text = format!("Job {id} {}", known.unwrap_or("waits in the queue"));
            if !reason.is_empty() {
                text += &format!(" ({reason})");
            }
            // Where Slurm has made no plan for it, there is no time.
            if let Some(start_s) = job.start.as_ref().and_then(|start| start.unix_s()).filter(|start| *start > now) {
                text += &format!("; Slurm expects it to begin in {}", units::duration(start_s - now));
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
            format!("Job {id} runs{nodes}{time}")
        }
        JobState::Suspended => format!("Job {id} is suspended: its processes stand still"),
        JobState::Completing => {
            let nodes = job.node_list.as_ref().map_or(String::new(), |nodes| format!(" on {nodes}"));
            format!("Job {id} is ending{nodes}")
        }
        JobState::Completed => format!("Job {id} has ended"),
        JobState::Cancelled => {
            let by = cancelled_by.map_or(String::new(), |user| format!(" by {user}"));
            format!("Job {id} was cancelled{by}")
        }
        JobState::Failed => format!("Job {id} has failed{}", in_parentheses(reason)),
        JobState::Timeout => format!("Job {id} ran into its time limit"),
        JobState::NodeFail => format!("Job {id} lost a node"),
        JobState::Preempted => format!("Job {id} was preempted by another job"),
        JobState::OutOfMemory => format!("Job {id} ran out of memory"),
        JobState::BootFail => format!("The nodes of job {id} could not be started"),
        JobState::Deadline => format!("Job {id} could not have ended by its deadline"),
        JobState::Other(word) => format!("Slurm says {word} of job {id}{}", in_parentheses(reason)),
    }
}

fn in_parentheses(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// Says why a node is down or drained, where somebody or Slurm itself said so.
pub fn reason(node: &SlurmNode) -> Option<String> {
    node.reason.as_deref().map(text::clean)
}

/// Says in a line what a node is to Slurm.
pub fn of_node(node: &SlurmNode, now: f64) -> String {
    let state = &node.state;
    let besides = [
        (!state.responds, "does not answer"),
        (!state.powered, "is not powered"),
        (state.in_maintenance, "is in maintenance"),
    ];
    let mut said = format!("Slurm: {} in {}", text::clean(&state.base.to_string()), text::clean(&node.partition));
    besides.iter().filter(|(is_so, _)| *is_so).for_each(|(_, what)| said += &format!(", {what}"));
    if let Some(reason) = reason(node) {
        let since_s = node.reason_since.as_ref().and_then(|since| since.unix_s());
        let since =
            since_s.map_or(String::new(), |since| format!(", for {}", units::short_duration((now - since).max(0.0))));
        said += &format!("{since}: {reason}");
    }
    said
}

/// Says the same in a few words: `job 42 pending`.
pub fn short(sight: &JobSight) -> String {
    let state = match &sight.seen {
        JobSeen::NotYet => String::new(),
        JobSeen::Forgotten => " forgotten".to_owned(),
        JobSeen::Job(job) => format!(" {}", job.state.to_string().to_lowercase().replace('_', " ")),
    };
    let silent = if sight.silence.is_some() { ", Slurm is silent" } else { "" };
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
    fn every_state_of_a_job_is_a_sentence() {
        let start = NOW + 750.0;
        let mut said: Vec<String> = [
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
        said.push(sentence(&JobSight { cancelled_by: Some("grace".into()), ..cancelled }, NOW));
        said.push(sentence(&JobSight { silence: silence.clone(), ..running }, NOW));
        said.push(sentence(&JobSight { silence, ..JobSight::unseen(42) }, NOW));
        said.push(sentence(&JobSight { seen: JobSeen::Forgotten, ..JobSight::unseen(42) }, NOW));
        insta::assert_snapshot!(said.join("\n"));
    }

    #[test]
    fn a_job_is_told_in_a_few_words() {
        let running = seen("42|OUT_OF_MEMORY|None|0:05|10:00|4||N/A|N/A|ada|train|gres:gpu:1|demo");
        assert_eq!(short(&running), "job 42 out of memory");
    }
}
