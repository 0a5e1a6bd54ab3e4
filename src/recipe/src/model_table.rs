//! Reads and writes the `[model]` section on its own.

use toml::{Table, Value};

use crate::{Family, FamilyName, Model, RecipeError, RecipeErrorKind, value};

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
        let family = FamilyName::of_word(table.get("family").and_then(Value::as_str));
        for key in Model::KEYS.iter().chain(Family::keys(family)) {
            let name = key.parts().1;
            let error = |kind, why, fix| RecipeError::new(kind, "cannot use [model]", why, fix).key(key.path);
            let value = match table.get(name) {
                Some(given) => value::accept(key, given).map_err(|bad| {
                    error(RecipeErrorKind::InvalidValue, format!("{}: {}", key.path, bad.why), bad.fix)
                })?,
                None => key.default_value().ok_or_else(|| {
                    error(
                        RecipeErrorKind::MissingKey,
                        format!("{} is not set", key.path),
                        format!("set it: {}", key.doc),
                    )
                })?,
            };
            complete.insert(name.to_owned(), value);
        }
        Ok(Value::Table(complete).try_into().expect("the keys and the types are of one declaration"))
    }

    /// Returns the keys of the noise schedule and of positions in which the model differs from the `[model]` section of
    /// its weights: `snr_shift_scale from 3.0 to 1.0`. Training with such a difference works: the weights adapt to the
    /// new values.
    pub fn contradictions(&self, weights: &Table) -> Vec<String> {
        let Ok(weights) = Model::from_table(weights) else { return Vec::new() };
        let (was, is) = (weights.to_table(), self.to_table());
        // Compare bases only if the weights state one.
        let known = |key: &&str| !key.starts_with("base_") || was[*key].as_integer() != Some(0);
        let changed = self.family().adaptable_keys().iter().copied().filter(known).filter(|key| was[*key] != is[*key]);
        changed.map(|key| format!("{key} from {} to {}", was[key], is[key])).collect()
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
    fn keys_that_differ_from_those_of_the_weights_are_listed() {
        let weights = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe.model;
        let table = weights.with_cogvideox(|keys| keys.snr_shift_scale = 3.0).to_table();
        assert_eq!(weights.contradictions(&weights.to_table()), [""; 0]);
        assert_eq!(weights.contradictions(&table), ["snr_shift_scale from 3.0 to 1.0"]);
        let base = Model { base_height: 60, ..weights.clone() };
        assert_eq!(weights.contradictions(&base.to_table()), ["base_height from 60 to 0"]);
        assert_eq!(base.contradictions(&weights.to_table()), [""; 0]);
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
