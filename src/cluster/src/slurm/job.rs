//! Parses jobs: from the queue (squeue), their details (scontrol), and from accounting (sacct).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Rows;
use super::value::{ExitCode, SlurmTime, exit_code, gpus, read_duration, text, time};
use crate::NodeId;
use crate::hostlist::{self, HostlistError};

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum JobState {
    /// The job is pending; the reason shows why.
    Pending,
    /// Its nodes are being prepared.
    Configuring,
    /// The job is running.
    Running,
    /// The job is suspended.
    Suspended,
    /// The job is ending; processes may still be alive.
    Completing,
    /// The job ended without an error.
    Completed,
    /// A user or administrator cancelled it.
    Cancelled,
    /// The job ended with an error.
    Failed,
    /// The job reached its time limit.
    Timeout,
    /// A node of the job failed.
    NodeFail,
    /// Another job preempted it.
    Preempted,
    /// The job used more memory than requested.
    OutOfMemory,
    /// Its nodes could not boot.
    BootFail,
    /// Slurm ended the job at its deadline.
    Deadline,
    /// The job is requeued.
    Requeued,
    /// Another state, with Slurm's name.
    Other(String),
}

impl JobState {
    const NAMED: [(JobState, &str); 15] = [
        (JobState::Pending, "PENDING"),
        (JobState::Configuring, "CONFIGURING"),
        (JobState::Running, "RUNNING"),
        (JobState::Suspended, "SUSPENDED"),
        (JobState::Completing, "COMPLETING"),
        (JobState::Completed, "COMPLETED"),
        (JobState::Cancelled, "CANCELLED"),
        (JobState::Failed, "FAILED"),
        (JobState::Timeout, "TIMEOUT"),
        (JobState::NodeFail, "NODE_FAIL"),
        (JobState::Preempted, "PREEMPTED"),
        (JobState::OutOfMemory, "OUT_OF_MEMORY"),
        (JobState::BootFail, "BOOT_FAIL"),
        (JobState::Deadline, "DEADLINE"),
        (JobState::Requeued, "REQUEUED"),
    ];

    /// States that squeue can show for a job that has not started: it is requeued or held, or its nodes are not up yet.
    const WAITING: [&str; 8] = [
        "EXPEDITING",
        "LAUNCH_FAILED",
        "POWER_UP_NODE",
        "RECONFIG_FAIL",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    ];

    /// Returns whether the job has not started.
    pub fn is_waiting(&self) -> bool {
        match self {
            JobState::Pending | JobState::Configuring | JobState::Requeued => true,
            JobState::Other(word) => JobState::WAITING.contains(&word.as_str()),
            _ => false,
        }
    }

    /// Returns whether the processes of the job exist but are stopped.
    pub fn is_halted(&self) -> bool {
        *self == JobState::Suspended || *self == JobState::Other("STOPPED".into())
    }

    /// Returns whether the job has ended. An unknown state does not count as ended, nor does REVOKED, because another cluster of
    /// the federation runs the job.
    pub fn is_over(&self) -> bool {
        use JobState::*;
        matches!(
            self,
            Completed | Cancelled | Failed | Timeout | NodeFail | Preempted | OutOfMemory | BootFail | Deadline
        )
    }
}

/// Reads Slurm's name of a state; `CANCELLED by 1000` and `CANCELLED+` are cancelled.
impl From<String> for JobState {
    fn from(word: String) -> JobState {
        let bare = word.split_whitespace().next().unwrap_or("").trim_end_matches('+');
        let named = JobState::NAMED.iter().find(|(_, name)| *name == bare);
        named.map_or_else(|| JobState::Other(word.clone()), |(state, _)| state.clone())
    }
}

impl From<JobState> for String {
    fn from(state: JobState) -> String {
        state.to_string()
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobState::Other(word) => f.pad(word),
            known => f.pad(JobState::NAMED.iter().find(|(state, _)| state == known).map_or("", |(_, name)| name)),
        }
    }
}

/// A job in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The job id; `8_1` for a task of an array, `8_[2-9]` for its pending tasks.
    pub id: String,
    /// The state.
    pub state: JobState,
    /// Why it is pending or has ended.
    pub reason: Option<String>,
    /// Seconds that it has run.
    pub elapsed_s: Option<u64>,
    /// The time limit in seconds; none if it is unlimited or not set yet.
    pub limit_s: Option<u64>,
    /// The number of nodes that it has or requests.
    pub node_count: Option<u64>,
    /// Its nodes, in Slurm's notation.
    pub node_list: Option<String>,
    /// When it started or is expected to start.
    pub start: Option<SlurmTime>,
    /// When it ended or must end.
    pub end: Option<SlurmTime>,
    /// The user.
    pub user: String,
    /// The partition.
    pub partition: String,
    /// The requested GPUs per node, if given.
    pub gpus_per_node: Option<u64>,
    /// The name.
    pub name: String,
}

impl Job {
    /// Returns the names of its nodes.
    ///
    /// # Errors
    /// Slurm's list of nodes cannot be parsed.
    pub fn nodes(&self) -> Result<Vec<String>, HostlistError> {
        self.node_list.as_deref().map_or(Ok(Vec::new()), hostlist::expand)
    }

    /// Returns whether the job is completing and occupies only nodes of `nodes`. For a completing job, Slurm lists the nodes on
    /// which the job has not ended.
    pub fn is_left_only_on(&self, nodes: &[NodeId]) -> bool {
        let is_known = |name: &String| nodes.iter().any(|node| node.as_str() == name);
        self.state == JobState::Completing
            && self.nodes().is_ok_and(|left| !left.is_empty() && left.iter().all(is_known))
    }
}

