//! Tables: a heading, columns as wide as the terminal allows, and rows that scroll, one of which may be selected.

use super::write;
use crate::layout::{self, cut_top};
use crate::model::Model;
use crate::text;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Blank cells between two columns.
pub const GAP: usize = 2;

/// The alignment of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum Align {
    Left,
    Right,
}

/// One column. `K` is what the caller needs to make its cells.
#[derive(Debug, Clone)]
pub struct Column<K> {
    /// What the column shows.
    pub of: K,
    title: String,
    /// The style of the title; `None` for that of other headings.
    style: Option<Style>,
    align: Align,
    /// The width; `None` for a last column whose texts end where they end.
    width: Option<usize>,
}

impl<K> Column<K> {
    /// Makes a column of this width.
    pub fn new(of: K, title: impl Into<String>, align: Align, width: usize) -> Self {
        Self { of, title: title.into(), style: None, align, width: Some(width) }
    }

    /// Makes a last column, whose texts are as long as they are. The row is cut at the end of the area.
    pub fn rest(of: K, title: impl Into<String>) -> Self {
        Self { of, title: title.into(), style: None, align: Align::Left, width: None }
    }

    /// Sets the style of the title.
    pub fn styled(self, style: Style) -> Self {
        Self { style: Some(style), ..self }
    }

    /// Returns the width; 0 for a last column without a width.
    pub fn width(&self) -> usize {
        self.width.unwrap_or(0)
    }
}

/// Returns the width of the widest text; 0 without any.
pub fn widest<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> usize {
    texts.into_iter().map(|text| text::width(text.as_ref())).max().unwrap_or(0)
}

/// Returns a text with blanks to this width.
pub fn padded(text: &str, width: usize, align: Align) -> String {
    let fill = " ".repeat(width.saturating_sub(text::width(text)));
    match align {
        Align::Left => format!("{text}{fill}"),
        Align::Right => format!("{fill}{text}"),
    }
}

/// The columns that fit a width.
#[derive(Debug, Clone)]
pub struct Table<K> {
    /// The columns, in their order on the screen.
    pub columns: Vec<Column<K>>,
    width: usize,
}

impl<K> Table<K> {
    /// Makes a table of this width without columns. Columns are added in the order of their importance.
    pub fn new(width: usize) -> Self {
        Self { columns: Vec::new(), width }
    }

    /// Adds columns that are always shown.
    pub fn with(mut self, columns: impl IntoIterator<Item = Column<K>>) -> Self {
        self.columns.extend(columns);
        self
    }

    /// Returns the cells that the columns and the gaps between them need.
    fn used(&self) -> usize {
        let widths: usize = self.columns.iter().map(Column::width).sum();
        widths + GAP * self.columns.len().saturating_sub(1)
    }

    /// Returns the cells that no column has.
    pub fn room(&self) -> usize {
        self.width.saturating_sub(self.used())
    }

    /// Adds columns together if they fit and leave `spare` cells to other columns. Returns whether they fit.
    pub fn add(&mut self, columns: impl IntoIterator<Item = Column<K>>, spare: usize) -> bool {
        let before = self.columns.len();
        self.columns.extend(columns);
        let fits = self.used() + spare <= self.width;
        if !fits {
            self.columns.truncate(before);
        }
        fits
    }

    /// Gives the cells that no column has to the columns for which `is` returns true, at most `most` to each.
    pub fn widen(&mut self, is: impl Fn(&K) -> bool, most: usize) {
        for at in 0..self.columns.len() {
            let room = self.room();
            let column = &mut self.columns[at];
            if let Some(width) = column.width.as_mut().filter(|_| is(&column.of)) {
                *width += room.min(most);
            }
        }
    }

    /// Makes the widest columns narrower until the table fits, but none narrower than `least`. Only columns for which
    /// `is` returns true are changed.
    pub fn shrink(&mut self, is: impl Fn(&K) -> bool, least: usize) {
        while self.used() > self.width {
            let widths = self.columns.iter().filter(|column| is(&column.of)).map(Column::width);
            let Some(widest) = widths.max().filter(|widest| *widest > least) else { break };
            for column in &mut self.columns {
                if is(&column.of) && column.width == Some(widest) {
                    column.width = Some(widest - 1);
                }
            }
        }
    }

