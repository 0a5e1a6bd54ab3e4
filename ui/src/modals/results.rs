//! The dialog that shows the result of an action for each node or run, while the action is in progress and after it
//! ends.

use crate::action_plan::{ActionEnd, ActionResult};
use crate::bindings::{Action, Context};
use crate::effect::Effect;
use crate::modals::scrolls;
use crate::model::{Modal, Model, ResultsDialog};
use crate::msg::JobId;
use crate::run_state::StateKind;
use crate::text;
use crate::widgets::{dialog, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: ResultsDialog, action: Action) -> Vec<Effect> {
    let lines = dialog.lines(model).len();
    scrolls(model, &mut dialog.scroll, lines, action);
    if action != Action::Cancel {
        model.modal = Some(Modal::Results(dialog));
    }
    Vec::new()
}

/// Updates the results in the dialog of this job, if that dialog is open.
pub fn progressed(model: &mut Model, job: JobId, results: Vec<ActionResult>) {
    if let Some(Modal::Results(dialog)) = &mut model.modal
        && dialog.job == job
    {
        dialog.results = results;
    }
}

/// Shows the final results. If the user has closed the dialog, the dialog opens again only when an item is not done
/// and no other dialog is open; otherwise a notice shows the results.
pub fn ended(model: &mut Model, job: JobId, title: String, results: Vec<ActionResult>) {
    let is_done = results.iter().all(|result| result.end == ActionEnd::Done);
    let is_open = matches!(&model.modal, Some(Modal::Results(dialog)) if dialog.job == job);
    match &results[..] {
        [only] if is_done && !is_open => model.notify(format!("{}: {}", only.subject, only.text)),
        _ if is_done && !is_open => model.notify(format!("{}: done", text::capitalized(&title))),
        _ if is_open || model.modal.is_none() => {
            model.modal = Some(Modal::Results(ResultsDialog { job, title, results, has_ended: true, scroll: 0 }));
        }
        _ => model.warn(format!("{}: {}", text::capitalized(&title), not_done(&results))),
    }
}

/// Returns the nodes or runs for which the action is not done, each with the reason.
fn not_done(results: &[ActionResult]) -> String {
    let open = results.iter().filter(|result| result.end != ActionEnd::Done);
    open.map(|result| format!("{}: {}", result.subject, result.text)).collect::<Vec<_>>().join("; ")
}

impl ResultsDialog {
    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let width = dialog::text_width(model.size);
        let names = self.results.iter().map(|result| text::width(&result.subject)).max().unwrap_or(0).min(width / 2);
        let mut lines = vec![Line::default()];
        if self.results.is_empty() {
            lines.push(Line::styled(format!("Starting{}", model.symbols.ellipsis), model.theme.faint));
        }
        for result in &self.results {
            let (glyph, style) = sign(model, result.end);
            let name = text::fit(&result.subject, names, model.symbols.ellipsis);
            let pad = " ".repeat(names.saturating_sub(text::width(&name)));
            let room = width.saturating_sub(names + 4).max(1);
            for (i, line) in text::wrap(&text::clean(&result.text), room).into_iter().enumerate() {
                let head = match i {
                    0 => vec![Span::styled(format!("{glyph} "), style), Span::raw(format!("{name}{pad}  "))],
                    _ => vec![Span::raw(" ".repeat(names + 4))],
                };
                let line = Span::styled(line, if result.end == ActionEnd::Done { Style::new() } else { style });
                lines.push(Line::from(head.into_iter().chain([line]).collect::<Vec<_>>()));
            }
        }
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let worst = self.results.iter().map(|result| result.end).max().filter(|_| self.has_ended);
        let (what, edge) = match worst {
            None => ("in progress", model.theme.accent),
            Some(ActionEnd::Done) => ("done", model.theme.good),
            Some(ActionEnd::Pending | ActionEnd::Unknown) => ("not verified everywhere", model.theme.warn),
            Some(ActionEnd::Failed) => ("failed on some", model.theme.bad),
        };
        let title = format!("{}: {what}", text::capitalized(&self.title));
        let does = if self.has_ended { "close" } else { "close; the work continues" };
        let footer = hint(model, &model.keys.name(Context::ResultsDialog, Action::Cancel), does);
        dialog::draw(model, buf, &title, edge, self.lines(model), Line::from(footer), self.scroll);
    }
}

fn sign(model: &Model, end: ActionEnd) -> (&'static str, Style) {
    let theme = &model.theme;
    let (kind, style) = match end {
        ActionEnd::Done => (StateKind::Finished, theme.good),
        ActionEnd::Pending => (StateKind::Starting, theme.faint),
        ActionEnd::Unknown => (StateKind::Unknown, theme.warn),
        ActionEnd::Failed => (StateKind::Failed, theme.bad),
    };
    (model.symbols.states[kind as usize], style)
}
