//! Appends metrics and events to the files of a run.

use std::io;
use std::time::{Duration, Instant};

use rundir::{Error, Event, EventKind, Failure, LineAppender, MetricSample, RunDir, now_s};

/// The files that metrics and events are appended to. Rank 0 has this; in an encode, the rank that creates the queue or joins the
/// results.
pub struct RunLog {
    metrics: LineAppender,
    events: LineAppender,
    attempt: u32,
    rank: usize,
    /// When lines that could not be written were last written again; `None` if there are none.
    retried: Option<Instant>,
}

/// The pause before lines that could not be written are written again.
const RETRY: Duration = Duration::from_secs(1);

impl RunLog {
    /// Opens both files for appending by a rank.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(run: &RunDir, attempt: u32, rank: usize) -> Result<Self, Failure> {
        let open = |path: camino::Utf8PathBuf| {
            LineAppender::open(&path).map_err(|source| Failure::from(Error::io("write", &path, source)))
        };
        Ok(RunLog { metrics: open(run.metrics())?, events: open(run.events())?, attempt, rank, retried: None })
    }

    /// Appends a logged step.
    ///
    /// A full disk does not end the run: the line is kept in memory and written when there is room.
    pub fn metrics(&mut self, sample: &MetricSample) {
        let written = self.metrics.append(sample);
        self.record(written);
    }

    /// Appends an event. A full disk is handled as in [`RunLog::metrics`].
    pub fn event(&mut self, step: u64, kind: EventKind) {
        let event = Event::new(now_s(), self.attempt, Some(step), kind).by_rank(self.rank);
        let written = self.events.append(&event);
        self.record(written);
    }

    /// Writes the lines that earlier calls could not write, at most once a second.
    pub fn retry(&mut self) {
        if self.retried.is_some_and(|at| at.elapsed() >= RETRY) {
            let written = self.events.retry().and(self.metrics.retry());
            if written.is_ok() {
                self.retried = None;
            }
            self.record(written);
        }
    }

    fn record(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            if self.retried.is_none() {
                rundir::log!("cannot write metrics and events, which are kept until there is room: {error}");
            }
            self.retried = Some(Instant::now());
        }
    }
}
