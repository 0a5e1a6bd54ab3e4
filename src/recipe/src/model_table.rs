use toml::{Table, Value};

use crate::{Model, RecipeError, SCHEMA, value};

impl Model {
    /// Reads the `[model]` section of a recipe on its own, as files beside weights hold it.
    ///
    /// Keys that a newer program added are ignored, and keys that are missing get their defaults. Each value is checked,
    /// rules between keys are not: those are about a recipe.
    ///
    /// # Errors
    /// When a value does not fit its key, or a key without a default is missing.
    pub fn from_table(table: &Table) -> Result<Model, RecipeError> {
        let what = "cannot use [model]";
        let mut complete = Table::new();
        for key in SCHEMA {
            let ("model", name) = key.parts() else { continue };
            let value = match table.get(name) {
                Some(given) => value::accept(key, given)
                    .map_err(|bad| RecipeError::new(what, format!("{}: {}", key.path, bad.why), bad.fix))?,
                None => key.default.map(|preset| preset.value()).ok_or_else(|| {
                    RecipeError::new(what, format!("{} is not there", key.path), format!("set it: {}", key.doc))
                })?,
            };
            complete.insert(name.to_owned(), value);
        }
        let read = Value::Table(complete).try_into();
        read.map_err(|e: toml::de::Error| {
            RecipeError::new(what, e.to_string(), "this is a mistake in vidtui: report it")
        })
    }

    /// Writes the `[model]` section with every key, as [`Model::from_table`] reads it.
    pub fn to_table(&self) -> Table {
        Table::try_from(self).expect("every field of a model has a place in TOML: checked numbers fit 64 bits")
    }
}

#[cfg(test)]
mod tests {
    use crate::{Model, load};

    #[test]
    fn a_model_is_read_as_it_was_written() {
        let model = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        assert_eq!(Model::from_table(&model.to_table()), Ok(model.clone()));
        let mut newer = model.to_table();
        newer.insert("mood".into(), "good".into());
        newer.remove("norm_eps");
        assert_eq!(Model::from_table(&newer), Ok(model));
    }

    #[test]
    fn a_wrong_or_missing_value_is_named() {
        let model = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        let mut table = model.to_table();
        table.insert("num_layers".into(), (-1).into());
        let wrong = Model::from_table(&table).unwrap_err();
        assert_eq!(wrong.why, "model.num_layers: expected a whole number from 1 to 10000, found the number -1");
        table.remove("num_layers");
        assert_eq!(Model::from_table(&table).unwrap_err().why, "model.num_layers is not there");
    }
}
