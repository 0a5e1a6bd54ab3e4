//! The Compare screen: one chart per metric with a line for each run, a legend with the values, and the differences
//! between the recipes.

use crate::bindings::{Action, Context};
use crate::effect::{ComparisonSpec, Effect, Request, Watch};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{
    CompareScreen, ComparedRun, Input, MOST_COMPARED, Model, Purpose, Quantity, Screen, Session, Viewport,
};
use crate::msg::RunMsg;
use crate::run_state::{StateKind, short_id};
use crate::screens::run::{export_file, smoothing_words};
use crate::screens::{Behaviour, Press, compare_recipes};
use crate::series::{Axis, SMOOTHING};
use crate::text;
use crate::widgets::line_chart::{ChartLine, LineChart};
use crate::widgets::shared_axis::SharedAxis;
use crate::widgets::{panel, state, write, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::is_name_char;
use rundir::RunId;
use std::collections::BTreeSet;
use units::counted;

/// The minimum width and height of a chart beside or above another one.
const LEAST: (u16, u16) = (56, 12);

/// Opens the screen with the marked runs, or warns if there are too few or too many.
pub fn open(model: &mut Model) {
    let marked = &model.screens.runs.marked;
    let runs: Vec<RunId> = model.rows().iter().map(|row| row.run.clone()).filter(|run| marked.contains(run)).collect();
    let mark = model.keys.name(Context::Runs, Action::Mark);
    match runs.len() {
        0 | 1 => model.warn(format!("Mark two or more runs with {mark} to compare them")),
        2..=MOST_COMPARED => {
            // A comparison of the same runs keeps its metric and settings.
            let same = model.screens.compare.take_if(|open| open.runs.iter().map(|run| &run.id).eq(&runs));
            // A large chart has room for the raw line behind the moving average.
            let smoothing = layout::has_room_for_lanes(layout::areas(model.size).body).then_some(0);
            let new = || CompareScreen { smoothing, ..CompareScreen::new(runs) };
            model.screens.compare = Some(same.unwrap_or_else(new));
            model.screen = Screen::Compare;
        }
        n => model.warn(format!("{n} runs are marked; at most {MOST_COMPARED} can be compared")),
    }
}

/// The screen.
pub struct Compare;

impl Behaviour for Compare {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let Some(mut open) = model.screens.compare.take() else { return Vec::new() };
        let effects = on_action(model, &mut open, action);
        model.screens.compare = Some(open);
        effects
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        let Some(open) = model.screens.compare.take() else { return Vec::new() };
        let effects = export(model, &open, &input.text);
        model.screens.compare = Some(open);
        effects
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let Some(open) = &model.screens.compare else { return };
        let areas = areas(open, body);
        let metrics = metric_items(model, open, usize::from(areas.metrics.width));
        write(model, buf, areas.metrics, Line::from_iter(metrics.into_iter().flat_map(|(spans, _)| spans)));
        for (quantity, area) in &areas.charts {
            chart(model, open, quantity, areas.charts.len() > 1, buf, *area);
        }
        legend(model, open, buf, areas.legend);
        compare_recipes::view(model, open, buf, areas.recipes);
    }

    fn can_open(&self, model: &Model) -> bool {
        model.screens.compare.is_some() || model.screens.runs.marked.len() > 1
    }

    fn open(&self, model: &mut Model) {
        // Two or more marked runs replace the runs of the last comparison.
        match model.screens.compare.is_some() && model.screens.runs.marked.len() < 2 {
            true => model.screen = Screen::Compare,
            false => open(model),
        }
    }

    fn subject(&self, model: &Model, _: usize) -> String {
        model.screens.compare.as_ref().map_or_else(String::new, title)
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        let runs = model.screens.compare.iter().flat_map(|open| &open.runs);
        wanted.extend(runs.map(|run| Watch::Compared(run.id.clone())));
    }

    fn chart_at(&self, model: &Model, at: Position) -> Option<(Rect, (f64, f64))> {
        let open = model.screens.compare.as_ref()?;
        Some((plot_at(model, open, at)?.0, open.window()))
    }

    fn press_chart(&self, model: &mut Model, at: Position, x: f64) {
        let under = model.screens.compare.as_ref().and_then(|open| plot_at(model, open, at));
        let quantity = under.map(|(_, quantity)| quantity);
        if let Some(open) = &mut model.screens.compare {
            open.view.put_cursor(Some(x), open.full_range());
            open.quantity = quantity.unwrap_or_else(|| open.quantity.clone());
        }
    }

    fn zoom_chart(&self, model: &mut Model, factor: f64, x: f64) {
        model.screens.compare.iter_mut().for_each(|open| open.zoom(factor, Some(x)));
    }

    fn show_range(&self, model: &mut Model, range: (f64, f64)) {
        model.screens.compare.iter_mut().for_each(|open| open.show(range));
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        let part = model.screens.compare.as_ref().and_then(|open| part_at(model, open, at));
        match (part, &mut model.screens.compare) {
            (Some(ClickedPart::Quantity(quantity)), Some(open)) => open.quantity = quantity,
            (Some(ClickedPart::Run(number)), Some(open)) => open.toggle_run(number),
            _ => {}
        }
        Press::Done
    }

    fn on_run(&self, model: &mut Model, run: &RunId, what: RunMsg) -> Option<RunMsg> {
        match &mut model.screens.compare {
            Some(open) => {
                open.take_in(run, what);
                None
            }
            None => Some(what),
        }
    }

    fn save(&self, model: &Model, session: &mut Session) {
        if let Some(open) = &model.screens.compare {
            session.compared = open.runs.iter().map(|run| run.id.clone()).collect();
            session.metric = Some(open.quantity.name().to_owned());
            session.aligned = open.x;
            session.smoothing = open.smoothing;
        }
    }

    fn restore(&self, model: &mut Model, session: &Session) -> Screen {
        if !(2..=MOST_COMPARED).contains(&session.compared.len()) {
            return Screen::Runs;
        }
        model.screens.runs.marked = session.compared.iter().cloned().collect();
        let quantity = session.metric.as_deref().map_or(Quantity::Metric(0), Quantity::with_name);
        let (smoothing, x) = (session.smoothing(), session.aligned);
        let open = CompareScreen::new(session.compared.clone());
        model.screens.compare = Some(CompareScreen { quantity, smoothing, x, ..open });
        Screen::Compare
    }
}