/// Reads the output of [`QUEUE`](super::QUEUE).
pub fn read_queue(answer: &str) -> Rows<Job> {
    Rows::read(answer, 13, |cells| {
        let &[id, state, reason, elapsed, limit, nodes, list, start, end, user, partition, gres, name] = cells else {
            return None;
        };
        Some(Job {
            id: id.starts_with(|c: char| c.is_ascii_digit()).then(|| id.into())?,
            state: JobState::from(state.to_owned()),
            reason: text(reason),
            elapsed_s: read_duration(elapsed),
            limit_s: read_duration(limit),
            node_count: nodes.split('-').next().and_then(|count| count.parse().ok()),
            node_list: text(list),
            start: time(start),
            end: time(end),
            user: user.into(),
            partition: partition.into(),
            gpus_per_node: gpus(gres),
            name: name.into(),
        })
    })
}

/// A job or a step of it, from accounting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accounted {
    /// The job id.
    pub id: String,
    /// The step, `batch` or a number; `None` for the whole job.
    pub step: Option<String>,
    /// The user id of the user who cancelled it.
    pub cancelled_by: Option<u32>,
    /// The final state. For a requeued job, this is how it ended before the requeue; the queue has the current state.
    pub state: JobState,
    /// The exit status.
    pub exit: Option<ExitCode>,
    /// Seconds that it ran.
    pub elapsed_s: Option<u64>,
    /// Its nodes, in Slurm's notation.
    pub node_list: Option<String>,
    /// When it started.
    pub start: Option<SlurmTime>,
    /// When it ended.
    pub end: Option<SlurmTime>,
    /// The name.
    pub name: String,
}

/// Reads the output of [`ACCOUNTING`](super::ACCOUNTING).
pub fn read_accounting(answer: &str) -> Rows<Accounted> {
    Rows::read(answer, 8, |cells| {
        let &[id, state, exit, elapsed, nodes, start, end, name] = cells else { return None };
        let (job, step) = id.split_once('.').map_or((id, None), |(job, step)| (job, Some(step)));
        Some(Accounted {
            id: job.starts_with(|c: char| c.is_ascii_digit()).then(|| job.into())?,
            step: step.map(str::to_owned),
            cancelled_by: state.strip_prefix("CANCELLED by ").and_then(|user| user.trim().parse().ok()),
            state: JobState::from(state.to_owned()),
            exit: exit_code(exit),
            elapsed_s: read_duration(elapsed),
            node_list: text(nodes),
            start: time(start),
            end: time(end),
            name: name.into(),
        })
    })
}

/// All details of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetails {
    /// The job id.
    pub id: String,
    /// The state.
    pub state: JobState,
    /// Why it is pending or has ended.
    pub reason: Option<String>,
    /// The exit status.
    pub exit: Option<ExitCode>,
    /// The number of times that it was requeued.
    pub restarts: u64,
    /// Seconds that it has run.
    pub elapsed_s: Option<u64>,
    /// The time limit in seconds.
    pub limit_s: Option<u64>,
    /// When it started or is expected to start.
    pub start: Option<SlurmTime>,
    /// When it ended or must end.
    pub end: Option<SlurmTime>,
    /// Its nodes, in Slurm's notation.
    pub node_list: Option<String>,
    /// The node on which its script runs.
    pub batch_node: Option<String>,
    /// The output file, with `%j` replaced by the id.
    pub stdout: Option<String>,
    /// The folder from which it was submitted.
    pub work_dir: Option<String>,
    /// The comment.
    pub comment: Option<String>,
    fields: BTreeMap<String, String>,
}

impl JobDetails {
    /// Returns a value by Slurm's name, such as `TimeLimit`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str)
    }
}

/// Reads the output of [`JOB`](super::JOB): a line of `Key=value` pairs.
///
/// Values are not quoted and may contain blanks. A key begins with a capital letter. A value may contain text that looks like a
/// key, so the first of two equal keys counts.
pub fn read_job(answer: &str) -> Option<JobDetails> {
    let line = answer.lines().find(|line| line.starts_with("JobId="))?;
    let fields = fields(line);
    let get = |key: &str| fields.get(key).map(String::as_str).unwrap_or("");
    let id = get("JobId");
    Some(JobDetails {
        id: id.starts_with(|c: char| c.is_ascii_digit()).then(|| id.to_owned())?,
        state: JobState::from(get("JobState").to_owned()),
        reason: text(get("Reason")),
        exit: exit_code(get("ExitCode")),
        restarts: get("Restarts").parse().unwrap_or(0),
        elapsed_s: read_duration(get("RunTime")),
        limit_s: read_duration(get("TimeLimit")),
        start: time(get("StartTime")),
        end: time(get("EndTime")),
        node_list: text(get("NodeList")),
        batch_node: text(get("BatchHost")),
        stdout: text(get("StdOut")),
        work_dir: text(get("WorkDir")),
        comment: text(get("Comment")),
        fields,
    })
}

fn fields(line: &str) -> BTreeMap<String, String> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for word in line.split(' ') {
        match (word.split_once('=').filter(|(key, _)| is_key(key)), all.last_mut()) {
            (Some((key, value)), _) => all.push((key, value.into())),
            (None, Some((_, value))) => {
                value.push(' ');
                value.push_str(word);
            }
            (None, None) => {}
        }
    }
    let mut fields = BTreeMap::new();
    for (key, value) in all {
        fields.entry(key.to_owned()).or_insert_with(|| value.trim_end().to_owned());
    }
    fields
}

/// Returns whether a word can be a key: `JobId`, `CPUs/Task`, `AllocNode:Sid`, `MCS_label`.
fn is_key(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | ':' | '_'))
}
