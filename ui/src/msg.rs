//! The messages to the model, as plain data. The shell puts them in one queue, which defines their order.

use crate::action_plan::{ActionPlan, ActionResult};
use crate::conversion::ConvertPreview;
use crate::draft::{DraftMsg, LaunchDraft};
use crate::fleet::{FleetSource, ListedNode};
use crate::log_lines::Level;
use camino::Utf8PathBuf;
use cluster::NodeId;
use cluster::probe::Frame;
use cluster::slurm::JobStatus;
use health::Finding;
use plan::{LaunchPlan, NodeProcesses, RunKill};
use ratatui_core::buffer::Buffer;
use recipe::{Length, Task};
use rundir::{
    AlertState, Attempt, CheckpointEntry, EncodeStages, Event, Failure, GpuUsage, ItemCounts, Lineage, MetricSample,
    NodePoint, NodeSample, RunId, SampleFolder, SamplingProgress, StartFrom,
};
use runstate::{EncodeStageProgress, Epochs, Goodput, Progress, RunState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A key press, independent of any terminal library.
///
/// Shift is part of the character (`K`, not shift and `k`), except for [`KeyCode::BackTab`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The key.
    pub code: KeyCode,
    /// Whether Control was held.
    pub ctrl: bool,
    /// Whether Alt was held.
    pub alt: bool,
}

/// The keys that can be bound; the shell drops all others.
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
    F(u8),
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

/// A mouse event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mouse {
    /// The kind of the event.
    pub kind: MouseKind,
    /// The column of the terminal, from 0.
    pub column: u16,
    /// The row of the terminal, from 0.
    pub row: u16,
}

/// The kind of a mouse event; the shell drops all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum MouseKind {
    Press,
    Drag,
    Release,
    WheelUp,
    WheelDown,
}

/// The terminal's size in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// Identifies one request to the shell, so that the answer can be matched to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// An input of [`update`](crate::update).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Msg {
    /// A key was pressed.
    Key(Key),
    /// The left button or the wheel of the mouse was used.
    Mouse(Mouse),
    /// Text was pasted. It goes to the list of actions or an open text input, never to the key bindings.
    Paste(String),
    /// The terminal's size changed.
    Resize(Size),
    /// The current time, Unix seconds; this crate reads no clock.
    Tick(f64),
    /// The contents of the runs folder (answers [`Watch::Runs`](crate::Watch::Runs)).
    Runs(Result<RunList, Failure>),
    /// The alerts of all runs, newest first (answers [`Watch::Alerts`](crate::Watch::Alerts)).
    Alerts(Vec<AlertRow>),
    /// The entries of the queue whose runs have not started, in their order (answers [`Watch::Queue`](crate::Watch::Queue)).
    Queue(Vec<QueueRow>),
    /// All curricula (answers [`Watch::Curricula`](crate::Watch::Curricula)).
    Curricula(Vec<CurriculumView>),
    /// All recipes (answers [`Watch::Recipes`](crate::Watch::Recipes)).
    Recipes(Vec<RecipeView>),
    /// An update of the launch form (answers [`Watch::Draft`](crate::Watch::Draft)).
    Draft {
        /// The draft to which the update belongs.
        draft: Box<LaunchDraft>,
        /// The update.
        what: DraftMsg,
    },
    /// An update of one run (answers [`Watch::Run`](crate::Watch::Run) and [`Watch::Log`](crate::Watch::Log)).
    Run {
        /// The run.
        run: RunId,
        /// The update.
        what: RunMsg,
    },
    /// The list of nodes (answers [`Watch::Nodes`](crate::Watch::Nodes)).
    Nodes {
        /// The source of the list.
        of: FleetSource,
        /// The nodes in their order, or why they cannot be listed.
        nodes: Result<Vec<ListedNode>, Failure>,
    },
    /// An update of one node (answers [`Watch::Nodes`](crate::Watch::Nodes) and [`Watch::Smi`](crate::Watch::Smi)).
    Node {
        /// The node.
        node: NodeId,
        /// The update.
        what: NodeMsg,
    },
    /// An update of a job that an effect started.
    Job {
        /// The job.
        job: JobId,
        /// The update.
        what: JobMsg,
    },
}

