//! The facts from which the state of a run is derived.

use crate::Newest;
use cluster::NodeId;
use cluster::slurm::JobStatus;
use recipe::Task;
use rundir::{
    Attempt, Event, EventKind, ExitFile, ExitReason, FailedSave, Failure, History, MetricSample, Run, RunDir, Unwritten,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The signals that request a stop: SIGINT and SIGTERM.
const STOP_SIGNALS: [i32; 2] = [2, 15];
/// A run without activity for fewer seconds than this is not stalled. Shorter pauses are normal: a cold page cache, a sleeping disk, a
/// busy machine.
pub(crate) const STALL_MIN_S: f64 = 30.0;
/// A run is stalled when a step takes this many times the median; a collective that hangs never ends.
pub(crate) const STALL_STEPS: f64 = 5.0;
/// A run computes nothing when its GPUs draw less than this share of their power during steps. A collective that hangs keeps
/// utilization at 100 %, but power falls to a third or less.
const POWER_COLLAPSED: f64 = 0.5;
/// The same share during an evaluation, which computes less than training: it samples, decodes and writes one video after the other.
const POWER_COLLAPSED_EVALUATING: f64 = 0.3;
/// An evaluation that takes fewer seconds than this is not stalled, whatever its power.
const EVALUATION_S: f64 = 600.0;
/// A rank that uses less than this share of a CPU core waits for something. A rank that computes uses all of it.
const CPU_COLLAPSED: f64 = 0.2;
/// The time limit for the process files of a new attempt to appear. After `attempt.toml` is written, the console
/// connects to hundreds of nodes, each loads libtorch from a cold shared disk (2 GB: minutes), and the file system
/// caches folders (NFS: up to a minute). A supervisor that ends within this time writes an exit file, which ends the
/// wait.
pub const START_GRACE: Duration = Duration::from_secs(180);

/// The time after which a node without a network has ended its ranks, counted from the exit files of the other nodes.
/// Its supervisor misses heartbeats for ten seconds, then waits two seconds for the ranks.
const LOST_AFTER_S: f64 = 15.0;

/// Whether the processes of an attempt exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// The processes exist.
    Alive,
    /// The processes do not exist, or their ids now belong to other processes.
    Dead,
    /// The node cannot be reached.
    #[default]
    Unknown,
}

/// The load of a run that logs nothing, which shows whether it still computes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Not measured.
    #[default]
    Unknown,
    /// The power of all its GPUs together.
    Power {
        /// Now.
        now_w: f64,
        /// During steps.
        before_w: f64,
    },
    /// The CPU use of the busiest rank, where no GPU reports its power.
    Cpu {
        /// In CPU cores.
        most: f64,
    },
}

impl Load {
    /// Returns whether the run computes: its power is at least `power_share` of the earlier power, or a rank uses the
    /// CPU. Returns `None` if the load was not measured.
    fn works(self, power_share: f64) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Power { now_w, before_w } => Some(now_w >= power_share * before_w),
            Self::Cpu { most } => Some(most >= CPU_COLLAPSED),
        }
    }
}

