//! Requests to the shell that have no answer yet.

use crate::msg::JobId;
use rundir::RunId;
use std::collections::BTreeMap;

/// The purpose of a job, which decides how its answer is handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Plan the start of a stage, then ask for confirmation.
    PlanStage {
        /// The stage's name.
        stage: String,
    },
    /// Read the typed arguments of a launch, then open its form.
    ReadLaunch,
    /// Plan a resume and perform it; ask for confirmation only when there are warnings.
    PlanResume(RunId),
    /// Find the processes that a kill would signal, then ask for confirmation.
    PlanKill(RunId),
    /// Start or resume a run.
    Launch {
        /// The run to start or resume.
        run: RunId,
        /// Whether the run is new: its screen opens when it starts.
        fresh: bool,
    },
    /// Request a run to stop.
    Stop(RunId),
    /// Kill a run.
    Kill(RunId),
    /// Plan to continue a run from a chosen checkpoint, then ask for confirmation.
    PlanResumeFrom {
        /// The run.
        run: RunId,
        /// The step of the checkpoint.
        step: u64,
    },
    /// Plan an action on several nodes, processes or runs, or on a checkpoint, then ask for confirmation.
    PlanAction {
        /// The work, as a phrase.
        what: String,
    },
    /// Execute a planned action.
    Act {
        /// The action, as a phrase: `kill 3 processes on ml-1`.
        what: String,
        /// The runs that the action changes.
        runs: Vec<RunId>,
    },
    /// Pin a checkpoint, or unpin it.
    Pin {
        /// The step of the checkpoint.
        step: u64,
    },
    /// Write the note of a run.
    Note(RunId),
    /// Write the stack traces of a run's processes.
    Stacks(RunId),
    /// Export a chart.
    Export,
    /// Acknowledge or snooze alerts.
    MuteAlerts,
    /// Send a test alert.
    TestAlerts,
    /// Preview a conversion.
    PlanConvert,
    /// Convert weights into a folder.
    Convert(camino::Utf8PathBuf),
}

impl Intent {
    /// Returns whether the job changes a run. A run has at most one such job.
    pub fn changes(&self, wanted: &RunId) -> bool {
        match self {
            Self::PlanResume(run) | Self::PlanKill(run) | Self::Stop(run) | Self::Kill(run) => run == wanted,
            Self::Launch { run, .. } | Self::PlanResumeFrom { run, .. } => run == wanted,
            Self::Act { runs, .. } => runs.contains(wanted),
            Self::PlanStage { .. }
            | Self::ReadLaunch
            | Self::PlanAction { .. }
            | Self::Pin { .. }
            | Self::Note(_)
            | Self::Stacks(_)
            | Self::Export
            | Self::MuteAlerts
            | Self::TestAlerts
            | Self::PlanConvert
            | Self::Convert(_) => false,
        }
    }

    /// Returns the job as a phrase for the notice line.
    pub fn text(&self) -> String {
        let short = crate::run_state::short_id;
        match self {
            Self::PlanStage { stage } => format!("preparing {stage}"),
            Self::ReadLaunch => "reading the arguments".to_owned(),
            Self::PlanResume(run) => format!("preparing to resume {}", short(run)),
            Self::PlanResumeFrom { run, step } => {
                format!("preparing to resume {} from step {}", short(run), units::grouped(*step))
            }
            Self::PlanAction { what } => what.clone(),
            Self::Act { what, .. } => format!("in progress: {what}"),
            Self::Pin { step } => format!("changing the pin of step {}", units::grouped(*step)),
            Self::Note(run) => format!("writing the note of {}", short(run)),
            Self::PlanKill(run) => format!("finding the processes of {}", short(run)),
            Self::Launch { run, .. } => format!("starting {}", short(run)),
            Self::Stop(run) => format!("requesting a stop of {}", short(run)),
            Self::Kill(run) => format!("killing {}", short(run)),
            Self::Stacks(run) => format!("writing the stack traces of {}", short(run)),
            Self::Export => "exporting the chart".to_owned(),
            Self::MuteAlerts => "recording the answer".to_owned(),
            Self::TestAlerts => "sending a test alert".to_owned(),
            Self::PlanConvert => "reading the weights".to_owned(),
            Self::Convert(target) => format!("converting to {target}"),
        }
    }
}

/// The jobs without an answer.
#[derive(Debug, Clone, Default)]
pub struct Jobs {
    next: u64,
    running: BTreeMap<JobId, Job>,
}

/// One job without an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The purpose of the job.
    pub intent: Intent,
    /// The latest progress line of the job.
    pub progress: Option<String>,
    /// The reason for waiting, while the job retries and can be cancelled.
    pub waiting: Option<Waiting>,
}

/// The reason why a job waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// When the wait began, Unix seconds; retries do not reset it.
    pub since_s: f64,
    /// The latest description of the reason for waiting.
    pub text: String,
}

impl Jobs {
    pub(crate) fn start(&mut self, intent: Intent) -> JobId {
        self.next += 1;
        let job = JobId(self.next);
        self.running.insert(job, Job { intent, progress: None, waiting: None });
        job
    }

    pub(crate) fn finish(&mut self, job: JobId) -> Option<Intent> {
        self.running.remove(&job).map(|job| job.intent)
    }

    pub(crate) fn progress(&mut self, job: JobId, text: String) {
        if let Some(job) = self.running.get_mut(&job) {
            job.progress = Some(text);
        }
    }

    /// Records what a job waits for. Returns whether the wait has just begun.
    pub(crate) fn waits(&mut self, job: JobId, text: String, now: f64) -> bool {
        let Some(job) = self.running.get_mut(&job) else { return false };
        job.progress = Some(text.clone());
        let before = job.waiting.take();
        job.waiting = Some(Waiting { since_s: before.as_ref().map_or(now, |before| before.since_s), text });
        before.is_none()
    }

    /// Returns the kill of a run that waits for nodes.
    pub fn waiting_kill(&self, run: &RunId) -> Option<(JobId, &Waiting)> {
        let is_kill = |job: &Job| matches!(&job.intent, Intent::Kill(of) if of == run);
        self.running.iter().find_map(|(id, job)| Some((*id, job.waiting.as_ref().filter(|_| is_kill(job))?)))
    }

    /// Returns whether every job has its answer.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns the newest job.
    pub fn latest(&self) -> Option<&Job> {
        self.running.values().next_back()
    }

    /// Returns the job that changes a run.
    pub fn busy_with(&self, run: &RunId) -> Option<&Intent> {
        self.running.values().map(|job| &job.intent).find(|intent| intent.changes(run))
    }

    /// Returns whether the stack traces of a run are being written.
    pub fn collecting(&self, run: &RunId) -> bool {
        self.running.values().any(|job| matches!(&job.intent, Intent::Stacks(of) if of == run))
    }

    /// Returns whether an action on several nodes, processes or runs, or on a checkpoint, is being planned.
    pub fn planning_action(&self) -> bool {
        self.running.values().any(|job| matches!(job.intent, Intent::PlanAction { .. }))
    }

    /// Returns whether a stage is being prepared.
    pub fn planning_stage(&self) -> bool {
        self.running.values().any(|job| matches!(job.intent, Intent::PlanStage { .. }))
    }
}
