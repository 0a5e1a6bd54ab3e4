//! Requests to the shell: one-shot effects and long-lived watches, both plain data.

use crate::action_plan::{ActionPlan, ActionRequest};
use crate::conversion::ConvertOptions;
use crate::conversion::ConvertPreview;
use crate::draft::LaunchDraft;
use crate::fleet::FleetSource;
use crate::msg::{JobId, Size};
use crate::series::{Axis, XAxis};
use camino::Utf8PathBuf;
use cluster::NodeId;
use plan::{LaunchPlan, ResumeOptions, RunKill};
use rundir::Chart;
use rundir::RunId;

/// One-shot requests, as data that tests can compare.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Work that is answered by `Msg::Job`.
    Job {
        /// The job that receives the answer.
        job: JobId,
        /// The work.
        request: Request,
    },
    /// Stop a job that can be stopped: a conversion, whose output is removed, or a kill that is retried on nodes that do not answer.
    /// The job answers.
    StopJob(JobId),
    /// Open a file with the desktop's program for it; only if [`Setup::has_desktop`](crate::Setup::has_desktop).
    OpenFile(Utf8PathBuf),
    /// Put text on the clipboard (OSC 52).
    Copy(String),
    /// Announce alerts in the terminal: by its bell, or by a notification with a title and a text.
    Notify {
        /// Whether the bell rings.
        bell: bool,
        /// The title and the text of the notification; `None` for no notification.
        text: Option<(String, String)>,
    },
    /// Give the terminal back to the shell until `fg` (Ctrl-Z).
    Suspend,
    /// Close the console; runs continue. The shell then prints [`closing_message`](crate::closing_message).
    Quit,
}

