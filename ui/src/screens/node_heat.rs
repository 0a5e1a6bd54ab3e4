//! The heat map of the Nodes screen: one row per node, arranged in columns, with one cell per GPU.

use crate::fleet::NodeView;
use crate::fleet::gpu_value::{GpuReader, GpuSpread, GpuValue, is_current};
use crate::layout;
use crate::model::Model;
use crate::screens::node_table;
use crate::text;
use crate::widgets::{panel, write};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};
use units::counted;

/// Columns between two nodes.
const GAP: usize = 3;
/// The maximum number of GPUs that are drawn per node.
const MOST_GPUS: usize = 16;

/// The arrangement of the nodes in rows and columns.
pub struct HeatGrid {
    /// The number of nodes in one column.
    pub rows: usize,
    /// The number of columns of nodes.
    columns: usize,
    name_width: usize,
    gpus: usize,
}

impl HeatGrid {
    /// Returns the arrangement for an area, which includes the heading.
    pub fn new(model: &Model, area: Rect) -> Self {
        let nodes = model.fleet.nodes();
        let name_width = nodes.iter().map(|view| text::width(view.node.id.as_str())).max().unwrap_or(0).clamp(1, 24);
        let gpus = nodes.iter().map(|view| view.summary.gpus).max().unwrap_or(0).clamp(1, MOST_GPUS);
        let rows = usize::from(area.height.saturating_sub(1)).max(1);
        // Each node shows pointer, mark, condition and name, then its GPUs.
        let columns = (usize::from(area.width) + GAP) / (4 + name_width + 1 + gpus + GAP);
        Self { rows, columns: columns.max(1), name_width, gpus }
    }

    /// Returns the number of rows that all nodes and the heading need.
    pub fn rows_of_all(&self, count: usize) -> usize {
        count.div_ceil(self.columns) + 1
    }

    /// Returns the position of the first node on the page of the selected node.
    fn first(&self, selected: usize) -> usize {
        let page = self.rows * self.columns;
        selected / page * page
    }

    fn width(&self) -> usize {
        4 + self.name_width + 1 + self.gpus
    }

    /// Returns the area of the node at a position in the sort order. `below` is the area below the heading.
    fn area_of(&self, below: Rect, first: usize, place: usize) -> Rect {
        let (column, row) = ((place - first) / self.rows, (place - first) % self.rows);
        let x = below.x + (column * (self.width() + GAP)) as u16;
        Rect { x, y: below.y + row as u16, width: self.width() as u16, height: 1 }.intersection(below)
    }

    /// Returns the position in the sort order of the node at a position of the terminal. `area` includes the heading.
    pub fn place_at(&self, area: Rect, selected: usize, count: usize, at: Position) -> Option<usize> {
        let below = layout::cut_top(area, 1).1;
        let first = self.first(selected);
        let places = first..(first + self.rows * self.columns).min(count);
        places.into_iter().find(|place| self.area_of(below, first, *place).contains(at))
    }
}

/// Returns the glyph and the style of a value: `share` of the scale determines the height of the bar and its colour.
pub fn cell(model: &Model, share: Option<f64>) -> (&'static str, Style) {
    // The highest bar is not used, so that bars do not touch those of the node above.
    let levels = &model.symbols.levels[..7];
    match share {
        Some(share) => {
            let at = (share * levels.len() as f64).min(levels.len() as f64 - 1.0) as usize;
            let ink = model.theme.ramp_at(share);
            // Without colours, bars are dim, so that those of outliers, which are bold, differ.
            (levels[at], if ink.fg.is_none() { model.theme.faint } else { ink })
        }
        None => (model.symbols.not_finite, model.theme.faint),
    }
}

/// The glyph of a value that is not known, such as that of each GPU of a node that cannot be reached.
pub const UNKNOWN: &str = "?";

/// Returns the style of a value that differs much from those of the other GPUs.
pub fn outlier_style(model: &Model) -> Style {
    // Not reversed: a reversed bar shows a low value as a high one.
    model.theme.warn.add_modifier(Modifier::BOLD)
}

/// Draws the map of one quantity.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect, value: GpuValue) {
    let nodes = model.fleet.nodes();
    let reader = GpuReader::new(value, || model.step_times());
    let spread = GpuSpread::of(&reader, nodes);
    let grid = HeatGrid::new(model, area);
    let selected = model.node_position();
    let first = grid.first(selected);
    let count = model.screens.nodes.order.len();
    let last = (first + grid.rows * grid.columns).min(count);
    let title = title(&reader, first, last, count);
    let room = usize::from(area.width).saturating_sub(text::width(&title) + 6);
    let below = panel(model, buf, area, &title, legend(model, &reader, spread.as_ref(), room), false);
    let shown = model.screens.nodes.order.iter().enumerate().skip(first).take(last - first);
    for (place, view) in shown.filter_map(|(place, at)| Some((place, nodes.get(*at)?))) {
        let line = node_line(model, &grid, view, &reader, spread.as_ref(), place == selected);
        write(model, buf, grid.area_of(below, first, place), line);
    }
}

