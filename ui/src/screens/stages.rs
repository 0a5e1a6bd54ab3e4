//! The Stages screen: lists the stages of each curriculum, with their changes and the source of their weights.

use crate::bindings::{Action, Context};
use crate::draft::{Fit, LaunchDraft};
use crate::effect::Effect;
use crate::jobs::Intent;
use crate::layout;
use crate::model::{FailureDialog, Input, Modal, Model, Purpose, Screen};
use crate::msg::{CurriculumView, RunRow, StageView};
use crate::run_state::{StateKind, short_id};
use crate::screens::launch;
use crate::text;
use crate::widgets::{failure_lines, hint, panel, progress, state, write, write_centered, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::StageStart;
use rundir::{ErrorCode, Failure};

/// Rows of the details below the list.
const DETAILS: u16 = 12;

/// A row of the list.
enum StagesRow<'a> {
    Title(&'a CurriculumView),
    Broken(&'a Failure),
    Fix(&'a Failure),
    /// A stage with its index over all curricula.
    Stage(usize, &'a CurriculumView, &'a StageView),
    Air,
}

fn rows(model: &Model) -> Vec<StagesRow<'_>> {
    let mut rows = Vec::new();
    let mut number = 0;
    for curriculum in model.curricula.iter().flatten() {
        if !rows.is_empty() {
            rows.push(StagesRow::Air);
        }
        rows.push(StagesRow::Title(curriculum));
        match &curriculum.stages {
            Err(failure) => rows.extend([StagesRow::Broken(failure), StagesRow::Fix(failure)]),
            Ok(stages) => {
                for stage in stages {
                    rows.push(StagesRow::Stage(number, curriculum, stage));
                    number += 1;
                }
            }
        }
    }
    rows
}

fn all_stages(model: &Model) -> impl Iterator<Item = (&CurriculumView, &StageView)> {
    let curricula = model.curricula.iter().flatten();
    curricula.flat_map(|c| c.stages.iter().flatten().map(move |stage| (c, stage)))
}

fn selected(model: &Model) -> Option<(&CurriculumView, &StageView)> {
    all_stages(model).nth(model.stages.selected)
}

/// Returns the newest run of the selected stage.
pub fn newest_run(model: &Model) -> Option<&RunRow> {
    let (curriculum, stage) = selected(model)?;
    newest(model, curriculum, stage)
}

fn newest<'a>(model: &'a Model, curriculum: &'a CurriculumView, stage: &'a StageView) -> Option<&'a RunRow> {
    model.runs_of_stage(&curriculum.path, &stage.name).next()
}

/// Returns whether the selected stage has weights to start from.
pub fn can_start(model: &Model) -> bool {
    selected(model).is_some_and(|(c, stage)| !matches!(weights(model, c, stage), Weights::Missing(_)))
}

/// The source of a stage's weights.
enum Weights<'a> {
    Random,
    File(String),
    Run(&'a RunRow, u64),
    /// The stage that must be trained first.
    Missing(&'a StageView),
}

/// Returns the source of a stage's weights. For `previous`, this is the newest finished run of the previous stage
/// that has a checkpoint, or else the newest run of that stage that has one.
fn weights<'a>(model: &'a Model, curriculum: &'a CurriculumView, stage: &'a StageView) -> Weights<'a> {
    match &stage.start {
        StageStart::Random => Weights::Random,
        StageStart::Path(path) => Weights::File(path.to_string()),
        StageStart::Previous => {
            let stages = curriculum.stages.as_deref().unwrap_or_default();
            let at = stages.iter().position(|s| s.name == stage.name).unwrap_or(0);
            let Some(before) = at.checked_sub(1).and_then(|at| stages.get(at)) else { return Weights::Random };
            let parents = || {
                let runs = model.runs_of_stage(&curriculum.path, &before.name);
                runs.filter_map(|row| row.checkpoint_step.map(|step| (row, step)))
            };
            let finished = parents().find(|(row, _)| StateKind::of(&row.state) == StateKind::Finished);
            finished
                .or_else(|| parents().next())
                .map_or(Weights::Missing(before), |(row, step)| Weights::Run(row, step))
        }
    }
}

