//! What is known of a job now, from whichever of Slurm's commands last had an answer.

use serde::{Deserialize, Serialize};

use super::{Job, JobState};

/// What is known of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSight {
    /// Its number.
    pub id: u64,
    /// What Slurm said of it last.
    pub seen: JobSeen,
    /// Who cancelled it, where that is accounted.
    pub cancelled_by: Option<String>,
    /// Since when Slurm has not answered; none while it does.
    pub silence: Option<Silence>,
}

/// What Slurm said of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum JobSeen {
    /// Nothing yet.
    NotYet,
    /// That it is there, or has been.
    Job(Box<Job>),
    /// That there is no such job: it has ended, and Slurm has forgotten it.
    Forgotten,
}

/// Slurm does not answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Silence {
    /// When it was first asked in vain, Unix seconds.
    pub since_s: f64,
    /// Why, in words.
    pub why: String,
}

impl JobSight {
    /// Knows nothing but the number.
    pub fn unseen(id: u64) -> Self {
        Self { id, seen: JobSeen::NotYet, cancelled_by: None, silence: None }
    }

    /// Returns the job as it was last seen.
    pub fn job(&self) -> Option<&Job> {
        match &self.seen {
            JobSeen::Job(job) => Some(job),
            JobSeen::NotYet | JobSeen::Forgotten => None,
        }
    }

    /// Returns its state.
    pub fn state(&self) -> Option<&JobState> {
        self.job().map(|job| &job.state)
    }

    /// Says whether it waits in the queue, for the first time or again.
    pub fn is_waiting(&self) -> bool {
        self.state().is_some_and(JobState::is_waiting)
    }

    /// Says whether it has ended for good, as far as Slurm said.
    pub fn is_over(&self) -> bool {
        match &self.seen {
            JobSeen::NotYet => false,
            JobSeen::Job(job) => job.state.is_over(),
            JobSeen::Forgotten => true,
        }
    }
}
