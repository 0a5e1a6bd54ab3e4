//! What a run's state means and what can be done about it, in words: the screen is the manual.

use crate::keymap::{Action, Context};
use crate::model::Model;
use crate::msg::RunRow;
use crate::run_state::{StateKind, short_id};
use crate::slurm;
use crate::text;
use crate::widgets::{capitalized, failure_lines, hint};
use health::{Finding, Rule, Subject, Urgency};
use ratatui_core::text::{Line, Span};
use runstate::{RunState, START_GRACE};

/// Longer than processes need to appear, on nodes too.
const USUAL_START_S: f64 = 10.0;

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

/// Leaves out what has no room before the last line, which holds the keys that lead on, and shows where.
pub fn shortened(model: &Model, mut lines: Vec<Line<'static>>, rows: usize) -> Vec<Line<'static>> {
    if rows > 0 && lines.len() > rows {
        lines.drain(rows - 1..lines.len() - 1);
        if let [.., before, _] = &mut lines[..] {
            before.push_span(format!(" {}", model.symbols.ellipsis));
        }
    }
    lines
}

fn situation(model: &Model, row: &RunRow, width: usize) -> Vec<Line<'static>> {
    if let Some((_, waiting)) = model.jobs.waiting_kill(&row.run) {
        let waited = units::duration(model.now - waiting.since_s);
        let text = format!(
            "Its kill has waited for {waited}: {}. Until then it is neither resumed nor stopped.",
            waiting.text
        );
        let lines = text::wrap(&text::clean(&text), width).into_iter();
        return lines.map(|line| Line::styled(line, model.theme.bad)).collect();
    }
    if let Some(first) = row.findings.first() {
        return finding(model, row, first, width);
    }
    let took = units::duration(row.updated_s - row.created_s);
    let text = match &row.state {
        RunState::Failed(failure) | RunState::Crashed(failure) => return failure_lines(model, failure, width),
        RunState::New => "It was prepared but never started.".to_owned(),
        // Its job says all there is to say.
        RunState::Queued => String::new(),
        RunState::Starting if let Some(left_s) = awaited_s(model, row) => awaited(row, left_s),
        RunState::Starting => {
            format!("{} are starting. The first step takes longer than the others.", capitalized(&units::counted(row.ranks, "rank")))
        }
        RunState::Running if row.is_stepless => {
            "Its command runs, and goes on when you close this console. It has no charts: with adapter = \"none\", nobody \
             reads its steps. Its log is shown as it is."
                .to_owned()
        }
        RunState::Running => "It trains, and goes on when you close this console.".to_owned(),
        RunState::Saving => "It saves a checkpoint, then goes on.".to_owned(),
        RunState::Stopping if row.is_command => "It was asked to stop. Whether it saves first is up to it.".to_owned(),
        RunState::Stopping => "It saves a checkpoint, then stops.".to_owned(),
        RunState::Stalled { since_s } => {
            let silence = units::duration(model.now - since_s);
            let usual =
                row.step_s.map(|s| format!(" (a step usually takes {})", units::value(s, units::Unit::Seconds)));
            format!("Its processes exist, but nothing has happened for {silence}{}.", usual.unwrap_or_default())
        }
        RunState::Finished if row.is_stepless => format!("Its command ended without an error, after {took}."),
        RunState::Finished => format!("All {} steps are done, after {took}.", units::grouped(row.steps_total)),
        RunState::Stopped => match row.checkpoint_step {
            Some(step) => format!("It was stopped. Its newest checkpoint is step {}.", units::grouped(step)),
            None => "It was stopped before its first checkpoint, so it cannot be resumed.".to_owned(),
        },
        RunState::Unknown if row.job.is_some() => "Nobody knows whether it still trains.".to_owned(),
        RunState::Unknown => "Its node cannot be reached, so nobody knows whether it still trains.".to_owned(),
    };
    let job = row.job.as_ref().map(|job| slurm::sentence(job, model.now));
    let text = [text].into_iter().chain(job).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
    text::wrap(&text, width).into_iter().map(Line::from).collect()
}

