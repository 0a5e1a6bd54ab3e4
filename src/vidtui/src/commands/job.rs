//! `vidtui job`: starts an attempt in a Slurm job, and decides at the end whether the job is requeued.
//!
//! The batch script calls these commands on the first node of the job. The crate `plan` makes the decisions. Messages go to the
//! log of the job.

use crate::args::{JobCommand, NodesArgs};
use crate::checks;
use crate::command_error::CommandError;
use crate::output::{self, note};
use crate::workspace::{Workspace, record_heal};
use camino::Utf8Path;
use cluster::NodeId;
use plan::{FailedAttempt, JobStart, JobStartRequest, ResumeOptions, ResumeRequest, Target};
use recipe::OnFailure;
use rundir::{ErrorCode, EventKind, Failure, RunDir, now_s};

/// Runs a command that the batch script calls.
pub fn run(workspace: &Workspace, command: &JobCommand) -> Result<(), CommandError> {
    match command {
        JobCommand::Begin { run_dir, attempt } => begin(workspace, run_dir, *attempt),
        JobCommand::Requeue { run_dir, warned } => requeue(run_dir, *warned),
    }
}

fn begin(workspace: &Workspace, run_dir: &Utf8Path, submitted: u32) -> Result<(), CommandError> {
    let (job, names) = allocation()?;
    let dir = RunDir::new(run_dir);
    let run = dir.read_run()?;
    dir.check_trusted("cannot start an attempt in this job")?;
    let facts = remote::read_facts(&dir, &run)?;
    let attempt = dir.read_attempt(submitted)?;
    let Some(slurm) = attempt.slurm else {
        let why = format!("attempt {submitted} of {} was not submitted as a job", run.id);
        return Err(CommandError::request(Failure::new(
            ErrorCode::SlurmJobState,
            "cannot start an attempt in this job",
            why,
            format!("resume the run as a job: vidtui resume {} --slurm FILE", run.id),
        )));
    };
    let target = Target::allocation(job, slurm.spec, names);
    let context = workspace.context(target, Some(&run.recipe()?), &NodesArgs::default(), Vec::new())?;
    let checkpoints = other_trainers::checkpoints(&dir)?;
    let latest = rundir::latest_among(&dir, &checkpoints);
    let options = ResumeOptions::default();
    let resume = ResumeRequest {
        run: &run,
        dir: &dir,
        facts: &facts,
        checkpoints: &checkpoints,
        latest: latest.as_ref(),
        options,
        changed: None,
    };
    let plan = match plan::job_start(&JobStartRequest { submitted, resume }, &context)? {
        JobStart::Nothing(why) => {
            note!("nothing to do: {why}");
            return Ok(());
        }
        JobStart::SubmittedAttempt(plan) => {
            remote::begin_first_attempt(&plan, job)?;
            plan
        }
        JobStart::NextAttempt(plan) => {
            plan.warnings.iter().for_each(|warning| note!("warning: {warning}"));
            remote::begin_next_attempt(&plan)?;
            let began_s = now_s();
            let failed = FailedAttempt::of(&facts, &runstate::derive(&facts, began_s), began_s);
            if failed.is_some() && run.recipe()?.run.on_failure == OnFailure::Resume {
                let down_s = began_s - facts.last_activity_s().unwrap_or(began_s);
                let without = plan.nodes_left_out(facts.attempt.as_ref());
                record_heal(&dir, plan.attempt.number, EventKind::Healed { without, down_s })
                    .unwrap_or_else(|failure| note!("{failure}"));
            }
            note!("attempt {} continues from step {}", plan.attempt.number, plan.attempt.start_step);
            plan
        }
    };
    let found = remote::check_job_nodes(&plan);
    note!("{}", checks::table(&remote::merge_passed(&found), false).trim_end());
    if let Some(failure) = remote::record_failed_checks(&plan, &found) {
        return Err(failure.into());
    }
    output::line(&format!("{:04}", plan.attempt.number))
}

fn requeue(run_dir: &Utf8Path, warned: bool) -> Result<(), CommandError> {
    let dir = RunDir::new(run_dir);
    let run = dir.read_run()?;
    let facts = remote::read_facts(&dir, &run)?;
    let (settings, events) = (run.recipe()?.run, rundir::read_events(&dir)?);
    let details = variable("SLURM_JOB_ID")?.parse().ok().and_then(remote::job_details);
    match plan::requeue(&facts, &settings, &events, warned, details.as_ref(), now_s()) {
        Ok(why) => {
            if let Some(failed) = FailedAttempt::of(&facts, &runstate::derive(&facts, now_s()), now_s()) {
                record_heal(&dir, failed.attempt, failed.heal_started())?;
            }
            note!("{why}: the job is requeued");
            Ok(())
        }
        Err(why) => Err(Failure::new(ErrorCode::SlurmJobState, "the job is not requeued", why, "").into()),
    }
}

/// Returns the id of the Slurm job of this process, and the nodes of the job.
fn allocation() -> Result<(u64, Vec<NodeId>), CommandError> {
    let invalid = |name: &str, why: String| {
        CommandError::request(Failure::new(
            ErrorCode::SlurmJobState,
            "cannot start an attempt in this job",
            format!("{name} {why}"),
            FIX,
        ))
    };
    let job = variable("SLURM_JOB_ID")?;
    let job = job.parse().map_err(|_| invalid("SLURM_JOB_ID", format!("is {job:?}, not a number")))?;
    let list = variable("SLURM_JOB_NODELIST")?;
    let names = cluster::hostlist::expand(&list).map_err(|error| invalid("SLURM_JOB_NODELIST", error.to_string()))?;
    let names: Result<Vec<NodeId>, _> = names.into_iter().map(NodeId::new).collect();
    Ok((job, names.map_err(|error| invalid("SLURM_JOB_NODELIST", error.to_string()))?))
}

const FIX: &str = "only the script of a Slurm job calls this command: submit the script with sbatch";

fn variable(name: &str) -> Result<String, CommandError> {
    std::env::var(name).map_err(|_| {
        CommandError::request(Failure::new(
            ErrorCode::SlurmJobState,
            "cannot start an attempt in this job",
            format!("{name} is not set"),
            FIX,
        ))
    })
}