/// The work of a job.
#[derive(Debug, Clone)]
pub enum Request {
    /// Plan a resume.
    PlanResume {
        /// The run to resume.
        run: RunId,
        /// The checkpoint, and what is restored from it. The default continues from the newest complete checkpoint.
        options: ResumeOptions,
    },
    /// Plan a resume with typed arguments; answered by `LaunchPlanned` or `Failed`.
    PlanResumeWith {
        /// The run to resume.
        run: RunId,
        /// The arguments of `vidtui resume` after the run, as typed.
        arguments: String,
    },
    /// Plan the next stage, started from a checkpoint of this run.
    PlanNext {
        /// The run that has the checkpoint.
        run: RunId,
        /// The step of the checkpoint; `None` for the newest complete one.
        step: Option<u64>,
    },
    /// Plan an action on several nodes, processes or runs, or on a checkpoint; answered by `JobMsg::ActionPlanned` or `Failed`.
    PlanAction(ActionRequest),
    /// Execute an action plan as shown; answered by `JobMsg::Results` as it progresses, then by `Outcome::Acted` or `Failed`.
    Act {
        /// The plan that was shown.
        plan: Box<ActionPlan>,
        /// Proof that the user confirmed the plan.
        confirmed: Confirmed,
    },
    /// Pin a checkpoint, or unpin it; answered by `Outcome::Pinned` or `Failed`.
    PinCheckpoint {
        /// The run that has the checkpoint.
        run: RunId,
        /// The step of the checkpoint.
        step: u64,
        /// Whether the checkpoint is pinned afterwards.
        is_pinned: bool,
    },
    /// Replace the note of a run; answered by `Outcome::Noted` or `Failed`.
    WriteNote {
        /// The run.
        run: RunId,
        /// The note; empty to remove it.
        note: String,
    },
    /// Find the processes that a kill would signal (`KillHow::Kill`); answered by `JobMsg::KillPlanned` or `Failed`.
    PlanKill {
        /// The run to kill.
        run: RunId,
    },
    /// Execute a launch or resume plan as shown; answered by `Outcome::Launched` or `Failed`.
    Launch {
        /// The plan that was shown.
        plan: Box<LaunchPlan>,
    },
    /// Request a run to save a checkpoint and stop (`KillHow::Stop`). Safe, so it needs no dialog.
    Stop {
        /// The run to stop.
        run: RunId,
    },
    /// Execute a kill plan as shown; answered by `Outcome::Killed` or `Failed`.
    Kill {
        /// The plan that was shown.
        plan: Box<RunKill>,
        /// Proof that the user confirmed the plan.
        confirmed: Confirmed,
    },
    /// Write the stack traces of a run's processes into its folder; answered by `Outcome::Stacks` or `Failed`. Sends no signal.
    CollectStacks {
        /// The run whose processes are traced.
        run: RunId,
    },
    /// Draw a chart into a file.
    Export {
        /// The chart to draw.
        chart: ChartSpec,
        /// The file; its folder is [`Setup::export_dir`](crate::Setup::export_dir).
        to: Utf8PathBuf,
    },
    /// Draw a comparison of runs into a file.
    ExportComparison {
        /// The comparison to draw.
        comparison: ComparisonSpec,
        /// The file; its folder is [`Setup::export_dir`](crate::Setup::export_dir).
        to: Utf8PathBuf,
    },
    /// Preview a conversion; answered by `JobMsg::ConvertPlanned` or `Failed`.
    PlanConvert {
        /// The chosen options.
        options: ConvertOptions,
    },
    /// Execute a conversion as shown; answered by `Outcome::Converted`, `Outcome::ConvertStopped` or `Failed`.
    Convert {
        /// The preview that was shown.
        preview: Box<ConvertPreview>,
    },
    /// Check videos and plan their encode; answered by `LaunchPlanned` or `Failed`.
    PlanEncode {
        /// The arguments of `vidtui data encode`, as typed.
        arguments: String,
    },
    /// Plan to watch a program that was started without vidtui; answered by `LaunchPlanned` or `Failed`.
    PlanAttach {
        /// The arguments of `vidtui attach`, as typed.
        arguments: String,
    },
    /// Execute the plan of a launch form as shown, unless its files have changed since; answered by `Outcome::Launched` or
    /// `Failed`.
    LaunchDraft {
        /// The draft that was planned.
        draft: Box<LaunchDraft>,
        /// A hash of the files that the plan was made from.
        files: u64,
        /// The plan that was shown.
        plan: Box<LaunchPlan>,
    },
    /// Read the arguments of a launch; answered by `LaunchRead` or `Failed`.
    ReadLaunch {
        /// The arguments of `vidtui launch`, as typed.
        arguments: String,
    },
    /// Plan a video from the newest checkpoint of a run; answered by `LaunchPlanned` or `Failed`.
    PlanSample {
        /// The run whose checkpoint makes the video.
        run: RunId,
        /// The prompt with its flags, as typed.
        prompt: String,
    },
    /// Record that alerts are acknowledged, or snoozed; answered by `Outcome::AlertsMuted` or `Failed`.
    MuteAlerts {
        /// The alerts, by run and id; no id for all alerts of the run.
        alerts: Vec<(RunId, Option<String>)>,
        /// The end of the snooze, Unix seconds; `None` to acknowledge.
        until_s: Option<f64>,
    },
    /// Send a test alert to every channel; answered by `Outcome::AlertsTested` or `Failed`.
    TestAlerts,
}

impl Request {
    /// Returns whether the work changes nothing, so that it can be abandoned when the console closes.
    pub fn is_read_only(&self) -> bool {
        matches!(
            self,
            Self::PlanResume { .. }
                | Self::PlanResumeWith { .. }
                | Self::PlanNext { .. }
                | Self::PlanKill { .. }
                | Self::PlanAction(_)
                | Self::PlanConvert { .. }
                | Self::PlanEncode { .. }
                | Self::PlanAttach { .. }
                | Self::ReadLaunch { .. }
                | Self::PlanSample { .. }
        )
    }
}

/// Proof that the user confirmed a dialog. Only the dialogs that show a plan can make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed(());

impl Confirmed {
    /// Called only by the "Yes" of the kill dialog and the Enter of the action dialog.
    pub(crate) fn by_user() -> Self {
        Self(())
    }
}

/// A chart as it is on the screen, for the exporter.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartSpec {
    /// The run whose `metrics.jsonl` is drawn.
    pub run: RunId,
    /// The title: the run's short name.
    pub title: String,
    /// The chart to draw.
    pub chart: PlottedChart,
    /// Steps or seconds since the first sample.
    pub x: XAxis,
    /// Visible part of the x axis in its own unit; `None` for all of it.
    pub window: Option<(f64, f64)>,
    /// Logarithmic y axis.
    pub log_y: bool,
    /// Weight of the exponential moving average, drawn over the faint raw line; `None` for the raw line only.
    pub smoothing: Option<f64>,
    /// The file's format.
    pub format: ImageFormat,
}

