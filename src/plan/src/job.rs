//! Runs as Slurm jobs: the batch script, and what it does when its turn comes.
//!
//! Nobody knows the nodes before the job begins, and it may begin again: after a time limit, a preemption, a lost node. So the
//! script asks this program each time, on its first node, which attempt begins there; no console needs to be open.

use std::fmt::Write;

use camino::Utf8Path;
use cluster::Placement;
use cluster::slurm::{JobDetails, SlurmSpec};
use rundir::{Attempt, AttemptWhy, Failure, RunDir, RunId, SlurmJob};
use runstate::{RunFacts, RunState};

use crate::resume::go_on;
use crate::{Context, DiskNeed, LaunchPlan, ResumeRequest, StartOptions, command_line, quote};
use units::counted;

/// What a job's script asks when the job begins.
#[derive(Debug, Clone)]
pub struct JobTurnRequest<'a> {
    /// The attempt that was submitted.
    pub submitted: u32,
    /// What is known of the run and its newest attempt.
    pub resume: ResumeRequest<'a>,
}

/// What a job does when it begins.
#[derive(Debug, Clone, PartialEq)]
pub enum JobTurn {
    /// The attempt that was submitted begins here.
    SubmittedAttempt(Box<LaunchPlan>),
    /// The job was put back into the queue: a new attempt goes on from the newest checkpoint.
    NextAttempt(Box<LaunchPlan>),
    /// There is nothing left to do, and why.
    Nothing(String),
}

/// Decides what a job does that begins in `cx.target`, its allocation.
///
/// # Errors
/// When the run is elsewhere by now, or does not fit the allocation.
pub fn job_turn(request: &JobTurnRequest<'_>, cx: &Context) -> Result<JobTurn, Failure> {
    let JobTurnRequest { submitted, resume: ResumeRequest { run, dir, facts, .. } } = request;
    let what = format!("cannot begin {}", run.id);
    let job = cx.target.slurm.as_ref().and_then(|slurm| slurm.job);
    let refuse = |why: String, fix: String| Err(Failure::new(rundir::ErrorCode::Unclassified, &*what, why, fix));
    let Some(newest) = &facts.attempt else {
        return refuse(format!("{} has no attempt", dir.root), "submit it again: `vidtui resume`".into());
    };
    let of = |attempt: &Attempt| attempt.slurm.as_ref().and_then(|slurm| slurm.job);
    let is_first = newest.number == *submitted && newest.placement.ranks.is_empty();
    // Asked for since the newest attempt was made: making one removes the file.
    if facts.stops_for_good {
        return Ok(JobTurn::Nothing(format!("it was asked to stop; to go on: `vidtui resume {}`", run.id)));
    }
    if is_first {
        let mut attempt = newest.clone();
        attempt.placement = Placement::new(&cx.target.nodes, attempt.mesh.world()).map_err(|error| {
            Failure::new(
                rundir::ErrorCode::Unclassified,
                &*what,
                error.to_string(),
                "submit it as vidtui wrote it: --nodes, --gres",
            )
        })?;
        attempt.slurm = cx.target.slurm.clone();
        return Ok(JobTurn::SubmittedAttempt(Box::new(first(&request.resume, attempt, cx)?)));
    }
    // Of its own earlier turns nothing is left: Slurm ends all of a job before it begins it again.
    if of(newest) != job && !runstate::derive(facts, cx.now_s).is_end() {
        return refuse(
            format!("attempt {} was started since, by {}", newest.number, newest.by),
            format!("it is the one to watch: `vidtui status {}`", run.id),
        );
    }
    if is_done(facts, newest) {
        return Ok(JobTurn::Nothing(format!("all {} steps are done", facts.steps_total)));
    }
    // The job has no user who could choose again.
    let options = StartOptions { waived: newest.waived.clone(), ..cx.options.clone() };
    let cx = Context { by: newest.by.clone(), options, ..cx.clone() };
    let plan = go_on(&what, &request.resume, &cx, AttemptWhy::Requeue, None)?;
    Ok(JobTurn::NextAttempt(Box::new(plan)))
}

/// What is started for an attempt that was submitted, now that its nodes are known.
fn first(request: &ResumeRequest<'_>, attempt: Attempt, cx: &Context) -> Result<LaunchPlan, Failure> {
    let recipe = request.run.recipe()?;
    let steps = attempt.steps.unwrap_or(recipe.train.steps);
    let disk = DiskNeed::new(&recipe, attempt.start_step, steps, request.saved(), request.newest_bytes());
    Ok(LaunchPlan::of(request.run.clone(), request.dir.clone(), &recipe, attempt, disk, cx))
}

