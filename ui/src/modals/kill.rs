//! The dialog that confirms the kill of one run. It lists the processes to signal; "No" is the default.

use crate::bindings::{Action, Context};
use crate::effect::{Confirmed, Effect, Request};
use crate::jobs::Intent;
use crate::modals::scrolls;
use crate::model::{KillDialog, Modal, Model};
use crate::run_state::short_id;
use crate::text;
use crate::widgets::dialog;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Modifier;
use ratatui_core::text::{Line, Span};
use recipe::Task;
use units::counted;

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: KillDialog, action: Action) -> Vec<Effect> {
    let lines = dialog.lines(model).len();
    scrolls(model, &mut dialog.scroll, lines, action);
    match action {
        Action::Yes => return dialog.accept(model),
        Action::Accept if dialog.yes => return dialog.accept(model),
        Action::Accept | Action::No => {
            model.notify("Kill cancelled");
        }
        Action::Toggle => {
            dialog.yes = !dialog.yes;
            model.modal = Some(Modal::Kill(dialog));
        }
        _ => model.modal = Some(Modal::Kill(dialog)),
    }
    Vec::new()
}

impl KillDialog {
    /// Executes the plan. Only this function and the action dialog create `Confirmed`.
    fn accept(self, model: &mut Model) -> Vec<Effect> {
        let job = model.jobs.start(Intent::Kill(self.plan.run.clone()));
        vec![Effect::Job { job, request: Request::Kill { plan: self.plan, confirmed: Confirmed::by_user() } }]
    }

    fn processes(&self) -> usize {
        self.plan.nodes.iter().map(|node| node.ranks.len() + 1).sum()
    }

    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let width = dialog::text_width(model.size);
        let faint = model.theme.faint;
        let mut lines = vec![Line::default()];
        let row = model.row(&self.plan.run);
        let worst = match row.filter(|row| row.task == Task::Train).map(|row| (row.step, row.checkpoint_step)) {
            Some((step, Some(saved))) if step > saved => {
                format!(
                    " At worst, the run falls back to step {saved} and loses {}.",
                    counted((step - saved) as usize, "step")
                )
            }
            Some((step, None)) if step > 0 => {
                format!(" It has no checkpoint yet: at worst, all {step} steps are lost.")
            }
            _ => String::new(),
        };
        let stop = model.key_name(Action::Stop);
        let task = row.map_or(Task::Train, |row| row.task);
        let instead = match &self.plan.job {
            _ if row.is_some_and(|row| row.is_attached) => {
                "This ends the watching alone. The program goes on.".to_owned()
            }
            Some(job) if job.is_waiting => {
                "The job is pending and runs no process. Checkpoints are kept; the run can be resumed later.".into()
            }
            _ if task != Task::Train => {
                let kept = if task == Task::Encode { "Clips and captions that are stored" } else { "Finished videos" };
                format!(
                    "The processes get 10 s to stop, then they are killed. {kept} are kept, and a resume continues after them."
                )
            }
            job => {
                let time = if job.is_some() { "the time that Slurm allows" } else { "10 s" };
                format!(
                    "The processes get {time} to save, then they are killed.{worst} To save first, choose No and press {stop}."
                )
            }
        };
        lines.extend(text::wrap(&instead, width).into_iter().map(|line| Line::styled(line, model.theme.warn)));
        if let Some(job) = &self.plan.job {
            lines.push(Line::default());
            lines.extend(text::wrap(&job.why, width).into_iter().map(Line::from));
        }
        for node in &self.plan.nodes {
            lines.push(Line::default());
            lines.push(Line::from(vec![
                Span::styled(node.node.to_string(), model.theme.strong),
                Span::raw(format!("  process group {}", node.pgid)),
            ]));
            lines.push(Line::from(format!("  supervisor  pid {}", node.pid)));
            for rank in &node.ranks {
                lines.push(Line::from(format!("  rank {:<5}  pid {}", rank.rank, rank.pid)));
            }
            // Slurm ends the processes of a job, so the reason for each node does not apply.
            let why = if self.plan.job.is_some() { "" } else { &node.why };
            let why = text::wrap(why, width.saturating_sub(2)).into_iter().filter(|line| !line.is_empty());
            lines.extend(why.map(|line| Line::styled(format!("  {line}"), faint)));
        }
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let nodes = match &self.plan.nodes[..] {
            [node] => node.node.to_string(),
            nodes => counted(nodes.len(), "node"),
        };
        let what = match &self.plan.job {
            Some(job) => format!("job {}", job.id),
            None => format!("{} on {nodes}", counted(self.processes(), "process")),
        };
        let title = format!("Kill {}? {what}", short_id(&self.plan.run));
        let marked = |text: &str, is: bool| {
            let style = if is { model.theme.accent.add_modifier(Modifier::REVERSED) } else { model.theme.faint };
            let pointer = if is { model.symbols.pointer } else { " " };
            Span::styled(format!("{pointer} {text} "), style)
        };
        let no = model.keys.name(Context::KillDialog, Action::No);
        let yes = model.keys.name(Context::KillDialog, Action::Yes);
        let mut footer = vec![
            marked(&format!("No ({no})"), !self.yes),
            Span::raw("   "),
            marked(&format!("Yes, kill ({yes})"), self.yes),
        ];
        if dialog::text_width(model.size) >= 60 {
            footer.push(Span::styled("   Tab move   Enter choose", model.theme.faint));
        }
        dialog::draw(model, buf, &title, model.theme.bad, self.lines(model), Line::from(footer), self.scroll);
    }
}
