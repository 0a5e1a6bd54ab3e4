//! A chart of lines over steps, time or tokens, in braille dots (two by four per cell), drawn from the pyramid of a
//! [`Series`].
//!
//! Every dot column shows the extremes of its samples, so that a spike of one sample in a million is visible. The
//! cost of drawing depends mostly on the width of the chart, not on the number of samples.

use crate::memo::Memo;
use crate::series::{Axis, Column, Extent, Segment, Series, Track};
use crate::widgets::shared_axis::{SharedAxis, put, put_symbol};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use std::rc::Rc;
use units::Unit;

/// One line of a chart.
#[derive(Debug, Clone)]
pub struct ChartLine<'a> {
    /// The metrics of the run.
    pub series: &'a Series,
    /// The track to draw.
    pub track: Track,
    /// The tracks of the lowest and the highest value around the line; the range between them is drawn as dots behind
    /// the line.
    pub band: Option<(Track, Track)>,
    /// The name of the line in the legend.
    pub label: String,
    /// The letter at the end of the line, so that lines can be distinguished without colour.
    pub mark: char,
    /// The colour of the line.
    pub style: Style,
}

/// A line chart.
#[derive(Debug, Clone)]
pub struct LineChart<'a> {
    /// The lines, of one run or of several; the first line is drawn on top.
    pub lines: &'a [ChartLine<'a>],
    /// The unit of the y axis.
    pub unit: Unit,
    /// The x axis.
    pub axis: SharedAxis,
    /// Whether the y axis is logarithmic.
    pub log_y: bool,
    /// The moving average to draw in bold over the faint raw line, as an index into
    /// [`SMOOTHING`](crate::series::SMOOTHING).
    pub smoothing: Option<usize>,
}

/// The parts of a chart.
struct Parts {
    plot: Rect,
    /// The row below the plot that is left for marks; without a row, its height is 0.
    marks: Rect,
    y: Rc<YAxis>,
    /// The number of columns of the y axis and its labels.
    gutter: u16,
}

/// A y axis.
struct YAxis {
    scale: Scale,
    ticks: units::Ticks,
    /// The number of columns that the axis and its labels need.
    gutter: u16,
}

impl<'a> LineChart<'a> {
    /// Draws the chart into an area. Draws nothing if the area is too small.
    pub fn render(&self, area: Rect, buf: &mut Buffer) {
        let area = area.intersection(buf.area);
        let Some(Parts { plot, marks, y, gutter }) = self.parts(area) else { return };
        self.draw_y_axis(buf, plot, area.x, gutter, &y);
        if marks.bottom() < area.bottom() {
            self.axis.draw_labels(buf, plot.union(marks), area);
        }
        self.axis.draw_cursors(buf, plot);
        let drawing = DRAWINGS.with(|drawings| drawings.get(self.key(plot, &y.scale), |_| self.draw(plot, &y.scale)));
        drawing.dots.flush(buf, plot);
        for cell in &drawing.gaps {
            put_symbol(
                buf,
                plot.x + *cell as u16,
                plot.bottom() - 1,
                self.axis.symbols.not_finite,
                self.axis.theme.bad,
            );
        }
        if self.lines.len() > 1 {
            self.end_marks(buf, plot, &drawing.ends);
        }
    }

    /// Returns the plot area, in which a column is a position on the x axis.
    pub fn plot(&self, area: Rect) -> Option<Rect> {
        self.parts(area).map(|parts| parts.plot)
    }

    /// Returns the row below the plot that is left for marks, if there is one.
    pub fn marks_row(&self, area: Rect) -> Option<Rect> {
        self.parts(area).map(|parts| parts.marks).filter(|row| row.height > 0)
    }

    /// Returns the number of columns that the y axis and its labels need.
    pub fn gutter(&self, area: Rect) -> u16 {
        self.parts(area).map_or(0, |parts| parts.gutter)
    }

