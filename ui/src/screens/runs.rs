//! The Runs screen: lists all runs, newest first, with the details of the selected run and, where there is room, its
//! results, checkpoints, events and main chart.

use crate::advice;
use crate::bindings::{Action, Context};
use crate::effect::{Effect, Request, Watch};
use crate::goodput_text;
use crate::jobs::Intent;
use crate::layout;
use crate::model::{Input, Model, Purpose, RunScreen, Screen};
use crate::msg::RunRow;
use crate::run_actions;
use crate::run_state::{StateKind, short_id};
use crate::screens::{Behaviour, Press, compare, preview, run, run_queue, run_sections, stages};
use crate::text;
use crate::widgets::details::{self, Section};
use crate::widgets::table::{self, Align, Column, GAP, Rows, Table};
use crate::widgets::{failure_lines, hint, progress, state, write_centered};
use health::Urgency;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use std::collections::BTreeSet;
use units::counted;

/// Rows of the details below the list.
const DETAILS: u16 = 8;

/// The minimum width and height of the details that show the main chart of the selected run.
const PREVIEW: (u16, u16) = (110, 14);

/// Scrolls to the selected run.
pub fn keep_selection(model: &mut Model) {
    let rows = model.visible_runs();
    model.screens.runs.top = listed(model, &rows).scrolled();
}

/// Sets the filter.
pub fn set_filter(model: &mut Model, filter: String) {
    model.screens.runs.filter = filter;
    model.screens.runs.top = 0;
    keep_selection(model);
}

/// The screen.
pub struct Runs;

impl Behaviour for Runs {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let rows = model.visible_runs();
        let at = model.run_position(&rows);
        let page = listed(model, &rows).page();
        let last = rows.len().saturating_sub(1);
        if let Some(target) = layout::moved(action, at, page, last) {
            model.screens.runs.selected = rows.get(target).map(|row| row.run.clone());
            keep_selection(model);
            return Vec::new();
        }
        match action {
            Action::NewRun => {
                let run = rows.get(at).map(|row| row.run.clone());
                if !run.is_some_and(|run| model.open_form_again(&run)) {
                    stages::open(model);
                }
            }
            Action::Queue => {
                model.screens.runs.whole_queue = !model.screens.runs.whole_queue;
                keep_selection(model);
            }
            Action::Filter => {
                model.input = Some(Input::new(Purpose::Filter, model.screens.runs.filter.clone()));
            }
            Action::Encode => {
                model.input = Some(Input::new(Purpose::Encode, model.encode_arguments.clone()));
            }
            Action::Attach => model.input = Some(Input::new(Purpose::Attach, String::new())),
            Action::Mark => {
                if let Some(run) = rows.get(at).map(|row| row.run.clone()) {
                    if !model.screens.runs.marked.remove(&run) {
                        model.screens.runs.marked.insert(run);
                    }
                    return self.on_action(model, Action::Down);
                }
            }
            Action::Compare => compare::open(model),
            Action::Resume | Action::Stop | Action::Kill | Action::Delete if !model.screens.runs.marked.is_empty() => {
                return run_actions::act_on_marked(model, action);
            }
            Action::Back if !model.screens.runs.marked.is_empty() => model.screens.runs.marked.clear(),
            Action::Back => set_filter(model, String::new()),
            other => return run_actions::act(model, other),
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, _body: Rect) {
        let (body, queue) = run_queue::areas(model);
        run_queue::view(model, buf, queue);
        let list = match &model.runs {
            None => {
                write_centered(model, buf, body, vec![Line::styled("Loading runs…", model.theme.faint)]);
                return;
            }
            Some(Err(failure)) => {
                let width = usize::from(body.width.min(76));
                write_centered(model, buf, body, failure_lines(model, failure, width));
                return;
            }
            Some(Ok(list)) => list,
        };
        if list.rows.is_empty() {
            empty(model, buf, body, &list.unreadable);
            return;
        }
        let rows = model.visible_runs();
        if rows.is_empty() {
            let nothing = format!("No run matches \"{}\"", model.screens.runs.filter);
            let clear = hint(model, &model.keys.name(Context::Runs, Action::Back), "show all runs");
            write_centered(model, buf, body, vec![Line::from(nothing), Line::default(), Line::from(clear)]);
            return;
        }
        let (_, below) = list_area(model, rows.len());
        table(model, buf, &rows);
        if let Some(row) = rows.get(model.run_position(&rows)) {
            details(model, buf, below, row, &list.unreadable);
        }
    }

    fn open(&self, model: &mut Model) {
        model.screen = Screen::Runs;
    }

    fn watches(&self, _: &Model, wanted: &mut BTreeSet<Watch>) {
        wanted.insert(Watch::Queue);
    }

    fn keep_selection(&self, model: &mut Model) {
        keep_selection(model);
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        Press::row(listed(model, &model.visible_runs()).until(at.y))
    }

