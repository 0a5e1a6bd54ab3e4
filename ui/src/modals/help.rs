//! The help dialog, built from the key tables.

use crate::bindings::{Action, Binding, Context};
use crate::effect::Effect;
use crate::modals::scrolls;
use crate::model::{HelpDialog, Modal, Model};
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::text::{Line, Span};

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: HelpDialog, action: Action) -> Vec<Effect> {
    let lines = dialog.lines(model).len();
    scrolls(model, &mut dialog.scroll, lines, action);
    if action != Action::Cancel {
        model.modal = Some(Modal::Help(dialog));
    }
    Vec::new()
}

impl HelpDialog {
    /// Returns the help text: the keys of the current screen, the keys that work on all screens, then those of the
    /// other screens.
    pub fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let width = dialog::text_width(model.size);
        let mut sections = vec![
            (self.context, self.context.title(), self.context.bindings()),
            (self.context, "All screens", self.context.global()),
        ];
        let others = Context::ALL.into_iter().filter(|context| *context != self.context);
        sections.extend(others.map(|context| (context, context.title(), context.bindings())));
        let mut lines = Vec::new();
        for (context, title, bindings) in sections {
            lines.push(Line::default());
            lines.push(Line::styled(title, model.theme.strong));
            lines.extend(bindings.iter().flat_map(|binding| row(model, context, binding, width)));
        }
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let footer = hint(model, &model.keys.name(Context::Help, Action::Cancel), "close");
        dialog::draw(model, buf, "Keys", model.theme.accent, self.lines(model), Line::from(footer), self.scroll);
    }
}

fn row(model: &Model, context: Context, binding: &Binding, width: usize) -> Vec<Line<'static>> {
    const KEYS: usize = 16;
    let names: Vec<String> = model.keys.keys(context, binding).iter().map(|key| key.name()).collect();
    let keys = text::fit(&names.join(" "), KEYS, model.symbols.ellipsis);
    let pad = " ".repeat(KEYS - text::width(&keys) + 1);
    let help = text::wrap(binding.help, width.saturating_sub(KEYS + 1));
    let first = std::iter::once(Span::styled(format!("{keys}{pad}"), model.theme.accent));
    let rest = std::iter::repeat_with(|| Span::raw(" ".repeat(KEYS + 1)));
    first.chain(rest).zip(help).map(|(left, text)| Line::from(vec![left, Span::raw(text)])).collect()
}
