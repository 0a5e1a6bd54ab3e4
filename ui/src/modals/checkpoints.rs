//! The dialog that lists the checkpoints of the open run, and can resume from one, start the next stage, convert, pin
//! or delete it.

use crate::action_plan::ActionRequest;
use crate::bindings::{Action, Context};
use crate::conversion::ConvertForm;
use crate::conversion::ConvertOptions;
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{CheckpointsDialog, Modal, Model, RunScreen};
use crate::run_state::{StateKind, short_id};
use crate::screens::convert;
use crate::text;
use crate::widgets::{dialog, hint};
use plan::{ResumeKind, ResumeOptions};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{CheckpointEntry, RunId};

/// Handles an action. The caller has taken the dialog out of the model; this function puts it back unless the dialog
/// closes.
pub fn on_action(model: &mut Model, mut dialog: CheckpointsDialog, action: Action) -> Vec<Effect> {
    let Some(run) = model.screens.run.as_ref().map(|run| run.id.clone()) else { return Vec::new() };
    let entries = newest_first(model);
    let (at, rows) = (dialog.position(&entries), room(model));
    let chosen = entries.get(at).map(|entry| (*entry).clone());
    if let Some(to) = layout::moved(action, at, rows.max(1), entries.len().saturating_sub(1)) {
        dialog.selected = entries.get(to).map(|entry| entry.step());
        dialog.top = layout::scrolled(dialog.top, to, rows);
    }
    let Some(chosen) = chosen.filter(|_| action != Action::Cancel) else {
        if action != Action::Cancel {
            model.modal = Some(Modal::Checkpoints(dialog));
        }
        return Vec::new();
    };
    let step = chosen.step();
    let kind = match action {
        Action::Resume => ResumeKind::Everything,
        Action::FreshData => ResumeKind::FreshData,
        Action::WeightsOnly => ResumeKind::WeightsOnly,
        Action::NextStage => return next_stage(model, run, step),
        Action::Convert => return convert(model, &run, &chosen),
        Action::Delete => {
            let what = format!("checking who uses the checkpoint of step {}", units::grouped(step));
            let job = model.jobs.start(Intent::PlanAction { what });
            return vec![Effect::Job {
                job,
                request: Request::PlanAction(ActionRequest::DeleteCheckpoint { run, step }),
            }];
        }
        Action::Pin => {
            let is_pinned = chosen.complete().is_some_and(|checkpoint| checkpoint.is_pinned);
            model.modal = Some(Modal::Checkpoints(dialog));
            let job = model.jobs.start(Intent::Pin { step });
            return vec![Effect::Job { job, request: Request::PinCheckpoint { run, step, is_pinned: !is_pinned } }];
        }
        _ => {
            model.modal = Some(Modal::Checkpoints(dialog));
            return Vec::new();
        }
    };
    if let Some(intent) = model.jobs.busy_with(&run) {
        let text = intent.text();
        model.warn(format!("Already {text}"));
        return Vec::new();
    }
    let job = model.jobs.start(Intent::PlanResumeFrom { run: run.clone(), step });
    let options = ResumeOptions { step: Some(step), kind, ..ResumeOptions::default() };
    vec![Effect::Job { job, request: Request::PlanResume { run, options } }]
}

fn next_stage(model: &mut Model, run: RunId, step: u64) -> Vec<Effect> {
    let next = model.row(&run).and_then(|row| model.next_stage(row)).map(|stage| stage.name.clone());
    let job = model.jobs.start(Intent::PlanStage { stage: next.unwrap_or_else(|| "the next stage".to_owned()) });
    vec![Effect::Job { job, request: Request::PlanNext { run, step: Some(step) } }]
}

/// Opens the Convert screen with the checkpoint.
fn convert(model: &mut Model, run: &RunId, checkpoint: &CheckpointEntry) -> Vec<Effect> {
    let target = model.export_dir.join(format!("{}-step-{}", short_id(run), checkpoint.step()));
    let source = checkpoint.dir().to_owned();
    let options = ConvertOptions { source, target, to: ConvertForm::Diffusers, ..ConvertOptions::default() };
    convert::open_with(model, options)
}

fn newest_first(model: &Model) -> Vec<&CheckpointEntry> {
    let entries = model.screens.run.as_ref().and_then(|run| run.checkpoints.as_ref());
    entries.map_or_else(Vec::new, |entries| entries.iter().rev().collect())
}

