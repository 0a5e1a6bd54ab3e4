//! Starts an attempt from random weights, the weights of another run, or a checkpoint.

use super::Trainer;
use crate::adapter_files;
use crate::checkpoint::{self, Loaded, Restore};
use crate::exchange::{agree, agree_on};
use crate::init;
use crate::seeds::{Purpose, bits};
use crate::torch_failure::failed;
use camino::Utf8Path;
use dit::family::Family;
use dit::objective::Objective;
use health::SkippedSteps;
use recipe::{Mesh, Recipe};
use rundir::{BaseWeights, Checkpoint, EventKind, Failure, RunDir, RunId, StartFrom, TrainState};
use std::time::Instant;

impl<F: Family, O: Objective> Trainer<F, O> {
    /// Initializes or loads weights and state.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        self.start_from(self.attempt.start.clone())?;
        // An average that was not loaded starts as a copy of the weights.
        if let Some(ema) = self.ema.as_mut().filter(|ema| ema.updates == 0) {
            ema.restart(&self.fsdp).map_err(failed)?;
        }
        Ok(())
    }

    fn start_from(&mut self, start: StartFrom) -> Result<(), Failure> {
        let world = self.recipe.mesh.world();
        match start {
            StartFrom::Random => {
                self.randomize()?;
                self.event(EventKind::Started { world });
                self.start_adapters()?;
            }
            StartFrom::Weights { path } => {
                // Only TTT layers and adapters may be missing in the weights; they are initialized as in a new run.
                self.randomize()?;
                match self.load(&path, Restore::Weights)? {
                    Loaded::Intact(weights) if self.recipe.saves_adapters_only() => {
                        let base = BaseWeights::of(&weights, self.recipe.lora.scale()).map_err(Failure::from);
                        self.base = agree_on(&self.fsdp.groups().world, base).map(Some)?;
                    }
                    Loaded::Intact(_) => {}
                    Loaded::Damaged(damage) => return Err(damage),
                }
                self.event(EventKind::Started { world });
                self.event(EventKind::WeightsLoaded { from: path });
                self.start_adapters()?;
                self.log_restored("weights".into(), "optimizer, steps and data".into());
            }
            StartFrom::Checkpoint { run, step } => {
                let (state, mesh) = self.restore(&run, step)?;
                let checked = self.check_data(&state);
                agree_on(&self.fsdp.groups().world, checked)?;
                self.progress.samples = state.samples_seen;
                self.progress.seed = state.seed;
                self.event(EventKind::Resumed { from_step: state.step, of_run: run });
                let (epoch, position) = self.data.position(state.samples_seen);
                let place = format!("about sample {position} of epoch {}", epoch + 1);
                let restored = format!("weights, optimizer after {} updates, data at {place}", state.adam_step);
                let (was, is) = (mesh, self.attempt.mesh);
                let rounding =
                    if was == is { String::new() } else { format!("rounding: the mesh was {was}, now {is}") };
                self.log_restored(restored, rounding);
            }
            StartFrom::CheckpointFreshData { run, step } => {
                let (state, _) = self.restore(&run, step)?;
                // The data order restarts, so every draw that is numbered by sample needs a new key.
                self.progress.seed = bits(self.recipe.train.seed, Purpose::Order, u64::from(self.attempt.number));
                self.event(EventKind::Resumed { from_step: state.step, of_run: run });
                let other = if state.data_fingerprint == self.data.fingerprint() { "the same" } else { "another" };
                let (was, is) = (state.global_batch, self.recipe.train.global_batch);
                let batch = if was == is { String::new() } else { format!(", global batch {was} before and {is} now") };
                let reset = format!("data ({other} data set{batch}), noise and timesteps");
                self.log_restored(format!("weights, optimizer after {} updates", state.adam_step), reset);
            }
        }
        Ok(())
    }

    fn randomize(&self) -> Result<(), Failure> {
        let (tables, family) = (&self.tables, self.network.family());
        init::randomize(&self.fsdp, tables, family, self.recipe.train.seed).map_err(failed)
    }

    /// Sets the adapters to those of the file that the recipe starts from, if there is one.
    fn start_adapters(&mut self) -> Result<(), Failure> {
        let Some(path) = self.recipe.lora.starts_from().map(ToOwned::to_owned) else { return Ok(()) };
        let started = adapter_files::start_from(&self.fsdp, &self.tables, &self.recipe, &path);
        agree_on(&self.fsdp.groups().world, started)?;
        self.event(EventKind::WeightsLoaded { from: path });
        Ok(())
    }

    /// Loads parameters, optimizer and step count from a checkpoint of this run or of another run in the same folder. Returns
    /// its state and the mesh that saved it.
    ///
    /// If a checkpoint of this run is damaged, the newest one before it is loaded, unless the user requested this step.
    fn restore(&mut self, run: &RunId, step: u64) -> Result<(TrainState, Mesh), Failure> {
        let root = self.run.root.parent().unwrap_or(Utf8Path::new("."));
        let dir = if *run == self.id { self.run.clone() } else { RunDir::of(root, run) };
        let mut step = step;
        let checkpoint = loop {
            match self.load(&dir.step_dir(step), Restore::Everything)? {
                Loaded::Intact(checkpoint) => break checkpoint,
                Loaded::Damaged(damage) if *run != self.id || self.attempt.asked_step.is_some() => return Err(damage),
                Loaded::Damaged(damage) => step = self.go_back(step, damage)?,
            }
        };
        let state = agree_on(&self.fsdp.groups().world, checkpoint.state().map_err(Failure::from))?;
        self.moments.restore(state.adam_step, &state.optimizer_numbers);
        if let Some(ema) = &mut self.ema {
            ema.updates = state.ema_updates;
        }
        self.progress.step = state.step;
        self.skipped = SkippedSteps::restored(state.step, state.skipped_steps, state.bad_steps);
        self.progress.saved = (*run == self.id).then_some(state.step);
        self.base = checkpoint.manifest.base.clone();
        Ok((state, checkpoint.manifest.mesh))
    }

    /// Returns the step of the newest checkpoint before a damaged one, the same on every rank. A checkpoint that cannot be read
    /// is an error, because it may be intact. A collective.
    fn go_back(&mut self, step: u64, damage: Failure) -> Result<u64, Failure> {
        // Only rank 0 lists the checkpoints: a shared file system may show an older state on other nodes.
        let newest = self.log.as_ref().map_or(Ok(None), |_| rundir::latest_before(&self.run, step));
        let newest = newest.map(|newest| newest.map(|checkpoint| checkpoint.step)).map_err(Failure::from);
        let steps = agree(&self.fsdp.groups().world, newest)?;
        let Some(&Some(back_to)) = steps.first() else { return Err(damage) };
        let why = format!("{}: {}", damage.what, damage.why);
        self.event_at(back_to, EventKind::CheckpointDamaged { step, why, back_to });
        Ok(back_to)
    }

    fn log_restored(&mut self, mut restored: String, mut not_restored: String) {
        match self.ema.as_ref().map(|ema| ema.updates) {
            None => {}
            Some(0) if not_restored.is_empty() => not_restored = "the average, which begins with the weights".into(),
            Some(0) => not_restored += ", and the average, which begins with the weights",
            Some(updates) => restored += &format!(", average after {updates} updates"),
        }
        let seconds = self.progress.load_s;
        self.event(EventKind::Restored { restored, not_restored, seconds });
    }

    fn load(&mut self, dir: &Utf8Path, restore: Restore) -> Result<Loaded<Checkpoint>, Failure> {
        let start = Instant::now();
        let found = checkpoint::load(&mut self.sharded(), dir, restore);
        self.progress.load_s = start.elapsed().as_secs_f64();
        found
    }

    fn check_data(&self, state: &TrainState) -> Result<(), Failure> {
        let refuse = |why: String| {
            Failure::new(
                rundir::ErrorCode::InvalidDataset,
                "cannot resume at the same position in the data",
                why,
                "resume with --fresh-data to restart the data order",
            )
        };
        if state.data_fingerprint != self.data.fingerprint() {
            return Err(refuse(other_data(&self.recipe, &state.data_fingerprint, self.data.fingerprint())));
        }
        if state.global_batch != self.recipe.train.global_batch {
            let (was, is) = (state.global_batch, self.recipe.train.global_batch);
            return Err(refuse(format!("the global batch was {was} samples and is {is} now")));
        }
        if state.data_order != self.data.order_identity() {
            return Err(refuse(
                "the samples of the steps differ: data.shapes, the batch of a shape, or the share of a data set was \
                 changed, or the run is on another number of ranks × train.grad_accum"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// Describes how the data sets differ from those of a checkpoint, by their fingerprints.
fn other_data(recipe: &Recipe, was: &str, is: &str) -> String {
    let sets = recipe.data.all();
    let (before, now): (Vec<&str>, Vec<&str>) = (was.split('+').collect(), is.split('+').collect());
    let changed = (before.len() == sets.len() && now.len() == sets.len())
        .then(|| sets.iter().zip(before.iter().zip(&now)).find(|(_, (before, now))| before != now))
        .flatten();
    match changed {
        Some((set, _)) => format!("{} is not the data set that the checkpoint was trained on", set.index),
        None => format!(
            "the checkpoint was trained on {}, and the recipe has {}",
            units::counted(before.len(), "data set"),
            units::counted(sets.len(), "data set")
        ),
    }
}
