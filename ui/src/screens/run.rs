//! The Run screen: shows the state of one run, advice, charts, checkpoints and events.

use crate::advice;
use crate::bindings::{Action, Context};
use crate::effect::{ChartSpec, Effect, ImageFormat, PlottedChart, Request, Watch};
use crate::goodput_text;
use crate::jobs::Intent;
use crate::layout::{self, Panel, RunAreas, RunContent};
use crate::model::{
    CheckpointsDialog, Input, LogsScreen, Modal, Model, PanelsDialog, Purpose, RunScreen, Screen, Session, SoughtEvent,
};
use crate::msg::RunRow;
use crate::panel_set;
use crate::rank_set::RankSet;
use crate::run_actions;
use crate::run_state::{StateKind, short_id};
use crate::screens::{
    Behaviour, Press, Wheel, open_with_run, run_lists, run_marks, run_panels, run_recipe, samples, stages,
};
use crate::series::XAxis;
use crate::series::{SMOOTHING, Track};
use crate::widgets::line_chart::ChartLine;
use crate::widgets::shared_axis::SharedAxis;
use crate::widgets::{failure_lines, panel, progress, state, write, write_centered, write_lines, write_split};
use camino::Utf8PathBuf;
use cluster::NodeId;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::text::{Line, Span};
use recipe::{Task, is_name_char};
use rundir::{Chart, EventKind, METRICS};
use runstate::Progress;
use std::collections::BTreeSet;
use units::Unit;

/// The screen.
pub struct Run;

