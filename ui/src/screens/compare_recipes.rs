//! The differences between the recipes of the compared runs, as a table: one row per key, one column per run.

use crate::bindings::{Action, Context};
use crate::layout;
use crate::model::{CompareScreen, ComparedRun, Model};
use crate::recipe_setting::{Difference, bare};
use crate::run_state::short_id;
use crate::screens::compare::{ink, mark};
use crate::text;
use crate::widgets::table::{self, Align, Column, GAP, Table, padded};
use crate::widgets::{panel, write, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use units::counted;

/// The minimum width of a column of values.
const LEAST: usize = 8;
/// The minimum width of a column of equal keys, and the blank columns between two of them.
const EQUAL_COLUMN: usize = 64;
const EQUAL_GAP: usize = 3;

/// Draws the table of the keys whose values differ. If it fills the screen, long values wrap, and the keys that are equal
/// are below it.
pub fn view(model: &Model, open: &CompareScreen, buf: &mut Buffer, area: Rect) {
    let differences = open.differences();
    let loading = open.runs.iter().any(|run| run.recipe.is_none() && run.lost.is_none());
    let value = match differences.len() {
        0 => Vec::new(),
        n => vec![Span::styled(format!("{} differ", counted(n, "key")), model.theme.strong)],
    };
    let below = panel(model, buf, area, "Recipes", value, false);
    if differences.is_empty() {
        let nothing = if loading { "Loading…" } else { "The recipes are equal" };
        write(model, buf, below, Span::styled(nothing, model.theme.faint));
        return;
    }
    let (top, rows) = layout::cut_top(below, 1);
    let (heading, mut lines) = table(model, open, &differences, usize::from(below.width));
    write(model, buf, top, heading);
    let (all, visible) = (lines.len(), usize::from(rows.height));
    let scroll = open.scroll.min(all.saturating_sub(visible));
    lines = lines.into_iter().skip(scroll).take(visible).collect();
    let hidden = all - scroll - lines.len();
    if hidden > 0 && visible > 1 {
        let down = model.keys.name(Context::Compare, Action::Down);
        lines.pop();
        lines.push(Line::styled(
            format!("{} {} more; {down} scrolls", model.symbols.ellipsis, hidden + 1),
            model.theme.faint,
        ));
    }
    write_lines(model, buf, rows, lines);
}

/// Returns the largest scroll position of the table in an area.
pub fn last_scroll(model: &Model, open: &CompareScreen, area: Rect) -> usize {
    let (_, lines) = table(model, open, &open.differences(), usize::from(area.width));
    lines.len().saturating_sub(usize::from(area.height.saturating_sub(2)))
}

/// Returns the heading and the lines of the table.
fn table(
    model: &Model,
    open: &CompareScreen,
    differences: &[Difference],
    width: usize,
) -> (Line<'static>, Vec<Line<'static>>) {
    let cells: Vec<Vec<String>> = differences.iter().map(|row| row.cells(model.symbols.none)).collect();
    let keys = table::widest(differences.iter().map(|row| &row.key)).min((width / 3).max(LEAST));
    let heading_of = |(number, run): (usize, &ComparedRun)| format!("{} {}", mark(number), short_id(&run.id));
    let run = |(number, heading): (usize, String)| {
        let widest = table::widest(cells.iter().map(|row| &row[number]).chain([&heading]));
        Column::new(Some(number), heading, Align::Left, widest.max(LEAST)).styled(ink(model, number))
    };
    let runs = open.runs.iter().enumerate().map(heading_of).enumerate().map(run);
    let mut table = Table::new(width).with([Column::new(None, "key", Align::Left, keys)]).with(runs);
    // Each column is as wide as its heading and its longest value if all columns fit; otherwise the widest columns shrink first.
    table.shrink(Option::is_some, LEAST);
    let mut lines = Vec::new();
    for (row, cells) in differences.iter().zip(&cells) {
        let texts = |column: &Column<Option<usize>>| {
            let (text, width) = (column.of.map_or(&row.key, |number| &cells[number]), column.width());
            match column.of {
                _ if open.recipes_only => text::wrap(text, width),
                None => vec![text::fit_end(text, width, model.symbols.ellipsis)],
                Some(_) => vec![text.clone()],
            }
        };
        let texts: Vec<Vec<String>> = table.columns.iter().map(texts).collect();
        let height = texts.iter().map(Vec::len).max().unwrap_or(0);
        // Values that equal the value of the first run are faint.
        let style = |column: &Column<Option<usize>>| match column.of {
            None | Some(0) => Style::new(),
            Some(number) if row.values[number] == row.values[0] => model.theme.faint,
            Some(_) => model.theme.strong,
        };
        for at in 0..height {
            let part = |texts: &[String]| texts.get(at).cloned().unwrap_or_default();
            let cells =
                table.columns.iter().zip(&texts).map(|(column, texts)| Span::styled(part(texts), style(column)));
            lines.push(table.line(model, Vec::new(), cells));
        }
    }
    if open.recipes_only {
        lines.extend(equal_lines(model, open, width));
    }
    (table.heading(model, 0), lines)
}

/// Returns the keys that have the same value in all recipes, in columns. Keys with their defaults are only counted.
fn equal_lines(model: &Model, open: &CompareScreen, width: usize) -> Vec<Line<'static>> {
    let (set, default): (Vec<_>, Vec<_>) = open.equal_settings().into_iter().partition(|setting| setting.is_set());
    let mut lines = Vec::new();
    if !set.is_empty() {
        lines.push(Line::default());
        let title = format!("Equal in all runs, differs from the default ({})", set.len());
        lines.extend(text::wrap(&title, width).into_iter().map(|line| Line::styled(line, model.theme.strong)));
        let columns = ((width + EQUAL_GAP) / (EQUAL_COLUMN + EQUAL_GAP)).max(1);
        let column = (width + EQUAL_GAP) / columns - EQUAL_GAP;
        let keys = set.iter().map(|setting| text::width(&setting.key)).max().unwrap_or(0).min(column / 2);
        let rows = set.len().div_ceil(columns);
        for row in 0..rows {
            let mut spans = Vec::new();
            for setting in (0..columns).filter_map(|at| set.get(at * rows + row)) {
                if !spans.is_empty() {
                    spans.push(Span::raw(" ".repeat(EQUAL_GAP)));
                }
                let key = text::fit_end(&setting.key, keys, model.symbols.ellipsis);
                spans.push(Span::styled(format!("{}{:GAP$}", padded(&key, keys, Align::Left), ""), model.theme.faint));
                let value = text::clean(&bare(&setting.value).replace('\n', " "));
                let value = text::fit_end(&value, column.saturating_sub(keys + GAP), model.symbols.ellipsis);
                spans.push(Span::raw(padded(&value, column.saturating_sub(keys + GAP), Align::Left)));
            }
            lines.push(Line::from(spans));
        }
    }
    if !default.is_empty() {
        let have = if default.len() == 1 { "has its" } else { "have their" };
        lines.push(Line::default());
        let text = format!("{} {have} default in all runs", counted(default.len(), "key"));
        lines.extend(text::wrap(&text, width).into_iter().map(|line| Line::styled(line, model.theme.faint)));
    }
    lines
}
