//! `run.toml`: the resolved recipe of a run. A launch writes it once.

use crate::files::{Versioned, read_toml, write_toml};
use crate::{Error, ErrorCode, Failure, RunDir, RunId, SCHEMA};
use camino::Utf8PathBuf;
use recipe::{JobKind, Length, Recipe, Task};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `run.toml`: everything that stays the same over all attempts of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The id of the run.
    pub id: RunId,
    /// The name that the user gave the run.
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
    /// The origin of the first attempt's weights.
    pub start: StartFrom,
    /// The run that trained those weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// The log that the run was imported from. An imported run has no processes, checkpoints or nodes here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
    /// The program that the run only watches. Another process started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// The recipe file that a training run was launched from. A stage has its curriculum instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_from: Option<LaunchedFrom>,
    /// The resolved recipe with every key; [`Run::recipe`] checks it.
    pub recipe: toml::Table,
}

impl Versioned for Run {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// The recipe file that a run was launched from, and its overrides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchedFrom {
    /// The absolute path of the file.
    pub recipe: Utf8PathBuf,
    /// The overrides as `section.key=value`, with absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<String>,
}

/// A program that a run watches without having started it (`vidtui attach`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The absolute path of its log, or of the folder with its event files.
    pub path: Utf8PathBuf,
    /// Its process on the node of the run. The run ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// All steps of the program; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// The log of another tool that a run was imported from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The file or folder.
    pub from: Utf8PathBuf,
    /// The tool: `TensorBoard` or `W&B`.
    pub tool: String,
    /// The settings in the log: a name and its value as JSON.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

/// The parent of a run: the run of the stage before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The id of the parent.
    pub run: RunId,
    /// The step of the parent whose weights were taken.
    pub step: u64,
}

/// The origin of weights, optimizer state and data position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StartFrom {
    /// New weights, initialized from the recipe's seed.
    Random,
    /// The weights of another stage; optimizer and data start from the beginning.
    Weights {
        /// A step directory.
        path: Utf8PathBuf,
    },
    /// A resume: weights, optimizer and data position.
    Checkpoint {
        /// The run that saved it.
        run: RunId,
        /// The step it was saved at.
        step: u64,
    },
    /// Weights and optimizer. The data start from the beginning, because the data set or the global batch changed.
    CheckpointFreshData {
        /// The run that saved it.
        run: RunId,
        /// The step it was saved at.
        step: u64,
    },
}

impl Run {
    /// Returns the job of the run.
    pub fn job(&self) -> JobKind {
        // Called for each run of a list, so the recipe is not parsed.
        JobKind::of_table(&self.recipe)
    }

    /// Returns whether a command of the user trains, instead of the embedded trainer.
    pub fn is_command(&self) -> bool {
        self.job() == JobKind::Command
    }

    /// Returns the task of the run's ranks. The task of a command is training.
    pub fn task(&self) -> Task {
        self.job().task().unwrap_or(Task::Train)
    }

    /// Returns the length of the run in its recipe; `None` if the task has none.
    pub fn length(&self) -> Option<Length> {
        Length::of_table(&self.recipe)
    }

    /// Returns whether ranks work independently, so that the end of one does not end the run.
    pub fn is_independent(&self) -> bool {
        !self.task().ranks_depend_on_each_other()
    }

    /// Checks that the run was started here, so that it can be resumed or signalled.
    ///
    /// * `what` — what the error names as failed, such as `cannot resume`.
    ///
    /// # Errors
    /// [`ErrorCode::RunImported`] if the run was imported.
    pub fn refuse_if_imported(&self, what: impl Into<String>) -> Result<(), Failure> {
        let Some(Imported { from, tool, .. }) = &self.imported else { return Ok(()) };
        let why = format!(
            "the run was imported from the {tool} log {from}: it has metrics only, no processes or checkpoints"
        );
        let fix = "start a new run: `vidtui launch RECIPE`";
        Err(Failure::new(ErrorCode::RunImported, what, why, fix))
    }

