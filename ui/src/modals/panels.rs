//! The dialog that picks the panels of training runs, their order and their layout. Changes apply to the Run screen
//! at once.

use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::layout::{self, Panel};
use crate::model::{Modal, Model, PanelsDialog, RunScreen};
use crate::panel_set::{MOST_COLUMNS, find, name};
use crate::screens::{run, run_panels};
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: PanelsDialog, action: Action) -> Vec<Effect> {
    let last = dialog.order.len().saturating_sub(1);
    if let Some(to) = layout::moved(action, dialog.selected, room(model), last) {
        dialog.selected = to;
    }
    let at = dialog.selected.min(last);
    let selected = dialog.order.get(at).copied();
    match (action, selected) {
        (Action::Cancel, _) => return Vec::new(),
        (Action::Toggle, Some(panel)) => {
            let mut picked = run_panels::picked(model);
            match picked.iter().position(|known| *known == panel) {
                Some(at) => drop(picked.remove(at)),
                None => picked.push(panel),
            }
            pick(model, &dialog.order, &picked);
        }
        (Action::MoveEarlier, Some(_)) if at > 0 => {
            let picked = run_panels::picked(model);
            dialog.order.swap(at, at - 1);
            dialog.selected = at - 1;
            pick(model, &dialog.order, &picked);
        }
        (Action::MoveLater, Some(_)) if at < last => {
            let picked = run_panels::picked(model);
            dialog.order.swap(at, at + 1);
            dialog.selected = at + 1;
            pick(model, &dialog.order, &picked);
        }
        (Action::Columns, _) => {
            model.panels.columns = match model.panels.columns {
                0 | 1 => 2,
                columns if columns < MOST_COLUMNS => columns + 1,
                _ => 0,
            }
        }
        (Action::LogY, Some(panel)) if panel.is_chart() => {
            if let Some(run) = &model.screens.run {
                model.panels.toggle_log(panel, &run.series);
            }
        }
        (Action::Defaults, _) => {
            (model.panels.picked, model.panels.columns) = (None, 0);
            dialog.order = run_panels::order(model);
        }
        _ => {}
    }
    keep_focus(model);
    model.modal = Some(Modal::Panels(dialog));
    Vec::new()
}

/// Saves which panels are picked and their order. Picked panels that this run lacks, but other runs may have, stay
/// picked.
fn pick(model: &mut Model, order: &[Panel], picked: &[Panel]) {
    let Some(run) = &model.screens.run else { return };
    let names = order.iter().filter(|panel| picked.contains(panel)).map(|panel| name(*panel, &run.series));
    let before = model.panels.picked.iter().flatten();
    let of_others = before.filter(|name| find(name, &run.series).is_none()).cloned();
    model.panels.picked = Some(names.chain(of_others).collect());
}

/// Moves the focus to the large chart if the focused panel is now hidden.
fn keep_focus(model: &mut Model) {
    let Some(content) = model.screens.run.as_ref().map(|run| run::content(model, run)) else { return };
    if let Some(run) = model.screens.run.as_mut().filter(|run| !run.enlarged && !content.panels().contains(&run.focus))
    {
        run.focus = content.main();
    }
}

/// Returns the number of panels that fit on the screen.
fn room(model: &Model) -> usize {
    usize::from(model.size.height.saturating_sub(7)).max(1)
}

/// Returns a description of the layout.
fn layout_words(model: &Model) -> String {
    match model.panels.columns {
        0 | 1 => "default: loss and lanes at the left, other panels at the right".to_owned(),
        columns => format!("a grid of {columns} columns"),
    }
}

impl PanelsDialog {
    fn lines(&self, model: &Model, run: &RunScreen) -> Vec<Line<'static>> {
        let theme = &model.theme;
        let width = dialog::text_width(model.size);
        let picked = run_panels::picked(model);
        let line = |(at, panel): (usize, Panel)| {
            let is_selected = at == self.selected;
            let is_picked = picked.contains(&panel);
            let pointer = if is_selected { model.symbols.pointer } else { " " };
            let mark = if is_picked { "[x]" } else { "[ ]" };
            let style = if is_selected { theme.strong } else { Style::new() };
            let log = if model.panels.is_log(panel, &run.series) { "  log y" } else { "" };
            let title = text::fit(&run_panels::title(run, panel), width.saturating_sub(14), model.symbols.ellipsis);
            Line::from(vec![
                Span::styled(format!("{pointer} "), theme.accent),
                Span::styled(format!("{mark} "), theme.faint),
                Span::styled(title, style),
                Span::styled(log, theme.faint),
            ])
        };
        let top = layout::scrolled(0, self.selected, room(model));
        let mut lines = vec![Line::from(vec![
            Span::styled("layout: ", theme.faint),
            Span::styled(layout_words(model), theme.strong),
        ])];
        lines.push(Line::default());
        lines.extend(self.order.iter().copied().enumerate().skip(top).take(room(model)).map(line));
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let Some(run) = &model.screens.run else { return };
        let key = |action| model.keys.name(Context::PanelsDialog, action);
        let mut footer = Vec::new();
        for (keys, text) in [
            (key(Action::Toggle), "show or hide"),
            (format!("{}/{}", key(Action::MoveEarlier), key(Action::MoveLater)), "move"),
            (key(Action::Columns), "layout"),
            (key(Action::LogY), "log y"),
            (key(Action::Defaults), "usual"),
            (key(Action::Cancel), "close"),
        ] {
            footer.extend(hint(model, &keys, text));
            footer.push(Span::raw("  "));
        }
        footer.pop();
        dialog::draw(
            model,
            buf,
            "Panels of training runs",
            model.theme.accent,
            self.lines(model, run),
            Line::from(footer),
            0,
        );
    }
}
