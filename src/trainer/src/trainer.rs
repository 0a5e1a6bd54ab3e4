//! The training loop: trains until the last step or a stop request, and saves checkpoints, samples and metrics.

mod saving;
mod start;

use crate::batches::Batches;
use crate::checkpoint::{PendingSave, StagingMemory, TrainingState};
use crate::data::Data;
use crate::deadline::{Deadline, save_s_after};
use crate::drift;
use crate::ema::EmaWeights;
use crate::exchange::{agree_on, finish_together};
use crate::fault;
use crate::log::RunLog;
use crate::offload;
use crate::optim::OptimizerState;
use crate::parallelize::{fsdp, unit_tables};
use crate::phase::{self, Phase};
use crate::profile::{self, Profile};
use crate::requests::{SaveStopRequests, StopSources};
use crate::sample::{LEVELS, TrainingSamples};
use crate::signals::Signals;
use crate::step::{Outcome, Step};
use crate::torch_failure::{ends_rank, failed};
use dataset::order::StepPlan;
use dit::family::Family;
use dit::network::Network;
use dit::objective::Objective;
use health::{SkippedSteps, Spikes};
use recipe::{Length, ParamSpec, Recipe, UseEma, WAIT_OUTSIDE_STEPS};
use rundir::{Attempt, BaseWeights, Event, EventKind, Failure, MetricSample, RequestSource, Run, RunDir, RunId, now_s};
use sharding::fsdp::Fsdp;
use sharding::mesh::MeshGroups;
use std::thread::JoinHandle;
use std::time::Instant;
use tch::Device;

/// The number of skipped steps of a run whose clips are named. Rank 0 reads them again.
const NAMED_STEPS: u64 = 100;
/// The number of clips that the event of a skipped step names.
const NAMED_CLIPS: usize = 16;

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
    batches: Batches,
    samples: TrainingSamples,
    signals: Signals,
    /// `None` on ranks other than 0.
    log: Option<RunLog>,
    progress: Progress,
    /// The metrics of the last logged step, on rank 0.
    last: Option<MetricSample>,
    saving: Option<Saving>,
    /// When a stop whose save failed is tried again.
    stop_retry: Option<Instant>,
    profile: Option<Profile>,
    /// The thread that removes old checkpoints, on rank 0.
    pruning: Option<JoinHandle<Vec<Removed>>>,
    spare: StagingMemory,
    deadline: Deadline,
    spikes: Spikes,
    skipped: SkippedSteps,
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
    /// The number of complete steps.
    step: u64,
    /// Samples drawn since the data order began.
    samples: u64,
    /// The seed of every random draw.
    seed: u64,
    /// The step of the last checkpoint, saved or being written.
    saved: Option<u64>,
    /// Saves in a row that failed.
    failed_saves: u64,
    /// Seconds for which saving stalled training since the last logged step.
    checkpoint_s: f64,
    /// Seconds spent on samples and validation since the last logged step.
    sample_s: f64,
    /// Seconds that loading the checkpoint took at the start.
    load_s: f64,
    /// Seconds of the longest step of this attempt on any rank; `None` before the first one.
    longest_step_s: Option<f64>,
}

