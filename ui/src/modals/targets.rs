//! The dialog that chooses where a launch runs: on this machine, on the nodes of a hostfile, or in a Slurm job.

use crate::bindings::{Action, Context};
use crate::draft::LaunchTarget;
use crate::effect::Effect;
use crate::layout;
use crate::model::{Modal, Model, TargetsDialog};
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: TargetsDialog, action: Action) -> Vec<Effect> {
    let rows = TargetsDialog::room(model.size);
    let Some(form) = &mut model.screens.form else { return Vec::new() };
    let targets = form.all_targets();
    let last = targets.len().saturating_sub(1);
    if let Some(to) = layout::moved(action, dialog.selected.min(last), rows, last) {
        dialog.selected = to;
        dialog.top = layout::scrolled(dialog.top, to, rows);
    }
    match (action, targets.get(dialog.selected)) {
        (Action::Cancel, _) => {}
        (Action::Accept, Some(target)) => {
            if !target.is_alike(&form.draft.target) {
                form.node = 0;
            }
            form.change(|draft| draft.target = target.clone());
            model.keep_nodes_of_form();
        }
        _ => model.modal = Some(Modal::Targets(dialog)),
    }
    Vec::new()
}

impl TargetsDialog {
    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let Some(form) = &model.screens.form else { return Vec::new() };
        let (targets, width) = (form.all_targets(), dialog::text_width(model.size));
        let rows = TargetsDialog::room(model.size);
        let top = self.top.min(targets.len().saturating_sub(rows));
        let line = |(i, target): (usize, &LaunchTarget)| {
            let is_selected = i == self.selected;
            let (kind, path) = match target {
                LaunchTarget::Local(_) => ("this machine", ""),
                LaunchTarget::Hostfile { path, .. } => ("hostfile", path.as_str()),
                LaunchTarget::Slurm(path) => ("Slurm", path.as_str()),
            };
            let pointer = if is_selected { model.symbols.pointer } else { " " };
            let style = if is_selected { model.theme.strong } else { Style::new() };
            let path = text::fit_end(path, width.saturating_sub(16), model.symbols.ellipsis);
            Line::from(vec![
                Span::styled(format!("{pointer} "), model.theme.accent),
                Span::styled(format!("{kind:<14}"), model.theme.faint),
                Span::styled(path, style),
            ])
        };
        let shown = targets.iter().enumerate().skip(top).take(rows).map(line);
        std::iter::once(Line::default()).chain(shown).collect()
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let key = |action| model.keys.name(Context::TargetsDialog, action);
        let mut footer = hint(model, &key(Action::Accept), "choose");
        footer.push(Span::raw("   "));
        footer.extend(hint(model, &key(Action::Cancel), "cancel"));
        dialog::draw(model, buf, "Where to run", model.theme.accent, self.lines(model), Line::from(footer), 0);
    }
}