/// Returns for how long processes are awaited that may never come, once that takes longer than a start should.
pub fn awaited_s(model: &Model, row: &RunRow) -> Option<f64> {
    let left_s = row.start_awaited_until_s? - model.now;
    let is_late = left_s < START_GRACE.as_secs_f64() - USUAL_START_S && model.jobs.busy_with(&row.run).is_none();
    is_late.then_some(left_s.max(0.0))
}

fn awaited(row: &RunRow, left_s: f64) -> String {
    let then = if row.checkpoint_step.is_some() { "can be resumed" } else { "its stage can be started again" };
    format!(
        "None of its processes is there yet: what starts it is slow, or has ended in between. They are awaited for {} more; then \
         it counts as crashed, and {then}.",
        units::duration(left_s)
    )
}

/// The most urgent of what was found, what to do about it, and how much more there is.
fn finding(model: &Model, row: &RunRow, first: &Finding, width: usize) -> Vec<Line<'static>> {
    let style = match first.urgency {
        Urgency::Act => model.theme.bad,
        Urgency::Look => model.theme.warn,
        Urgency::Note => model.theme.faint,
    };
    let more = match row.findings.len() - 1 {
        0 => String::new(),
        n => format!(" (and {n} more: vidtui status {})", short_id(&row.run)),
    };
    let glyph = model.symbols.states[StateKind::Stalled as usize];
    let text = format!("{glyph} {}{more}.", finding_in_words(model.now, first));
    let mut lines: Vec<Line<'static>> =
        text::wrap(&text::clean(&text), width).into_iter().map(|line| Line::styled(line, style)).collect();
    let fix = format!("What to do: {}", first.fix);
    lines.extend(text::wrap(&text::clean(&fix), width).into_iter().map(Line::from));
    lines
}

/// Returns a finding as a sentence, with how long it has been so.
pub fn finding_in_words(now: f64, finding: &Finding) -> String {
    let since = finding.since_s.filter(|since_s| now - since_s >= 1.0);
    let since = since.map_or(String::new(), |since_s| format!(", for {}", units::duration(now - since_s)));
    // The name of a node is written as it is.
    let sentence = finding.sentence();
    let begins = if finding.about == Subject::Run { capitalized(&sentence) } else { sentence };
    format!("{begins}{since}")
}

fn next_steps(model: &Model, row: &RunRow, context: Context) -> Vec<Vec<Span<'static>>> {
    let kind = StateKind::of(&row.state);
    let mut steps = Vec::new();
    let mut say = |action: Action, text: String| {
        let key = context.key_of(action);
        if !key.is_empty() {
            steps.push(hint(model, &key, &text));
        }
    };
    if model.jobs.waiting_kill(&row.run).is_some() {
        say(Action::Kill, "give the kill up".to_owned());
    }
    if model.jobs.busy_with(&row.run).is_some() {
        return steps;
    }
    if !kind.is_active() && kind != StateKind::Finished && kind != StateKind::Unknown {
        if let Some(step) = row.checkpoint_step {
            say(Action::Resume, format!("resume from step {}", units::grouped(step)));
        } else if context == Context::Runs {
            say(Action::NewRun, "start its stage again".to_owned());
        }
    }
    if may_hang(row) {
        say(Action::Stacks, "collect stacks".to_owned());
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
        StateKind::Queued => say(Action::Stop, "take it out of the queue".to_owned()),
        StateKind::Running | StateKind::Starting | StateKind::Saving if row.is_command => {
            say(Action::Stop, "ask it to stop".to_owned());
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

/// Returns whether nothing is heard of its steps: where its ranks are is the question then.
pub fn may_hang(row: &RunRow) -> bool {
    StateKind::of(&row.state) == StateKind::Stalled || row.findings.iter().any(|found| found.rule == Rule::SlowStep)
}

/// Returns where a run came from, in words.
pub fn origin(row: &RunRow) -> String {
    row.lineage.as_ref().map_or_else(
        || if row.is_command { "weights as its command says" } else { "random weights" }.to_owned(),
        |parent| format!("weights of {} at step {}", short_id(&parent.run), units::grouped(parent.step)),
    )
}
