//! A heat map of rank times: ranks from top to bottom, steps from left to right; a denser shade is a slower rank.
//!
//! With more ranks than rows, or more steps than columns, a cell shows the slowest of its ranks and steps.

use crate::rank_times::{LEVELS, RankRow, RankTimes};
use crate::text;
use crate::theme::{Symbols, Theme};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use units::Unit;

/// A heat map of rank times.
#[derive(Debug, Clone)]
pub struct HeatMap<'a> {
    /// The rank times.
    pub times: &'a RankTimes,
    /// First and last visible step.
    pub window: (f64, f64),
    /// The step at the cursor.
    pub cursor: Option<f64>,
    /// Glyphs.
    pub symbols: Symbols,
    /// Colours.
    pub theme: Theme,
}

/// Returns the style of a shade, in addition to its glyph.
pub fn shade_style(theme: &Theme, shade: usize) -> Style {
    match shade {
        0 => theme.faint,
        1 => Style::new(),
        2 | 3 => theme.warn,
        _ => theme.bad,
    }
}

impl HeatMap<'_> {
    /// Draws the map into an area. An area that is too small stays empty.
    pub fn render(&self, area: Rect, buf: &mut Buffer) {
        let area = area.intersection(buf.area);
        let ranks = self.times.ranks();
        let x_rows = u16::from(area.height >= 4);
        let rows = usize::from(area.height - x_rows.min(area.height)).min(ranks);
        if rows == 0 || area.width < 12 {
            return;
        }
        let groups: Vec<std::ops::Range<usize>> = (0..rows).map(|r| r * ranks / rows..(r + 1) * ranks / rows).collect();
        let labels: Vec<String> = groups.iter().map(label).collect();
        let gutter = labels.iter().map(|l| text::width(l)).max().unwrap_or(0) as u16 + 1;
        let plot = Rect { x: area.x + gutter, width: area.width.saturating_sub(gutter), height: rows as u16, ..area };
        if plot.width < 2 {
            return;
        }
        for (r, label) in labels.iter().enumerate() {
            buf.set_string(area.x, area.y + r as u16, label, self.theme.faint);
        }
        let (low, high) = self.window;
        let columns = usize::from(plot.width);
        let column = (high - low) / (columns - 1) as f64;
        for c in 0..columns {
            let from = low + (c as f64 - 0.5) * column;
            let mut worst: Vec<Option<f32>> = vec![None; rows];
            let mut of_step = |row: &RankRow| {
                for (worst, group) in worst.iter_mut().zip(&groups) {
                    let times = row.over.iter().take(group.end).skip(group.start).copied();
                    *worst = worst.iter().copied().chain(times).reduce(f32::max);
                }
            };
            let mut steps = self.times.between(from, from + column).peekable();
            match steps.peek() {
                Some(_) => steps.for_each(of_step),
                // Fewer steps than columns: a step covers several columns.
                None => self.times.between(low, from).next_back().into_iter().for_each(&mut of_step),
            }
            for (r, worst) in worst.into_iter().enumerate() {
                let Some(over) = worst else { continue };
                let shade = LEVELS.iter().filter(|level| over >= **level).count();
                let style = shade_style(&self.theme, shade);
                buf.set_string(plot.x + c as u16, plot.y + r as u16, self.symbols.shades[shade], style);
            }
        }
        if x_rows == 1 {
            self.x_axis(buf, plot, column);
        }
    }

    fn x_axis(&self, buf: &mut Buffer, plot: Rect, column: f64) {
        let (low, high) = self.window;
        let y = plot.bottom();
        let mut free_from = plot.x;
        for (value, label) in units::ticks(low, high, usize::from(plot.width / 12).clamp(1, 8), Unit::Step, false).marks
        {
            let at = ((value - low) / column).round() as u16;
            let width = text::width(&label) as u16;
            let x = (plot.x + at).saturating_sub(width / 2).max(plot.x);
            if x >= free_from && x + width <= plot.right() {
                buf.set_string(x, y, &label, self.theme.faint);
                free_from = x + width + 2;
            }
        }
        let at = self.cursor.filter(|x| *x >= low && *x <= high).map(|x| ((x - low) / column).round() as u16);
        if let Some(at) = at.filter(|at| *at < plot.width) {
            buf.set_string(plot.x + at, y, self.symbols.cursor, self.theme.accent);
        }
    }
}

/// Returns the label of a row: `7`, or `8-15` for several ranks.
fn label(group: &std::ops::Range<usize>) -> String {
    match group.len() {
        1 => group.start.to_string(),
        _ => format!("{}-{}", group.start, group.end - 1),
    }
}
