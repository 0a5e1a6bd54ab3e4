//! The state of each dialog: its content, selection and scroll position.

use crate::action_plan::{ActionPlan, ActionResult};
use crate::bindings::Context;
use crate::layout::{self, Panel};
use crate::model::LaunchForm;
use crate::msg::{JobId, Size};
use plan::{LaunchPlan, RunKill};
use rundir::Failure;

/// The open dialog.
#[derive(Debug, Clone)]
pub enum Modal {
    /// Confirms a launch or resume.
    Launch(LaunchDialog),
    /// Confirms a kill.
    Kill(KillDialog),
    /// Confirms an action on several nodes, processes or runs, or on a checkpoint.
    Action(ActionDialog),
    /// Shows the results of such an action.
    Results(ResultsDialog),
    /// Lists the checkpoints of the open run.
    Checkpoints(CheckpointsDialog),
    /// Chooses the target of a launch: this machine, a hostfile or a Slurm file.
    Targets(TargetsDialog),
    /// Chooses the panels that training runs show.
    Panels(PanelsDialog),
    /// Shows an error.
    Failure(FailureDialog),
    /// Lists all keys.
    Help(HelpDialog),
    /// Finds an action of any screen or dialog and executes it.
    Palette(PaletteDialog),
}

impl Modal {
    /// Returns the key table of the dialog.
    pub fn context(&self) -> Context {
        match self {
            Self::Launch(_) => Context::LaunchDialog,
            Self::Kill(_) => Context::KillDialog,
            Self::Action(_) => Context::ActionDialog,
            Self::Results(_) => Context::ResultsDialog,
            Self::Checkpoints(_) => Context::CheckpointsDialog,
            Self::Targets(_) => Context::TargetsDialog,
            Self::Panels(_) => Context::PanelsDialog,
            Self::Failure(_) => Context::FailureDialog,
            Self::Help(_) => Context::Help,
            Self::Palette(_) => Context::Palette,
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
    /// Whether the answer "Yes" is selected.
    pub yes: bool,
    /// First visible line.
    pub scroll: usize,
}

/// The dialog of an action on several nodes, processes or runs, or on a checkpoint.
#[derive(Debug, Clone)]
pub struct ActionDialog {
    /// The plan that is shown and then executed.
    pub plan: Box<ActionPlan>,
    /// First visible line.
    pub scroll: usize,
}

/// The dialog with the results of an action.
#[derive(Debug, Clone)]
pub struct ResultsDialog {
    /// The job that executes the action.
    pub job: JobId,
    /// The heading, which describes the action.
    pub title: String,
    /// The results so far.
    pub results: Vec<ActionResult>,
    /// Whether the action has ended.
    pub has_ended: bool,
    /// First visible line.
    pub scroll: usize,
}

/// The dialog that lists the checkpoints of the open run.
#[derive(Debug, Clone, Default)]
pub struct CheckpointsDialog {
    /// The step of the selected checkpoint; `None` for the newest one.
    pub selected: Option<u64>,
    /// First visible checkpoint.
    pub top: usize,
}

/// The dialog that chooses the target of a launch.
#[derive(Debug, Clone, Default)]
pub struct TargetsDialog {
    /// The position of the selected target.
    pub selected: usize,
    /// First visible target.
    pub top: usize,
}

impl TargetsDialog {
    /// Makes the dialog with the target of the launch form selected.
    pub fn new(form: &LaunchForm, size: Size) -> Self {
        let selected = form.all_targets().iter().position(|target| *target == form.draft.target).unwrap_or(0);
        Self { selected, top: layout::scrolled(0, selected, Self::room(size)) }
    }

    /// Returns the number of targets that fit on the screen.
    pub fn room(size: Size) -> usize {
        usize::from(size.height.saturating_sub(5)).max(1)
    }
}

/// The dialog that chooses the panels of training runs.
#[derive(Debug, Clone, Default)]
pub struct PanelsDialog {
    /// The panels that can be chosen, in the order that the user arranged.
    pub order: Vec<Panel>,
    /// The position of the selected panel.
    pub selected: usize,
}

/// The failure dialog.
#[derive(Debug, Clone)]
pub struct FailureDialog {
    /// The error.
    pub failure: Failure,
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

/// The command palette: the list of the actions of all screens and dialogs.
#[derive(Debug, Clone)]
pub struct PaletteDialog {
    /// The screen or dialog in which the palette was opened.
    pub context: Context,
    /// The screen that is shown.
    pub screen: Context,
    /// The dialog in which the palette was opened. It is shown again when the palette closes.
    pub over: Option<Box<Modal>>,
    /// The words that an action must contain.
    pub filter: String,
    /// The selected action, among those that pass the filter.
    pub selected: usize,
}
