//! The dialogs: what each shows and how far it is scrolled.

use crate::keymap::Context;
use crate::msg::ConvertOptions;
use plan::{LaunchPlan, RunKill};
use rundir::Failure;

/// The dialog on top.
#[derive(Debug, Clone)]
pub enum Modal {
    /// What would be started.
    Launch(LaunchDialog),
    /// What would be killed.
    Kill(KillDialog),
    /// What went wrong.
    Failure(FailureDialog),
    /// The keys.
    Help(HelpDialog),
}

impl Modal {
    /// Returns the key table that holds while it is open.
    pub fn context(&self) -> Context {
        match self {
            Self::Launch(_) => Context::LaunchDialog,
            Self::Kill(_) => Context::KillDialog,
            Self::Failure(_) => Context::FailureDialog,
            Self::Help(_) => Context::Help,
        }
    }
}

/// The launch dialog.
#[derive(Debug, Clone)]
pub struct LaunchDialog {
    /// What would be started.
    pub plan: Box<LaunchPlan>,
    /// Whether it goes on with an existing run.
    pub resumes: bool,
    /// First visible line.
    pub scroll: usize,
}

/// The kill dialog.
#[derive(Debug, Clone)]
pub struct KillDialog {
    /// What would be signalled.
    pub plan: Box<RunKill>,
    /// Whether Enter means yes.
    pub yes: bool,
    /// First visible line.
    pub scroll: usize,
}

/// The failure dialog.
#[derive(Debug, Clone)]
pub struct FailureDialog {
    /// What is shown.
    pub failure: Failure,
    /// The conversion that would help.
    pub convert: Option<Box<ConvertOptions>>,
    /// First visible line.
    pub scroll: usize,
}

/// The help dialog.
#[derive(Debug, Clone)]
pub struct HelpDialog {
    /// Whose keys come first.
    pub context: Context,
    /// First visible line.
    pub scroll: usize,
}