/// An entry of the queue whose run has not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// The number of the entry.
    pub id: u32,
    /// The recipe file, or `CURRICULUM:STAGE`.
    pub recipe: String,
    /// What the entry waits for, or that it is held: `waits for demo-2s-k7f2 on devbox`.
    pub state: String,
}

/// An alert as the Alerts screen shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlertRow {
    /// The alert, and whether it was sent, acknowledged or snoozed.
    pub state: AlertState,
    /// Whether the alert rings the bell of the terminal.
    pub bell: bool,
    /// Whether the alert is shown as a notification of the terminal (OSC escape sequence).
    pub osc: bool,
}

/// An update of one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum NodeMsg {
    /// A sample of the node.
    Frame(Box<Frame>),
    /// Samples that the supervisor of a run recorded (answers [`Watch::Recorded`](crate::Watch::Recorded)); no samples after the last.
    Recorded(Vec<NodeSample>),
    /// The node cannot be reached; the shell keeps trying.
    Down(Failure),
    /// The output of nvidia-smi on the node.
    Smi(Result<String, Failure>),
    /// The processes of the node that use GPUs or belong to training, of all users.
    Processes(Result<NodeProcesses, Failure>),
}

/// The contents of the runs folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// Every readable run, in any order; the model sorts them, newest first.
    pub rows: Vec<RunRow>,
    /// The folders that cannot be read as runs, each with the reason.
    pub unreadable: Vec<Failure>,
}

/// A run as the Runs screen shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The run.
    pub run: RunId,
    /// The name that the user gave it.
    pub name: String,
    /// The path of its curriculum, equal to [`CurriculumView::path`].
    pub curriculum: Option<Utf8PathBuf>,
    /// The run's stage in that curriculum.
    pub stage: Option<String>,
    /// The run that its weights came from.
    pub lineage: Option<Lineage>,
    /// The run's derived state.
    pub state: RunState,
    /// The last finished step; for an encode, the number of finished items.
    pub step: u64,
    /// The number of steps in the recipe; for an encode, the number of items.
    pub steps_total: u64,
    /// The last loss; `None` before the first step and when it is not finite.
    pub loss: Option<f64>,
    /// Median seconds per step.
    pub step_s: Option<f64>,
    /// Estimated seconds left; `None` if unknown.
    pub eta_s: Option<f64>,
    /// Number of ranks of the newest attempt.
    pub ranks: usize,
    /// When the run was created, Unix seconds.
    pub created_s: f64,
    /// When the run last wrote a file, Unix seconds.
    pub updated_s: f64,
    /// Step of the newest complete checkpoint, from which a resume starts.
    pub checkpoint_step: Option<u64>,
    /// Findings of the health checks of the run, the most urgent first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The run's Slurm job, if it has one.
    #[serde(default)]
    pub job: Option<JobStatus>,
    /// Whether the run trains with a user-supplied command instead of the embedded trainer.
    #[serde(default)]
    pub is_command: bool,
    /// Whether the steps are unknown: the log of the command is not read, or has none.
    #[serde(default)]
    pub is_stepless: bool,
    /// The task of the run.
    #[serde(default)]
    pub task: Task,
    /// The progress in items, for an encode.
    #[serde(default)]
    pub items: Option<ItemCounts>,
    /// The progress of each stage of an encode.
    #[serde(default)]
    pub stages: Option<EncodeStages<EncodeStageProgress>>,
    /// The number of finished videos, for a run that samples.
    #[serde(default)]
    pub videos: Option<SamplingProgress>,
    /// The progress of a training run in epochs, if its length is given in epochs.
    #[serde(default)]
    pub epochs: Option<Epochs>,
    /// Until when a run without processes counts as starting, Unix seconds.
    #[serde(default)]
    pub start_deadline_s: Option<f64>,
    /// The total steps that a resume proposes, for a training run whose steps are all done.
    #[serde(default)]
    pub longer_steps: Option<u64>,
    /// The launch of the run as the launch form describes it, with the default target. `None` for a stage, and if the recipe file of
    /// the run is not known.
    #[serde(default)]
    pub launch: Option<Box<LaunchDraft>>,
    /// Whether the run was imported from the log of another tool, so that it cannot be resumed.
    #[serde(default)]
    pub is_imported: bool,
    /// Whether the run watches a program that another process started.
    #[serde(default)]
    pub is_attached: bool,
    /// The note of its users; words that begin with `#` are tags.
    #[serde(default)]
    pub note: Option<String>,
}