impl Behaviour for Run {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        if action == Action::NextStage && is_encode(model) {
            stages::open(model);
            return Vec::new();
        }
        // Moving the cursor is the most frequent action, and needs only the width of a chart.
        let moves_cursor = matches!(action, Action::CursorLeft | Action::CursorRight);
        let Some(run) = &model.screens.run else { return Vec::new() };
        let columns = if moves_cursor { chart_columns(model, run) } else { 1 };
        let panels = if moves_cursor { Vec::new() } else { content(model, run).panels() };
        let page = usize::from(layout::areas(model.size).body.height / 2).max(1);
        let event_log = event_log(model);
        let panel_areas = (run.focus == Panel::Recipe).then(|| screen_areas(model, run).panels);
        let recipe_area = panel_areas.into_iter().flatten().find(|(panel, _)| *panel == Panel::Recipe);
        let last_of_recipe = recipe_area.map_or(0, |(_, area)| run_recipe::last_scroll(model, run, area));
        let Some(run) = &mut model.screens.run else { return Vec::new() };
        let list = matches!(run.focus, Panel::Checkpoints | Panel::Events | Panel::Recipe);
        let longest = match run.focus {
            Panel::Events => run_lists::visible_events(run).len(),
            Panel::Recipe => last_of_recipe + 1,
            _ => run.checkpoints.as_ref().map_or(0, Vec::len),
        };
        let last = longest.saturating_sub(1);
        match action {
            Action::FocusNext | Action::FocusPrevious => focus_by(run, &panels, action == Action::FocusNext),
            Action::Open if let Some(logs) = event_log => {
                model.screens.logs = Some(logs);
                model.screen = Screen::Logs;
            }
            Action::Open | Action::Enlarge if run.focus == Panel::Samples => samples::open(model),
            Action::Open | Action::Enlarge if run.enlarged => run.restore_panels(),
            Action::Open | Action::Enlarge => run.enlarged = true,
            Action::Checkpoints if panels.contains(&Panel::Checkpoints) => {
                model.modal = Some(Modal::Checkpoints(CheckpointsDialog::default()))
            }
            Action::PickPanels => pick_panels(model),
            Action::Samples => samples::open(model),
            Action::Prompt => samples::open_prompt(model),
            Action::ResumeWith => run_actions::open_resume_with(model),
            Action::Recipes => run.show_panel(Panel::Recipe),
            Action::RankMap if panels.contains(&Panel::Chart(Chart::Loss)) => run.show_panel(Panel::Ranks),
            Action::RankMap => {
                model.warn("Only training runs log the times of their ranks");
            }
            Action::Back if run.enlarged => run.restore_panels(),
            Action::Back => model.screen = Screen::Runs,
            Action::CursorLeft if run.focus == Panel::Samples => run.samples.move_step(-1),
            Action::CursorRight if run.focus == Panel::Samples => run.samples.move_step(1),
            Action::Up if run.focus == Panel::Samples => run.samples.move_prompt(-1),
            Action::Down if run.focus == Panel::Samples => run.samples.move_prompt(1),
            Action::CursorLeft => run.move_cursor(columns, false),
            Action::CursorRight => run.move_cursor(columns, true),
            Action::Up if list => run.scroll = run.scroll.saturating_sub(1),
            Action::Down if list => run.scroll = (run.scroll + 1).min(last),
            Action::PageUp if list => run.scroll = run.scroll.saturating_sub(page),
            Action::PageDown if list => run.scroll = (run.scroll + page).min(last),
            Action::Top if list => run.scroll = 0,
            Action::Bottom if list => run.scroll = last,
            Action::PageUp => run.pan(false),
            Action::PageDown => run.pan(true),
            Action::Top => {
                run.view.put_at_start(run.full_range());
            }
            Action::Bottom => run.view.put_cursor(None, run.full_range()),
            Action::Up | Action::Down => {}
            Action::ZoomIn => run.zoom(0.5, None),
            Action::ZoomOut => run.zoom(2.0, None),
            Action::ResetView => run.reset_view(),
            Action::Smooth => {
                run.smoothing = match run.smoothing {
                    None => Some(0),
                    Some(level) if level + 1 < SMOOTHING.len() => Some(level + 1),
                    Some(_) => None,
                };
                let text = smoothing_words(run.smoothing);
                model.notify(text);
            }
            Action::ToggleX => {
                run.x = if run.x == XAxis::Step { XAxis::Time } else { XAxis::Step };
                run.reset_view();
            }
            Action::LogY => {
                if let Some(chart) = run.focused_chart() {
                    model.panels.toggle_log(chart, &run.series);
                }
            }
            Action::Export => ask_export(model),
            other => return run_actions::act(model, other),
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let Some(run) = &model.screens.run else { return };
        let Some(row) = model.row(&run.id) else {
            let lines = match &run.lost {
                Some(failure) => failure_lines(model, failure, usize::from(body.width.min(76))),
                None => vec![Line::styled(format!("Loading {}…", short_id(&run.id)), model.theme.faint)],
            };
            write_centered(model, buf, body, lines);
            return;
        };
        let areas = screen_areas(model, run);
        write(model, buf, areas.state, state_line(model, row, usize::from(areas.state.width)));
        let advice = advice_lines(model, run, usize::from(areas.advice.width));
        write_lines(model, buf, areas.advice, advice::shortened(model, advice, usize::from(areas.advice.height)));
        write_split(model, buf, areas.facts, facts_line(model, run), Line::from(marks_legend(model, run, &areas)));
        let lines = lines(model, run, &areas);
        let axes = axes(model, run, &areas, &lines);
        if let Some(first) = axes.first() {
            run_marks::view(model, run, first, buf, areas.marks);
        }
        for (((panel, area), axis), lines) in areas.panels.iter().zip(axes).zip(&lines) {
            run_panels::view(model, run, (*panel, lines), axis, buf, *area);
        }
    }

    fn can_open(&self, model: &Model) -> bool {
        model.run_to_open().is_some()
    }

    fn open(&self, model: &mut Model) {
        open_with_run(model, |_| ());
    }

    fn subject(&self, model: &Model, room: usize) -> String {
        model.run_subject(room)
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        let Some(run) = &model.screens.run else { return };
        let video = run.samples.selected().and_then(|sample| Some((sample, video_area(model, run)?)));
        wanted.insert(Watch::Run(run.id.clone()));
        samples::watch_clips(model, run, video, wanted);
    }

