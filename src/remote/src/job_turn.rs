//! What a Slurm job does when it begins: writes its attempt, and checks its nodes.

use plan::LaunchPlan;
use rundir::{Allocation, Failure, SCHEMA, now_s};

use crate::checks::{Check, nodes, programs};
use crate::launch::{make, record, write_scripts};
use crate::slurm::Step;

/// Writes what a job needs that begins the attempt it was submitted as: where its ranks run, and the script of each node.
///
/// # Errors
/// When it cannot be written.
pub fn begin_first_attempt(plan: &LaunchPlan, job: u64) -> Result<(), Failure> {
    let number = plan.attempt.number;
    write_scripts(&plan.dir, number, &plan.nodes)?;
    plan.dir.make_peer_token(number)?;
    let placement = plan.attempt.placement.clone();
    let allocation = Allocation { schema: SCHEMA, job, began_s: now_s(), placement };
    Ok(plan.dir.write_allocation(number, &allocation)?)
}

/// Makes the attempt of a job that begins again.
///
/// # Errors
/// When somebody else has made it, or it cannot be written.
pub fn begin_next_attempt(plan: &LaunchPlan) -> Result<(), Failure> {
    make(&format!("cannot begin {} again", plan.run.id), plan, &mut []).map(|_| ())
}

/// Makes the checks of the nodes that a job was given, before its ranks begin there; starts nothing.
///
/// One that cannot be asked is passed over: Slurm has chosen it, and says itself if nothing can be started there.
pub fn check_job_nodes(plan: &LaunchPlan) -> Vec<Check> {
    let what = verb(plan);
    let mut steps: Vec<Box<Step>> = Vec::new();
    for launch in &plan.nodes {
        // What keeps this machine from saying its name keeps it from all else.
        steps.extend(Step::new(launch.node.clone()).map(Box::new));
    }
    let mut checks = nodes::checks(&what, plan, &mut steps);
    checks.extend(programs(&what, plan, &mut steps));
    for check in &mut checks {
        check.waived |= check.what == "node";
    }
    checks
}

/// Records why an attempt does not begin in a job, if one of the checks of its nodes says so, and returns that.
pub fn record_failed_checks(plan: &LaunchPlan, checks: &[Check]) -> Option<Failure> {
    let obstacle = |node| checks.iter().filter(|check| check.node.as_ref() == Some(node)).find_map(Check::obstacle);
    let all = || plan.nodes.iter().map(|launch| &launch.node);
    let first = all().find_map(obstacle)?;
    let follows = Failure::peer_lost(None, format!("{}: {}", first.what, first.why), first.fix.clone());
    for node in all() {
        record(plan, node, obstacle(node).unwrap_or(&follows));
    }
    Some(first.clone())
}

fn verb(plan: &LaunchPlan) -> String {
    format!("cannot begin attempt {} of {}", plan.attempt.number, plan.run.id)
}