/// Everything from which the state of a run is derived. All fields except `newest` describe the newest attempt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunFacts {
    /// The newest attempt.
    pub attempt: Option<Attempt>,
    /// Whether its processes exist. Determine this before you read `exits`, because a process may end in between.
    pub alive: Liveness,
    /// Whether a node has no process file yet: nothing was started there, or the file is not visible yet.
    pub is_incomplete: bool,
    /// Whether a stop was requested.
    pub stopping: bool,
    /// Whether a permanent stop was requested by file ([`rundir::Stop::ForGood`]), so that the Slurm job is not
    /// requeued.
    pub stops_for_good: bool,
    /// The last logged step, and the time of that step in Unix seconds.
    pub last_metric: Option<(u64, f64)>,
    /// When the first of the steps that were read was logged.
    pub first_metric_s: Option<f64>,
    /// The median seconds of a step.
    pub median_step_s: Option<f64>,
    /// Steps from one logged step to the next; 0 counts as 1.
    pub steps_per_line: u64,
    /// The load of its nodes.
    pub load: Load,
    /// The exit files of the nodes on which the attempt has ended.
    pub exits: Vec<ExitFile>,
    /// The newest event.
    pub last_event: Option<Event>,
    /// The logged step from which the attempt resumed. It differs from the planned step if that checkpoint was damaged.
    pub resumed_from: Option<u64>,
    /// All steps of the run; in an encode all items, in a run that samples the sampling steps of all videos.
    pub steps_total: u64,
    /// Whether a command of the user trains, instead of the embedded trainer.
    pub is_command: bool,
    /// Whether ranks work independently (`recipe::Task::ranks_depend_on_each_other` is false), as in an encode. The run
    /// then continues after the end of a rank or node.
    pub is_independent: bool,
    /// Whether the newest attempt has logged that all its steps are done.
    pub has_finished: bool,
    /// The nodes that other nodes recorded as lost, if the run continues without them.
    pub lost: Vec<NodeId>,
    /// Whether the run only watches a program that another process started: its own processes compute nothing.
    pub is_attached: bool,
    /// Whether its steps are not logged, unless there is a metric ([`rundir::Run::is_stepless`]).
    pub is_stepless: bool,
    /// When the current save began.
    pub checkpointing_since: Option<f64>,
    /// When the current evaluation began.
    pub evaluating_since: Option<f64>,
    /// The state of its Slurm job, if it has one.
    pub job: Option<JobStatus>,
    /// The metrics and events that rank 0 cannot write, for instance because the disk is full.
    pub unwritten: Option<Unwritten>,
    /// The newest save of rank 0, if it failed.
    pub failed_save: Option<FailedSave>,
    /// The newest logged steps and events of all attempts, from which most fields were read.
    pub newest: Arc<Newest>,
}

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// The run was not started yet.
    New,
    /// The Slurm job waits in the queue, for the first time or after a requeue.
    Queued,
    /// The processes start, connect and load. No step was logged yet.
    Starting,
    /// The run trains.
    Running,
    /// The run saves a checkpoint.
    Saving,
    /// A stop was requested, and the run has not ended yet.
    Stopping,
    /// The processes exist but log nothing and, as far as was measured, compute nothing.
    Stalled {
        /// The time of the last step or event, Unix seconds.
        since_s: f64,
    },
    /// All steps are done.
    Finished,
    /// A user stopped or killed the run.
    Stopped,
    /// The run ended with a recorded error.
    Failed(Failure),
    /// The run ended without recording a reason.
    Crashed(Failure),
    /// The nodes cannot be reached, and the files of the run show no activity.
    Unknown,
}

impl RunState {
    /// Returns whether the run has ended: it makes no more progress unless it is resumed.
    pub fn is_end(&self) -> bool {
        matches!(self, RunState::Finished | RunState::Stopped | RunState::Failed(_) | RunState::Crashed(_))
    }
}

impl RunFacts {
    /// Makes the facts that follow from `run.toml` and `attempt.toml`.
    pub fn of_run(run: &Run, attempt: Option<Attempt>) -> Self {
        let steps = || attempt.as_ref().and_then(|attempt| attempt.steps).or_else(|| run.length()?.steps());
        let steps_total = match run.task() {
            // A step is a sampling step of one video.
            Task::Sample => {
                let specs = run.recipe().ok().and_then(|recipe| recipe.samples().ok()).unwrap_or_default();
                specs.iter().map(|spec| spec.steps as u64).sum()
            }
            // Unknown: the recipe of such a run has the largest number that is valid.
            _ if run.attached.as_ref().is_some_and(|attached| attached.steps.is_none()) => 0,
            _ => steps().unwrap_or(0),
        };
        Self {
            attempt,
            steps_total,
            is_command: run.is_command(),
            is_independent: run.is_independent(),
            is_attached: run.attached.is_some(),
            is_stepless: run.is_stepless(0),
            ..Self::default()
        }
    }

    /// Updates the facts with the newest lines of the run.
    pub fn see_newest(&mut self, newest: Arc<Newest>) {
        let Some(number) = self.attempt.as_ref().map(|attempt| attempt.number) else { return };
        for event in &newest.events {
            if let EventKind::SignalReceived { signal } = event.kind
                && event.attempt == number
                && STOP_SIGNALS.contains(&signal)
            {
                self.stopping = true;
            }
            self.see_event(event);
        }
        let mut history = History::default();
        for sample in newest.metrics.iter().filter(|sample| sample.attempt == number) {
            self.see_metric(sample);
            history.push(sample.clone());
        }
        self.newest = newest;
        self.median_step_s = history.median_step_s();
        if let [.., before, last] = history.effective() {
            self.steps_per_line = last.step - before.step;
        }
    }

