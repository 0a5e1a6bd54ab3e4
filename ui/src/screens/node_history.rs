//! The history of a node as lanes below each other that share a time axis: power, utilization, memory, network,
//! InfiniBand, CPU.

use crate::fleet::{HistoryWindow, Moment, NodeView, Point};
use crate::gpu_value::is_current;
use crate::layout;
use crate::model::Model;
use crate::text;
use crate::widgets::{history_chart, panel, write};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};

/// The minimum number of rows of a lane: a heading and two rows of dots.
const LANE: u16 = 3;
/// The minimum number of rows of a history: one lane and the time axis.
pub const LEAST: u16 = LANE + 1;
/// The rows that a tall screen reserves for the history below a long list.
pub const TALL: u16 = 4 * LANE + 1;
/// The maximum number of rows of a lane; more rows show no more detail.
const TALLEST: u16 = 14;

/// Which lanes to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// All lanes that have values.
    All,
    /// Only lanes whose values do not come from GPUs.
    OfNode,
}

/// A line of a lane: its name (empty for the only line), its newest value as text, and the function that returns its
/// values.
type LaneLine = (&'static str, String, fn(&Moment) -> f32);

struct Lane {
    title: &'static str,
    /// The upper end of the scale.
    most: f32,
    /// The upper end of the scale as text.
    most_text: String,
    lines: Vec<LaneLine>,
}

/// Draws the history of a node. Draws nothing if the area is too small.
pub fn view(model: &Model, view: &NodeView, which: Lanes, buf: &mut Buffer, area: Rect) {
    if area.height < LEAST || area.width < 40 {
        return;
    }
    let mut lanes = lanes(model, view, which);
    lanes.truncate(usize::from((area.height - 1) / LANE));
    let Ok(count) = u16::try_from(lanes.len()) else { return };
    if count == 0 {
        return;
    }
    let gutter = lanes.iter().map(|lane| text::width(&lane.most_text)).max().unwrap_or(0) as u16 + 2;
    let (height, mut longer) = ((area.height - 1) / count, (area.height - 1) % count);
    let mut rest = area;
    for lane in &lanes {
        let rows = (height + longer.min(1)).min(TALLEST);
        longer = longer.saturating_sub(1);
        let (part, below) = layout::cut_top(rest, rows);
        draw(model, view, buf, part, gutter, lane);
        rest = below;
    }
    time_axis(model, view, buf, Rect { x: area.x + gutter, width: area.width - gutter, height: 1, ..rest });
}

fn draw(model: &Model, view: &NodeView, buf: &mut Buffer, area: Rect, gutter: u16, lane: &Lane) {
    let ink = |at: usize| if is_current(view) { model.theme.lines[at] } else { model.theme.faint };
    let mut value = Vec::new();
    for (at, (name, newest, _)) in lane.lines.iter().enumerate() {
        if at > 0 {
            value.push(Span::raw("  "));
        }
        if !name.is_empty() {
            value.push(Span::styled(format!("{}{} {name} ", model.symbols.rule, model.symbols.rule), ink(at)));
        }
        value.push(Span::styled(newest.clone(), if is_current(view) { model.theme.strong } else { model.theme.faint }));
    }
    let below = panel(model, buf, area, lane.title, value, false);
    let plot = Rect { x: below.x + gutter, width: below.width.saturating_sub(gutter), ..below };
    let label = |buf: &mut Buffer, y: u16, text: &str| {
        let text = format!("{text:>width$} ", width = usize::from(gutter) - 2);
        write(model, buf, Rect { y, height: 1, ..below }, Line::styled(text, model.theme.faint));
    };
    for y in plot.top()..plot.bottom() {
        let at = Rect { x: plot.x - 1, y, width: 1, height: 1 };
        write(model, buf, at, Line::styled(model.symbols.axis, model.theme.faint));
    }
    if plot.height > 0 {
        label(buf, plot.top(), &lane.most_text);
    }
    if plot.height > 1 {
        label(buf, plot.bottom() - 1, "0");
    }
    let lines = lane.lines.iter().enumerate().rev();
    let lines = lines.map(|(at, (.., of))| {
        let points: Box<dyn Iterator<Item = Point>> = Box::new(view.history.points(*of));
        (points, ink(at))
    });
    history_chart::draw(model, buf, plot, model.nodes.window.seconds(), lane.most, lines.collect());
}

/// Writes the labels of the time axis below the lanes.
fn time_axis(model: &Model, view: &NodeView, buf: &mut Buffer, area: Rect) {
    let seconds = model.nodes.window.seconds();
    // The labels are at whole minutes or hours.
    let parts = match model.nodes.window {
        _ if area.width < 60 => 2,
        HistoryWindow::TenMinutes => 5,
        HistoryWindow::Hour | HistoryWindow::TwelveHours => 4,
    };
    let width = usize::from(area.width);
    let now = match view.history.newest() {
        Some(newest) if !is_current(view) => format!("last sample {}", units::ago(model.now, newest.t)),
        _ => "now".to_owned(),
    };
    let mut line = String::new();
    for part in 0..parts {
        let at = width * part / parts;
        line += &" ".repeat(at.saturating_sub(text::width(&line)));
        line += &units::ago(seconds * (parts - part) as f64 / parts as f64, 0.0);
    }
    line += &" ".repeat(width.saturating_sub(text::width(&line) + now.len()));
    line += &now;
    write(model, buf, area, Line::styled(line, model.theme.faint));
}

/// Returns the lanes that have values, the most useful first.
fn lanes(model: &Model, view: &NodeView, which: Lanes) -> Vec<Lane> {
    let Some(newest) = view.history.newest() else { return Vec::new() };
    let none = model.symbols.none;
    let shown = |value: f32, text: String| if value.is_finite() { text } else { none.to_owned() };
    let since = model.now - model.nodes.window.seconds();
    let highest = |of: fn(&Moment) -> f32| {
        let visible = view.history.points(of).filter(move |point| point.t >= since);
        visible.map(|point| point.value).filter(|value| value.is_finite()).reduce(f32::max)
    };
    let percent = |title, of: fn(&Moment) -> f32| Lane {
        title,
        most: 100.0,
        most_text: "100 %".to_owned(),
        lines: vec![("", shown(of(newest), format!("{:.0} %", of(newest))), of)],
    };
    let mut lanes = Vec::new();
    if which == Lanes::All && !view.gpus().is_empty() {
        let limit = view.gpus().iter().filter_map(|gpu| gpu.power_limit_w.value()).reduce(f64::max);
        let power: fn(&Moment) -> f32 = |moment| moment.power_w;
        let most = limit.map(|limit| limit as f32).or_else(|| highest(power)).unwrap_or(0.0);
        let text = shown(newest.power_w, format!("{:.0} of {most:.0} W", newest.power_w));
        let lines: Vec<LaneLine> = vec![("", text, power)];
        lanes.push(Lane { title: "Mean GPU power", most, most_text: format!("{most:.0} W"), lines });
        lanes.push(percent("GPU utilization", |moment| moment.util_pct));
    }
    if which == Lanes::All || view.gpus().is_empty() {
        let (used, total) = view.memory_mib().unwrap_or_default();
        let size = |mib: u64| units::short_size(mib << 20);
        let text = shown(newest.mem_share, format!("{} of {}", size(used), size(total)));
        let title = if view.gpus().is_empty() { "Memory" } else { "GPU memory" };
        let share: fn(&Moment) -> f32 = |moment| moment.mem_share;
        let lines: Vec<LaneLine> = vec![("", text, share)];
        lanes.push(Lane { title, most: 1.0, most_text: size(total), lines });
    }
    let cpu = percent("CPU", |moment| moment.cpu_pct);
    let rates = |title, of: [fn(&Moment) -> f32; 2]| {
        let text = |of: fn(&Moment) -> f32| shown(of(newest), rate(of(newest)));
        let most = of.into_iter().filter_map(highest).fold(0.0, f32::max);
        // A power of two, so that the scale rarely changes.
        let most = most.max(1024.0).log2().ceil().exp2();
        let lines: Vec<LaneLine> = vec![("in", text(of[0]), of[0]), ("out", text(of[1]), of[1])];
        Lane { title, most, most_text: rate(most), lines }
    };
    let network = rates("Network", [|moment| moment.net_rx, |moment| moment.net_tx]);
    let infiniband = rates("InfiniBand", [|moment| moment.ib_rx, |moment| moment.ib_tx]);
    match view.gpus().is_empty() {
        true => lanes.splice(0..0, [cpu]).for_each(drop),
        false => lanes.push(cpu),
    }
    let at = lanes.len() - usize::from(!view.gpus().is_empty());
    lanes.splice(at..at, [infiniband, network]).for_each(drop);
    lanes.retain(|lane| lane.lines.iter().any(|(.., of)| highest(*of).is_some()));
    lanes
}

/// Formats bytes per second: `1.2 GiB/s`.
pub fn rate(bytes_per_s: f32) -> String {
    format!("{}/s", units::short_size(bytes_per_s.max(0.0).round() as u64))
}
