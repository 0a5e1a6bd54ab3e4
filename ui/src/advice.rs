//! The lines under a run's state: what the state means, the most urgent finding, and the keys to press next.

use crate::bindings::{Action, Context};
use crate::model::Model;
use crate::msg::RunRow;
use crate::run_state::{StateKind, short_id};
use crate::slurm;
use crate::text;
use crate::widgets::{failure_lines, hint};
use health::{Finding, Rule, Subject, Urgency};
use ratatui_core::text::{Line, Span};
use recipe::Task;
use runstate::{Progress, RunState, START_GRACE};

/// Processes usually appear within this time, on remote nodes too.
const USUAL_START_S: f64 = 10.0;

/// Returns the lines: first the situation, then the keys to press next.
pub fn lines(model: &Model, row: &RunRow, context: Context, width: usize) -> Vec<Line<'static>> {
    let mut lines = situation(model, row, width);
    let steps = next_steps(model, row, context);
    // A hint is never broken; if it does not fit, it starts the next line. If all hints fit, they follow a short
    // sentence on its line.
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

/// Drops the lines that do not fit, but keeps the last one, which has the keys; an ellipsis marks the gap.
pub fn shortened(model: &Model, mut lines: Vec<Line<'static>>, rows: usize) -> Vec<Line<'static>> {
    if rows > 0 && lines.len() > rows {
        lines.drain(rows - 1..lines.len() - 1);
        if let [.., before, _] = &mut lines[..] {
            before.push_span(format!(" {}", model.symbols.ellipsis));
        }
    }
    lines
}

/// Returns what the state of a run means, or its most urgent finding, as lines.
pub fn situation(model: &Model, row: &RunRow, width: usize) -> Vec<Line<'static>> {
    if let Some((_, waiting)) = model.jobs.waiting_kill(&row.run) {
        let waited = units::duration(model.now - waiting.since_s);
        let text = format!(
            "Kill pending for {waited}: {}. Until the kill ends, the run cannot be resumed or stopped.",
            waiting.text
        );
        let lines = text::wrap(&text::clean(&text), width).into_iter();
        return lines.map(|line| Line::styled(line, model.theme.bad)).collect();
    }
    // The end of a run is more urgent than what was found while it trained.
    let has_failed = matches!(row.state, RunState::Failed(_) | RunState::Crashed(_));
    if let Some(first) = row.findings.first().filter(|_| !has_failed) {
        return finding(model, row, first, width);
    }
    let took = units::duration(row.updated_s - row.created_s);
    let text = match &row.state {
        RunState::Failed(failure) | RunState::Crashed(failure) => return failure_lines(model, failure, width),
        RunState::New => "Prepared, never started.".to_owned(),
        // The sentence about the run's Slurm job follows.
        RunState::Queued => String::new(),
        RunState::Running if row.is_attached && row.is_stepless => {
            "Watching a program; no steps are recognized in its log yet. A stop ends the watching, not the program.".to_owned()
        }
        RunState::Running if row.is_attached => {
            "Watching a program that was started without vidtui. A stop ends the watching, not the program.".to_owned()
        }
        RunState::Stopping if row.is_attached => "The watching ends; the program goes on.".to_owned(),
        RunState::Finished if row.is_attached => format!("The program has ended, {took} after the watching began."),
        RunState::Stopped if row.is_attached => "No longer watched. The program may go on.".to_owned(),
        RunState::Starting if let Some(left_s) = start_left_s(model, row) => late_start(left_s),
        RunState::Starting => {
            let first = match row.task {
                Task::Train => "The first step is slower than the others.",
                Task::Encode => "The encoders are loaded first.",
                Task::Sample => "The encoders and the weights are loaded first.",
            };
            format!("Starting {}. {first}", units::counted(row.ranks, "rank"))
        }
        RunState::Running if row.is_stepless => {
            "Running. Closing the console does not stop the run. There are no charts: no steps are read from the log of \
             the command (command.adapter)."
                .to_owned()
        }
        RunState::Running => {
            let doing = match row.task {
                Task::Train => "Training",
                Task::Encode => "Encoding",
                Task::Sample => "Making videos",
            };
            format!("{doing}. Closing the console does not stop the run.")
        }
        RunState::Saving => "Saving a checkpoint. Training continues afterwards.".to_owned(),
        RunState::Stopping if row.is_command => "Stop requested. The command decides whether it saves first.".to_owned(),
        RunState::Stopping if matches!(row.progress(), Progress::Steps { step, total } if step == total) => {
            "All steps are done; the processes are ending.".to_owned()
        }
        RunState::Stopping => match row.task {
            Task::Train => "Saving a checkpoint, then stopping.".to_owned(),
            Task::Encode => "Storing the items in progress, then stopping.".to_owned(),
            Task::Sample => "Finishing the videos in progress, then stopping.".to_owned(),
        },
        RunState::Stalled { since_s } => {
            let stalled = units::duration(model.now - since_s);
            let usual =
                row.step_s.map(|s| format!(" (a step usually takes {})", units::value(s, units::Unit::Seconds)));
            format!("No progress for {stalled}{}. The processes still exist.", usual.unwrap_or_default())
        }
        RunState::Finished if row.is_stepless => format!("The command finished without an error after {took}."),
        RunState::Finished => match row.progress() {
            Progress::Steps { total, .. } => format!("All {} steps done in {took}.", units::grouped(total)),
            done => format!("Finished in {took}: {}.", done.in_words()),
        },
        RunState::Stopped if row.task != Task::Train => format!("Stopped: {}. A resume continues there.", row.progress().in_words()),
        RunState::Stopped => match row.checkpoint_step {
            Some(step) => format!("Stopped. The newest checkpoint is step {}.", units::grouped(step)),
            None => "Stopped before the first checkpoint; it cannot be resumed.".to_owned(),
        },
        RunState::Unknown if row.job.is_some() => "The state is unknown.".to_owned(),
        RunState::Unknown => "The state is unknown: the run's node cannot be reached.".to_owned(),
    };
    let job = row.job.as_ref().map(|job| slurm::sentence(job, model.now));
    let text = [text].into_iter().chain(job).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
    text::wrap(&text, width).into_iter().map(Line::from).collect()
}

