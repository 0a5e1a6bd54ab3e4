//! A heat map of rank times: ranks from top to bottom, steps from left to right; a denser shade means a slower rank.
//!
//! With more ranks than rows, or more steps than columns, a cell shows the slowest of its ranks and steps.

use crate::memo::Memo;
use crate::rank_times::{LEVELS, RankTimes};
use crate::series::Axis;
use crate::text;
use crate::theme::Theme;
use crate::widgets::shared_axis::SharedAxis;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use std::ops::Range;

/// A heat map of the excess busy time of each rank in each step.
pub struct HeatMap<'a> {
    /// The rank times.
    pub times: &'a RankTimes,
    /// The version of their series.
    pub version: u64,
    /// The x axis.
    pub axis: SharedAxis,
    /// Returns the step at a position on the x axis.
    pub step_at: &'a dyn Fn(f64) -> f64,
    /// The part of the x axis that has steps.
    pub filled: (f64, f64),
}

/// The inputs of the shades: the version of the series, the width and height of the plot, and the x axis.
type Key = (u64, (u16, u16), Axis, (f64, f64));

thread_local! {
    /// The shades of the heat maps on the screen.
    static SHADES: Memo<Key, Vec<Vec<Option<usize>>>> = const { Memo::empty() };
}

/// Returns the style of a shade by its index in [`Symbols::shades`](crate::Symbols::shades).
pub fn shade_style(theme: &Theme, shade: usize) -> Style {
    match shade {
        0 => theme.faint,
        1 => Style::new(),
        2 | 3 => theme.warn,
        _ => theme.bad,
    }
}

impl HeatMap<'_> {
    /// Draws the heat map into an area. Draws nothing if the area is too small.
    pub fn render(&self, area: Rect, buf: &mut Buffer) {
        let area = area.intersection(buf.area);
        let Some((plot, groups)) = self.parts(area) else { return };
        let (theme, symbols) = (&self.axis.theme, &self.axis.symbols);
        for (y, group) in (plot.top()..).zip(&groups) {
            buf.set_string(area.x, y, label(group), theme.faint);
        }
        self.axis.draw_cursors(buf, plot);
        let crossed: Vec<u16> = self.axis.cursors(plot).map(|(column, _)| column).collect();
        let key = (self.version, (plot.width, plot.height), self.axis.x, self.axis.window);
        let columns = SHADES.with(|shades| shades.get(key, |_| self.shades(plot.width, &groups)));
        for (x, shades) in (plot.left()..).zip(columns.iter()) {
            for (y, shade) in (plot.top()..).zip(shades) {
                // The shade of a slow rank hides the cursor.
                if let Some(shade) = shade.filter(|shade| *shade > 0 || !crossed.contains(&x)) {
                    buf.set_string(x, y, symbols.shades[shade], shade_style(theme, shade));
                }
            }
        }
        if plot.bottom() < area.bottom() && area.height >= self.axis.labels_from {
            self.axis.draw_labels(buf, plot, area);
        }
    }

    /// Returns the shade of each row of each column; `None` where no step has the ranks of the row.
    fn shades(&self, width: u16, groups: &[Range<usize>]) -> Vec<Vec<Option<usize>>> {
        let (low, high) = self.axis.window;
        let column = (high - low) / f64::from(width - 1);
        let position = |x: f64| self.times.position((self.step_at)(x));
        let left = position(low);
        let mut next = position(low - 0.5 * column);
        let shades = |c: u16| {
            let from = low + (f64::from(c) - 0.5) * column;
            let (first, end) = (next, position(from + column).max(next));
            next = end;
            if from + column < self.filled.0 || from > self.filled.1 {
                return Vec::new();
            }
            // With fewer steps than columns, a step covers several columns.
            let steps = if first < end { first..end } else { left.max(first.saturating_sub(1))..first };
            let worst = self.times.worst(steps);
            let shade = |group: &Range<usize>| {
                let over = worst[group.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                (over > f32::NEG_INFINITY).then(|| LEVELS.iter().filter(|level| over >= **level).count())
            };
            groups.iter().map(shade).collect()
        };
        (0..width).map(shades).collect()
    }

    /// Returns the number of columns that the labels of the rows need.
    pub fn gutter(&self, area: Rect) -> u16 {
        self.parts(area).map_or(0, |(plot, _)| plot.x - area.x)
    }

    /// Returns the area of the cells and the ranks of each row; `None` if the area is too small.
    fn parts(&self, area: Rect) -> Option<(Rect, Vec<Range<usize>>)> {
        let ranks = self.times.ranks();
        let x_rows = u16::from(area.height >= self.axis.labels_from);
        let rows = usize::from(area.height.saturating_sub(x_rows)).min(ranks);
        if rows == 0 || area.width < 12 {
            return None;
        }
        let groups: Vec<Range<usize>> = (0..rows).map(|r| r * ranks / rows..(r + 1) * ranks / rows).collect();
        let labels = groups.iter().map(|group| text::width(&label(group))).max().unwrap_or(0) as u16 + 1;
        let gutter = labels.max(self.axis.gutter);
        let width = area.width.saturating_sub(gutter + self.axis.margin);
        let plot = Rect { x: area.x + gutter, width, height: rows as u16, ..area };
        (width >= 2).then_some((plot, groups))
    }
}

/// Returns the label of a row: `7`, or `8-15` for several ranks.
fn label(group: &Range<usize>) -> String {
    match group.len() {
        1 => group.start.to_string(),
        _ => format!("{}-{}", group.start, group.end - 1),
    }
}
