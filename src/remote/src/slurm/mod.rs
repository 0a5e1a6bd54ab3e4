//! Access to Slurm through its commands on this machine. Each command has a timeout, because the controller may be down or slow.

mod end_job;
mod queue;
mod sinfo;
mod step;

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use cluster::slurm::{self, Job, JobDetails, SlurmError};
use nix::unistd::{Uid, User};
use plan::{command_line, quote};
use rundir::{ErrorCode, Failure, RunDir};

use crate::Local;
use crate::command::{Command, Status};
use crate::transport::Shell;

pub use queue::SlurmQueue;

pub(crate) use end_job::end_job;
pub(crate) use sinfo::{SlurmNodes, partition};
pub(crate) use step::Step;

/// The timeout of a command of Slurm. The commands themselves give up on a controller after five to ten seconds.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs a script that calls a command of Slurm, with the given standard input, and without the variables of the user that would
/// change what the command does or prints.
pub(crate) fn run_script(action: &str, script: &str, input: &str) -> Result<String, SlurmError> {
    if let Some(value) = cluster_of_user().filter(|value| value.contains(',') || value == "all") {
        return Err(SlurmError::SeveralClusters(value));
    }
    let script = format!("{}{script}", unset(env::vars_os()));
    let command = Command { input: input.as_bytes().to_vec(), ..Command::new(action, script, TIMEOUT) };
    let refused = |error: crate::RemoteError| SlurmError::Refused(error.to_string());
    let output = match Local::new().and_then(|mut here| here.run(&command)) {
        Ok(output) => output,
        Err(crate::RemoteError::Timeout { .. }) => return Err(SlurmError::ControllerDown),
        Err(error) => return Err(refused(error)),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status {
        // `sbatch --test-only` writes its result to standard error.
        Status::Code(0) if output.stdout.is_empty() => Ok(text(&output.stderr)),
        Status::Code(0) => Ok(text(&output.stdout)),
        _ => Err(slurm::parse_error(&format!("{}\n{}", text(&output.stderr), text(&output.stdout)))),
    }
}

pub(crate) fn run<S: AsRef<str>>(action: &str, words: &[S]) -> Result<String, SlurmError> {
    run_script(action, &format!("exec {}", command_line(words)), "")
}

/// Returns the cluster that the user chose for all commands of Slurm.
fn cluster_of_user() -> Option<String> {
    env::var(slurm::CLUSTERS).ok().filter(|value| !value.is_empty())
}

/// Returns a line of a script that removes variables that change what the commands do or print.
fn unset(variables: impl Iterator<Item = (OsString, OsString)>) -> String {
    let is_plain = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let names = variables.filter_map(|(name, _)| name.into_string().ok());
    let names: Vec<String> = names.filter(|name| slurm::is_removed(name) && is_plain(name)).collect();
    if names.is_empty() { String::new() } else { format!("unset {}\n", names.join(" ")) }
}

/// Lists jobs by id. Jobs that Slurm does not list are left out.
fn jobs(ids: &[u64]) -> Result<Vec<Job>, SlurmError> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let list = format!("--jobs={}", ids.join(","));
    let words: Vec<&str> = slurm::QUEUE.into_iter().chain([list.as_str()]).collect();
    match run("list its jobs", &words) {
        Ok(answer) => Ok(slurm::read_queue(&answer).rows),
        // `squeue` fails with this error for a single unknown id. For several ids, it lists the jobs that exist.
        Err(SlurmError::UnknownJob) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the details of a job; `None` if Slurm does not report them.
pub fn job_details(job: u64) -> Option<JobDetails> {
    let number = job.to_string();
    let words: Vec<&str> = slurm::JOB.into_iter().chain([number.as_str()]).collect();
    slurm::read_job(&run("show a job", &words).ok()?)
}

/// Submits a batch script and returns the job id. The script has all options of the job.
fn submit(dir: &RunDir, attempt: u32) -> Result<u64, SlurmError> {
    let script = dir.job_script(attempt);
    let submit = format!("cd {} && exec sbatch --parsable {}", quote(dir.root.as_str()), quote(script.as_str()));
    let output = run_script("submit a job", &submit, "")?;
    slurm::read_submitted(&output).ok_or_else(|| SlurmError::Refused(format!("{output:?}, which is not a job id")))
}

/// Submits the attempt of a plan, whose files exist, and records the job.
///
/// # Errors
/// Returns the failure, and whether it is certain that no job was submitted. Without a reply, Slurm may have accepted the job.
pub(crate) fn submit_attempt(what: &str, plan: &plan::LaunchPlan, now_s: f64) -> Result<u64, (Failure, bool)> {
    let (dir, number) = (&plan.dir, plan.attempt.number);
    let job = submit(dir, number).map_err(|error| {
        let is_certain = error != SlurmError::ControllerDown;
        let failure = failure(what, &error);
        let fix = if is_certain {
            failure.fix
        } else {
            format!("wait until it answers, then check whether the job was submitted: squeue --name={}", plan.run.id)
        };
        (Failure { fix, ..failure }, is_certain)
    })?;
    let submitted = rundir::Submitted { schema: rundir::SCHEMA, job, submitted_s: now_s };
    // The job also records its id when it begins.
    dir.write_submitted(number, &submitted).map_err(|error| (error.into(), false))?;
    Ok(job)
}

/// Returns the failure of `what`, with an error of Slurm as the reason.
pub(crate) fn failure(what: &str, error: &SlurmError) -> Failure {
    let code = match error {
        SlurmError::ControllerDown => ErrorCode::SlurmUnreachable,
        SlurmError::NoSlurm => ErrorCode::ProgramMissing,
        SlurmError::UnknownJob | SlurmError::NoAccounting | SlurmError::SeveralClusters(_) | SlurmError::Refused(_) => {
            ErrorCode::SlurmFailed
        }
    };
    Failure::new(code, what, error.to_string(), error.fix())
}

fn user_name(user: Uid) -> String {
    User::from_uid(user).ok().flatten().map_or_else(|| user.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_change_the_commands_are_removed_before_they_run() {
        let variables = |names: &[&str]| {
            names.iter().map(|name| (OsString::from(name), OsString::new())).collect::<Vec<_>>().into_iter()
        };
        let names = ["HOME", "SQUEUE_FORMAT", "SLURM_CONF", "SCANCEL_STATE", "SLURM_JOB_ID", "SBATCH_X;reboot"];
        assert_eq!(unset(variables(&names)), "unset SQUEUE_FORMAT SCANCEL_STATE SLURM_JOB_ID\n");
        assert_eq!(unset(variables(&["HOME", "SLURM_CONF"])), "");
    }
}
