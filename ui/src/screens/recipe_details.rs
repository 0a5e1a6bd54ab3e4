//! The details of the selected recipe. A large terminal also shows its runs, and the keys that differ from their defaults.

use crate::bindings::{Action, Context};
use crate::model::Model;
use crate::msg::{RecipeFacts, RecipeView, RunRow};
use crate::recipe_setting::bare;
use crate::screens::recipes::stem;
use crate::screens::run_sections;
use crate::text;
use crate::widgets::aligned::{self, Setting};
use crate::widgets::details::{self, Section};
use crate::widgets::{failure_lines, hint};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Span};
use std::collections::BTreeMap;
use units::counted;

/// Draws the details of a recipe below the list; `unseen` is the number of recipes that are hidden below the visible
/// rows.
pub fn view(model: &Model, buf: &mut Buffer, area: Rect, recipe: &RecipeView, unseen: usize) {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let filter = &model.screens.recipes.filter;
    let filter = (!filter.is_empty()).then(|| format!("filter \"{filter}\""));
    let unseen = (unseen > 0).then(|| format!("{} {} below", symbols.ellipsis, counted(unseen, "recipe")));
    let more: Vec<String> = filter.into_iter().chain(unseen).collect();
    let value = match more.is_empty() {
        true => Vec::new(),
        false => vec![Span::styled(more.join(&format!(" {} ", symbols.separator)), theme.faint)],
    };
    let width = details::width(model.size, area);
    let main = Section::new(stem(recipe), value, lines(model, recipe, width));
    let facts = recipe.facts.as_ref().ok();
    let runs = || -> Vec<Section> { facts.map(|facts| runs(model, facts)).into_iter().collect() };
    let settings = || -> Vec<Section> { facts.map(|facts| settings(model, facts, width)).into_iter().collect() };
    details::view(model, buf, area, main, runs, settings);
}

fn lines(model: &Model, recipe: &RecipeView, width: usize) -> Vec<Line<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let mut lines: Vec<Line<'static>> = Vec::new();
    match &recipe.facts {
        Ok(facts) if details::has_more(model.size) => lines.extend(all_facts(model, recipe, facts, width)),
        Ok(facts) => {
            let dot = format!(" {} ", symbols.separator);
            let facts_line = few_facts(facts).join(&dot);
            lines.extend(text::wrap(&facts_line, width).into_iter().map(|line| Line::styled(line, theme.faint)));
            if let Some(command) = &facts.command {
                let command = text::fit(&text::clean(command), width.saturating_sub(9), symbols.ellipsis);
                lines.push(Line::from(vec![Span::styled("Command  ", theme.faint), Span::raw(command)]));
            }
        }
        Err(_) if recipe.is_base() => {
            let text = "Settings that other recipes share. It cannot be launched by itself.";
            lines.push(Line::styled(text, theme.faint));
        }
        Err(failure) => lines.extend(failure_lines(model, failure, width)),
    }
    if !recipe.about.is_empty() {
        lines.push(Line::default());
        lines.extend(text::wrap(&text::clean(&recipe.about), width).into_iter().map(Line::from));
    }
    if !recipe.is_base() {
        lines.push(Line::default());
        lines.push(Line::from(hint(
            model,
            &model.keys.name(Context::Recipes, Action::LaunchForm),
            "launch it (shows the plan first)",
        )));
    }
    lines
}

fn few_facts(facts: &RecipeFacts) -> Vec<String> {
    let known = [
        Some(format!("runs are named {}", facts.name)),
        facts.params.map(|params| format!("{} parameters", units::count(params))),
        facts.seq_len.map(|tokens| format!("{} tokens", units::grouped(tokens as u64))),
        Some(facts.length.clone()).filter(|length| !length.is_empty()),
        Some(facts.mesh.clone()),
    ];
    known.into_iter().flatten().collect()
}

fn all_facts(model: &Model, recipe: &RecipeView, facts: &RecipeFacts, width: usize) -> Vec<Line<'static>> {
    let facts = [
        ("runs are named", facts.name.clone()),
        ("kind", facts.kind.clone()),
        ("parameters", facts.params.map(units::count).unwrap_or_default()),
        ("tokens", facts.seq_len.map(|tokens| units::grouped(tokens as u64)).unwrap_or_default()),
        ("length", facts.length.clone()),
        ("mesh", facts.mesh.clone()),
        ("command", facts.command.clone().unwrap_or_default()),
        ("file", recipe.path.to_string()),
    ];
    aligned::facts(model, &facts, width)
}

/// Returns the runs that have the name of the recipe, newest first.
fn runs(model: &Model, facts: &RecipeFacts) -> Section {
    let runs: Vec<&RunRow> = model.rows().iter().filter(|row| row.name == facts.name).collect();
    run_sections::of_runs(model, format!("Runs named {}", facts.name), &runs)
}

/// Returns the keys that differ from their defaults, by section.
fn settings(model: &Model, facts: &RecipeFacts, width: usize) -> Section {
    let defaults: BTreeMap<&str, String> = recipe::default_settings().into_iter().collect();
    let keys = facts.settings.iter().map(|(key, _)| text::width(parts(key).1)).max().unwrap_or(0);
    let mut lines = Vec::new();
    for group in facts.settings.chunk_by(|(a, _), (b, _)| parts(a).0 == parts(b).0) {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        let section = group.first().map_or("", |(key, _)| parts(key).0);
        if !section.is_empty() {
            lines.push(Line::styled(section.to_owned(), model.theme.strong));
        }
        let settings = group.iter().map(|(key, value)| Setting {
            key: parts(key).1,
            before: defaults.get(key.as_str()).map(|default| bare(default)),
            value: bare(value),
        });
        lines.extend(aligned::settings(model, &settings.collect::<Vec<_>>(), keys, width));
    }
    Section::counted(model, "Keys that differ from their defaults", facts.settings.len(), lines)
}

/// Returns the section and the name of a key. The section of a key at the top level is empty.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}