    fn parts(&self, area: Rect) -> Option<Parts> {
        if area.width < 4 || area.height < 2 {
            return None;
        }
        let marks_height = u16::from(area.height >= self.axis.marks_from);
        let plot_height = (area.height - u16::from(area.height >= self.axis.labels_from)).saturating_sub(marks_height);
        let key = (self.line_keys(), self.axis.x, self.axis.window, self.unit, self.log_y, plot_height);
        let y = Option::clone(&*Y_AXES.with(|axes| axes.get(key, |_| self.y_axis(plot_height))))?;
        let gutter = y.gutter.max(self.axis.gutter);
        let margin = self.axis.margin.max(if self.lines.len() > 1 { 2 } else { 0 });
        let plot = Rect {
            x: area.x + gutter,
            y: area.y,
            width: area.width.saturating_sub(gutter + margin),
            height: plot_height,
        };
        let marks = Rect { y: plot.bottom(), height: marks_height, ..plot };
        (plot.width >= 2).then_some(Parts { plot, marks, y, gutter })
    }

    /// Returns the segments of a line, each with whether it is superseded.
    fn pieces(line: &ChartLine<'a>) -> impl Iterator<Item = (&'a Segment, bool)> {
        let superseded = if line.track.is_of_nodes() { &[] } else { line.series.superseded() };
        let newest = (line.series.of_track(line.track), false);
        superseded.iter().map(|piece| (piece, true)).chain([newest]).filter(|(piece, _)| !piece.is_empty())
    }

    /// Returns the y axis of a plot of this height; `None` if there are no values.
    fn y_axis(&self, height: u16) -> Option<Rc<YAxis>> {
        let scale = self.scale()?;
        let ticks = scale.ticks(height, self.unit);
        let gutter = ticks.marks.iter().map(|(_, label)| units_width(label)).max().unwrap_or(0) + 1;
        Some(Rc::new(YAxis { scale, ticks, gutter }))
    }

    /// Returns the y scale of the visible values; `None` if there are no values.
    fn scale(&self) -> Option<Scale> {
        let mut extent = Extent::EMPTY;
        for line in self.lines {
            for (piece, _) in Self::pieces(line) {
                let low = line.series.index_at(self.axis.x, piece, self.axis.window.0);
                let high = line.series.index_at(self.axis.x, piece, self.axis.window.1.next_up());
                let band = line.band.into_iter().flat_map(|(lowest, highest)| [lowest, highest]);
                for track in band.chain([line.track]) {
                    extent = extent.union(piece.column(track).extent(low, high));
                }
            }
        }
        if extent.is_empty() {
            return None;
        }
        let (low, high) = (f64::from(extent.min), f64::from(extent.max));
        if (low, high) == (0.0, 0.0) {
            return Some(Scale { low, high: 1.0, log: false });
        }
        if self.log_y && high > 0.0 {
            // A logarithmic axis cannot show values of zero or less: it then shows four decades below the maximum.
            let low = if low > 0.0 { low } else { high * 1e-4 };
            let (low, high) = if high / low < 1.05 { (low * 0.9, high * 1.1) } else { (low, high) };
            return Some(Scale { low, high, log: true });
        }
        let span = high - low;
        // A constant line is drawn in the middle of a small range; other lines get a margin above and below.
        let pad = if span > high.abs().max(low.abs()) * 1e-6 { span * 0.04 } else { high.abs() * 0.1 };
        // The axis of a share covers at least 5 percentage points, and does not exceed 100 % unless a value does.
        let is_share = self.unit == Unit::Share;
        let pad = if is_share { pad.max((0.05 - span) / 2.0) } else { pad };
        let ceiling = if is_share && high <= 1.0 { 1.0 } else { f64::INFINITY };
        let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        Some(Scale { low: (low - pad).max(floor), high: (high + pad).min(ceiling), log: false })
    }

    fn draw_y_axis(&self, buf: &mut Buffer, plot: Rect, left: u16, gutter: u16, YAxis { scale, ticks, .. }: &YAxis) {
        let faint = self.axis.theme.faint;
        for y in plot.top()..plot.bottom() {
            put_symbol(buf, plot.x - 1, y, self.axis.symbols.axis, faint);
        }
        let mut free_from = plot.bottom();
        for (value, label) in &ticks.marks {
            let y = plot.y + scale.row(*value, f64::from(plot.height - 1)).round() as u16;
            if y >= free_from {
                continue;
            }
            free_from = y;
            let width = units_width(label);
            put(buf, left + (gutter - 1).saturating_sub(width), y, label, faint);
            put_symbol(buf, plot.x - 1, y, self.axis.symbols.tick, faint);
        }
    }