/// Decides whether a job whose ranks have ended goes back into the queue; either way says why.
///
/// It does when Slurm warned it of its time limit or takes its place, and there is something left to train. A stop that
/// a person asked for, and a failure, which would come again, are ends.
///
/// # Errors
/// Why it does not.
pub fn requeue(facts: &RunFacts, was_warned: bool, job: Option<&JobDetails>, now_s: f64) -> Result<String, String> {
    let preempted =
        job.and_then(|job| job.get("PreemptTime")).is_some_and(|time| !["None", "Unknown", "N/A"].contains(&time));
    let Some(attempt) = &facts.attempt else { return Err("there is no attempt".into()) };
    if is_done(facts, attempt) {
        return Err(format!("all {} steps are done", facts.steps_total));
    }
    match (runstate::derive(facts, now_s), was_warned, preempted) {
        (RunState::Failed(failure), ..) => Err(format!("{}: {}", failure.what, failure.why)),
        _ if facts.stops_for_good => Err("it was asked to stop".into()),
        (_, true, _) => Ok("its time is over".into()),
        (_, _, true) => Ok("it was preempted".into()),
        _ => Err("it was stopped".into()),
    }
}

fn is_done(facts: &RunFacts, newest: &Attempt) -> bool {
    let finished =
        |exit: &rundir::ExitFile| exit.attempt == newest.number && exit.reason == rundir::ExitReason::Finished;
    !facts.exits.is_empty() && facts.exits.iter().all(finished)
}

/// `8 on each of 4 nodes that Slurm chooses`.
pub(crate) fn ranks_in_words(spec: &SlurmSpec) -> String {
    match spec.nodes {
        1 => format!("{} on a node that Slurm chooses", spec.gpus_per_node),
        nodes => format!("{} on each of {nodes} nodes that Slurm chooses", spec.gpus_per_node),
    }
}

/// `partition train, 24:00:00; it saves and requeues itself 300 s before`.
pub(crate) fn in_words(spec: &SlurmSpec) -> String {
    let named = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {value}"));
    let asked =
        [named("partition", &spec.partition), named("account", &spec.account), named("nodes with", &spec.constraint)];
    let asked: Vec<String> =
        asked.into_iter().flatten().chain([spec.time.clone()]).chain(spec.extra.iter().cloned()).collect();
    format!("{}; it saves and requeues itself {} s before its time is over", asked.join(", "), spec.save_before())
}

/// Writes a word of an `#SBATCH` line. sbatch has its own way to read them: a backslash protects a character, within quotes too.
fn sbatch_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=&|*~[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', r#"\""#))
}

/// Writes the batch script of an attempt: what is submitted, and what a person can submit by hand.
pub(crate) fn script(dir: &RunDir, run: &RunId, attempt: &Attempt, cx: &Context) -> String {
    let number = attempt.number;
    let Some(SlurmJob { spec, .. }) = &attempt.slurm else { return String::new() };
    let mut options = vec![format!("--job-name={run}")];
    options.extend(spec.options());
    options.extend([
        "--ntasks-per-node=1".to_owned(),
        // sbatch replaces what a % begins.
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
# Trains run {run} in {ranks} on {nodes}: attempt {number}, and those that follow when this job is put back into the queue.
#
# By hand:
#   sbatch {by_hand}
# What this script says is in
#   {log}
# `scancel --signal=TERM JOB` saves a checkpoint and ends the job. `scancel JOB` ends it without.
set -u

# All processes of the run carry its id; what does not carry it is never signalled.
export VIDTUI_RUN={id}
export VIDTUI_TRAIN={trainer}
{modules}
# Slurm warns {before} s before the time limit. Then the ranks save and stop, and the job waits for another turn, unless
# somebody has asked for a stop before.
warned=
trap 'warned=yes; touch {stop}; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# Whatever ends this job, the ranks get the time that Slurm gives them.
trap : TERM

# Says which attempt begins here: it knows the nodes, and after another turn the checkpoint to go on from.
attempt=$({begin} --attempt {number}) || exit
[ -n "$attempt" ] || exit 0

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none \
  bash -c 'exec bash "$1/$SLURMD_NODENAME.sh"' launch {attempts}/"$attempt"/launch &
# A signal interrupts the wait, not the ranks.
while wait $!; ended=$?; kill -0 $! 2>/dev/null; do :; done

if {again} ${{warned:+--warned}}; then
  # The controller may be away for a while.
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
        // Within the quotes of the trap.
        stop = quote(dir.stop_file().as_str()).replace('\'', r"'\''"),
        begin = in_job("begin"),
        again = in_job("again"),
        attempts = quote(dir.attempts().as_str()),
    )
}

#[cfg(test)]
mod tests;
