//! Checks of files on this machine: the trainer, the weights, the run directory and the secrets.

use std::os::unix::fs::PermissionsExt;

use camino::Utf8Path;
use nix::unistd::{AccessFlags, access};
use plan::{LaunchPlan, check_weights};
use recipe::{JobKind, Secrets};
use rundir::{Checkpoint, CheckpointEntry, ErrorCode, Failure, RunDir, StartFrom};
use units::size;

use super::answer::CheckResult;
use super::check::{Check, CheckId};
use crate::weights::weights_dir;

pub(super) fn checks(what: &str, plan: &LaunchPlan) -> Vec<Check> {
    let mut checks = vec![
        Check::new(CheckId::Trainer, None, trainer(what, plan)),
        Check::new(CheckId::Weights, None, weights(what, plan)),
        Check::new(CheckId::RunDirectory, None, writable(what, &plan.dir.root)),
    ];
    let secrets = secrets(plan).map(|secrets| secrets.names().collect::<Vec<_>>().join(", "));
    // Omit the check if the recipe has no secrets.
    if secrets.as_ref() != Ok(&String::new()) {
        let result = secrets.map(|names| match plan.job_script {
            // This program may no longer run when the job begins.
            Some(_) => format!("{names}: each node of the job reads them from their file"),
            None => format!("{names}: passed to the ranks when they start"),
        });
        checks.push(Check::new(CheckId::Secrets, None, result));
    }
    checks
}

/// Reads the secrets of the plan's recipe; there may be none.
pub(crate) fn secrets(plan: &LaunchPlan) -> Result<Secrets, Failure> {
    let path = plan.run.recipe()?.env.secrets;
    if path.as_str().is_empty() {
        return Ok(Secrets::default());
    }
    Ok(Secrets::read(&path)?)
}

fn trainer(what: &str, plan: &LaunchPlan) -> CheckResult {
    let path = &plan.trainer.path;
    let why = match path.metadata() {
        Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => return Ok(path.to_string()),
        Ok(_) => format!("the trainer {path} is not an executable file"),
        Err(error) => format!("the trainer {path} cannot be used: {error}"),
    };
    Err(Failure::new(ErrorCode::TrainerUnusable, what, why, "build it again"))
}

/// Checks that the starting checkpoint is complete and has the shape of the recipe's model.
fn weights(what: &str, plan: &LaunchPlan) -> CheckResult {
    let recipe = plan.run.recipe()?;
    match recipe.job() {
        JobKind::Command => return command_weights(what, plan),
        JobKind::Encode => return Ok(format!("the encoders in {}", recipe.encoders.folder)),
        JobKind::Train | JobKind::Sample => {}
    }
    let Some(dir) = weights_dir(plan) else { return Ok("random".into()) };
    let checkpoint = Checkpoint::open(&dir).map_err(|error| {
        let run = dir.ancestors().nth(2).map(RunDir::new).filter(|run| run.run_toml().exists());
        let fix = run.map_or("choose other weights: --init PATH".into(), |run| other_checkpoint(&run));
        let why = error.to_string();
        Failure::new(Failure::from(error).code, what, why, fix)
    })?;
    check_weights(what, &checkpoint.manifest, &recipe)?;
    let found = format!("{dir}, {}", size(checkpoint.bytes));
    // A different schedule or different positions can be intended, so this does not fail.
    match rundir::model_section(&dir).map(|section| recipe.model.contradictions(&section)) {
        Some(keys) if !keys.is_empty() => Ok(format!("{found}; warning: the recipe changes {}", keys.join(", "))),
        _ => Ok(found),
    }
}

/// Checks that the weights or the checkpoint that a command starts from exist, and that a checkpoint of a run is complete.
fn command_weights(what: &str, plan: &LaunchPlan) -> CheckResult {
    let of_start = match &plan.attempt.start {
        StartFrom::Checkpoint { run, .. } | StartFrom::CheckpointFreshData { run, .. } => Some(run),
        StartFrom::Weights { .. } => plan.run.lineage.as_ref().map(|parent| &parent.run),
        StartFrom::Random => None,
    };
    let dir = match (&plan.attempt.checkpoint, &plan.attempt.start) {
        (Some(dir), _) | (None, StartFrom::Weights { path: dir }) => dir,
        (None, _) => return Ok("chosen by the command".into()),
    };
    let runs = plan.dir.root.parent().unwrap_or(Utf8Path::new("."));
    let run = of_start.map(|run| RunDir::of(runs, run)).filter(|run| run.run_toml().exists());
    let Some(run) = run else {
        return match dir.exists() {
            true => Ok(dir.to_string()),
            false => {
                let why = format!("{dir} does not exist");
                Err(Failure::new(ErrorCode::NotFound, what, why, "choose other weights: --init PATH or --init RUN"))
            }
        };
    };
    let entries = other_trainers::checkpoints(&run)?;
    let (code, why) = match entries.iter().find(|entry| entry.dir() == dir).map(CheckpointEntry::summary) {
        Some(Ok(saved)) => return Ok(format!("{dir}, {}", size(saved.bytes))),
        Some(Err((_, why))) => (ErrorCode::CheckpointIncomplete, why),
        None => (ErrorCode::NotFound, "it no longer exists"),
    };
    Err(Failure::new(code, what, format!("{dir}: {why}"), other_checkpoint(&run)))
}

fn other_checkpoint(run: &RunDir) -> String {
    format!("choose another checkpoint: `vidtui checkpoints {}` lists the complete ones", run.name())
}

fn writable(what: &str, dir: &Utf8Path) -> CheckResult {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Utf8Path::new("."));
    if !existing.is_dir() {
        let why = format!("{existing} is not a folder");
        return Err(Failure::new(ErrorCode::Io, what, why, "choose another folder with --runs"));
    }
    match access(existing.as_std_path(), AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(dir.to_string()),
        Err(error) => Err(Failure::new(
            ErrorCode::PermissionDenied,
            what,
            format!("folder {existing} is not writable: {}", error.desc()),
            "choose another folder with --runs, or change its permissions",
        )),
    }
}
