use std::thread;
use std::time::{Duration, Instant};

use cluster::slurm::{Job, SlurmTrouble};
use nix::unistd::Uid;
use plan::JobKill;
use rundir::{Failure, RunDir, RunId};

use super::{failure, jobs, user_name};

/// How often Slurm is asked whether a job has ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a cancelled job has to end: between TERM and KILL Slurm waits, half a minute where nobody has changed that.
const ENDING: Duration = Duration::from_secs(75);
/// How long a controller that does not answer is asked again. One that is restarted is away for a minute.
const ANSWERING: Duration = Duration::from_secs(150);

/// Tells Slurm to end a job, once it is sure that it is the run's; waits for the end of one that is cancelled.
///
/// A stop is asked for by file as well: supervisors and ranks look for it themselves, so that it reaches them where the
/// controller does not answer, and so does the job when it begins again, should Slurm put it back into the queue first.
///
/// # Errors
/// Why it could not be dealt with.
pub(crate) fn end_job(
    run: &RunId,
    dir: &RunDir,
    target: &JobKill,
    tell: &mut dyn FnMut(String),
) -> Result<String, Failure> {
    let what = &format!("cannot {} {run}", if target.is_cancelled { "cancel" } else { "stop" });
    let id = target.id;
    let mut seen = Some(look(id));
    if !target.is_cancelled && seen == Some(Err(SlurmTrouble::ControllerDown)) {
        dir.request_stop()?;
        let file = dir.stop_file();
        let text = format!("its controller does not answer; {file} asks job {id} to save and stop");
        tell(text.clone());
        return Ok(text);
    }
    let Some(job) = patiently(what, tell, || seen.take().unwrap_or_else(|| look(id)))? else {
        return Ok(format!("job {id} has ended already"));
    };
    check_is_ours(what, run, &job)?;
    if job.state.is_over() {
        return Ok(format!("job {id} has ended already"));
    }
    let number = id.to_string();
    if !target.is_cancelled {
        if let Err(error) = dir.request_stop() {
            tell(format!("{error}; should Slurm put job {id} back into the queue, it goes on"));
        }
        patiently(what, tell, || super::run("signal a job", &["scancel", "--signal=TERM", &number]))?;
        return Ok(format!("TERM sent to the ranks of job {id}"));
    }
    if job.state.is_waiting() {
        // If Slurm has forgotten the job before anybody looks, or it begins just now, this tells that it was asked for.
        let _ = dir.request_stop();
    }
    patiently(what, tell, || super::run("cancel a job", &["scancel", &number]))?;
    tell(format!("job {id} is cancelled"));
    let deadline = Instant::now() + ENDING;
    loop {
        let now = patiently(what, tell, || look(id))?;
        let Some(now) = now.filter(|now| !now.state.is_over()) else { break };
        if now.is_left_only_on(&target.lost) {
            let left = now.node_list.unwrap_or_default();
            return Ok(format!("job {id} has ended but on {left}, which was lost: Slurm still waits for it"));
        }
        if Instant::now() > deadline {
            let nodes = now.node_list.unwrap_or_else(|| "its nodes".into());
            return Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                what,
                format!("job {id} was cancelled {} s ago and is still {} on {nodes}", ENDING.as_secs(), now.state),
                format!("look there for processes that do not end (`ps -eo pid,stat,cmd`); `scontrol show job {id}`"),
            ));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(match (&job.node_list, job.state.is_waiting()) {
        (Some(nodes), false) => format!("job {id} has ended on {nodes}"),
        _ => format!("job {id} was taken out of the queue"),
    })
}

fn look(id: u64) -> Result<Option<Job>, SlurmTrouble> {
    Ok(jobs(&[id])?.into_iter().find(|job| job.id == id.to_string()))
}

/// A number may by now be another job's: Slurm begins anew some day.
fn check_is_ours(what: &str, run: &RunId, job: &Job) -> Result<(), Failure> {
    let me = user_name(Uid::effective());
    let odd = if job.name != run.as_str() {
        format!("job {} is named {:?}, not {run}", job.id, job.name)
    } else if job.user != me {
        format!("job {} belongs to {}, not to {me}", job.id, job.user)
    } else {
        return Ok(());
    };
    Err(Failure::new(rundir::ErrorCode::Unclassified, what, odd, "nothing was done; see `squeue --me`"))
}

/// Asks again for a while when the controller does not answer.
fn patiently<T>(
    what: &str,
    tell: &mut dyn FnMut(String),
    mut ask: impl FnMut() -> Result<T, SlurmTrouble>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + ANSWERING;
    let mut is_told = false;
    loop {
        match ask() {
            Err(SlurmTrouble::ControllerDown) if Instant::now() < deadline => {
                if !is_told {
                    tell(format!("its controller does not answer; it is asked again for {} s", ANSWERING.as_secs()));
                }
                is_told = true;
                thread::sleep(LOOK_EVERY);
            }
            answer => return answer.map_err(|trouble| failure(what, &trouble)),
        }
    }
}