/// Opens the screen and selects a stage: that of the current run, or the next one if the run has finished. Without
/// such a run, it selects the first stage that has no finished run.
pub fn open(model: &mut Model) {
    let target = model.target().filter(|row| row.stage.is_some());
    let wanted = target.map(|row| {
        let finished = StateKind::of(&row.state) == StateKind::Finished;
        let next = model.next_stage(row).filter(|_| finished).map(|stage| stage.name.clone());
        (row.curriculum.clone(), next.or_else(|| row.stage.clone()))
    });
    let of_run = wanted.and_then(|(path, name)| {
        all_stages(model).position(|(c, stage)| Some(&c.path) == path.as_ref() && Some(&stage.name) == name.as_ref())
    });
    let unfinished = || {
        all_stages(model).position(|(c, stage)| {
            !model.runs_of_stage(&c.path, &stage.name).any(|row| StateKind::of(&row.state) == StateKind::Finished)
        })
    };
    model.stages.selected = of_run.or_else(unfinished).unwrap_or(0);
    model.screen = Screen::Stages;
    keep_selection(model);
}

/// Limits the selection to the existing stages, and scrolls to the selected one.
pub fn keep_selection(model: &mut Model) {
    model.stages.selected = model.stages.selected.min(all_stages(model).count().saturating_sub(1));
    let rows = rows(model);
    let selected = model.stages.selected;
    let at = rows.iter().position(|row| matches!(row, StagesRow::Stage(n, ..) if *n == selected)).unwrap_or(0);
    let visible = usize::from(areas(model, rows.len()).0.height);
    let top = layout::scrolled(model.stages.top, at, visible);
    // Show the title of the curriculum together with its first stage.
    model.stages.top = if at <= 2 { 0 } else { top };
}

/// Handles an action.
pub fn on_action(model: &mut Model, action: Action) -> Vec<Effect> {
    let at = model.stages.selected;
    match action {
        Action::Up => model.stages.selected = at.saturating_sub(1),
        Action::Down => model.stages.selected = at + 1,
        Action::PageUp | Action::Top => model.stages.selected = 0,
        Action::PageDown | Action::Bottom => model.stages.selected = usize::MAX,
        Action::StartStage => return start(model),
        Action::LaunchRecipe => model.input = Some(Input::new(Purpose::Launch, model.launch_arguments.as_str())),
        Action::Open => match newest_run(model).map(|row| row.run.clone()) {
            Some(run) => model.open_run(run),
            None => model.warn("This stage has no run yet"),
        },
        Action::Back => model.screen = Screen::Runs,
        _ => {}
    }
    keep_selection(model);
    Vec::new()
}

/// Requests the draft that the typed launch arguments describe; the answer opens the launch form.
pub fn launch_typed(model: &mut Model, arguments: String) -> Vec<Effect> {
    let job = model.jobs.start(Intent::ReadLaunch);
    vec![Effect::ReadLaunch { job, arguments }]
}

fn start(model: &mut Model) -> Vec<Effect> {
    let Some((curriculum, stage)) = selected(model) else {
        model.warn("There is no stage to start");
        return Vec::new();
    };
    let from = match weights(model, curriculum, stage) {
        Weights::Missing(before) => {
            let failure = Failure::new(
                ErrorCode::NoCheckpoint,
                format!("cannot start {}", stage.name),
                format!("it starts from the weights of stage {}, which has no complete checkpoint", before.name),
                format!("start stage {} first and wait until it finishes", before.name),
            );
            model.modal = Some(Modal::Failure(FailureDialog { failure, scroll: 0 }));
            return Vec::new();
        }
        Weights::Run(row, _) => Some(row.run.clone()),
        Weights::Random | Weights::File(_) => None,
    };
    let draft = LaunchDraft {
        recipe: format!("{}:{}", curriculum.path, stage.name),
        init: from.map(|run| run.to_string()),
        fit: Fit::ToTarget,
        ..model.launch.clone()
    };
    launch::open(model, draft);
    Vec::new()
}

fn areas(model: &Model, rows: usize) -> (Rect, Rect) {
    layout::list_and_details(layout::areas(model.size).body, rows as u16 + 1, DETAILS)
}

