//! Jobs: in the queue, in full, and as they were accounted.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Rows;
use super::value::{ExitCode, SlurmTime, exit_code, gpus, read_duration, text, time};
use crate::NodeId;
use crate::hostlist::{self, HostlistError};

/// Where a job is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum JobState {
    /// It waits; the reason says for what.
    Pending,
    /// Its nodes are being prepared.
    Configuring,
    /// It runs.
    Running,
    /// It is suspended.
    Suspended,
    /// It ends: processes may still be there.
    Completing,
    /// It ended well.
    Completed,
    /// Someone cancelled it.
    Cancelled,
    /// It ended with an error.
    Failed,
    /// It ran into its time limit.
    Timeout,
    /// A node of it was lost.
    NodeFail,
    /// Another job took its place.
    Preempted,
    /// It used more memory than it had asked for.
    OutOfMemory,
    /// Its nodes could not be started.
    BootFail,
    /// It could not have ended in time.
    Deadline,
    /// It goes back into the queue.
    Requeued,
    /// A state that this program does not know, in Slurm's word.
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

    /// Words for jobs that go back into the queue, are held in it, or have nodes that are not up yet. Slurm shows them in the place of
    /// PENDING and the like.
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

    /// Says whether it has not begun.
    pub fn is_waiting(&self) -> bool {
        match self {
            JobState::Pending | JobState::Configuring | JobState::Requeued => true,
            JobState::Other(word) => JobState::WAITING.contains(&word.as_str()),
            _ => false,
        }
    }

    /// Says whether its processes are there and stand still, for now.
    pub fn is_halted(&self) -> bool {
        *self == JobState::Suspended || *self == JobState::Other("STOPPED".into())
    }

    /// Says whether it has ended for good. A state that is not known has not, nor has one that is REVOKED: of several clusters that
    /// might have begun it, another one has.
    pub fn is_over(&self) -> bool {
        use JobState::*;
        matches!(
            self,
            Completed | Cancelled | Failed | Timeout | NodeFail | Preempted | OutOfMemory | BootFail | Deadline
        )
    }
}

/// Reads Slurm's word; `CANCELLED by 1000` and `CANCELLED+` are cancelled.
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
    /// Its number; for a task of an array `8_1`, for those that wait `8_[2-9]`.
    pub id: String,
    /// Where it is.
    pub state: JobState,
    /// Why it waits or ended.
    pub reason: Option<String>,
    /// How long it has run.
    pub elapsed_s: Option<u64>,
    /// How long it may run; none when there is no limit, or it is not set yet.
    pub limit_s: Option<u64>,
    /// Nodes it has, or asks for.
    pub node_count: Option<u64>,
    /// The nodes it has, as Slurm lists them.
    pub node_list: Option<String>,
    /// When it began, or is expected to.
    pub start: Option<SlurmTime>,
    /// When it ended, or must.
    pub end: Option<SlurmTime>,
    /// Whose it is.
    pub user: String,
    /// Where it runs or waits.
    pub partition: String,
    /// GPUs that it asks for on each node, as far as that is said.
    pub gpus_per_node: Option<u64>,
    /// Its name.
    pub name: String,
}

impl Job {
    /// Writes out the names of the nodes it has.
    ///
    /// # Errors
    /// When Slurm's list is not understood.
    pub fn nodes(&self) -> Result<Vec<String>, HostlistError> {
        self.node_list.as_deref().map_or(Ok(Vec::new()), hostlist::expand)
    }

    /// Says whether it ends and has ended on all its nodes but some of these: of a job that ends, Slurm lists the nodes where it has not.
    pub fn is_left_only_on(&self, nodes: &[NodeId]) -> bool {
        let is_known = |name: &String| nodes.iter().any(|node| node.as_str() == name);
        self.state == JobState::Completing
            && self.nodes().is_ok_and(|left| !left.is_empty() && left.iter().all(is_known))
    }
}

/// Reads the answer to [`QUEUE`](super::QUEUE).
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

/// A job, or a step of one, as it was accounted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accounted {
    /// The job's number.
    pub id: String,
    /// The step, `batch` or a number; none for the job as a whole.
    pub step: Option<String>,
    /// The number of the user who cancelled it.
    pub cancelled_by: Option<u32>,
    /// How it ended. A job that was requeued has an earlier end here while it runs again: the queue knows better.
    pub state: JobState,
    /// What it returned.
    pub exit: Option<ExitCode>,
    /// How long it ran.
    pub elapsed_s: Option<u64>,
    /// Where, as Slurm lists nodes.
    pub node_list: Option<String>,
    /// When it began.
    pub start: Option<SlurmTime>,
    /// When it ended.
    pub end: Option<SlurmTime>,
    /// Its name.
    pub name: String,
}

/// Reads the answer to [`ACCOUNTING`](super::ACCOUNTING).
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

/// A job in full.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetails {
    /// Its number.
    pub id: String,
    /// Where it is.
    pub state: JobState,
    /// Why it waits or ended.
    pub reason: Option<String>,
    /// What it returned.
    pub exit: Option<ExitCode>,
    /// How often it was put back into the queue.
    pub restarts: u64,
    /// How long it has run.
    pub elapsed_s: Option<u64>,
    /// How long it may run.
    pub limit_s: Option<u64>,
    /// When it began, or is expected to.
    pub start: Option<SlurmTime>,
    /// When it ended, or must.
    pub end: Option<SlurmTime>,
    /// The nodes it has, as Slurm lists them.
    pub node_list: Option<String>,
    /// The node on which its script runs.
    pub batch_node: Option<String>,
    /// The file of its output, with the id in place of `%j`.
    pub stdout: Option<String>,
    /// The folder it was submitted from.
    pub work_dir: Option<String>,
    /// The comment it was given.
    pub comment: Option<String>,
    fields: BTreeMap<String, String>,
}

impl JobDetails {
    /// Returns a value by Slurm's name for it: `TimeLimit`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str)
    }
}

/// Reads the answer to [`JOB`](super::JOB): `Key=value` after `Key=value`, in a line per job.
///
/// Values are not quoted and may hold blanks. A key begins with a capital letter; what looks like one within a value
/// cannot be told apart, so the first of two equal keys counts.
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

/// `JobId`, `CPUs/Task`, `AllocNode:Sid`, `MCS_label`.
fn is_key(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | ':' | '_'))
}
