//! Runs as Slurm jobs: the batch script, and the decision about each start of a job by Slurm.
//!
//! The nodes are unknown until the job starts, and Slurm may start it more than once: after a time limit, a preemption or a
//! lost node. Each time, the script calls `vidtui job begin` on the first node to find out which attempt to start. No
//! console needs to be open.

use std::fmt::Write;

use camino::Utf8Path;
use cluster::slurm::{JobDetails, SlurmSpec};
use rundir::{Attempt, AttemptWhy, ErrorCode, Failure, RunDir, RunId, SlurmJob};
use runstate::{RunFacts, RunState};

use crate::launch_plan::placed;
use crate::resume::next_attempt;
use crate::{Context, DiskNeed, LaunchPlan, ResumeRequest, StartOptions, command_line, quote};
use units::counted;

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

/// Decides what a job does that Slurm has started on `cx.target`, its allocation.
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
    if is_first {
        let mut attempt = newest.clone();
        let fix = "submit the script unchanged, without other values of --nodes and --gres";
        attempt.placement = placed(&what, &cx.target.nodes, &attempt.mesh, fix.into())?;
        attempt.slurm = cx.target.slurm.clone();
        return Ok(JobStart::SubmittedAttempt(Box::new(plan_submitted(&request.resume, attempt, cx)?)));
    }
    // Nothing of this job's earlier turns is running: Slurm ends a job completely before it starts it again.
    if of(newest) != job && !runstate::derive(facts, cx.now_s).is_end() {
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
    let plan = next_attempt(&what, &request.resume, &cx, AttemptWhy::Requeue, None)?;
    Ok(JobStart::NextAttempt(Box::new(plan)))
}

/// Plans the attempt that was submitted, on the nodes of the allocation.
fn plan_submitted(request: &ResumeRequest<'_>, attempt: Attempt, cx: &Context) -> Result<LaunchPlan, Failure> {
    let recipe = request.run.recipe()?;
    let steps = attempt.steps.unwrap_or(recipe.train.steps);
    let disk = match (&cx.options.encode, recipe.task) {
        (Some(encode), recipe::Task::Encode) => DiskNeed::of_data_set(encode.disk_bytes),
        (None, recipe::Task::Encode) => DiskNeed::default(),
        _ => DiskNeed::new(&recipe, attempt.start_step, steps, request.saved(), request.newest_bytes()),
    };
    Ok(LaunchPlan::of(request.run.clone(), request.dir.clone(), &recipe, attempt, disk, cx))
}