/// Returns the number of stages from the selected one to the one at a row of the terminal.
pub fn stages_until(model: &Model, row: u16) -> Option<isize> {
    let rows = rows(model);
    let at = layout::entries_until(areas(model, rows.len()).0, row, model.stages.top, 0, rows.len())?;
    let StagesRow::Stage(clicked, ..) = rows.get(at as usize)? else { return None };
    Some(*clicked as isize - model.stages.selected as isize)
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let faint = model.theme.faint;
    let Some(curricula) = &model.curricula else {
        write_centered(model, buf, body, vec![Line::styled("Loading curricula…", faint)]);
        return;
    };
    if curricula.is_empty() {
        let mut lines = vec![Line::styled("No curriculum found", model.theme.strong)];
        let text = "A curriculum file lists training stages; see configs/demo/curriculum.toml. \
                    Start vidtui in a folder that contains configs/.";
        lines.extend(text::wrap(text, usize::from(body.width.min(60))).into_iter().map(Line::from));
        lines.push(Line::default());
        lines.push(Line::from(hint(model, &model.keys.name(Context::Stages, Action::LaunchRecipe), "launch a recipe")));
        write_centered(model, buf, body, lines);
        return;
    }
    let rows = rows(model);
    let (list, below) = areas(model, rows.len());
    let names = all_stages(model).map(|(_, stage)| text::width(&stage.name)).max().unwrap_or(0).clamp(5, 24);
    for (y, row) in (list.top()..list.bottom()).zip(rows.iter().skip(model.stages.top)) {
        let area = Rect { y, height: 1, ..list };
        match row {
            StagesRow::Air => {}
            StagesRow::Title(curriculum) => {
                let path = text::fit_end(curriculum.path.as_str(), usize::from(list.width) / 2, model.symbols.ellipsis);
                let title = Line::styled(curriculum.title.clone(), model.theme.strong);
                crate::widgets::write_split(model, buf, area, title, Line::styled(path, faint));
            }
            StagesRow::Broken(failure) => {
                write(model, buf, area, Line::styled(format!("  {}: {}", failure.what, failure.why), model.theme.bad));
            }
            StagesRow::Fix(failure) => {
                write(model, buf, area, Line::styled(format!("  Hint: {}", failure.fix), model.theme.accent));
            }
            StagesRow::Stage(number, curriculum, stage) => {
                let line = stage_line(model, *number, curriculum, stage, names, usize::from(list.width));
                write(model, buf, area, line);
            }
        }
    }
    match selected(model) {
        Some((curriculum, stage)) => {
            let unseen = rows.iter().skip(model.stages.top + usize::from(list.height));
            let unseen = unseen.filter(|row| matches!(row, StagesRow::Stage(..))).count();
            details(model, buf, below, curriculum, stage, unseen);
        }
        None => {
            if let Some(Err(failure)) = curricula.first().map(|c| &c.stages) {
                write_lines(model, buf, below, failure_lines(model, failure, usize::from(below.width)));
            }
        }
    }
}

fn stage_line(
    model: &Model,
    number: usize,
    curriculum: &CurriculumView,
    stage: &StageView,
    names: usize,
    width: usize,
) -> Line<'static> {
    let chosen = number == model.stages.selected;
    let style = if chosen { model.theme.strong } else { Style::new() };
    let pointer = if chosen { format!("{} ", model.symbols.pointer) } else { "  ".to_owned() };
    let name = text::fit(&stage.name, names, model.symbols.ellipsis);
    let pad = " ".repeat(names.saturating_sub(text::width(&name)) + 2);
    let mut spans = vec![Span::styled(pointer, model.theme.accent), Span::styled(format!("{name}{pad}"), style)];
    let status = match newest(model, curriculum, stage) {
        Some(row) => state(model, StateKind::of(&row.state)),
        None => Span::styled(format!("{} not started", model.symbols.states[0]), model.theme.faint),
    };
    let gap = 15usize.saturating_sub(status.width());
    spans.push(status);
    spans.push(Span::raw(" ".repeat(gap)));
    if width >= 60 {
        let what = match stage.command {
            Some(_) => "own command".to_owned(),
            None => format!("{:>7} tokens", units::grouped(stage.seq_len as u64)),
        };
        let facts = format!("{what:>14}  {:>12}", stage.length());
        spans.push(Span::styled(facts, style));
    }
    if let (Some(row), true) = (newest(model, curriculum, stage), width >= 76) {
        spans.push(Span::raw("  "));
        spans.extend(progress(model, row, (width - 65).min(24)));
    }
    Line::from(spans)
}