/// Handles an action while the comparison is outside of the model.
fn on_action(model: &mut Model, open: &mut CompareScreen, action: Action) -> Vec<Effect> {
    let areas = areas(open, layout::areas(model.size).body);
    let columns = usize::from(areas.charts.first().map_or(0, |(_, area)| area.width).saturating_sub(10)).max(1);
    let page = usize::from(areas.recipes.height.saturating_sub(3)).max(1);
    let scrolls = open.recipes_only || matches!(action, Action::Up | Action::Down);
    // Moving the cursor is the most frequent action, and does not need the lines of the table.
    let last = if scrolls { compare_recipes::last_scroll(model, open, areas.recipes) } else { 0 };
    if let Some(to) = layout::moved(action, open.scroll, page, last).filter(|_| scrolls) {
        open.scroll = to;
        return Vec::new();
    }
    match action {
        Action::Back if open.recipes_only => open.recipes_only = false,
        Action::Back if open.enlarged => open.enlarged = false,
        Action::Enlarge => open.enlarged = !open.enlarged,
        Action::Toggle => open.show_next_alone(),
        Action::Back => model.screen = Screen::Runs,
        Action::Recipes => open.recipes_only = !open.recipes_only,
        Action::MetricNext | Action::MetricPrevious => open.choose_metric(action == Action::MetricNext),
        Action::ToggleX => open.align_next(),
        Action::LogY => {
            let quantity = open.quantity.clone();
            if !open.log_y.remove(&quantity) {
                open.log_y.insert(quantity);
            }
        }
        Action::Smooth => {
            open.smoothing = match open.smoothing {
                None => Some(0),
                Some(level) => Some(level + 1).filter(|level| *level < SMOOTHING.len()),
            };
            let text = smoothing_words(open.smoothing);
            model.notify(text);
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
        Action::Export => ask_export(model, open),
        _ => {}
    }
    Vec::new()
}

/// Opens the input for the file of the exported comparison, with a proposed name.
fn ask_export(model: &mut Model, open: &CompareScreen) {
    if lines(model, open, &open.quantity).is_empty() {
        model.warn("There is nothing to export: no run has logged this metric yet");
        return;
    }
    // The names of all runs would make the file name too long.
    let mut shown = open.runs.iter().filter(|run| !run.hidden);
    let Some(first) = shown.next() else { return };
    let metric = open.quantity.name().replace(|c: char| !is_name_char(c) && c != '_', "-");
    let others = match shown.count() {
        0 => String::new(),
        more => format!("-and-{more}"),
    };
    let proposed = format!("{}{others}-{metric}.svg", short_id(&first.id));
    model.input = Some(Input::new(Purpose::ExportComparison, proposed));
}

fn export(model: &mut Model, open: &CompareScreen, typed: &str) -> Vec<Effect> {
    let Some((to, _)) = export_file(model, typed) else { return Vec::new() };
    let comparison = ComparisonSpec {
        runs: open.runs.iter().filter(|run| !run.hidden).map(|run| run.id.clone()).collect(),
        metric: open.quantity.name().to_owned(),
        x: open.x,
        window: open.view.span.map(|_| open.window()),
        log_y: open.log_y.contains(&open.quantity),
        smoothing: open.smoothing.map(|level| SMOOTHING[level]),
    };
    let job = model.jobs.start(Intent::Export);
    vec![Effect::Job { job, request: Request::ExportComparison { comparison, to } }]
}

/// The parts of the screen. A part without room has height 0.
struct CompareAreas {
    metrics: Rect,
    charts: Vec<(Quantity, Rect)>,
    legend: Rect,
    recipes: Rect,
}

fn areas(open: &CompareScreen, body: Rect) -> CompareAreas {
    let none = Rect { height: 0, ..body };
    if open.recipes_only {
        return CompareAreas { metrics: none, charts: Vec::new(), legend: none, recipes: body };
    }
    let (metrics, rest) = layout::cut_top(body, u16::from(body.height >= 6));
    // A tall screen shows the recipes below the legend, with at most a fifth of its rows.
    let keys = (open.differences().len() as u16).max(1) + 2;
    let recipes = if body.height >= 30 { keys.min(body.height / 5).max(3) + 1 } else { 0 };
    let (rest, recipes) = layout::cut_top(rest, rest.height - recipes);
    let (_, recipes) = layout::cut_top(recipes, 1);
    // The values in the legend are more important than a large chart.
    let legend = (open.runs.len() as u16 + 1).min(rest.height);
    let (area, legend) = layout::cut_top(rest, rest.height - legend);
    CompareAreas { metrics, charts: charts(open, area), legend, recipes }
}

/// Places as many charts as fit, at most two beside each other and two above each other.
fn charts(open: &CompareScreen, area: Rect) -> Vec<(Quantity, Rect)> {
    const GAP: u16 = 3;
    let columns = ((area.width + GAP) / (LEAST.0 + GAP)).clamp(1, 2);
    let rows = (area.height / LEAST.1).clamp(1, 2);
    let shown = open.charts(usize::from(columns * rows));
    let columns = columns.min(shown.len() as u16);
    let rows = (shown.len() as u16).div_ceil(columns);
    let width = (area.width - GAP * (columns - 1)) / columns;
    let cell = |(at, quantity): (u16, Quantity)| {
        let (row, column) = (at / columns, at % columns);
        let (top, bottom) = (area.height * row / rows, area.height * (row + 1) / rows);
        (quantity, Rect { x: area.x + column * (width + GAP), y: area.y + top, width, height: bottom - top })
    };
    (0..).zip(shown).map(cell).collect()
}

/// The part of the screen that a click chooses.
pub enum ClickedPart {
    /// A quantity: its name in the first row, or its chart.
    Quantity(Quantity),
    /// A run in the legend, by its number.
    Run(usize),
}

/// Returns the part that a click at a position of the terminal chooses, outside of the plots.
fn part_at(model: &Model, open: &CompareScreen, at: Position) -> Option<ClickedPart> {
    let areas = areas(open, layout::areas(model.size).body);
    if areas.metrics.contains(at) {
        let mut end = areas.metrics.x;
        let under = |(spans, _): &(Vec<Span<'static>>, Option<Quantity>)| {
            end += spans.iter().map(Span::width).sum::<usize>() as u16;
            at.x < end
        };
        let found = metric_items(model, open, usize::from(areas.metrics.width)).into_iter().find(under)?;
        return found.1.map(ClickedPart::Quantity);
    }
    if areas.legend.contains(at) {
        let number = usize::from(at.y - areas.legend.y).checked_sub(1)?;
        return (number < open.runs.len()).then_some(ClickedPart::Run(number));
    }
    areas.charts.into_iter().find(|(_, area)| area.contains(at)).map(|(quantity, _)| ClickedPart::Quantity(quantity))
}

/// Returns the items of the first row: the names of the quantities, each with the quantity that a click on it
/// chooses. The row begins so that the chosen one fits.
fn metric_items(model: &Model, open: &CompareScreen, width: usize) -> Vec<(Vec<Span<'static>>, Option<Quantity>)> {
    let choices = open.choices();
    let names: Vec<String> = choices.iter().map(Quantity::label).collect();
    let chosen = choices.iter().position(|quantity| *quantity == open.quantity).unwrap_or(0);
    let mut first = chosen;
    let mut used = text::width(&names[chosen]) + 3;
    while first > 0 && used + text::width(&names[first - 1]) + 3 <= width {
        first -= 1;
        used += text::width(&names[first]) + 3;
    }
    let mut items = Vec::new();
    if first > 0 {
        items.push((vec![Span::styled(format!("{} ", model.symbols.ellipsis), model.theme.faint)], None));
    }
    for (at, (name, quantity)) in names.into_iter().zip(choices).enumerate().skip(first) {
        let style = if at == chosen { model.theme.accent } else { model.theme.faint };
        let pointer = if at == chosen { format!("{} ", model.symbols.pointer) } else { String::new() };
        items.push((vec![Span::styled(format!("{pointer}{name}"), style), Span::raw("   ")], Some(quantity)));
    }
    // The blanks after the last item would cause the row to be cut.
    if let Some((spans, _)) = items.last_mut() {
        spans.truncate(1);
    }
    items
}

/// Returns the letter of a run: `a` for the first one.
pub fn mark(number: usize) -> char {
    char::from(b'a' + number as u8)
}

/// Returns the line colour of a run.
pub(super) fn ink(model: &Model, number: usize) -> Style {
    model.theme.lines[number % model.theme.lines.len()]
}

/// Draws the chart of a quantity. Among several charts, only the chosen one shows its settings in its heading.
fn chart(
    model: &Model,
    open: &CompareScreen,
    quantity: &Quantity,
    is_one_of_several: bool,
    buf: &mut Buffer,
    area: Rect,
) {
    let is_chosen = *quantity == open.quantity;
    let by = match open.x {
        Axis::Step => "by step",
        Axis::Time => "by time since the first step",
        Axis::Tokens => "by tokens",
    };
    let mut settings = vec![by.to_owned()];
    settings.extend(open.log_y.contains(quantity).then(|| "log y".to_owned()));
    settings.extend(open.smoothing.map(|level| format!("smoothed over {:.0}", 1.0 / (1.0 - SMOOTHING[level]))));
    if open.view.span.is_some() {
        let ((low, high), (first, last)) = (open.window(), open.full_range());
        settings.push(format!("zoomed to {:.0} %", ((high - low) / (last - first) * 100.0).max(1.0)));
    }
    let has_settings = is_chosen || !is_one_of_several;
    let value = if has_settings { vec![Span::styled(settings.join(", "), model.theme.faint)] } else { Vec::new() };
    let below = panel(model, buf, area, &quantity.label(), value, is_chosen && is_one_of_several);
    let lines = lines(model, open, quantity);
    if lines.is_empty() {
        let nothing = if open.runs.iter().all(|run| run.opened || run.lost.is_some()) {
            "No run has logged this metric yet"
        } else {
            "Loading…"
        };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    line_chart(model, open, quantity, is_one_of_several, &lines).render(below, buf);
}

fn lines<'a>(model: &Model, open: &'a CompareScreen, quantity: &Quantity) -> Vec<ChartLine<'a>> {
    let line = |(number, run): (usize, &'a ComparedRun)| {
        let track = quantity.track(&run.series)?;
        let line = ChartLine {
            series: &run.series,
            track,
            band: None,
            label: short_id(&run.id).to_owned(),
            mark: mark(number),
            style: ink(model, number),
        };
        (!run.series.of_track(track).column(track).is_empty()).then_some(line)
    };
    open.drawn().filter_map(line).collect()
}

