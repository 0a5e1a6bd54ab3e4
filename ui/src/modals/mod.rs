//! Dialogs in front of a screen.

pub mod failure;
pub mod help;
pub mod kill;
pub mod launch;

use crate::keymap::{Action, Context};
use crate::model::Model;
use crate::widgets::dialog;
use ratatui_core::buffer::Buffer;

/// The dialog on top.
#[derive(Debug, Clone)]
pub enum Modal {
    /// What would be started.
    Launch(launch::LaunchDialog),
    /// What would be killed.
    Kill(kill::KillDialog),
    /// What went wrong.
    Failure(failure::FailureDialog),
    /// The keys.
    Help(help::HelpDialog),
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

    /// Draws it.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        match self {
            Self::Launch(dialog) => dialog.view(model, buf),
            Self::Kill(dialog) => dialog.view(model, buf),
            Self::Failure(dialog) => dialog.view(model, buf),
            Self::Help(dialog) => dialog.view(model, buf),
        }
    }
}

/// Moves a dialog's text; returns false for keys that do not move.
fn scrolls(model: &Model, scroll: &mut usize, lines: usize, action: Action) -> bool {
    let last = dialog::max_scroll(model.size, lines);
    let page = usize::from(model.size.height.saturating_sub(6)).max(1);
    let at = (*scroll).min(last);
    *scroll = match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => at + 1,
        Action::PageUp => at.saturating_sub(page),
        Action::PageDown => at + page,
        Action::Top => 0,
        Action::Bottom => last,
        _ => return false,
    }
    .min(last);
    true
}
