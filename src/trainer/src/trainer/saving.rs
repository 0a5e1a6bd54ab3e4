//! Saves checkpoints while training continues, and removes old ones.

use super::{Saving, Trainer};
use crate::checkpoint::{self, SaveInfo, TrainingState};
use crate::exchange::all_gather_small;
use crate::phase::{self, Phase};
use crate::torch_failure;
use dit::family::Family;
use dit::objective::Objective;
use rundir::{ErrorCode, EventKind, FailedSave, Failure, RequestSource, TrainState, now_s};
use std::time::{Duration, Instant};

/// The pause before a save that a stop or the end of training needs is repeated.
const RETRY: Duration = Duration::from_secs(10);
/// How long the ranks try to save the last step, while they wait for room on the disk.
const LAST_SAVE: Duration = Duration::from_secs(3600);

impl<F: Family, O: Objective> Trainer<F, O> {
    /// Saves a checkpoint of the current step unless it exists, and returns when it is complete.
    pub(super) fn save_now(&mut self) -> Result<(), Failure> {
        // A failed save of an earlier step already has an event. Only this save decides the result.
        let _ = self.finish_save();
        self.begin_save()?;
        self.finish_save()?;
        self.finish_pruning();
        Ok(())
    }

    /// Saves and ends the run, as `source` requests. If the save fails, training continues, because the steps since the last checkpoint would be
    /// lost; the request is repeated after [`RETRY`]. Returns whether the state is saved.
    pub(super) fn save_and_stop(&mut self, source: RequestSource, why: &str) -> Result<bool, Failure> {
        if self.stop_retry.is_none() {
            self.event(EventKind::Stopping { source, why: why.to_owned() });
        }
        match self.save_now() {
            Ok(()) => {
                self.event(EventKind::Stopped { source, why: why.to_owned() });
                Ok(true)
            }
            Err(failure) => {
                self.continue_after(failure)?;
                self.stop_retry = Some(Instant::now() + RETRY);
                Ok(false)
            }
        }
    }

