//! The details of the selected stage. A large terminal also shows all its changes and its runs, the checkpoints of all
//! stages, and the loss of its newest run.

use crate::advice;
use crate::bindings::{Action, Context};
use crate::model::Model;
use crate::msg::{CurriculumView, RunRow, StageView};
use crate::run_state::{StateKind, short_id};
use crate::screens::stages::{self, Weights};
use crate::screens::{preview, run_sections};
use crate::text;
use crate::widgets::aligned::{self, Setting};
use crate::widgets::details::{self, Section};
use crate::widgets::hint;
use crate::widgets::table::{self, Align};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Draws the details of a stage below the list; `unseen` is the number of stages that are hidden below the visible
/// rows.
pub fn view(
    model: &Model,
    buf: &mut Buffer,
    area: Rect,
    curriculum: &CurriculumView,
    stage: &StageView,
    unseen: usize,
) {
    let value = match unseen {
        0 => Vec::new(),
        n => {
            let text = format!("{} {} below", model.symbols.ellipsis, units::counted(n, "stage"));
            vec![Span::styled(text, model.theme.faint)]
        }
    };
    let width = details::width(model.size, area);
    let mut lines = facts(model, curriculum, stage, width);
    if !details::has_more(model.size) {
        let room = usize::from(area.height.saturating_sub(1)).saturating_sub(lines.len());
        if !stage.changes.is_empty() && room >= 2 {
            lines.push(Line::default());
            lines.extend(changes(model, stage, width, room - 1));
        }
    }
    let main = Section::new(stage.name.as_str(), value, lines);
    let below = || vec![all_changes(model, stage, width)];
    let beside = || vec![runs(model, curriculum, stage), checkpoints(model, curriculum, stage)];
    let rest = details::view(model, buf, area, main, below, beside);
    if let Some(row) = stages::newest(model, curriculum, stage) {
        run_sections::chart(model, row, preview::loaded(model), buf, rest);
    }
}

/// The names of the facts below the first line, which are equally wide.
const COMMAND: &str = "Command      ";
const STARTS_FROM: &str = "Starts from  ";
const NEWEST_RUN: &str = "Newest run   ";

/// Returns the facts of a stage, the source of its weights, and the keys to press next.
fn facts(model: &Model, curriculum: &CurriculumView, stage: &StageView, width: usize) -> Vec<Line<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let facts = match &stage.command {
        Some(_) => vec![stage.length_in_words(), units::counted(stage.ranks, "rank")],
        None => vec![
            format!("{} parameters", units::count(stage.params)),
            format!("{} latent frames", stage.latent_frames),
            format!("{} of {}", stage.length_in_words(), units::counted(stage.global_batch, "sample")),
            units::counted(stage.ranks, "rank"),
        ],
    };
    let dot = format!(" {} ", symbols.separator);
    let mut lines: Vec<Line<'static>> =
        text::wrap(&facts.join(&dot), width).into_iter().map(|line| Line::styled(line, theme.faint)).collect();
    let named = |name: &'static str, text: &str| {
        aligned::hanging(vec![Span::styled(name, theme.faint)], text, Style::new(), width)
    };
    if let Some(command) = &stage.command {
        let cut = || text::fit(&text::clean(command), width.saturating_sub(COMMAND.len()), symbols.ellipsis);
        let command = if details::has_more(model.size) { command.clone() } else { cut() };
        lines.extend(named(COMMAND, &command));
    }
    lines.push(Line::default());
    let (from, ready) = source(model, curriculum, stage);
    lines.extend(named(STARTS_FROM, &from));
    if !ready {
        let glyph = symbols.states[StateKind::Stalled as usize];
        let warning = Span::styled(format!("{glyph} start that stage first"), theme.warn);
        let fits = lines.last().is_some_and(|last| last.width() + 2 + warning.width() <= width);
        let indent = if fits { 2 } else { STARTS_FROM.len() };
        if !fits {
            lines.push(Line::default());
        }
        if let Some(last) = lines.last_mut() {
            last.spans.extend([Span::raw(" ".repeat(indent)), warning]);
        }
    }
    let newest = stages::newest(model, curriculum, stage);
    if let Some(row) = newest {
        let kind = StateKind::of(&row.state);
        let what = format!("{}, {} at step {}", short_id(&row.run), kind.word(), units::grouped(row.step));
        lines.extend(named(NEWEST_RUN, &what));
    }
    let mut hints = Vec::new();
    if ready {
        let key = model.keys.name(Context::Stages, Action::StartStage);
        let mut start = hint(model, &key, &format!("start {}", stage.name));
        start.push(Span::styled(" (shows the plan first)", theme.faint));
        hints.push(start);
    }
    if newest.is_some() {
        hints.push(hint(model, &model.keys.name(Context::Stages, Action::Open), "open the newest run"));
    }
    if !hints.is_empty() {
        lines.push(Line::default());
    }
    let wanted = hints.iter().flatten().map(Span::width).sum::<usize>() + 3 * hints.len().saturating_sub(1);
    if wanted <= width {
        let joined = hints.into_iter().reduce(|mut line, next| {
            line.push(Span::raw("   "));
            line.extend(next);
            line
        });
        lines.extend(joined.map(Line::from));
    } else {
        lines.extend(hints.into_iter().map(Line::from));
    }
    lines
}

