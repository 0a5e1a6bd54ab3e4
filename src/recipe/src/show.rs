//! `vidtui recipe show`: a recipe as TOML, with the origin of each value.

use std::fmt::Write;

use crate::value::shown;
use crate::{Key, Resolved, SCHEMA, SettingRow};

impl Resolved {
    /// Returns the recipe with every key, in the order of [`SCHEMA`], as TOML that [`load`](crate::load()) reads.
    ///
    /// With `why`, each line ends with the origin of its value.
    pub fn show(&self, why: bool) -> String {
        let mut text = String::new();
        let mut current = "";
        for key in SCHEMA.iter().filter(|key| key.is_for(self.recipe.task, self.recipe.trainer)) {
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
        let keys = SCHEMA.iter().filter(|key| key.is_for(self.recipe.task, self.recipe.trainer));
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
    fn the_shown_recipe_can_be_loaded() {
        let resolved = load(Utf8Path::new(LONG), &[]).unwrap();
        let again: toml::Table = toml::from_str(&resolved.show(false)).unwrap();
        assert_eq!(again, resolved.table);
    }
}
