//! Draws the panels of the Run screen: charts with their values, ranks, checkpoints and events.

use crate::charts::{self, Curve};
use crate::effect::XAxis;
use crate::event_text::{self, Severity};
use crate::goodput_text;
use crate::layout::{self, Panel};
use crate::model::Model;
use crate::model::{RunScreen, Screen};
use crate::panel_set;
use crate::rank_times::LEVELS;
use crate::run_state::StateKind;
use crate::screens::{run_recipe, samples};
use crate::series::{Axis, Extent, SMOOTHING, Segment, Track};
use crate::text;
use crate::widgets::heat_map::{HeatMap, shade_style};
use crate::widgets::line_chart::{ChartLine, LineChart};
use crate::widgets::memo::Memo;
use crate::widgets::shared_axis::SharedAxis;
use crate::widgets::{panel as heading, write, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::Task;
use rundir::{Chart, EncodeStages, Event, EventKind};
use units::Unit;

/// Returns whether any node of the run has GPUs that report their power.
pub fn has_power(run: &RunScreen) -> bool {
    !run.series.nodes().column(Track::of("power")).is_empty()
}

/// Returns the title of a panel.
pub fn title(run: &RunScreen, panel: Panel) -> String {
    panel_set::title(panel, &run.series, has_power(run))
}

fn unit(run: &RunScreen, panel: Panel) -> Unit {
    panel_set::unit(panel, has_power(run))
}

/// Returns whether any metric of a chart was measured.
pub fn is_measured(run: &RunScreen, chart: Chart) -> bool {
    let mut curves = charts::curves_of(chart, has_power(run), false);
    curves.any(|curve| !run.series.of_track(curve.track).column(curve.track).is_empty())
}

/// Returns the curves of a chart, whether they were measured or not.
fn curves(run: &RunScreen, panel: Panel, each_rank: bool) -> Vec<Curve> {
    match panel {
        Panel::Chart(chart) => charts::curves_of(chart, has_power(run), each_rank).collect(),
        Panel::Metric(metric) => charts::curves(metric, each_rank),
        Panel::Named(number) => run.series.names().get(number).map_or_else(Vec::new, |name| {
            let label = text::clean(name);
            vec![Curve { track: Track::Named(number), band: None, mark: charts::first_letter(&label), label }]
        }),
        _ => Vec::new(),
    }
}

thread_local! {
    /// The result of [`constant`] by the version of the series and the panels.
    static CONSTANT: Memo<(u64, Vec<Panel>), Vec<Panel>> = const { Memo::empty() };
}

/// Returns the charts whose values do not change.
pub fn constant(run: &RunScreen, panels: &[Panel]) -> Vec<Panel> {
    let key = (run.series.version(), panels.to_vec());
    CONSTANT.with(|constant| constant.get(key, |(_, panels)| find_constant(run, panels)).to_vec())
}

fn find_constant(run: &RunScreen, panels: &[Panel]) -> Vec<Panel> {
    /// The minimum number of samples from which a value counts as constant.
    const ENOUGH: usize = 10;
    let does_not_change = |curve: &Curve| {
        let series = &run.series;
        let pieces = std::iter::once(series.of_track(curve.track)).chain(series.superseded());
        let extent = |piece: &Segment| {
            let (lowest, highest) =
                curve.band.filter(|band| series.has_values(band.0)).unwrap_or((curve.track, curve.track));
            piece.column(lowest).extent(0, piece.len()).union(piece.column(highest).extent(0, piece.len()))
        };
        let all = pieces.map(extent).fold(Extent::EMPTY, Extent::union);
        all.is_empty() || all.max - all.min <= all.max.abs() * 1e-6
    };
    let is_constant = |panel: &&Panel| {
        let curves = curves(run, **panel, false);
        !curves.is_empty() && run.series.live().len() >= ENOUGH && curves.iter().all(does_not_change)
    };
    panels.iter().filter(|panel| panel.is_chart()).filter(is_constant).copied().collect()
}

/// Returns the measured lines of a chart. Curves with equal values share a line.
fn lines<'a>(model: &Model, run: &'a RunScreen, panel: Panel) -> Vec<ChartLine<'a>> {
    let has_values = |track: Track| run.series.has_values(track);
    // A small panel has no room for a line per rank.
    let each_rank = run.enlarged_chart() == Some(panel) && has_values(Track::Memory(0));
    let curves: Vec<Curve> =
        curves(run, panel, each_rank).into_iter().filter(|curve| has_values(curve.track)).collect();
    let first_equals = charts::first_equals(&run.series, curves.iter().map(|curve| curve.track).collect());
    let mut lines: Vec<ChartLine<'a>> = Vec::new();
    let mut line_of_curve: Vec<usize> = Vec::new();
    for (Curve { track, band, mark, label }, first) in curves.into_iter().zip(first_equals.iter()) {
        if let Some(line) = line_of_curve.get(*first).copied() {
            lines[line].label = format!("{}, {label}", lines[line].label);
            line_of_curve.push(line);
            continue;
        }
        line_of_curve.push(lines.len());
        let style = model.theme.lines[lines.len() % model.theme.lines.len()];
        let band = band.filter(|(lowest, _)| has_values(*lowest));
        lines.push(ChartLine { series: &run.series, track, band, label, mark, style });
    }
    lines
}

