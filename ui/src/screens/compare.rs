//! The Compare screen: one metric of several runs in one chart, a legend with their values, and the differences of their
//! recipes.

use crate::bindings::{Action, Context};
use crate::effect::{ComparisonSpec, Effect, ImageFormat};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{CompareScreen, ComparedRun, MOST_COMPARED, Model, Screen, Viewport};
use crate::run_state::{StateKind, short_id};
use crate::screens::compare_recipes;
use crate::series::{Axis, SMOOTHING};
use crate::text;
use crate::widgets::line_chart::{ChartLine, LineChart};
use crate::widgets::{panel, state, write, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::{METRICS, RunId};
use units::counted;

/// From this width on, the recipes are beside the chart.
const WIDE: u16 = 120;

/// Opens the screen with the marked runs.
pub fn open(model: &mut Model) {
    let marked = &model.runs_screen.marked;
    let runs: Vec<RunId> = model.rows().iter().map(|row| row.run.clone()).filter(|run| marked.contains(run)).collect();
    let mark = model.keys.name(Context::Runs, Action::Mark);
    match runs.len() {
        0 | 1 => model.warn(format!("Mark two or more runs with {mark} to compare them")),
        2..=MOST_COMPARED => {
            // Runs that were compared before keep the metric and the settings.
            let same = model.compare.take_if(|open| open.runs.iter().map(|run| &run.id).eq(&runs));
            model.compare = Some(same.unwrap_or_else(|| CompareScreen::new(runs)));
            model.screen = Screen::Compare;
        }
        n => model.warn(format!("{n} runs are marked; at most {MOST_COMPARED} can be compared")),
    }
}

/// Handles an action.
pub fn on_action(model: &mut Model, action: Action) -> Vec<Effect> {
    let areas = areas(model, layout::areas(model.size).body);
    let columns = usize::from(areas.chart.width.saturating_sub(10)).max(1);
    let page = usize::from(areas.recipes.height.saturating_sub(3)).max(1);
    let rows = usize::from(areas.recipes.height.saturating_sub(2));
    let Some(open) = &mut model.compare else { return Vec::new() };
    let last = open.differences().len().saturating_sub(rows);
    let scrolls = open.recipes_only || matches!(action, Action::Up | Action::Down);
    if let Some(to) = layout::moved(action, open.scroll, page, last).filter(|_| scrolls) {
        open.scroll = to;
        return Vec::new();
    }
    match action {
        Action::Back if open.recipes_only => open.recipes_only = false,
        Action::Back => model.screen = Screen::Runs,
        Action::Recipes => open.recipes_only = !open.recipes_only,
        Action::MetricNext | Action::MetricPrevious => open.choose_metric(action == Action::MetricNext),
        Action::ToggleX => open.align_next(),
        Action::LogY => {
            let metric = open.metric;
            if !open.log_y.remove(&metric) {
                open.log_y.insert(metric);
            }
        }
        Action::Smooth => {
            open.smoothing = match open.smoothing {
                None => Some(0),
                Some(level) => Some(level + 1).filter(|level| *level < SMOOTHING.len()),
            };
        }
        Action::CursorLeft => open.move_cursor(columns, false),
        Action::CursorRight => open.move_cursor(columns, true),
        Action::PageUp => open.view.pan(false, open.full_range()),
        Action::PageDown => open.view.pan(true, open.full_range()),
        Action::Top => open.view.put_at_start(open.full_range()),
        Action::Bottom => open.view.put_cursor(None, open.full_range()),
        Action::ZoomIn => open.zoom(0.5, None),
        Action::ZoomOut => open.zoom(2.0, None),
        Action::ResetView => open.view = Viewport::default(),
        Action::ExportSvg => return export(model, ImageFormat::Svg),
        Action::ExportPng => return export(model, ImageFormat::Png),
        _ => {}
    }
    Vec::new()
}

fn export(model: &mut Model, format: ImageFormat) -> Vec<Effect> {
    let Some(open) = &model.compare else { return Vec::new() };
    if lines(model, open).is_empty() {
        model.warn("There is nothing to export: no run has logged this metric yet");
        return Vec::new();
    }
    let comparison = ComparisonSpec {
        runs: open.runs.iter().map(|run| run.id.clone()).collect(),
        metric: open.metric().name,
        x: open.x,
        window: open.view.span.map(|_| open.window()),
        log_y: open.log_y.contains(&open.metric),
        smoothing: open.smoothing.map(|level| SMOOTHING[level]),
    };
    // The names of all runs would be too long for the name of a file.
    let extension = if format == ImageFormat::Svg { "svg" } else { "png" };
    let (first, more) = (short_id(&comparison.runs[0]), comparison.runs.len() - 1);
    let to = model.export_dir.join(format!("{first}-and-{more}-{}.{extension}", comparison.metric));
    let job = model.jobs.start(Intent::Export);
    vec![Effect::ExportComparison { job, comparison, to }]
}

/// The parts of the screen. A part without room has height 0.
struct CompareAreas {
    metrics: Rect,
    chart: Rect,
    legend: Rect,
    recipes: Rect,
}

fn areas(model: &Model, body: Rect) -> CompareAreas {
    let none = Rect { height: 0, ..body };
    let (runs, alone) = model.compare.as_ref().map_or((0, false), |open| (open.runs.len() as u16, open.recipes_only));
    if alone {
        return CompareAreas { metrics: none, chart: none, legend: none, recipes: body };
    }
    let (left, recipes) = if body.width >= WIDE {
        const GAP: u16 = 3;
        let width = body.width * 2 / 5;
        let left = Rect { width: body.width - width - GAP, ..body };
        (left, Rect { x: left.right() + GAP, width, ..body })
    } else {
        (body, none)
    };
    let (metrics, rest) = layout::cut_top(left, u16::from(left.height >= 6));
    // The values are more important than a large chart.
    let legend = (runs + 1).min(rest.height);
    let (chart, legend) = layout::cut_top(rest, rest.height - legend);
    CompareAreas { metrics, chart, legend, recipes }
}

/// Draws the screen.
pub fn view(model: &Model, buf: &mut Buffer, body: Rect) {
    let Some(open) = &model.compare else { return };
    let areas = areas(model, body);
    write(model, buf, areas.metrics, metrics_line(model, open, usize::from(areas.metrics.width)));
    chart(model, open, buf, areas.chart);
    legend(model, open, buf, areas.legend);
    compare_recipes::view(model, open, buf, areas.recipes);
}

/// Returns the name of a metric on this screen.
fn metric_name(metric: usize) -> &'static str {
    let metric = &METRICS[metric];
    match metric.source {
        rundir::MetricSource::PerRank(_) => "highest memory of a rank",
        _ => metric.label,
    }
}