    fn chart_at(&self, model: &Model, at: Position) -> Option<(Rect, (f64, f64))> {
        Some((panel_at(model, at)?.plot?, model.screens.run.as_ref()?.window()))
    }

    fn press_chart(&self, model: &mut Model, at: Position, x: f64) {
        let panel = panel_at(model, at).map(|under| under.panel);
        if let Some(run) = &mut model.screens.run {
            run.put_cursor_at(x);
            panel.into_iter().for_each(|panel| focus(run, panel));
        }
    }

    fn zoom_chart(&self, model: &mut Model, factor: f64, x: f64) {
        model.screens.run.iter_mut().for_each(|run| run.zoom(factor, Some(x)));
    }

    fn show_range(&self, model: &mut Model, range: (f64, f64)) {
        model.screens.run.iter_mut().for_each(|run| run.show(range));
    }

    /// Focuses a panel. A click on the focused panel enlarges the panel, or opens its selected entry.
    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        let (Some(under), Some(run)) = (panel_at(model, at), &mut model.screens.run) else { return Press::Done };
        let was_focused = run.focus == under.panel;
        focus(run, under.panel);
        match under.event {
            Some(event) if run.scroll != event => {
                run.scroll = event;
                Press::Done
            }
            _ if was_focused => Press::Act(Action::Open),
            _ => Press::Done,
        }
    }

    fn on_wheel(&self, model: &mut Model, at: Position, _: Action) -> Wheel {
        let panel = panel_at(model, at).map(|under| under.panel);
        if let (Some(run), Some(panel @ (Panel::Events | Panel::Checkpoints | Panel::Samples | Panel::Recipe))) =
            (&mut model.screens.run, panel)
        {
            focus(run, panel);
        }
        Wheel::Scroll
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        match input.purpose {
            Purpose::Export => export(model, &input.text),
            _ => run_actions::resume_with(model, input.text),
        }
    }

    fn save(&self, model: &Model, session: &mut Session) {
        save(model, session);
    }

    fn restore(&self, model: &mut Model, session: &Session) -> Screen {
        restore(model, session)
    }
}

/// Returns the moving average in words. `level` is an index into [`SMOOTHING`].
pub fn smoothing_words(level: Option<usize>) -> String {
    match level.map(|level| SMOOTHING[level]) {
        Some(weight) => format!("Smoothing over about {:.0} samples; the raw line is faint", 1.0 / (1.0 - weight)),
        None => "Smoothing off".to_owned(),
    }
}

/// Returns whether the open run is an encode. After an encode, the user chooses a stage that trains on its data set.
fn is_encode(model: &Model) -> bool {
    model.screens.run.as_ref().and_then(|run| model.row(&run.id)).is_some_and(|row| row.task == Task::Encode)
}

/// Returns the log of the rank or the node that the selected event is about, or the log of all ranks, which opens at the
/// line of the event. `None` if no event is selected, or if the run has no logs.
pub fn event_log(model: &Model) -> Option<LogsScreen> {
    let run = model.screens.run.as_ref().filter(|run| run.focus == Panel::Events && !run.places().is_empty())?;
    let events = run_lists::visible_events(run);
    let event = events.get(run.scroll.min(events.len().saturating_sub(1)))?;
    let on_node =
        |node: &NodeId| run.places().iter().filter(|place| place.node == *node).map(|place| place.rank).collect();
    let ranks: RankSet = match (&event.kind, event.rank, &event.node) {
        (EventKind::RankDied { rank, .. }, ..) => RankSet::one(*rank),
        (EventKind::NodeLost { node, .. }, ..) => on_node(node),
        (_, Some(rank), _) => RankSet::one(rank),
        (_, None, Some(node)) => on_node(node),
        (_, None, None) => RankSet::default(),
    };
    let newest = run.status.as_ref().and_then(|status| status.attempt.as_ref()).map(|attempt| attempt.number);
    let attempt = (newest != Some(event.attempt)).then_some(event.attempt);
    Some(LogsScreen::at_event(attempt, ranks, SoughtEvent::new(event)))
}