    /// Returns the version of the series, the tracks and the colour of each line.
    fn line_keys(&self) -> Vec<LineKey> {
        self.lines.iter().map(|line| (line.series.version(), line.track, line.band, line.style)).collect()
    }

    /// Returns the inputs of the drawing of the lines.
    fn key(&self, plot: Rect, scale: &Scale) -> Key {
        Key {
            lines: self.line_keys(),
            cells: (plot.width, plot.height),
            scale: *scale,
            x: self.axis.x,
            window: self.axis.window,
            smoothing: self.smoothing,
            braille: self.axis.symbols.braille,
            faint: self.axis.theme.faint,
        }
    }

    /// Draws all lines.
    fn draw(&self, plot: Rect, scale: &Scale) -> Drawing {
        let mut dots = Dots::new(plot, self.axis.symbols.braille);
        let mut ends = Vec::new();
        let mut gaps = Vec::new();
        let mut bounds = (std::ptr::null(), Vec::new());
        // Faint lines are below the others. The first line is drawn last, so that it is on top.
        for layer in [Layer::Superseded, Layer::Raw, Layer::Lines] {
            for (number, line) in self.lines.iter().enumerate().rev() {
                for (piece, superseded) in Self::pieces(line) {
                    let average = self.smoothing.and_then(|level| piece.smoothed(line.track, level));
                    let average = average.filter(|_| !superseded);
                    if let (Layer::Raw, Some(band)) = (layer, line.band) {
                        let bounds = &self.bounds(line.series, piece, dots.width);
                        self.band(&mut dots, &Trace { series: line.series, piece, bounds }, band, scale);
                    }
                    let raw = piece.column(line.track);
                    let (column, ink, texture) = match (layer, average) {
                        (Layer::Superseded, _) if superseded => (raw, self.axis.theme.faint, Texture::Dotted),
                        (Layer::Raw, Some(_)) => (raw, self.axis.theme.faint, Texture::Solid),
                        (Layer::Lines, Some(average)) => {
                            (average, line.style.add_modifier(Modifier::BOLD), Texture::Solid)
                        }
                        (Layer::Lines, None) if !superseded => (raw, line.style, Texture::Solid),
                        _ => continue,
                    };
                    // Most lines of a chart share their samples, so that the bounds can be reused.
                    if !std::ptr::eq(bounds.0, piece) {
                        bounds = (std::ptr::from_ref(piece), self.bounds(line.series, piece, dots.width));
                    }
                    let trace = Trace { series: line.series, piece, bounds: &bounds.1 };
                    let end = self.trace(&mut dots, &trace, column, scale, ink, texture);
                    if let (Layer::Lines, Some(end)) = (layer, end) {
                        ends.push((number, end));
                    }
                    if layer != Layer::Raw {
                        let missing = |c: &usize| raw.any_not_finite(bounds.1[*c], bounds.1[*c + 1]);
                        gaps.extend((0..dots.width).filter(missing).map(|c| c / dots.across));
                    }
                }
            }
        }
        ends.sort_by_key(|(number, row)| (*row, *number));
        Drawing { dots, ends, gaps }
    }

    /// Draws the range between two tracks as dots.
    fn band(&self, dots: &mut Dots, samples: &Trace<'_>, (lowest, highest): (Track, Track), scale: &Scale) {
        let bottom = (dots.height - 1) as f64;
        let [lowest, highest] = [lowest, highest].map(|track| samples.piece.column(track));
        let mut range = None;
        for c in 0..dots.width {
            let (from, to) = (samples.bounds[c], samples.bounds[c + 1]);
            if from < to {
                let (low, high) = (lowest.extent(from, to).min, highest.extent(from, to).max);
                range = (low <= high).then_some((scale.row(high.into(), bottom), scale.row(low.into(), bottom)));
            } else if to >= samples.piece.len() {
                break;
            }
            // Between two samples, the range of the first one continues.
            if let Some((top, low)) = range {
                dots.vertical(c, top, low, self.axis.theme.faint, Texture::Band);
            }
        }
    }

