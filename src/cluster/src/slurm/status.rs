//! The latest known state of a job, from the last answer of any of Slurm's commands.

use serde::{Deserialize, Serialize};

use super::{Job, JobState};

/// The latest known state of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job id.
    pub id: u64,
    /// The last answer of Slurm.
    pub reply: JobReply,
    /// The user who cancelled the job, if Slurm's accounting has recorded one.
    pub cancelled_by: Option<String>,
    /// Set while Slurm does not answer.
    pub no_reply: Option<NoReply>,
}

/// Slurm's answer about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum JobReply {
    /// No answer yet.
    None,
    /// The job, which may have ended.
    Job(Box<Job>),
    /// The job does not exist: it has ended, and Slurm no longer has it.
    Purged,
}

/// Slurm does not answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoReply {
    /// The time of the first request without an answer, Unix seconds.
    pub since_s: f64,
    /// Why Slurm does not answer.
    pub why: String,
}

impl JobStatus {
    /// Makes the state of a job about which Slurm has not answered yet.
    pub fn unknown(id: u64) -> Self {
        Self { id, reply: JobReply::None, cancelled_by: None, no_reply: None }
    }

    /// Returns the job from the last answer.
    pub fn job(&self) -> Option<&Job> {
        match &self.reply {
            JobReply::Job(job) => Some(job),
            JobReply::None | JobReply::Purged => None,
        }
    }

    /// Returns the state of the job.
    pub fn state(&self) -> Option<&JobState> {
        self.job().map(|job| &job.state)
    }

    /// Returns whether the job is pending.
    pub fn is_waiting(&self) -> bool {
        self.state().is_some_and(JobState::is_waiting)
    }

    /// Returns whether the job has ended, according to the last answer.
    pub fn is_over(&self) -> bool {
        match &self.reply {
            JobReply::None => false,
            JobReply::Job(job) => job.state.is_over(),
            JobReply::Purged => true,
        }
    }
}