fn focus_by(run: &mut RunScreen, panels: &[Panel], forward: bool) {
    let at = panels.iter().position(|panel| *panel == run.focus).unwrap_or(0);
    let step = if forward { 1 } else { panels.len().saturating_sub(1) };
    run.focus = panels.get((at + step) % panels.len().max(1)).copied().unwrap_or(run.focus);
    (run.scroll, run.back_to) = (0, None);
}

/// Returns the facts that determine which panels a run has, and how large they are.
pub fn content(model: &Model, run: &RunScreen) -> RunContent {
    let body = layout::areas(model.size).body;
    let content = RunContent {
        task: model.row(&run.id).map_or_else(Default::default, |row| row.task),
        nodes: !run.series.nodes().is_empty(),
        validation: run_panels::is_measured(run, Chart::ValidationLoss),
        utilization: run_panels::is_measured(run, Chart::Utilization),
        large: layout::has_room_for_lanes(body),
        videos: has_videos(run) && layout::has_room_for_video(body),
        picked: model.panels.panels(&run.series),
        imported: imported_panels(run),
        columns: model.panels.columns,
        constant: Vec::new(),
        facts: facts_line(model, run).width() > 0,
        events: run_lists::visible_events(run).len(),
        checkpoints: run.checkpoints.as_ref().map_or(0, Vec::len),
    };
    RunContent { constant: run_panels::constant(run, &content.panels()), ..content }
}

/// Returns the panels of a run with series of its own, which only imported runs have: the charts with values, then its series.
fn imported_panels(run: &RunScreen) -> Option<Vec<Panel>> {
    let is_measured = |panel: &Panel| match panel {
        Panel::Chart(chart) => run_panels::is_measured(run, *chart),
        Panel::Ranks => run.series.rank_times().at(u64::MAX).is_some(),
        panel => panel.is_chart(),
    };
    let has_own = !run.series.names().is_empty();
    has_own.then(|| panel_set::pickable(&run.series).into_iter().filter(is_measured).collect())
}

fn has_videos(run: &RunScreen) -> bool {
    run.samples.samples.as_ref().is_some_and(|samples| !samples.is_empty())
}

/// Returns the area of the picture of the Samples panel, if it is visible.
pub fn video_area(model: &Model, run: &RunScreen) -> Option<Rect> {
    if !has_videos(run) {
        return None;
    }
    let panels = screen_areas(model, run).panels.into_iter();
    panels.filter(|(panel, _)| *panel == Panel::Samples).map(|(_, area)| samples::panel_parts(area).1).next()
}

/// Returns the approximate number of columns of the focused chart.
fn chart_columns(model: &Model, run: &RunScreen) -> usize {
    let areas = screen_areas(model, run);
    let area = areas.panels.iter().find(|(panel, _)| *panel == run.focus);
    area.map_or(1, |(_, area)| usize::from(area.width.saturating_sub(8)).max(1))
}

/// Opens the input for the file of the exported chart, with a proposed name.
fn ask_export(model: &mut Model) {
    let Some(run) = &model.screens.run else { return };
    let Some(chart) = run.focused_chart() else {
        model.warn(format!(
            "Only charts can be exported. Press {} to select one.",
            model.keys.name(Context::Run, Action::FocusNext)
        ));
        return;
    };
    if run.series.live().is_empty() {
        model.warn("There is nothing to export before the first step");
        return;
    }
    if let Some((_, name)) = plotted(run, chart) {
        let proposed = format!("{}-{name}.svg", short_id(&run.id));
        model.input = Some(Input::new(Purpose::Export, proposed));
    }
}

/// Returns a chart as an export draws it, and its name in a file name. Returns `None` for a panel that is no chart.
fn plotted(run: &RunScreen, chart: Panel) -> Option<(PlottedChart, String)> {
    Some(match chart {
        Panel::Metric(metric) => (PlottedChart::Metric(METRICS[metric].name), METRICS[metric].name.to_owned()),
        Panel::Named(number) => {
            let name = run.series.names().get(number).cloned().unwrap_or_default();
            (PlottedChart::Named(name.clone()), name.replace(|c: char| !is_name_char(c), "-"))
        }
        Panel::Chart(chart) => (PlottedChart::Chart(chart), chart.info(run_panels::has_power(run)).name.to_owned()),
        _ => return None,
    })
}

