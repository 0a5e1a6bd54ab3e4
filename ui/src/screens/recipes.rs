//! The Recipes screen: lists all recipes below the configuration folder, with their task and size, and the details of
//! the selected one.

use crate::bindings::{Action, Context};
use crate::effect::{Effect, Watch};
use crate::layout;
use crate::model::{Input, Model, Purpose, Screen};
use crate::msg::RecipeView;
use crate::run_state::StateKind;
use crate::screens::{Behaviour, Press, recipe_details};
use crate::text;
use crate::widgets::table::{self, Align, Column, GAP, Table};
use crate::widgets::{details, hint, write, write_centered, write_split};
use camino::Utf8Path;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use std::collections::BTreeSet;
use units::counted;

/// Rows of the details below the list.
const DETAILS: u16 = 9;

/// A row of the list.
enum RecipesRow<'a> {
    Folder(&'a Utf8Path),
    Recipe(&'a RecipeView),
    Air,
}

fn rows(model: &Model) -> Vec<RecipesRow<'_>> {
    let mut rows = Vec::new();
    let mut folder = None;
    for recipe in recipes(model) {
        let of = recipe.path.parent().unwrap_or(Utf8Path::new(""));
        if folder.replace(of) != Some(of) {
            if !rows.is_empty() {
                rows.push(RecipesRow::Air);
            }
            rows.push(RecipesRow::Folder(of));
        }
        rows.push(RecipesRow::Recipe(recipe));
    }
    rows
}

/// Returns the recipes that pass the filter.
fn recipes(model: &Model) -> Vec<&RecipeView> {
    let wanted = model.screens.recipes.filter.to_lowercase();
    let passes = |recipe: &&RecipeView| {
        let folder = recipe.path.parent().and_then(Utf8Path::file_name).unwrap_or_default();
        let kind = recipe.facts.as_ref().map_or("", |facts| facts.kind.as_str());
        format!("{folder}/{} {kind} {}", stem(recipe), recipe.about).to_lowercase().contains(&wanted)
    };
    model.recipes.iter().flatten().filter(passes).collect()
}

/// Sets the filter.
pub fn set_filter(model: &mut Model, filter: String) {
    model.screens.recipes.filter = filter;
    model.screens.recipes.top = 0;
    keep_selection(model);
}

fn position(model: &Model) -> usize {
    let chosen = model.screens.recipes.selected.as_ref();
    chosen.and_then(|path| recipes(model).iter().position(|recipe| recipe.path == *path)).unwrap_or(0)
}

/// Returns the selected recipe.
pub fn selected(model: &Model) -> Option<&RecipeView> {
    recipes(model).get(position(model)).copied()
}

/// Scrolls to the selected recipe.
pub fn keep_selection(model: &mut Model) {
    let rows = rows(model);
    let is_selected = |row: &RecipesRow<'_>| match row {
        RecipesRow::Recipe(recipe) => selected(model).is_some_and(|chosen| chosen.path == recipe.path),
        RecipesRow::Folder(_) | RecipesRow::Air => false,
    };
    let at = rows.iter().position(is_selected).unwrap_or(0);
    let visible = usize::from(areas(model, rows.len()).0.height);
    // Show the name of the folder together with its first recipe.
    let is_first = at > 0 && matches!(rows[at - 1], RecipesRow::Folder(_));
    let top = layout::scrolled(model.screens.recipes.top, at, visible);
    let top = if is_first { top.min(at - 1) } else { top };
    model.screens.recipes.top = top.min(rows.len().saturating_sub(visible.max(1)));
}

/// The screen.
pub struct Recipes;

impl Behaviour for Recipes {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let page = usize::from(areas(model, rows(model).len()).0.height.saturating_sub(2)).max(1);
        let last = recipes(model).len().saturating_sub(1);
        if let Some(to) = layout::moved(action, position(model), page, last) {
            model.screens.recipes.selected = recipes(model).get(to).map(|recipe| recipe.path.clone());
            keep_selection(model);
            return Vec::new();
        }
        match action {
            Action::LaunchForm => match selected(model).map(|recipe| recipe.path.to_string()) {
                Some(path) => model.open_form_of(path),
                None => model.warn("There is no recipe to launch"),
            },
            Action::LaunchRecipe => model.input = Some(Input::new(Purpose::Launch, model.launch_arguments.as_str())),
            Action::Filter => {
                model.input = Some(Input::new(Purpose::RecipeFilter, model.screens.recipes.filter.clone()));
            }
            Action::Back if !model.screens.recipes.filter.is_empty() => set_filter(model, String::new()),
            Action::Back => model.screen = Screen::Runs,
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let faint = model.theme.faint;
        let Some(all) = &model.recipes else {
            write_centered(model, buf, body, vec![Line::styled("Loading recipes…", faint)]);
            return;
        };
        if all.is_empty() {
            let mut lines = vec![Line::styled("No recipe found", model.theme.strong)];
            let text = "A recipe is a TOML file that describes what to train; see configs/demo/2s.toml. \
                    Start vidtui in a folder that contains configs/, or name another folder with --configs.";
            lines.extend(text::wrap(text, usize::from(body.width.min(60))).into_iter().map(Line::from));
            lines.push(Line::default());
            lines.push(Line::from(hint(
                model,
                &model.keys.name(Context::Recipes, Action::LaunchRecipe),
                "launch a recipe by path",
            )));
            write_centered(model, buf, body, lines);
            return;
        }
        let rows = rows(model);
        if rows.is_empty() {
            let nothing = format!("No recipe matches \"{}\"", model.screens.recipes.filter);
            let clear = hint(model, &model.keys.name(Context::Recipes, Action::Back), "show all recipes");
            write_centered(model, buf, body, vec![Line::from(nothing), Line::default(), Line::from(clear)]);
            return;
        }
        let (list, below) = areas(model, rows.len());
        let columns = columns(all, list.width);
        for (y, row) in (list.top()..list.bottom()).zip(rows.iter().skip(model.screens.recipes.top)) {
            let area = Rect { y, height: 1, ..list };
            match row {
                RecipesRow::Air => {}
                RecipesRow::Folder(folder) => {
                    let name = folder.file_name().unwrap_or(folder.as_str()).to_owned();
                    let path = text::fit_end(folder.as_str(), usize::from(list.width) / 2, model.symbols.ellipsis);
                    let title = Line::styled(name, model.theme.strong);
                    write_split(model, buf, area, title, Line::styled(path, faint));
                }
                RecipesRow::Recipe(recipe) => write(model, buf, area, line(model, recipe, &columns)),
            }
        }
        if let Some(recipe) = selected(model) {
            let shown = rows.iter().skip(model.screens.recipes.top + usize::from(list.height));
            let unseen = shown.filter(|row| matches!(row, RecipesRow::Recipe(_))).count();
            recipe_details::view(model, buf, below, recipe, unseen);
        }
    }