/// Draws a panel. `axis` is the x axis of its column.
pub fn view(model: &Model, run: &RunScreen, panel: Panel, axis: SharedAxis, buf: &mut Buffer, area: Rect) {
    match panel {
        Panel::Chart(_) | Panel::Metric(_) | Panel::Named(_) => chart_panel(model, run, panel, axis, buf, area),
        Panel::Ranks => ranks(model, run, axis, buf, area),
        Panel::Recipe => run_recipe::view(model, run, buf, area),
        Panel::Pipeline => pipeline(model, run, buf, area),
        Panel::Samples => samples::panel(model, run, buf, area),
        Panel::Checkpoints => checkpoints(model, run, buf, area),
        Panel::Events => events(model, run, buf, area),
    }
}

/// Returns the x axis of the charts, with a gutter and a margin of 0.
pub fn axis(model: &Model, run: &RunScreen) -> SharedAxis {
    let dragged = model.drag.and_then(|drag| drag.shown());
    SharedAxis {
        x: run.x.into(),
        step_word: step_word(run),
        window: run.window(),
        // The ends of a drag replace the cursor.
        cursor: run.view.cursor.filter(|_| dragged.is_none()),
        dragged,
        gutter: 0,
        margin: 0,
        labels_from: 6,
        symbols: model.symbols,
        theme: model.theme,
    }
}

/// Returns the number of columns left of the plot that a panel needs; `None` if the panel has no x axis.
pub fn gutter(model: &Model, run: &RunScreen, panel: Panel, axis: SharedAxis, area: Rect) -> Option<u16> {
    let below = layout::cut_top(area, 1).1;
    match panel {
        Panel::Ranks => Some(rank_map(run, axis, &|x| x).gutter(below)),
        _ if panel.is_chart() => Some(line_chart(model, run, panel, axis, &lines(model, run, panel)).gutter(below)),
        _ => None,
    }
}

/// Returns the name of a step in the run's task.
fn step_word(run: &RunScreen) -> &'static str {
    match run.status.as_ref().map(|status| status.row.task) {
        Some(Task::Encode) => "item",
        _ => "step",
    }
}

/// Returns the text for a panel that has no steps to draw.
fn no_step(run: &RunScreen) -> &'static str {
    match run.status.as_ref().map(|status| &status.row) {
        Some(row) if row.is_stepless => "No steps: adapter = \"none\"",
        Some(row) if row.task == Task::Encode => "No clip yet",
        _ => "No step yet",
    }
}

