//! The dialog that picks the panels of training runs. The screen behind it changes at once.

use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::layout;
use crate::model::{Modal, Model, PanelsDialog};
use crate::panel_set::{PICKABLE, PanelSet, title};
use crate::screens::run;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::Task;

/// Opens the dialog.
pub fn open(model: &mut Model) {
    let is_training = model.run.as_ref().is_some_and(|run| run::content(model, run).task == Task::Train);
    if is_training {
        model.modal = Some(Modal::Panels(PanelsDialog { selected: 0 }));
    } else {
        model.warn("The panels of training runs can be picked; this run has all of its panels");
    }
}

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: PanelsDialog, action: Action) -> Vec<Effect> {
    let last = PICKABLE.len() - 1;
    if let Some(to) = layout::moved(action, dialog.selected, room(model), last) {
        dialog.selected = to;
    }
    match action {
        Action::Cancel => return Vec::new(),
        Action::Toggle => {
            let mut picked = shown(model);
            picked.toggle(PICKABLE[dialog.selected.min(last)]);
            model.picked_panels = Some(picked);
        }
        Action::Defaults => model.picked_panels = None,
        _ => {}
    }
    keep_focus(model);
    model.modal = Some(Modal::Panels(dialog));
    Vec::new()
}

/// Returns the picked panels; at first all of them. Those without values are hidden until they have some.
fn shown(model: &Model) -> PanelSet {
    model.picked_panels.unwrap_or_else(|| PanelSet::of(PICKABLE))
}

/// Focuses the large chart if the focused panel is hidden now.
fn keep_focus(model: &mut Model) {
    let Some(content) = model.run.as_ref().map(|run| run::content(model, run)) else { return };
    if let Some(run) = model.run.as_mut().filter(|run| !content.panels().contains(&run.focus)) {
        (run.focus, run.enlarged) = (content.main(), false);
    }
}

/// Returns the number of panels that fit.
fn room(model: &Model) -> usize {
    usize::from(model.size.height.saturating_sub(5)).max(1)
}

impl PanelsDialog {
    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let shown = shown(model);
        let line = |(at, panel): (usize, &layout::Panel)| {
            let is_selected = at == self.selected;
            let pointer = if is_selected { model.symbols.pointer } else { " " };
            let mark = if shown.contains(*panel) { "[x]" } else { "[ ]" };
            let style = if is_selected { model.theme.strong } else { Style::new() };
            Line::from(vec![
                Span::styled(format!("{pointer} "), model.theme.accent),
                Span::styled(format!("{mark} "), model.theme.faint),
                Span::styled(title(*panel), style),
            ])
        };
        let top = layout::scrolled(0, self.selected, room(model));
        PICKABLE.iter().enumerate().skip(top).take(room(model)).map(line).collect()
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let key = |action| model.keys.name(Context::PanelsDialog, action);
        let mut footer = hint(model, &key(Action::Toggle), "show or hide");
        for (action, does) in [(Action::Defaults, "usual panels"), (Action::Cancel, "close")] {
            footer.push(Span::raw("   "));
            footer.extend(hint(model, &key(action), does));
        }
        dialog::draw(
            model,
            buf,
            "Panels of training runs",
            model.theme.accent,
            self.lines(model),
            Line::from(footer),
            0,
        );
    }
}