    fn open(&self, model: &mut Model) {
        model.screen = Screen::Recipes;
    }

    fn tab(&self) -> Action {
        Action::ShowRecipes
    }

    fn keep_selection(&self, model: &mut Model) {
        keep_selection(model);
    }

    fn watches(&self, _: &Model, wanted: &mut BTreeSet<Watch>) {
        wanted.insert(Watch::Recipes);
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        Press::row(recipes_until(model, at.y))
    }

    fn on_typed(&self, model: &mut Model, _: Purpose, text: &str) {
        set_filter(model, text.to_owned());
    }
}

fn areas(model: &Model, rows: usize) -> (Rect, Rect) {
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(1);
    layout::list_and_details(layout::areas(model.size).body, rows, details::least_rows(model.size, DETAILS))
}

/// Returns the number of recipes from the selected one to the one at a row of the terminal.
fn recipes_until(model: &Model, row: u16) -> Option<isize> {
    let rows = rows(model);
    let at = layout::entries_until(areas(model, rows.len()).0, row, model.screens.recipes.top, 0, rows.len())?;
    let RecipesRow::Recipe(clicked) = rows.get(at as usize)? else { return None };
    let clicked = recipes(model).iter().position(|recipe| recipe.path == clicked.path)?;
    Some(clicked as isize - position(model) as isize)
}

/// The columns of the list. It has no heading.
#[derive(Debug, Clone, Copy)]
enum RecipeColumn {
    Name,
    Kind,
    Params,
    Ranks,
    About,
}

fn columns(all: &[RecipeView], width: u16) -> Table<RecipeColumn> {
    let facts = || all.iter().filter_map(|recipe| recipe.facts.as_ref().ok());
    let name = table::widest(all.iter().map(stem)).clamp(6, 24);
    let kind = table::widest(facts().map(|facts| &facts.kind)).clamp(5, if width < 100 { 11 } else { 18 });
    let ranks = table::widest(facts().map(|facts| counted(facts.ranks, "rank"))).max(9);
    Table::new(usize::from(width).saturating_sub(2)).with([
        Column::new(RecipeColumn::Name, "", Align::Left, name),
        Column::new(RecipeColumn::Kind, "", Align::Left, kind),
        Column::new(RecipeColumn::Params, "", Align::Right, 6),
        Column::new(RecipeColumn::Ranks, "", Align::Right, ranks),
        Column::rest(RecipeColumn::About, ""),
    ])
}

/// Returns the name of the file of a recipe without its extension.
pub fn stem(recipe: &RecipeView) -> &str {
    recipe.path.file_stem().unwrap_or(recipe.path.as_str())
}

fn line(model: &Model, recipe: &RecipeView, table: &Table<RecipeColumn>) -> Line<'static> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let is_chosen = selected(model).is_some_and(|chosen| chosen.path == recipe.path);
    let style = match &recipe.facts {
        _ if recipe.is_base() => theme.faint,
        _ if is_chosen => theme.strong,
        _ => Style::new(),
    };
    let margin = vec![table::pointer(model, is_chosen, false)];
    let name = || Span::styled(stem(recipe).to_owned(), style);
    let facts = match &recipe.facts {
        Ok(facts) => facts,
        Err(failure) => {
            let mark = symbols.states[StateKind::Failed as usize];
            let text = match recipe.is_base() {
                true => Span::styled(format!("base of {}", counted(recipe.bases, "recipe")), theme.faint),
                false => Span::styled(format!("{mark} {}", failure.why), theme.bad),
            };
            // The text has the room of all columns after the name.
            let mut line = table.line(model, margin, [name()]);
            line.spans.extend([Span::raw(" ".repeat(GAP)), text]);
            return line;
        }
    };
    let cell = |column: &Column<RecipeColumn>| match column.of {
        RecipeColumn::Name => name(),
        RecipeColumn::Kind => Span::styled(facts.kind.clone(), style),
        RecipeColumn::Params => Span::styled(facts.params.map_or_else(|| symbols.none.to_owned(), units::count), style),
        RecipeColumn::Ranks => Span::styled(counted(facts.ranks, "rank"), style),
        RecipeColumn::About => Span::styled(recipe.about.clone(), theme.faint),
    };
    table.line(model, margin, table.columns.iter().map(cell))
}
