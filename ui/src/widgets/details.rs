//! The details of the selected entry of a list screen. A large terminal shows more panels below and beside the main one.

use super::{panel, write_lines};
use crate::layout::cut_top;
use crate::model::Model;
use crate::msg::Size;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};
use units::counted;

/// The minimum width of a terminal that shows two columns of panels.
const WIDE: u16 = 120;
/// The minimum height of a terminal that shows panels below the main one.
const TALL: u16 = 36;
/// Blank columns between the two columns of panels.
const GAP: u16 = 3;
/// Rows that a panel gets at least, unless it needs fewer: its heading, two lines and the number of hidden lines.
const LEAST: usize = 4;

/// A panel of the details.
pub struct Section {
    /// The title.
    pub title: String,
    /// The text at the end of the heading.
    pub value: Vec<Span<'static>>,
    /// The lines. A panel without lines is not drawn.
    pub lines: Vec<Line<'static>>,
    /// The number of entries after these lines that have no line, because no terminal shows so many.
    pub left_out: usize,
}

impl Section {
    /// Makes a panel.
    pub fn new(title: impl Into<String>, value: Vec<Span<'static>>, lines: Vec<Line<'static>>) -> Self {
        Self { title: title.into(), value, lines, left_out: 0 }
    }

    /// Makes a panel with a number at the end of its heading.
    pub fn counted(model: &Model, title: impl Into<String>, count: usize, lines: Vec<Line<'static>>) -> Self {
        Self::new(title, vec![Span::styled(count.to_string(), model.theme.strong)], lines)
    }

    /// Makes a panel of a list with `count` entries, and their number at the end of its heading. `lines` returns the lines of
    /// the first entries, whose number it gets, so that the cost of a frame does not grow with the list.
    pub fn of_first(
        model: &Model,
        title: impl Into<String>,
        count: usize,
        lines: impl FnOnce(usize) -> Vec<Line<'static>>,
    ) -> Self {
        let most = count.min(usize::from(model.size.height));
        let section = Self::counted(model, title, count, lines(most));
        Self { left_out: count - most, ..section }
    }
}

/// Returns whether a terminal of this size shows more than the main panel.
pub fn has_more(size: Size) -> bool {
    size.width >= WIDE || size.height >= TALL
}

/// Returns the rows that a long list leaves to the details: `usual`, and more on a tall terminal.
pub fn least_rows(size: Size, usual: u16) -> u16 {
    if size.height >= TALL { usual.max(size.height * 2 / 5) } else { usual }
}

/// Returns the width of the lines of all panels in an area.
pub fn width(size: Size, area: Rect) -> usize {
    usize::from(columns(size, area).0.width)
}

/// Returns the two columns of panels. They have the same width. On a narrow terminal, the second one is empty.
fn columns(size: Size, area: Rect) -> (Rect, Rect) {
    if size.width < WIDE {
        return (area, Rect { width: 0, height: 0, ..area });
    }
    let width = area.width.saturating_sub(GAP) / 2;
    (Rect { width, ..area }, Rect { x: area.right() - width, width, ..area })
}

/// Draws the main panel and, where there is room, the others: those of `below` below it, and those of `beside` in the
/// second column. On a narrow terminal, all are below each other. Returns the area that is left below the main panel.
pub fn view(
    model: &Model,
    buf: &mut Buffer,
    area: Rect,
    main: Section,
    below: impl FnOnce() -> Vec<Section>,
    beside: impl FnOnce() -> Vec<Section>,
) -> Rect {
    if !has_more(model.size) {
        stack(model, buf, area, vec![main]);
        return Rect { height: 0, ..area };
    }
    let (left, right) = columns(model.size, area);
    let mut sections = vec![main];
    sections.extend(below());
    if right.width == 0 {
        sections.extend(beside());
    } else {
        stack(model, buf, right, beside());
    }
    stack(model, buf, left, sections)
}