/// Draws the details of a stage below the list; `unseen` is the number of stages that are hidden below the visible
/// rows.
fn details(model: &Model, buf: &mut Buffer, area: Rect, curriculum: &CurriculumView, stage: &StageView, unseen: usize) {
    let more = match unseen {
        0 => Vec::new(),
        n => {
            let text = format!("{} {} below", model.symbols.ellipsis, units::counted(n, "stage"));
            vec![Span::styled(text, model.theme.faint)]
        }
    };
    let below = panel(model, buf, area, &stage.name, more, false);
    let (theme, symbols) = (&model.theme, &model.symbols);
    let width = usize::from(below.width);
    let dot = format!(" {} ", symbols.separator);
    let facts = match &stage.command {
        Some(_) => vec![stage.length(), units::counted(stage.ranks, "rank")],
        None => vec![
            format!("{} parameters", units::count(stage.params)),
            format!("{} latent frames", stage.latent_frames),
            format!("{} of {}", stage.length(), units::counted(stage.global_batch, "sample")),
            units::counted(stage.ranks, "rank"),
        ],
    };
    let mut lines: Vec<Line<'static>> =
        text::wrap(&facts.join(&dot), width).into_iter().map(|line| Line::styled(line, theme.faint)).collect();
    if let Some(command) = &stage.command {
        let command = text::fit(&text::clean(command), width.saturating_sub(13), symbols.ellipsis);
        lines.push(Line::from(vec![Span::styled("Command      ", theme.faint), Span::raw(command)]));
    }
    lines.push(Line::default());
    let (from, ready) = match weights(model, curriculum, stage) {
        Weights::Random if stage.command.is_some() => ("set by the command".to_owned(), true),
        Weights::Random => ("random weights".to_owned(), true),
        Weights::File(path) => (format!("weights in {path}"), true),
        Weights::Run(row, step) => (format!("{}, step {}", short_id(&row.run), units::grouped(step)), true),
        Weights::Missing(before) => (format!("stage {}, which has no checkpoint yet", before.name), false),
    };
    let mut start = vec![Span::styled("Starts from  ", theme.faint), Span::raw(from)];
    if !ready {
        start.push(Span::styled(
            format!("  {} start that stage first", symbols.states[StateKind::Stalled as usize]),
            theme.warn,
        ));
    }
    lines.push(Line::from(start));
    if let Some(row) = newest(model, curriculum, stage) {
        let kind = StateKind::of(&row.state);
        let what = format!("{}, {} at step {}", short_id(&row.run), kind.word(), units::grouped(row.step));
        lines.push(Line::from(vec![Span::styled("Newest run   ", theme.faint), Span::raw(what)]));
    }
    lines.push(Line::default());
    let mut keys = Vec::new();
    if ready {
        keys.extend(hint(
            model,
            &model.keys.name(Context::Stages, Action::StartStage),
            &format!("start {}", stage.name),
        ));
        keys.push(Span::styled(" (shows the plan first)", theme.faint));
    }
    if newest(model, curriculum, stage).is_some() {
        keys.push(Span::raw(if ready { "   " } else { "" }));
        keys.extend(hint(model, &model.keys.name(Context::Stages, Action::Open), "open the newest run"));
    }
    if !keys.is_empty() {
        lines.push(Line::from(keys));
        lines.push(Line::default());
    }
    lines.extend(changes(model, stage, width, usize::from(below.height).saturating_sub(lines.len())));
    write_lines(model, buf, below, lines);
}

/// Returns the changes of a stage as lines, at most `room`; the last line counts the changes that are left out.
fn changes(model: &Model, stage: &StageView, width: usize, room: usize) -> Vec<Line<'static>> {
    if stage.changes.is_empty() || room < 2 {
        return Vec::new();
    }
    let (theme, symbols) = (&model.theme, &model.symbols);
    let first = stage.changes.iter().all(|change| change.from.is_none());
    let title = if first { "Settings" } else { "Changes from the previous stage" };
    let mut lines = vec![Line::styled(title, theme.faint)];
    let shown = if stage.changes.len() < room { stage.changes.len() } else { room - 2 };
    let keys = stage.changes.iter().map(|change| text::width(&change.key)).max().unwrap_or(0);
    for change in &stage.changes[..shown] {
        let pad = " ".repeat(keys.saturating_sub(text::width(&change.key)) + 2);
        let mut spans = vec![Span::raw(format!("  {}{pad}", change.key))];
        // Long paths usually differ at the end, so their beginning is cut.
        let room = width.saturating_sub(keys + 8) / 2;
        if let Some(from) = &change.from {
            let from = text::fit_end(from, room, symbols.ellipsis);
            spans.push(Span::styled(format!("{from} {} ", symbols.arrow), theme.faint));
        }
        spans.push(Span::styled(text::fit_end(&change.to, room, symbols.ellipsis), theme.strong));
        lines.push(Line::from(spans));
    }
    let left = stage.changes.len() - shown;
    if left > 0 {
        lines.push(Line::styled(format!("  {} and {left} more", symbols.ellipsis), theme.faint));
    }
    lines
}