/// Returns the file and the format of an export; `None`, with a warning, if the name has another ending than `.svg` and `.png`.
pub(super) fn export_file(model: &mut Model, typed: &str) -> Option<(Utf8PathBuf, ImageFormat)> {
    let to = model.export_dir.join(typed.trim());
    let format = match to.extension() {
        Some("svg") => ImageFormat::Svg,
        Some("png") => ImageFormat::Png,
        _ => {
            model.warn("A chart is exported to a file that ends in .svg or .png");
            return None;
        }
    };
    Some((to, format))
}

fn export(model: &mut Model, typed: &str) -> Vec<Effect> {
    let Some((to, format)) = export_file(model, typed) else { return Vec::new() };
    let Some(run) = &model.screens.run else { return Vec::new() };
    let Some((chart, (plotted, _))) = run.focused_chart().and_then(|chart| Some((chart, plotted(run, chart)?))) else {
        return Vec::new();
    };
    let chart = ChartSpec {
        run: run.id.clone(),
        title: short_id(&run.id).to_owned(),
        chart: plotted,
        x: run.x,
        window: run.view.span.map(|_| run.window()),
        log_y: model.panels.is_log(chart, &run.series),
        smoothing: run.smoothing.map(|level| SMOOTHING[level]),
        format,
    };
    let job = model.jobs.start(Intent::Export);
    vec![Effect::Job { job, request: Request::Export { chart, to } }]
}

fn advice_lines(model: &Model, run: &RunScreen, width: usize) -> Vec<Line<'static>> {
    match (&run.lost, model.row(&run.id)) {
        (Some(failure), _) => failure_lines(model, failure, width),
        (None, Some(row)) => advice::lines(model, row, Context::Run, width),
        (None, None) => Vec::new(),
    }
}

fn screen_areas(model: &Model, run: &RunScreen) -> RunAreas {
    let body = layout::areas(model.size).body;
    let advice = advice_lines(model, run, usize::from(body.width)).len() as u16;
    let content = content(model, run);
    // The focused panel may not exist after a change of the task or of the size of the terminal.
    let panels = content.panels();
    let focus = if panels.contains(&run.focus) || run.enlarged { run.focus } else { panels[0] };
    layout::run_areas(body, advice, focus, run.enlarged, &content)
}

/// Returns the legend of the marks, if neither the heading above the lanes nor an enlarged chart has it.
fn marks_legend(model: &Model, run: &RunScreen, areas: &RunAreas) -> Vec<Span<'static>> {
    let axis = run_panels::axis(model, run);
    let is_marked = |(panel, area): &(Panel, Rect)| panel.is_chart() && area.height > axis.marks_from;
    if areas.marks.height > 0 || run.enlarged || !areas.panels.iter().any(is_marked) {
        return Vec::new();
    }
    run_marks::legend(model, run)
}

/// Returns the lines of each panel.
fn lines<'a>(model: &Model, run: &'a RunScreen, areas: &RunAreas) -> Vec<Vec<ChartLine<'a>>> {
    areas.panels.iter().map(|(panel, _)| run_panels::lines(model, run, *panel)).collect()
}

