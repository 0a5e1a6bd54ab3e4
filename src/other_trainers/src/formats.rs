//! The log and checkpoint formats of another trainer. Each trainer is a constant of type [`Formats`] in its own file.

use crate::contents::{Contents, Defect};
use camino::Utf8Path;

/// How to read the log and the checkpoints of a trainer.
pub(crate) struct Formats {
    /// Texts to search for in a line of the log, and the meaning of a line with that text. The first match counts.
    pub phrases: &'static [(&'static str, Phrase)],
    /// Reads the numbers in a line that has none of the phrases.
    pub numbers: fn(&str) -> Option<Line>,
    /// Whether the trainer counts each micro-batch of an accumulated batch as a step.
    pub counts_micro_batches: bool,
    /// Reads the numbers in the name of a checkpoint; `None` for other names.
    pub order: fn(&Utf8Path) -> Option<Order>,
    /// Whether the trainer removes the files of an old checkpoint but not its folder.
    pub leaves_empty_folders: bool,
    /// Checks that the checkpoint of a step has all files that the trainer writes.
    pub check: fn(&Contents, u64) -> Result<(), Defect>,
}

impl Formats {
    /// Returns the meaning of a line of the trainer's log; `None` if vidtui does not use the line.
    pub fn read(&self, line: &str) -> Option<Line> {
        if let Some((_, phrase)) = self.phrases.iter().find(|(text, _)| line.contains(text)) {
            return Some(Line::Phrase(*phrase));
        }
        (self.numbers)(line).filter(|line| !matches!(line, Line::Step(step) if step.done == 0))
    }
}

/// The meaning of a log line with one of the trainer's phrases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Phrase {
    /// Training begins.
    Started,
    /// Training continues from a checkpoint.
    Resumed,
    /// A checkpoint is being written.
    Saving,
    /// A checkpoint was written or handed to a background thread.
    Saved,
    /// An evaluation begins.
    Evaluating,
    /// An evaluation ended. Where a trainer does not log this, the next step implies it.
    Evaluated,
}

/// The meaning of a log line.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// The metrics of a step. Until the next step, later lines may repeat them with more digits.
    Step(Step),
    /// One of the trainer's phrases.
    Phrase(Phrase),
    /// The peak memory use so far, GiB.
    Memory(f64),
}

/// The metrics of a step, as far as a trainer logs them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// Steps done, as the trainer counts them; see [`Formats::counts_micro_batches`].
    pub done: u64,
    /// May be NaN.
    pub loss: f64,
    pub grad_norm: Option<f64>,
    pub lr: Option<f64>,
    pub step_s: Option<f64>,
    pub data_s: Option<f64>,
}

/// The numbers in the name of a checkpoint, by which checkpoints are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    /// 0 if the name has only a step.
    pub epoch: u64,
    pub step: u64,
}

impl Order {
    /// Reads a step.
    pub fn step(text: &str) -> Option<Self> {
        Some(Self { epoch: 0, step: text.parse().ok()? })
    }
}