fn chart_panel(model: &Model, run: &RunScreen, panel: Panel, axis: SharedAxis, buf: &mut Buffer, area: Rect) {
    // The Runs screen shows the large chart too, without focus.
    let focused = run.focus == panel && model.screen == Screen::Run;
    let enlarged = focused && run.enlarged;
    let lines = lines(model, run, panel);
    let values = if enlarged { settings(model, run, panel) } else { heading_values(model, run, panel, &lines, area) };
    let below = heading(model, buf, area, &title(run, panel), values, focused);
    if run.series.live().is_empty() && run.series.superseded().is_empty() {
        let nothing = if run.lost.is_some() { "No values" } else { no_step(run) };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    if lines.is_empty() {
        let nothing =
            if panel == Panel::Chart(Chart::Mfu) { "Set log.peak_tflops in the recipe" } else { "Not measured" };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    let (plot, legend) = chart_parts(below, enlarged);
    line_chart(model, run, panel, axis, &lines).render(plot, buf);
    write(model, buf, legend, read_out(model, run, panel, &lines));
}

/// Splits the area below the heading of a chart into the chart and the line with the values at the cursor.
fn chart_parts(below: Rect, enlarged: bool) -> (Rect, Rect) {
    if enlarged && below.height >= 6 {
        layout::cut_top(below, below.height - 1)
    } else {
        (below, Rect { height: 0, ..below })
    }
}

fn line_chart<'a>(
    model: &Model,
    run: &RunScreen,
    panel: Panel,
    axis: SharedAxis,
    lines: &'a [ChartLine<'a>],
) -> LineChart<'a> {
    let log_y = model.panels.is_log(panel, &run.series);
    LineChart { lines, unit: unit(run, panel), axis, log_y, smoothing: run.smoothing }
}

/// Returns the plot area of a chart in the area of its panel.
pub fn plot(model: &Model, run: &RunScreen, panel: Panel, axis: SharedAxis, area: Rect) -> Option<Rect> {
    let below = layout::cut_top(area, 1).1;
    let (place, _) = chart_parts(below, run.enlarged_chart() == Some(panel));
    let lines = lines(model, run, panel);
    line_chart(model, run, panel, axis, &lines).plot(place)
}

/// Returns the position of the event in a row of the terminal, in the list of [`visible_events`].
pub fn event_at(run: &RunScreen, area: Rect, row: u16) -> Option<usize> {
    let below = layout::cut_top(area, 1).1;
    let count = visible_events(run).len();
    let selected = if run.focus == Panel::Events { run.scroll.min(count.saturating_sub(1)) } else { 0 };
    let top = layout::scrolled(0, selected, usize::from(below.height));
    layout::entries_until(below, row, top, 0, count).map(|at| at as usize)
}

/// Returns the lowest and the highest value of the band around a line at the cursor: `480–660 W`.
fn range_at(run: &RunScreen, line: &ChartLine<'_>, index: usize, unit: Unit) -> Option<String> {
    let (lowest, highest) = line.band?;
    let (piece, at) = sample_at(run, line, index)?;
    let [low, high] = [lowest, highest].map(|track| piece.column(track).get(at));
    (low.is_finite() && high.is_finite()).then(|| {
        let (low, high) = (units::value(low.into(), unit), units::value(high.into(), unit));
        // Write the unit once if both values have the same unit.
        let (number, suffix) = low.split_once(' ').unwrap_or((&low, ""));
        if high.ends_with(suffix) { format!("{number}–{high}") } else { format!("{low}–{high}") }
    })
}

/// Returns the segment of a line and the index in it at the cursor.
fn sample_at<'a>(run: &'a RunScreen, line: &ChartLine<'_>, index: usize) -> Option<(&'a Segment, usize)> {
    let piece = run.series.of_track(line.track);
    if !line.track.is_of_nodes() {
        return Some((piece, index));
    }
    let last = piece.len().checked_sub(1)?;
    // Without a cursor, this is the newest sample.
    let at = if run.view.cursor.is_some() { piece.at_time(run.series.live().time(index)).min(last) } else { last };
    Some((piece, at))
}