/// Returns the x axis of each panel. In each column of panels, all plots get the same gutter, so that their x axes
/// are aligned; the first panel is in the column of the marks.
fn axes(model: &Model, run: &RunScreen, areas: &RunAreas, lines: &[Vec<ChartLine<'_>>]) -> Vec<SharedAxis> {
    /// The minimum gutter, wide enough for labels such as `100 MiB`, so that plots do not move when labels change.
    const GUTTER: u16 = 8;
    let axis = run_panels::axis(model, run);
    let alone = areas.panels.iter().zip(lines).map(|((panel, area), lines)| {
        let labels_from = match areas.x_labels.contains(panel) {
            _ if areas.x_labels.is_empty() => 6,
            true => 4,
            false => u16::MAX,
        };
        // The marks above the lanes are enough for their column.
        let marks_from = match areas.marks {
            marks if marks.height > 0 && (marks.x, marks.width) == (area.x, area.width) => u16::MAX,
            _ => axis.marks_from,
        };
        let axis = SharedAxis { labels_from, marks_from, ..axis };
        (*area, axis, run_panels::gutter(model, run, (*panel, lines), axis, *area))
    });
    let alone: Vec<(Rect, SharedAxis, Option<u16>)> = alone.collect();
    let shared = |area: Rect, axis: SharedAxis| {
        let column = alone.iter().filter(|(other, ..)| (other.x, other.width) == (area.x, area.width));
        let gutters: Vec<u16> = column.filter_map(|(.., gutter)| *gutter).collect();
        match gutters.iter().max() {
            Some(most) if gutters.len() > 1 => SharedAxis { gutter: (*most).max(GUTTER), margin: 2, ..axis },
            _ => axis,
        }
    };
    alone.iter().map(|(area, axis, _)| shared(*area, *axis)).collect()
}

/// A panel under the mouse.
pub struct PanelAt {
    /// The panel.
    pub panel: Panel,
    /// The area between the axes, if the panel is a chart and the mouse is inside that area.
    pub plot: Option<Rect>,
    /// The position of the event under the mouse in the list of events.
    pub event: Option<usize>,
}

/// Returns the panel at a position of the terminal.
pub fn panel_at(model: &Model, at: Position) -> Option<PanelAt> {
    let run = model.screens.run.as_ref()?;
    let areas = screen_areas(model, run);
    let at_panel = areas.panels.iter().position(|(_, area)| area.contains(at))?;
    let (panel, area) = areas.panels[at_panel];
    let plot = match panel {
        _ if panel.is_chart() => {
            let axes = axes(model, run, &areas, &lines(model, run, &areas));
            run_panels::plot(model, run, panel, axes[at_panel], area)
        }
        _ => None,
    };
    let event = (panel == Panel::Events).then(|| run_lists::event_at(run, area, at.y)).flatten();
    Some(PanelAt { panel, plot: plot.filter(|plot| plot.contains(at)), event })
}

/// Draws the main chart of a run, or its events if it has no main chart, on another screen. `run` is `None` while the
/// run loads.
pub fn preview(model: &Model, row: &RunRow, run: Option<&RunScreen>, buf: &mut Buffer, area: Rect) {
    let main = RunContent { task: row.task, ..RunContent::default() }.main();
    let shown = if main.is_chart() { main } else { Panel::Events };
    match run {
        Some(run) => {
            let lines = run_panels::lines(model, run, shown);
            run_panels::view(model, run, (shown, &lines), run_panels::axis(model, run), buf, area);
        }
        None => {
            let title = run_panels::title(&RunScreen::new(row.run.clone()), shown);
            let below = panel(model, buf, area, &title, Vec::new(), false);
            write(model, buf, below, Span::styled("Loading…", model.theme.faint));
        }
    }
}

/// Returns MFU, tokens per second, goodput and the use of GPUs as far as they are known; on a narrow screen also the time per step.
pub fn facts_line(model: &Model, run: &RunScreen) -> Line<'static> {
    let live = run.series.live();
    let mfu = live.column(Track::of("mfu"));
    let mfu = mfu.last_finite(live.len()).map(|at| units::value(f64::from(mfu.get(at)), Unit::Share));
    let tokens = run.series.tokens_per_s().map(|rate| format!("{}/s", units::count(rate as u64)));
    let goodput = run.goodput.as_ref().and_then(goodput_text::share);
    // On a wide screen, the first row shows the time per step.
    let is_narrow = layout::areas(model.size).body.width < 120;
    let step_s = model.row(&run.id).filter(|row| is_narrow && row.task == Task::Train).and_then(|row| row.step_s);
    let step = step_s.map(|s| units::value(s, Unit::Seconds));
    let mut spans = Vec::new();
    let usage = run.usage.filter(|_| !is_narrow).map(|usage| usage.in_words());
    for (name, value) in [("MFU", mfu), ("tokens", tokens), ("goodput", goodput), ("step", step), ("used", usage)] {
        let Some(value) = value else { continue };
        let gap = if spans.is_empty() { "" } else { "   " };
        spans.push(Span::styled(format!("{gap}{name} "), model.theme.faint));
        spans.push(Span::styled(value, model.theme.strong));
    }
    Line::from(spans)
}

