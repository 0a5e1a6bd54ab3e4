//! Draws the box of a dialog in front of a screen.

use crate::bindings::Action;
use crate::layout;
use crate::model::{Model, context};
use crate::msg::Size;
use crate::widgets::write;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Maximum width of the text of a dialog; longer lines are hard to read.
const WIDEST: u16 = 76;

/// Returns the width of a dialog's text in cells.
pub fn text_width(size: Size) -> usize {
    usize::from(outer_width(size).saturating_sub(4).max(1))
}

fn outer_width(size: Size) -> u16 {
    if size.width < 60 { size.width } else { (size.width - 4).min(WIDEST + 4) }
}

/// Returns the last scroll position of a dialog with this many lines.
pub fn max_scroll(size: Size, lines: usize) -> usize {
    lines.saturating_sub(visible(size, lines))
}

fn visible(size: Size, lines: usize) -> usize {
    lines.min(usize::from(size.height.saturating_sub(4)))
}

/// Draws a dialog: a title, scrollable lines, and a footer that is always visible.
pub fn draw(
    model: &Model,
    buf: &mut Buffer,
    title: &str,
    edge: Style,
    lines: Vec<Line<'static>>,
    footer: Line<'static>,
    scroll: usize,
) {
    let visible = visible(model.size, lines.len());
    let area = layout::centered(model.size, outer_width(model.size), visible as u16 + 4).intersection(buf.area);
    // Two blank columns at each side separate the box from the screen behind it.
    for y in area.top()..area.bottom() {
        for x in area.left().saturating_sub(2)..(area.right() + 2).min(buf.area.right()) {
            if let Some(cell) = buf.cell_mut((x, y)) {
                cell.reset();
            }
        }
    }
    if area.width < 8 || area.height < 4 {
        // Too small for a box: show only the keys in the footer.
        write(model, buf, area, footer);
        return;
    }
    let [top_left, top_right, bottom_left, bottom_right, horizontal, vertical] = model.symbols.frame;
    let inner = usize::from(area.width) - 2;
    let title = crate::text::fit(title, inner.saturating_sub(4), model.symbols.ellipsis);
    let rest = inner.saturating_sub(crate::text::width(&title) + 3);
    let top = Line::from(vec![
        Span::styled(format!("{top_left}{horizontal} "), edge),
        Span::styled(title, model.theme.strong),
        Span::styled(format!(" {}{top_right}", horizontal.repeat(rest)), edge),
    ]);
    let row = |y: u16| Rect { y, height: 1, ..area };
    write(model, buf, row(area.y), top);
    for y in area.y + 1..area.bottom() - 1 {
        write(model, buf, row(y), Span::styled(vertical, edge));
        write(model, buf, Rect { x: area.right() - 1, width: 1, y, height: 1 }, Span::styled(vertical, edge));
    }
    let more = lines.len() > visible;
    let scroll = scroll.min(lines.len() - visible);
    let mut bottom = format!("{bottom_left}{}{bottom_right}", horizontal.repeat(inner));
    if more {
        let key = model.keys.name(context(model), Action::Down);
        let hint = format!(" lines {}-{} of {}: {key} ", scroll + 1, scroll + visible, lines.len());
        if hint.len() + 4 <= inner {
            let fill = horizontal.repeat(inner - hint.len() - 2);
            bottom = format!("{bottom_left}{fill}{hint}{horizontal}{horizontal}{bottom_right}");
        }
    }
    write(model, buf, row(area.bottom() - 1), Span::styled(bottom, edge));
    let text = Rect { x: area.x + 2, y: area.y + 1, width: area.width - 4, height: area.height - 2 };
    for (i, line) in lines.into_iter().skip(scroll).take(visible).enumerate() {
        write(model, buf, Rect { y: text.y + i as u16, height: 1, ..text }, line);
    }
    write(model, buf, Rect { y: text.bottom() - 1, height: 1, ..text }, footer);
}
