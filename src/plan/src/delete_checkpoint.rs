//! The plan to delete a checkpoint of a run.

use rundir::{CheckpointEntry, CheckpointSummary, ErrorCode, Failure, Run, RunDir, RunId, StartFrom};
use runstate::{RunFacts, RunState};

/// The request to delete a checkpoint.
#[derive(Debug, Clone)]
pub struct DeleteRequest<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its folder.
    pub dir: &'a RunDir,
    /// The facts about its newest attempt.
    pub facts: &'a RunFacts,
    /// Its state.
    pub state: &'a RunState,
    /// Whether a program resumes the run when it fails.
    pub heals: bool,
    /// Its checkpoints.
    pub checkpoints: &'a [CheckpointEntry],
    /// The newest complete one, from which a resume continues.
    pub latest: Option<&'a CheckpointSummary>,
    /// The other runs that use the checkpoint.
    pub uses: Vec<CheckpointUse>,
    /// The step of the checkpoint.
    pub step: u64,
}

/// A run that uses a checkpoint of another run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CheckpointUse {
    /// The run.
    pub run: RunId,
    /// How the run uses the checkpoint.
    pub of: UseOf,
    /// Whether the run may have processes, or may be resumed by a program.
    pub is_active: bool,
}

impl CheckpointUse {
    /// Returns why a checkpoint cannot be deleted, and the hint, if one of the runs that use it is active.
    pub(crate) fn refusal(uses: &[Self]) -> Option<(String, String)> {
        let Self { run, of, .. } = uses.iter().find(|of| of.is_active)?;
        let why = match of {
            UseOf::Start => format!("{run} started from it and is active"),
            UseOf::Base => format!("{run} is active and trains adapters on it"),
        };
        Some((why, format!("wait until that run has ended, or stop it: vidtui stop {run}")))
    }
}

/// How another run uses a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum UseOf {
    /// The weights that the run started from.
    Start,
    /// The base weights of its adapters, without which these cannot be loaded.
    Base,
}

/// A checkpoint that will be deleted.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CheckpointDelete {
    /// The run.
    pub run: RunId,
    /// Its folder.
    pub dir: RunDir,
    /// The checkpoint.
    pub checkpoint: CheckpointEntry,
    /// The other runs that use it. None of them is active.
    pub uses: Vec<CheckpointUse>,
    /// The step from which a resume continues afterwards, if the checkpoint is the newest complete one.
    pub falls_back_to: Option<u64>,
    /// Whether the checkpoint is the newest complete one.
    pub is_newest: bool,
}

/// Plans to delete a checkpoint.
///
/// # Errors
/// When there is no such checkpoint, it is pinned, or an active run needs it. A run whose state is unknown counts as active.
pub fn delete_checkpoint(request: DeleteRequest<'_>) -> Result<CheckpointDelete, Failure> {
    let DeleteRequest { run, dir, facts, state, heals, checkpoints, latest, uses, step } = request;
    let id = &run.id;
    let what = format!("cannot delete the checkpoint of step {step} of {id}");
    let refused = |why: String, fix: String| Err(Failure::new(ErrorCode::CheckpointInUse, &*what, why, fix));
    if run.is_command() {
        let why = "the command of the run saves and removes its own checkpoints";
        return Err(Failure::new(ErrorCode::InvalidArgument, &*what, why, "remove it as the command's program does"));
    }
    let Some(checkpoint) = checkpoints.iter().find(|entry| entry.step() == step) else {
        let why = "the run has no checkpoint of this step";
        let fix = format!("list its checkpoints: vidtui checkpoints {id}");
        return Err(Failure::new(ErrorCode::NoCheckpoint, &*what, why, fix));
    };
    if checkpoint.complete().is_some_and(|checkpoint| checkpoint.is_pinned) {
        return refused("it is pinned".into(), format!("unpin it first: vidtui checkpoints {id} unpin {step}"));
    }
    let is_active = heals || !(state.is_end() || *state == RunState::New);
    let is_newest = latest.is_some_and(|latest| latest.step == step);
    let stop = format!("stop the run first: vidtui stop {id}");
    if is_active && is_newest {
        let fix = format!("wait for its next checkpoint, or {stop}");
        return refused("it is the newest complete checkpoint of a run that is active".into(), fix);
    }
    if is_active && checkpoint.complete().is_none() {
        return refused("the run is active and may be saving it".into(), format!("wait until it is saved, or {stop}"));
    }
    let starts_from = |attempt: &rundir::Attempt| match &attempt.start {
        StartFrom::Checkpoint { run, step: start } | StartFrom::CheckpointFreshData { run, step: start } => {
            run == id && *start == step
        }
        StartFrom::Random | StartFrom::Weights { .. } => false,
    };
    let is_loading = matches!(state, RunState::Starting | RunState::Queued | RunState::Unknown);
    if is_active && is_loading && facts.attempt.as_ref().is_some_and(starts_from) {
        return refused("the run is starting from it".into(), "wait until the run trains".into());
    }
    if let Some((why, fix)) = CheckpointUse::refusal(&uses) {
        return refused(why, fix);
    }
    let older = checkpoints.iter().filter_map(CheckpointEntry::complete).filter(|other| other.step != step);
    let falls_back_to = older.max_by_key(|other| (other.attempt, other.step)).map(|other| other.step);
    Ok(CheckpointDelete {
        run: id.clone(),
        dir: dir.clone(),
        checkpoint: checkpoint.clone(),
        uses,
        falls_back_to: falls_back_to.filter(|_| is_newest),
        is_newest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Past, past};

    fn plan(past: &Past, state: &RunState, step: u64, uses: Vec<CheckpointUse>) -> Result<CheckpointDelete, Failure> {
        delete_checkpoint(DeleteRequest {
            run: &past.run,
            dir: &past.dir,
            facts: &past.facts,
            state,
            heals: false,
            checkpoints: &past.checkpoints,
            latest: past.latest.as_ref(),
            uses,
            step,
        })
    }

    fn used(is_active: bool) -> Vec<CheckpointUse> {
        vec![CheckpointUse { run: RunId::parse("2026-11-20T0355-demo-4s-q2xw").unwrap(), of: UseOf::Start, is_active }]
    }

    #[test]
    fn a_checkpoint_that_an_active_run_needs_is_not_deleted() {
        let (ended, mut pinned) = (past(60, &[20, 40, -60]), past(60, &[20, 40]));
        let CheckpointEntry::Complete(first) = &mut pinned.checkpoints[0] else { panic!("it is complete") };
        first.is_pinned = true;
        let refusals = [
            plan(&ended, &RunState::Running, 40, vec![]),
            plan(&ended, &RunState::Unknown, 40, vec![]),
            plan(&ended, &RunState::Running, 60, vec![]),
            plan(&ended, &RunState::Stopped, 20, used(true)),
            plan(&pinned, &RunState::Stopped, 20, vec![]),
            plan(&ended, &RunState::Stopped, 30, vec![]),
        ];
        let refusals = refusals.map(|refusal| crate::fixtures::coded(&refusal.unwrap_err()));
        insta::assert_snapshot!(refusals.join("\n\n"));
    }

    #[test]
    fn the_plan_names_the_runs_that_started_from_it_and_the_step_of_a_later_resume() {
        let past = past(60, &[20, 40]);
        let older = plan(&past, &RunState::Running, 20, used(false)).unwrap();
        assert_eq!((older.uses, older.is_newest, older.falls_back_to), (used(false), false, None));
        let newest = plan(&past, &RunState::Stopped, 40, vec![]).unwrap();
        assert_eq!((newest.is_newest, newest.falls_back_to), (true, Some(20)));
    }
}
