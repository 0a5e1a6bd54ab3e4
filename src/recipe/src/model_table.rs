//! Reads and writes the `[model]` section on its own.

use toml::{Table, Value};

use crate::{Model, RecipeError, RecipeErrorKind, SCHEMA, value};

impl Model {
    /// Reads the `[model]` section of a recipe, which files beside weights contain.
    ///
    /// Unknown keys of newer versions are ignored, and missing keys get their defaults. Each value is checked; rules
    /// between keys are not, because they apply to a whole recipe.
    ///
    /// # Errors
    /// When a value is not valid, or a key without a default is missing.
    pub fn from_table(table: &Table) -> Result<Model, RecipeError> {
        let mut complete = Table::new();
        for key in SCHEMA {
            let ("model", name) = key.parts() else { continue };
            let error = |kind, why, fix| RecipeError::new(kind, "cannot use [model]", why, fix).key(key.path);
            let value = match table.get(name) {
                Some(given) => value::accept(key, given).map_err(|bad| {
                    error(RecipeErrorKind::InvalidValue, format!("{}: {}", key.path, bad.why), bad.fix)
                })?,
                None => key.default.map(|preset| preset.value()).ok_or_else(|| {
                    error(
                        RecipeErrorKind::MissingKey,
                        format!("{} is not set", key.path),
                        format!("set it: {}", key.doc),
                    )
                })?,
            };
            complete.insert(name.to_owned(), value);
        }
        Ok(Value::Table(complete).try_into().expect("SCHEMA and the type agree: a test in load.rs compares them"))
    }

    /// Returns the `[model]` section with every key, as [`Model::from_table`] reads it.
    pub fn to_table(&self) -> Table {
        Table::try_from(self).expect("every field of a model can be written as TOML: checked numbers fit 64 bits")
    }
}

#[cfg(test)]
mod tests {
    use crate::{Model, RecipeErrorKind, load};

    #[test]
    fn a_model_survives_a_round_trip() {
        let model = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        assert_eq!(Model::from_table(&model.to_table()), Ok(model.clone()));
        let mut newer = model.to_table();
        newer.insert("mood".into(), "good".into());
        newer.remove("norm_eps");
        assert_eq!(Model::from_table(&newer), Ok(model));
    }

    #[test]
    fn a_wrong_or_missing_value_names_its_key() {
        let model = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        let mut table = model.to_table();
        table.insert("num_layers".into(), (-1).into());
        let wrong = Model::from_table(&table).unwrap_err();
        assert_eq!(
            (wrong.kind, &wrong.keys[..]),
            (RecipeErrorKind::InvalidValue, &["model.num_layers".to_owned()][..])
        );
        table.remove("num_layers");
        let missing = Model::from_table(&table).unwrap_err();
        assert_eq!((missing.kind, missing.keys), (RecipeErrorKind::MissingKey, wrong.keys));
    }
}
