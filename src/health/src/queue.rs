//! The rule for a run whose Slurm job is pending.

use cluster::slurm::Wait;

use super::{Evidence, Finding, Rule, Subject, Urgency};

/// Finds a job that never starts by itself, and one whose start depends on other people or on limits.
pub fn job_pending(evidence: &Evidence<'_>) -> Option<Finding> {
    let status = evidence.facts.job.as_ref()?;
    let job = status.job()?;
    let pending = job.pending_reason()?;
    let urgency = match pending.wait {
        Wait::Ends => return None,
        Wait::Depends => Urgency::Note,
        Wait::Never => Urgency::Act,
    };
    let saw = pending.sentence(status.id, job.reason.as_deref().unwrap_or_default());
    Some(Finding::new(Rule::JobPending, urgency, Subject::Run, saw, pending.fix(status.id)))
}