    /// Returns the index of the first sample of each dot column, and the end index of the last column.
    fn bounds(&self, series: &Series, piece: &Segment, width: usize) -> Vec<usize> {
        let (low, high) = self.axis.window;
        let column = (high - low) / (width - 1) as f64;
        let index = |c: usize| series.index_at(self.axis.x, piece, low + (c as f64 - 0.5) * column);
        let (first, last) = (index(0), index(width));
        // Round down to whole buckets of the pyramid, which is fast. This moves a bound by less than a thirtieth of a
        // column.
        let bucket = Column::bucket((last - first) / (30 * width));
        let between = (1..width).map(|c| (index(c) / bucket * bucket).max(first));
        [first].into_iter().chain(between).chain([last]).collect()
    }

    fn trace(
        &self,
        dots: &mut Dots,
        samples: &Trace<'_>,
        column: &Column,
        scale: &Scale,
        ink: Style,
        texture: Texture,
    ) -> Option<u16> {
        let Trace { series, piece, bounds } = *samples;
        let (low, high) = self.axis.window;
        let bottom = (dots.height - 1) as f64;
        let row = |value: f32| scale.row(f64::from(value), bottom);
        let rightmost = (dots.width - 1) as f64;
        let across = |index: usize| (series.x_of(self.axis.x, piece, index) - low) / (high - low) * rightmost;
        // The line comes from the sample left of the window and enters at the edge.
        let mut previous = bounds[0].checked_sub(1);
        let mut end = None;
        for c in 0..dots.width {
            let (from, to) = (bounds[c], bounds[c + 1]);
            if from == to {
                continue;
            }
            if let Some(before) = previous {
                dots.segment(
                    (across(before), row(column.get(before))),
                    (c as f64, row(column.get(from))),
                    ink,
                    texture,
                );
            }
            let extent = column.extent(from, to);
            if !extent.is_empty() {
                dots.vertical(c, row(extent.max), row(extent.min), ink, texture);
                let last = column.get(to - 1);
                end = Some(row(if last.is_finite() { last } else { extent.max }));
            }
            previous = Some(to - 1);
        }
        // The line leaves at the edge towards the sample right of the window.
        if let (Some(before), true) = (previous, bounds[dots.width] < piece.len()) {
            let after = bounds[dots.width];
            dots.segment(
                (across(before), row(column.get(before))),
                (across(after), row(column.get(after))),
                ink,
                texture,
            );
        }
        end.map(|row| (row.clamp(0.0, bottom) as u16) / dots.down as u16)
    }

    /// Writes the letter of each line beside its end. If a row is taken, the letter moves to the next free row below,
    /// or else above.
    fn end_marks(&self, buf: &mut Buffer, plot: Rect, ends: &[(usize, u16)]) {
        let mut taken = vec![false; usize::from(plot.height)];
        for (number, row) in ends.iter() {
            let row = usize::from(*row).min(taken.len() - 1);
            let free = (row..taken.len()).chain((0..row).rev()).find(|r| !taken[*r]);
            if let (Some(free), Some(line)) = (free, self.lines.get(*number)) {
                taken[free] = true;
                put(buf, plot.right() + 1, plot.y + free as u16, line.mark.encode_utf8(&mut [0; 4]), line.style);
            }
        }
    }
}

thread_local! {
    /// The lines of the charts on the screen.
    static DRAWINGS: Memo<Key, Drawing> = const { Memo::empty() };
    /// The y axes of the charts on the screen.
    static Y_AXES: Memo<YAxisKey, Option<Rc<YAxis>>> = const { Memo::empty() };
}

/// The inputs of a y axis: the lines, the x axis, the window, the unit, whether the y axis is logarithmic, and the rows of the plot.
type YAxisKey = (Vec<LineKey>, Axis, (f64, f64), Unit, bool, u16);

