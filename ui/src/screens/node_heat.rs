//! The heat map of the Nodes screen: one row per node in columns side by side, one cell per GPU.

use crate::fleet::NodeView;
use crate::gpu_value::{GpuSpread, GpuValue, is_current};
use crate::layout;
use crate::model::Model;
use crate::screens::node_table;
use crate::text;
use crate::widgets::{panel, write};
use cluster::GpuSample;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};
use units::counted;

/// Columns between two nodes.
const GAP: usize = 3;
/// The most GPUs of a node that are drawn.
const MOST_GPUS: usize = 16;

/// The arrangement of the nodes.
pub struct HeatGrid {
    /// Nodes below each other.
    pub rows: usize,
    /// Nodes beside each other.
    columns: usize,
    name_width: usize,
    gpus: usize,
}

impl HeatGrid {
    /// Returns the arrangement in an area, its heading included.
    pub fn new(model: &Model, area: Rect) -> Self {
        let nodes = model.fleet.nodes();
        let name_width = nodes.iter().map(|view| text::width(view.node.id.as_str())).max().unwrap_or(0).clamp(1, 24);
        let gpus = nodes.iter().map(|view| view.summary.gpus).max().unwrap_or(0).clamp(1, MOST_GPUS);
        let rows = usize::from(area.height.saturating_sub(1)).max(1);
        // Pointer, mark, condition and name, then the GPUs.
        let columns = (usize::from(area.width) + GAP) / (4 + name_width + 1 + gpus + GAP);
        Self { rows, columns: columns.max(1), name_width, gpus }
    }

    /// Returns the position of the first visible node, so that the selected one is visible.
    fn first(&self, selected: usize) -> usize {
        let page = self.rows * self.columns;
        selected / page * page
    }
}

/// Returns the glyph and the style of a GPU: height and colour by its value.
pub fn cell(model: &Model, value: GpuValue, gpu: &GpuSample) -> (&'static str, Style) {
    // Without the highest bar, so that bars do not touch those of the node above.
    let levels = &model.symbols.levels[..7];
    match value.share(gpu) {
        Some(share) => {
            let at = (share * levels.len() as f64).min(levels.len() as f64 - 1.0) as usize;
            (levels[at], model.theme.ramp[at * model.theme.ramp.len() / levels.len()])
        }
        None => (model.symbols.not_finite, model.theme.faint),
    }
}

/// Draws the map of one quantity.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect, value: GpuValue) {
    let nodes = model.fleet.nodes();
    let spread = GpuSpread::of(value, nodes);
    let grid = HeatGrid::new(model, area);
    let selected = model.node_position();
    let first = grid.first(selected);
    let page = grid.rows * grid.columns;
    let below = panel(model, buf, area, &title(value), legend(model, spread.as_ref(), usize::from(area.width)), false);
    let shown = model.nodes.order.iter().enumerate().skip(first).take(page);
    for (place, view) in shown.filter_map(|(place, at)| Some((place, nodes.get(*at)?))) {
        let (column, row) = ((place - first) / grid.rows, (place - first) % grid.rows);
        let width = 4 + grid.name_width + 1 + grid.gpus;
        let x = below.x + (column * (width + GAP)) as u16;
        let cell = Rect { x, y: below.y + row as u16, width: width as u16, height: 1 };
        let line = node_line(model, &grid, view, value, spread.as_ref(), place == selected);
        write(model, buf, cell.intersection(below), line);
    }
}

fn title(value: GpuValue) -> String {
    format!("GPU {}", value.word())
}

/// Returns the scale with its colours, the median and the outliers.
fn legend(model: &Model, spread: Option<&GpuSpread>, width: usize) -> Vec<Span<'static>> {
    let Some(spread) = spread else { return vec![Span::styled("not reported", model.theme.faint)] };
    let nodes = || model.fleet.nodes().iter().filter(|view| is_current(view));
    let gpus = || nodes().flat_map(|view| view.gpus());
    let scale = gpus().map(|gpu| spread.value.scale(gpu)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let (low, high) = scale.unwrap_or((0.0, 1.0));
    let levels = &model.symbols.levels[..7];
    let mut spans = vec![Span::styled(format!("{} ", spread.value.shown(low)), model.theme.faint)];
    for (at, level) in levels.iter().enumerate() {
        spans.push(Span::styled(*level, model.theme.ramp[at * model.theme.ramp.len() / levels.len()]));
    }
    spans.push(Span::styled(format!(" {}", spread.value.shown(high)), model.theme.faint));
    let outliers = gpus().filter(|gpu| spread.is_outlier(gpu)).count();
    let facts = [
        (format!("   median {}", spread.value.shown(spread.median)), Style::new()),
        (
            format!("   {} to {}", spread.value.shown(spread.lowest), spread.value.shown(spread.highest)),
            model.theme.faint,
        ),
    ];
    let found =
        Span::styled(format!("   {}", counted(outliers, "outlier")), model.theme.warn.add_modifier(Modifier::REVERSED));
    let mut room = width.saturating_sub(30 + spans.iter().map(Span::width).sum::<usize>());
    if outliers > 0 {
        room = room.saturating_sub(found.width());
    }
    for (fact, style) in facts {
        if text::width(&fact) <= room {
            room -= text::width(&fact);
            spans.push(Span::styled(fact, style));
        }
    }
    if outliers > 0 {
        spans.push(Span::raw("   "));
        spans.push(Span::styled(found.content.trim().to_owned(), found.style));
    }
    spans
}

fn node_line(
    model: &Model,
    grid: &HeatGrid,
    view: &NodeView,
    value: GpuValue,
    spread: Option<&GpuSpread>,
    is_chosen: bool,
) -> Line<'static> {
    let condition = view.condition(model.now);
    let pointer = if is_chosen { model.symbols.pointer } else { " " };
    let mark = if model.nodes.marked.contains(&view.node.id) { model.symbols.mark } else { " " };
    let name = text::fit(view.node.id.as_str(), grid.name_width, model.symbols.ellipsis);
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
        let (glyph, ink) = cell(model, value, gpu);
        // An old value is grey; one that is far from the others is reversed.
        let ink = match spread {
            _ if !is_current(view) => model.theme.faint,
            Some(spread) if spread.is_outlier(gpu) => model.theme.warn.add_modifier(Modifier::REVERSED),
            _ => ink,
        };
        spans.push(Span::styled(glyph, ink));
    }
    Line::from(spans)
}

/// Returns the area of the map; the details of the selected node are below it.
pub fn area(body: Rect, details: u16) -> (Rect, Rect) {
    layout::cut_top(body, if body.height >= details + 9 { body.height - details } else { body.height })
}