impl<F: Family, O: Objective> Trainer<F, O> {
    /// Builds the model, optimizer and data of this rank, and loads the checkpoint that the attempt starts from. A collective.
    ///
    /// The number after the groups is that of the ranks on this node, which share its memory. The network and the objective are those of the
    /// attempt's recipe.
    ///
    /// # Errors
    /// The data set or the checkpoint does not fit the recipe, or memory is short. Every rank returns the failure of the rank that
    /// found it.
    pub fn new(
        run: RunDir,
        meta: &Run,
        attempt: Attempt,
        (groups, ranks_on_node): (MeshGroups, usize),
        (network, objective): (Network<F>, O),
    ) -> Result<Self, Failure> {
        let mut recipe = attempt.effective(&meta.recipe()?);
        let signals = Signals::watch()?;
        let data = Data::open(&recipe, &groups.world)?;
        recipe.train.length = Length::Steps(data.steps());
        let log = if groups.world.rank() == 0 { Some(RunLog::open(&run, attempt.number, 0)) } else { None };
        let log = agree_on(&groups.world, log.transpose())?;
        // The text encoder is freed before the model is loaded.
        let samples = TrainingSamples::open(&recipe, &groups)?;
        let tables = unit_tables(&recipe);
        phase::enter(Phase::Load);
        let swap = offload::of(&recipe, &groups, ranks_on_node)?;
        let fsdp = fsdp(&recipe, &tables, groups, swap).map_err(failed)?;
        let progress = Progress {
            step: 0,
            samples: 0,
            seed: recipe.train.seed,
            saved: None,
            failed_saves: 0,
            checkpoint_s: 0.0,
            sample_s: 0.0,
            load_s: 0.0,
            longest_step_s: None,
        };
        let moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).map_err(failed)?;
        // Only rank 0 checks the time limit.
        let measured_s =
            log.as_ref().and_then(|_| save_s_after(saves_s(&run).into_iter().rev(), recipe.run.time_limit));
        let save_s = measured_s.unwrap_or_else(|| recipe.cost().save_s());
        let deadline = Deadline::new(recipe.run.time_limit, save_s);
        let ema = EmaWeights::new(&fsdp, &recipe.ema).map_err(failed)?;
        let mut trainer = Trainer {
            moments,
            ema,
            network: network.on(fsdp.groups().device),
            objective: objective.on(fsdp.groups().device),
            id: meta.id.clone(),
            run,
            attempt,
            recipe,
            tables,
            base: None,
            fsdp,
            data,
            batches: Batches::default(),
            samples,
            signals,
            log,
            progress,
            last: None,
            saving: None,
            stop_retry: None,
            profile: None,
            pruning: None,
            spare: StagingMemory::default(),
            deadline,
            spikes: Spikes::default(),
            skipped: SkippedSteps::default(),
        };
        trainer.start()?;
        Ok(trainer)
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
        if began > 0 && self.recipe.sample.is_due(began, self.recipe.train.steps()) {
            self.make_samples()?;
        }
        while self.progress.step < self.recipe.train.steps() {
            let requests = self.requests();
            let outcome = self.step(requests)?;
            self.profile(outcome.requests);
            self.retry_log();
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
                if self.save_and_stop(source, &why)? {
                    return Ok(Finish::Stopped(why));
                }
                continue;
            }
            let stall = Instant::now();
            if outcome.requests.save_done {
                self.finish_save().or_else(|failure| self.continue_after(failure))?;
            }
            if self.progress.step < self.recipe.train.steps() {
                if let Some(source) = outcome.requests.save {
                    self.event(EventKind::SaveRequested { source, why: source.to_string() });
                }
                if due || outcome.requests.save.is_some() {
                    self.begin_save().or_else(|failure| self.continue_after(failure))?;
                }
            }
            self.progress.checkpoint_s += stall.elapsed().as_secs_f64();
            if outcome.requests.sample {
                self.event(EventKind::SampleRequested);
            }
            if outcome.requests.sample || self.recipe.sample.is_due(self.progress.step, self.recipe.train.steps()) {
                if self.progress.step == self.recipe.train.steps() {
                    // Save before sampling: if the samples of the last step fail, the trained state is kept.
                    self.save_last()?;
                }
                self.make_samples()?;
            }
        }
        self.save_last()?;
        self.correct_last();
        self.event(EventKind::Finished);
        finish_together(&self.fsdp.groups().world);
        Ok(Finish::Complete)
    }

    /// Continues the trace that is being recorded, or begins a requested trace. If that fails, training continues without a trace.
    fn profile(&mut self, requests: SaveStopRequests) {
        if let Err(failure) = self.advance_profile(requests) {
            rundir::log!("{failure}");
        }
    }

    fn advance_profile(&mut self, requests: SaveStopRequests) -> Result<(), Failure> {
        let (step, stops) = (self.progress.step, requests.stop.is_some());
        let steps = requests.profile.min(self.recipe.train.steps() - step);
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
        // Remove the save file when it is found, so that it requests one save.
        let save_file = first && std::fs::remove_file(self.run.save_file()).is_ok();
        let stop =
            StopSources { signals: &self.signals, first: first.then_some((&self.run, &self.deadline)) }.requested();
        let stop = stop.filter(|_| self.stop_retry.is_none_or(|at| Instant::now() >= at));
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

    fn step(&mut self, requests: SaveStopRequests) -> Result<Outcome, Failure> {
        let start = Instant::now();
        let step =
            Step { recipe: &self.recipe, network: &self.network, objective: &self.objective, seed: self.progress.seed };
        let plan = self.data.step(self.progress.samples);
        let done = self.progress.step;
        let timeout = self.recipe.train.collective_timeout(self.progress.longest_step_s);
        // A rank that saves waits for the copy of its state before it updates the weights, and other ranks wait for that rank.
        let timeout = if self.saving.is_some() { timeout.max(WAIT_OUTSIDE_STEPS) } else { timeout };
        self.fsdp.groups().set_timeout(timeout).map_err(failed)?;
        let outcome =
            step.run(&mut self.fsdp, &mut self.moments, (&mut self.data, &mut self.batches), done, &plan, requests)?;
        self.fsdp.groups().set_timeout(WAIT_OUTSIDE_STEPS).map_err(failed)?;
        let slowest =
            outcome.step_s_by_rank.iter().copied().fold(self.progress.longest_step_s.unwrap_or(0.0), f64::max);
        self.progress.longest_step_s = Some(slowest);
        self.progress.checkpoint_s += outcome.checkpoint_s;
        if let Some(ema) = self.ema.as_mut().filter(|_| outcome.applied) {
            ema.update(&self.fsdp).map_err(failed)?;
        }
        self.progress.step += 1;
        phase::at_step(self.progress.step);
        self.progress.samples += plan.samples();
        fault::pace(start);
        let step_s = start.elapsed().as_secs_f64();
        self.deadline.record_step(step_s);
        let due = self.recipe.sample.is_due(self.progress.step, self.recipe.train.steps());
        let validation = if due { self.validate()? } else { None };
        let stalled_s = outcome.checkpoint_s - outcome.stall_before_s;
        self.skipped.push(self.progress.step, !outcome.applied, self.recipe.train.max_bad_steps);
        self.record(&outcome, &plan, step_s - stalled_s, validation);
        Ok(outcome)
    }

    /// Ends the run if too many steps were skipped (`train.max_bad_steps`), after the pending checkpoint is written.
    fn check_finite(&mut self) -> Result<(), Failure> {
        let Some(count) = self.skipped.end(self.recipe.train.max_bad_steps) else { return Ok(()) };
        // A failed save already has an event; this failure is about the gradient.
        let _ = self.finish_save();
        let (id, data) = (&self.id, self.recipe.data.all());
        let sets: Vec<String> = data.iter().map(|set| format!("vidtui data verify {}", set.index)).collect();
        let lr = units::number(self.recipe.optimizer.lr / 2.0);
        Err(Failure::new(
            rundir::ErrorCode::NotFinite,
            format!("training stopped at step {}", self.progress.step),
            format!("the loss or the gradient was not finite {count}"),
            format!(
                "see the clips of the skipped steps (vidtui status {id}) and check the data ({}); if the data are intact, resume with a \
                 lower learning rate: vidtui resume {id} --set optimizer.lr={lr}",
                sets.join(", ")
            ),
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
        // Each TP rank computes the gradients of its copies itself. GPU kernels, and nodes with different numbers of cores, may add in
        // different orders, so that copies differ by rounding. A healthy run must not end for this.
        let copies = self.fsdp.groups().device == Device::Cpu && self.attempt.placement.by_node().len() == 1;
        drift::check(&self.fsdp, &self.tables, step, copies)
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
            skipped_steps: self.skipped.total(),
            lr: outcome.lr.rest,
            lr_ttt: model.has_ttt().then_some(outcome.lr.ttt),
            step_s,
            data_s: outcome.data_s,
            forward_s: outcome.forward_s,
            backward_s: outcome.backward_s,
            optimizer_s: outcome.optimizer_s,
            checkpoint_s: self.progress.checkpoint_s,
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
            step.is_multiple_of(self.recipe.log.interval) || step == self.recipe.train.steps() || validation.is_some();
        let Some(log) = &mut self.log else { return };
        let spike = finite(outcome.loss).and_then(|loss| self.spikes.push(loss, self.recipe.log.spike));
        if let Some(usual) = spike {
            log.event(step, EventKind::LossSpike { loss: outcome.loss, usual });
        }
        if due {
            log.metrics(&sample);
            (self.progress.checkpoint_s, self.progress.sample_s) = (0.0, 0.0);
            self.last = Some(sample);
        }
        if !outcome.loss.is_finite() {
            log.event(step, EventKind::LossNotFinite);
        }
        if !outcome.applied {
            let (clips, in_data) = match self.skipped.total() <= NAMED_STEPS {
                true => self.data.suspects(plan.numbers()),
                false => (Vec::new(), false),
            };
            let more_clips = clips.len().saturating_sub(NAMED_CLIPS);
            let clips = clips.into_iter().take(NAMED_CLIPS).collect();
            log.event(step, EventKind::StepSkipped { clips, more_clips, in_data });
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
            Err(failure) if ends_rank(&failure) => Err(failure),
            Err(failure) => {
                self.event(EventKind::SampleFailed { failure });
                Ok(())
            }
        }
    }

    /// Exchanges the weights and their average, if samples are made from the average. Called before and after samples are made.
    fn swap_average(&mut self) -> Result<(), Failure> {
        if let Some(ema) = self.ema.as_mut().filter(|_| self.recipe.sample.ema != UseEma::Off) {
            self.moments.wait_for_snapshot().map_err(failed)?;
            ema.swap(&self.fsdp).map_err(failed)?;
        }
        // The time of samples includes the waits for a save that end here, like all other waits of the host.
        self.moments.drop_stalls();
        Ok(())
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

    fn event(&mut self, kind: EventKind) {
        self.event_at(self.progress.step, kind);
    }

    /// Writes the metrics and events that could not be written before.
    fn retry_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.retry();
        }
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
