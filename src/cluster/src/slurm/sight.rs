//! The latest known state of a job, from the last answer of any of Slurm's commands.

use serde::{Deserialize, Serialize};

use super::{Job, JobState};

/// The latest known state of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSight {
    /// The job id.
    pub id: u64,
    /// Slurm's last answer.
    pub seen: JobSeen,
    /// The user who cancelled the job, if Slurm's accounting has recorded one.
    pub cancelled_by: Option<String>,
    /// Set while Slurm does not answer.
    pub silence: Option<Silence>,
}

/// Slurm's answer about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum JobSeen {
    /// No answer yet.
    NotYet,
    /// The job, which may have ended.
    Job(Box<Job>),
    /// The job does not exist: it has ended, and Slurm no longer has it.
    Forgotten,
}

/// Slurm does not answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Silence {
    /// The time of the first request without an answer, Unix seconds.
    pub since_s: f64,
    /// Why Slurm does not answer.
    pub why: String,
}

impl JobSight {
    /// Makes the state of a job about which Slurm has not answered yet.
    pub fn unseen(id: u64) -> Self {
        Self { id, seen: JobSeen::NotYet, cancelled_by: None, silence: None }
    }

    /// Returns the job from the last answer.
    pub fn job(&self) -> Option<&Job> {
        match &self.seen {
            JobSeen::Job(job) => Some(job),
            JobSeen::NotYet | JobSeen::Forgotten => None,
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
        match &self.seen {
            JobSeen::NotYet => false,
            JobSeen::Job(job) => job.state.is_over(),
            JobSeen::Forgotten => true,
        }
    }
}
