//! `vidtui sample RUN --follow`: samples each checkpoint of a training run, outside of the training.

use super::{SampledWeights, prompt_files, report, start};
use crate::args::SampleArgs;
use crate::command_error::CommandError;
use crate::commands::{named_run, waiting};
use crate::output::note;
use crate::workspace::{Needs, Workspace};
use rundir::{CheckpointEntry, ErrorCode, Failure, RunDir};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

/// How often new checkpoints are searched.
const LOOK: Duration = Duration::from_secs(2);

/// Samples the checkpoints of a run until the run has ended and each has its samples.
///
/// # Errors
/// The run has no prompts, its folder cannot be read, or samples of some steps could not be made. The others are made first.
pub fn run(workspace: &Workspace, args: &SampleArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.from, Needs::Training, args.output.json)?;
    let run = dir.read_run()?;
    let what = format!("cannot sample the checkpoints of {}", run.id);
    if run.is_command() {
        let why = "a command trains, and vidtui does not know its model";
        let fix = "sample with the program itself";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    let mut args = args.clone();
    let prompts = match &args.prompts {
        Some(file) => args.prompt.len() + prompt_files::read(file)?.len(),
        None => {
            if args.prompt.is_empty() {
                args.prompt = run.recipe()?.sample.prompts;
            }
            args.prompt.len()
        }
    };
    if prompts == 0 {
        let why = "its recipe has no sample.prompts";
        let fix = "give --prompt TEXT, or --prompts FILE with a prompt on each line";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    args.name.get_or_insert_with(|| format!("{}-samples", run.name));
    let mut seen = BTreeSet::new();
    let mut failures: Vec<(u64, Failure)> = Vec::new();
    loop {
        // Read before the list, so that a checkpoint that the run saves at its end is not missed.
        let has_ended = workspace.summary(&dir)?.0.state.is_end();
        match next_step(&dir, prompts, &seen)? {
            Some(step) => {
                seen.insert(step);
                if let Err(failure) = sample(workspace, &dir, step, &args) {
                    note!("no samples of step {step}: {failure}");
                    failures.push((step, failure));
                }
            }
            None if has_ended => break,
            None => thread::sleep(LOOK),
        }
    }
    let Some((step, first)) = failures.first() else { return Ok(()) };
    let why = match failures.len() {
        1 => format!("{}: {}", first.what, first.why),
        more => format!("{more} of them failed; step {step}: {}: {}", first.what, first.why),
    };
    Err(Failure::new(first.code, what, why, &*first.fix).into())
}

/// Returns the first step whose complete checkpoint has no samples.
fn next_step(dir: &RunDir, prompts: usize, seen: &BTreeSet<u64>) -> Result<Option<u64>, Failure> {
    let complete = |entry: CheckpointEntry| entry.complete().map(|checkpoint| checkpoint.step);
    let lacks = |step: &u64| (0..prompts).any(|index| !dir.sample_video(*step, index).with_extension("json").exists());
    let steps = other_trainers::checkpoints(dir)?.into_iter().filter_map(complete);
    Ok(steps.filter(|step| !seen.contains(step) && lacks(step)).min())
}

/// Makes the samples of a checkpoint.
fn sample(workspace: &Workspace, dir: &RunDir, step: u64, args: &SampleArgs) -> Result<(), Failure> {
    let args = SampleArgs {
        from: dir.step_dir(step).into_string(),
        out: Some(dir.samples_of(step)),
        // A run that was interrupted may have left some.
        force: true,
        ..args.clone()
    };
    note!("step {step}: sampling");
    let made = || {
        let weights = SampledWeights::find(workspace, &args.from)?;
        let Some((_, run)) = start(workspace, &args, weights)? else { return Ok(()) };
        waiting::until_finished(workspace, &run)?;
        report(&run, args.output.json)
    };
    made().map_err(CommandError::into_failure)
}
