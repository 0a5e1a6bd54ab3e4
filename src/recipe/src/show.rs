//! `vidtui recipe show`: a recipe as TOML, with the origin of each value.

use std::fmt::Write;

use crate::value::shown;
use crate::{JobKind, Key, Resolved, SCHEMA, SettingRow};

/// Returns the keys of a resolved recipe, such as that of a run, with their values as text, in the order of [`SCHEMA`]. A key that
/// the recipe lacks, because it is older than the key, has its default.
pub fn shown_settings(recipe: &toml::Table) -> Vec<(&'static str, String)> {
    let job = JobKind::of_table(recipe);
    let keys = SCHEMA.iter().filter(|key| key.path != "name" && key.is_for(job));
    keys.filter_map(|key| {
        let (section, name) = key.parts();
        let table = if section.is_empty() { Some(recipe) } else { recipe.get(section).and_then(toml::Value::as_table) };
        let value = table.and_then(|table| table.get(name)).cloned();
        let value = value.or_else(|| key.default_value())?;
        Some((key.path, shown(&value)))
    })
    .collect()
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
        let mut text = String::new();
        let mut current = "";
        for key in SCHEMA.iter().filter(|key| key.is_for(self.recipe.job())) {
            let (section, name) = key.parts();
            let Some(value) = self.value(key.path) else { continue };
            if section != current {
                text += &format!("\n[{section}]\n");
                current = section;
            }
            let value = shown(value);
            let line = format!("{name} = {value}");
            match self.origins.get(key.path).filter(|_| why) {
                Some(origin) => writeln!(text, "{line:<40} # {origin}"),
                None => writeln!(text, "{line}"),
            }
            .expect("writing to a string cannot fail");
        }
        text
    }

    /// Returns every key that the recipe's trainer reads, with its value and origin.
    pub fn rows(&self) -> Vec<SettingRow> {
        let keys = SCHEMA.iter().filter(|key| key.is_for(self.recipe.job()));
        let row = |key: &Key| {
            let (value, origin) = (shown(self.value(key.path)?), self.origins.get(key.path)?.clone());
            Some(SettingRow { key: key.path, value: Some(value), origin })
        };
        keys.filter_map(row).collect()
    }

    /// Returns the value of a key such as `optimizer.lr`.
    pub fn value(&self, key: &str) -> Option<&toml::Value> {
        match key.split_once('.') {
            None => self.table.get(key),
            Some((section, name)) => self.table.get(section)?.get(name),
        }
    }
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