/// Returns the metrics with the chosen one marked, from the first that leaves room for it.
fn metrics_line(model: &Model, open: &CompareScreen, width: usize) -> Line<'static> {
    let choices = open.choices();
    let names: Vec<&str> = choices.iter().map(|metric| metric_name(*metric)).collect();
    let chosen = choices.iter().position(|metric| *metric == open.metric).unwrap_or(0);
    let mut first = chosen;
    let mut used = names[chosen].len() + 3;
    while first > 0 && used + names[first - 1].len() + 3 <= width {
        first -= 1;
        used += names[first].len() + 3;
    }
    let mut spans = Vec::new();
    if first > 0 {
        spans.push(Span::styled(format!("{} ", model.symbols.ellipsis), model.theme.faint));
    }
    for (at, name) in names.into_iter().enumerate().skip(first) {
        let style = if at == chosen { model.theme.accent } else { model.theme.faint };
        let pointer = if at == chosen { format!("{} ", model.symbols.pointer) } else { String::new() };
        spans.push(Span::styled(format!("{pointer}{name}"), style));
        spans.push(Span::raw("   "));
    }
    spans.pop();
    Line::from(spans)
}

/// Returns the mark of a run: `a` for the first one.
pub(super) fn mark(number: usize) -> char {
    char::from(b'a' + number as u8)
}

