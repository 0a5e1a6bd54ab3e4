//! Draws the panels of the Run screen: charts with their values, and the heat map of ranks.

use crate::charts::{self, Curve};
use crate::layout::{self, Panel};
use crate::memo::Memo;
use crate::model::Model;
use crate::model::{RunScreen, Screen};
use crate::panel_set;
use crate::panel_set::{PICKABLE, pickable};
use crate::rank_times::LEVELS;
use crate::screens::{run_lists, run_marks, run_recipe, samples};
use crate::series::XAxis;
use crate::series::{Axis, Extent, SMOOTHING, Segment, Track};
use crate::text;
use crate::widgets::heat_map::{HeatMap, shade_style};
use crate::widgets::line_chart::{ChartLine, LineChart};
use crate::widgets::shared_axis::SharedAxis;
use crate::widgets::{panel as heading, write};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};
use recipe::Task;
use rundir::Chart;
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

/// Returns the measured lines of a panel; none if it is not a chart. Curves with equal values share a line.
pub fn lines<'a>(model: &Model, run: &'a RunScreen, panel: Panel) -> Vec<ChartLine<'a>> {
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

/// Draws a panel. `axis` is the x axis of its column, and `lines` are its lines, if it is a chart.
pub fn view(
    model: &Model,
    run: &RunScreen,
    (panel, lines): (Panel, &[ChartLine<'_>]),
    axis: SharedAxis,
    buf: &mut Buffer,
    area: Rect,
) {
    match panel {
        Panel::Chart(_) | Panel::Metric(_) | Panel::Named(_) => {
            chart_panel(model, run, (panel, lines), axis, buf, area);
        }
        Panel::Ranks => ranks(model, run, axis, buf, area),
        Panel::Recipe => run_recipe::view(model, run, buf, area),
        Panel::Pipeline => run_lists::pipeline(model, run, buf, area),
        Panel::Samples => samples::panel(model, run, buf, area),
        Panel::Checkpoints => run_lists::checkpoints(model, run, buf, area),
        Panel::Events => run_lists::events(model, run, buf, area),
    }
}

/// Returns the x axis of the charts, with a gutter and a margin of 0.
pub fn axis(model: &Model, run: &RunScreen) -> SharedAxis {
    let dragged = model.drag.and_then(|drag| drag.shown());
    // Every step of a run that makes samples would be marked.
    let makes_samples = run.status.as_ref().is_some_and(|status| status.row.task == Task::Sample);
    let has_marks = !makes_samples && run_marks::any(model, run);
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
        marks_from: if has_marks { run_marks::LEAST_ROWS } else { u16::MAX },
        symbols: model.symbols,
        theme: model.theme,
    }
}

/// Returns the number of columns left of the plot that a panel needs; `None` if the panel has no x axis. `lines` are those of the panel.
pub fn gutter(
    model: &Model,
    run: &RunScreen,
    (panel, lines): (Panel, &[ChartLine<'_>]),
    axis: SharedAxis,
    area: Rect,
) -> Option<u16> {
    let below = layout::cut_top(area, 1).1;
    match panel {
        Panel::Ranks => Some(rank_map(run, axis, &|x| x).gutter(below)),
        _ if panel.is_chart() => Some(line_chart(model, run, panel, axis, lines).gutter(below)),
        _ => None,
    }
}

/// Returns the name of a step in the run's task.
pub(super) fn step_word(run: &RunScreen) -> &'static str {
    match run.status.as_ref().map(|status| status.row.task) {
        Some(Task::Encode) => "item",
        _ => "step",
    }
}

/// Returns the text for a panel that has no steps to draw.
pub(super) fn no_step(run: &RunScreen) -> &'static str {
    match run.status.as_ref().map(|status| &status.row) {
        Some(row) if row.is_stepless => "No steps are read from the log",
        Some(row) if row.task == Task::Encode => "No clip yet",
        _ => "No step yet",
    }
}

fn chart_panel(
    model: &Model,
    run: &RunScreen,
    (panel, lines): (Panel, &[ChartLine<'_>]),
    axis: SharedAxis,
    buf: &mut Buffer,
    area: Rect,
) {
    // The Runs screen shows the large chart too, without focus.
    let focused = run.focus == panel && model.screen == Screen::Run;
    let enlarged = focused && run.enlarged;
    let values = if enlarged { settings(model, run, panel) } else { heading_values(model, run, panel, lines, area) };
    let below = heading(model, buf, area, &title(run, panel), values, focused);
    if run.series.live().is_empty() && run.series.superseded().is_empty() {
        let nothing = if run.lost.is_some() { "No values" } else { no_step(run) };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    if lines.is_empty() {
        let is_command = run.status.as_ref().is_some_and(|status| status.row.is_command);
        let nothing = match panel {
            Panel::Chart(Chart::Mfu) if !is_command => "Set log.peak_tflops in the recipe",
            _ => "Not measured",
        };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    let parts = chart_parts(below, enlarged, axis);
    let chart = line_chart(model, run, panel, axis, lines);
    chart.render(parts.chart, buf);
    if let Some(row) = chart.marks_row(parts.chart) {
        run_marks::draw(model, run, &axis, buf, row);
    }
    if parts.legend.height > 0 {
        let mut legend = run_marks::legend(model, run);
        if legend.is_empty() {
            legend.push(Span::styled("No marks in this range", model.theme.faint));
        }
        write(model, buf, parts.legend, Line::from(legend));
    }
    if parts.read_out.height > 0 {
        let plot = chart.plot(parts.chart);
        let marks = plot.map_or_else(Vec::new, |plot| run_marks::at_cursor(model, run, &axis, plot));
        let values = read_out(model, run, panel, lines);
        write(model, buf, parts.read_out, with_marks(model, values, marks, usize::from(parts.read_out.width)));
    }
}

/// The parts of the area below the heading of a chart.
struct ChartParts {
    chart: Rect,
    /// The legend of the marks.
    legend: Rect,
    /// The values and the marks at the cursor.
    read_out: Rect,
}

/// Splits the area below the heading of a chart. Only an enlarged chart has more parts than the chart.
fn chart_parts(below: Rect, enlarged: bool, axis: SharedAxis) -> ChartParts {
    let read_out = u16::from(enlarged && below.height >= 6);
    let legend = u16::from(enlarged && below.height >= axis.marks_from.saturating_add(2));
    let (chart, rest) = layout::cut_top(below, below.height - read_out - legend);
    let (legend, read_out) = layout::cut_top(rest, legend);
    ChartParts { chart, legend, read_out }
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
    let parts = chart_parts(below, run.enlarged_chart() == Some(panel), axis);
    let lines = lines(model, run, panel);
    line_chart(model, run, panel, axis, &lines).plot(parts.chart)
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

/// Adds the texts of marks to the end of a line. If both do not fit, the line is cut, and the texts get at most half of
/// the width.
fn with_marks(model: &Model, line: Line<'static>, marks: Vec<Span<'static>>, width: usize) -> Line<'static> {
    const GAP: usize = 3;
    if marks.is_empty() {
        return line;
    }
    let ellipsis = model.symbols.ellipsis;
    let most = width.saturating_sub(line.width() + GAP).max(width / 2);
    let marks = text::fit_line(Line::from(marks), most, ellipsis);
    let mut line = text::fit_line(line, width.saturating_sub(marks.width() + GAP), ellipsis);
    line.spans.push(Span::raw(" ".repeat(GAP)));
    line.spans.extend(marks.spans);
    line
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
        let has_steps = run.status.as_ref().is_some_and(|status| status.row.step > 0);
        let nothing = match times.ranks() {
            0 if has_steps => "The steps have no times by rank",
            0 => no_step(run),
            _ => "Only one rank",
        };
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

/// Formats an excess: `+25 %`.
fn more(over: f32) -> String {
    format!("+{:.0} %", over * 100.0)
}

/// Returns the picked panels of the open run; the default panels until the user picks some.
pub fn picked(model: &Model) -> Vec<Panel> {
    let usual = || PICKABLE.into_iter().filter(|panel| *panel != Panel::Recipe).collect();
    model.screens.run.as_ref().and_then(|run| model.panels.panels(&run.series)).unwrap_or_else(usual)
}

/// Returns all panels of the open run: the picked ones in their order, then the others.
pub fn order(model: &Model) -> Vec<Panel> {
    let mut order = picked(model);
    let all = model.screens.run.as_ref().map_or_else(Vec::new, |run| pickable(&run.series));
    order.extend(all.into_iter().filter(|panel| !order.contains(panel)).collect::<Vec<_>>());
    order
}