/// Returns the source of a stage's weights in words, and whether it exists.
fn source(model: &Model, curriculum: &CurriculumView, stage: &StageView) -> (String, bool) {
    match stages::weights(model, curriculum, stage) {
        Weights::Random if stage.command.is_some() => ("set by the command".to_owned(), true),
        Weights::Random => ("random weights".to_owned(), true),
        Weights::File(path) => (format!("weights in {path}"), true),
        Weights::Run(row, step) => (format!("{}, step {}", short_id(&row.run), units::grouped(step)), true),
        Weights::Missing(before) => (format!("stage {}, which has no checkpoint yet", before.name), false),
    }
}

fn title_of_changes(stage: &StageView) -> &'static str {
    match stage.changes.iter().all(|change| change.from.is_none()) {
        true => "Settings",
        false => "Changes from the previous stage",
    }
}

/// Returns the changes of a stage as lines, at most `room`; the last line counts the changes that are left out.
fn changes(model: &Model, stage: &StageView, width: usize, room: usize) -> Vec<Line<'static>> {
    if stage.changes.is_empty() || room < 2 {
        return Vec::new();
    }
    let (theme, symbols) = (&model.theme, &model.symbols);
    let mut lines = vec![Line::styled(title_of_changes(stage), theme.faint)];
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

/// Returns all changes of a stage with their whole values.
fn all_changes(model: &Model, stage: &StageView, width: usize) -> Section {
    let keys = stage.changes.iter().map(|change| text::width(&change.key)).max().unwrap_or(0);
    let settings = stage.changes.iter().map(|change| Setting {
        key: &change.key,
        before: change.from.as_deref(),
        value: &change.to,
    });
    let lines = aligned::settings(model, &settings.collect::<Vec<_>>(), keys, width);
    Section::counted(model, title_of_changes(stage), stage.changes.len(), lines)
}

/// Returns the runs of a stage, newest first.
fn runs(model: &Model, curriculum: &CurriculumView, stage: &StageView) -> Section {
    let runs: Vec<&RunRow> = model.runs_of_stage(&curriculum.path, &stage.name).collect();
    run_sections::of_runs(model, format!("Runs of {}", stage.name), &runs)
}

/// Returns the checkpoint of each stage that the next stage starts from, and the origin of its weights.
fn checkpoints(model: &Model, curriculum: &CurriculumView, stage: &StageView) -> Section {
    let columns = [("  stage", Align::Left), ("run", Align::Left), ("step", Align::Right), ("origin", Align::Left)];
    let row = |other: &StageView| {
        let pointer = if other.name == stage.name { model.symbols.pointer } else { " " };
        let name = Span::raw(format!("{pointer} {}", other.name));
        match stages::checkpoint(model, curriculum, other) {
            Some((row, step)) => vec![
                name,
                Span::raw(short_id(&row.run).to_owned()),
                Span::raw(units::grouped(step)),
                Span::raw(advice::origin(row).unwrap_or_default()),
            ],
            None => vec![
                name,
                Span::raw(model.symbols.none),
                Span::raw(model.symbols.none),
                Span::styled(source(model, curriculum, other).0, model.theme.faint),
            ],
        }
    };
    let rows = curriculum.stages.iter().flatten().map(row).collect();
    Section::new("Checkpoints through the stages", Vec::new(), table::lines(model, &columns, rows))
}
