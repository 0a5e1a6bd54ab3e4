//! Finds the initial weights of an attempt on disk.

use camino::{Utf8Path, Utf8PathBuf};
use plan::{LaunchPlan, Weights};
use recipe::{Task, TrainerKind};
use rundir::{Checkpoint, CheckpointEntry, ErrorCode, Failure, Lineage, RunDir, RunId, StartFrom};

/// Finds the weights that `--init` names: a step directory, or the newest complete checkpoint of a run (folder or id). For a
/// command, any other file or folder is accepted too.
///
/// # Errors
/// When the path does not exist, or contains no complete checkpoint.
pub fn find_weights(given: &str, runs_root: &Utf8Path, trainer: TrainerKind) -> Result<Weights, Failure> {
    let what = format!("cannot take weights from {given}");
    let path = Utf8PathBuf::from(given);
    let path = if path.exists() || RunId::parse(given).is_err() { path } else { runs_root.join(given) };
    let path = camino::absolute_utf8(&path).unwrap_or(path);
    if !path.exists() {
        let fix = match trainer {
            TrainerKind::Embedded => "give a step directory (RUN/checkpoints/step-…) or a run",
            TrainerKind::Command => "put the weights there, or name others: --init PATH or --init RUN",
        };
        return Err(Failure::new(ErrorCode::NotFound, what, format!("{path} does not exist"), fix));
    }
    let run = RunDir::new(path.clone());
    if run.run_toml().exists() {
        let newest = other_trainers::latest_strict(&run)?.ok_or_else(|| {
            let trains = run.read_run().is_ok_and(|run| run.task() == Task::Train);
            let fix = match trains {
                true => format!("resume it until it saves one: `vidtui resume {}`", run.name()),
                false => "name a run that trains; `vidtui runs` lists all runs".to_owned(),
            };
            Failure::new(ErrorCode::NoCheckpoint, &*what, format!("run {path} has no complete checkpoint"), fix)
        })?;
        let lineage = Lineage { run: run.read_run()?.id, step: newest.step };
        return Ok(Weights { path: newest.dir, lineage: Some(lineage) });
    }
    if trainer == TrainerKind::Command {
        return of_command(&what, path);
    }
    let checkpoint = Checkpoint::open(&path).map_err(|error| {
        let why = error.to_string();
        let fix = "give a complete step directory (RUN/checkpoints/step-…) or a run";
        Failure::new(Failure::from(error).code, &*what, why, fix)
    })?;
    let lineage = checkpoint.manifest.trained_by().map(|run| Lineage { run: run.clone(), step: checkpoint.step });
    Ok(Weights { path, lineage })
}

/// Returns a file or folder as weights for a command. If it is a checkpoint of a run, it must be complete.
fn of_command(what: &str, path: Utf8PathBuf) -> Result<Weights, Failure> {
    let run = path.ancestors().map(RunDir::new).find(|run| run.run_toml().exists());
    let entries = run.as_ref().map_or(Ok(Vec::new()), other_trainers::checkpoints)?;
    let lineage = match (run, entries.iter().find(|entry| entry.dir() == path).map(CheckpointEntry::summary)) {
        (Some(run), Some(Ok(saved))) => Some(Lineage { run: run.read_run()?.id, step: saved.step }),
        (Some(run), Some(Err((_, why)))) => {
            let fix = format!("choose a complete one: `vidtui checkpoints {}`", run.name());
            return Err(Failure::new(ErrorCode::CheckpointIncomplete, what, format!("{path}: {why}"), fix));
        }
        _ => None,
    };
    Ok(Weights { path, lineage })
}

/// Returns the checkpoint or weights that the attempt starts from; `None` if it starts from random weights.
pub(crate) fn weights_dir(plan: &LaunchPlan) -> Option<Utf8PathBuf> {
    if let Some(dir) = &plan.attempt.checkpoint {
        return Some(dir.clone());
    }
    Some(match &plan.attempt.start {
        StartFrom::Random => return None,
        StartFrom::Weights { path } => path.clone(),
        StartFrom::Checkpoint { run, step } | StartFrom::CheckpointFreshData { run, step } if *run == plan.run.id => {
            plan.dir.step_dir(*step)
        }
        StartFrom::Checkpoint { run, step } | StartFrom::CheckpointFreshData { run, step } => {
            RunDir::of(plan.dir.root.parent().unwrap_or(Utf8Path::new(".")), run).step_dir(*step)
        }
    })
}
