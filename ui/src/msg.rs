//! Everything that can happen to the screen, as data: one closed list, ordered by one queue.

use crate::fleet::{FleetSource, ListedNode};
use camino::Utf8PathBuf;
use cluster::NodeId;
use cluster::probe::Frame;
use cluster::slurm::JobSight;
use health::Finding;
use plan::{LaunchPlan, RunKill};
use rundir::{Attempt, CheckpointEntry, Event, Failure, Lineage, MetricSample, NodePoint, RunId, StartFrom};
use runstate::RunState;
use serde::{Deserialize, Serialize};

/// A key press, free of any terminal library.
///
/// Shift is part of the character (`K`, not shift and `k`), except for [`KeyCode::BackTab`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Which key.
    pub code: KeyCode,
    /// Whether Control was held.
    pub ctrl: bool,
    /// Whether Alt was held.
    pub alt: bool,
}

/// The keys the screen knows; the shell drops all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are what is printed on the keys")]
pub enum KeyCode {
    Char(char),
    Enter,
    Esc,
    Tab,
    BackTab,
    Backspace,
    Delete,
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
    PageUp,
    PageDown,
}

impl Key {
    /// Makes a plain character key.
    pub const fn ch(c: char) -> Self {
        Self::code(KeyCode::Char(c))
    }

    /// Makes a key without modifiers.
    pub const fn code(code: KeyCode) -> Self {
        Self { code, ctrl: false, alt: false }
    }

    /// Makes a character key pressed with Control.
    pub const fn ctrl(c: char) -> Self {
        Self { code: KeyCode::Char(c), ctrl: true, alt: false }
    }
}

/// The terminal's size in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

impl From<Size> for ratatui_core::layout::Size {
    fn from(size: Size) -> Self {
        Self::new(size.width, size.height)
    }
}

/// Names one request of the screen to the shell, so that the answer finds its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// Everything that can happen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Msg {
    /// A key was pressed.
    Key(Key),
    /// Text was pasted; it goes into an open input line or nowhere, never to the key bindings.
    Paste(String),
    /// The terminal has another size.
    Resize(Size),
    /// The clock: Unix seconds. Nothing in this crate reads one.
    Tick(f64),
    /// What the runs folder holds now (answers [`Watch::Runs`](crate::Watch::Runs)).
    Runs(Result<RunList, Failure>),
    /// The curricula that were found (answers [`Watch::Curricula`](crate::Watch::Curricula)).
    Curricula(Vec<CurriculumView>),
    /// News of one run (answers [`Watch::Run`](crate::Watch::Run) and [`Watch::Log`](crate::Watch::Log)).
    Run {
        /// Which run.
        run: RunId,
        /// What happened.
        what: RunMsg,
    },
    /// Which nodes there are (answers [`Watch::Nodes`](crate::Watch::Nodes)).
    Nodes {
        /// Where they come from.
        of: FleetSource,
        /// In the order in which they are listed, or why there is no list.
        nodes: Result<Vec<ListedNode>, Failure>,
    },
    /// News of one node (answers [`Watch::Nodes`](crate::Watch::Nodes) and [`Watch::Smi`](crate::Watch::Smi)).
    Node {
        /// Which node.
        node: NodeId,
        /// What happened.
        what: NodeMsg,
    },
    /// News of a job that an effect started.
    Job {
        /// Which job.
        job: JobId,
        /// What happened.
        what: JobMsg,
    },
}

/// News of one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum NodeMsg {
    /// What it does now.
    Frame(Box<Frame>),
    /// It cannot be seen, and is looked for again and again.
    Down(Failure),
    /// What nvidia-smi says there, as it is.
    Smi(Result<String, Failure>),
}

/// The runs folder at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// Every run that could be read, in any order: the screen sorts newest first.
    pub rows: Vec<RunRow>,
    /// Why other folders could not be read.
    pub unreadable: Vec<Failure>,
}

