//! The dialogs: the content of each, and its scroll position.

use crate::keymap::Context;
use crate::msg::ConvertOptions;
use plan::{LaunchPlan, RunKill};
use rundir::Failure;

/// The open dialog.
#[derive(Debug, Clone)]
pub enum Modal {
    /// Confirms a launch or resume.
    Launch(LaunchDialog),
    /// Confirms a kill.
    Kill(KillDialog),
    /// Shows an error.
    Failure(FailureDialog),
    /// Lists all keys.
    Help(HelpDialog),
}

impl Modal {
    /// Returns the key table of the dialog.
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
    /// The plan that is shown and then executed.
    pub plan: Box<LaunchPlan>,
    /// Whether the plan resumes an existing run.
    pub resumes: bool,
    /// First visible line.
    pub scroll: usize,
}

/// The kill dialog.
#[derive(Debug, Clone)]
pub struct KillDialog {
    /// The plan that is shown and then executed.
    pub plan: Box<RunKill>,
    /// Whether Yes is marked.
    pub yes: bool,
    /// First visible line.
    pub scroll: usize,
}

/// The failure dialog.
#[derive(Debug, Clone)]
pub struct FailureDialog {
    /// The error.
    pub failure: Failure,
    /// The conversion that would solve it.
    pub convert: Option<Box<ConvertOptions>>,
    /// First visible line.
    pub scroll: usize,
}

/// The help dialog.
#[derive(Debug, Clone)]
pub struct HelpDialog {
    /// The context whose keys come first.
    pub context: Context,
    /// First visible line.
    pub scroll: usize,
}
