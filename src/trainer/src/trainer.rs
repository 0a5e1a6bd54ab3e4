//! The training loop: steps until the last one or a stop request, and checkpoints on the way.

use crate::adapter_files;
use crate::checkpoint::{self, Loaded, PendingSave, Restore, SaveInfo, StagingMemory, TrainingState};
use crate::data::Data;
use crate::deadline::{Deadline, save_s_after};
use crate::drift;
use crate::ema::EmaWeights;
use crate::exchange::{agree, agree_on, device_failed};
use crate::fault;
use crate::init;
use crate::log::RunLog;
use crate::offload;
use crate::optim::OptimizerState;
use crate::parallelize::{layouts, unit_tables};
use crate::phase::{self, Phase};
use crate::profile::{self, Profile};
use crate::requests::{SaveStopRequests, StopSources};
use crate::sample::{LEVELS, TrainingSamples};
use crate::seeds::{Purpose, bits};
use crate::signals::Signals;
use crate::step::{Outcome, Step, compute_kind};
use camino::Utf8Path;
use dataset::order::StepPlan;
use dit::family::Family;
use dit::network::Network;
use dit::objective::Objective;
use health::Spikes;
use recipe::{Layer, Mesh, ParamSpec, Recipe, UseEma, WAIT_OUTSIDE_STEPS};
use rundir::{
    Attempt, BaseWeights, Checkpoint, Event, EventKind, Failure, MetricSample, RequestSource, Run, RunDir, RunId,
    StartFrom, TrainState, now_s,
};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::thread::JoinHandle;
use std::time::Instant;

/// The end of the training loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// Every step of the recipe is done.
    Complete,
    /// A stop was requested, for this reason; the state is saved.
    Stopped(String),
}

/// One rank of a run.
pub struct Trainer<F: Family, O: Objective> {
    run: RunDir,
    id: RunId,
    attempt: Attempt,
    recipe: Recipe,
    tables: Vec<Vec<ParamSpec>>,
    /// The checkpoint that the frozen parameters come from. If it is set, checkpoints contain only the trained
    /// parameters.
    base: Option<BaseWeights>,
    network: Network<F>,
    objective: O,
    fsdp: Fsdp,
    moments: OptimizerState,
    ema: Option<EmaWeights>,
    data: Data,
    samples: TrainingSamples,
    signals: Signals,
    /// Only on rank 0.
    log: Option<RunLog>,
    progress: Progress,
    /// The last logged step. Only on rank 0.
    last: Option<MetricSample>,
    saving: Option<Saving>,
    profile: Option<Profile>,
    /// Removes checkpoints. Only on rank 0.
    pruning: Option<JoinHandle<Vec<Removed>>>,
    spare: StagingMemory,
    deadline: Deadline,
    spikes: Spikes,
}

/// The step of a pruned checkpoint, and the result of removing it.
type Removed = (u64, Result<(), rundir::Error>);

/// A checkpoint that is being written.
struct Saving {
    writing: PendingSave,
    started: Instant,
}

/// The progress of the run.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Steps done.
    step: u64,
    /// Samples drawn since the data order began.
    samples: u64,
    /// Key of every random draw.
    seed: u64,
    /// Steps in a row whose gradient was not finite.
    bad_steps: u64,
    /// The step of the last checkpoint, saved or being written.
    saved: Option<u64>,
    /// Saves in a row that failed.
    failed_saves: u64,
    /// Seconds that saving stalled training between the last step and the next.
    checkpoint_s: f64,
    /// Seconds spent on samples and validation since the last step.
    sample_s: f64,
    /// Seconds that loading the checkpoint took at the start.
    load_s: f64,
    /// Seconds of the longest step of this attempt on any rank; `None` before the first one.
    longest_step_s: Option<f64>,
}