fn line_chart<'a>(
    model: &Model,
    open: &CompareScreen,
    quantity: &Quantity,
    is_one_of_several: bool,
    lines: &'a [ChartLine<'a>],
) -> LineChart<'a> {
    let dragged = model.drag.and_then(|drag| drag.shown());
    let axis = SharedAxis {
        x: open.x,
        step_word: "step",
        window: open.window(),
        // The ends of a drag replace the cursor.
        cursor: open.view.cursor.filter(|_| dragged.is_none()),
        dragged,
        // The same gutter in all charts keeps the x axes of charts above each other aligned.
        gutter: if is_one_of_several { 8 } else { 0 },
        margin: if is_one_of_several { 2 } else { 0 },
        labels_from: 6,
        marks_from: u16::MAX,
        symbols: model.symbols,
        theme: model.theme,
    };
    let log_y = open.log_y.contains(quantity);
    LineChart { lines, unit: quantity.unit(), axis, log_y, smoothing: open.smoothing }
}

/// Returns the plot area of the chart at a position of the terminal and the quantity of that chart, if the position
/// is inside the plot.
fn plot_at(model: &Model, open: &CompareScreen, at: Position) -> Option<(Rect, Quantity)> {
    let charts = areas(open, layout::areas(model.size).body).charts;
    let several = charts.len() > 1;
    let (quantity, area) = charts.into_iter().find(|(_, area)| area.contains(at))?;
    let lines = lines(model, open, &quantity);
    let plot = line_chart(model, open, &quantity, several, &lines).plot(layout::cut_top(area, 1).1)?;
    plot.contains(at).then_some((plot, quantity))
}