/// Returns the colour of a run.
pub(super) fn ink(model: &Model, number: usize) -> Style {
    model.theme.lines[number % model.theme.lines.len()]
}

fn chart(model: &Model, open: &CompareScreen, buf: &mut Buffer, area: Rect) {
    let by = match open.x {
        Axis::Step => "by step",
        Axis::Time => "by time since the first step",
        Axis::Tokens => "by tokens",
    };
    let mut settings = vec![by.to_owned()];
    settings.extend(open.log_y.contains(&open.metric).then(|| "log y".to_owned()));
    settings.extend(open.smoothing.map(|level| format!("smoothed over {:.0}", 1.0 / (1.0 - SMOOTHING[level]))));
    if open.view.span.is_some() {
        let ((low, high), (first, last)) = (open.window(), open.full_range());
        settings.push(format!("zoomed to {:.0} %", ((high - low) / (last - first) * 100.0).max(1.0)));
    }
    let value = vec![Span::styled(settings.join(", "), model.theme.faint)];
    let below = panel(model, buf, area, metric_name(open.metric), value, false);
    let lines = lines(model, open);
    if lines.is_empty() {
        let nothing = if open.runs.iter().all(|run| run.opened || run.lost.is_some()) {
            "No run has logged this metric yet"
        } else {
            "Loading…"
        };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    line_chart(model, open, &lines).render(below, buf);
}

fn lines<'a>(model: &Model, open: &'a CompareScreen) -> Vec<ChartLine<'a>> {
    let track = open.track();
    open.drawn()
        .filter(|(_, run)| !run.series.of_track(track).column(track).is_empty())
        .map(|(number, run)| ChartLine {
            series: &run.series,
            track,
            band: None,
            label: short_id(&run.id).to_owned(),
            mark: mark(number),
            style: ink(model, number),
        })
        .collect()
}