/// One line of the Runs screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The run.
    pub run: RunId,
    /// The name a person gave it.
    pub name: String,
    /// The curriculum it belongs to: the same absolute path as [`CurriculumView::path`].
    pub curriculum: Option<Utf8PathBuf>,
    /// Its stage of that curriculum.
    pub stage: Option<String>,
    /// The run whose weights it started from.
    pub lineage: Option<Lineage>,
    /// Derived state.
    pub state: RunState,
    /// Last step taken.
    pub step: u64,
    /// Steps the recipe asks for.
    pub steps_total: u64,
    /// Last loss; `None` before the first step and when it was not finite.
    pub loss: Option<f64>,
    /// Median seconds per step.
    pub step_s: Option<f64>,
    /// Seconds left, while it trains.
    pub eta_s: Option<f64>,
    /// Number of ranks of the newest attempt.
    pub ranks: usize,
    /// When the run was created, Unix seconds.
    pub created_s: f64,
    /// When it last wrote anything, Unix seconds.
    pub updated_s: f64,
    /// Step of the newest complete checkpoint: where a resume would start.
    pub checkpoint_step: Option<u64>,
    /// What a person should know of, the most urgent first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// What is known of its Slurm job, if it is one.
    #[serde(default)]
    pub job: Option<JobSight>,
    /// Whether a program of the user's own trains.
    #[serde(default)]
    pub is_command: bool,
    /// Whether nobody hears of its steps: a command's, whose log is not understood.
    #[serde(default)]
    pub is_stepless: bool,
    /// Until when its processes are awaited, Unix seconds, while it counts as starting and there are none.
    #[serde(default)]
    pub start_awaited_until_s: Option<f64>,
}

/// News of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum RunMsg {
    /// A stream (re)starts from the beginning: what was known of the run's samples, events and checkpoints is dropped.
    /// Always the first message of a [`Watch::Run`](crate::Watch::Run) stream.
    Opened,
    /// Lines of `metrics.jsonl`, in file order. Large batches are fine: the first one may hold the whole history.
    Metrics(Vec<MetricSample>),
    /// Lines of the event files, in time order.
    Events(Vec<Event>),
    /// What all nodes of the run did together, in the order of time, from its beginning.
    #[serde(alias = "Moments")]
    NodePoints(Vec<NodePoint>),
    /// The run as a whole; sent when it changes.
    State(Box<RunStatus>),
    /// All checkpoints, ascending; replaces the list.
    Checkpoints(Vec<CheckpointEntry>),
    /// Lines of one rank's log.
    Log(LogChunk),
    /// The stream cannot go on (folder gone, unreadable…). Shown until the next [`RunMsg::Opened`].
    Lost(Failure),
}

/// The run screen's view of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The same facts as in the list.
    pub row: RunRow,
    /// The run's folder.
    pub dir: Utf8PathBuf,
    /// Where the first attempt's weights came from.
    pub start: StartFrom,
    /// The newest attempt: its placement names the ranks whose logs there are.
    pub attempt: Option<Attempt>,
}

/// Lines of a rank's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// Which rank.
    pub rank: usize,
    /// Which attempt wrote them; the newest one is followed.
    pub attempt: u32,
    /// First chunk of a stream: lines shown so far are dropped.
    pub from_start: bool,
    /// Earlier bytes of the file that were not read, 0 when the chunk begins at the file's beginning.
    pub skipped_bytes: u64,
    /// Whole lines without their line ends. The screen removes escape sequences itself.
    pub lines: Vec<String>,
}

/// One curriculum file, as the Stages screen shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurriculumView {
    /// Absolute path of the file.
    pub path: Utf8PathBuf,
    /// Its title.
    pub title: String,
    /// The stages in order, or why the file cannot be used.
    pub stages: Result<Vec<StageView>, Failure>,
}

/// One stage of a curriculum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageView {
    /// The stage's name.
    pub name: String,
    /// The command that trains it, where vidtui's own trainer does not. Of its model nothing is known then.
    #[serde(default)]
    pub command: Option<String>,
    /// Number of parameters of the model.
    pub params: u64,
    /// Tokens per sample, text included.
    pub seq_len: usize,
    /// Latent frames per sample.
    pub latent_frames: usize,
    /// Steps to train.
    pub steps: u64,
    /// Samples per step over all ranks.
    pub global_batch: usize,
    /// Ranks the mesh asks for.
    pub ranks: usize,
    /// Where the weights come from.
    pub start: recipe::StageStart,
    /// What differs from the stage before.
    pub changes: Vec<recipe::Change>,
}

