//! Decides what the Slurm job of a run does each time Slurm starts it.
//!
//! The nodes are unknown until the job starts, and Slurm may start it more than once: after a time limit, a preemption or a
//! lost node. Each time, the script calls `vidtui job begin` on the first node to find out which attempt to start. No
//! console needs to be open.

use cluster::slurm::JobDetails;
use recipe::{JobKind, OnFailure, RunSettings};
use rundir::{Attempt, AttemptWhy, ErrorCode, Event, Failure};
use runstate::{RunFacts, RunState};

use crate::heal::{FailedAttempt, HealDecision, heal_decision, healed_too_often};
use crate::launch_plan::placed;
use crate::resume::next_attempt_on_most;
use crate::{Context, DiskNeed, LaunchPlan, ResumeRequest, StartOptions};

/// A job that Slurm has started.
#[derive(Debug, Clone)]
pub struct JobStartRequest<'a> {
    /// The attempt that was submitted.
    pub submitted: u32,
    /// The run, its newest attempt and its checkpoints.
    pub resume: ResumeRequest<'a>,
}

/// The decision of a job after Slurm has started it.
#[derive(Debug, Clone, PartialEq)]
pub enum JobStart {
    /// The job starts the attempt that was submitted.
    SubmittedAttempt(Box<LaunchPlan>),
    /// The job was requeued and starts a new attempt from the newest checkpoint.
    NextAttempt(Box<LaunchPlan>),
    /// The job ends, for this reason.
    Nothing(String),
}

/// Decides what a job does after Slurm has started it on `cx.target`, its allocation.
///
/// # Errors
/// When another attempt of the run has been started elsewhere, or the run does not fit the allocation.
pub fn job_start(request: &JobStartRequest<'_>, cx: &Context) -> Result<JobStart, Failure> {
    let JobStartRequest { submitted, resume: ResumeRequest { run, dir, facts, .. } } = request;
    let what = format!("cannot start {} in this job", run.id);
    let job = cx.target.slurm.as_ref().and_then(|slurm| slurm.job);
    let Some(newest) = &facts.attempt else {
        let (why, fix) = (format!("{} has no attempt", dir.root), format!("submit it: `vidtui resume {}`", run.id));
        return Err(Failure::new(ErrorCode::RunNotStarted, what, why, fix));
    };
    let of = |attempt: &Attempt| attempt.slurm.as_ref().and_then(|slurm| slurm.job);
    let is_first = newest.number == *submitted && newest.placement.ranks.is_empty();
    // The stop request is newer than the newest attempt: a new attempt removes the file.
    if facts.stops_for_good {
        return Ok(JobStart::Nothing(format!("a stop was requested; to continue: `vidtui resume {}`", run.id)));
    }
    let fits = cx.target.slots() >= newest.mesh.world();
    // With fewer nodes, the first attempt that starts has another mesh than the one that was submitted.
    if is_first && (fits || newest.slurm.as_ref().is_none_or(|slurm| slurm.spec.min_nodes.is_none())) {
        let mut attempt = newest.clone();
        let fix = "submit the script unchanged, without other values of --nodes and --gres";
        attempt.placement = placed(&what, &cx.target.nodes, &attempt.mesh, fix.into())?;
        attempt.slurm = cx.target.slurm.clone();
        return Ok(JobStart::SubmittedAttempt(Box::new(plan_submitted(&request.resume, attempt, cx)?)));
    }
    // No process of this job's earlier attempts is running: Slurm ends a job completely before it requeues it.
    if !is_first && of(newest) != job && !runstate::derive(facts, cx.now_s).is_end() {
        return Err(Failure::new(
            ErrorCode::RunIsAlive,
            what,
            format!("{} has started attempt {} in the meantime", newest.by, newest.number),
            format!("watch that attempt: `vidtui status {}`", run.id),
        ));
    }
    if is_done(facts, newest) {
        return Ok(JobStart::Nothing(format!("all {} steps are done", facts.steps_total)));
    }
    // No user is present to choose again: the choices of the newest attempt apply.
    let options = StartOptions { waived: newest.waived.clone(), ..cx.options.clone() };
    let cx = Context { by: newest.by.clone(), options, ..cx.clone() };
    let shrink = run.recipe()?.run.shrink;
    let plan = next_attempt_on_most(&what, &request.resume, shrink, cx, AttemptWhy::Requeue, None)?;
    Ok(JobStart::NextAttempt(Box::new(plan)))
}

/// Plans the attempt that was submitted, on the nodes of the allocation.
fn plan_submitted(request: &ResumeRequest<'_>, attempt: Attempt, cx: &Context) -> Result<LaunchPlan, Failure> {
    let recipe = attempt.effective(&request.run.recipe()?);
    let disk = match (&cx.options.encode, recipe.job()) {
        (Some(encode), JobKind::Encode) => DiskNeed::of_data_set(encode.disk_bytes),
        (None, JobKind::Encode) => DiskNeed::default(),
        (_, JobKind::Sample) => DiskNeed::of_data_set(0),
        (_, JobKind::Train | JobKind::Command) => {
            DiskNeed::new(&recipe, attempt.start_step, request.saved(), request.newest_bytes())
        }
    };
    Ok(LaunchPlan::of(request.run.clone(), request.dir.clone(), &recipe, attempt, disk, cx))
}

/// Decides whether a job whose ranks have ended is requeued. Returns the reason.
///
/// A job is requeued if steps remain and Slurm warned it of its time limit or preempted it. After a failure, it is requeued if the
/// settings of the run allow it and the failure would not repeat ([`heal_decision`]). After a stop request, it is not requeued.
///
/// * `events` — the events of the run.
///
/// # Errors
/// The reason why the job is not requeued.
pub fn requeue(
    facts: &RunFacts,
    settings: &RunSettings,
    events: &[Event],
    was_warned: bool,
    job: Option<&JobDetails>,
    now_s: f64,
) -> Result<String, String> {
    let preempted =
        job.and_then(|job| job.get("PreemptTime")).is_some_and(|time| !["None", "Unknown", "N/A"].contains(&time));
    let Some(attempt) = &facts.attempt else { return Err("the run has no attempt".into()) };
    if is_done(facts, attempt) {
        return Err(format!("all {} steps are done", facts.steps_total));
    }
    let state = runstate::derive(facts, now_s);
    let heals = settings.on_failure == OnFailure::Resume && !facts.stops_for_good;
    if let Some(failed) = FailedAttempt::of(facts, &state, now_s).filter(|_| heals) {
        return match heal_decision(settings, &failed, events, now_s) {
            HealDecision::Resume => Ok(format!("the run failed: {}: {}", failed.failure.what, failed.failure.why)),
            HealDecision::Later(_) => Err(healed_too_often(settings)),
            HealDecision::End(failure) => Err(format!("{}: {}", failure.what, failure.why)),
        };
    }
    match (state, was_warned, preempted) {
        (RunState::Failed(failure), ..) => Err(format!("{}: {}", failure.what, failure.why)),
        _ if facts.stops_for_good => Err("a stop was requested".into()),
        (_, true, _) => Ok("the time limit was reached".into()),
        (_, _, true) => Ok("the job was preempted".into()),
        _ => Err("the run was stopped".into()),
    }
}

fn is_done(facts: &RunFacts, newest: &Attempt) -> bool {
    if facts.is_independent {
        return facts.has_finished;
    }
    let finished =
        |exit: &rundir::ExitFile| exit.attempt == newest.number && exit.reason == rundir::ExitReason::Finished;
    !facts.exits.is_empty() && facts.exits.iter().all(finished)
}

#[cfg(test)]
mod tests;