/// Returns the title: the quantity, and which nodes are visible if not all fit.
fn title(reader: &GpuReader<'_>, first: usize, last: usize, count: usize) -> String {
    let what = match &reader.steps {
        Some(steps) => format!("Step time of ranks, step {}", units::grouped(steps.step)),
        None => format!("GPU {}", reader.value.word()),
    };
    if last - first < count { format!("{what}, nodes {}-{last} of {count}", first + 1) } else { what }
}

/// Returns the scale with its colours, the median, the range and the number of outliers, in at most `room` columns.
fn legend(model: &Model, reader: &GpuReader<'_>, spread: Option<&GpuSpread>, room: usize) -> Vec<Span<'static>> {
    let Some(spread) = spread else { return vec![Span::styled("not reported", model.theme.faint)] };
    let nodes = || model.fleet.nodes().iter().filter(|view| is_current(view));
    let gpus = || nodes().flat_map(|view| view.gpus().iter().map(move |gpu| (view, gpu)));
    let scale = gpus().map(|(_, gpu)| reader.scale(gpu)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let (low, high) = scale.unwrap_or((0.0, 1.0));
    let levels = &model.symbols.levels[..7];
    let mut spans = vec![Span::styled(format!("{} ", spread.value.shown(low)), model.theme.faint)];
    for at in 0..levels.len() {
        let (level, ink) = cell(model, Some((at as f64 + 0.5) / levels.len() as f64));
        spans.push(Span::styled(level, ink));
    }
    spans.push(Span::styled(format!(" {}", spread.value.shown(high)), model.theme.faint));
    let outliers = gpus().filter(|(view, gpu)| spread.is_outlier(reader.of(view, gpu))).count();
    let found = Span::styled(counted(outliers, "outlier"), outlier_style(model));
    let mut room = room.saturating_sub(spans.iter().map(Span::width).sum::<usize>());
    if outliers > 0 {
        room = room.saturating_sub(found.width() + 3);
    }
    let range = format!("{} to {}", spread.value.shown(spread.lowest), spread.value.shown(spread.highest));
    let median = format!("median {}", spread.value.shown(spread.median));
    for (fact, style) in [(median, Style::new()), (range, model.theme.faint)] {
        if text::width(&fact) + 3 <= room {
            room -= text::width(&fact) + 3;
            spans.push(Span::styled(format!("   {fact}"), style));
        }
    }
    if outliers > 0 {
        spans.extend([Span::raw("   "), found]);
    }
    spans
}

fn node_line(
    model: &Model,
    grid: &HeatGrid,
    view: &NodeView,
    reader: &GpuReader<'_>,
    spread: Option<&GpuSpread>,
    is_chosen: bool,
) -> Line<'static> {
    let condition = view.condition(model.now);
    let pointer = if is_chosen { model.symbols.pointer } else { " " };
    let mark = if model.screens.nodes.marked.contains(&view.node.id) { model.symbols.mark } else { " " };
    let name = node_table::name(model, &view.node.id, grid.name_width);
    let pad = " ".repeat(grid.name_width + 1 - text::width(&name));
    let style = match is_current(view) {
        true if is_chosen => model.theme.strong,
        true => Style::new(),
        false => model.theme.faint,
    };
    let mut spans = vec![
        Span::styled(format!("{pointer}{mark}"), model.theme.accent),
        Span::styled(
            format!("{} ", node_table::glyph(model, condition)),
            node_table::condition_style(model, condition),
        ),
        Span::styled(format!("{name}{pad}"), style),
    ];
    for gpu in view.gpus().iter().take(grid.gpus) {
        spans.push(match (cell(model, reader.share(view, gpu)), spread) {
            _ if !is_current(view) => Span::styled(UNKNOWN, model.theme.faint),
            ((glyph, _), Some(spread)) if spread.is_outlier(reader.of(view, gpu)) => {
                Span::styled(glyph, outlier_style(model))
            }
            ((glyph, ink), _) => Span::styled(glyph, ink),
        });
    }
    Line::from(spans)
}

/// Divides the body into the area of the map and the area below it for the details of the selected node.
pub fn area(model: &Model, body: Rect, details: u16) -> (Rect, Rect) {
    let most = if body.height >= details + 9 { body.height - details } else { body.height };
    let all = HeatGrid::new(model, body).rows_of_all(model.screens.nodes.order.len());
    layout::cut_top(body, u16::try_from(all).unwrap_or(u16::MAX).min(most))
}