    fn preview<'a>(&self, model: &'a Model) -> Option<&'a RunRow> {
        model.selected_run().filter(|_| has_preview(model))
    }

    fn on_typed(&self, model: &mut Model, _: Purpose, text: &str) {
        set_filter(model, text.to_owned());
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        match input.purpose {
            Purpose::Encode => encode(model, input.text),
            Purpose::Attach => attach(model, input.text),
            Purpose::Note => write_note(model, input.text),
            _ => Vec::new(),
        }
    }
}

/// Writes the note of the run for which the user opened the input.
fn write_note(model: &mut Model, note: String) -> Vec<Effect> {
    let Some(run) = model.screens.runs.selected.clone() else { return Vec::new() };
    let job = model.jobs.start(Intent::Note(run.clone()));
    vec![Effect::Job { job, request: Request::WriteNote { run, note } }]
}

/// Requests the plan of an encode with the arguments that the user typed.
pub fn encode(model: &mut Model, arguments: String) -> Vec<Effect> {
    let job = model.jobs.start(Intent::PlanStage { stage: "the encode".to_owned() });
    vec![Effect::Job { job, request: Request::PlanEncode { arguments } }]
}

/// Requests the plan to watch a program, with the arguments that the user typed.
fn attach(model: &mut Model, arguments: String) -> Vec<Effect> {
    let job = model.jobs.start(Intent::PlanStage { stage: "the program".to_owned() });
    vec![Effect::Job { job, request: Request::PlanAttach { arguments } }]
}

fn list_area(model: &Model, rows: usize) -> (Rect, Rect) {
    let (body, _) = run_queue::areas(model);
    let details = if body.width >= PREVIEW.0 && body.height >= 2 * PREVIEW.1 { PREVIEW.1 } else { DETAILS };
    layout::list_and_details(body, rows as u16 + 2, details)
}

fn listed(model: &Model, rows: &[&RunRow]) -> Rows {
    let (area, _) = list_area(model, rows.len());
    Rows { area, top: model.screens.runs.top, selected: model.run_position(rows), count: rows.len() }
}

/// Returns whether the screen has room for the metrics and events of the selected run.
fn has_preview(model: &Model) -> bool {
    let (_, below) = list_area(model, model.visible_runs().len());
    below.width >= PREVIEW.0 && below.height >= PREVIEW.1
}

fn empty(model: &Model, buf: &mut Buffer, body: Rect, unreadable: &[rundir::Failure]) {
    let width = usize::from(body.width.min(76));
    let mut lines = vec![
        Line::styled("No runs yet", model.theme.strong),
        Line::styled(
            text::fit_end(&format!("in {}", model.runs_dir), width, model.symbols.ellipsis),
            model.theme.faint,
        ),
        Line::default(),
        Line::from(hint(model, &model.keys.name(Context::Runs, Action::NewRun), "choose a stage and start training")),
        Line::from(hint(model, &model.keys.name(Context::Runs, Action::Encode), "encode videos")),
        Line::from(hint(model, &model.keys.name(Context::Runs, Action::Help), "show all keys")),
    ];
    if let Some(failure) = unreadable.first() {
        lines.push(Line::default());
        lines.push(Line::styled(unreadable_line(unreadable.len()), model.theme.warn));
        lines.extend(failure_lines(model, failure, width));
    }
    write_centered(model, buf, body, lines);
}

fn unreadable_line(n: usize) -> String {
    format!("{} not readable as a run:", counted(n, "folder"))
}

/// The columns of the table, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RunColumn {
    State,
    Name,
    /// The steps, clips or videos that are done.
    Done,
    /// The progress bars, which also get the remaining width. They are beside the steps.
    Bar,
    Loss,
    Left,
    Age,
    Stage,
    Ranks,
}

/// The columns after state and name, the most important first, with title, alignment and least width.
const RUN_COLUMNS: [(RunColumn, &str, Align, usize); 7] = [
    (RunColumn::Done, "done", Align::Right, 0),
    (RunColumn::Loss, "loss", Align::Right, 6),
    (RunColumn::Left, "left", Align::Right, 6),
    (RunColumn::Age, "age", Align::Right, 6),
    (RunColumn::Stage, "stage", Align::Left, 0),
    (RunColumn::Bar, "progress", Align::Left, 8),
    (RunColumn::Ranks, "ranks", Align::Right, 5),
];

impl RunColumn {
    /// Returns the text of a run; empty for the columns that are drawn.
    fn text(self, model: &Model, row: &RunRow) -> String {
        let none = || model.symbols.none.to_owned();
        match self {
            Self::Name => short_id(&row.run).to_owned(),
            Self::Done => row.progress().short(),
            Self::Loss => row.loss.map_or_else(none, units::number),
            Self::Left => row.eta_s.map_or_else(none, units::short_duration),
            Self::Age => units::short_duration(model.now - row.created_s),
            Self::Stage => row.stage.clone().unwrap_or_default(),
            Self::Ranks => row.ranks.to_string(),
            Self::State | Self::Bar => String::new(),
        }
    }
}

