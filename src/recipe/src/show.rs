//! `vidtui recipe show`: a recipe as TOML, with the origin of each value.

use std::fmt::Write;

use toml::{Table, Value};

use crate::value::shown;
use crate::{Key, Origin, Reader, Resolved, SCHEMA, SettingRow};

/// Returns a resolved recipe, such as that of a run, with the keys that its job reads. A key that the recipe lacks, because it is older
/// than the key, has its default.
pub fn completed(recipe: &Table) -> Table {
    let reader = Reader::of_table(recipe);
    let mut complete = Table::new();
    for key in SCHEMA.iter().filter(|key| key.is_for(reader)) {
        let Some(value) = value_at(recipe, key.path).cloned().or_else(|| key.default_value()) else { continue };
        let keys = match key.parts().0 {
            "" => &mut complete,
            section => {
                let section = complete.entry(section).or_insert_with(|| Table::new().into());
                section.as_table_mut().expect("only keys above all sections have other values")
            }
        };
        keys.insert(key.parts().1.to_owned(), value);
    }
    complete
}

/// Returns the keys of a resolved recipe, such as that of a run, with their values as text, in the order of [`SCHEMA`].
pub fn shown_settings(recipe: &Table) -> Vec<(&'static str, String)> {
    let complete = completed(recipe);
    let keys = SCHEMA.iter().filter(|key| key.path != "name");
    keys.filter_map(|key| Some((key.path, shown(value_at(&complete, key.path)?)))).collect()
}

/// Returns a recipe with every key, in the order of [`SCHEMA`], as TOML that [`load`](crate::load()) reads.
pub fn shown_recipe(recipe: &Table) -> String {
    text(recipe, |_| None)
}

/// Returns the keys that have a default, with the default as text, in the order of [`SCHEMA`].
pub fn default_settings() -> Vec<(&'static str, String)> {
    SCHEMA.iter().filter_map(|key| Some((key.path, key.default_text()?))).collect()
}

impl Resolved {
    /// Returns the recipe with every key, in the order of [`SCHEMA`], as TOML that [`load`](crate::load()) reads.
    ///
    /// With `why`, each line ends with the origin of its value.
    pub fn show(&self, why: bool) -> String {
        text(&self.table, |key| self.origins.get(key).filter(|_| why))
    }

    /// Returns every key that the recipe's trainer reads, with its value and origin.
    pub fn rows(&self) -> Vec<SettingRow> {
        let keys = SCHEMA.iter().filter(|key| key.is_for(self.recipe.reader()));
        let row = |key: &Key| {
            let (value, origin) = (shown(self.value(key.path)?), self.origins.get(key.path)?.clone());
            Some(SettingRow { key: key.path, value: Some(value), origin })
        };
        keys.filter_map(row).collect()
    }

    /// Returns the value of a key such as `optimizer.lr`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        value_at(&self.table, key)
    }
}

fn value_at<'a>(recipe: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        None => recipe.get(key),
        Some((section, name)) => recipe.get(section)?.get(name),
    }
}

/// Returns the keys that the job of a recipe reads as lines of TOML, each with the origin of its value, if there is one.
fn text<'a>(recipe: &Table, origin: impl Fn(&str) -> Option<&'a Origin>) -> String {
    let reader = Reader::of_table(recipe);
    let mut text = String::new();
    let mut current = "";
    for key in SCHEMA.iter().filter(|key| key.is_for(reader)) {
        let (section, name) = key.parts();
        let Some(value) = value_at(recipe, key.path) else { continue };
        if section != current {
            text += &format!("\n[{section}]\n");
            current = section;
        }
        let value = shown(value);
        let line = format!("{name} = {value}");
        match origin(key.path) {
            Some(origin) => writeln!(text, "{line:<40} # {origin}"),
            None => writeln!(text, "{line}"),
        }
        .expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use crate::load;

    const LONG: &str = "../../tests/fixtures/configs/valid/stages/long.toml";

    #[test]
    fn every_value_is_shown_with_its_origin() {
        let resolved = load(Utf8Path::new(LONG), &["train.seed=7".into()]).unwrap();
        let folder = resolved.recipe.data.index.parent().unwrap().as_str();
        let text = resolved.show(true).replace(folder, "/configs").replace("../../tests/fixtures/configs", "configs");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_recipe_without_keys_has_the_defaults() {
        let defaults = super::default_settings();
        let shown = super::shown_settings(&toml::Table::new());
        assert!(shown.len() > 50 && shown.iter().all(|setting| defaults.contains(setting)));
    }

    #[test]
    fn the_settings_of_an_old_recipe_have_defaults_and_those_of_a_command_are_its_own() {
        let resolved = load(Utf8Path::new(LONG), &[]).unwrap();
        let mut old = resolved.table.clone();
        old.get_mut("train").and_then(toml::Value::as_table_mut).unwrap().remove("remat");
        old.remove("ema");
        let mut rows: Vec<_> = resolved.rows().into_iter().map(|row| (row.key, row.value.unwrap())).collect();
        rows.retain(|(key, _)| *key != "name");
        let keys = |rows: &[(&'static str, String)]| rows.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(super::shown_settings(&resolved.table), rows);
        assert_eq!(keys(&super::shown_settings(&old)), keys(&rows));
        assert_eq!(super::completed(&resolved.table), resolved.table);
        assert_eq!(super::completed(&old)["ema"], resolved.table["ema"]);
        let command: toml::Table = toml::from_str("trainer = \"command\"\n[model]\nnum_layers = 4\n").unwrap();
        let settings = super::shown_settings(&command);
        assert!(settings.iter().all(|(key, _)| !key.starts_with("model.")), "{settings:?}");
    }

    #[test]
    fn the_shown_recipe_can_be_loaded() {
        let resolved = load(Utf8Path::new(LONG), &[]).unwrap();
        let again: toml::Table = toml::from_str(&resolved.show(false)).unwrap();
        assert_eq!(again, resolved.table);
    }
}
