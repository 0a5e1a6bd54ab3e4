//! The x axis that the plots in one column of panels share: positions, labels, the cursor and the ends of a drag.

use crate::series::Axis;
use crate::text;
use crate::theme::{Symbols, Theme};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use units::Unit;

/// An x axis, and the space that it reserves beside the plots.
#[derive(Debug, Clone, Copy)]
pub struct SharedAxis {
    /// The quantity on the axis.
    pub x: Axis,
    /// The label of an axis of steps, such as `step`.
    pub step_word: &'static str,
    /// The lowest and highest visible position.
    pub window: (f64, f64),
    /// The position of the cursor; `None` if there is no cursor.
    pub cursor: Option<f64>,
    /// The ends of the range that the user is dragging over.
    pub dragged: Option<(f64, f64)>,
    /// The minimum number of columns left of a plot, for the labels of its y axis. All plots in one column of panels
    /// have the same number.
    pub gutter: u16,
    /// The minimum number of columns right of a plot, for the letters at the ends of its lines.
    pub margin: u16,
    /// The minimum height of an area in which labels are drawn below the plot. `u16::MAX` hides the labels: in a
    /// column of panels, only the lowest plot has labels.
    pub labels_from: u16,
    /// The minimum height of an area that has a row for marks between the plot and the labels. `u16::MAX` for no row.
    pub marks_from: u16,
    /// Glyphs.
    pub symbols: Symbols,
    /// Colours.
    pub theme: Theme,
}

/// Returns the position on the x axis of a column of the terminal. `plot` is the area between the axes.
pub fn position_at(plot: Rect, window: (f64, f64), column: u16) -> f64 {
    let share = f64::from(column.saturating_sub(plot.x)) / f64::from(plot.width.saturating_sub(1).max(1));
    window.0 + share.clamp(0.0, 1.0) * (window.1 - window.0)
}

impl SharedAxis {
    /// Returns the column of the terminal at a position on the axis, if it is visible.
    pub fn column(&self, plot: Rect, x: f64) -> Option<u16> {
        let (low, high) = self.window;
        let offset = (x - low) / (high - low) * f64::from(plot.width.saturating_sub(1));
        ((low..=high).contains(&x) && plot.width > 0).then(|| plot.x + offset.round() as u16)
    }

    /// Returns the columns of the cursor and of the ends of a drag, each with its style.
    pub fn cursors(&self, plot: Rect) -> impl Iterator<Item = (u16, Style)> {
        let ends = self.dragged.into_iter().flat_map(|(from, to)| [from, to]).map(|x| (x, self.theme.accent));
        let all = self.cursor.map(|x| (x, self.theme.faint)).into_iter().chain(ends);
        all.filter_map(move |(x, style)| Some((self.column(plot, x)?, style)))
    }

    /// Draws the cursor and the ends of a drag as vertical lines.
    pub fn draw_cursors(&self, buf: &mut Buffer, plot: Rect) {
        for (x, style) in self.cursors(plot) {
            for y in plot.top()..plot.bottom() {
                put_symbol(buf, x, y, self.symbols.cursor, style);
            }
        }
    }

    /// Draws the labels below a plot. `area` includes the plot and the columns beside it.
    pub fn draw_labels(&self, buf: &mut Buffer, plot: Rect, area: Rect) {
        let (low, high) = self.window;
        let (unit, word) = match self.x {
            Axis::Step => (Unit::Step, self.step_word),
            Axis::Time => (Unit::Elapsed, "time"),
            Axis::Tokens => (Unit::Count, "tokens"),
        };
        let y = plot.bottom();
        let mut end = area.right();
        if plot.width >= 24 {
            end = area.right() - word.len() as u16;
            put(buf, end, y, word, self.theme.faint);
        }
        let ticks = units::ticks(low, high, usize::from(plot.width / 12).clamp(1, 8), unit, false);
        let mut free_from = area.x;
        for (value, label) in ticks.marks {
            let Some(at) = self.column(plot, value) else { continue };
            let width = text::width(&label) as u16;
            let x = at.saturating_sub(width / 2).max(area.x);
            if x >= free_from && x + width < end {
                put(buf, x, y, &label, self.theme.faint);
                free_from = x + width + 2;
            }
        }
    }
}

/// Writes a symbol that is one cell wide, if the cell is in the buffer. Cheaper than [`put`], which measures its text.
pub fn put_symbol(buf: &mut Buffer, x: u16, y: u16, symbol: &str, style: Style) {
    if let Some(cell) = buf.cell_mut((x, y)) {
        cell.set_symbol(symbol).set_style(style);
    }
}

/// Writes a text if its first cell is inside the buffer.
pub fn put(buf: &mut Buffer, x: u16, y: u16, text: &str, style: Style) {
    if x < buf.area.right() && y < buf.area.bottom() && x >= buf.area.x && y >= buf.area.y {
        buf.set_string(x, y, text, style);
    }
}