fn columns(model: &Model, rows: &[&RunRow], width: usize) -> Table<RunColumn> {
    const STATE: usize = 10;
    let widest = |column: RunColumn| table::widest(rows.iter().map(|row| column.text(model, row)));
    let name = widest(RunColumn::Name).clamp(8, 40);
    let least_name = name.min(width / 3);
    let mut table = Table::new(width.saturating_sub(2)).with([
        Column::new(RunColumn::State, "state", Align::Left, STATE),
        Column::new(RunColumn::Name, "run", Align::Left, least_name),
    ]);
    for (column, title, align, least) in RUN_COLUMNS {
        let width = least.max(widest(column)).max(text::width(title));
        table.add([Column::new(column, title, align, width)], 0);
    }
    table.widen(|column| *column == RunColumn::Name, name - least_name);
    table.widen(|column| *column == RunColumn::Bar, 24);
    table.columns.sort_by_key(|column| column.of);
    table
}

/// The span of the name in a row, after the pointer and the state. It begins with the gap, in which a mark may be.
const NAME_SPAN: usize = 2;

fn table(model: &Model, buf: &mut Buffer, rows: &[&RunRow]) {
    let listed = listed(model, rows);
    let table = columns(model, rows, usize::from(listed.area.width));
    let line = |at: usize, is_selected: bool| {
        let row = rows[at];
        let style = if is_selected { model.theme.strong } else { Style::new() };
        let cell = |column: &Column<RunColumn>| match column.of {
            RunColumn::State => Line::from(state(model, StateKind::of(&row.state))),
            RunColumn::Bar => Line::from(progress(model, row, column.width())),
            of => Line::from(Span::styled(of.text(model, row), style)),
        };
        let is_marked = model.screens.runs.marked.contains(&row.run);
        let margin = vec![table::pointer(model, is_selected, is_marked)];
        let mut line = table.line(model, margin, table.columns.iter().map(cell));
        // The state of a stalled run already has this mark.
        let worth_a_look = row.findings.first().is_some_and(|finding| finding.urgency < Urgency::Note);
        if worth_a_look && StateKind::of(&row.state) != StateKind::Stalled {
            let glyph = model.symbols.states[StateKind::Stalled as usize];
            let name = &mut line.spans[NAME_SPAN];
            name.content = name.content[GAP..].to_owned().into();
            line.spans.insert(NAME_SPAN, Span::styled(format!("{glyph} "), model.theme.warn));
        }
        line
    };
    listed.draw(model, buf, table.heading(model, 2), line);
    listed.draw_hidden(model, buf);
}

/// Returns the findings of a run after the first, its throughput, and its lost time by cause.
fn more_details(model: &Model, row: &RunRow, open: Option<&RunScreen>, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for finding in row.findings.iter().skip(1) {
        let text = format!("{} {}", model.symbols.separator, advice::finding_in_words(model.now, finding));
        lines.extend(text::wrap(&text::clean(&text), width).into_iter().map(Line::from));
    }
    let Some(open) = open else { return lines };
    let facts = run::facts_line(model, open);
    if facts.width() > 0 {
        lines.extend([Line::default(), facts]);
    }
    let losses = open.goodput.as_ref().map(goodput_text::losses).filter(|losses| !losses.is_empty());
    if let Some(losses) = losses {
        let text = format!("lost: {losses}");
        lines.extend(text::wrap(&text, width).into_iter().map(|line| Line::styled(line, model.theme.faint)));
    }
    lines
}

fn details(model: &Model, buf: &mut Buffer, area: Rect, row: &RunRow, unreadable: &[rundir::Failure]) {
    if area.height < 2 {
        return;
    }
    let has_preview = has_preview(model);
    let (area, beside) = if has_preview {
        const GAP: u16 = 3;
        let width = area.width * 2 / 5;
        let x = area.x + width + GAP;
        (Rect { width, ..area }, Rect { x, width: area.width - width - GAP, ..area })
    } else {
        (area, Rect { height: 0, ..area })
    };
    let width = usize::from(area.width);
    let open = preview::loaded(model);
    if beside.height > 0 {
        run::preview(model, row, open, buf, beside);
    }
    let facts = run_sections::facts_line(model, row);
    let mut lines = match has_preview {
        true => text::wrap(&facts, width).into_iter().map(|line| Line::styled(line, model.theme.faint)).collect(),
        false => vec![Line::styled(facts, model.theme.faint)],
    };
    let room = usize::from(area.height - 1).saturating_sub(lines.len());
    lines.extend(advice::shortened(model, advice::lines(model, row, Context::Runs, width), room));
    if has_preview {
        lines.extend(more_details(model, row, open, width));
    }
    if let Some(failure) = unreadable.first() {
        let others = match unreadable.len() {
            1 => String::new(),
            n => format!(" ({} more like this)", n - 1),
        };
        let glyph = model.symbols.states[StateKind::Stalled as usize];
        let text = format!("{glyph} {}: {}{others}. Hint: {}", failure.what, failure.why, failure.fix);
        lines.push(Line::default());
        lines.extend(text::wrap(&text, width).into_iter().map(|line| Line::styled(line, model.theme.warn)));
    }
    let mut sections = vec![Section::new(short_id(&row.run), Vec::new(), lines)];
    if has_preview {
        sections.extend(run_sections::of_run(model, row, open, width));
    }
    details::stack(model, buf, area, sections);
}
