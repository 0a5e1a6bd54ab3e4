//! Writes the run's metrics for other tools while it trains, on the first node: `log.tensorboard`, `log.wandb` and `log.prometheus`.
//! Training does not depend on this module.

mod logged;
mod prometheus;
mod tensorboard;
#[cfg(test)]
mod tests;
mod wandb;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use recipe::WandbMode;
use rundir::{log, now_s};

use self::prometheus::Prometheus;
use self::tensorboard::TensorBoard;
pub use self::tensorboard::export as export_tensorboard;
use self::wandb::Wandb;
use crate::job::Job;

/// The interval at which metrics and events are read.
const LOOK: Duration = Duration::from_secs(2);
/// The most that the supervisor waits at the end for the last metrics and samples.
const END: Duration = Duration::from_secs(2);
/// The time for a cancelled ffmpeg to end.
const CANCELLED: Duration = Duration::from_millis(500);

/// Writes files for other tools, each kind in a thread of its own: making a GIF does not delay Prometheus.
pub struct Exporting {
    exporters: Vec<Exporter>,
    cancel: video::Cancel,
}

/// A thread that writes one kind of files.
struct Exporter {
    end: Sender<()>,
    ended: Receiver<()>,
}

impl Exporter {
    /// Starts the thread. `look` gets the time and whether the attempt has ended.
    fn start(mut look: impl FnMut(f64, bool) + Send + 'static) -> Self {
        let (end, end_requested) = mpsc::channel();
        let (finished, ended) = mpsc::channel();
        thread::spawn(move || {
            loop {
                let is_end = !matches!(end_requested.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout));
                look(now_s(), is_end);
                if is_end {
                    break;
                }
            }
            // An error means that this took too long, and the supervisor no longer waits.
            let _ = finished.send(());
        });
        Self { end, ended }
    }
}

impl Exporting {
    /// Starts the threads on the node of rank 0, if the recipe has one of the three settings.
    pub fn start(job: &Job) -> Option<Self> {
        let log = &job.recipe.log;
        if !job.has_first_rank() {
            return None;
        }
        let (mut exporters, cancel) = (Vec::new(), video::Cancel::default());
        if log.tensorboard {
            let mut tensorboard = TensorBoard::new(job, cancel.clone());
            exporters.push(Exporter::start(move |now_s, is_end| tensorboard.look(now_s, is_end)));
        }
        if log.wandb == WandbMode::Offline {
            let mut wandb = Wandb::new(job);
            exporters.push(Exporter::start(move |now_s, is_end| wandb.look(now_s, is_end)));
        }
        if !log.prometheus.as_str().is_empty() {
            let mut prometheus = Prometheus::new(job);
            exporters.push(Exporter::start(move |now_s, is_end| prometheus.look(now_s, is_end)));
        }
        (!exporters.is_empty()).then_some(Self { exporters, cancel })
    }

    /// Requests that the last metrics are written. Call this after the exit file of the node is written.
    pub fn request_end(&self) {
        for exporter in &self.exporters {
            // An error means that the thread has panicked.
            let _ = exporter.end.send(());
        }
    }

    /// Waits for the last metrics and samples, for a limited time.
    pub fn wait(self) {
        let deadline = Instant::now() + END;
        for exporter in &self.exporters {
            match exporter.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.cancel.cancel();
                    let limit = END.as_secs();
                    log!("the last metrics or samples were not written for other tools within {limit} s");
                    let _ = exporter.ended.recv_timeout(CANCELLED);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    log!("a thread that writes for other tools panicked, so its files lack later metrics");
                }
            }
        }
    }
}

/// Logs errors of one kind once, until the next success.
#[derive(Default)]
struct Complaint {
    is_logged: bool,
}

impl Complaint {
    fn log<E: std::fmt::Display>(&mut self, what: &str, result: Result<(), E>) {
        match result {
            Ok(()) => self.is_logged = false,
            Err(_) if self.is_logged => {}
            Err(error) => {
                self.is_logged = true;
                log!("{what}: {error}");
            }
        }
    }
}
