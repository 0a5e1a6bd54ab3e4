//! Caches the `run.toml` of each run that has not ended, and the values of its recipe that the findings use.
//!
//! The console reads such runs every second. Without the cache, a quarter of its CPU time on a live run is spent on parsing the
//! recipe and computing its cost.

use crate::file_stamp::{FileStamp, stamp_of};
use rundir::{Error, Run, RunDir};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The cached runs.
#[derive(Default)]
pub struct KnownRuns {
    runs: Mutex<BTreeMap<RunDir, (FileStamp, Arc<KnownRun>)>>,
}

/// The contents of a `run.toml`.
pub struct KnownRun {
    /// The run.
    pub run: Run,
    values: OnceLock<Option<RecipeValues>>,
}

/// The values of a recipe that the findings use.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipeValues {
    /// The size of a checkpoint in bytes, computed.
    pub checkpoint_bytes: u64,
    /// The steps between two checkpoints.
    pub checkpoint_interval: u64,
    /// `log.spike`: how many median absolute deviations above the median a loss is a spike.
    pub spike: f64,
    /// `optimizer.lr`; `None` for a command.
    pub lr: Option<f64>,
    /// The data sets.
    pub data: Vec<String>,
}

impl KnownRun {
    /// Makes one from a run.
    pub fn new(run: Run) -> Self {
        Self { run, values: OnceLock::new() }
    }

    /// Returns the values of the recipe that the findings use; `None` if the recipe cannot be read, for example one of another version.
    pub fn values(&self) -> Option<&RecipeValues> {
        let values = self.values.get_or_init(|| {
            let recipe = self.run.recipe().ok()?;
            let checkpoint_bytes = recipe.cost().checkpoint_bytes;
            Some(RecipeValues {
                checkpoint_bytes,
                checkpoint_interval: recipe.checkpoint.interval,
                spike: recipe.log.spike,
                lr: (!self.run.is_command()).then_some(recipe.optimizer.lr),
                data: recipe.data.all().iter().map(|set| set.index.to_string()).collect(),
            })
        });
        values.as_ref()
    }
}

impl KnownRuns {
    /// Reads the `run.toml` of a run, unless the file is as it was at the last call.
    ///
    /// # Errors
    /// As [`RunDir::read_run`].
    pub fn read(&self, dir: &RunDir) -> Result<Arc<KnownRun>, Error> {
        let stamp = stamp_of(&dir.run_toml());
        let known = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(dir).cloned();
        if let Some((_, run)) = known.filter(|(known, _)| stamp.is_some() && *known == stamp) {
            return Ok(run);
        }
        let run = dir.read_run().inspect_err(|_| self.forget(dir))?;
        let run = Arc::new(KnownRun::new(run));
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.clone(), (stamp, run.clone()));
        Ok(run)
    }

    /// Drops a run from the cache.
    pub fn forget(&self, dir: &RunDir) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8PathBuf;

    #[test]
    fn a_run_is_read_again_only_after_its_file_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let dir =
            RunDir::new(Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap().join("2026-11-20T0340-a-k7f2"));
        let known = KnownRuns::default();
        assert!(known.read(&dir).is_err());
        std::fs::create_dir_all(&dir.root).unwrap();
        let run = rundir::fixtures::run();
        dir.write_run(&run).unwrap();
        let first = known.read(&dir).unwrap();
        assert!(Arc::ptr_eq(&first, &known.read(&dir).unwrap()));
        let recipe = run.recipe().unwrap();
        assert_eq!(first.values().unwrap().checkpoint_interval, recipe.checkpoint.interval);
        // The new name has another length, because two writes within a tick of the file system's clock have the same time.
        dir.write_run(&Run { name: "another-name".into(), ..run }).unwrap();
        assert_eq!(known.read(&dir).unwrap().run.name, "another-name");
        known.forget(&dir);
        assert!(!Arc::ptr_eq(&first, &known.read(&dir).unwrap()));
    }
}