    /// Saves the last step. If that fails, the ranks wait for room and save again, for up to [`LAST_SAVE`]. A collective.
    pub(super) fn save_last(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            let Err(failure) = self.save_now() else { return Ok(()) };
            // No room makes a file fit into the limit of its size.
            if torch_failure::ends_rank(&failure) || failure.code == ErrorCode::FileTooLarge {
                return Err(failure);
            }
            let failed = self.progress.failed_saves;
            let ends = self.recipe.checkpoint.gives_up_after(failed) || began.elapsed() >= LAST_SAVE;
            let all = all_gather_small(&self.fsdp.groups().world, &ends).map_err(torch_failure::failed)?;
            if all.into_iter().any(|ends| ends) {
                return Err(failure);
            }
            std::thread::sleep(RETRY);
            self.retry_log();
        }
    }

    /// Starts a checkpoint of the current step unless it exists. First waits for a pending checkpoint, because at most
    /// one is written at a time.
    pub(super) fn begin_save(&mut self) -> Result<(), Failure> {
        let step = self.progress.step;
        if self.progress.saved == Some(step) {
            return Ok(());
        }
        self.finish_save().or_else(|failure| self.continue_after(failure))?;
        // Pruning may free the space that this checkpoint needs.
        self.finish_pruning();
        phase::enter(Phase::Checkpoint);
        self.event(EventKind::CheckpointStarted);
        let started = Instant::now();
        let (epoch, position) = self.data.position(self.progress.samples);
        let state = TrainState {
            step,
            samples_seen: self.progress.samples,
            epoch,
            position,
            seed: self.progress.seed,
            adam_step: self.moments.steps,
            global_batch: self.recipe.train.global_batch,
            data_fingerprint: self.data.fingerprint().to_owned(),
            data_order: self.data.order_identity(),
            bad_steps: self.skipped.in_a_row(),
            skipped_steps: self.skipped.total(),
            ema_updates: self.ema.as_ref().map_or(0, |ema| ema.updates),
            optimizer: self.moments.kind(),
            optimizer_numbers: self.moments.numbers(),
        };
        let mut sharded = TrainingState {
            fsdp: &self.fsdp,
            moments: &mut self.moments,
            ema: self.ema.as_ref(),
            tables: &self.tables,
            base: self.base.as_ref(),
        };
        match checkpoint::begin(&mut sharded, &self.run, state, &mut self.spare) {
            Ok(writing) => {
                self.saving = Some(Saving { writing, started });
                self.progress.saved = Some(step);
                Ok(())
            }
            Err(failure) => self.save_failed(step, failure),
        }
    }

    /// Waits for the pending checkpoint, if there is one, and starts to remove the checkpoints that the recipe does not keep.
    pub(super) fn finish_save(&mut self) -> Result<(), Failure> {
        let Some(Saving { writing, started }) = self.saving.take() else { return Ok(()) };
        let step = writing.state.step;
        let saved = SaveInfo { id: &self.id, attempt: self.attempt.number, mesh: self.attempt.mesh, saved_s: now_s() };
        match checkpoint::finish(&self.fsdp, writing, &saved, &mut self.spare) {
            Ok(bytes) => {
                let seconds = started.elapsed().as_secs_f64();
                self.deadline.record_save(seconds);
                self.progress.failed_saves = 0;
                phase::save_ended(None);
                self.event_at(step, EventKind::CheckpointSaved { path: self.run.step_dir(step), bytes, seconds });
                self.prune();
                Ok(())
            }
            Err(failure) => self.save_failed(step, failure),
        }
    }

    fn save_failed(&mut self, step: u64, failure: Failure) -> Result<(), Failure> {
        if self.progress.saved == Some(step) {
            self.progress.saved = None;
        }
        self.progress.failed_saves += 1;
        phase::save_ended(Some(FailedSave { t: now_s(), step, failure: failure.clone() }));
        self.event_at(step, EventKind::CheckpointFailed { failure: failure.clone() });
        Err(failure)
    }

    /// Removes old checkpoints in a thread: freeing a gigabyte takes a file system some tenths of a second.
    fn prune(&mut self) {
        self.finish_pruning();
        if self.log.is_none() {
            return;
        }
        let (run, policy) = (self.run.clone(), self.recipe.checkpoint.clone());
        self.pruning = Some(std::thread::spawn(move || {
            let entries = rundir::step_checkpoints(&run).unwrap_or_default();
            let steps = rundir::to_prune(&entries, policy.keep_last, policy.keep_every).into_iter();
            steps.map(|step| (step, rundir::remove_checkpoint(&run, step))).collect()
        }));
    }

    /// Waits for the removal of old checkpoints and logs an event for each.
    pub(super) fn finish_pruning(&mut self) {
        let Some(pruning) = self.pruning.take() else { return };
        for (step, removed) in pruning.join().expect("removing checkpoints does not panic") {
            match removed {
                Ok(()) => self.event(EventKind::CheckpointPruned { step }),
                Err(e) => rundir::log!("cannot remove the old checkpoint of step {step}: {e}"),
            }
        }
    }

    /// Returns the failure that ends training, if `checkpoint.max_failures` saves in a row failed.
    pub(super) fn continue_after(&mut self, failure: Failure) -> Result<(), Failure> {
        if torch_failure::ends_rank(&failure) {
            return Err(failure);
        }
        let failed = self.progress.failed_saves;
        if !self.recipe.checkpoint.gives_up_after(failed) {
            return Ok(());
        }
        Err(Failure::new(
            rundir::ErrorCode::SaveFailed,
            format!("training stopped at step {}: {failed} saves in a row failed", self.progress.step),
            format!("{}: {}", failure.what, failure.why),
            format!("{}; checkpoint.max_failures = 0 continues without checkpoints", failure.fix),
        ))
    }
}
