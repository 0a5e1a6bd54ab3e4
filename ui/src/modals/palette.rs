//! The list of the actions of a screen with their keys, filtered as the user types. Enter executes the selected one.

use crate::bindings::{Action, Binding, Context};
use crate::effect::Effect;
use crate::key_map::KeyMap;
use crate::layout;
use crate::model::{Modal, Model, PaletteDialog};
use crate::msg::Key;
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// The longest filter.
const LONGEST: usize = 60;

/// Opens the list for a screen.
pub fn open(model: &mut Model, context: Context) {
    model.modal = Some(Modal::Palette(PaletteDialog { context, filter: String::new(), selected: 0 }));
}

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: PaletteDialog, action: Action) -> Vec<Effect> {
    let last = dialog.listed().len().saturating_sub(1);
    if let Some(to) = layout::moved(action, dialog.selected, visible(model), last) {
        dialog.selected = to;
    }
    match action {
        Action::Cancel => return Vec::new(),
        Action::DeleteBefore => {
            dialog.filter.pop();
            dialog.selected = 0;
        }
        Action::DeleteToStart => {
            dialog.filter.clear();
            dialog.selected = 0;
        }
        _ => {}
    }
    model.modal = Some(Modal::Palette(dialog));
    Vec::new()
}

/// Returns the number of actions that are visible at a time.
fn visible(model: &Model) -> usize {
    usize::from(model.size.height.saturating_sub(6)).clamp(1, 18)
}

impl PaletteDialog {
    /// Adds a character to the filter.
    pub fn typed(&mut self, c: char) {
        if self.filter.chars().count() < LONGEST && !c.is_control() {
            self.filter.push(c);
            self.selected = 0;
        }
    }

    /// Returns the first key of the selected action.
    pub fn chosen(&self, keys: &KeyMap) -> Option<Key> {
        self.listed().get(self.selected).and_then(|binding| keys.keys(self.context, binding).first()).copied()
    }

    /// Returns the actions that contain every word of the filter, in the order of the help.
    pub fn listed(&self) -> Vec<&'static Binding> {
        let filter = self.filter.to_lowercase();
        let passes = |binding: &&Binding| {
            let text = format!("{} {}", binding.label, binding.help).to_lowercase();
            binding.action != Action::Palette && filter.split_whitespace().all(|word| text.contains(word))
        };
        self.context.all_bindings().filter(passes).collect()
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        const KEYS: usize = 10;
        let theme = &model.theme;
        let width = dialog::text_width(model.size);
        let listed = self.listed();
        let visible = visible(model);
        let first = layout::scrolled(0, self.selected, visible);
        let cursor = if model.symbols.braille { "▏" } else { "_" };
        let filter = text::fit_end(&text::clean(&self.filter), width.saturating_sub(3), model.symbols.ellipsis);
        let mut lines = vec![Line::from(vec![
            Span::styled(": ", theme.accent),
            Span::raw(filter),
            Span::styled(cursor, theme.accent),
        ])];
        for (at, binding) in listed.iter().enumerate().skip(first).take(visible) {
            let is_chosen = at == self.selected;
            let pointer = if is_chosen { model.symbols.pointer } else { " " };
            let key = model.keys.keys(self.context, binding).first().map_or_else(String::new, |key| key.name());
            let help = text::fit(binding.help, width.saturating_sub(KEYS + 3), model.symbols.ellipsis);
            lines.push(Line::from(vec![
                Span::styled(format!("{pointer} {key:<KEYS$} "), theme.accent),
                Span::styled(help, if is_chosen { theme.strong } else { Style::new() }),
            ]));
        }
        if listed.is_empty() {
            lines.push(Line::styled("No action contains these words", theme.faint));
        }
        let mut footer = hint(model, &model.keys.name(Context::Palette, Action::Accept), "execute");
        footer.push(Span::raw("   "));
        footer.extend(hint(model, &model.keys.name(Context::Palette, Action::Cancel), "close"));
        let title = format!("Actions of {}", self.context.title());
        dialog::draw(model, buf, &title, theme.accent, lines, Line::from(footer), 0);
    }
}
