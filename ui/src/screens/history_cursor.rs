//! The cursor of the histories of nodes: the time whose values they show instead of the newest ones.

use crate::model::Model;
use crate::widgets::shared_axis::{position_at, put_symbol};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

/// The number of key presses that move the cursor over the whole history.
const STEPS: f64 = 60.0;

/// Returns the ends of the visible time, Unix seconds.
fn window(model: &Model) -> (f64, f64) {
    (model.now - model.screens.nodes.window.seconds(), model.now)
}

/// Returns the time at the cursor, Unix seconds; `None` if it is not visible, or if the newest values are shown.
pub fn time(model: &Model) -> Option<f64> {
    let (low, high) = window(model);
    model.screens.nodes.cursor.filter(|t| (low..=high).contains(t))
}

/// Moves the cursor to a column of a plot. The last column shows the newest values.
pub fn put(model: &mut Model, plot: Rect, column: u16) {
    let t = position_at(plot, window(model), column);
    model.screens.nodes.cursor = (column + 1 < plot.right()).then_some(t);
}

/// Moves the cursor by a small part of the visible time; at the right end, the newest values are shown.
pub fn step(model: &mut Model, right: bool) {
    let (low, high) = window(model);
    let by = (high - low) / STEPS;
    let from = time(model).unwrap_or(high);
    let to = if right { from + by } else { (from - by).max(low) };
    model.screens.nodes.cursor = (to < high).then_some(to);
}

/// Draws the cursor between the lines of a plot.
pub fn draw(model: &Model, buf: &mut Buffer, plot: Rect) {
    let Some(t) = time(model).filter(|_| plot.width > 0) else { return };
    let (low, high) = window(model);
    let column = plot.x + ((t - low) / (high - low) * f64::from(plot.width - 1)).round() as u16;
    for y in plot.top()..plot.bottom() {
        if buf.cell((column, y)).is_some_and(|cell| cell.symbol() == " ") {
            put_symbol(buf, column, y, model.symbols.cursor, model.theme.faint);
        }
    }
}
