//! The start of a Slurm job, inside its allocation: writes the attempt and checks the nodes.

use plan::LaunchPlan;
use rundir::{Allocation, Failure, SCHEMA, now_s};

use crate::attempt_files::{make_attempt, record_failure, write_scripts};
use crate::checks::{Check, CheckId, check_nodes};
use crate::slurm::Step;

/// Writes the allocation and the scripts of the attempt that was submitted as this job.
///
/// # Errors
/// When they cannot be written.
pub fn begin_first_attempt(plan: &LaunchPlan, job: u64) -> Result<(), Failure> {
    let number = plan.attempt.number;
    write_scripts(&plan.dir, number, &plan.nodes)?;
    plan.dir.make_peer_token(number)?;
    let placement = plan.attempt.placement.clone();
    let allocation = Allocation { schema: SCHEMA, job, began_s: now_s(), placement };
    Ok(plan.dir.write_allocation(number, &allocation)?)
}

/// Creates the next attempt of a job that was requeued, with the alert channels of the previous attempt.
///
/// # Errors
/// When another program has created the attempt, or its files cannot be written.
pub fn begin_next_attempt(plan: &LaunchPlan) -> Result<(), Failure> {
    let before = plan.dir.attempt_numbers()?.into_iter().rfind(|number| *number < plan.attempt.number);
    let channels = before.and_then(|number| std::fs::read(plan.dir.alert_channels(number)).ok());
    make_attempt(&format!("cannot requeue {}", plan.run.id), plan, channels.as_deref(), &mut []).map(|_| ())
}

/// Checks the nodes that a job was given before its ranks begin there; starts nothing.
///
/// A node that a step of the job cannot reach is accepted: Slurm chose the node, and fails the job if it cannot start ranks
/// there.
pub fn check_job_nodes(plan: &LaunchPlan) -> Vec<Check> {
    let mut steps: Vec<Box<Step>> = Vec::new();
    for launch in &plan.nodes {
        // An error here means that /proc of this machine is unreadable, which fails everything else too.
        steps.extend(Step::new(launch.node.clone()).map(Box::new));
    }
    let mut checks = check_nodes(&cannot_begin(plan), plan, &mut steps, &|_| {});
    checks.iter_mut().filter(|check| check.id == CheckId::Node).for_each(Check::waive);
    checks
}

/// Records on each node why the attempt does not begin, if a check failed, and returns the first failure.
pub fn record_failed_checks(plan: &LaunchPlan, checks: &[Check]) -> Option<Failure> {
    let failure_of = |node| checks.iter().filter(|check| check.node.as_ref() == Some(node)).find_map(Check::failure);
    let nodes = || plan.nodes.iter().map(|launch| &launch.node);
    let first = nodes().find_map(failure_of)?;
    let consequence = Failure::peer_lost(None, format!("{}: {}", first.what, first.why), first.fix.clone());
    for node in nodes() {
        record_failure(plan, node, failure_of(node).unwrap_or(&consequence));
    }
    Some(first.clone())
}

fn cannot_begin(plan: &LaunchPlan) -> String {
    format!("cannot begin attempt {} of {}", plan.attempt.number, plan.run.id)
}
