//! The current training phase of this process, for errors, hang reports and traces.

use c10d::profile::Scope;
use rundir::FailedSave;
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// A phase of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Allocates and loads weights and state.
    Load,
    /// Reads data and computes the forward pass.
    Forward,
    /// Computes gradients, and recomputes blocks for activation checkpointing.
    Backward,
    /// Updates the weights.
    Optimizer,
    /// Makes samples, or measures the validation loss.
    Sample,
    /// Saves a checkpoint.
    Checkpoint,
}

/// The step and the phase of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// The number of complete steps.
    pub step: u64,
    /// The phase that the process is in.
    pub phase: Phase,
    /// When the phase began, Unix seconds; 0 before the first phase.
    pub since_s: f64,
}

static CURRENT: Mutex<Position> = Mutex::new(Position { step: 0, phase: Phase::Load, since_s: 0.0 });

thread_local! {
    /// The range of the current phase in a trace.
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

static FAILED_SAVE: Mutex<Option<FailedSave>> = Mutex::new(None);

/// Records how the newest save of a checkpoint ended; `None`: it succeeded.
pub fn save_ended(failed: Option<FailedSave>) {
    *FAILED_SAVE.lock().unwrap_or_else(PoisonError::into_inner) = failed;
}

/// Returns the newest save, if it failed.
pub fn failed_save() -> Option<FailedSave> {
    FAILED_SAVE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Enters a phase. A trace that is being recorded shows it as a range.
pub fn enter(phase: Phase) {
    let mut position = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    *position = Position { phase, since_s: rundir::now_s(), ..*position };
    drop(position);
    SCOPE.with_borrow_mut(|scope| {
        // End the previous range before the new one begins.
        *scope = None;
        *scope = Scope::begin(phase.name()).ok();
    });
}

/// Ends the range of the phase in a trace. The phase itself lasts until the next call of [`enter`].
pub fn end_range() {
    SCOPE.with_borrow_mut(|scope| *scope = None);
}

/// Records the number of complete steps.
pub fn at_step(step: u64) {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).step = step;
}

/// Returns the current phase.
pub fn current() -> Phase {
    position().phase
}

/// Returns the current step and phase.
pub fn position() -> Position {
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Phase {
    /// Returns the name in files and errors.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
            Phase::Sample => "sample",
            Phase::Checkpoint => "checkpoint",
        }
    }
}
