//! The history of a node as lanes below each other that share a time axis: power, utilization, memory, InfiniBand,
//! network, temperature, CPU.

use crate::fleet::gpu_value::{HOTTEST_C, is_current};
use crate::fleet::{HistoryWindow, Moment, NodeView, Point};
use crate::layout;
use crate::model::Model;
use crate::screens::history_cursor;
use crate::text;
use crate::widgets::{history_chart, panel, write};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};
use units::Unit;

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

/// A line of a lane: its name (empty for the only line), its value at the cursor or its newest value as text, and the
/// function that returns its values.
type LaneLine = (&'static str, String, fn(&Moment) -> f32);

struct Lane {
    title: &'static str,
    /// The upper end of the scale.
    most: f32,
    /// The upper end of the scale as text: a number and its unit.
    most_text: String,
    /// The upper end of the scale in the unit of `most_text`.
    most_in_unit: f64,
    lines: Vec<LaneLine>,
}

/// The labels of a y axis, each with its row.
type YLabels = Vec<(u16, String)>;

/// The lanes of a history, and where they are drawn.
struct PlacedLanes {
    /// Each lane with its area and the labels of its y axis.
    lanes: Vec<(Lane, Rect, YLabels)>,
    /// The columns of the labels and of the y axis.
    gutter: u16,
    /// The row of the time axis.
    times: Rect,
}

/// Places the lanes of a node; `None` if the area is too small, or if there are no values.
fn placed(model: &Model, view: &NodeView, which: Lanes, area: Rect) -> Option<PlacedLanes> {
    if area.height < LEAST || area.width < 40 {
        return None;
    }
    let mut all = lanes(model, view, which);
    all.truncate(usize::from((area.height - 1) / LANE));
    let count = u16::try_from(all.len()).ok().filter(|count| *count > 0)?;
    let (height, longer) = ((area.height - 1) / count, (area.height - 1) % count);
    let (mut lanes, mut rest) = (Vec::new(), area);
    for (at, lane) in (0..count).zip(all) {
        let rows = (height + u16::from(at < longer)).min(TALLEST);
        let (part, below) = layout::cut_top(rest, rows);
        let labels = y_labels(&lane, rows - 1);
        lanes.push((lane, part, labels));
        rest = below;
    }
    let labels = lanes.iter().flat_map(|(.., labels)| labels);
    let gutter = labels.map(|(_, label)| text::width(label)).max().unwrap_or(0) as u16 + 2;
    let times = Rect { x: area.x + gutter, width: area.width - gutter, height: 1, ..rest };
    Some(PlacedLanes { lanes, gutter, times })
}

/// Returns the area of the lines of a history, with the headings between them; `None` if it is not drawn.
pub fn plot(model: &Model, view: &NodeView, which: Lanes, area: Rect) -> Option<Rect> {
    let times = placed(model, view, which, area)?.times;
    Some(Rect { y: area.y, height: times.y - area.y, ..times })
}

/// Draws the history of a node. Draws nothing if the area is too small.
pub fn view(model: &Model, view: &NodeView, which: Lanes, buf: &mut Buffer, area: Rect) {
    let Some(PlacedLanes { lanes, gutter, times }) = placed(model, view, which, area) else { return };
    for (lane, part, labels) in &lanes {
        draw(model, view, buf, *part, gutter, lane, labels);
    }
    time_axis(model, view, buf, times);
}

fn draw(
    model: &Model,
    view: &NodeView,
    buf: &mut Buffer,
    area: Rect,
    gutter: u16,
    lane: &Lane,
    labels: &[(u16, String)],
) {
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
    for y in plot.top()..plot.bottom() {
        let at = Rect { x: plot.x - 1, y, width: 1, height: 1 };
        write(model, buf, at, Line::styled(model.symbols.axis, model.theme.faint));
    }
    for (row, label) in labels {
        let text = format!("{label:>width$} ", width = usize::from(gutter) - 2);
        let at = Rect { y: plot.y + row, height: 1, ..below };
        write(model, buf, at, Line::styled(text, model.theme.faint));
    }
    let lines = lane.lines.iter().enumerate().rev();
    let lines = lines.map(|(at, (.., of))| {
        let points: Box<dyn Iterator<Item = Point>> = Box::new(view.history.points(*of));
        (points, ink(at))
    });
    history_chart::draw(model, buf, plot, model.screens.nodes.window.seconds(), (0.0, lane.most), lines.collect());
    history_cursor::draw(model, buf, plot);
}

/// Returns the labels of the y axis of a lane, each with its row below the heading: the upper end of the scale, 0, and
/// round values between them if there are four rows or more.
fn y_labels(lane: &Lane, height: u16) -> YLabels {
    let mut labels = vec![(0, lane.most_text.clone())];
    if height > 1 {
        labels.push((height - 1, "0".to_owned()));
    }
    if height >= 4 {
        let rows = usize::from(height);
        let mut tries = ((rows / 3).max(2)..=2 * rows).map(|wanted| round_labels(lane, height - 1, wanted));
        labels.extend(tries.find(|labels| !labels.is_empty()).unwrap_or_default());
    }
    labels
}

/// Returns labels of about `wanted` round values, each with its row between 0 and `bottom`. From five rows on, there is
/// a row without a label between two labels.
fn round_labels(lane: &Lane, bottom: u16, wanted: usize) -> YLabels {
    let decimals = |number: &str| number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let (most, unit) = lane.most_text.split_once(' ').unwrap_or((lane.most_text.as_str(), ""));
    let distance = if bottom >= 4 { 2 } else { 1 };
    let mut below = bottom;
    let mut labels = Vec::new();
    for (value, number) in units::ticks(0.0, lane.most_in_unit, wanted, Unit::Plain, false).marks {
        let row = ((1.0 - value / lane.most_in_unit) * f64::from(bottom)).round() as u16;
        if row < distance || row + distance > below {
            continue;
        }
        below = row;
        // The label has at least as many decimals as the label of the upper end: 4.0 GiB below 8.0 GiB.
        let decimals = decimals(&number).max(decimals(most));
        labels.push((row, format!("{value:.decimals$} {unit}")));
    }
    // Two labels between the ends would fill all of four rows.
    labels.truncate(usize::from(bottom / 2));
    labels
}

/// Writes the labels of the time axis below the lanes.
fn time_axis(model: &Model, view: &NodeView, buf: &mut Buffer, area: Rect) {
    let seconds = model.screens.nodes.window.seconds();
    // The labels are at whole minutes or hours.
    let parts: usize = match model.screens.nodes.window {
        _ if area.width < 60 => 2,
        HistoryWindow::TenMinutes => 5,
        HistoryWindow::Hour | HistoryWindow::TwelveHours => 4,
    };
    let width = usize::from(area.width);
    let now = match (history_cursor::time(model), view.history.newest()) {
        (Some(t), _) => format!("cursor {}", units::ago(model.now, t)),
        (None, Some(newest)) if !is_current(view) => format!("last sample {}", units::ago(model.now, newest.t)),
        _ => "now".to_owned(),
    };
    let label = |part: usize| units::ago(seconds * (parts - part) as f64 / parts as f64, 0.0);
    let line = time_labels((0..parts).map(|part| (width * part / parts, label(part))), &now, width);
    write(model, buf, area, Line::styled(line, model.theme.faint));
}

/// Returns a line of `width` columns with labels that begin at their columns and `now` at the right end. Leaves out a
/// label if fewer than two columns would separate it from the label before it or from `now`.
fn time_labels(labels: impl Iterator<Item = (usize, String)>, now: &str, width: usize) -> String {
    let end = width.saturating_sub(text::width(now));
    let mut line = String::new();
    for (at, label) in labels {
        let used = text::width(&line);
        let is_free = line.is_empty() || used + 2 <= at;
        if is_free && at + text::width(&label) + 2 <= end {
            line += &" ".repeat(at - used);
            line += &label;
        }
    }
    line += &" ".repeat(end.saturating_sub(text::width(&line)));
    line + now
}

/// Returns the lanes that have values, the most useful first.
fn lanes(model: &Model, view: &NodeView, which: Lanes) -> Vec<Lane> {
    let cursor = history_cursor::time(model);
    let values = cursor.map_or_else(|| view.history.newest().copied(), |t| view.history.at(t));
    let Some(values) = &values else { return Vec::new() };
    let none = model.symbols.none;
    let shown = |value: f32, text: String| if value.is_finite() { text } else { none.to_owned() };
    let since = model.now - model.screens.nodes.window.seconds();
    let highest = |of: fn(&Moment) -> f32| {
        let visible = view.history.points(of).filter(move |point| point.t >= since);
        visible.map(|point| point.value).filter(|value| value.is_finite()).reduce(f32::max)
    };
    let fixed = |title, most: f32, unit: &str, of: fn(&Moment) -> f32| Lane {
        title,
        most,
        most_text: format!("{most:.0} {unit}"),
        most_in_unit: most.into(),
        lines: vec![("", shown(of(values), format!("{:.0} {unit}", of(values))), of)],
    };
    let mut lanes = Vec::new();
    if which == Lanes::All && !view.gpus().is_empty() {
        let limit = view.gpus().iter().filter_map(|gpu| gpu.power_limit_w.value()).reduce(f64::max);
        let power: fn(&Moment) -> f32 = |moment| moment.power_w;
        let most = limit.map(|limit| limit as f32).or_else(|| highest(power)).unwrap_or(0.0);
        let text = shown(values.power_w, format!("{:.0} of {most:.0} W", values.power_w));
        let lines: Vec<LaneLine> = vec![("", text, power)];
        let most_text = format!("{most:.0} W");
        lanes.push(Lane { title: "Mean GPU power", most, most_text, most_in_unit: most.into(), lines });
        lanes.push(fixed("GPU utilization", 100.0, "%", |moment| moment.util_pct));
    }
    if which == Lanes::All || view.gpus().is_empty() {
        let size = |mib: u64| units::short_size(mib << 20);
        let title = match view.gpus().is_empty() {
            true => "Memory",
            false if view.summary.shares_memory => "Memory of the node, which its GPUs use",
            false => "GPU memory",
        };
        let share: fn(&Moment) -> f32 = |moment| moment.mem_share;
        let (text, most_text, most_in_unit) = match view.memory_mib() {
            Some((used, total)) => {
                let used = cursor.map_or(used, |_| (f64::from(values.mem_share) * total as f64) as u64);
                let most_text = size(total);
                let most_in_unit = in_unit_of(&most_text, (total << 20) as f64);
                (format!("{} of {most_text}", size(used)), most_text, most_in_unit)
            }
            None => (format!("{:.0} %", values.mem_share * 100.0), "100 %".to_owned(), 100.0),
        };
        let lines: Vec<LaneLine> = vec![("", shown(values.mem_share, text), share)];
        lanes.push(Lane { title, most: 1.0, most_text, most_in_unit, lines });
    }
    let rates = |title, of: [fn(&Moment) -> f32; 2]| {
        let text = |of: fn(&Moment) -> f32| shown(of(values), rate(of(values)));
        let most = of.into_iter().filter_map(highest).fold(0.0, f32::max);
        // A power of two, so that the scale rarely changes.
        let most = most.max(1024.0).log2().ceil().exp2();
        let lines: Vec<LaneLine> = vec![("in", text(of[0]), of[0]), ("out", text(of[1]), of[1])];
        let most_text = rate(most);
        let most_in_unit = in_unit_of(&most_text, most.into());
        Lane { title, most, most_text, most_in_unit, lines }
    };
    let network = rates("Network", [|moment| moment.net_rx, |moment| moment.net_tx]);
    let infiniband = rates("InfiniBand", [|moment| moment.ib_rx, |moment| moment.ib_tx]);
    lanes.extend([infiniband, network]);
    if which == Lanes::All && !view.gpus().is_empty() {
        lanes.push(fixed("Hottest GPU", HOTTEST_C as f32, "°C", |moment| moment.temp_c));
    }
    let cpu = fixed("CPU", 100.0, "%", |moment| moment.cpu_pct);
    if view.gpus().is_empty() {
        lanes.insert(0, cpu)
    } else {
        lanes.push(cpu)
    }
    lanes.retain(|lane| lane.lines.iter().any(|(.., of)| highest(*of).is_some()));
    lanes
}

/// Formats bytes per second: `1.2 GiB/s`.
pub fn rate(bytes_per_s: f32) -> String {
    format!("{}/s", units::short_size(bytes_per_s.max(0.0).round() as u64))
}

/// Returns a number of bytes in the unit of a label, such as `8.0 GiB/s`.
fn in_unit_of(label: &str, bytes: f64) -> f64 {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = units.iter().position(|unit| label.contains(*unit)).map_or(0, |at| at as i32 + 1);
    bytes / 1024f64.powi(power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane(most_text: &str, most_in_unit: f64) -> Lane {
        Lane { title: "", most: 1.0, most_text: most_text.to_owned(), most_in_unit, lines: vec![] }
    }

    #[test]
    fn a_lane_of_five_rows_or_more_has_labels_of_round_values() {
        let axis = |most_text: &str, most_in_unit: f64, height: u16| {
            let mut rows = vec![String::new(); usize::from(height)];
            for (row, label) in y_labels(&lane(most_text, most_in_unit), height) {
                rows[usize::from(row)] = label;
            }
            rows.join("|")
        };
        assert_eq!(axis("700 W", 700.0, 3), "700 W||0");
        assert_eq!(axis("700 W", 700.0, 4), "700 W|500 W||0");
        assert_eq!(axis("256 MiB/s", 256.0, 4), "256 MiB/s||100 MiB/s|0");
        assert_eq!(axis("239 GiB", 238.9, 7), "239 GiB|||100 GiB|||0");
        assert_eq!(axis("8.0 GiB/s", 8.0, 9), "8.0 GiB/s||6.0 GiB/s||4.0 GiB/s||2.0 GiB/s||0");
        assert_eq!(axis("1.0 TiB", 1.0, 13), "1.0 TiB||0.8 TiB|||0.6 TiB||0.4 TiB|||0.2 TiB||0");
    }

    #[test]
    fn a_label_of_the_time_axis_stays_two_columns_away_from_the_next_one() {
        let line = |now: &str, width: usize| {
            let labels = [(0, "10 min ago"), (14, "4 min ago"), (28, "2 min ago")];
            time_labels(labels.into_iter().map(|(at, label)| (at, label.to_owned())), now, width)
        };
        assert_eq!(line("now", 42), "10 min ago    4 min ago     2 min ago  now");
        assert_eq!(line("now", 41), "10 min ago    4 min ago               now");
        assert_eq!(line("last sample 2 min ago", 46), "10 min ago    4 min ago  last sample 2 min ago");
        assert_eq!(line("last sample 2 min ago", 45), "10 min ago              last sample 2 min ago");
    }

    #[test]
    fn bytes_are_in_the_unit_of_their_label() {
        let sizes = [("512 B", 512.0), ("8.0 GiB/s", 8.0 * 1024f64.powi(3)), ("1.5 TiB", 1.5 * 1024f64.powi(4))];
        assert_eq!(sizes.map(|(label, bytes)| in_unit_of(label, bytes)), [512.0, 8.0, 1.5]);
    }

    proptest! {
        #[test]
        fn labels_of_a_lane_never_overlap(most in 1.0..1024f64, height in 1u16..TALLEST) {
            let labels = y_labels(&lane(&format!("{most:.1} GiB"), most), height);
            let mut rows: Vec<u16> = labels.iter().map(|(row, _)| *row).collect();
            rows.sort_unstable();
            prop_assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "{labels:?}");
            prop_assert!(rows.iter().all(|row| *row < height), "{labels:?}");
            prop_assert!(height < 4 || rows.len() >= 3, "{labels:?}");
        }
    }
}
