//! The batch script of a Slurm job, and text that describes a Slurm request.

use std::fmt::Write;

use camino::Utf8Path;
use cluster::slurm::{REMOVED_FROM_STEPS, SlurmSpec, quoted};
use rundir::{Attempt, Run, RunDir, SlurmJob};
use units::counted;

use crate::{Context, command_line, quote};

/// Formats the ranks of a Slurm request: `8 on each of 4 nodes that Slurm chooses`.
pub(crate) fn ranks_in_words(spec: &SlurmSpec) -> String {
    match (spec.least_nodes(), spec.nodes) {
        (1, 1) => format!("{} on a node that Slurm chooses", spec.gpus_per_node),
        (least, nodes) if least < nodes => {
            format!("{} on each of {least} to {nodes} nodes that Slurm chooses", spec.gpus_per_node)
        }
        (_, nodes) => format!("{} on each of {nodes} nodes that Slurm chooses", spec.gpus_per_node),
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

/// Returns the batch script of an attempt, which vidtui submits and a user can submit by hand.
pub(crate) fn script(dir: &RunDir, run: &Run, attempt: &Attempt, cx: &Context) -> String {
    let number = attempt.number;
    let Some(SlurmJob { spec, .. }) = &attempt.slurm else { return String::new() };
    let mut options = vec![format!("--job-name={}", run.id)];
    options.extend(spec.options());
    options.extend([
        "--ntasks-per-node=1".to_owned(),
        // sbatch expands sequences that begin with %.
        format!("--output={}", dir.job_log(number).as_str().replace('%', "%%")),
        "--open-mode=append".to_owned(),
        "--requeue".to_owned(),
        format!("--signal=B:USR1@{}", spec.save_before()),
    ]);
    // Independent ranks take over the work of ranks on a lost node, so Slurm must end neither the job nor the job step.
    let no_kill = if run.is_independent() { "--no-kill " } else { "" };
    options.extend((!no_kill.is_empty()).then(|| no_kill.trim_end().to_owned()));
    let options = options.iter().map(|option| quoted(option)).chain(spec.extra.iter().cloned());
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
# Executes run {run} with {ranks} on {nodes}: attempt {number}, and the next ones when this job is requeued.
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
# Variables from which srun, scancel and scontrol read options, if the user, the site or a module has set them.
unset "${{!SRUN_@}}" "${{!SCANCEL_@}}" "${{!SCONTROL_@}}" \
{unset}

# Slurm sends USR1 {before} s before the time limit. Then the ranks save and stop, and the job is requeued, unless a stop
# was requested before.
warned=
trap 'warned=yes; touch {stop}; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# On TERM this script waits, so that the ranks get the time that Slurm allows them.
trap : TERM

# Prints the number of the attempt to start on these nodes; after a requeue this is a new one.
attempt=$({begin} --attempt {number}) || exit
[ -n "$attempt" ] || exit 0

# The nodes of the attempt: all of the job, or as many as the mesh can use.
nodes=({attempts}/"$attempt"/launch/*.sh)
nodes=("${{nodes[@]##*/}}")
list=$(IFS=,; echo "${{nodes[*]%.sh}}")

srun --export=ALL --nodes="${{#nodes[@]}}" -w "$list" --ntasks-per-node=1 {no_kill}--kill-on-bad-exit=0 --wait=0 \
  --cpu-bind=none bash -c 'exec bash "$1/$SLURMD_NODENAME.sh"' launch {attempts}/"$attempt"/launch &
# A signal interrupts `wait` but not the ranks.
while wait $!; ended=$?; kill -0 $! 2>/dev/null; do :; done

if {requeue} ${{warned:+--warned}}; then
  # Retry while the Slurm controller does not answer.
  for pause in 0 5 10 20 30 60 60 60 60; do
    sleep "$pause"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
  done
fi
exit "$ended"
"#,
        run = run.id,
        ranks = counted(attempt.mesh.world(), "rank"),
        nodes = counted(spec.nodes, "node"),
        by_hand = in_comment(&dir.job_script(number)),
        log = in_comment(&dir.job_log(number)),
        id = quote(run.id.as_str()),
        trainer = quote(cx.trainer.path.as_str()),
        before = spec.save_before(),
        // The path is inside the single quotes of the trap.
        stop = quote(dir.stop_file().as_str()).replace('\'', r"'\''"),
        unset = REMOVED_FROM_STEPS
            .chunks(6)
            .map(|names| format!("  {}", names.join(" ")))
            .collect::<Vec<_>>()
            .join(" \\\n"),
        begin = in_job("begin"),
        requeue = in_job("requeue"),
        attempts = quote(dir.attempts().as_str()),
    )
}
