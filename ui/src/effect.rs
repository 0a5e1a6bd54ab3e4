//! What the screen asks of the shell: one-shot effects and long-lived watches, both plain data.

use crate::fleet::FleetSource;
use crate::msg::{ConvertOptions, ConvertPreview, JobId};
use camino::Utf8PathBuf;
use cluster::NodeId;
use plan::{LaunchPlan, RunKill};
use rundir::Chart;
use rundir::RunId;

/// One-shot requests. Data, so that a test can compare them.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Plan the start of a curriculum's stage; answered by `JobMsg::LaunchPlanned` or `Failed`.
    PlanLaunch {
        /// Where the answer goes.
        job: JobId,
        /// The curriculum's file.
        curriculum: Utf8PathBuf,
        /// The stage's name.
        stage: String,
        /// The run whose newest checkpoint gives the weights; `None` when the stage names its own start.
        from: Option<RunId>,
    },
    /// Plan to go on from the newest complete checkpoint.
    PlanResume {
        /// Where the answer goes.
        job: JobId,
        /// The run.
        run: RunId,
    },
    /// Plan the following stage, started from this run's newest checkpoint.
    PlanNext {
        /// Where the answer goes.
        job: JobId,
        /// The finished run.
        run: RunId,
    },
    /// Find out what a kill would signal (`KillHow::Kill`); answered by `JobMsg::KillPlanned` or `Failed`.
    PlanKill {
        /// Where the answer goes.
        job: JobId,
        /// The run.
        run: RunId,
    },
    /// Execute a launch or resume plan verbatim; answered by `Outcome::Launched` or `Failed`.
    Launch {
        /// Where the answer goes.
        job: JobId,
        /// What was shown.
        plan: Box<LaunchPlan>,
    },
    /// Ask a run to save a checkpoint and stop (`KillHow::Stop`). Safe, so it needs no dialog.
    Stop {
        /// Where the answer goes.
        job: JobId,
        /// The run.
        run: RunId,
    },
    /// Execute a kill plan verbatim; answered by `Outcome::Killed` or `Failed`.
    Kill {
        /// Where the answer goes.
        job: JobId,
        /// What was shown.
        plan: Box<RunKill>,
        /// Proof that somebody said yes.
        confirmed: Confirmed,
    },
    /// Write where a run's processes are into its folder; answered by `Outcome::Stacks` or `Failed`. Signals nothing.
    CollectStacks {
        /// Where the answer goes.
        job: JobId,
        /// The run.
        run: RunId,
    },
    /// Draw a chart into a file.
    Export {
        /// Where the answer goes.
        job: JobId,
        /// What to draw.
        chart: ChartSpec,
        /// The file; its folder is [`Setup::export_dir`](crate::Setup::export_dir).
        to: Utf8PathBuf,
    },
    /// Look what a conversion would do; answered by `JobMsg::ConvertPlanned` or `Failed`.
    PlanConvert {
        /// Where the answer goes.
        job: JobId,
        /// What is wished for.
        options: ConvertOptions,
    },
    /// Convert as shown, or not at all; answered by `Outcome::Converted`, `Outcome::ConvertStopped` or `Failed`.
    Convert {
        /// Where the answer goes.
        job: JobId,
        /// What was shown.
        preview: Box<ConvertPreview>,
    },
    /// Stop a conversion; what it has written so far goes.
    StopConvert {
        /// The conversion's job.
        job: JobId,
    },
    /// Ask the nodes no more that did not answer a kill; answered by the kill's job.
    GiveUpKill {
        /// The kill's job.
        job: JobId,
    },
    /// Put text on the clipboard (OSC 52).
    Copy(String),
    /// Give the terminal back to the shell until `fg` (Ctrl-Z).
    Suspend,
    /// Close the console; runs go on. [`farewell`](crate::farewell) is what to print then.
    Quit,
}

/// Proof that a person said yes in a dialog: only the kill dialog can make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed(());

impl Confirmed {
    /// Called by the kill dialog's "yes", and nowhere else.
    pub(crate) fn by_user() -> Self {
        Self(())
    }
}

/// A chart as it is on the screen, for the exporter.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartSpec {
    /// The run whose `metrics.jsonl` is drawn.
    pub run: RunId,
    /// What the title says: the run's short name.
    pub title: String,
    /// Which chart.
    pub chart: Chart,
    /// Steps or seconds since the first sample.
    pub x: XAxis,
    /// Visible part of the x axis in its own unit; `None` for all.
    pub window: Option<(f64, f64)>,
    /// Logarithmic y axis.
    pub log_y: bool,
    /// Weight of the exponential moving average drawn over the faint raw line; `None` for raw only.
    pub smoothing: Option<f64>,
    /// The file's format.
    pub format: ImageFormat,
}

/// What runs along the bottom of the charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XAxis {
    /// Optimizer steps.
    #[default]
    Step,
    /// Seconds since the first sample.
    Time,
}

/// A picture's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// Scalable; the default.
    Svg,
    /// Pixels.
    Png,
}

/// Long-lived streams, wanted as long as [`watches`](crate::watches) names them. The shell compares wanted with running.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// The runs folder: `Msg::Runs` at once, then whenever something changes.
    Runs,
    /// The curricula: `Msg::Curricula` at once, then whenever something changes.
    Curricula,
    /// Nodes: `Msg::Nodes` at once and whenever there are others, then `Msg::Node` for each of them again and again.
    Nodes(FleetSource),
    /// What nvidia-smi itself says on a node: `NodeMsg::Smi` every few seconds.
    Smi {
        /// Where the node comes from.
        of: FleetSource,
        /// The node.
        node: NodeId,
    },
    /// One run: `RunMsg::Opened` first, then metrics, events, state and checkpoints.
    Run(RunId),
    /// One rank's log of the newest attempt: a first `LogChunk` with `from_start`, then the new lines.
    Log {
        /// The run.
        run: RunId,
        /// Where the rank lives.
        node: NodeId,
        /// The rank.
        rank: usize,
    },
}
