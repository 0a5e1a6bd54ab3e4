//! Raises the alerts of the run, on the first node. Training does not depend on this module.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use alerts::{Limits, Outbox, Settings, Watch};
use rundir::{AlertWriter, is_exposed, log, now_s};

use crate::job::Job;

/// The interval at which events and findings are read.
const LOOK: Duration = Duration::from_secs(2);
/// The time limit for sending the last alerts, if a healer waits for the end of this process.
const HEALER_WAITS: Duration = Duration::from_secs(2);

/// Raises alerts in a separate thread.
pub struct Alerting {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Alerting {
    /// Starts the thread on the node of rank 0. Returns `None` on other nodes.
    pub fn start(job: &Job, limits: Limits) -> Option<Self> {
        if !job.has_first_rank() {
            return None;
        }
        let (run, attempt) = (job.run.clone(), job.attempt.clone());
        let settings = Settings::of_attempt(&run, attempt.number).unwrap_or_else(|failure| {
            log!("{failure}");
            Settings::default()
        });
        if is_exposed(&run.alert_channels(attempt.number)) {
            log!("warning: {} is accessible to other users; run chmod 600", run.alert_channels(attempt.number));
        }
        let outbox = Outbox::open(&run, AlertWriter::Supervisor, settings, limits.clone(), |line| log!("{line}"));
        let mut watch = Watch::new(&run, job.meta.clone(), job.recipe.clone(), attempt, outbox);
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut is_logged = false;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
                // The file system may be unreachable for a while, so log the error once and retry.
                if let Err(error) = watch.look(now_s())
                    && !std::mem::replace(&mut is_logged, true)
                {
                    log!("{error}");
                }
            }
            let limit = if run.healer().is_some() { HEALER_WAITS } else { limits.end };
            if let Err(error) = watch.end(now_s(), limit) {
                log!("{error}");
            }
        });
        Some(Self { end, thread })
    }

    /// Raises the last alerts, and waits for a limited time until they are sent. Call this after the exit file of the
    /// node is written.
    pub fn end(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            log!("the thread that raises alerts panicked, so the run lacks later alerts");
        }
    }
}