impl RunRow {
    /// Returns whether the run has weights from which videos can be made.
    pub fn makes_videos(&self) -> bool {
        self.task == Task::Train && !self.is_command && self.checkpoint_step.is_some()
    }

    /// Returns whether the run trains a stage from the weights of `parent`.
    pub fn continues(&self, parent: &RunRow, stage: &str) -> bool {
        let is_child = self.lineage.as_ref().is_some_and(|lineage| lineage.run == parent.run);
        is_child && self.task == Task::Train && self.stage.as_deref() == Some(stage)
    }

    /// Returns what the run has done, in the unit of its task.
    pub fn progress(&self) -> Progress {
        runstate::progress_of(self.task, (self.step, self.steps_total), self.items, self.videos, self.is_stepless)
    }
}

/// An update of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum RunMsg {
    /// A stream (re)starts from the beginning: samples, events and checkpoints that were received before are dropped.
    /// Always the first message of a [`Watch::Run`](crate::Watch::Run) stream.
    Opened,
    /// Lines of `metrics.jsonl`, in file order. The first batch may hold the whole history.
    Metrics(Vec<MetricSample>),
    /// Lines of the event files, in time order.
    Events(Vec<Event>),
    /// The keys of the recipe with their values, in the order of a recipe.
    Recipe(Vec<(String, String)>),
    /// Metrics aggregated over all nodes of the run, oldest first.
    #[serde(alias = "Moments")]
    NodePoints(Vec<NodePoint>),
    /// The state of the run; sent when it changes.
    State(Box<RunStatus>),
    /// How the wall time was spent; sent every few seconds if the run trains.
    Goodput(Goodput),
    /// The GPU time and the energy of the run so far; sent when they change.
    Usage(GpuUsage),
    /// All checkpoints, ascending; replaces the list.
    Checkpoints(Vec<CheckpointEntry>),
    /// All complete samples, by step and prompt; replaces the list.
    Samples(Vec<rundir::SampleSidecar>),
    /// A video as cells (answers [`Watch::Clip`](crate::Watch::Clip)).
    Clip {
        /// The step of the sample.
        step: u64,
        /// The number of the prompt.
        prompt: usize,
        /// The size that was requested.
        size: Size,
        /// The video, or why it cannot be shown.
        clip: Result<Clip, Failure>,
    },
    /// The videos must show their next frame (answers [`Watch::Frames`](crate::Watch::Frames)).
    NextFrame,
    /// Lines of one rank's log.
    Log(LogChunk),
    /// Lines of the logs of all ranks.
    Logs(RankLines),
    /// The first error in the part of the open log that was not loaded.
    EarlierErrors(EarlierErrors),
    /// The stream has failed, for example because the folder was removed. The error is shown until the next
    /// [`RunMsg::Opened`].
    Lost(Failure),
}

/// A video as cells of the terminal, rendered by the shell for one size. Recordings of a session do not contain the
/// frames.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Clip {
    /// Frames per second; 0 for a single picture.
    pub fps: f64,
    /// One buffer per frame. All buffers have the same size, which is at most the requested size.
    #[serde(skip)]
    pub frames: Arc<Vec<Buffer>>,
}