/// A conversion of weights as it is wished for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConvertOptions {
    /// What to convert: a path.
    pub source: Utf8PathBuf,
    /// The folder to make.
    pub target: Utf8PathBuf,
    /// What to convert it to.
    pub to: ConvertForm,
    /// The layers besides attention; those of the source when `None`.
    pub layer: Option<recipe::Layer>,
    /// The type of the parameters; that of the source when `None`.
    pub dtype: Option<WeightType>,
    /// A LoRA adapter that is added to the weights.
    pub merge: Option<Utf8PathBuf>,
    /// Whether an earlier conversion in the way is replaced.
    pub replace: bool,
}

/// What weights are converted to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConvertForm {
    /// A checkpoint that training starts from.
    #[default]
    Internal,
    /// A folder that diffusers loads.
    Diffusers,
    /// An adapter as diffusers saves it, from an adapter.
    LoraDiffusers,
    /// An adapter as PEFT saves it, from an adapter.
    LoraPeft,
    /// An adapter with kohya's names, from an adapter.
    LoraKohya,
}

impl ConvertForm {
    /// The form as the command line writes it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Diffusers => "diffusers",
            Self::LoraDiffusers => "lora-diffusers",
            Self::LoraPeft => "lora-peft",
            Self::LoraKohya => "lora-kohya",
        }
    }
}

/// The type of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WeightType {
    Float32,
    Bfloat16,
    Float16,
}

impl WeightType {
    /// The type as the command line writes it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
        }
    }
}

/// What a conversion would do, to be looked at; it is carried out as shown or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConvertPreview {
    /// What is wished for.
    pub options: ConvertOptions,
    /// The same on the command line.
    pub command: String,
    /// Names and values, in order.
    pub facts: Vec<(String, String)>,
    /// What becomes of the tensors, blocks taken together.
    pub rows: Vec<ConvertRow>,
    /// Bytes that will be written.
    pub bytes: u64,
    /// Why it would be refused.
    pub refusal: Option<Failure>,
    /// Whether nothing but an earlier conversion is in the way, which can be replaced.
    pub in_the_way: bool,
    /// Identifies the plan, down to every byte that it reads and writes.
    pub fingerprint: String,
}

/// Tensors of which the same becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvertRow {
    /// How many.
    pub count: usize,
    /// Their name in the source, `{i}` for the block, or where their values come from.
    pub source: String,
    /// Their name in the target, or why they have none.
    pub target: String,
    /// Whether the conversion is refused because of them.
    pub wrong: bool,
}

/// News of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum JobMsg {
    /// A short line about what it is doing.
    Progress(String),
    /// The same about what it waits for, before it tries again: it can be given up.
    Waiting(String),
    /// Answers [`Effect::PlanLaunch`](crate::Effect::PlanLaunch), `PlanResume` and `PlanNext`.
    LaunchPlanned(Box<LaunchPlan>),
    /// Answers [`Effect::PlanKill`](crate::Effect::PlanKill).
    KillPlanned(Box<RunKill>),
    /// Answers [`Effect::PlanConvert`](crate::Effect::PlanConvert).
    ConvertPlanned(Box<ConvertPreview>),
    /// How far a conversion is.
    Converting {
        /// Bytes written.
        done: u64,
        /// Bytes to be written.
        total: u64,
    },
    /// Answers [`Effect::PlanLaunch`](crate::Effect::PlanLaunch) when the weights that the stage starts from must be
    /// converted first.
    ConvertFirst {
        /// Why the stage cannot start.
        failure: Failure,
        /// The conversion that would help.
        options: Box<ConvertOptions>,
    },
    /// It worked.
    Done(Outcome),
    /// It did not.
    Failed(Failure),
}

/// How a job ended well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The run was started or resumed.
    Launched(RunId),
    /// The stop signal was sent: the run saves a checkpoint, then ends.
    StopSent(RunId),
    /// Everything in the kill plan is gone; the text says how it went, in one line.
    Killed {
        /// The run.
        run: RunId,
        /// One line, such as "3 processes ended on devbox after 0.4 s".
        report: String,
    },
    /// The stacks of a run's processes were written.
    Stacks {
        /// The run.
        run: RunId,
        /// One line: how many of which nodes, and where they are.
        report: String,
    },
    /// A chart was written.
    Exported(Utf8PathBuf),
    /// Weights were converted into this folder.
    Converted(Utf8PathBuf),
    /// A conversion was stopped, and nothing was left behind.
    ConvertStopped(Utf8PathBuf),
}
