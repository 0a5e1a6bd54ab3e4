//! The metrics and events that rank 0 appends to the run directory.

use rundir::{Error, Event, EventKind, Failure, LineAppender, MetricSample, RunDir, now_s};

/// The growing files of a run. Only rank 0 has this.
pub struct RunLog {
    metrics: LineAppender,
    events: LineAppender,
    attempt: u32,
}

impl RunLog {
    /// Opens both files for appending.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(run: &RunDir, attempt: u32) -> Result<Self, Failure> {
        let open = |path: camino::Utf8PathBuf| {
            LineAppender::open(&path).map_err(|source| Failure::from(Error::Io { action: "write", path, source }))
        };
        Ok(RunLog { metrics: open(run.metrics())?, events: open(run.events())?, attempt })
    }

    /// Appends a logged step.
    ///
    /// A full disk does not end the run: the line is lost, and an error is printed.
    pub fn metrics(&mut self, sample: &MetricSample) {
        if let Err(e) = self.metrics.append(sample) {
            eprintln!("cannot log step {} to {}: {e}", sample.step, self.metrics.path());
        }
    }

    /// Appends an event. A full disk is handled as in [`RunLog::metrics`].
    pub fn event(&mut self, step: u64, kind: EventKind) {
        let event = Event::new(now_s(), self.attempt, Some(step), kind).by_rank(0);
        if let Err(e) = self.events.append(&event) {
            eprintln!("cannot log an event to {}: {e}", self.events.path());
        }
    }
}
