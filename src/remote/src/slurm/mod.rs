//! Slurm, through its commands on this machine. Each has a time limit: a controller that is down or slow keeps nobody waiting.

mod end_job;
mod queue;
mod sinfo;
mod step;

use std::time::Duration;

use cluster::slurm::{self, Job, JobDetails, SlurmTrouble};
use nix::unistd::{Uid, User};
use plan::{command_line, quote};
use rundir::{Failure, RunDir};

use crate::Local;
use crate::command::{Command, Status};
use crate::transport::Shell;

pub use queue::SlurmQueue;

pub(crate) use end_job::end_job;
pub(crate) use sinfo::{SlurmNodes, partition};
pub(crate) use step::Step;

/// How long a command of Slurm may take. Its own commands give up on a silent controller after five to ten seconds.
const ANSWER: Duration = Duration::from_secs(15);

/// Runs one of Slurm's commands, its input and what is to be done first given.
pub(crate) fn ask(action: &str, script: String, input: &str) -> Result<String, SlurmTrouble> {
    let command = Command { input: input.as_bytes().to_vec(), ..Command::new(action, script, ANSWER) };
    let refused = |error: crate::RemoteError| SlurmTrouble::Refused(error.to_string());
    let output = match Local::new().and_then(|mut here| here.run(&command)) {
        Ok(output) => output,
        Err(crate::RemoteError::Timeout { .. }) => return Err(SlurmTrouble::ControllerDown),
        Err(error) => return Err(refused(error)),
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status {
        // What `sbatch --test-only` has to say is on the other stream.
        Status::Code(0) if output.stdout.is_empty() => Ok(said(&output.stderr)),
        Status::Code(0) => Ok(said(&output.stdout)),
        _ => Err(slurm::trouble(&format!("{}\n{}", said(&output.stderr), said(&output.stdout)))),
    }
}

pub(crate) fn run<S: AsRef<str>>(action: &str, words: &[S]) -> Result<String, SlurmTrouble> {
    ask(action, format!("exec {}", command_line(words)), "")
}

/// Lists jobs by their numbers. Numbers that Slurm does not know are not in it.
fn jobs(ids: &[u64]) -> Result<Vec<Job>, SlurmTrouble> {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    let list = format!("--jobs={}", ids.join(","));
    let words: Vec<&str> = slurm::QUEUE.into_iter().chain([list.as_str()]).collect();
    match run("list its jobs", &words) {
        Ok(answer) => Ok(slurm::read_queue(&answer).rows),
        // Said of one number alone; of several, those that are known are listed.
        Err(SlurmTrouble::UnknownJob) => Ok(Vec::new()),
        Err(trouble) => Err(trouble),
    }
}

/// Asks for all that Slurm says of a job; none if it does not.
pub fn job_details(job: u64) -> Option<JobDetails> {
    let number = job.to_string();
    let words: Vec<&str> = slurm::JOB.into_iter().chain([number.as_str()]).collect();
    slurm::read_job(&run("show a job", &words).ok()?)
}

/// Submits a batch script and returns the job's number.
///
/// Variables by which a user, or a job that this program runs in, would change what the script asks for are left out.
fn submit(dir: &RunDir, attempt: u32) -> Result<u64, SlurmTrouble> {
    let script = dir.job_script(attempt);
    let submit = format!(
        "for name in $(env | sed -n 's/^\\(S\\(BATCH\\|LURM\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do\n\
         case $name in SLURM_CONF) ;; *) unset \"$name\" ;; esac\n\
         done\n\
         cd {} && exec sbatch --parsable {}",
        quote(dir.root.as_str()),
        quote(script.as_str())
    );
    let said = ask("submit a job", submit, "")?;
    slurm::read_submitted(&said).ok_or_else(|| SlurmTrouble::Refused(format!("{said:?}, which is no job's number")))
}

/// Submits the attempt of a plan, whose files are there, and records the job.
///
/// # Errors
/// Why Slurm does not take it, and whether that is certain: a job of which nobody was told may have been made.
pub(crate) fn submit_attempt(what: &str, plan: &plan::LaunchPlan, now_s: f64) -> Result<u64, (Failure, bool)> {
    let (dir, number) = (&plan.dir, plan.attempt.number);
    let job = submit(dir, number).map_err(|trouble| {
        let is_certain = trouble != SlurmTrouble::ControllerDown;
        let failure = failure(what, &trouble);
        let fix = if is_certain {
            failure.fix
        } else {
            format!("wait until it answers; if a job was made, it trains: `squeue --name={}` shows it", plan.run.id)
        };
        (Failure { fix, ..failure }, is_certain)
    })?;
    let submitted = rundir::Submitted { schema: rundir::SCHEMA, job, submitted_s: now_s };
    // The job records its number as well, when it begins.
    dir.write_submitted(number, &submitted).map_err(|error| (error.into(), false))?;
    Ok(job)
}

/// Makes a trouble the reason why `what` failed.
pub(crate) fn failure(what: &str, trouble: &SlurmTrouble) -> Failure {
    Failure::new(rundir::ErrorCode::Unclassified, what, trouble.to_string(), trouble.fix())
}

fn user_name(user: Uid) -> String {
    User::from_uid(user).ok().flatten().map_or_else(|| user.to_string(), |user| user.name)
}
