//! Signals as flags that the loop reads between steps.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What signals asked for. The default action of none of them is taken.
#[derive(Debug)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
    parent: u32,
}

impl Signals {
    /// Takes over SIGTERM and SIGINT (save and stop) and SIGUSR1 (save now); SIGHUP is ignored, because a run outlives
    /// the terminal it was started from.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn watch() -> io::Result<Self> {
        let (stop, save) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(SIGTERM, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGUSR1, Arc::clone(&save))?;
        signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(Signals { stop, save, parent: std::os::unix::process::parent_id() })
    }

    /// Whether this rank was asked to stop.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the supervisor is gone: then nobody would report how this rank ends, so it saves and stops too.
    pub fn orphaned(&self) -> bool {
        std::os::unix::process::parent_id() != self.parent
    }

    /// Whether this rank was asked to save since the last call.
    pub fn take_save(&self) -> bool {
        self.save.swap(false, Ordering::Relaxed)
    }
}