    /// Returns the line of the titles after `margin` blank cells. Columns without a title at the end leave their room to the
    /// title before them.
    pub fn heading(&self, model: &Model, margin: usize) -> Line<'static> {
        let titled = self.columns.iter().rposition(|column| !column.title.is_empty()).map_or(0, |at| at + 1);
        let mut spans = vec![Span::raw(" ".repeat(margin))];
        let mut start = 0;
        for (at, column) in self.columns[..titled].iter().enumerate() {
            let room = match column.width {
                Some(width) if at + 1 < titled => width,
                Some(width) => width.max(self.width.saturating_sub(start)),
                None => usize::MAX,
            };
            let title = text::fit(&column.title, room, model.symbols.ellipsis);
            let style = column.style.unwrap_or(model.theme.faint);
            let gap = if at > 0 { GAP } else { 0 };
            spans.push(Span::styled(format!("{:gap$}{}", "", padded(&title, column.width(), column.align)), style));
            start += column.width() + GAP;
        }
        Line::from(spans)
    }

    /// Returns a row: `margin`, then the cell of each column. A text that is too wide for its column is cut; a cell of several spans
    /// must fit. A row with fewer cells ends after them.
    pub fn line(
        &self,
        model: &Model,
        margin: Vec<Span<'static>>,
        cells: impl IntoIterator<Item = impl Into<Line<'static>>>,
    ) -> Line<'static> {
        let mut spans = margin;
        for (at, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let gap = if at > 0 { GAP } else { 0 };
            let mut cell = cell.into().spans;
            // The gap is part of the text, so that a row that is cut does not end with blanks.
            if let [only] = &mut cell[..] {
                let text = match column.width {
                    Some(width) => {
                        padded(&text::fit(&only.content, width, model.symbols.ellipsis), width, column.align)
                    }
                    None => only.content.to_string(),
                };
                only.content = format!("{:gap$}{text}", "").into();
                spans.extend(cell);
                continue;
            }
            spans.push(Span::raw(" ".repeat(gap)));
            let width = column.width();
            let used: usize = cell.iter().map(Span::width).sum();
            let fill = Span::raw(" ".repeat(width.saturating_sub(used)));
            match column.align {
                Align::Left => spans.extend(cell.into_iter().chain([fill])),
                Align::Right => spans.extend([fill].into_iter().chain(cell)),
            }
        }
        Line::from(spans)
    }
}