impl<F: Family, O: Objective> Trainer<F, O> {
    /// Builds the model, optimizer and data of this rank, and loads the checkpoint that the attempt starts from. A collective.
    ///
    /// `groups` come with the number of ranks of this node, which share its memory. `model` builds the network and the objective of
    /// a recipe.
    ///
    /// # Errors
    /// The data set or the checkpoint does not fit the recipe. Every rank returns the failure of the rank that found it.
    pub fn new(
        run: RunDir,
        meta: &Run,
        attempt: Attempt,
        (groups, ranks_on_node): (MeshGroups, usize),
        model: impl FnOnce(&Recipe) -> (Network<F>, O),
    ) -> Result<Self, Failure> {
        let mut recipe = meta.recipe()?;
        recipe.mesh = attempt.mesh;
        let (network, objective) = model(&recipe);
        recipe.train.steps = attempt.steps.unwrap_or(recipe.train.steps);
        let signals = Signals::watch().map_err(|e| {
            Failure::new(
                rundir::ErrorCode::StartFailed,
                "cannot install signal handlers",
                e.to_string(),
                "check the limits of this node",
            )
        })?;
        let data = Data::open(&recipe, &groups.world)?;
        recipe.train.steps = data.steps();
        let log = if groups.world.rank() == 0 { Some(RunLog::open(&run, attempt.number)) } else { None };
        let log = agree_on(&groups.world, log.transpose())?;
        // The text encoder is freed before the model is loaded.
        let samples = TrainingSamples::open(&recipe, &groups)?;
        let tables = unit_tables(&recipe);
        phase::enter(Phase::Load);
        let swap = agree_on(&groups.world, offload::of(&recipe, groups.device, ranks_on_node))?;
        let [compute, frozen] = [recipe.train.dtype, recipe.train.frozen_dtype()].map(compute_kind);
        let fsdp = Fsdp::with(layouts(&recipe, &tables), groups, compute, frozen, swap).map_err(device_failed)?;
        let progress = Progress {
            step: 0,
            samples: 0,
            seed: recipe.train.seed,
            bad_steps: 0,
            saved: None,
            failed_saves: 0,
            checkpoint_s: 0.0,
            sample_s: 0.0,
            load_s: 0.0,
            longest_step_s: None,
        };
        let moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).map_err(device_failed)?;
        // Only rank 0 checks the time limit.
        let measured_s =
            log.as_ref().and_then(|_| save_s_after(saves_s(&run).into_iter().rev(), recipe.run.time_limit));
        let save_s = measured_s.unwrap_or_else(|| recipe.cost().save_s());
        let deadline = Deadline::new(recipe.run.time_limit, save_s);
        let ema = EmaWeights::new(&fsdp, &recipe.ema).map_err(device_failed)?;
        let mut trainer = Trainer {
            moments,
            ema,
            network: network.on(fsdp.groups().device),
            objective,
            id: meta.id.clone(),
            run,
            attempt,
            recipe,
            tables,
            base: None,
            fsdp,
            data,
            samples,
            signals,
            log,
            progress,
            last: None,
            saving: None,
            profile: None,
            pruning: None,
            spare: StagingMemory::default(),
            deadline,
            spikes: Spikes::default(),
        };
        trainer.start()?;
        Ok(trainer)
    }

    /// Initializes or loads weights and state.
    fn start(&mut self) -> Result<(), Failure> {
        self.start_from(self.attempt.start.clone())?;
        // An average that was not loaded begins with the weights.
        if let Some(ema) = self.ema.as_mut().filter(|ema| ema.updates == 0) {
            ema.restart(&self.fsdp).map_err(device_failed)?;
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
        init::randomize(&self.fsdp, tables, family, self.recipe.train.seed).map_err(device_failed)
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
        self.progress.bad_steps = state.bad_steps;
        self.progress.saved = (*run == self.id).then_some(state.step);
        self.base = checkpoint.manifest.base.clone();
        Ok((state, checkpoint.manifest.mesh))
    }

    /// Returns the step of the newest checkpoint before a damaged one, the same on every rank. A checkpoint that cannot be read
    /// is an error, because it may be intact. A collective.
    fn go_back(&mut self, step: u64, damage: Failure) -> Result<u64, Failure> {
        // Only rank 0 lists them: a shared file system may show an older state on other nodes.
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

    fn sharded(&mut self) -> TrainingState<'_> {
        TrainingState {
            fsdp: &self.fsdp,
            moments: &mut self.moments,
            ema: self.ema.as_ref(),
            tables: &self.tables,
            base: self.base.as_ref(),
        }
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

    /// Trains to the last step or until a rank receives a stop request, and saves the state before it returns.
    ///
    /// # Errors
    /// A peer is lost, data cannot be read, the gradient stays not finite, or the last save fails.
    pub fn run(mut self) -> Result<Finish, Failure> {
        let (began, interval) = (self.progress.step, self.recipe.checkpoint.interval);
        phase::at_step(began);
        if began == 0 && self.recipe.sample.every > 0 {
            self.validate_first()?;
        }
        // An earlier attempt may have ended before all samples of this step were made.
        if began > 0 && self.recipe.sample.is_due(began, self.recipe.train.steps) {
            self.make_samples()?;
        }
        while self.progress.step < self.recipe.train.steps {
            let requests = self.requests();
            let outcome = self.step(requests)?;
            self.profile(outcome.requests);
            self.check_finite()?;
            self.check_drift()?;
            if self.pruning.as_ref().is_some_and(JoinHandle::is_finished) {
                self.finish_pruning();
            }
            // Allocate after the first step, because that step showed that training fits in memory.
            if interval > 0 && self.progress.step == began + 1 {
                self.spare = StagingMemory::allocate_ahead(&self.sharded());
            }
            let due = self.recipe.checkpoint.is_due(self.progress.step);
            if let Some(source) = outcome.requests.stop {
                let why = self.describe(source);
                self.event(EventKind::Stopping { source, why: why.clone() });
                self.save_now()?;
                self.event(EventKind::Stopped { source, why: why.clone() });
                return Ok(Finish::Stopped(why));
            }
            let stall = Instant::now();
            if outcome.requests.save_done {
                self.finish_save().or_else(|failure| self.continue_after(failure))?;
            }
            if self.progress.step < self.recipe.train.steps {
                if let Some(source) = outcome.requests.save {
                    self.event(EventKind::SaveRequested { source, why: source.to_string() });
                }
                if due || outcome.requests.save.is_some() {
                    self.begin_save().or_else(|failure| self.continue_after(failure))?;
                }
            }
            self.progress.checkpoint_s = stall.elapsed().as_secs_f64();
            if outcome.requests.sample {
                self.event(EventKind::SampleRequested);
            }
            if outcome.requests.sample || self.recipe.sample.is_due(self.progress.step, self.recipe.train.steps) {
                if self.progress.step == self.recipe.train.steps {
                    // Save before sampling: if the samples of the last step fail, the trained state is kept.
                    self.save_now()?;
                }
                self.make_samples()?;
            }
        }
        self.save_now()?;
        self.correct_last();
        self.event(EventKind::Finished);
        Ok(Finish::Complete)
    }

    /// Continues the trace that is being recorded, or begins the one that was requested. If it fails, training continues without it.
    fn profile(&mut self, requests: SaveStopRequests) {
        if let Err(failure) = self.advance_profile(requests) {
            eprintln!("{failure}");
        }
    }

    fn advance_profile(&mut self, requests: SaveStopRequests) -> Result<(), Failure> {
        let (step, stops) = (self.progress.step, requests.stop.is_some());
        let steps = requests.profile.min(self.recipe.train.steps - step);
        match self.profile.take() {
            Some(mut profile) => {
                if !stops && profile.next_step(step)? {
                    self.profile = Some(profile);
                    return Ok(());
                }
                let (path, steps) = profile.end(step)?;
                self.event(EventKind::Profiled { path, steps });
            }
            None if steps > 0 && !stops => {
                let groups = self.fsdp.groups();
                let (number, rank, device) = (self.attempt.number, groups.world.rank(), groups.device);
                let profile = Profile::begin(&self.run, number, rank, device, step + 1..=step + steps)?;
                self.profile = Some(profile);
            }
            None => {}
        }
        Ok(())
    }

    /// Collects the requests of this rank. Only rank 0 checks files and the time limit.
    fn requests(&mut self) -> SaveStopRequests {
        let first = self.log.is_some();
        // A save file is one request: it is removed when it is read.
        let save_file = first && std::fs::remove_file(self.run.save_file()).is_ok();
        let stop =
            StopSources { signals: &self.signals, first: first.then_some((&self.run, &self.deadline)) }.requested();
        SaveStopRequests {
            save: if self.signals.take_save() {
                Some(RequestSource::Usr1)
            } else {
                save_file.then_some(RequestSource::File)
            },
            stop,
            sample: first && std::fs::remove_file(self.run.sample_file()).is_ok(),
            // A request made during a trace waits for its end.
            profile: if first && self.profile.is_none() { profile::requested(&self.run) } else { 0 },
            save_done: self.saving.as_ref().is_none_or(|s| s.writing.is_done()),
        }
    }

    fn describe(&self, source: RequestSource) -> String {
        match source {
            RequestSource::TimeLimit => format!(
                "the time limit of {} is near; {:.1} s of it are reserved for saving",
                self.recipe.run.time_limit,
                self.deadline.reserve_s()
            ),
            other => other.to_string(),
        }
    }

    /// Decides whether training continues after a failed save: it does until `checkpoint.max_failures` saves in a row failed.
    fn continue_after(&mut self, failure: Failure) -> Result<(), Failure> {
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

    fn step(&mut self, requests: SaveStopRequests) -> Result<Outcome, Failure> {
        let start = Instant::now();
        let step =
            Step { recipe: &self.recipe, network: &self.network, objective: &self.objective, seed: self.progress.seed };
        let plan = self.data.step(self.progress.samples);
        let done = self.progress.step;
        let timeout = match self.saving {
            // A rank that saves waits for the copy of its state before it updates the weights.
            Some(_) => WAIT_OUTSIDE_STEPS,
            None => self.recipe.train.collective_timeout(self.progress.longest_step_s),
        };
        self.fsdp.groups().set_timeout(timeout).map_err(device_failed)?;
        let outcome = step.run(&mut self.fsdp, &mut self.moments, &mut self.data, done, &plan, requests)?;
        self.fsdp.groups().set_timeout(WAIT_OUTSIDE_STEPS).map_err(device_failed)?;
        let slowest =
            outcome.step_s_by_rank.iter().copied().fold(self.progress.longest_step_s.unwrap_or(0.0), f64::max);
        self.progress.longest_step_s = Some(slowest);
        if let Some(ema) = self.ema.as_mut().filter(|_| outcome.applied) {
            ema.update(&self.fsdp).map_err(device_failed)?;
        }
        self.progress.step += 1;
        phase::at_step(self.progress.step);
        self.progress.samples += plan.samples();
        fault::pace(start);
        let step_s = start.elapsed().as_secs_f64();
        self.deadline.record_step(step_s);
        let due = self.recipe.sample.is_due(self.progress.step, self.recipe.train.steps);
        let validation = if due { self.validate()? } else { None };
        self.record(&outcome, &plan, step_s - outcome.checkpoint_s, validation);
        self.progress.bad_steps = if outcome.applied { 0 } else { self.progress.bad_steps + 1 };
        Ok(outcome)
    }

    /// Ends the run after `train.max_bad_steps` skipped steps in a row, after the pending checkpoint is written.
    fn check_finite(&mut self) -> Result<(), Failure> {
        let bad = self.progress.bad_steps;
        if bad < self.recipe.train.max_bad_steps {
            return Ok(());
        }
        // A failed save already has an event; this failure is about the gradient.
        let _ = self.finish_save();
        Err(Failure::new(
            rundir::ErrorCode::NotFinite,
            format!("training stopped at step {}", self.progress.step),
            format!("the gradient was not finite in {bad} steps in a row"),
            "resume from an earlier checkpoint with a lower optimizer.lr or a smaller optimizer.clip_norm",
        ))
    }

    /// Compares the weights of replicas and TP ranks every `train.drift_check` steps.
    fn check_drift(&mut self) -> Result<(), Failure> {
        let step = self.progress.step;
        if fault::corrupts(self.fsdp.groups().world.rank(), step)
            && let Some(shard) = self.fsdp.shards().next()
        {
            let _ = tch::no_grad(|| shard.master.get(0).fill_(0.5));
        }
        if !self.recipe.train.checks_drift_at(step) {
            return Ok(());
        }
        drift::check(&self.fsdp, &self.tables, step)
    }

    /// Logs a step, on rank 0.
    fn record(&mut self, outcome: &Outcome, plan: &StepPlan, step_s: f64, validation: Option<Losses>) {
        let (step, model) = (self.progress.step, &self.recipe.model);
        let finite = |x: f64| x.is_finite().then_some(x);
        let work = self.data.work(plan);
        // A backward pass costs twice a forward pass; recomputation does not count.
        let tflops = 3.0 * work.forward_flops / step_s / self.attempt.mesh.world() as f64 / 1e12;
        let sample = MetricSample {
            attempt: self.attempt.number,
            step,
            t: now_s(),
            loss: finite(outcome.loss),
            grad_norm: finite(outcome.grad_norm),
            lr: outcome.lr.rest,
            lr_ttt: (model.layer != Layer::None).then_some(outcome.lr.ttt),
            step_s,
            data_s: outcome.data_s,
            forward_s: outcome.forward_s,
            backward_s: outcome.backward_s,
            optimizer_s: outcome.optimizer_s,
            checkpoint_s: self.progress.checkpoint_s + outcome.checkpoint_s,
            sample_s: self.progress.sample_s,
            validation_loss: validation.map(mean).and_then(finite),
            validation_loss_by_level: validation.map_or_else(Vec::new, |losses| losses.to_vec()),
            samples_per_s: plan.samples() as f64 / step_s,
            tokens_per_s: work.tokens / step_s,
            epoch: Some(self.data.epochs(plan.numbers().end)),
            mem_gib_by_rank: outcome.memory_by_rank.iter().map(|m| m.now_gib).collect(),
            mem_peak_gib_by_rank: outcome.memory_by_rank.iter().map(|m| m.peak_gib).collect(),
            step_s_by_rank: outcome.step_s_by_rank.clone(),
            busy_s_by_rank: outcome.busy_s_by_rank.clone(),
            reduce_s: outcome.reduce_s,
            weight_norm: outcome.weight_norm.and_then(finite),
            tflops,
            mfu: self.recipe.log.mfu(tflops),
            ..MetricSample::default()
        };
        let due =
            step.is_multiple_of(self.recipe.log.interval) || step == self.recipe.train.steps || validation.is_some();
        let Some(log) = &mut self.log else { return };
        let spike = finite(outcome.loss).and_then(|loss| self.spikes.push(loss, self.recipe.log.spike));
        if let Some(usual) = spike {
            log.event(step, EventKind::LossSpike { loss: outcome.loss, usual });
        }
        if due {
            log.metrics(&sample);
            self.progress.sample_s = 0.0;
            self.last = Some(sample);
        }
        if !outcome.loss.is_finite() {
            log.event(step, EventKind::LossNotFinite);
        }
        if !outcome.applied {
            log.event(step, EventKind::StepSkipped);
        }
    }

    /// Logs the last step once more, with the time of the samples that were made after it. Only on rank 0.
    fn correct_last(&mut self) {
        if let (Some(log), Some(last)) = (&mut self.log, self.last.take())
            && self.progress.sample_s > 0.0
        {
            log.metrics(&MetricSample { sample_s: last.sample_s + self.progress.sample_s, ..last });
        }
    }

    /// Measures the validation loss before the first step and logs it as step 0.
    fn validate_first(&mut self) -> Result<(), Failure> {
        let Some(losses) = self.validate()? else { return Ok(()) };
        let sample = MetricSample {
            attempt: self.attempt.number,
            step: self.progress.step,
            t: now_s(),
            validation_loss: Some(mean(losses)).filter(|loss| loss.is_finite()),
            validation_loss_by_level: losses.to_vec(),
            ..MetricSample::default()
        };
        if let Some(log) = &mut self.log {
            log.metrics(&sample);
        }
        Ok(())
    }

    /// Measures the validation loss, if there are held-out clips. The time is not part of the step's time.
    fn validate(&mut self) -> Result<Option<Losses>, Failure> {
        if !self.samples.has_validation() {
            return Ok(None);
        }
        let start = Instant::now();
        phase::enter(Phase::Sample);
        self.event(EventKind::EvaluationStarted);
        self.swap_average()?;
        let losses = self.samples.validate(&mut self.fsdp, &self.network, &self.objective);
        self.swap_average()?;
        let losses = losses?;
        self.event(EventKind::EvaluationEnded);
        if let Some(losses) = losses {
            self.event(EventKind::Validated { loss: mean(losses), by_level: losses.to_vec() });
        }
        self.progress.sample_s += start.elapsed().as_secs_f64();
        Ok(losses)
    }

    /// Makes a video of each prompt, except videos that are already complete. If a video cannot be made, training
    /// continues.
    fn make_samples(&mut self) -> Result<(), Failure> {
        if !self.samples.has_prompts() {
            return Ok(());
        }
        let start = Instant::now();
        phase::enter(Phase::Sample);
        self.event(EventKind::EvaluationStarted);
        let step = self.progress.step;
        let first = self.log.is_some();
        self.swap_average()?;
        let stop = StopSources { signals: &self.signals, first: first.then_some((&self.run, &self.deadline)) };
        let made = self.samples.make(&self.recipe, &self.run, step, &mut self.fsdp, &self.network, stop);
        self.swap_average()?;
        self.event(EventKind::EvaluationEnded);
        let seconds = start.elapsed().as_secs_f64();
        self.progress.sample_s += seconds;
        match made {
            Ok(made) => {
                for &index in &made {
                    let path = self.run.sample_video(step, index);
                    self.event(EventKind::SampleSaved { path, seconds: seconds / made.len() as f64 });
                }
                Ok(())
            }
            Err(failure) if failure.is_consequence() => Err(failure),
            Err(failure) => {
                self.event(EventKind::SampleFailed { failure });
                Ok(())
            }
        }
    }

    /// Exchanges the weights and their average, if samples are made from it.
    fn swap_average(&mut self) -> Result<(), Failure> {
        let Some(ema) = self.ema.as_mut().filter(|_| self.recipe.sample.ema != UseEma::Off) else { return Ok(()) };
        self.moments.wait_for_snapshot();
        ema.swap(&self.fsdp).map_err(device_failed)
    }

    /// Saves a checkpoint of the current step unless it exists, and returns when it is complete.
    fn save_now(&mut self) -> Result<(), Failure> {
        // A failed save of an earlier step already has an event. Only this save decides the result.
        let _ = self.finish_save();
        self.begin_save()?;
        self.finish_save()?;
        self.finish_pruning();
        Ok(())
    }

    /// Starts a checkpoint of the current step unless it exists. First waits for a pending checkpoint, because at most
    /// one is written at a time.
    fn begin_save(&mut self) -> Result<(), Failure> {
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
            bad_steps: self.progress.bad_steps,
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

    /// Waits for the pending checkpoint, if there is one, and starts to remove those that the recipe does not keep.
    fn finish_save(&mut self) -> Result<(), Failure> {
        let Some(Saving { writing, started }) = self.saving.take() else { return Ok(()) };
        let step = writing.state.step;
        let saved = SaveInfo { id: &self.id, attempt: self.attempt.number, mesh: self.attempt.mesh, saved_s: now_s() };
        match checkpoint::finish(&self.fsdp, writing, &saved, &mut self.spare) {
            Ok(bytes) => {
                let seconds = started.elapsed().as_secs_f64();
                self.deadline.record_save(seconds);
                self.progress.failed_saves = 0;
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
    fn finish_pruning(&mut self) {
        let Some(pruning) = self.pruning.take() else { return };
        for (step, removed) in pruning.join().expect("removing checkpoints does not panic") {
            match removed {
                Ok(()) => self.event(EventKind::CheckpointPruned { step }),
                Err(e) => eprintln!("cannot remove the old checkpoint of step {step}: {e}"),
            }
        }
    }

    fn event(&mut self, kind: EventKind) {
        self.event_at(self.progress.step, kind);
    }

    fn event_at(&mut self, step: u64, kind: EventKind) {
        if let Some(log) = &mut self.log {
            log.event(step, kind);
        }
    }
}

impl<F: Family, O: Objective> Drop for Trainer<F, O> {
    /// Finishes pruning, so that no checkpoint is left half removed.
    fn drop(&mut self) {
        self.finish_pruning();
    }
}

/// Describes which of the data sets differ from those of a checkpoint, by their fingerprints.
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

/// The validation loss at each noise level.
type Losses = [f64; LEVELS];

fn mean(losses: Losses) -> f64 {
    losses.iter().sum::<f64>() / LEVELS as f64
}

/// Returns the seconds that each save of earlier attempts took.
fn saves_s(run: &RunDir) -> Vec<f64> {
    let saved =
        |event: &Event| if let EventKind::CheckpointSaved { seconds, .. } = event.kind { Some(seconds) } else { None };
    rundir::read_events(run).unwrap_or_default().iter().filter_map(saved).collect()
}
