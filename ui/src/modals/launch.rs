//! The launch dialog: shows the plan that runs when the user confirms it.

use crate::bindings::{Action, Context};
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::modals::scrolls;
use crate::model::{LaunchDialog, Modal, Model};
use crate::msg::RunRow;
use crate::run_state::{StateKind, short_id};
use crate::text;
use crate::widgets::{dialog, hint};
use plan::LaunchPlan;
use ratatui_core::buffer::Buffer;
use ratatui_core::text::{Line, Span};
use recipe::Task;

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: LaunchDialog, action: Action) -> Vec<Effect> {
    let lines = dialog.lines(model).len();
    scrolls(model, &mut dialog.scroll, lines, action);
    match action {
        Action::Accept => {
            let run = dialog.plan.run.id.clone();
            let job = model.jobs.start(Intent::Launch { run, fresh: !dialog.resumes });
            return vec![Effect::Job { job, request: Request::Launch { plan: dialog.plan } }];
        }
        Action::Cancel => model.notify(if dialog.resumes { "Resume cancelled" } else { "Launch cancelled" }),
        _ => model.modal = Some(Modal::Launch(dialog)),
    }
    Vec::new()
}

/// Returns what a plan resumes: `demo-2s-k7f2 from step 80`. Runs that do not train resume their remaining work.
pub fn in_words(plan: &LaunchPlan) -> String {
    let name = short_id(&plan.run.id);
    match plan.run.task() {
        Task::Train => format!("{name} from step {}", plan.attempt.start_step),
        Task::Encode | Task::Sample => name.to_owned(),
    }
}

impl LaunchDialog {
    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let width = dialog::text_width(model.size);
        let names = self.plan.summary.iter().map(|(name, _)| text::width(name)).max().unwrap_or(0).min(width / 3);
        let mut lines = vec![Line::default()];
        let warning = model.symbols.states[StateKind::Stalled as usize];
        // Slurm does not let jobs share a node.
        let uses_machine = self.plan.job_script.is_none() && !self.plan.only_watches();
        let shares = |row: &&RunRow| row.run != self.plan.run.id && row.job.is_none() && uses_machine;
        let others = model.rows().iter().filter(shares);
        let busy = others.filter(|row| StateKind::of(&row.state).is_active()).map(|row| {
            format!(
                "{} is still {}; both runs would share this machine",
                short_id(&row.run),
                StateKind::of(&row.state).word()
            )
        });
        let warnings: Vec<String> = self.plan.warnings.iter().cloned().chain(busy).collect();
        for text in &warnings {
            for (i, line) in text::wrap(text, width.saturating_sub(2)).into_iter().enumerate() {
                let first = if i == 0 { warning } else { " " };
                lines.push(Line::styled(format!("{first} {line}"), model.theme.warn));
            }
        }
        if !warnings.is_empty() {
            lines.push(Line::default());
        }
        for (name, value) in &self.plan.summary {
            let name = text::fit(name, names, model.symbols.ellipsis);
            let pad = " ".repeat(names.saturating_sub(text::width(&name)));
            let values = text::wrap(value, width.saturating_sub(names + 2));
            for (i, value) in values.into_iter().enumerate() {
                let name = if i == 0 { format!("{name}{pad}  ") } else { " ".repeat(names + 2) };
                lines.push(Line::from(vec![Span::styled(name, model.theme.faint), Span::raw(value)]));
            }
        }
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let (title, verb) = if self.resumes {
            (format!("Resume {}?", in_words(&self.plan)), "resume")
        } else {
            let what = self.plan.run.stage.as_ref().unwrap_or(&self.plan.run.name);
            (format!("Start {what}?"), "start")
        };
        let mut footer = hint(model, &model.keys.name(Context::LaunchDialog, Action::Accept), verb);
        footer.push(Span::raw("   "));
        footer.extend(hint(model, &model.keys.name(Context::LaunchDialog, Action::Cancel), "cancel"));
        dialog::draw(model, buf, &title, model.theme.accent, self.lines(model), Line::from(footer), self.scroll);
    }
}
