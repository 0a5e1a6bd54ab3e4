//! Pins and deletes checkpoints.

use super::Workspace;
use camino::Utf8Path;
use plan::{CheckpointDelete, CheckpointUse, DeleteRequest, UseOf};
use rundir::{Checkpoint, ErrorCode, Failure, RunDir, StartFrom};
use runstate::{RunState, RunSummary};

impl Workspace {
    /// Pins a checkpoint, or unpins it.
    ///
    /// # Errors
    /// The run has no complete checkpoint of the step, or the run's command saves its own checkpoints.
    pub fn pin_checkpoint(&self, dir: &RunDir, step: u64, is_pinned: bool) -> Result<(), Failure> {
        let run = dir.read_run()?;
        let verb = if is_pinned { "pin" } else { "unpin" };
        let what = format!("cannot {verb} the checkpoint of step {step} of {}", run.id);
        if run.is_command() {
            let why = "the command of the run saves and removes its own checkpoints";
            let fix = "set the number of checkpoints that the command's program keeps";
            return Err(Failure::new(ErrorCode::InvalidArgument, what, why, fix));
        }
        let checkpoints = other_trainers::checkpoints(dir)?;
        plan::checkpoint_of_step(&what, &checkpoints, step, "wait until the run has saved one")?;
        match is_pinned {
            true => rundir::pin_checkpoint(dir, step)?,
            false => rundir::unpin_checkpoint(dir, step)?,
        }
        Ok(())
    }

    /// Plans to delete a checkpoint. Removes nothing.
    ///
    /// # Errors
    /// The checkpoint is pinned, or an active run needs it.
    pub fn plan_delete(&self, dir: &RunDir, step: u64) -> Result<CheckpointDelete, Failure> {
        let (summary, facts) = self.summary(dir)?;
        let checkpoints = other_trainers::checkpoints(dir)?;
        plan::delete_checkpoint(DeleteRequest {
            run: &summary.run,
            dir,
            facts: &facts,
            state: &summary.state,
            heals: dir.healer().is_some(),
            checkpoints: &checkpoints,
            latest: rundir::latest_among(dir, &checkpoints).as_ref(),
            uses: self.uses_of(&summary, step),
            step,
        })
    }

    /// Deletes a checkpoint as planned.
    ///
    /// # Errors
    /// A run has begun to need the checkpoint since the plan was made, or the files cannot be removed.
    pub fn delete_checkpoint(&self, plan: &CheckpointDelete) -> Result<(), Failure> {
        let step = plan.checkpoint.step();
        self.plan_delete(&plan.dir, step)?;
        Ok(rundir::remove_checkpoint(&plan.dir, step)?)
    }

    /// Returns the other runs that use a checkpoint of a run.
    fn uses_of(&self, owner: &RunSummary, step: u64) -> Vec<CheckpointUse> {
        let folder = owner.dir.step_dir(step);
        let real = folder.canonicalize_utf8().ok();
        let is_it = |path: &Utf8Path| path == folder || real.is_some() && path.canonicalize_utf8().ok() == real;
        self.uses_by_others(owner, &is_it, &|of| of == step)
    }

    /// Returns the other runs that use any checkpoint of a run.
    pub(super) fn uses_of_run(&self, owner: &RunSummary) -> Vec<CheckpointUse> {
        let folder = &owner.dir.root;
        let real = folder.canonicalize_utf8().unwrap_or_else(|_| folder.clone());
        let is_it = |path: &Utf8Path| {
            path.starts_with(folder) || path.canonicalize_utf8().is_ok_and(|path| path.starts_with(&real))
        };
        self.uses_by_others(owner, &is_it, &|_| true)
    }

    /// Returns the other runs that use some checkpoints of a run.
    ///
    /// * `is_it` — whether a path is that of one of these checkpoints.
    /// * `is_step` — whether one of them is of a step.
    fn uses_by_others(
        &self,
        owner: &RunSummary,
        is_it: &dyn Fn(&Utf8Path) -> bool,
        is_step: &dyn Fn(u64) -> bool,
    ) -> Vec<CheckpointUse> {
        let (runs, _) = self.summaries();
        let others = runs.into_iter().filter(|run| run.run.id != owner.run.id);
        let uses = others.filter_map(|other| {
            let lineage = other.run.lineage.as_ref();
            let is_start = lineage.is_some_and(|from| from.run == owner.run.id && is_step(from.step))
                || matches!(&other.run.start, StartFrom::Weights { path } if is_it(path));
            // Adapters need the weights that they were trained on.
            let newest = other.checkpoint.as_ref().and_then(|newest| Checkpoint::open(&newest.dir).ok());
            let is_base = newest.and_then(|newest| newest.manifest.base).is_some_and(|base| is_it(&base.path));
            let of = if is_base { UseOf::Base } else { UseOf::Start };
            let is_active = other.dir.healer().is_some() || !(other.state.is_end() || other.state == RunState::New);
            (is_start || is_base).then_some(CheckpointUse { run: other.run.id, of, is_active })
        });
        uses.collect()
    }
}