    /// Checks that the run has not only watched a program that another process started.
    ///
    /// * `what` — what the error names as failed, such as `cannot resume`.
    ///
    /// # Errors
    /// [`ErrorCode::RunAttached`] if it has.
    pub fn refuse_if_attached(&self, what: impl Into<String>) -> Result<(), Failure> {
        let Some(Attached { path, .. }) = &self.attached else { return Ok(()) };
        let why = format!("the run watches {path}, and another process started the program");
        let fix = format!("watch it again: `vidtui attach {path}`");
        Err(Failure::new(ErrorCode::RunAttached, what, why, fix))
    }

    /// Returns whether the steps of the run are not logged: a command trains, and its log is not read, or no steps were recognized in it.
    ///
    /// * `last` — the newest logged step; 0 if there is none.
    pub fn is_stepless(&self, last: u64) -> bool {
        if self.imported.is_some() || !self.is_command() {
            return false;
        }
        match self.recipe.get("command").and_then(|command| command.get("adapter")?.as_str()) {
            None | Some("auto") => last == 0,
            Some(adapter) => adapter == "none",
        }
    }

    /// Parses the recipe and checks every rule again.
    ///
    /// # Errors
    /// [`Error::Recipe`] with the rule that is broken.
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
    use crate::fixtures::{run, run_id, temp};

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let (_keep, dir) = temp();
        let lineage = Some(Lineage { run: run_id(), step: 40 });
        let start = StartFrom::Weights { path: "/runs/a/checkpoints/step-00000040".into() };
        let launched_from = LaunchedFrom { recipe: "/a/lora.toml".into(), sets: vec!["train.steps=2".into()] };
        let of_recipe = Run { launched_from: Some(launched_from), ..run() };
        for written in [run(), of_recipe, Run { lineage, start, curriculum: Some("demo.toml".into()), ..run() }] {
            dir.write_run(&written).unwrap();
            assert_eq!(dir.read_run().unwrap(), written);
        }
    }

    #[test]
    fn only_an_imported_run_is_refused_and_it_has_steps() {
        assert_eq!(run().refuse_if_imported("cannot resume"), Ok(()));
        let mut imported = run();
        imported.imported = Some(Imported { from: "/logs/old".into(), tool: "W&B".into(), config: BTreeMap::new() });
        imported.recipe.insert("trainer".into(), toml::Value::String("command".into()));
        assert!(!imported.is_stepless(0));
        let failure = imported.refuse_if_imported("cannot resume").unwrap_err();
        assert_eq!(failure.code, ErrorCode::RunImported);
        assert!(failure.why.contains("/logs/old"), "{failure}");
    }

    #[test]
    fn a_command_is_stepless_if_its_log_is_not_read_or_has_no_steps() {
        let mut command = run();
        command.recipe.insert("trainer".into(), toml::Value::String("command".into()));
        for (adapter, stepless) in [("none", [true, true]), ("auto", [true, false]), ("open_sora", [false, false])] {
            let section = toml::Table::from_iter([("adapter".to_owned(), toml::Value::String(adapter.into()))]);
            command.recipe.insert("command".into(), toml::Value::Table(section));
            assert_eq!([0, 3].map(|last| command.is_stepless(last)), stepless, "{adapter}");
        }
        assert!(!run().is_stepless(0));
    }

    #[test]
    fn every_origin_of_weights_has_its_name_on_disk() {
        let toml = |start: StartFrom| toml::to_string(&start).unwrap();
        assert_eq!(toml(StartFrom::Random), "kind = \"random\"\n");
        let fresh = toml(StartFrom::CheckpointFreshData { run: run_id(), step: 4 });
        assert_eq!(fresh, "kind = \"checkpoint_fresh_data\"\nrun = \"2026-11-20T0340-demo-2s-k7f2\"\nstep = 4\n");
    }

    #[test]
    fn the_recipe_of_a_run_is_checked_when_it_is_read() {
        assert_eq!(run().recipe().unwrap().train.length, recipe::Length::Steps(20));
        let mut broken = run();
        broken.recipe["train"]["steps"] = toml::Value::String("many".into());
        let failure = Failure::from(broken.recipe().unwrap_err());
        assert_eq!(failure.code, ErrorCode::InvalidRecipe);
        assert!(failure.what.contains("2026-11-20T0340-demo-2s-k7f2/run.toml"), "{failure}");
        assert!(failure.why.contains("train.steps"), "{failure}");
    }
}
