//! The dialogs: each file handles the keys of one dialog and draws it. `model::Modal` holds their state.

pub mod action;
pub mod checkpoints;
pub mod failure;
pub mod help;
pub mod kill;
pub mod launch;
pub mod palette;
pub mod panels;
pub mod results;
pub mod targets;

use crate::bindings::Action;
use crate::layout;
use crate::model::{Modal, Model};
use crate::widgets::dialog;
use ratatui_core::buffer::Buffer;

/// Draws a dialog.
pub fn view(modal: &Modal, model: &Model, buf: &mut Buffer) {
    match modal {
        Modal::Launch(dialog) => dialog.view(model, buf),
        Modal::Kill(dialog) => dialog.view(model, buf),
        Modal::Action(dialog) => dialog.view(model, buf),
        Modal::Results(dialog) => dialog.view(model, buf),
        Modal::Checkpoints(dialog) => dialog.view(model, buf),
        Modal::Targets(dialog) => dialog.view(model, buf),
        Modal::Panels(dialog) => dialog.view(model, buf),
        Modal::Failure(dialog) => dialog.view(model, buf),
        Modal::Help(dialog) => dialog.view(model, buf),
        Modal::Palette(dialog) => dialog.view(model, buf),
    }
}

/// Scrolls a dialog of `lines` lines. Returns `false` if `action` does not scroll.
fn scrolls(model: &Model, scroll: &mut usize, lines: usize, action: Action) -> bool {
    let last = dialog::max_scroll(model.size, lines);
    let page = usize::from(model.size.height.saturating_sub(6)).max(1);
    let Some(to) = layout::moved(action, (*scroll).min(last), page, last) else { return false };
    *scroll = to;
    true
}
