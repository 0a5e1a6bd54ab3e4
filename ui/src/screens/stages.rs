//! The Stages screen: lists the stages of each curriculum, with their changes and the source of their weights.

use crate::bindings::{Action, Context};
use crate::draft::{Fit, LaunchDraft};
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{FailureDialog, Input, Modal, Model, Purpose, Screen};
use crate::msg::{CurriculumView, RunRow, StageView};
use crate::run_state::StateKind;
use crate::screens::{Behaviour, Press, stage_details};
use crate::text;
use crate::widgets::{details, failure_lines, hint, progress, state, write, write_centered, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
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
    all_stages(model).nth(model.screens.stages.selected)
}

/// Returns the newest run of the selected stage.
pub fn newest_run(model: &Model) -> Option<&RunRow> {
    let (curriculum, stage) = selected(model)?;
    newest(model, curriculum, stage)
}

/// Returns the newest run of a stage.
pub fn newest<'a>(model: &'a Model, curriculum: &'a CurriculumView, stage: &'a StageView) -> Option<&'a RunRow> {
    model.runs_of_stage(&curriculum.path, &stage.name).next()
}

/// Returns whether the selected stage has weights to start from.
pub fn can_start(model: &Model) -> bool {
    selected(model).is_some_and(|(c, stage)| !matches!(weights(model, c, stage), Weights::Missing(_)))
}

/// The source of a stage's weights.
pub enum Weights<'a> {
    /// New weights.
    Random,
    /// The path of a checkpoint.
    File(String),
    /// A run and the step of its newest checkpoint.
    Run(&'a RunRow, u64),
    /// The stage that must be trained first.
    Missing(&'a StageView),
}

/// Returns the source of a stage's weights. For `previous`, this is the checkpoint of the previous stage.
pub fn weights<'a>(model: &'a Model, curriculum: &'a CurriculumView, stage: &'a StageView) -> Weights<'a> {
    match &stage.start {
        StageStart::Random => Weights::Random,
        StageStart::Path(path) => Weights::File(path.to_string()),
        StageStart::Previous => {
            let stages = curriculum.stages.as_deref().unwrap_or_default();
            let at = stages.iter().position(|s| s.name == stage.name).unwrap_or(0);
            let Some(before) = at.checked_sub(1).and_then(|at| stages.get(at)) else { return Weights::Random };
            let checkpoint =
                chosen_checkpoint(model, curriculum, before).or_else(|| checkpoint(model, curriculum, before));
            checkpoint.map_or(Weights::Missing(before), |(row, step)| Weights::Run(row, step))
        }
    }
}

/// Returns the run from which the screen was opened and the step of its newest checkpoint, if it is a finished run of this
/// stage.
fn chosen_checkpoint<'a>(
    model: &'a Model,
    curriculum: &CurriculumView,
    stage: &StageView,
) -> Option<(&'a RunRow, u64)> {
    let row = model.row(model.screens.stages.from.as_ref()?)?;
    let is_of_stage = row.curriculum.as_ref() == Some(&curriculum.path) && row.stage.as_ref() == Some(&stage.name);
    let step = row.checkpoint_step.filter(|_| is_of_stage && StateKind::of(&row.state) == StateKind::Finished)?;
    Some((row, step))
}

/// Returns the run and the step of the checkpoint that the stage after this one starts from: the newest one of the
/// newest finished run that has one, or else of the newest run that has one.
pub fn checkpoint<'a>(
    model: &'a Model,
    curriculum: &'a CurriculumView,
    stage: &'a StageView,
) -> Option<(&'a RunRow, u64)> {
    let saved = || {
        let runs = model.runs_of_stage(&curriculum.path, &stage.name);
        runs.filter_map(|row| row.checkpoint_step.map(|step| (row, step)))
    };
    let finished = saved().find(|(row, _)| StateKind::of(&row.state) == StateKind::Finished);
    finished.or_else(|| saved().next())
}

/// Opens the screen and selects a stage: that of the current run, or the next one, which then starts from its weights, if the
/// run has finished. Without such a run, it selects the first stage that has no finished run.
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
    let from = target.map(|row| row.run.clone());
    let unfinished = || {
        all_stages(model).position(|(c, stage)| {
            !model.runs_of_stage(&c.path, &stage.name).any(|row| StateKind::of(&row.state) == StateKind::Finished)
        })
    };
    model.screens.stages.selected = of_run.or_else(unfinished).unwrap_or(0);
    model.screens.stages.from = from;
    model.screen = Screen::Stages;
    keep_selection(model);
}