/// A run as the Run screen shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The row of the run, as in the list.
    pub row: RunRow,
    /// The run's folder.
    pub dir: Utf8PathBuf,
    /// The start of the first attempt.
    pub start: StartFrom,
    /// The newest attempt; its placement lists the ranks that have logs.
    pub attempt: Option<Attempt>,
    /// The folder of the run's samples; `None` if it is unknown.
    #[serde(default)]
    pub samples: Option<SampleFolder>,
}

/// Lines of one rank's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// The rank.
    pub rank: usize,
    /// The attempt that wrote the lines.
    pub attempt: u32,
    /// Whether this is the first chunk of a stream; the model then drops the lines that it has.
    pub from_start: bool,
    /// Bytes at the beginning of the file that were not read.
    pub skipped_bytes: u64,
    /// Whole lines without line ends; the model removes escape sequences.
    pub lines: Vec<String>,
}

/// Lines of the logs of all ranks of an attempt, merged into one order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLines {
    /// The attempt that wrote the lines.
    pub attempt: u32,
    /// Whether this is the first message of a stream; the model then drops the lines that it has.
    pub from_start: bool,
    /// Whether the lines that were in the files when the stream began have all been sent.
    pub is_caught_up: bool,
    /// Bytes before these lines that were not read.
    pub skipped_bytes: u64,
    /// The time zone of the times in the lines, in seconds east of UTC; `None` if it is unknown. The first message of
    /// a stream sets it.
    #[serde(default)]
    pub zone_s: Option<i32>,
    /// The rank and the text of whole lines without line ends; the model removes escape sequences.
    pub lines: Vec<(usize, String)>,
}

/// The result of the search for errors in the part of a log that was not loaded. It follows a first message of the
/// stream whose `skipped_bytes` are not 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierErrors {
    /// The rank whose log is open; `None` for the logs of all ranks.
    pub of: Option<usize>,
    /// The attempt that wrote the log.
    pub attempt: u32,
    /// The first error; `None` if there is none.
    pub found: Option<EarlierError>,
    /// Bytes that were not searched, because the logs are too large.
    pub unsearched_bytes: u64,
}

/// An error in the part of a log that was not loaded, and the lines around it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierError {
    /// The rank that printed the error.
    pub rank: usize,
    /// The error and a few lines around it, each with its level; the model removes escape sequences.
    pub lines: Vec<(Level, String)>,
    /// The index of the error in `lines`.
    pub error: usize,
    /// Bytes before `lines` in the log of the rank.
    pub bytes_before: u64,
    /// Bytes between `lines` and the loaded lines, in all logs together.
    pub hidden_bytes: u64,
}

/// A curriculum file as the Stages screen shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurriculumView {
    /// Absolute path of the file.
    pub path: Utf8PathBuf,
    /// The title of the curriculum.
    pub title: String,
    /// The stages in order, or why the file cannot be read.
    pub stages: Result<Vec<StageView>, Failure>,
}

/// One stage of a curriculum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageView {
    /// The stage's name.
    pub name: String,
    /// The command that trains the stage instead of the embedded trainer. The facts about the model are then unknown.
    #[serde(default)]
    pub command: Option<String>,
    /// Number of parameters of the model.
    pub params: u64,
    /// Tokens per sample, text included.
    pub seq_len: usize,
    /// Latent frames per sample.
    pub latent_frames: usize,
    /// The length of the stage.
    #[serde(flatten)]
    pub length: Length,
    /// Samples per step over all ranks.
    pub global_batch: usize,
    /// Ranks of the mesh.
    pub ranks: usize,
    /// The source of the initial weights.
    pub start: recipe::StageStart,
    /// The differences from the previous stage.
    pub changes: Vec<recipe::Change>,
}

impl StageView {
    /// Returns the length of the stage: `240 steps`, `3 epochs`.
    pub fn length_in_words(&self) -> String {
        match self.length {
            Length::Steps(steps) => format!("{} steps", units::grouped(steps)),
            epochs => epochs.to_string(),
        }
    }
}