/// Returns the seconds left for processes to appear, once a start takes longer than usual.
pub fn start_left_s(model: &Model, row: &RunRow) -> Option<f64> {
    let left_s = row.start_deadline_s? - model.now;
    let is_late = left_s < START_GRACE.as_secs_f64() - USUAL_START_S && model.jobs.busy_with(&row.run).is_none();
    is_late.then_some(left_s.max(0.0))
}

fn late_start(left_s: f64) -> String {
    let left = units::duration(left_s);
    format!("No process has started yet. If none starts within {left}, the run counts as crashed and can be resumed.")
}

/// Returns the most urgent finding, its hint, and the number of other findings.
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
    let fix = format!("Hint: {}", first.fix);
    lines.extend(text::wrap(&text::clean(&fix), width).into_iter().map(Line::from));
    lines
}

/// Returns a finding as a sentence, with its duration.
pub fn finding_in_words(now: f64, finding: &Finding) -> String {
    let since = finding.since_s.filter(|since_s| now - since_s >= 1.0);
    let since = since.map_or(String::new(), |since_s| format!(", for {}", units::duration(now - since_s)));
    // The name of a node keeps its case.
    let sentence = finding.sentence();
    let begins = if finding.about == Subject::Run { text::capitalized(&sentence) } else { sentence };
    format!("{begins}{since}")
}

fn next_steps(model: &Model, row: &RunRow, context: Context) -> Vec<Vec<Span<'static>>> {
    let kind = StateKind::of(&row.state);
    let mut steps = Vec::new();
    let mut add = |action: Action, text: String| {
        let key = model.keys.name(context, action);
        if !key.is_empty() {
            steps.push(hint(model, &key, &text));
        }
    };
    if model.jobs.waiting_kill(&row.run).is_some() {
        add(Action::Kill, "cancel the kill".to_owned());
    }
    if model.jobs.busy_with(&row.run).is_some() {
        return steps;
    }
    let is_resumable = !kind.is_active() && kind != StateKind::Finished && kind != StateKind::Unknown;
    if is_resumable && !row.is_imported && !row.is_attached {
        if row.task != Task::Train {
            add(Action::Resume, "resume".to_owned());
        } else if let Some(step) = row.checkpoint_step {
            add(Action::Resume, format!("resume from step {}", units::grouped(step)));
        } else {
            let again = if kind == StateKind::New { "start" } else { "start again at step 0" };
            add(Action::Resume, again.to_owned());
        }
    }
    if may_hang(row) && !row.is_attached {
        add(Action::Stacks, "write stack traces".to_owned());
    }
    match kind {
        StateKind::Finished => {
            if let Some(steps) = row.longer_steps {
                add(Action::Resume, format!("train to step {}", units::grouped(steps)));
            }
            let next = model.next_stage(row);
            let has_stages = || !model.stages_of(row.curriculum.as_deref().unwrap_or("".into())).is_empty();
            let is_last = next.is_none() && row.stage.is_some() && has_stages();
            let action = if context == Context::Runs { Action::NewRun } else { Action::NextStage };
            if let Some(next) = next {
                let has_started = model.rows().iter().any(|other| other.continues(row, &next.name));
                add(action, format!("start next stage {}{}", next.name, if has_started { " again" } else { "" }));
            } else if row.task == Task::Encode {
                add(action, "train on it".to_owned());
            }
            if row.makes_videos() {
                add(Action::Prompt, "make a video".to_owned());
            }
            if is_last {
                steps.push(vec![Span::raw("This was the last stage of its curriculum.")]);
            }
        }
        StateKind::Queued => add(Action::Stop, "cancel the job".to_owned()),
        StateKind::Running | StateKind::Starting | StateKind::Stalled if row.is_attached => {
            add(Action::Stop, "stop watching".to_owned())
        }
        StateKind::Running | StateKind::Starting | StateKind::Saving if row.is_command => {
            add(Action::Stop, "request a stop".to_owned());
        }
        StateKind::Running | StateKind::Starting | StateKind::Saving => {
            add(Action::Stop, if row.task == Task::Train { "save and stop" } else { "stop" }.to_owned());
        }
        StateKind::Stalled => {
            add(Action::Logs, "show logs".to_owned());
            add(Action::Stop, if row.task == Task::Train { "try to save and stop" } else { "try to stop" }.to_owned());
            add(Action::Kill, "kill".to_owned());
        }
        StateKind::Failed | StateKind::Crashed => add(Action::Logs, "show logs".to_owned()),
        _ => {}
    }
    steps
}

/// Returns whether the run may hang, so that stack traces help.
pub fn may_hang(row: &RunRow) -> bool {
    StateKind::of(&row.state) == StateKind::Stalled || row.findings.iter().any(|found| found.rule == Rule::SlowStep)
}

/// Returns where a run's first weights came from; `None` for a run that does not train and has no parent.
pub fn origin(row: &RunRow) -> Option<String> {
    match &row.lineage {
        Some(parent) => Some(format!("weights from {}, step {}", short_id(&parent.run), units::grouped(parent.step))),
        None if row.is_attached => Some("a program that was started without vidtui".to_owned()),
        None if row.task != Task::Train => None,
        None if row.is_command => Some("weights set by the command".to_owned()),
        None => Some("random weights".to_owned()),
    }
}
