//! The signals that a rank receives, as flags that the training loop reads between steps.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that this process received. Their default actions are disabled.
#[derive(Debug)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
    parent: u32,
}

impl Signals {
    /// Handles SIGTERM and SIGINT (save and stop) and SIGUSR1 (save now), and ignores SIGHUP, because a run outlives the
    /// terminal that started it.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub fn watch() -> io::Result<Self> {
        let (stop, save) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(SIGTERM, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGUSR1, Arc::clone(&save))?;
        signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(Signals { stop, save, parent: std::os::unix::process::parent_id() })
    }

    /// Returns whether SIGTERM or SIGINT arrived.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether the supervisor has ended. Then no process would report how this rank ends, so the rank saves and
    /// stops.
    pub fn orphaned(&self) -> bool {
        std::os::unix::process::parent_id() != self.parent
    }

    /// Returns whether SIGUSR1 arrived since the last call.
    pub fn take_save(&self) -> bool {
        self.save.swap(false, Ordering::Relaxed)
    }
}