/// The rows of the dialog besides the checkpoints: a blank row, the column names, a blank row and two rows of keys.
const OTHER_ROWS: usize = 5;

/// Returns the number of checkpoints that fit on the screen.
fn room(model: &Model) -> usize {
    usize::from(model.size.height.saturating_sub(4)).saturating_sub(OTHER_ROWS).max(1)
}

impl CheckpointsDialog {
    fn position(&self, entries: &[&CheckpointEntry]) -> usize {
        self.selected.and_then(|step| entries.iter().position(|entry| entry.step() == step)).unwrap_or(0)
    }

    fn lines(&self, model: &Model) -> Vec<Line<'static>> {
        let (entries, faint) = (newest_first(model), model.theme.faint);
        let mut lines = vec![Line::default()];
        if entries.is_empty() {
            let nothing = model.screens.run.as_ref().map_or("Loading…", RunScreen::no_checkpoints);
            lines.push(Line::styled(nothing, faint));
            return lines;
        }
        let latest = model.screens.run.as_ref().and_then(|run| model.row(&run.id)?.checkpoint_step);
        let steps = entries.iter().map(|entry| text::width(&units::grouped(entry.step()))).max().unwrap_or(0).max(4);
        lines.push(Line::styled(format!("  {:>steps$}  {:>9}  {:<14}  ", "step", "size", "saved"), faint));
        let at = self.position(&entries);
        let rows = room(model);
        let top = layout::scrolled(self.top, at, rows).min(entries.len().saturating_sub(rows));
        for (i, entry) in entries.iter().enumerate().skip(top).take(rows) {
            let pointer = if i == at { model.symbols.pointer } else { " " };
            let style = if i == at { model.theme.strong } else { Style::new() };
            let step = units::grouped(entry.step());
            let mut line = vec![Span::styled(format!("{pointer} "), model.theme.accent)];
            match entry.summary() {
                Ok(summary) => {
                    let (size, ago) = (units::short_size(summary.bytes), units::ago(model.now, summary.saved_s));
                    line.push(Span::styled(format!("{step:>steps$}  {size:>9}  {ago:<14}  "), style));
                    let mut notes = Vec::new();
                    notes.extend(summary.is_pinned.then(|| "pinned".to_owned()));
                    notes.extend((latest == Some(summary.step)).then(|| "newest".to_owned()));
                    notes.extend(users(model, summary.step));
                    line.push(Span::styled(notes.join(", "), model.theme.good));
                }
                Err((how, why)) => {
                    let glyph = model.symbols.states[StateKind::Stalled as usize];
                    line.push(Span::styled(format!("{step:>steps$}  "), style));
                    line.push(Span::styled(format!("{glyph} {how}: {}", text::clean(why)), model.theme.warn));
                }
            }
            lines.push(Line::from(line));
        }
        lines.push(Line::default());
        let keys = |actions: &[Action]| {
            let mut spans = Vec::new();
            for action in actions {
                let binding = Context::CheckpointsDialog.bindings().iter().find(|binding| binding.action == *action);
                spans.extend(hint(
                    model,
                    &model.keys.name(Context::CheckpointsDialog, *action),
                    binding.map_or("", |binding| binding.label),
                ));
                spans.push(Span::raw("   "));
            }
            spans.pop();
            Line::from(spans)
        };
        lines.push(keys(&[Action::Resume, Action::FreshData, Action::WeightsOnly]));
        lines.push(keys(&[Action::NextStage, Action::Convert, Action::Pin, Action::Delete]));
        lines
    }

    /// Draws the dialog.
    pub fn view(&self, model: &Model, buf: &mut Buffer) {
        let name = model.screens.run.as_ref().map_or("", |run| short_id(&run.id));
        let title = format!("Checkpoints of {name}");
        let footer = hint(model, &model.keys.name(Context::CheckpointsDialog, Action::Cancel), "close");
        dialog::draw(model, buf, &title, model.theme.accent, self.lines(model), Line::from(footer), 0);
    }
}

/// Returns the names of the runs that started from the checkpoint of `step` of the open run; `None` if there are
/// none.
fn users(model: &Model, step: u64) -> Option<String> {
    let open = &model.screens.run.as_ref()?.id;
    let started = model
        .rows()
        .iter()
        .filter(|row| row.lineage.as_ref().is_some_and(|lineage| lineage.run == *open && lineage.step == step));
    let names: Vec<&str> = started.map(|row| short_id(&row.run)).collect();
    (!names.is_empty()).then(|| format!("start of {}", names.join(", ")))
}
