use serde::{Deserialize, Serialize};

use crate::{
    CheckpointPolicy, Command, Data, Env, Log, Mesh, Model, Optimizer, RecipeError, Remat, RunSettings, SCHEMA, Train,
    TrainerKind, load,
};

/// A complete, checked training configuration for one stage.
///
/// [`load`](crate::load()) and [`Recipe::from_table`] make one; whoever changes a field afterwards calls
/// [`Recipe::check`] again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Short name, part of the ids of its runs.
    pub name: String,
    /// What trains. Of a recipe for a command, only the keys that are [for it](crate::Key::is_for) mean anything.
    pub trainer: TrainerKind,
    /// The program that trains, where it is not the embedded trainer.
    pub command: Command,
    /// The environment of every rank.
    pub env: Env,
    /// The model and its input.
    pub model: Model,
    /// What to train on.
    pub data: Data,
    /// How long, how much at once, which parameters.
    pub train: Train,
    /// The optimizer and its schedules.
    pub optimizer: Optimizer,
    /// How the ranks are arranged.
    pub mesh: Mesh,
    /// What is kept instead of computed again.
    pub remat: Remat,
    /// When checkpoints are written.
    pub checkpoint: CheckpointPolicy,
    /// What is written while training.
    pub log: Log,
    /// When an attempt must end.
    pub run: RunSettings,
}

impl Recipe {
    /// Reads the recipe that a run directory holds.
    ///
    /// Keys that a newer program added are ignored, and keys that an older one did not know get their defaults.
    ///
    /// # Errors
    /// As [`load`](crate::load()), without files and lines.
    pub fn from_table(table: &toml::Table) -> Result<Recipe, RecipeError> {
        load::from_table(table)
    }

    /// Writes the recipe with every key that means something to its trainer, as [`Recipe::from_table`] reads it.
    pub fn to_table(&self) -> toml::Table {
        let mut table = toml::Table::try_from(self)
            .expect("every field of a recipe has a place in TOML: checked numbers fit 64 bits");
        for key in SCHEMA.iter().filter(|key| !key.is_for(self.trainer)) {
            let (section, name) = key.parts();
            if let Some(section) = table.get_mut(section).and_then(toml::Value::as_table_mut) {
                section.remove(name);
            }
        }
        table.retain(|_, value| value.as_table().is_none_or(|section| !section.is_empty()));
        table
    }

    /// Checks the range of every value and every rule between keys.
    ///
    /// # Errors
    /// Names the first broken rule with its arithmetic, and a change that would satisfy it.
    pub fn check(&self) -> Result<(), RecipeError> {
        load::from_table(&self.to_table()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use crate::load;

    #[test]
    fn a_changed_recipe_is_checked_again() {
        let recipe = load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe;
        let error = |change: fn(&mut crate::Recipe)| {
            let mut changed = recipe.clone();
            change(&mut changed);
            changed.check().unwrap_err().why
        };
        assert_eq!(recipe.check(), Ok(()));
        let no_ranks = error(|recipe| recipe.mesh.dp_shard = 0);
        assert_eq!(no_ranks, "mesh.dp_shard: expected a whole number from 1 to 100000, found the number 0");
        let uneven = error(|recipe| recipe.mesh.dp_shard = 3);
        assert!(uneven.ends_with("= 3: 4 / 3 leaves 1"), "{uneven}");
    }
}