/// Draws panels below each other, the most important first. Returns the area that is left below them.
pub fn stack(model: &Model, buf: &mut Buffer, area: Rect, sections: Vec<Section>) -> Rect {
    let sections: Vec<Section> = sections.into_iter().filter(|section| !section.lines.is_empty()).collect();
    let wanted: Vec<usize> = sections.iter().map(|section| section.lines.len() + 1).collect();
    let heights = heights(&wanted, usize::from(area.height));
    let mut rest = area;
    for (section, height) in sections.into_iter().zip(heights) {
        let (top, below) = cut_top(rest, height as u16);
        draw(model, buf, top, section);
        rest = cut_top(below, 1).1;
    }
    rest
}

/// Returns the rows of panels that are below each other, with a blank row between them. The first panel gets all its
/// rows if they fit, and the others get at least [`LEAST`]. The last panels are left out if there is no room for them.
fn heights(wanted: &[usize], room: usize) -> Vec<usize> {
    let least = |at: usize| if at == 0 { wanted[at] } else { wanted[at].min(LEAST) };
    let needed = |from: usize, to: usize| (from..to).map(|at| least(at) + 1).sum::<usize>();
    let shown = (1..=wanted.len()).rev().find(|count| needed(0, *count) <= room + 1).unwrap_or(wanted.len().min(1));
    let mut left = room;
    let mut height = |at: usize| {
        let height = wanted[at].min(left.saturating_sub(needed(at + 1, shown)));
        left = left.saturating_sub(height + 1);
        height
    };
    (0..shown).map(&mut height).collect()
}

fn draw(model: &Model, buf: &mut Buffer, area: Rect, section: Section) {
    let Section { title, value, mut lines, left_out } = section;
    let below = panel(model, buf, area, &title, value, false);
    let room = usize::from(below.height);
    if lines.len() > room && room > 1 {
        let hidden = lines.len() - (room - 1) + left_out;
        lines.truncate(room - 1);
        let text = format!("{} {}", model.symbols.ellipsis, counted(hidden, "more line"));
        lines.push(Line::styled(text, model.theme.faint));
    }
    write_lines(model, buf, below, lines);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::Ui;
    use proptest::prelude::*;

    #[test]
    fn a_long_list_gets_no_more_lines_than_a_screen_has_and_all_entries_are_counted() {
        let model = Ui::new().model;
        let section = Section::of_first(&model, "Events", 10_000, |most| vec![Line::raw("saved"); most]);
        assert_eq!(section.lines.len(), usize::from(model.size.height));
        let area = Rect::new(0, 0, 40, 5);
        let mut buf = Buffer::empty(area);
        stack(&model, &mut buf, area, vec![section]);
        let row = |y: u16| (0..area.width).map(|x| buf[(x, y)].symbol()).collect::<String>();
        assert!(row(0).ends_with("10000"), "{}", row(0));
        assert!(row(4).starts_with("… 9997 more lines"), "{}", row(4));
    }

    #[test]
    fn the_first_panel_gets_its_rows_and_the_last_ones_are_left_out() {
        assert_eq!(heights(&[5, 4, 9], 30), [5, 4, 9]);
        assert_eq!(heights(&[5, 12, 9], 20), [5, 9, 4]);
        assert_eq!(heights(&[5, 12, 9], 12), [5, 6]);
        assert_eq!(heights(&[9, 12], 7), [7]);
        assert_eq!(heights(&[], 7), [0; 0]);
    }

    proptest! {
        #[test]
        fn panels_fit_and_do_not_overlap(wanted in prop::collection::vec(2usize..40, 0..6), room in 0usize..80) {
            let heights = heights(&wanted, room);
            prop_assert!(heights.iter().sum::<usize>() + heights.len().saturating_sub(1) <= room.max(1));
            prop_assert!(heights.iter().zip(&wanted).all(|(height, wanted)| height <= wanted));
        }

        #[test]
        fn columns_are_in_their_area_and_have_the_same_width(width in 0u16..300, height in 0u16..120) {
            let area = crate::layout::areas(Size { width, height }).body;
            let (left, right) = columns(Size { width, height }, area);
            prop_assert!(left.right() <= area.right() && right.right() <= area.right().max(right.x));
            prop_assert!(right.width == 0 || (left.width == right.width && left.right() < right.x));
        }
    }
}
