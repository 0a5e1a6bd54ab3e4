use std::fs;
use std::os::unix::fs::PermissionsExt;

use cluster::slurm::{self, JobDetails};
use plan::{LaunchPlan, NodeLaunch};
use rundir::{Allocation, Error, Failure, LOST_PEER, RunDir, SCHEMA, now_s};

use super::run;
use super::step::Step;
use crate::checks::{Check, programs};
use crate::launch::{make, record};
use crate::preflight;

/// Writes what a job needs that begins the attempt it was submitted as: where its ranks run, and the script of each node.
///
/// # Errors
/// When it cannot be written.
pub fn begin_first(plan: &LaunchPlan, job: u64) -> Result<(), Failure> {
    let number = plan.attempt.number;
    write_scripts(&plan.dir, number, &plan.nodes)?;
    let placement = plan.attempt.placement.clone();
    let allocation = Allocation { schema: SCHEMA, job, began_s: now_s(), placement };
    Ok(plan.dir.write_allocation(number, &allocation)?)
}

/// Makes the attempt of a job that begins again.
///
/// # Errors
/// When somebody else has made it, or it cannot be written.
pub fn begin_next(plan: &LaunchPlan) -> Result<(), Failure> {
    make(&format!("cannot begin {} again", plan.run.id), plan, &mut []).map(|_| ())
}

/// Makes the checks of the nodes that a job was given, before its ranks begin there; starts nothing.
///
/// One that cannot be asked is passed over: Slurm has chosen it, and says itself if nothing can be started there.
pub fn check_turn(plan: &LaunchPlan) -> Vec<Check> {
    let what = verb(plan);
    let mut steps: Vec<Box<Step>> = Vec::new();
    for launch in &plan.nodes {
        // What keeps this machine from saying its name keeps it from all else.
        steps.extend(Step::new(launch.node.clone()).map(Box::new));
    }
    let mut checks = preflight::checks(&what, plan, &mut steps);
    checks.extend(programs(&what, plan, &mut steps));
    for check in &mut checks {
        check.waived |= check.what == "node";
    }
    checks
}

/// Records why an attempt does not begin in a job, if one of the checks of its nodes says so, and returns that.
pub fn give_up_turn(plan: &LaunchPlan, checks: &[Check]) -> Option<Failure> {
    let obstacle = |node| checks.iter().filter(|check| check.node.as_ref() == Some(node)).find_map(Check::obstacle);
    let nodes = || plan.nodes.iter().map(|launch| &launch.node);
    let first = nodes().find_map(obstacle)?;
    let follows = Failure::new(
        rundir::ErrorCode::Unclassified,
        LOST_PEER,
        format!("{}: {}", first.what, first.why),
        first.fix.clone(),
    );
    for node in nodes() {
        record(plan, node, obstacle(node).unwrap_or(&follows));
    }
    Some(first.clone())
}

fn verb(plan: &LaunchPlan) -> String {
    format!("cannot begin attempt {} of {}", plan.attempt.number, plan.run.id)
}

/// Asks for all that Slurm says of a job; none if it does not.
pub fn job_details(job: u64) -> Option<JobDetails> {
    let number = job.to_string();
    let words: Vec<&str> = slurm::JOB.into_iter().chain([number.as_str()]).collect();
    slurm::read_job(&run("show a job", &words).ok()?)
}

/// Writes the script of each node.
pub(crate) fn write_scripts(dir: &RunDir, attempt: u32, nodes: &[NodeLaunch]) -> Result<(), Error> {
    let io = |action, path: &camino::Utf8Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    };
    for launch in nodes {
        let script = dir.launch_script(attempt, &launch.node);
        if let Some(folder) = script.parent() {
            fs::create_dir_all(folder).map_err(io("make", folder))?;
        }
        rundir::write_atomic(&script, launch.script.as_bytes())?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(io("make executable", &script))?;
    }
    Ok(())
}