/// The width of a column of values in the legend.
const VALUE: usize = 10;

/// Draws one line per run: letter, name, state, and the values at the cursor.
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
        let name_style = if run.hidden { faint } else { Style::new() };
        let mark = if run.hidden { model.symbols.none.to_owned() } else { mark(number).to_string() };
        let mut spans = vec![
            Span::styled(format!("{mark} "), ink(model, number)),
            Span::styled(format!("{name}{pad}"), name_style),
        ];
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

/// Returns the titles of the value columns, the most important first.
fn columns(open: &CompareScreen) -> Vec<&'static str> {
    let mut titles = vec![if open.view.cursor.is_some() { "at cursor" } else { "newest" }];
    titles.extend(open.smoothing.map(|_| "smoothed"));
    titles.extend(["step", "lowest", "time", "tokens"]);
    titles
}

/// Returns the values of a run at the cursor, one per column.
fn values(model: &Model, open: &CompareScreen, run: &ComparedRun) -> Vec<String> {
    let none = || model.symbols.none.to_owned();
    let unit = open.quantity.unit();
    let shown = |value: f32| if value.is_finite() { units::value(f64::from(value), unit) } else { none() };
    let Some(at) = open.sample_at_cursor(run) else { return columns(open).iter().map(|_| none()).collect() };
    let (series, live) = (&run.series, run.series.live());
    let Some(track) = open.quantity.track(series) else { return columns(open).iter().map(|_| none()).collect() };
    let piece = series.of_track(track);
    let column = piece.column(track);
    // Samples of nodes have their own times, and some metrics are not measured at every step.
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

/// Returns the text for the header: `Compare 3 runs`.
pub fn title(open: &CompareScreen) -> String {
    format!("Compare {}", counted(open.runs.len(), "run"))
}
