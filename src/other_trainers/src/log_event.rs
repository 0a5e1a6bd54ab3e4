//! What a reader of a log needs to know, and what it finds.

use recipe::{LogPattern, OtherTrainer};
use rundir::MetricSample;

/// What a reader needs to know about a run.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// The trainer whose log it is.
    pub trainer: OtherTrainer,
    /// The attempt, for the samples.
    pub attempt: u32,
    /// The step after which the attempt continues.
    pub start_step: u64,
    /// The number of micro-batches in a batch.
    pub accumulation: u64,
    /// The last step of the run; `None` if it is not known.
    pub steps_total: Option<u64>,
    /// The number of ranks.
    pub ranks: usize,
    /// The patterns of the recipe for lines that are not known.
    pub patterns: Vec<LogPattern>,
}

impl ReaderOptions {
    /// Returns the options for the first attempt of a run of one rank.
    pub fn new(trainer: OtherTrainer) -> Self {
        Self { trainer, attempt: 1, start_step: 0, accumulation: 1, steps_total: None, ranks: 1, patterns: Vec::new() }
    }
}

/// An event or a step in a log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEvent {
    /// The metrics of a step.
    Metric(Box<MetricSample>),
    /// Training begins.
    Started,
    /// Training continues from a checkpoint.
    Resumed,
    /// A checkpoint is being written.
    Saving,
    /// A checkpoint was written or will be written soon; its folder shows whether it is complete.
    Saved,
    /// An evaluation begins. No step finishes until it ends.
    EvaluationStarted,
    /// An evaluation ended.
    EvaluationEnded,
    /// The reader has decided which lines have the steps.
    Recognized {
        /// What they are: `lines of torchtitan`.
        format: String,
        /// The names of the values that they have.
        metrics: Vec<String>,
    },
    /// No line has steps so far.
    NotRecognized {
        /// The lines that were read.
        lines: u64,
        /// Whether dictionaries without a step were printed, whose order is not that of the program, because its output is buffered.
        is_unordered: bool,
    },
}