    /// Updates the facts with the heartbeat of rank 0. It has the step if the metrics cannot be written. Call this after
    /// [`RunFacts::see_newest`].
    pub fn see_heartbeat(&mut self, dir: &RunDir) {
        let Some(attempt) = &self.attempt else { return };
        let Some(place) = attempt.placement.ranks.iter().find(|place| place.rank == 0) else { return };
        let Some(beat) = dir.read_heartbeat(&place.node, attempt.number, 0) else { return };
        self.failed_save = beat.failed_save;
        self.unwritten = beat.unwritten;
        if self.unwritten.is_some() && self.last_metric.is_none_or(|(step, t)| step <= beat.step && t < beat.t) {
            self.last_metric = Some((beat.step, beat.t));
        }
    }

    /// Updates the facts with an event. Events of older attempts are ignored.
    pub fn see_event(&mut self, event: &Event) {
        if self.attempt.as_ref().is_some_and(|a| a.number != event.attempt) {
            return;
        }
        self.has_finished |= event.kind == EventKind::Finished;
        match &event.kind {
            EventKind::NodeLost { node, .. } if !self.lost.contains(node) => self.lost.push(node.clone()),
            EventKind::CheckpointStarted => self.checkpointing_since = Some(event.t),
            EventKind::CheckpointSaved { .. }
            | EventKind::Stopped { .. }
            | EventKind::Finished
            | EventKind::Failed { .. }
            | EventKind::CheckpointFailed { .. }
            | EventKind::RankDied { .. } => self.checkpointing_since = None,
            EventKind::EvaluationStarted => self.evaluating_since = Some(event.t),
            EventKind::EvaluationEnded => self.evaluating_since = None,
            EventKind::Stopping { .. } => self.stopping = true,
            EventKind::Resumed { from_step, .. } => self.resumed_from = Some(*from_step),
            _ => {}
        }
        // The healer records events after the end of an attempt. They are no activity of the attempt.
        if !event.kind.is_of_healer() && self.last_event.as_ref().is_none_or(|last| last.t <= event.t) {
            self.last_event = Some(event.clone());
        }
    }

    /// Updates the facts with a sample. Samples of older attempts are ignored.
    pub fn see_metric(&mut self, sample: &MetricSample) {
        if self.attempt.as_ref().is_some_and(|a| a.number != sample.attempt) {
            return;
        }
        self.last_metric = Some((sample.step, sample.t));
        self.first_metric_s.get_or_insert(sample.t);
        if let Some(items) = &sample.items {
            self.steps_total = items.counts.total();
        }
        if self.checkpointing_since.is_some_and(|since| since < sample.t) {
            self.checkpointing_since = None;
        }
        if self.evaluating_since.is_some_and(|since| since < sample.t) {
            self.evaluating_since = None;
        }
    }

    /// Returns the number of steps that the trainer has skipped, because the loss or the gradient was not finite.
    pub fn skipped_steps(&self) -> u64 {
        let Some(number) = self.attempt.as_ref().map(|attempt| attempt.number) else { return 0 };
        let logged =
            self.newest.metrics.last().filter(|line| line.attempt == number).map_or(0, |line| line.skipped_steps);
        let is_skipped =
            |event: &&Event| event.attempt == number && matches!(event.kind, EventKind::StepSkipped { .. });
        // Not every step is logged, and versions before this counter log none.
        logged.max(self.newest.events.iter().filter(is_skipped).count() as u64)
    }

    /// Returns the step from which the newest attempt began: the logged one or, if none was logged, the planned one.
    pub fn start_step(&self) -> u64 {
        self.resumed_from.or(self.attempt.as_ref().map(|attempt| attempt.start_step)).unwrap_or(0)
    }

    /// Returns the seconds without a step or event after which the run is stalled: five median steps, more if not every
    /// step is logged, and at least half a minute.
    pub fn stall_after_s(&self) -> f64 {
        let steps = STALL_STEPS + self.steps_per_line.saturating_sub(1) as f64;
        STALL_MIN_S.max(steps * self.median_step_s.unwrap_or(0.0))
    }

    /// Returns the time of the last step or event if it is longer ago than [`RunFacts::stall_after_s`], unless a save
    /// or an evaluation is the reason. The run may still compute: see [`Load`].
    pub fn inactive_since_s(&self, now: f64) -> Option<f64> {
        let attempt = self.attempt.as_ref()?;
        let evaluates = self.evaluating_since.is_some_and(|since_s| now - since_s <= EVALUATION_S);
        let exempt = self.checkpointing_since.is_some() || evaluates || self.last_metric.is_none();
        let since_s = self.attempt_activity_s(attempt);
        (!exempt && now - since_s > self.stall_after_s()).then_some(since_s)
    }

