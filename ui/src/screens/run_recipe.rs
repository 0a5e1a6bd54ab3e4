//! The Recipe panel: first the keys that differ from the previous stage, then those that differ from their defaults,
//! then the others.

use crate::layout::Panel;
use crate::model::{Model, RunScreen};
use crate::msg::RunRow;
use crate::recipe_setting::{RecipeSetting, bare};
use crate::text;
use crate::widgets::{panel as heading, write, write_lines};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::Change;
use units::counted;

/// A key, its value and the value that it is compared with.
struct Setting<'a> {
    key: &'a str,
    value: &'a str,
    /// The value in the previous stage, or the default.
    before: Option<&'a str>,
}

/// The keys in groups, each with its title.
type Groups<'a> = Vec<(String, Vec<Setting<'a>>)>;

/// Returns the changes of a run's stage from the previous stage.
fn stage_changes<'a>(model: &'a Model, row: &RunRow) -> &'a [Change] {
    let Some((curriculum, name)) = row.curriculum.as_deref().zip(row.stage.as_ref()) else { return &[] };
    let stages = model.stages_of(curriculum);
    // The first stage has no previous stage.
    let at = stages.iter().position(|stage| stage.name == *name).filter(|at| *at > 0);
    at.map_or(&[], |at| stages[at].changes.as_slice())
}

fn groups<'a>(model: &'a Model, run: &'a RunScreen) -> Groups<'a> {
    let Some(settings) = &run.recipe else { return Vec::new() };
    let row = model.row(&run.id);
    let changes = row.map_or(&[][..], |row| stage_changes(model, row));
    let differs = |before: Option<&str>, setting: &RecipeSetting| {
        before.is_none_or(|before| bare(before) != bare(&setting.value))
    };
    let change = |setting: &RecipeSetting| {
        // The launch may have restored the value of the previous stage.
        changes.iter().find(|change| change.key == setting.key && differs(change.from.as_deref(), setting))
    };
    let (changed, others): (Vec<_>, Vec<_>) = settings.iter().partition(|setting| change(setting).is_some());
    let (set, default): (Vec<_>, Vec<_>) = others.into_iter().partition(|setting| setting.is_set());
    let shown = |setting: &'a RecipeSetting, before: Option<&'a str>| Setting {
        key: &setting.key,
        value: &setting.value,
        before,
    };
    let changed: Vec<Setting<'a>> = changed
        .into_iter()
        .map(|setting| shown(setting, change(setting).and_then(|change| change.from.as_deref())))
        .collect();
    let set: Vec<Setting<'a>> = set.into_iter().map(|setting| shown(setting, setting.default.as_deref())).collect();
    let default: Vec<Setting<'a>> = default.into_iter().map(|setting| shown(setting, None)).collect();
    let titled = [
        (format!("Differs from the stage before ({})", changed.len()), changed),
        (format!("Differs from the default ({})", set.len()), set),
        (format!("Default ({})", default.len()), default),
    ];
    titled.into_iter().filter(|(_, settings)| !settings.is_empty()).collect()
}

/// Blank columns between the columns of keys, and the minimum width of a column.
const GAP: u16 = 3;
const COLUMN: u16 = 64;

/// Returns the number of columns of keys.
fn columns(area: Rect) -> u16 {
    ((area.width + GAP) / (COLUMN + GAP)).max(1)
}

/// Returns the largest scroll position of the panel in an area.
pub fn last_scroll(model: &Model, run: &RunScreen, area: Rect) -> usize {
    let lines = groups(model, run).iter().map(|(_, settings)| settings.len() + 2).sum::<usize>().saturating_sub(1);
    lines.saturating_sub(usize::from(area.height.saturating_sub(1)) * usize::from(columns(area)))
}

/// Draws the panel. A wide panel shows the keys in several columns.
pub fn view(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let focused = run.focus == Panel::Recipe;
    let set = run.recipe.iter().flatten().filter(|setting| setting.is_set()).count();
    let value = run.recipe.as_ref().map(|all| {
        let text = format!("{}, {set} differ from the default", counted(all.len(), "key"));
        Span::styled(text, model.theme.faint)
    });
    let below = heading(model, buf, area, "Recipe", value.into_iter().collect(), focused);
    if run.recipe.is_none() {
        write(model, buf, below, Span::styled("Loading…", model.theme.faint));
        return;
    }
    let columns = columns(below);
    let width = (below.width - GAP * (columns - 1)) / columns;
    let lines = lines(model, groups(model, run), usize::from(width));
    let rows = usize::from(below.height);
    let last = lines.len().saturating_sub(rows * usize::from(columns));
    let scroll = if focused { run.scroll.min(last) } else { 0 };
    let mut rest = lines.into_iter().skip(scroll);
    for column in 0..columns {
        let part = Rect { x: below.x + column * (width + GAP), width, ..below };
        write_lines(model, buf, part, rest.by_ref().take(rows));
    }
}

fn lines(model: &Model, groups: Groups<'_>, width: usize) -> Vec<Line<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let mut lines = Vec::new();
    let keys = groups.iter().flat_map(|(_, settings)| settings).map(|setting| text::width(setting.key)).max();
    let keys = keys.unwrap_or(0).min(width / 2);
    for (title, settings) in groups {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        lines.push(Line::styled(title, theme.strong));
        for Setting { key, value, before } in settings {
            let key = text::fit_end(key, keys, symbols.ellipsis);
            let pad = " ".repeat(keys + 2 - text::width(&key));
            let value = text::clean(&bare(value).replace('\n', " "));
            let mut spans = vec![Span::styled(format!("{key}{pad}"), theme.faint)];
            let room = width.saturating_sub(keys + 2);
            match before.map(|before| text::clean(&bare(before).replace('\n', " "))) {
                Some(before) => {
                    // The new value is more important than the old one.
                    let value = text::fit_end(&value, room, symbols.ellipsis);
                    let arrow = format!(" {} ", symbols.arrow);
                    let left = room.saturating_sub(text::width(&value) + text::width(&arrow));
                    if left >= 4 {
                        let before = text::fit(&before, left, symbols.ellipsis);
                        spans.push(Span::styled(format!("{before}{arrow}"), theme.faint));
                    }
                    spans.push(Span::styled(value, theme.strong));
                }
                None => spans.push(Span::styled(text::fit_end(&value, room, symbols.ellipsis), Style::new())),
            }
            lines.push(Line::from(spans));
        }
    }
    lines
}
