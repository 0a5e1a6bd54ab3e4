//! Reads metrics and events from a growing log.

use crate::adapter_reader::AdapterReader;
use crate::auto::AutoReader;
use crate::log_event::{LogEvent, ReaderOptions};
use recipe::OtherTrainer;

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
