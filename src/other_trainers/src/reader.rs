//! Reads metrics and events from a growing log.

use crate::adapter_reader::AdapterReader;
use crate::auto::AutoReader;
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

/// Reads the log of the rank that logs the metrics of the whole run.
#[derive(Debug)]
pub struct LogReader(Kind);

#[derive(Debug)]
enum Kind {
    Adapter(Box<AdapterReader>),
    Auto(Box<AutoReader>),
}

impl LogReader {
    /// Makes a reader of a log from its beginning.
    pub fn new(options: ReaderOptions) -> Self {
        Self(match options.trainer {
            OtherTrainer::Auto => Kind::Auto(Box::new(AutoReader::new(options))),
            _ => Kind::Adapter(Box::new(AdapterReader::new(&options))),
        })
    }

    /// Reads what was appended to the log until `now`, Unix seconds.
    pub fn read(&mut self, bytes: &[u8], now: f64) -> Vec<LogEvent> {
        match &mut self.0 {
            Kind::Adapter(reader) => reader.read(bytes, now),
            Kind::Auto(reader) => reader.read(bytes, now),
        }
    }

    /// Returns the newest step, which [`LogReader::read`] holds back because later lines may repeat it. Call this when the log has not
    /// grown.
    ///
    /// A step with the numbers of the previous step is still held back: the bar shows a new count first, and its numbers only after
    /// the trainer has saved.
    pub fn pause(&mut self, now: f64) -> Vec<LogEvent> {
        match &mut self.0 {
            Kind::Adapter(reader) => reader.pause(now),
            Kind::Auto(reader) => reader.pause(now),
        }
    }

    /// Returns the last step of a log that has ended.
    pub fn end(&mut self, now: f64) -> Vec<LogEvent> {
        match &mut self.0 {
            Kind::Adapter(reader) => reader.end(now),
            Kind::Auto(reader) => reader.end(now),
        }
    }
}

#[cfg(test)]
mod tests;
