//! A drag of the mouse over a chart, which zooms.

use ratatui_core::layout::Rect;

/// A drag over a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drag {
    /// The area between the axes of the chart.
    pub(crate) plot: Rect,
    /// The visible range when the drag began.
    pub(crate) window: (f64, f64),
    /// The positions of the ends of the drag on the x axis.
    pub(crate) range: (f64, f64),
    /// The columns of the ends of the drag.
    pub(crate) columns: (u16, u16),
}

impl Drag {
    /// Returns the range to show; `None` for a click, during which the pointer may move by a column on some
    /// terminals.
    pub fn shown(&self) -> Option<(f64, f64)> {
        (self.columns.0.abs_diff(self.columns.1) >= 2).then_some(self.range)
    }
}
