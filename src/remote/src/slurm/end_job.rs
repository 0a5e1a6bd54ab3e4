//! Stops or cancels the Slurm job of a run.

use std::thread;
use std::time::{Duration, Instant};

use cluster::slurm::{Job, SlurmError};
use nix::unistd::Uid;
use plan::JobKill;
use rundir::{ErrorCode, Failure, RunDir, RunId};

use super::{failure, jobs, user_name};

/// The interval of queries for the end of a job.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// The time limit for a cancelled job to end. Slurm waits between TERM and KILL, 30 s by default.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(75);
/// The time for which queries are retried while the controller does not answer. A restart takes about a minute.
const RETRY_FOR: Duration = Duration::from_secs(150);

/// Stops or cancels a job, after checking that it belongs to the run. Waits for the end of a cancelled job.
///
/// A stop is also requested by file. Supervisors and ranks check for the file, so it works while the controller does not
/// answer, and it also stops a job that Slurm requeues first.
///
/// # Errors
/// Returns why the job could not be stopped or cancelled.
pub(crate) fn end_job(
    run: &RunId,
    dir: &RunDir,
    target: &JobKill,
    progress: &mut dyn FnMut(String),
) -> Result<String, Failure> {
    let what = &format!("cannot {} {run}", if target.is_cancelled { "cancel" } else { "stop" });
    let id = target.id;
    let mut first = Some(find_job(id));
    if !target.is_cancelled && first == Some(Err(SlurmError::ControllerDown)) {
        dir.request_stop()?;
        let file = dir.stop_file();
        let text = format!("the controller does not answer; {file} requests job {id} to save and stop");
        progress(text.clone());
        return Ok(text);
    }
    let Some(job) = retry(what, progress, || first.take().unwrap_or_else(|| find_job(id)))? else {
        return Ok(format!("job {id} has ended already"));
    };
    check_owner(what, run, &job)?;
    if job.state.is_over() {
        return Ok(format!("job {id} has ended already"));
    }
    let number = id.to_string();
    if !target.is_cancelled {
        if let Err(error) = dir.request_stop() {
            progress(format!("{error}; if Slurm requeues job {id}, the run continues"));
        }
        retry(what, progress, || super::run("signal a job", &["scancel", "--signal=TERM", &number]))?;
        return Ok(format!("TERM sent to the ranks of job {id}"));
    }
    if job.state.is_waiting() {
        // Records the request, in case Slurm purges the job before its state is read, or the job begins now.
        let _ = dir.request_stop();
    }
    retry(what, progress, || super::run("cancel a job", &["scancel", &number]))?;
    progress(format!("job {id} is cancelled"));
    let deadline = Instant::now() + CANCEL_TIMEOUT;
    loop {
        let now = retry(what, progress, || find_job(id))?;
        let Some(now) = now.filter(|now| !now.state.is_over()) else { break };
        if now.is_left_only_on(&target.lost) {
            let left = now.node_list.unwrap_or_default();
            return Ok(format!("job {id} has ended, except on {left}, which was lost: Slurm still waits for it"));
        }
        if Instant::now() > deadline {
            let nodes = now.node_list.unwrap_or_else(|| "its nodes".into());
            let why = format!(
                "job {id} was cancelled {} s ago and is still {} on {nodes}",
                CANCEL_TIMEOUT.as_secs(),
                now.state
            );
            let fix =
                format!("find processes that do not exit there (`ps -eo pid,stat,cmd`); `scontrol show job {id}`");
            return Err(Failure::new(ErrorCode::KillIncomplete, what, why, fix));
        }
        thread::sleep(POLL_EVERY);
    }
    Ok(match (&job.node_list, job.state.is_waiting()) {
        (Some(nodes), false) => format!("job {id} has ended on {nodes}"),
        _ => format!("job {id} was removed from the queue"),
    })
}

fn find_job(id: u64) -> Result<Option<Job>, SlurmError> {
    Ok(jobs(&[id])?.into_iter().find(|job| job.id == id.to_string()))
}

/// Checks the name and the user of a job, because Slurm may reuse its id after a reset.
fn check_owner(what: &str, run: &RunId, job: &Job) -> Result<(), Failure> {
    let me = user_name(Uid::effective());
    let why = if job.name != run.as_str() {
        format!("job {} is named {:?}, not {run}", job.id, job.name)
    } else if job.user != me {
        format!("job {} belongs to {}, not to {me}", job.id, job.user)
    } else {
        return Ok(());
    };
    Err(Failure::new(ErrorCode::NotOwned, what, why, "the job was not changed; see `squeue --me`"))
}

/// Runs a command of Slurm, and retries it while the controller does not answer.
fn retry<T>(
    what: &str,
    progress: &mut dyn FnMut(String),
    mut command: impl FnMut() -> Result<T, SlurmError>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + RETRY_FOR;
    let mut is_reported = false;
    loop {
        match command() {
            Err(SlurmError::ControllerDown) if Instant::now() < deadline => {
                if !is_reported {
                    progress(format!("the controller does not answer; retrying for {} s", RETRY_FOR.as_secs()));
                }
                is_reported = true;
                thread::sleep(POLL_EVERY);
            }
            result => return result.map_err(|error| failure(what, &error)),
        }
    }
}
