//! What is trained: `run.toml`, written once by whoever launches.

use crate::files::{Versioned, read_toml, write_toml};
use crate::{Error, RunDir, RunId, SCHEMA};
use camino::Utf8PathBuf;
use recipe::Recipe;
use serde::{Deserialize, Serialize};

/// `run.toml`: everything that stays the same over all attempts of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The run's name among all runs.
    pub id: RunId,
    /// The name people gave it.
    pub name: String,
    /// The curriculum file that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<Utf8PathBuf>,
    /// Its stage in that curriculum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// When it was created, Unix seconds.
    pub created_s: f64,
    /// The git commit of the folder it was launched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Hash of the trainer binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer_sha256: Option<String>,
    /// Version of the trainer.
    #[serde(default)]
    pub trainer_version: String,
    /// Version of libtorch.
    #[serde(default)]
    pub libtorch: String,
    /// Where the weights of the first attempt come from.
    pub start: StartFrom,
    /// The run that those weights were trained by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// The resolved recipe, every key; [`Run::recipe`] gives it checked.
    pub recipe: toml::Table,
}

impl Versioned for Run {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// The parent of a run: the stage before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The parent.
    pub run: RunId,
    /// The step of the parent whose weights were taken.
    pub step: u64,
}

/// Where weights, optimizer and data position come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StartFrom {
    /// New weights from the recipe's seed.
    Random,
    /// A new stage: weights only.
    Weights {
        /// A step directory.
        path: Utf8PathBuf,
    },
    /// Resume: weights, optimizer and data position.
    Checkpoint {
        /// The run that saved it.
        run: RunId,
        /// The step it was saved at.
        step: u64,
    },
    /// Weights and optimizer, but the data begin anew: data or number of ranks changed.
    CheckpointFreshData {
        /// The run that saved it.
        run: RunId,
        /// The step it was saved at.
        step: u64,
    },
}

impl Run {
    /// Tells whether a program of the user's own trains.
    pub fn is_command(&self) -> bool {
        // Asked for each run in a list, so the recipe is not read as a whole.
        self.recipe.get("trainer").and_then(toml::Value::as_str) == Some("command")
    }

    /// Tells whether nobody hears of its steps: it is a command's, whose log is not understood.
    pub fn is_stepless(&self) -> bool {
        let adapter = self.recipe.get("command").and_then(|command| command.get("adapter")?.as_str());
        self.is_command() && adapter.is_none_or(|adapter| adapter == "none")
    }

    /// The recipe, with every rule checked again.
    ///
    /// # Errors
    /// [`Error::Recipe`] with what the recipe's check said.
    pub fn recipe(&self) -> Result<Recipe, Error> {
        Recipe::from_table(&self.recipe).map_err(|e| Error::Recipe {
            path: Utf8PathBuf::from(self.id.as_str()).join("run.toml"),
            why: format!("{}: {}", e.what, e.why),
            fix: e.fix,
        })
    }
}

impl RunDir {
    /// Reads `run.toml`.
    ///
    /// # Errors
    /// As [`read_toml`].
    pub fn read_run(&self) -> Result<Run, Error> {
        read_toml(&self.run_toml())
    }

    /// Writes `run.toml`; the folder must exist.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_run(&self, run: &Run) -> Result<(), Error> {
        debug_assert_eq!(run.schema, SCHEMA);
        write_toml(&self.run_toml(), run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use crate::fixtures::{run, run_id, temp};

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let (_keep, dir) = temp();
        let lineage = Some(Lineage { run: run_id(), step: 40 });
        let start = StartFrom::Weights { path: "/runs/a/checkpoints/step-00000040".into() };
        for written in [run(), Run { lineage, start, curriculum: Some("demo.toml".into()), ..run() }] {
            dir.write_run(&written).unwrap();
            assert_eq!(dir.read_run().unwrap(), written);
        }
    }

    #[test]
    fn every_way_to_start_has_its_name_on_disk() {
        let toml = |start: StartFrom| toml::to_string(&start).unwrap();
        assert_eq!(toml(StartFrom::Random), "kind = \"random\"\n");
        let fresh = toml(StartFrom::CheckpointFreshData { run: run_id(), step: 4 });
        assert_eq!(fresh, "kind = \"checkpoint_fresh_data\"\nrun = \"2026-11-20T0340-demo-2s-k7f2\"\nstep = 4\n");
    }

    #[test]
    fn the_recipe_of_a_run_is_checked_when_it_is_read() {
        assert_eq!(run().recipe().unwrap().train.steps, 20);
        let mut broken = run();
        broken.recipe["train"]["steps"] = toml::Value::String("many".into());
        let failure = Failure::from(broken.recipe().unwrap_err());
        assert_eq!(failure.what, "the recipe in 2026-11-20T0340-demo-2s-k7f2/run.toml is not valid");
        assert!(failure.why.contains("train.steps"), "{failure}");
    }
}
