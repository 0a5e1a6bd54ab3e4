//! The command palette: lists the actions of all screens and dialogs with their keys, and filters them as the user
//! types. Enter executes the selected action; if the action belongs to another screen, the console opens that screen
//! first.

use crate::bindings::{Action, Binding, Context};
use crate::conditions;
use crate::effect::Effect;
use crate::layout;
use crate::model::{Modal, Model, PaletteDialog, one_line};
use crate::places;
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use std::collections::HashSet;

/// Maximum length of the filter, in characters.
const LONGEST: usize = 60;

/// An action in the palette.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// The screen or dialog to which the action belongs.
    pub context: Context,
    /// The row of the action in the key table of that screen or dialog.
    pub binding: &'static Binding,
}

/// Opens the palette on the screen or dialog of `context`.
pub fn open(model: &mut Model, context: Context) {
    let (screen, over) = (model.screen.context(), model.modal.take().map(Box::new));
    model.modal = Some(Modal::Palette(PaletteDialog { context, screen, over, filter: String::new(), selected: 0 }));
}

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: PaletteDialog, action: Action) -> Vec<Effect> {
    let last = dialog.listed().len().saturating_sub(1);
    if let Some(to) = layout::moved(action, dialog.selected, visible(model), last) {
        dialog.selected = to;
    }
    match action {
        Action::Cancel => {
            model.modal = dialog.over.map(|over| *over);
            return Vec::new();
        }
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

/// Returns whether the palette only opens the place of an action, and the user has to press the key there.
pub fn waits_for_its_key(context: Context, action: Action) -> bool {
    !context.is_screen() || action.changes_something()
}

/// Returns the number of actions that fit on the screen.
fn visible(model: &Model) -> usize {
    usize::from(model.size.height.saturating_sub(6)).clamp(1, 18)
}

impl PaletteDialog {
    /// Adds typed or pasted text to the filter.
    pub fn insert(&mut self, text: &str) {
        let room = LONGEST.saturating_sub(self.filter.chars().count());
        self.filter.extend(one_line(text).chars().take(room));
        self.selected = 0;
    }

    /// Returns the selected action.
    pub fn chosen(&self) -> Option<Listed> {
        self.listed().get(self.selected).copied()
    }

    /// Returns the actions that contain every word of the filter: the actions of the current dialog and screen in the
    /// order of the help, then those of other screens and dialogs. An action that several places have is listed once.
    pub fn listed(&self) -> Vec<Listed> {
        let of = |context: Context| move |binding: &'static Binding| Listed { context, binding };
        let here = [self.context, self.screen].into_iter().flat_map(|at| at.all_bindings().map(of(at)));
        let elsewhere = Context::ALL.into_iter().flat_map(|at| at.bindings().iter().map(of(at)));
        let is_useful = |listed: &Listed| listed.context == self.context || !listed.binding.action.is_motion();
        let filter = self.filter.to_lowercase();
        let passes = |listed: &Listed| {
            let Binding { action, label, help, .. } = listed.binding;
            let text = format!("{label} {help} {}", self.place(listed)).to_lowercase();
            *action != Action::Palette && filter.split_whitespace().all(|word| text.contains(word))
        };
        let mut known = HashSet::new();
        let is_new = |listed: &Listed| known.insert((listed.binding.action, listed.binding.help));
        here.chain(elsewhere).filter(is_useful).filter(passes).filter(is_new).collect()
    }

    /// Returns where an action is executed, as a phrase; empty for the screen or dialog in which the palette was opened.
    fn place(&self, listed: &Listed) -> String {
        match listed.context {
            context if context == self.context => String::new(),
            context if context.is_screen() => format!("on the {} screen", context.title()),
            Context::Input => "in a text input".to_owned(),
            Context::Help => "in the help".to_owned(),
            Context::Palette => "in the list of actions".to_owned(),
            context => format!("in the {}", context.title()),
        }
    }

    /// Returns whether Enter executes an action now. Otherwise, Enter opens the place of the action, or shows why the
    /// action is not possible.
    fn is_possible(&self, model: &Model, listed: &Listed) -> bool {
        let Listed { context, binding } = *listed;
        match context {
            context if context == self.screen => conditions::is_possible(model, binding),
            context if context == self.context => true,
            context => !waits_for_its_key(context, binding.action) && places::can_open(model, context),
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
            let is_possible = self.is_possible(model, listed);
            let pointer = if is_chosen { model.symbols.pointer } else { " " };
            let key = model.keys.keys(context, binding).first().map_or_else(String::new, |key| key.name());
            let room = width.saturating_sub(KEYS + 3);
            let remark = match self.place(listed) {
                place if place.is_empty() && !is_possible => "not possible now".to_owned(),
                place => place,
            };
            // The place is more important than the end of a long help text.
            let remark = text::fit(&remark, room / 2, model.symbols.ellipsis);
            let gap = if remark.is_empty() { 0 } else { 2 };
            let help = text::fit(binding.help, room.saturating_sub(text::width(&remark) + gap), model.symbols.ellipsis);
            let (key_style, help_style) = match (is_chosen, is_possible) {
                (true, _) => (theme.accent, theme.strong),
                (false, true) => (theme.accent, Style::new()),
                (false, false) => (theme.faint, theme.faint),
            };
            lines.push(Line::from(vec![
                Span::styled(format!("{pointer} "), theme.accent),
                Span::styled(format!("{key:<KEYS$} "), key_style),
                Span::styled(help, help_style),
                Span::styled(format!("{:gap$}{remark}", ""), theme.faint),
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