fn line_chart<'a>(model: &Model, open: &CompareScreen, lines: &'a [ChartLine<'a>]) -> LineChart<'a> {
    let dragged = model.drag.and_then(|drag| drag.shown());
    LineChart {
        lines,
        unit: open.metric().unit,
        x: open.x,
        step_word: "step",
        window: open.window(),
        log_y: open.log_y.contains(&open.metric),
        smoothing: open.smoothing,
        aligned: None,
        x_labels_from: 6,
        // The ends of a drag take the place of the cursor.
        cursor: open.view.cursor.filter(|_| dragged.is_none()),
        dragged,
        symbols: model.symbols,
        theme: model.theme,
    }
}

/// Returns the area between the axes of the chart, if a position of the terminal is in it.
pub fn plot_at(model: &Model, at: Position) -> Option<Rect> {
    let open = model.compare.as_ref()?;
    let area = areas(model, layout::areas(model.size).body).chart;
    let lines = lines(model, open);
    line_chart(model, open, &lines).plot(layout::cut_top(area, 1).1).filter(|plot| plot.contains(at))
}

/// The width of a column of values.
const VALUE: usize = 10;

/// Draws one line per run: its mark, name and state, and its values at the cursor.
fn legend(model: &Model, open: &CompareScreen, buf: &mut Buffer, area: Rect) {
    const STATE: usize = 10;
    let faint = model.theme.faint;
    let width = usize::from(area.width);
    let widest = open.runs.iter().map(|run| text::width(short_id(&run.id))).max().unwrap_or(0);
    let titles = columns(open);
    let name_width = widest.min(width.saturating_sub(2 + VALUE + 2).max(4));
    let mut room = width.saturating_sub(2 + name_width);
    let has_state = room >= 2 + STATE + VALUE;
    room -= if has_state { 2 + STATE } else { 0 };
    let shown = titles.len().min(room / (VALUE + 1));
    let right = |text: &str| format!(" {}{text}", " ".repeat(VALUE.saturating_sub(text::width(text))));
    let state_title = if has_state { format!("  {:<STATE$}", "state") } else { String::new() };
    let titles: String = titles.iter().take(shown).map(|title| right(title)).collect();
    let name_title = text::fit("run", name_width, model.symbols.ellipsis);
    let mut lines = vec![Line::styled(format!("  {name_title:<name_width$}{state_title}{titles}"), faint)];
    for (number, run) in open.runs.iter().enumerate() {
        let name = text::fit(short_id(&run.id), name_width, model.symbols.ellipsis);
        let pad = " ".repeat(name_width - text::width(&name));
        let mut spans =
            vec![Span::styled(format!("{} ", mark(number)), ink(model, number)), Span::raw(format!("{name}{pad}"))];
        if has_state {
            let kind = model.row(&run.id).map(|row| state(model, StateKind::of(&row.state)));
            let kind = kind.unwrap_or_default();
            let pad = " ".repeat(STATE.saturating_sub(kind.width()));
            spans.extend([Span::raw("  "), kind, Span::raw(pad)]);
        }
        if let Some(failure) = &run.lost {
            spans.push(Span::styled(format!("  {}: {}", failure.what, failure.why), model.theme.bad));
        } else {
            let values = values(model, open, run).into_iter().take(shown).enumerate();
            spans.extend(values.map(|(at, value)| {
                Span::styled(right(&value), if at == 0 { model.theme.strong } else { Style::new() })
            }));
        }
        lines.push(Line::from(spans));
    }
    write_lines(model, buf, area, lines);
}

/// Returns the titles of the columns of values, the most important first.
fn columns(open: &CompareScreen) -> Vec<&'static str> {
    let mut titles = vec![if open.view.cursor.is_some() { "at cursor" } else { "newest" }];
    titles.extend(open.smoothing.map(|_| "smoothed"));
    titles.extend(["step", "lowest", "time", "tokens"]);
    titles
}

/// Returns the values of a run at the cursor, one per column.
fn values(model: &Model, open: &CompareScreen, run: &ComparedRun) -> Vec<String> {
    let none = || model.symbols.none.to_owned();
    let unit = open.metric().unit;
    let shown = |value: f32| if value.is_finite() { units::value(f64::from(value), unit) } else { none() };
    let Some(at) = open.sample_at_cursor(run) else { return columns(open).iter().map(|_| none()).collect() };
    let track = open.track();
    let (series, live) = (&run.series, run.series.live());
    let piece = series.of_track(track);
    let column = piece.column(track);
    // Nodes have samples of their own times, and some metrics are not measured at every step.
    let end = if track.is_of_nodes() { piece.at_time(live.time(at)) + 1 } else { at + 1 };
    let value = match column.last_finite(end) {
        _ if !track.is_of_nodes() && column.any_not_finite(at, end) => "not finite".to_owned(),
        Some(last) => shown(column.get(last)),
        None => none(),
    };
    let extent = column.extent(0, end);
    let mut values = vec![value];
    if let Some(level) = open.smoothing {
        values.push(piece.smoothed(track, level).map_or_else(none, |average| shown(average.get(at))));
    }
    values.push(units::grouped(live.step(at)));
    values.push(if extent.is_empty() { none() } else { shown(extent.min) });
    values.push(units::short_duration(series.x_of(Axis::Time, live, at)));
    let tokens = live.tokens(at);
    values.push(if tokens > 0.0 { units::count(tokens as u64) } else { none() });
    values
}

/// Returns the number of compared runs in words, for the header.
pub fn title(open: &CompareScreen) -> String {
    format!("Compare {}", counted(open.runs.len(), "run"))
}