/// The version of the series, the tracks and the colour of a line.
type LineKey = (u64, Track, Option<(Track, Track)>, Style);

/// The inputs of a drawing of lines.
#[derive(PartialEq)]
struct Key {
    lines: Vec<LineKey>,
    /// The width and the height of the plot.
    cells: (u16, u16),
    scale: Scale,
    x: Axis,
    window: (f64, f64),
    smoothing: Option<usize>,
    braille: bool,
    faint: Style,
}

/// The lines of a chart.
struct Drawing {
    dots: Dots,
    /// The number of each line and the row in which the line ends, from top to bottom.
    ends: Vec<(usize, u16)>,
    /// The columns with a value that is not finite.
    gaps: Vec<usize>,
}

/// The layers of a chart, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// Samples of earlier attempts, dotted.
    Superseded,
    /// The raw values behind a moving average, faint, and the bands.
    Raw,
    /// The lines, or their moving averages.
    Lines,
}

/// A segment of a line, with what is needed to draw it.
#[derive(Clone, Copy)]
struct Trace<'a> {
    series: &'a Series,
    piece: &'a Segment,
    /// The index of the first sample of each dot column, and the end index of the last column.
    bounds: &'a [usize],
}

fn units_width(label: &str) -> u16 {
    crate::text::width(label) as u16
}