/// Returns state, name, progress, time left and time per step, as far as they fit.
fn state_line(model: &Model, row: &RunRow, width: usize) -> Line<'static> {
    let kind = StateKind::of(&row.state);
    let gap = || Span::raw("  ");
    let steps = row.progress().in_words();
    let name = Span::styled(short_id(&row.run).to_owned(), model.theme.strong);
    let mut spans = vec![state(model, kind), gap(), name, gap(), Span::raw(steps)];
    let mut tail = Vec::new();
    if kind == StateKind::Running || kind == StateKind::Saving {
        tail.extend(row.eta_s.map(|s| format!("{} left", units::duration(s))));
        let step_s = row.step_s.filter(|_| row.task != Task::Encode);
        tail.extend(row.epochs.map(|epochs| epochs.in_words()));
        tail.extend(step_s.map(|s| format!("{} per step", units::value(s, units::Unit::Seconds))));
    } else if !kind.is_active() {
        tail.push(units::ago(model.now, row.updated_s));
    }
    let percent = format!(" {:.0} %", (crate::widgets::fraction(row) * 100.0).floor());
    let used = |spans: &[Span<'_>]| spans.iter().map(Span::width).sum::<usize>();
    // The time left is more important than the progress bar, and a short bar is more important than the time per
    // step.
    const BAR: usize = 8;
    let mut room = width.saturating_sub(used(&spans));
    let mut first = tail.into_iter().filter_map(|text| {
        let keep = if text.ends_with("per step") || text.starts_with("epoch") { BAR + 2 + percent.len() } else { 0 };
        let fits = text.len() + 2 + keep <= room;
        room -= if fits { text.len() + 2 } else { 0 };
        fits.then(|| [gap(), Span::raw(text)])
    });
    let tail: Vec<Span<'static>> = first.by_ref().flatten().collect();
    let has_share = !matches!(row.progress(), Progress::Unknown { .. } | Progress::Steps { total: 0, .. });
    if has_share && room >= BAR + 2 + percent.len() {
        spans.push(gap());
        spans.extend(progress(model, row, (room - 2 - percent.len()).min(40)));
        spans.push(Span::raw(percent));
    }
    spans.extend(tail);
    Line::from(spans)
}

/// Opens the dialog.
pub fn pick_panels(model: &mut Model) {
    let is_training = model.screens.run.as_ref().is_some_and(|run| content(model, run).task == Task::Train);
    if is_training {
        model.modal = Some(Modal::Panels(PanelsDialog { order: run_panels::order(model), selected: 0 }));
    } else {
        model.warn("Only training runs have panels to pick");
    }
}

/// Stores the open run and the visible part of its x axes.
pub fn save(model: &Model, session: &mut Session) {
    if let Some(open) = &model.screens.run {
        session.run = Some(open.id.clone());
        session.zoom = open.view.span.map(|span| (span, open.view.end));
    }
}

/// Opens the run of a session, if it has one. Returns the screen to show.
pub fn restore(model: &mut Model, session: &Session) -> Screen {
    let Some(run) = session.run.clone() else { return Screen::Runs };
    let (x, smoothing, view) = (session.x, session.smoothing(), session.viewport());
    model.screens.run = Some(RunScreen { x, smoothing, view, ..RunScreen::new(run) });
    session.screen
}

fn focus(run: &mut RunScreen, panel: Panel) {
    if run.focus != panel {
        (run.focus, run.scroll) = (panel, 0);
    }
}
