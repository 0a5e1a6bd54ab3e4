//! What was asked of the shell and is not answered yet.

use crate::msg::JobId;
use rundir::RunId;
use std::collections::BTreeMap;

/// Why a job was started: decides what its answer does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Plan a stage's start, then ask.
    PlanStage {
        /// The stage's name.
        stage: String,
    },
    /// Plan a resume, then do it; ask only when there are warnings.
    PlanResume(RunId),
    /// Find out what a kill would signal, then ask.
    PlanKill(RunId),
    /// Start a run, or go on with one.
    Launch {
        /// The run.
        run: RunId,
        /// Whether it is new, so that its screen opens once it starts.
        fresh: bool,
    },
    /// Ask a run to stop.
    Stop(RunId),
    /// Kill a run.
    Kill(RunId),
    /// Collect the stacks of a run's processes.
    Stacks(RunId),
    /// Write a chart.
    Export,
    /// Look what a conversion would do.
    PlanConvert,
    /// Convert weights into a folder.
    Convert(camino::Utf8PathBuf),
}

impl Intent {
    /// Returns the run that is being acted on, which must not be acted on twice.
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::PlanResume(run) | Self::PlanKill(run) | Self::Stop(run) | Self::Kill(run) => Some(run),
            Self::Launch { run, .. } => Some(run),
            Self::PlanStage { .. } | Self::Stacks(_) | Self::Export | Self::PlanConvert | Self::Convert(_) => None,
        }
    }

    /// Returns what is going on, for the notice line.
    pub fn text(&self) -> String {
        let short = crate::run_state::short_id;
        match self {
            Self::PlanStage { stage } => format!("preparing {stage}"),
            Self::PlanResume(run) => format!("preparing to resume {}", short(run)),
            Self::PlanKill(run) => format!("looking for the processes of {}", short(run)),
            Self::Launch { run, .. } => format!("starting {}", short(run)),
            Self::Stop(run) => format!("asking {} to save and stop", short(run)),
            Self::Kill(run) => format!("killing {}", short(run)),
            Self::Stacks(run) => format!("collecting the stacks of {}", short(run)),
            Self::Export => "writing the chart".to_owned(),
            Self::PlanConvert => "looking at the weights".to_owned(),
            Self::Convert(target) => format!("converting to {target}"),
        }
    }
}

/// Jobs in flight.
#[derive(Debug, Clone, Default)]
pub struct Jobs {
    next: u64,
    running: BTreeMap<JobId, Job>,
}

/// One job in flight.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Why it was started.
    pub intent: Intent,
    /// What it said last.
    pub progress: Option<String>,
    /// What it waits for again and again, so that it can be given up.
    pub waiting: Option<Waiting>,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Since when, Unix seconds: that it tries again in between is no end of it.
    pub since_s: f64,
    /// For what, as it was said last.
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

    /// Takes in what a job waits for. Returns whether it begins to.
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

    /// Returns whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns the newest job.
    pub fn latest(&self) -> Option<&Job> {
        self.running.values().next_back()
    }

    /// Returns what is already being done to a run.
    pub fn busy_with(&self, run: &RunId) -> Option<&Intent> {
        self.running.values().map(|job| &job.intent).find(|intent| intent.run() == Some(run))
    }

    /// Returns whether the stacks of a run are already being collected.
    pub fn collecting(&self, run: &RunId) -> bool {
        self.running.values().any(|job| matches!(&job.intent, Intent::Stacks(of) if of == run))
    }

    /// Returns whether a stage is already being prepared.
    pub fn planning_stage(&self) -> bool {
        self.running.values().any(|job| matches!(job.intent, Intent::PlanStage { .. }))
    }
}
