use std::fs;
use std::os::unix::fs::PermissionsExt;

use cluster::Placement;
use cluster::slurm::{self, JobDetails};
use plan::{LaunchPlan, NodeLaunch};
use rundir::{Allocation, Error, Failure, RunDir, SCHEMA};

use super::run;
use crate::now_s;

/// Writes what a job needs that begins the attempt it was submitted as: where its ranks run, and the script of each node.
///
/// # Errors
/// When it cannot be written.
pub fn begin_first(
    dir: &RunDir,
    attempt: u32,
    job: u64,
    placement: &Placement,
    nodes: &[NodeLaunch],
) -> Result<(), Failure> {
    write_scripts(dir, attempt, nodes)?;
    let allocation = Allocation { schema: SCHEMA, job, began_s: now_s(), placement: placement.clone() };
    Ok(dir.write_allocation(attempt, &allocation)?)
}

/// Makes the attempt of a job that begins again.
///
/// # Errors
/// When somebody else has made it, or it cannot be written.
pub fn begin_next(plan: &LaunchPlan) -> Result<(), Failure> {
    crate::launch::make(&format!("cannot begin {} again", plan.run.id), plan, &mut []).map(|_| ())
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