/// What an exported chart shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlottedChart {
    /// A chart of the table of metrics.
    Chart(Chart),
    /// One metric of the table, by its name.
    Metric(&'static str),
    /// A series of an imported run that the table lacks, by its name.
    Named(String),
}

/// A comparison as it is on the screen, for the exporter.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparisonSpec {
    /// The runs, in order.
    pub runs: Vec<RunId>,
    /// The name of the metric in the table of metrics, or of a series of imported runs.
    pub metric: String,
    /// The quantity by which the runs are aligned.
    pub x: Axis,
    /// Visible part of the x axis in its own unit; `None` for all of it.
    pub window: Option<(f64, f64)>,
    /// Logarithmic y axis.
    pub log_y: bool,
    /// Weight of the exponential moving average, drawn over the faint raw lines; `None` for the raw lines only.
    pub smoothing: Option<f64>,
}

/// The format of an exported chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// Vector graphics; the default.
    Svg,
    /// Pixels.
    Png,
}

/// Long-lived streams. The shell starts and stops them, so that exactly the streams of [`watches`](crate::watches) run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// The runs folder: `Msg::Runs` at once, then whenever something changes.
    Runs,
    /// The curricula: `Msg::Curricula` at once, then whenever something changes.
    Curricula,
    /// The alerts of all runs: `Msg::Alerts` at once, then whenever something changes.
    Alerts,
    /// The queue: `Msg::Queue` at once, then whenever something changes.
    Queue,
    /// The recipes: `Msg::Recipes` at once, then whenever something changes.
    Recipes,
    /// The plan and the checks of a launch: `Msg::Draft` repeatedly, again whenever one of its files changes.
    Draft(Box<LaunchDraft>),
    /// Nodes: `Msg::Nodes` at once and whenever the list changes, then `Msg::Node` for each node repeatedly.
    Nodes(FleetSource),
    /// The output of nvidia-smi on a node: `NodeMsg::Smi` every few seconds.
    Smi {
        /// The source of the node list.
        of: FleetSource,
        /// The node on which nvidia-smi runs.
        node: NodeId,
    },
    /// The processes of nodes that use GPUs or belong to training: `NodeMsg::Processes` for each node repeatedly.
    Processes {
        /// The source of the node list.
        of: FleetSource,
        /// The nodes whose processes are listed.
        nodes: Vec<NodeId>,
    },
    /// The samples of a node that the supervisor of a run recorded in the last hours: `NodeMsg::Recorded`, once, in pieces.
    Recorded {
        /// The run.
        run: RunId,
        /// The node.
        node: NodeId,
    },
    /// One run: `RunMsg::Opened` first, then metrics, events, state and checkpoints.
    Run(RunId),
    /// The metrics and the recipe of a run that is compared: `RunMsg::Opened` first, then recipe, metrics and samples of nodes.
    Compared(RunId),
    /// The video of a sample as cells: one `RunMsg::Clip`.
    Clip {
        /// The run that made the sample.
        run: RunId,
        /// The step of the sample.
        step: u64,
        /// The index of the prompt.
        prompt: usize,
        /// The size of the area that shows it.
        size: Size,
    },
    /// The clock of playing videos: `RunMsg::NextFrame` at this rate.
    Frames {
        /// The run whose videos play.
        run: RunId,
        /// Milliseconds between two frames.
        every_ms: u32,
    },
    /// The logs of all ranks of an attempt: `RunMsg::Logs` with `from_start`, then the new lines. If their beginnings
    /// are not loaded, also `RunMsg::EarlierErrors`, once.
    Logs {
        /// The run.
        run: RunId,
        /// The attempt; `None` for the newest one.
        attempt: Option<u32>,
    },
    /// One rank's log of the newest attempt: a first `LogChunk` with `from_start`, then the new lines. If its beginning
    /// is not loaded, also `RunMsg::EarlierErrors`, once.
    Log {
        /// The run.
        run: RunId,
        /// The node of the rank.
        node: NodeId,
        /// The rank.
        rank: usize,
    },
}
