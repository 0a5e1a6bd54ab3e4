//! Lines with aligned columns: names with texts, keys with values, and tables.

use crate::model::Model;
use crate::text;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

/// Blank columns between columns.
const GAP: usize = 2;

/// Returns a text after the spans of its first line. It wraps below its own beginning.
pub fn hanging(first: Vec<Span<'static>>, text: &str, style: Style, width: usize) -> Vec<Line<'static>> {
    let indent: usize = first.iter().map(Span::width).sum();
    let mut rows = text::wrap(&one_line(text), width.saturating_sub(indent));
    if rows.is_empty() {
        rows.push(String::new());
    }
    let mut first = Some(first);
    let line = |row: String| {
        let mut spans = first.take().unwrap_or_else(|| vec![Span::raw(" ".repeat(indent))]);
        spans.push(Span::styled(row, style));
        Line::from(spans)
    };
    rows.into_iter().map(line).collect()
}

fn one_line(text: &str) -> String {
    text::clean(&text.replace('\n', " "))
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text::width(text))))
}

/// Returns names with their texts, which begin in the same column and wrap there. Names without a text are left out.
pub fn facts(model: &Model, facts: &[(&str, String)], width: usize) -> Vec<Line<'static>> {
    let known = || facts.iter().filter(|(_, text)| !text.is_empty());
    let names = known().map(|(name, _)| text::width(name)).max().unwrap_or(0);
    let lines = |(name, text): &(&str, String)| {
        let name = Span::styled(padded(name, names + GAP), model.theme.faint);
        hanging(vec![name], text, Style::new(), width)
    };
    known().flat_map(lines).collect()
}

/// A key with its value.
pub struct Setting<'a> {
    /// The key.
    pub key: &'a str,
    /// The value that it is compared with: that of the previous stage, or the default.
    pub before: Option<&'a str>,
    /// The value.
    pub value: &'a str,
}

/// Returns keys with their values, which begin after a column of `keys` cells and wrap there.
pub fn settings(model: &Model, settings: &[Setting<'_>], keys: usize, width: usize) -> Vec<Line<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let keys = keys.min(width / 2);
    let room = width.saturating_sub(keys + GAP);
    let mut lines = Vec::new();
    for Setting { key, before, value } in settings {
        let key = vec![Span::raw(padded(&text::fit_end(key, keys, symbols.ellipsis), keys + GAP))];
        let value = one_line(value);
        let Some(before) = before.map(one_line) else {
            lines.extend(hanging(key, &value, theme.strong, width));
            continue;
        };
        let arrow = Span::styled(format!("{} ", symbols.arrow), theme.faint);
        if text::width(&before) + 1 + arrow.width() + text::width(&value) <= room {
            let before = Span::styled(format!("{before} "), theme.faint);
            lines.push(Line::from_iter(key.into_iter().chain([before, arrow, Span::styled(value, theme.strong)])));
        } else {
            lines.extend(hanging(key, &before, theme.faint, width));
            let below = vec![Span::raw(" ".repeat(keys + GAP)), arrow];
            lines.extend(hanging(below, &value, theme.strong, width));
        }
    }
    lines
}

/// The alignment of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum Align {
    Left,
    Right,
}

/// Returns a table as lines: the titles of the columns, then the rows.
pub fn table(model: &Model, columns: &[(&str, Align)], rows: Vec<Vec<Span<'static>>>) -> Vec<Line<'static>> {
    let width_of = |(at, (title, _)): (usize, &(&str, Align))| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(Span::width);
        cells.chain([text::width(title)]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(width_of).collect();
    let line = |cells: Vec<Span<'static>>| {
        let mut spans = Vec::new();
        for (at, ((cell, width), (_, align))) in cells.into_iter().zip(&widths).zip(columns).enumerate() {
            let pad = Span::raw(" ".repeat(width.saturating_sub(cell.width())));
            spans.extend((at > 0).then(|| Span::raw(" ".repeat(GAP))));
            match align {
                Align::Right => spans.extend([pad, cell]),
                // Blanks at the end of a line would cause it to be cut.
                Align::Left if at + 1 == columns.len() => spans.push(cell),
                Align::Left => spans.extend([cell, pad]),
            }
        }
        Line::from(spans)
    };
    let titles = columns.iter().map(|(title, _)| Span::styled((*title).to_owned(), model.theme.faint));
    let heading = line(titles.collect());
    [heading].into_iter().chain(rows.into_iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::Ui;

    fn texts(lines: Vec<Line<'static>>) -> Vec<String> {
        lines.iter().map(Line::to_string).collect()
    }

    #[test]
    fn texts_wrap_below_their_beginning_and_names_without_a_text_are_left_out() {
        let rows = [("loss", "0.14".to_owned()), ("samples", String::new()), ("folder", "runs/a and more".to_owned())];
        let lines = facts(&Ui::new().model, &rows, 16);
        assert_eq!(texts(lines), ["loss    0.14", "folder  runs/a", "        and more"]);
    }

    #[test]
    fn a_value_that_does_not_fit_beside_the_one_before_it_is_below() {
        let setting = |key, before, value| Setting { key, before, value };
        let rows = [
            setting("lr", Some("1e-3"), "1e-4"),
            setting("index", Some("/data/2s"), "/data/4s"),
            setting("ema", None, "0.9"),
        ];
        let lines = settings(&Ui::new().model, &rows, 5, 20);
        assert_eq!(texts(lines), ["lr     1e-3 → 1e-4", "index  /data/2s", "       → /data/4s", "ema    0.9"]);
    }

    #[test]
    fn the_cells_of_a_table_are_aligned() {
        let row = |name: &str, count: &str| vec![Span::raw(name.to_owned()), Span::raw(count.to_owned())];
        let columns = [("node", Align::Left), ("GPUs", Align::Right)];
        let lines = table(&Ui::new().model, &columns, vec![row("gpu001", "8"), row("gpu2", "16")]);
        assert_eq!(texts(lines), ["node    GPUs", "gpu001     8", "gpu2      16"]);
    }
}