/// Decides whether a job whose ranks have ended is requeued. Returns the reason.
///
/// A job is requeued when Slurm warned it of its time limit or preempts it, and steps remain. It ends after a stop request
/// or a failure, which would repeat.
///
/// # Errors
/// The reason why it is not requeued.
pub fn requeue(facts: &RunFacts, was_warned: bool, job: Option<&JobDetails>, now_s: f64) -> Result<String, String> {
    let preempted =
        job.and_then(|job| job.get("PreemptTime")).is_some_and(|time| !["None", "Unknown", "N/A"].contains(&time));
    let Some(attempt) = &facts.attempt else { return Err("the run has no attempt".into()) };
    if is_done(facts, attempt) {
        return Err(format!("all {} steps are done", facts.steps_total));
    }
    match (runstate::derive(facts, now_s), was_warned, preempted) {
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

/// Formats the ranks of a Slurm request: `8 on each of 4 nodes that Slurm chooses`.
pub(crate) fn ranks_in_words(spec: &SlurmSpec) -> String {
    match spec.nodes {
        1 => format!("{} on a node that Slurm chooses", spec.gpus_per_node),
        nodes => format!("{} on each of {nodes} nodes that Slurm chooses", spec.gpus_per_node),
    }
}

/// Formats a Slurm request: `partition train, 24:00:00; saves and requeues itself 300 s before the time limit`.
pub(crate) fn in_words(spec: &SlurmSpec) -> String {
    let named = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {value}"));
    let options =
        [named("partition", &spec.partition), named("account", &spec.account), named("nodes with", &spec.constraint)];
    let options: Vec<String> =
        options.into_iter().flatten().chain([spec.time.clone()]).chain(spec.extra.iter().cloned()).collect();
    format!("{}; saves and requeues itself {} s before the time limit", options.join(", "), spec.save_before())
}

/// Quotes a word of an `#SBATCH` line. For sbatch, a backslash escapes a character even within quotes.
fn sbatch_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=&|*~[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', r#"\""#))
}

/// Returns the batch script of an attempt, which vidtui submits and a user can submit by hand.
pub(crate) fn script(dir: &RunDir, run: &RunId, attempt: &Attempt, cx: &Context) -> String {
    let number = attempt.number;
    let Some(SlurmJob { spec, .. }) = &attempt.slurm else { return String::new() };
    let mut options = vec![format!("--job-name={run}")];
    options.extend(spec.options());
    options.extend([
        "--ntasks-per-node=1".to_owned(),
        // sbatch expands sequences that begin with %.
        format!("--output={}", dir.job_log(number).as_str().replace('%', "%%")),
        "--open-mode=append".to_owned(),
        "--requeue".to_owned(),
        format!("--signal=B:USR1@{}", spec.save_before()),
    ]);
    let options = options.iter().map(|option| sbatch_word(option)).chain(spec.extra.iter().cloned());
    let mut header = String::new();
    options.for_each(|option| writeln!(header, "#SBATCH {option}").expect("writing to a string cannot fail"));
    let modules: String =
        spec.modules.iter().map(|module| format!("module load {} || exit\n", quote(module))).collect();
    let modules = if modules.is_empty() { modules } else { format!("\n{modules}") };
    let in_comment = |path: &Utf8Path| quote(path.as_str()).replace(['\n', '\r'], "?");
    let in_job = |verb: &str| command_line(&[cx.program.as_str(), "job", verb, "--run-dir", dir.root.as_str()]);
    format!(
        r#"#!/usr/bin/env bash
{header}#
# Trains run {run} with {ranks} on {nodes}: attempt {number}, and the next ones when this job is requeued.
#
# To submit it by hand:
#   sbatch {by_hand}
# The output of this script is in
#   {log}
# `scancel --signal=TERM JOB` saves a checkpoint and ends the job. `scancel JOB` ends it without a checkpoint.
set -u

# All processes of the run have its id in their environment; no other process is ever signalled.
export VIDTUI_RUN={id}
export VIDTUI_TRAIN={trainer}
{modules}
# Slurm sends USR1 {before} s before the time limit. Then the ranks save and stop, and the job is requeued, unless a stop
# was requested before.
warned=
trap 'warned=yes; touch {stop}; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# On TERM this script waits, so that the ranks get the time that Slurm allows them.
trap : TERM

# Prints the number of the attempt to start on these nodes; after a requeue this is a new one.
attempt=$({begin} --attempt {number}) || exit
[ -n "$attempt" ] || exit 0

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none \
  bash -c 'exec bash "$1/$SLURMD_NODENAME.sh"' launch {attempts}/"$attempt"/launch &
# A signal interrupts `wait` but not the ranks.
while wait $!; ended=$?; kill -0 $! 2>/dev/null; do :; done

if {again} ${{warned:+--warned}}; then
  # Retry while the Slurm controller does not answer.
  for pause in 0 5 10 20 30 60 60 60 60; do
    sleep "$pause"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
  done
fi
exit "$ended"
"#,
        ranks = counted(attempt.mesh.world(), "rank"),
        nodes = counted(spec.nodes, "node"),
        by_hand = in_comment(&dir.job_script(number)),
        log = in_comment(&dir.job_log(number)),
        id = quote(run.as_str()),
        trainer = quote(cx.trainer.path.as_str()),
        before = spec.save_before(),
        // The path is within the quotes of the trap.
        stop = quote(dir.stop_file().as_str()).replace('\'', r"'\''"),
        begin = in_job("begin"),
        again = in_job("again"),
        attempts = quote(dir.attempts().as_str()),
    )
}

#[cfg(test)]
mod tests;
