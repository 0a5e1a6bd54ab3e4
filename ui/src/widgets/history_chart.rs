//! Draws lines over the last minutes or hours on a fixed scale, in braille dots (two by four per cell).

use super::line_chart::{Dots, Texture};
use crate::fleet::Point;
use crate::model::Model;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

/// The points of a line, oldest first, and the style of the line.
pub type HistoryLine<'a> = (Box<dyn Iterator<Item = Point> + 'a>, Style);

/// Draws lines over the last `seconds`, with the newest values at the right, on a scale with these ends; the
/// last line is on top. A missing value or a long time without values leaves a gap.
pub fn draw(
    model: &Model,
    buf: &mut Buffer,
    area: Rect,
    seconds: f64,
    (least, most): (f32, f32),
    lines: Vec<HistoryLine<'_>>,
) {
    let area = area.intersection(buf.area);
    let span = most - least;
    if area.width < 2 || area.height == 0 || span.is_nan() || span <= 0.0 {
        return;
    }
    let mut dots = Dots::new(area, model.symbols.braille);
    let column_s = seconds / (dots.width - 1) as f64;
    // The window ends at a whole column, so that lines move by whole columns and do not change shape in between.
    let low = (model.now / column_s).ceil() * column_s - seconds;
    let across = |t: f64| (t - low) / column_s;
    let bottom = (dots.height - 1) as f64;
    let row = |value: f32| f64::from(1.0 - ((value - least) / span).clamp(0.0, 1.0)) * bottom;
    for (points, ink) in lines {
        let mut before: Option<Point> = None;
        for point in points {
            if !point.value.is_finite() {
                before = None;
                continue;
            }
            let at = (across(point.t), row(point.value));
            match before.filter(|before| (0.0..=point.joined_s).contains(&(point.t - before.t))) {
                Some(before) => dots.segment((across(before.t), row(before.value)), at, ink, Texture::Solid),
                None if at.0 > -0.5 => dots.vertical(at.0.round() as usize, at.1, at.1, ink, Texture::Solid),
                None => {}
            }
            before = Some(point);
        }
    }
    dots.flush(buf, area);
}
