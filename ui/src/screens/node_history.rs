//! The recent history of a node: power, utilization and memory over minutes, beside each other.

use crate::fleet::{Moment, NodeView};
use crate::gpu_value::is_current;
use crate::layout;
use crate::model::Model;
use crate::widgets::{bar_chart, panel, write};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};

/// Draws the history of a node. An area that is too small stays empty.
pub fn view(model: &Model, view: &NodeView, buf: &mut Buffer, area: Rect) {
    const GAP: u16 = 3;
    let (Some(first), Some(last)) = (view.moments.front(), view.moments.back()) else { return };
    if area.height < 4 || area.width < 60 {
        return;
    }
    let limit = view.gpus().iter().filter_map(|gpu| gpu.power_limit_w.value()).reduce(f64::max);
    let highest = view.moments.iter().map(|moment| moment.power_w).fold(0.0, f32::max);
    let limit = limit.map_or(highest, |limit| limit as f32);
    let percent = |value: f32| format!("{value:.0} %");
    type History<'a> = (&'a str, f32, String, fn(&Moment) -> f32, f32);
    let mut histories: Vec<History<'_>> = Vec::new();
    let power = format!("{:.0} of {limit:.0} W", last.power_w);
    histories.push(("Mean GPU power", last.power_w, power, |moment| moment.power_w, limit));
    let titles = if view.gpus().is_empty() { ["CPU", "Memory"] } else { ["GPU utilization", "GPU memory"] };
    histories.push((titles[0], last.util_pct, percent(last.util_pct), |moment| moment.util_pct, 100.0));
    histories.push((titles[1], last.mem_share, percent(last.mem_share * 100.0), |moment| moment.mem_share, 1.0));
    histories.retain(|(_, newest, ..)| newest.is_finite());
    let count = histories.len() as u16;
    if count == 0 {
        return;
    }
    let width = (area.width - GAP * (count - 1)) / count;
    let since = format!("{} ago", units::short_duration(model.now - first.t));
    let newest = if is_current(view) { "now".to_owned() } else { units::ago(model.now, last.t) };
    for (number, (title, _, value, of, most)) in (0..).zip(histories) {
        let part = Rect { x: area.x + number * (width + GAP), width, ..area };
        let below = panel(model, buf, part, title, vec![Span::styled(value, model.theme.strong)], false);
        let (bars, axis) = layout::cut_top(below, below.height - 1);
        let values: Vec<f32> = view.moments.iter().map(of).collect();
        bar_chart::draw(model, buf, bars, &values, most);
        let columns = values.len().div_ceil(values.len().div_ceil(usize::from(width)).max(1));
        // The age of the oldest bar is below it, or at the left end of the axis.
        let at = usize::from(width)
            .saturating_sub(columns)
            .min(usize::from(width).saturating_sub(since.len() + newest.len() + 2));
        let gap = usize::from(width).saturating_sub(at + since.len() + newest.len());
        let line = format!("{:at$}{since}{:gap$}{newest}", "", "");
        write(model, buf, axis, Line::styled(line, model.theme.faint));
    }
}