/// Returns the value of a line at the cursor; `None` if the value was not measured.
fn value_at(run: &RunScreen, line: &ChartLine<'_>, index: usize, unit: Unit) -> Option<String> {
    let (piece, index) = sample_at(run, line, index)?;
    let column = piece.column(line.track);
    let value = column.get(index);
    if value.is_finite() {
        Some(units::value(f64::from(value), unit))
    } else {
        column.any_not_finite(index, index + 1).then(|| "not finite".to_owned())
    }
}

/// Returns the values for the heading of a chart: those of all lines if they fit, or else those of the first lines.
fn heading_values(
    model: &Model,
    run: &RunScreen,
    panel: Panel,
    lines: &[ChartLine<'_>],
    area: Rect,
) -> Vec<Span<'static>> {
    let Some(index) = run.cursor_index() else { return Vec::new() };
    let unit = unit(run, panel);
    let room = usize::from(area.width).saturating_sub(text::width(&title(run, panel)) + 6);
    let mut spans = Vec::new();
    if run.view.cursor.is_some() && run.focus == panel {
        spans.push(Span::styled(
            format!("{} {}  ", step_word(run), units::grouped(run.series.live().step(index))),
            model.theme.faint,
        ));
    }
    let named = |line: &ChartLine<'_>, value: &str| text::width(&line.label) + text::width(value) + 3;
    let values = lines.iter().filter_map(|line| Some((line, value_at(run, line, index, unit)?)));
    let values: Vec<(&ChartLine<'_>, String)> = values.collect();
    let used: usize = spans.iter().map(Span::width).sum();
    let all_named = used + values.iter().map(|(line, value)| named(line, value)).sum::<usize>() <= room;
    for (i, (line, value)) in values.into_iter().enumerate() {
        let mark = match (lines.len(), all_named) {
            (1, _) => String::new(),
            (_, true) => format!("{} ", line.label),
            (_, false) => format!("{} ", line.mark),
        };
        let gap = if i > 0 { "  " } else { "" };
        let range = range_at(run, line, index, unit);
        let mark = if range.is_some() { format!("{} ", line.label) } else { mark };
        let mut item = vec![Span::styled(format!("{gap}{mark}"), line.style), Span::styled(value, model.theme.strong)];
        item.extend(range.map(|range| Span::styled(format!("  {range}"), model.theme.faint)));
        let used = |item: &[Span<'_>]| spans.iter().chain(item).map(Span::width).sum::<usize>();
        // The range is less important than the value.
        item.truncate(if used(&item) > room { 2 } else { 3 });
        if used(&item) > room {
            break;
        }
        spans.extend(item);
    }
    spans
}

/// Returns the settings of an enlarged chart.
fn settings(model: &Model, run: &RunScreen, panel: Panel) -> Vec<Span<'static>> {
    let mut settings = Vec::new();
    if model.panels.is_log(panel, &run.series) {
        settings.push("log y".to_owned());
    }
    if let Some(level) = run.smoothing {
        settings.push(format!("smoothed over {:.0}", 1.0 / (1.0 - SMOOTHING[level])));
    }
    if run.view.span.is_some() {
        let share = (run.window().1 - run.window().0) / (run.full_range().1 - run.full_range().0);
        settings.push(format!("zoomed to {:.0} %", (share * 100.0).max(1.0)));
    }
    vec![Span::styled(settings.join(", "), model.theme.faint)].into_iter().filter(|span| span.width() > 0).collect()
}

/// Returns the line under an enlarged chart: the position of the cursor and every value there.
fn read_out(model: &Model, run: &RunScreen, panel: Panel, lines: &[ChartLine<'_>]) -> Line<'static> {
    let Some(index) = run.cursor_index() else { return Line::default() };
    let unit = unit(run, panel);
    let live = run.series.live();
    let elapsed = live.time(index) - run.series.started_s().unwrap_or(0.0);
    let step = format!("{} {}", step_word(run), units::grouped(live.step(index)));
    let after = match run.x {
        XAxis::Step => format!(" ({} after the first)", units::duration(elapsed)),
        XAxis::Time => format!(" at {}", units::duration(elapsed)),
    };
    let mut spans = vec![Span::styled(step, model.theme.strong), Span::styled(after, model.theme.faint)];
    for line in lines {
        let Some(value) = value_at(run, line, index, unit) else { continue };
        let mark = if lines.len() > 1 { format!("{} ", line.mark) } else { String::new() };
        // A label such as "rank 0" already ends with the mark.
        let mark = if line.label.ends_with(line.mark) { String::new() } else { mark };
        spans.push(Span::styled(format!("   {mark}{} ", line.label), line.style));
        spans.push(Span::styled(value, model.theme.strong));
        if let Some(range) = range_at(run, line, index, unit) {
            spans.push(Span::styled(format!(" ({range})"), model.theme.faint));
        }
        let average = run.smoothing.and_then(|level| live.smoothed(line.track, level)).map(|column| column.get(index));
        if let Some(average) = average.filter(|average| average.is_finite()) {
            spans.push(Span::raw(format!(" (smoothed {})", units::value(f64::from(average), unit))));
        }
    }
    Line::from(spans)
}

/// Returns the heat map of slow ranks. `step_at` returns the step at a position on the x axis.
fn rank_map<'a>(run: &'a RunScreen, axis: SharedAxis, step_at: &'a dyn Fn(f64) -> f64) -> HeatMap<'a> {
    let (series, live) = (&run.series, run.series.live());
    let filled = live.len().checked_sub(1).map(|last| [0, last].map(|at| series.x_of(axis.x, live, at)));
    let filled = filled.map_or((f64::INFINITY, f64::NEG_INFINITY), |[first, last]| (first, last));
    HeatMap { times: series.rank_times(), version: series.version(), axis, step_at, filled }
}

/// Draws the heat map of slow ranks: ranks from top to bottom, steps from left to right.
fn ranks(model: &Model, run: &RunScreen, axis: SharedAxis, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Ranks;
    let times = run.series.rank_times();
    let index = run.cursor_index();
    let row = index.and_then(|index| times.at(run.series.live().step(index)));
    let slowest = row.map(|row| {
        let (rank, over) = row.slowest();
        let how = if over < LEVELS[0] { "no slow rank".to_owned() } else { format!("rank {rank} {}", more(over)) };
        let step = if run.view.cursor.is_some() && focused {
            format!("step {}  ", units::grouped(row.step))
        } else {
            String::new()
        };
        vec![Span::styled(step, model.theme.faint), Span::styled(how, model.theme.strong)]
    });
    let below = heading(model, buf, area, "Ranks", slowest.unwrap_or_default(), focused);
    if times.ranks() < 2 {
        let nothing = if times.ranks() == 0 { no_step(run) } else { "Only one rank" };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    let enlarged = focused && run.enlarged && below.height >= 6;
    let (plot, legend) = layout::cut_top(below, below.height - u16::from(enlarged));
    let series = &run.series;
    let step_at = |x: f64| match axis.x {
        Axis::Time => series.x_at(Axis::Step, x + series.started_s().unwrap_or(0.0)),
        _ => x,
    };
    rank_map(run, axis, &step_at).render(plot, buf);
    let mut words = vec![Span::styled(format!("{} normal", model.symbols.shades[0]), model.theme.faint)];
    for (level, over) in LEVELS.iter().enumerate() {
        let style = shade_style(&model.theme, level + 1);
        words.push(Span::styled(format!("   {} {}", model.symbols.shades[level + 1], more(*over)), style));
    }
    words.push(Span::styled("   above the median rank", model.theme.faint));
    write(model, buf, legend, Line::from(words));
}

/// Draws a table of the stages of an encode: what each stage has done and what is left. A narrow panel omits the last
/// columns.
fn pipeline(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Pipeline;
    let below = heading(model, buf, area, "Stages", Vec::new(), focused);
    let faint = model.theme.faint;
    let row = run.status.as_ref().map(|status| &status.row);
    let Some(stages) = row.and_then(|row| row.stages) else {
        write(model, buf, below, Span::styled(no_step(run), faint));
        return;
    };
    let is_active = row.is_some_and(|row| StateKind::of(&row.state).is_active());
    let EncodeStages { probe, decode, vae, text } = stages;
    let none = model.symbols.none.to_owned();
    let or_none = |value: Option<String>| value.unwrap_or_else(|| none.clone());
    let table = [("probe", probe), ("decode", decode), ("VAE", vae), ("text", text)].map(|(name, stage)| {
        let bytes = stage.count.bytes;
        [
            name.to_owned(),
            units::grouped(stage.count.items),
            units::grouped(stage.left),
            or_none(stage.per_s.map(|per_s| format!("{}/s", units::number(per_s)))),
            or_none(stage.eta_s.filter(|_| is_active).map(units::short_duration)),
            units::grouped(stage.count.failed),
            units::grouped(stage.count.waiting),
            or_none((bytes > 0).then(|| units::size(bytes))),
        ]
    });
    let names = ["stage", "done", "left", "rate", "time left", "failed", "waiting", "data"];
    let mut lines = vec![String::new(); table.len() + 1];
    let mut used = 0;
    for (column, name) in names.into_iter().enumerate() {
        let cells = || std::iter::once(name).chain(table.iter().map(|row| row[column].as_str()));
        let width = cells().map(text::width).max().unwrap_or(0);
        let gap = if column == 0 { 0 } else { 2 };
        used += gap + width;
        if used > usize::from(below.width) {
            break;
        }
        for (line, cell) in lines.iter_mut().zip(cells()) {
            let pad = " ".repeat(width - text::width(cell));
            *line += &if column == 0 { format!("{cell}{pad}") } else { format!("{:gap$}{pad}{cell}", "") };
        }
    }
    let styled = |(i, line): (usize, String)| if i == 0 { Line::styled(line, faint) } else { Line::raw(line) };
    write_lines(model, buf, below, lines.into_iter().enumerate().map(styled));
}

/// Formats an excess: `+25 %`.
fn more(over: f32) -> String {
    format!("+{:.0} %", over * 100.0)
}

fn checkpoints(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Checkpoints;
    let count = run.checkpoints.as_ref().map(|all| all.iter().filter(|entry| entry.complete().is_some()).count());
    let value = count.map(|n| Span::styled(n.to_string(), model.theme.strong));
    let below = heading(model, buf, area, "Checkpoints", value.into_iter().collect(), focused);
    let faint = model.theme.faint;
    let Some(all) = run.checkpoints.as_ref().filter(|all| !all.is_empty()) else {
        let is_command = run.status.as_ref().is_some_and(|status| status.row.is_command);
        let nothing = match run.checkpoints {
            Some(_) if is_command => "None yet",
            Some(_) => "None yet; stopping saves one",
            None => "Loading…",
        };
        write(model, buf, below, Span::styled(nothing, faint));
        return;
    };
    let scroll = if focused { run.scroll.min(all.len() - 1) } else { 0 };
    let steps = all.iter().map(|entry| text::width(&units::grouped(entry.step()))).max().unwrap_or(0);
    let lines = all.iter().rev().skip(scroll).map(|entry| {
        let step = format!("step {:>steps$}", units::grouped(entry.step()));
        match entry.summary() {
            Ok(summary) => Line::from(vec![
                Span::raw(step),
                Span::styled(format!("  {:>9}", units::short_size(summary.bytes)), faint),
                Span::styled(format!("  {}", units::ago(model.now, summary.saved_s)), faint),
                Span::styled(if summary.is_pinned { "  pinned" } else { "" }, model.theme.good),
            ]),
            Err((how, why)) => {
                let text = format!("  {} {how}: {why}", glyph(model, Severity::Warn));
                Line::from(vec![Span::raw(step), Span::styled(text, model.theme.warn)])
            }
        }
    });
    write_lines(model, buf, below, lines);
}

fn glyph(model: &Model, severity: Severity) -> &'static str {
    let kind = match severity {
        Severity::Plain => return " ",
        Severity::Good => StateKind::Finished,
        Severity::Warn => StateKind::Stalled,
        Severity::Bad => StateKind::Failed,
    };
    model.symbols.states[kind as usize]
}

/// Returns the goodput for the heading of the events, with the lost time by cause if both fit.
fn goodput(model: &Model, run: &RunScreen, width: usize) -> Vec<Span<'static>> {
    let Some((goodput, share)) =
        run.goodput.as_ref().and_then(|goodput| Some((goodput, goodput_text::share(goodput)?)))
    else {
        return Vec::new();
    };
    let mut spans = vec![Span::styled("goodput ", model.theme.faint), Span::styled(share, model.theme.strong)];
    let losses = goodput_text::losses(goodput);
    let used: usize = spans.iter().map(Span::width).sum();
    const TITLE: usize = "Events".len() + 10;
    if !losses.is_empty() && TITLE + used + "; lost: ".len() + text::width(&losses) <= width {
        spans.push(Span::styled(format!("; lost: {losses}"), model.theme.faint));
    }
    spans
}

/// Returns the visible events, newest first. The start of a save or an evaluation is shown only while it is the
/// newest event. A failure that several nodes report is shown once.
pub fn visible_events(run: &RunScreen) -> Vec<&Event> {
    let newest = run.events.len().saturating_sub(1);
    let begins = |kind: &EventKind| matches!(kind, EventKind::CheckpointStarted | EventKind::EvaluationStarted);
    let ended = |i: usize, event: &Event| i < newest && begins(&event.kind);
    let repeated = |i: usize, event: &Event| {
        let same = |before: &Event| before.attempt == event.attempt && before.kind == event.kind;
        matches!(event.kind, EventKind::Failed { .. }) && run.events.range(..i).any(same)
    };
    let events = run.events.iter().enumerate().rev().filter(|(i, event)| !ended(*i, event) && !repeated(*i, event));
    events.map(|(_, event)| event).collect()
}

fn events(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Events;
    let below = heading(model, buf, area, "Events", goodput(model, run, usize::from(area.width)), focused);
    if run.events.is_empty() {
        let nothing = if run.status.is_some() { "No events yet" } else { "Loading…" };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    let events = visible_events(run);
    let selected = if focused { run.scroll.min(events.len().saturating_sub(1)) } else { 0 };
    let visible = usize::from(below.height);
    let first = layout::scrolled(0, selected, visible);
    let shown: Vec<&Event> = events.into_iter().skip(first).take(visible).collect();
    let ages: Vec<String> = shown.iter().map(|event| units::ago(model.now, event.t)).collect();
    let age_width = ages.iter().map(|age| text::width(age)).max().unwrap_or(0);
    // An item number, unlike a step, is not a position in the history of the run.
    let of_steps = step_word(run) == "step";
    let steps: Vec<String> =
        shown.iter().map(|e| e.step.filter(|_| of_steps).map_or_else(String::new, units::grouped)).collect();
    let step_width = steps.iter().map(|step| text::width(step)).max().unwrap_or(0);
    let lines = shown.iter().zip(ages).zip(steps).enumerate().map(|(at, ((event, age), step))| {
        let (what, severity) = event_text::describe(event);
        let pointer = match focused {
            true if first + at == selected => model.symbols.pointer,
            true => " ",
            false => "",
        };
        let style = match severity {
            Severity::Plain => Style::new(),
            Severity::Good => model.theme.good,
            Severity::Warn => model.theme.warn,
            Severity::Bad => model.theme.bad,
        };
        let step = match step_width {
            0 => String::new(),
            _ if below.width < 60 => format!("  {step:>step_width$}"),
            _ if step.is_empty() => " ".repeat(step_width + 7),
            _ => format!("  step {step:>step_width$}"),
        };
        Line::from(vec![
            Span::styled(pointer, model.theme.accent),
            Span::styled(format!("{age:>age_width$}{step}  "), model.theme.faint),
            Span::styled(format!("{} {}", glyph(model, severity), text::clean(&what)), style),
        ])
    });
    write_lines(model, buf, below, lines);
}
