//! The error dialog: what failed, why, and a hint.

use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::modals::scrolls;
use crate::model::{FailureDialog, Modal, Model};
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::Line;

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: FailureDialog, action: Action) -> Vec<Effect> {
    let lines = dialog.lines(model).len();
    scrolls(model, &mut dialog.scroll, lines, action);
    if action != Action::Cancel {
        model.modal = Some(Modal::Failure(dialog));
    }
    Vec::new()
}

impl FailureDialog {
    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let width = dialog::text_width(model.size);
        let mut lines = vec![Line::default()];
        for line in text::wrap(&text::capitalized(&self.failure.why), width) {
            lines.push(Line::from(text::clean(&line)));
        }
        if !self.failure.fix.is_empty() {
            lines.push(Line::default());
            let fix = text::wrap(&format!("Hint: {}", self.failure.fix), width);
            lines.extend(fix.into_iter().map(|line| Line::styled(text::clean(&line), model.theme.accent)));
        }
        // The title is one line. If the title does not fit, the text of the dialog repeats it in full.
        if text::width(&self.failure.what) + 4 > width {
            let what = text::wrap(&text::capitalized(&self.failure.what), width);
            lines.splice(0..0, what.into_iter().map(|line| Line::styled(text::clean(&line), Style::new())));
        }
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let title = text::clean(&text::capitalized(&self.failure.what));
        let footer = hint(model, &model.keys.name(Context::FailureDialog, Action::Cancel), "close");
        dialog::draw(model, buf, &title, model.theme.bad, self.lines(model), Line::from(footer), self.scroll);
    }
}