/// Returns a table without a selection as lines: the titles of the columns, then the rows. Each column has the width of its widest
/// cell.
pub fn lines(model: &Model, columns: &[(&'static str, Align)], rows: Vec<Vec<Span<'static>>>) -> Vec<Line<'static>> {
    let column = |(at, (title, align)): (usize, &(&'static str, Align))| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(Span::width);
        let width = cells.chain([text::width(title)]).max().unwrap_or(0);
        match align {
            // Blanks at the end of a line would cause it to be cut.
            Align::Left if at + 1 == columns.len() => Column::rest((), *title),
            align => Column::new((), *title, *align, width),
        }
    };
    let table = Table::new(usize::MAX).with(columns.iter().enumerate().map(column));
    let heading = table.heading(model, 0);
    [heading].into_iter().chain(rows.into_iter().map(|row| table.line(model, Vec::new(), row))).collect()
}

/// The rows of a table on the screen.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// The area of the table; its first row is the heading.
    pub area: Rect,
    /// The first visible row.
    pub top: usize,
    /// The selected row.
    pub selected: usize,
    /// The number of rows.
    pub count: usize,
}

impl Rows {
    /// Returns the area of the rows.
    pub fn below(&self) -> Rect {
        cut_top(self.area, 1).1
    }

    /// Returns the number of rows that a key for a page moves by.
    pub fn page(&self) -> usize {
        usize::from(self.area.height.saturating_sub(2)).max(1)
    }

    /// Returns the first visible row after scrolling just far enough to show the selected one.
    pub fn scrolled(&self) -> usize {
        layout::scrolled(self.top, self.selected, usize::from(self.area.height.saturating_sub(1)))
    }

    /// Returns the first visible row after scrolling to the selected one. No row stays empty while rows above are hidden.
    pub fn filled(&self) -> usize {
        let visible = usize::from(self.area.height.saturating_sub(1));
        self.scrolled().min(self.count.saturating_sub(visible.max(1)))
    }

    /// Returns the number of rows from the selected one to the one in a row of the terminal.
    pub fn until(&self, row: u16) -> Option<isize> {
        layout::entries_until(self.below(), row, self.top, self.selected, self.count)
    }

    /// Draws the heading and the visible rows. `line` gets the number of a row and whether it is selected.
    pub fn draw(
        &self,
        model: &Model,
        buf: &mut Buffer,
        heading: Line<'static>,
        line: impl Fn(usize, bool) -> Line<'static>,
    ) {
        write(model, buf, self.area, heading);
        let below = self.below();
        for (y, at) in (below.top()..below.bottom()).zip(self.top..self.count) {
            write(model, buf, Rect { y, height: 1, ..below }, line(at, at == self.selected));
        }
    }

    /// Writes the number of hidden rows over the last visible one, unless that one is selected.
    pub fn draw_hidden(&self, model: &Model, buf: &mut Buffer) {
        let below = self.below();
        let bottom = self.top + usize::from(below.height);
        let hidden = self.count.saturating_sub(bottom);
        if hidden == 0 || below.height <= 1 || self.selected + 1 >= bottom {
            return;
        }
        let more = format!("  {} {} more below", model.symbols.ellipsis, hidden + 1);
        let more = padded(&more, usize::from(below.width), Align::Left);
        let last = Rect { y: below.bottom() - 1, height: 1, ..below };
        write(model, buf, last, Span::styled(more, model.theme.faint));
    }
}

/// Returns the two cells at the beginning of a row: whether it is selected, and whether it is marked.
pub fn pointer(model: &Model, is_selected: bool, is_marked: bool) -> Span<'static> {
    let pointer = if is_selected { model.symbols.pointer } else { " " };
    let mark = if is_marked { model.symbols.mark } else { " " };
    Span::styled(format!("{pointer}{mark}"), model.theme.accent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::Ui;

    fn column(of: char, width: usize) -> Column<char> {
        Column::new(of, of.to_string(), Align::Left, width)
    }

    fn widths(table: &Table<char>) -> Vec<(char, usize)> {
        table.columns.iter().map(|column| (column.of, column.width())).collect()
    }

    #[test]
    fn a_column_that_does_not_fit_is_left_out_and_a_narrower_one_is_shown() {
        let mut table = Table::new(20).with([column('a', 8)]);
        assert!(!table.add([column('b', 11)], 0));
        assert!(!table.add([column('c', 4), column('d', 5)], 0), "columns of a group are shown together");
        assert!(!table.add([column('e', 5)], 6), "6 cells are kept for other columns");
        assert!(table.add([column('f', 5)], 5));
        assert_eq!(widths(&table), [('a', 8), ('f', 5)]);
        assert_eq!(table.room(), 5);
        table.widen(|of| *of == 'f', 3);
        assert_eq!(widths(&table), [('a', 8), ('f', 8)]);
    }

    #[test]
    fn the_widest_columns_shrink_first() {
        let mut table = Table::new(30).with([column('k', 9), column('a', 20), column('b', 9), column('c', 6)]);
        table.shrink(|of| *of != 'k', 4);
        assert_eq!(widths(&table), [('k', 9), ('a', 5), ('b', 5), ('c', 5)]);
        let mut table = Table::new(38).with([column('k', 9), column('a', 20), column('b', 9), column('c', 6)]);
        table.shrink(|of| *of != 'k', 4);
        assert_eq!(widths(&table), [('k', 9), ('a', 8), ('b', 8), ('c', 6)]);
    }

    #[test]
    fn the_cells_of_a_table_are_aligned() {
        let row = |name: &str, count: &str| vec![Span::raw(name.to_owned()), Span::raw(count.to_owned())];
        let columns = [("node", Align::Left), ("GPUs", Align::Right)];
        let lines = lines(&Ui::new().model, &columns, vec![row("gpu001", "8"), row("gpu2", "16")]);
        let texts: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert_eq!(texts, ["node    GPUs", "gpu001     8", "gpu2      16"]);
    }

    #[test]
    fn the_last_title_may_reach_over_columns_without_a_title() {
        let model = Ui::new().model;
        let bars = Column::new('b', "power, 0 to 700 W", Align::Left, 8);
        let table = Table::new(30).with([column('a', 6), bars, Column::new('n', "", Align::Left, 10)]);
        assert_eq!(table.heading(&model, 1).to_string(), " a       power, 0 to 700 W");
    }

    #[test]
    fn a_table_scrolls_to_the_selected_row_and_leaves_no_row_empty() {
        let rows = Rows { area: Rect::new(0, 3, 20, 5), top: 0, selected: 6, count: 8 };
        assert_eq!((rows.scrolled(), rows.filled()), (3, 3));
        let rows = Rows { top: 7, selected: 7, ..rows };
        assert_eq!((rows.scrolled(), rows.filled()), (7, 4));
        let rows = Rows { top: 4, ..rows };
        assert_eq!(rows.until(4), Some(-3), "row 4 of the terminal is the first one below the heading");
        assert_eq!(rows.until(3), None);
    }
}
