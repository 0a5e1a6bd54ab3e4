//! The command palette: lists the actions of all screens with their keys, and filters them as the user types. Enter
//! executes the selected action; if the action belongs to another screen, the console opens that screen first.

use crate::bindings::{Action, Binding, Context};
use crate::effect::Effect;
use crate::layout;
use crate::model::{Modal, Model, PaletteDialog};
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Maximum length of the filter, in characters.
const LONGEST: usize = 60;

/// An action in the palette.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// The screen to which the action belongs.
    pub context: Context,
    /// The row of the action in the key table of that screen.
    pub binding: &'static Binding,
}

/// Opens the palette on the screen of `context`.
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

/// Returns the number of actions that fit on the screen.
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

    /// Returns the selected action.
    pub fn chosen(&self) -> Option<Listed> {
        self.listed().get(self.selected).copied()
    }

    /// Returns the actions that contain every word of the filter: the actions of the current screen in the order of
    /// the help, then those that only other screens have.
    pub fn listed(&self) -> Vec<Listed> {
        let here = self.context.all_bindings().map(|binding| Listed { context: self.context, binding });
        let is_here = |binding: &Binding| self.context.all_bindings().any(|own| own.action == binding.action);
        let others = Context::ALL.into_iter().filter(|context| context.is_screen() && *context != self.context);
        let elsewhere =
            others.flat_map(|context| context.bindings().iter().map(move |binding| Listed { context, binding }));
        let elsewhere = elsewhere.filter(|listed| !listed.binding.action.is_motion() && !is_here(listed.binding));
        let filter = self.filter.to_lowercase();
        let passes = |listed: &Listed| {
            let Binding { action, label, help, .. } = listed.binding;
            let text = format!("{label} {help} {}", self.place(listed)).to_lowercase();
            *action != Action::Palette && filter.split_whitespace().all(|word| text.contains(word))
        };
        here.chain(elsewhere).filter(passes).collect()
    }

    /// Returns the name of the screen on which an action is executed, as a phrase; empty for the current screen.
    fn place(&self, listed: &Listed) -> String {
        match listed.context {
            context if context == self.context => String::new(),
            context => format!("on the {} screen", context.title()),
        }
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
        for (at, listed) in listed.iter().enumerate().skip(first).take(visible) {
            let Listed { context, binding } = *listed;
            let is_chosen = at == self.selected;
            let pointer = if is_chosen { model.symbols.pointer } else { " " };
            let key = model.keys.keys(context, binding).first().map_or_else(String::new, |key| key.name());
            let room = width.saturating_sub(KEYS + 3);
            // The name of the other screen is more important than the end of a long help text.
            let place = text::fit(&self.place(listed), room / 2, model.symbols.ellipsis);
            let gap = if place.is_empty() { 0 } else { 2 };
            let help = text::fit(binding.help, room.saturating_sub(text::width(&place) + gap), model.symbols.ellipsis);
            lines.push(Line::from(vec![
                Span::styled(format!("{pointer} {key:<KEYS$} "), theme.accent),
                Span::styled(help, if is_chosen { theme.strong } else { Style::new() }),
                Span::styled(format!("{:gap$}{place}", ""), theme.faint),
            ]));
        }
        if listed.is_empty() {
            lines.push(Line::styled("No action contains these words", theme.faint));
        }
        let mut footer = hint(model, &model.keys.name(Context::Palette, Action::Accept), "execute");
        footer.push(Span::raw("   "));
        footer.extend(hint(model, &model.keys.name(Context::Palette, Action::Cancel), "close"));
        dialog::draw(model, buf, "Actions", theme.accent, lines, Line::from(footer), 0);
    }
}
