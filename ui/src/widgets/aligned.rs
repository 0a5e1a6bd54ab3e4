//! Lines with aligned columns: names with texts, and keys with values.

use crate::model::Model;
use crate::text;
use crate::widgets::table::{Align, GAP, padded};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

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

/// Returns names with their texts, which begin in the same column and wrap there. Names without a text are left out.
pub fn facts(model: &Model, facts: &[(&str, String)], width: usize) -> Vec<Line<'static>> {
    let known = || facts.iter().filter(|(_, text)| !text.is_empty());
    let names = known().map(|(name, _)| text::width(name)).max().unwrap_or(0);
    let lines = |(name, text): &(&str, String)| {
        let name = Span::styled(padded(name, names + GAP, Align::Left), model.theme.faint);
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
        let key = vec![Span::raw(padded(&text::fit_end(key, keys, symbols.ellipsis), keys + GAP, Align::Left))];
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
}
