//! What a run's state means and what can be done about it, in words: the screen is the manual.

use crate::keymap::{Action, Context};
use crate::model::Model;
use crate::msg::RunRow;
use crate::text;
use crate::units;
use crate::widgets::key_bar::{hint, key_of};
use crate::widgets::{capitalized, failure_lines};
use crate::words::{StateKind, ranks, short_id};
use ratatui_core::text::{Line, Span};
use rundir::RunState;

/// Returns the lines: first what is going on, then the keys that lead on.
pub fn lines(model: &Model, row: &RunRow, context: Context, width: usize) -> Vec<Line<'static>> {
    let mut lines = situation(model, row, width);
    let steps = next_steps(model, row, context);
    // Hints are never broken inside: those that do not fit go to the next line. Together they may follow a sentence.
    let wanted: usize = steps.iter().flatten().map(Span::width).sum::<usize>() + 3 * steps.len();
    let mut line: Vec<Span<'static>> = Vec::new();
    if lines.len() == 1 && lines[0].width() + wanted <= width {
        line = lines.remove(0).spans;
    }
    let mut used = line.iter().map(Span::width).sum::<usize>();
    for step in steps {
        let wanted: usize = step.iter().map(Span::width).sum();
        if used > 0 && used + 3 + wanted > width {
            lines.push(Line::from(std::mem::take(&mut line)));
            used = 0;
        }
        if used > 0 {
            line.push(Span::raw("   "));
            used += 3;
        }
        used += wanted;
        line.extend(step);
    }
    if !line.is_empty() {
        lines.push(Line::from(line));
    }
    lines
}

fn situation(model: &Model, row: &RunRow, width: usize) -> Vec<Line<'static>> {
    let took = units::duration(row.updated_s - row.created_s);
    let text = match &row.state {
        RunState::Failed(failure) | RunState::Crashed(failure) => return failure_lines(model, failure, width),
        RunState::New => "It was prepared but never started.".to_owned(),
        RunState::Starting => {
            format!("{} are starting. The first step takes longer than the others.", capitalized(&ranks(row.ranks)))
        }
        RunState::Running => "It trains, and goes on when you close this console.".to_owned(),
        RunState::Saving => "It saves a checkpoint, then goes on.".to_owned(),
        RunState::Stopping => "It saves a checkpoint, then stops.".to_owned(),
        RunState::Stalled { since_s } => {
            let silence = units::duration(model.now - since_s);
            let usual =
                row.step_s.map(|s| format!(" (a step usually takes {})", units::value(s, units::Unit::Seconds)));
            format!("Its processes exist, but nothing has happened for {silence}{}.", usual.unwrap_or_default())
        }
        RunState::Finished => format!("All {} steps are done, after {took}.", units::grouped(row.steps_total)),
        RunState::Stopped => match row.checkpoint_step {
            Some(step) => format!("It was stopped. Its newest checkpoint is step {}.", units::grouped(step)),
            None => "It was stopped before its first checkpoint, so it cannot be resumed.".to_owned(),
        },
        RunState::Unknown => "Its node cannot be reached, so nobody knows whether it still trains.".to_owned(),
    };
    text::wrap(&text, width).into_iter().map(Line::from).collect()
}

fn next_steps(model: &Model, row: &RunRow, context: Context) -> Vec<Vec<Span<'static>>> {
    let kind = StateKind::of(&row.state);
    let mut steps = Vec::new();
    let mut say = |action: Action, text: String| {
        let key = key_of(context, action);
        if !key.is_empty() {
            steps.push(hint(model, &key, &text));
        }
    };
    if model.jobs.busy_with(&row.run) {
        return steps;
    }
    if !kind.is_active() && kind != StateKind::Finished && kind != StateKind::Unknown {
        if let Some(step) = row.checkpoint_step {
            say(Action::Resume, format!("resume from step {}", units::grouped(step)));
        } else if context == Context::Runs {
            say(Action::NewRun, "start its stage again".to_owned());
        }
    }
    match kind {
        StateKind::Finished => {
            if let Some(next) = model.next_stage(row) {
                let action = if context == Context::Runs { Action::NewRun } else { Action::NextStage };
                say(action, format!("start next stage {}", next.name));
            } else if row.stage.is_some() && !model.stages_of(row.curriculum.as_deref().unwrap_or("".into())).is_empty()
            {
                steps.push(vec![Span::raw("It was the last stage of its curriculum.")]);
            }
        }
        StateKind::Running | StateKind::Starting | StateKind::Saving => say(Action::Stop, "save and stop".to_owned()),
        StateKind::Stalled => {
            say(Action::Logs, "read the logs".to_owned());
            say(Action::Stop, "try to save and stop".to_owned());
            say(Action::Kill, "kill".to_owned());
        }
        StateKind::Failed | StateKind::Crashed => say(Action::Logs, "read the logs".to_owned()),
        _ => {}
    }
    steps
}

/// Returns where a run came from, in words.
pub fn origin(row: &RunRow) -> String {
    row.lineage.as_ref().map_or_else(
        || "random weights".to_owned(),
        |parent| format!("weights of {} at step {}", short_id(&parent.run), units::grouped(parent.step)),
    )
}
