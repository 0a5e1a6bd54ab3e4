//! Cancels work that runs programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that cancels work. Clones share its state.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    own: Arc<AtomicBool>,
    outer: Vec<Arc<AtomicBool>>,
}

impl Cancel {
    /// Kills the running programs, and prevents new ones.
    pub fn cancel(&self) {
        self.own.store(true, Ordering::Relaxed);
    }

    /// Returns whether work must end.
    pub fn is_cancelled(&self) -> bool {
        std::iter::once(&self.own).chain(&self.outer).any(|flag| flag.load(Ordering::Relaxed))
    }

    /// Returns a flag for a part of the work. Cancelling the whole cancels the part, but not the reverse.
    pub(crate) fn part(&self) -> Self {
        let outer = self.outer.iter().chain([&self.own]).map(Arc::clone).collect();
        Self { own: Arc::default(), outer }
    }
}