/// Limits the selection to the existing stages, and scrolls to the selected one.
pub fn keep_selection(model: &mut Model) {
    model.screens.stages.selected = model.screens.stages.selected.min(all_stages(model).count().saturating_sub(1));
    let rows = rows(model);
    let selected = model.screens.stages.selected;
    let at = rows.iter().position(|row| matches!(row, StagesRow::Stage(n, ..) if *n == selected)).unwrap_or(0);
    let visible = usize::from(areas(model, rows.len()).0.height);
    let top = layout::scrolled(model.screens.stages.top, at, visible);
    // Show the title of the curriculum together with its first stage.
    model.screens.stages.top = if at <= 2 { 0 } else { top };
}

/// The screen.
pub struct Stages;

impl Behaviour for Stages {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let at = model.screens.stages.selected;
        match action {
            Action::Up => model.screens.stages.selected = at.saturating_sub(1),
            Action::Down => model.screens.stages.selected = at + 1,
            Action::PageUp | Action::Top => model.screens.stages.selected = 0,
            Action::PageDown | Action::Bottom => model.screens.stages.selected = usize::MAX,
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

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
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
            lines.push(Line::from(hint(
                model,
                &model.keys.name(Context::Stages, Action::LaunchRecipe),
                "launch a recipe",
            )));
            write_centered(model, buf, body, lines);
            return;
        }
        let rows = rows(model);
        let (list, below) = areas(model, rows.len());
        let names = all_stages(model).map(|(_, stage)| text::width(&stage.name)).max().unwrap_or(0).clamp(5, 24);
        for (y, row) in (list.top()..list.bottom()).zip(rows.iter().skip(model.screens.stages.top)) {
            let area = Rect { y, height: 1, ..list };
            match row {
                StagesRow::Air => {}
                StagesRow::Title(curriculum) => {
                    let path =
                        text::fit_end(curriculum.path.as_str(), usize::from(list.width) / 2, model.symbols.ellipsis);
                    let title = Line::styled(curriculum.title.clone(), model.theme.strong);
                    crate::widgets::write_split(model, buf, area, title, Line::styled(path, faint));
                }
                StagesRow::Broken(failure) => {
                    write(
                        model,
                        buf,
                        area,
                        Line::styled(format!("  {}: {}", failure.what, failure.why), model.theme.bad),
                    );
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
                let unseen = rows.iter().skip(model.screens.stages.top + usize::from(list.height));
                let unseen = unseen.filter(|row| matches!(row, StagesRow::Stage(..))).count();
                stage_details::view(model, buf, below, curriculum, stage, unseen);
            }
            None => {
                if let Some(Err(failure)) = curricula.first().map(|c| &c.stages) {
                    write_lines(model, buf, below, failure_lines(model, failure, usize::from(below.width)));
                }
            }
        }
    }

    fn open(&self, model: &mut Model) {
        open(model);
    }

    fn tab(&self) -> Action {
        Action::ShowStages
    }

    fn keep_selection(&self, model: &mut Model) {
        keep_selection(model);
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        Press::row(stages_until(model, at.y))
    }

    fn preview<'a>(&self, model: &'a Model) -> Option<&'a RunRow> {
        newest_run(model).filter(|_| details::has_more(model.size))
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        launch_typed(model, input.text)
    }
}

/// Requests the draft that the typed launch arguments describe; the answer opens the launch form.
pub fn launch_typed(model: &mut Model, arguments: String) -> Vec<Effect> {
    let job = model.jobs.start(Intent::ReadLaunch);
    vec![Effect::Job { job, request: Request::ReadLaunch { arguments } }]
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
    model.open_form(draft);
    Vec::new()
}

fn areas(model: &Model, rows: usize) -> (Rect, Rect) {
    layout::list_and_details(layout::areas(model.size).body, rows as u16 + 1, details::least_rows(model.size, DETAILS))
}

/// Returns the number of stages from the selected one to the one at a row of the terminal.
fn stages_until(model: &Model, row: u16) -> Option<isize> {
    let rows = rows(model);
    let at = layout::entries_until(areas(model, rows.len()).0, row, model.screens.stages.top, 0, rows.len())?;
    let StagesRow::Stage(clicked, ..) = rows.get(at as usize)? else { return None };
    Some(*clicked as isize - model.screens.stages.selected as isize)
}

fn stage_line(
    model: &Model,
    number: usize,
    curriculum: &CurriculumView,
    stage: &StageView,
    names: usize,
    width: usize,
) -> Line<'static> {
    let chosen = number == model.screens.stages.selected;
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
        let facts = format!("{what:>14}  {:>12}", stage.length_in_words());
        spans.push(Span::styled(facts, style));
    }
    if let (Some(row), true) = (newest(model, curriculum, stage), width >= 76) {
        spans.push(Span::raw("  "));
        spans.extend(progress(model, row, (width - 65).min(24)));
    }
    Line::from(spans)
}
