//! The keys that a resume may change, and what each change does to the losses.

use crate::load::load_text;
use crate::{Key, Recipe, RecipeError};
use camino::Utf8Path;

/// The effect of a changed key on a run that continues from its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeEffect {
    /// The losses stay the same, bit for bit on CPUs.
    None,
    /// The losses stay the same up to rounding.
    Rounding,
    /// The losses differ from here on, because the training differs.
    Training,
    /// The samples of the steps change, so the data order has to restart (`--fresh-data`).
    Data,
    /// The tensors of the checkpoint or the meaning of its weights change, so that only a new run from its weights can have the value.
    /// The reason.
    Refused(&'static str),
    /// The run would do something else.
    OtherRun,
}

impl ResumeEffect {
    /// Returns the name of the effect in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ResumeEffect::None => "none",
            ResumeEffect::Rounding => "rounding",
            ResumeEffect::Training => "training",
            ResumeEffect::Data => "data",
            ResumeEffect::Refused(_) => "refused",
            ResumeEffect::OtherRun => "other-run",
        }
    }

    /// Returns the effect in words, as plans show it.
    pub fn in_words(self) -> &'static str {
        match self {
            ResumeEffect::None => "the losses stay the same",
            ResumeEffect::Rounding => "the losses stay the same up to rounding",
            ResumeEffect::Training => "the losses differ from here on",
            ResumeEffect::Data => "the data order restarts",
            ResumeEffect::Refused(why) => why,
            ResumeEffect::OtherRun => "it would be another run",
        }
    }
}

pub(crate) const WEIGHTS: ResumeEffect = ResumeEffect::Refused("the weights of the checkpoint belong to the old value");
pub(crate) const STATE: ResumeEffect =
    ResumeEffect::Refused("the checkpoint has the optimizer's state of the old value");
pub(crate) const TENSORS: ResumeEffect = ResumeEffect::Refused("the checkpoint has the tensors of the old value");

/// A key that a stage or a resume changes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// The key, such as `model.latent_frames`.
    pub key: String,
    /// The value before; `None` for the first stage.
    pub from: Option<String>,
    /// The new value.
    pub to: String,
}

/// A key that a resume changes.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeChange {
    /// The key with its old and its new value.
    pub change: Change,
    /// The effect of the change on the losses.
    pub effect: ResumeEffect,
}

impl Recipe {
    /// Returns the recipe with the `--set` flags in `sets` applied, and the keys that differ. `file` is the file of the recipe, for errors.
    ///
    /// # Errors
    /// When a flag is malformed, a key is unknown or does not apply to the task, or a rule between keys does not hold.
    pub fn with_sets(&self, file: &Utf8Path, sets: &[String]) -> Result<(Recipe, Vec<ResumeChange>), RecipeError> {
        let before = self.to_table();
        let flat = flattened(&before);
        let text = toml::to_string(&before).expect("a recipe has a TOML form");
        let changed = load_text(file, &text, sets)?.recipe;
        let after = flattened(&changed.to_table());
        let of = |(key, to): (String, String)| {
            let from = flat.iter().find(|(old, _)| *old == key).map(|(_, value)| value.clone());
            let differs = from.as_ref() != Some(&to);
            let effect = Key::find(&key).map_or(ResumeEffect::OtherRun, |key| key.on_resume);
            differs.then_some(ResumeChange { change: Change { key, from, to }, effect })
        };
        let changes = after.into_iter().filter_map(of).collect();
        Ok((changed, changes))
    }
}

/// Returns the keys of a recipe with their values as TOML.
fn flattened(table: &toml::Table) -> Vec<(String, String)> {
    let keys = |(section, value): (&String, &toml::Value)| match value {
        toml::Value::Table(keys) => {
            keys.iter().map(|(key, value)| (format!("{section}.{key}"), value.to_string())).collect()
        }
        value => vec![(section.clone(), value.to_string())],
    };
    table.iter().flat_map(keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal() -> Recipe {
        crate::load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe
    }

    #[test]
    fn a_recipe_of_the_project_without_sets_has_no_changes() {
        let folders =
            camino::Utf8Path::new("../../configs").read_dir_utf8().unwrap().map(|folder| folder.unwrap().into_path());
        let files = folders.flat_map(|folder| folder.read_dir_utf8().unwrap().map(|file| file.unwrap().into_path()));
        let recipes: Vec<Recipe> =
            files.filter_map(|file| crate::load(&file, &[]).ok()).map(|resolved| resolved.recipe).collect();
        assert!(recipes.len() > 30, "{}", recipes.len());
        for recipe in recipes {
            let (same, changes) = recipe.with_sets("run.toml".into(), &[]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((&same, changes), (&recipe, Vec::new()), "{}", recipe.name);
        }
    }

    #[test]
    fn sets_change_only_the_keys_that_they_name() {
        let sets = ["optimizer.lr=1e-5".to_owned(), "log.interval=7".to_owned(), "train.seed=42".to_owned()];
        let (recipe, changes) = minimal().with_sets("run.toml".into(), &sets).unwrap();
        assert_eq!((recipe.optimizer.lr, recipe.log.interval), (1e-5, 7));
        let of = |change: &ResumeChange| (change.change.key.clone(), change.change.to.clone(), change.effect);
        assert_eq!(
            changes.iter().map(of).collect::<Vec<_>>(),
            [
                ("log.interval".to_owned(), "7".to_owned(), ResumeEffect::None),
                ("optimizer.lr".to_owned(), "0.00001".to_owned(), ResumeEffect::Training),
            ]
        );
        assert_eq!(minimal().with_sets("run.toml".into(), &[]).unwrap(), (minimal(), Vec::new()));
        assert!(minimal().with_sets("run.toml".into(), &["optimizer.rate=1".into()]).is_err());
        assert!(minimal().with_sets("run.toml".into(), &["model.num_heads=3".into(), "mesh.tp=2".into()]).is_err());
    }
}