/// A recipe file as the Recipes screen shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecipeView {
    /// Absolute path of the file.
    pub path: Utf8PathBuf,
    /// The first comment in the file.
    pub about: String,
    /// The number of recipes that use this file as their base.
    pub bases: usize,
    /// The facts about the recipe, or why it cannot be launched.
    pub facts: Result<RecipeFacts, Failure>,
}

impl RecipeView {
    /// Returns whether the file only has settings that other recipes share, and cannot be launched by itself.
    pub fn is_base(&self) -> bool {
        self.bases > 0 && self.facts.is_err()
    }
}

/// The facts about a recipe that can be launched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecipeFacts {
    /// The name that runs of the recipe get.
    pub name: String,
    /// The task, or the training system that the command starts.
    pub kind: String,
    /// The command that trains instead of the embedded trainer. The facts about the model are then unknown.
    pub command: Option<String>,
    /// Number of parameters of the model; `None` if the recipe defines no model.
    pub params: Option<u64>,
    /// Tokens per sample, text included; `None` if the model is unknown.
    pub seq_len: Option<usize>,
    /// Length, and samples per step: `240 steps of 4 samples`; empty for an encode and for samples.
    pub length: String,
    /// The mesh as text.
    pub mesh: String,
    /// Ranks of the mesh.
    pub ranks: usize,
    /// The keys whose values differ from their defaults, with their values, in the order of a recipe.
    #[serde(default)]
    pub settings: Vec<(String, String)>,
}

/// An update of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum JobMsg {
    /// A short progress line.
    Progress(String),
    /// The job waits before it retries; the line states what for. The user can cancel it.
    Waiting(String),
    /// Answers [`Request::PlanResume`](crate::Request::PlanResume), `PlanNext`, `PlanEncode` and `PlanSample`.
    LaunchPlanned(Box<LaunchPlan>),
    /// Answers [`Request::ReadLaunch`](crate::Request::ReadLaunch): the draft that the typed arguments describe.
    LaunchRead(Box<LaunchDraft>),
    /// Answers [`Request::PlanKill`](crate::Request::PlanKill).
    KillPlanned(Box<RunKill>),
    /// Answers [`Request::PlanAction`](crate::Request::PlanAction).
    ActionPlanned(Box<ActionPlan>),
    /// The results of an action so far.
    Results(Vec<ActionResult>),
    /// Answers [`Request::PlanConvert`](crate::Request::PlanConvert).
    ConvertPlanned(Box<ConvertPreview>),
    /// Progress of a conversion.
    Converting {
        /// Bytes written.
        done: u64,
        /// Bytes to write.
        total: u64,
    },
    /// The job succeeded.
    Done(Outcome),
    /// The job failed.
    Failed(Failure),
}

/// The result of a successful job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The run was started or resumed.
    Launched(RunId),
    /// The stop was requested: the run saves a checkpoint, then ends.
    StopSent(RunId),
    /// All processes in the kill plan have ended.
    Killed {
        /// The run.
        run: RunId,
        /// One line, such as "3 processes ended on devbox after 0.4 s".
        report: String,
    },
    /// An action on several nodes, processes or runs, or on a checkpoint has ended, with the result for each.
    Acted(Vec<ActionResult>),
    /// The note of a run was written.
    Noted(RunId),
    /// A checkpoint was pinned or unpinned.
    Pinned {
        /// The step of the checkpoint.
        step: u64,
        /// Whether the checkpoint is now pinned.
        is_pinned: bool,
    },
    /// The stack traces of a run's processes were written.
    Stacks {
        /// The run.
        run: RunId,
        /// One line: the number of stack traces and their folder.
        report: String,
    },
    /// Alerts were acknowledged or snoozed.
    AlertsMuted,
    /// A test alert was sent to these channels.
    AlertsTested(Vec<String>),
    /// A chart was written.
    Exported(Utf8PathBuf),
    /// Weights were converted into this folder.
    Converted(Utf8PathBuf),
    /// A conversion was stopped and its output removed.
    ConvertStopped(Utf8PathBuf),
}
