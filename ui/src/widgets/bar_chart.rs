//! The recent values of one quantity as bars, the newest at the right.

use crate::model::Model;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

/// Draws values from 0 to `most` as bars, the newest at the right. A missing value leaves a gap. If there are more values than
/// columns, each bar is the mean of several.
pub fn draw(model: &Model, buf: &mut Buffer, area: Rect, values: &[f32], most: f32) {
    let area = area.intersection(buf.area);
    let levels = &model.symbols.levels;
    let ramp = &model.theme.ramp;
    if area.width == 0 || area.height == 0 || most.is_nan() || most <= 0.0 {
        return;
    }
    let each = values.len().div_ceil(usize::from(area.width)).max(1);
    // Bars are counted from the first value, so that they do not change when values are added.
    let bars: Vec<f32> = values.chunks(each).map(mean).collect();
    let first = area.right() - bars.len() as u16;
    for (x, mean) in (first..).zip(bars) {
        if mean.is_nan() {
            continue;
        }
        let share = (mean / most).clamp(0.0, 1.0);
        let eighths = ((share * f32::from(area.height) * levels.len() as f32).round() as usize).max(1);
        let ink = ramp[((share * ramp.len() as f32) as usize).min(ramp.len() - 1)];
        for (row, y) in (area.top()..area.bottom()).rev().enumerate() {
            let filled = eighths.saturating_sub(row * levels.len()).min(levels.len());
            if filled > 0 {
                buf.set_string(x, y, levels[filled - 1], ink);
            }
        }
    }
}

fn mean(values: &[f32]) -> f32 {
    let known = || values.iter().copied().filter(|value| value.is_finite());
    // Without a value, 0 / 0 is NaN, which is a gap.
    known().sum::<f32>() / known().count() as f32
}