    /// Returns whether the run computes nothing. Without a measurement, returns true, except during an evaluation.
    pub(crate) fn idles(&self) -> bool {
        match self.evaluating_since {
            Some(_) => self.load.works(POWER_COLLAPSED_EVALUATING) == Some(false),
            None => self.load.works(POWER_COLLAPSED) != Some(true),
        }
    }

    /// Returns the time until which an attempt without a process, step or event counts as starting, in Unix seconds.
    /// The console that starts it may be slow, or may have ended.
    pub fn starting_until_s(&self) -> Option<f64> {
        let attempt = self.attempt.as_ref().filter(|_| self.alive == Liveness::Dead && self.is_incomplete)?;
        let is_silent = self.last_event.is_none() && self.last_metric.is_none();
        is_silent.then(|| attempt.started_s + START_GRACE.as_secs_f64())
    }

    /// Returns the nodes that wrote no exit file within 15 s after the attempt failed on the others, and may never
    /// write one. The attempt's processes there have ended, or cannot train any more. If ranks work independently,
    /// returns the nodes that other nodes recorded as lost and that wrote no exit file.
    pub fn lost_nodes(&self, now: f64) -> Vec<NodeId> {
        let Some(attempt) = &self.attempt else { return Vec::new() };
        let exits = || self.exits.iter().filter(|exit| exit.attempt == attempt.number);
        if self.is_independent {
            return self.lost.iter().filter(|node| exits().all(|exit| exit.node != **node)).cloned().collect();
        }
        let has_failed = exits().any(|exit| exit.reason == ExitReason::Failed);
        let last_s = exits().map(|exit| exit.ended_s).fold(f64::MIN, f64::max);
        if !has_failed || now - last_s <= LOST_AFTER_S {
            return Vec::new();
        }
        let nodes = attempt.placement.by_node().into_iter().map(|(node, _)| node);
        nodes.filter(|node| exits().all(|exit| exit.node != **node)).cloned().collect()
    }

    /// Returns whether each node of the newest attempt has recorded its end or is lost.
    pub fn has_settled(&self, now: f64) -> bool {
        let Some(attempt) = &self.attempt else { return true };
        let has_ended =
            |node: &NodeId| self.exits.iter().any(|exit| exit.attempt == attempt.number && exit.node == *node);
        let nodes = attempt.placement.by_node();
        // Without any exit file, the processes ended without recording a reason.
        nodes.iter().all(|(node, _)| has_ended(node))
            || !nodes.iter().any(|(node, _)| has_ended(node))
            || !self.lost_nodes(now).is_empty()
    }

    /// Returns the node that caused the failure, once the attempt has settled: a lost node, or otherwise the first node
    /// whose failure is not a consequence of another.
    pub fn failed_node(&self, now: f64) -> Option<NodeId> {
        let attempt = self.attempt.as_ref()?;
        let failed = || {
            let mut exits: Vec<_> = self.exits.iter().filter(|e| e.attempt == attempt.number).collect();
            exits.retain(|exit| exit.reason == ExitReason::Failed);
            exits.sort_by(|a, b| a.ended_s.total_cmp(&b.ended_s));
            exits.into_iter()
        };
        let is_root = |exit: &&ExitFile| exit.failure.as_ref().is_none_or(|failure| !failure.is_consequence());
        let first = || failed().find(is_root).map(|exit| exit.node.clone());
        // A rank that stopped answering is named by those that waited for it; its own supervisor ends it without a failure of its own.
        let named = || failed().find_map(|exit| exit.failure.as_ref()?.cause.node().cloned());
        self.lost_nodes(now).into_iter().next().or_else(first).or_else(named)
    }

    /// Returns the time of the last step or event, in Unix seconds; `None` before the first attempt.
    pub fn last_activity_s(&self) -> Option<f64> {
        self.attempt.as_ref().map(|attempt| self.attempt_activity_s(attempt))
    }

    pub(crate) fn attempt_activity_s(&self, attempt: &Attempt) -> f64 {
        let event = self.last_event.as_ref().map_or(f64::MIN, |e| e.t);
        let metric = self.last_metric.map_or(f64::MIN, |(_, t)| t);
        attempt.started_s.max(event).max(metric)
    }
}
