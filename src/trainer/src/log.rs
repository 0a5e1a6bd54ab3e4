//! Appends metrics and events to the files of a run.

use rundir::{Error, Event, EventKind, Failure, LineAppender, MetricSample, RunDir, now_s};

/// The files that metrics and events are appended to. Rank 0 has this; in an encode, the rank that creates the queue or joins the
/// results.
pub struct RunLog {
    metrics: LineAppender,
    events: LineAppender,
    attempt: u32,
    rank: usize,
}

impl RunLog {
    /// Opens both files for appending by a rank.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(run: &RunDir, attempt: u32, rank: usize) -> Result<Self, Failure> {
        let open = |path: camino::Utf8PathBuf| {
            LineAppender::open(&path).map_err(|source| Failure::from(Error::Io { action: "write", path, source }))
        };
        Ok(RunLog { metrics: open(run.metrics())?, events: open(run.events())?, attempt, rank })
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
        let event = Event::new(now_s(), self.attempt, Some(step), kind).by_rank(self.rank);
        if let Err(e) = self.events.append(&event) {
            eprintln!("cannot log an event to {}: {e}", self.events.path());
        }
    }
}