/// Maps values to rows of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// Returns the ticks of an axis of this height: three or more labels if the axis has at least four rows.
    fn ticks(&self, height: u16, unit: Unit) -> units::Ticks {
        let rows = usize::from(height);
        let wanted = (rows / 3).clamp(2, 10);
        let least = rows.saturating_sub(1).min(3);
        let tries =
            || (wanted..=wanted.max(2 * rows)).map(|wanted| units::ticks(self.low, self.high, wanted, unit, self.log));
        let enough = |ticks: &units::Ticks| self.labelled_rows(ticks, height) >= least;
        tries().find(enough).or_else(|| tries().next()).unwrap_or(units::Ticks { marks: Vec::new() })
    }

    /// Returns the number of rows that have a label.
    fn labelled_rows(&self, ticks: &units::Ticks, height: u16) -> usize {
        let bottom = f64::from(height - 1);
        let mut rows: Vec<u16> = ticks.marks.iter().map(|(value, _)| self.row(*value, bottom).round() as u16).collect();
        rows.dedup();
        rows.len()
    }

    /// Returns the row of a value: 0 at the top, `bottom` at the low end of the scale, NaN for a gap.
    fn row(&self, value: f64, bottom: f64) -> f64 {
        let position = if self.log {
            if value <= 0.0 {
                return f64::NAN;
            }
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        (1.0 - position) * bottom
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Texture {
    Solid,
    /// Every other dot, for superseded samples.
    Dotted,
    /// Every other dot, for the range around a line. It is drawn before the line.
    Band,
}

/// The dots of a cell, as bits, and their style.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    lines: u8,
    band: u8,
    style: Style,
}

/// A grid of dots, several per cell.
pub(super) struct Dots {
    pub(super) width: usize,
    pub(super) height: usize,
    across: usize,
    down: usize,
    braille: bool,
    cells: Vec<Cell>,
}

impl Dots {
    pub(super) fn new(plot: Rect, braille: bool) -> Self {
        let (across, down) = if braille { (2, 4) } else { (1, 2) };
        Self {
            width: usize::from(plot.width) * across,
            height: usize::from(plot.height) * down,
            across,
            down,
            braille,
            cells: vec![Cell::default(); usize::from(plot.width) * usize::from(plot.height)],
        }
    }

    /// Sets the dots of column `c` between two rows. Rows outside of the grid are cut off; NaN draws nothing.
    pub(super) fn vertical(&mut self, c: usize, from: f64, to: f64, ink: Style, texture: Texture) {
        let (top, bottom) = (from.min(to), from.max(to));
        if from.is_nan() || to.is_nan() || bottom < -0.5 || top > self.height as f64 - 0.5 || c >= self.width {
            return;
        }
        let last = self.height - 1;
        for r in (top.round().max(0.0) as usize)..=(bottom.round().max(0.0) as usize).min(last) {
            if texture != Texture::Solid && !(c + r).is_multiple_of(2) {
                continue;
            }
            let at = (r / self.down) * (self.width / self.across) + c / self.across;
            let bit = if self.braille {
                // Unicode numbers braille dots down the left column, then the right, and the bottom pair last.
                [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]][c % 2][r % 4]
            } else {
                1 << (r % 2)
            };
            let cell = &mut self.cells[at];
            if texture == Texture::Band {
                cell.band |= bit;
            } else {
                // A cell has one colour. In the colour of a line, the dots of a band would look like a thicker line.
                if cell.style != ink {
                    cell.band = 0;
                }
                cell.lines |= bit;
            }
            cell.style = ink;
        }
    }

    /// Draws a straight line, cut at the sides of the grid. Points are (column, row); NaN at either end leaves a gap.
    pub(super) fn segment(&mut self, from: (f64, f64), to: (f64, f64), ink: Style, texture: Texture) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        if !(dx.is_finite() && dy.is_finite()) || dx <= 0.0 {
            return;
        }
        let row = |x: f64| from.1 + (x.clamp(from.0, to.0) - from.0) / dx * dy;
        let first = from.0.round().max(0.0);
        let last = to.0.round().min((self.width - 1) as f64);
        if first > last {
            return;
        }
        for c in first as usize..=last as usize {
            self.vertical(c, row(c as f64 - 0.5), row(c as f64 + 0.5), ink, texture);
        }
    }

    pub(super) fn flush(&self, buf: &mut Buffer, plot: Rect) {
        let per_row = self.width / self.across;
        for (i, Cell { lines, band, style }) in self.cells.iter().enumerate() {
            let mask = lines | band;
            if mask == 0 {
                continue;
            }
            let symbol = if self.braille {
                char::from_u32(0x2800 + u32::from(mask)).unwrap_or(' ')
            } else {
                ['\'', '.', ':'][usize::from(mask) - 1]
            };
            let at = (plot.x + (i % per_row) as u16, plot.y + (i / per_row) as u16);
            if let Some(cell) = buf.cell_mut(at) {
                cell.set_char(symbol).set_style(Style::reset().patch(*style));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

    /// Draws a band over two rows of cells and a line across the upper row. Returns the symbols of each row, after
    /// `faint` if the row is faint.
    fn line_over_a_band(ink: Style) -> [String; 2] {
        let plot = Rect::new(0, 0, 2, 2);
        let mut dots = Dots::new(plot, true);
        (0..dots.width).for_each(|c| dots.vertical(c, 0.0, 7.0, FAINT, Texture::Band));
        dots.segment((0.0, 1.0), (3.0, 1.0), ink, Texture::Solid);
        let mut buf = Buffer::empty(plot);
        dots.flush(&mut buf, plot);
        [0u16, 1].map(|y| {
            let row: String = (0..2).map(|x| buf[(x, y)].symbol()).collect();
            if buf[(0, y)].modifier.contains(Modifier::DIM) { format!("faint {row}") } else { row }
        })
    }

    #[test]
    fn a_cell_that_a_line_crosses_has_only_the_dots_of_the_line() {
        assert_eq!(line_over_a_band(Style::new()), ["⠒⠒", "faint ⢕⢕"]);
    }

    #[test]
    fn a_line_in_the_colour_of_a_band_leaves_the_dots_of_the_band() {
        assert_eq!(line_over_a_band(FAINT), ["faint ⢗⢗", "faint ⢕⢕"]);
    }

    proptest! {
        #[test]
        fn an_axis_of_four_rows_or_more_has_three_labels(low in 0.0..1e3f64, span in 1e-3..1e3f64, rows in 4u16..40) {
            let scale = Scale { low, high: low + span, log: false };
            let ticks = scale.ticks(rows, Unit::Plain);
            prop_assert!(scale.labelled_rows(&ticks, rows) >= 3, "{:?}", ticks.marks);
        }
    }
}
