//! `attempts/NNNN/attempt.toml`: one launch or resume of a run, and its Slurm job.

use crate::files::{Versioned, present, read_toml, write_toml};
use crate::{Error, RunDir, StartFrom};
use camino::Utf8PathBuf;
use cluster::slurm::SlurmSpec;
use cluster::{NodeId, Placement};
use recipe::{Length, Mesh, Recipe};
use serde::{Deserialize, Deserializer, Serialize};
use std::fs;
use std::io;

/// `attempt.toml`: the settings that may differ between two attempts of the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The number of the attempt: 1 for the launch, and one more for each later attempt.
    pub number: u32,
    /// Why the attempt was started.
    pub why: AttemptWhy,
    /// The user who started it, as `user@node`.
    pub by: String,
    /// When the attempt was started, Unix seconds.
    pub started_s: f64,
    /// The step that it continues from. If the checkpoint of that step is damaged, the trainer loads the one before it
    /// and records an event.
    pub start_step: u64,
    /// The origin of the weights.
    pub start: StartFrom,
    /// The step that the user chose to continue from. If its checkpoint is damaged, no other checkpoint is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_step: Option<u64>,
    /// The total steps of the run, if a resume raised them above `train.steps` of `run.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The keys of the recipe that this attempt changed. `run.toml` has their new values, except that of `train.steps`, which is `steps`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<ChangedKey>,
    /// The checkpoint folder from which the command of another trainer continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Utf8PathBuf>,
    /// The names of the checks that the user allowed to fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waived: Vec<String>,
    /// The mesh of the ranks. A resume may choose another mesh than `run.toml`.
    #[serde(deserialize_with = "known_axes")]
    pub mesh: Mesh,
    /// The placement of the ranks; empty until Slurm has allocated the nodes.
    pub placement: Placement,
    /// The SSH logins of the nodes; empty if the attempt was started only on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logins: Vec<Login>,
    /// The spare nodes. They have no ranks, and can replace a node that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<SpareNode>,
    /// The Slurm job of the attempt; `None` if the attempt was not submitted to Slurm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmJob>,
}

/// A key of the recipe that a resume changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedKey {
    /// The key, such as `optimizer.lr`.
    pub key: String,
    /// The value before, as TOML; `None` if the recipe did not have the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The value from this attempt on, as TOML.
    pub to: String,
}

/// A node without ranks that can replace a node that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareNode {
    /// The SSH login of the node.
    #[serde(flatten)]
    pub login: Login,
    /// The number of ranks that fit on the node.
    pub slots: usize,
}

/// The request to Slurm, and the job that Slurm created for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmJob {
    /// The job's number, once Slurm has assigned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// The resources that were requested.
    pub spec: SlurmSpec,
}

/// `job.toml`: the job of an attempt. It is a separate file because `attempt.toml` must exist before the job can begin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The job's number.
    pub job: u64,
    /// When the job was submitted, Unix seconds.
    pub submitted_s: f64,
}

impl Versioned for Submitted {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// `allocation.toml`: the placement of a job's ranks. The job writes it when it begins, because Slurm chooses the nodes
/// only then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The job's number.
    pub job: u64,
    /// When the job began, Unix seconds.
    pub began_s: f64,
    /// The placement of the ranks.
    pub placement: Placement,
}

impl Versioned for Allocation {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// The SSH login of a node. The user's SSH configuration supplies the fields that are `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Login {
    /// The node, by the host name that is passed to SSH.
    pub node: NodeId,
    /// The user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The port of its SSH server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl Login {
    /// Makes the login of a node from its name alone.
    pub fn by_name(node: NodeId) -> Self {
        Self { node, user: None, port: None }
    }
}

impl Attempt {
    /// Returns the recipe that the attempt executes: the recipe of its run with the mesh and the number of steps of the attempt.
    pub fn effective(&self, recipe: &Recipe) -> Recipe {
        let mut recipe = Recipe { mesh: self.mesh, ..recipe.clone() };
        recipe.train.length = self.steps.map_or(recipe.train.length, Length::Steps);
        recipe
    }

    /// Returns the SSH logins of the nodes: those of the hostfile, or Slurm's names of the nodes.
    pub fn ssh_logins(&self) -> Vec<Login> {
        match self.slurm {
            None => self.logins.clone(),
            Some(_) => self.placement.by_node().into_iter().map(|(node, _)| Login::by_name(node.clone())).collect(),
        }
    }
}

impl Versioned for Attempt {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// Reads a mesh and ignores axes that a newer version added. In a recipe, which a user writes, an unknown axis is an
/// error.
pub(crate) fn known_axes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mesh, D::Error> {
    #[derive(Deserialize)]
    struct Known {
        dp_replicate: usize,
        dp_shard: usize,
        #[serde(default = "one")]
        tp: usize,
    }
    fn one() -> usize {
        1
    }
    let Known { dp_replicate, dp_shard, tp } = Known::deserialize(deserializer)?;
    Ok(Mesh { dp_replicate, dp_shard, tp })
}

/// Why an attempt was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptWhy {
    /// The first attempt of a run.
    Launch,
    /// A user resumed the run.
    Resume,
    /// Slurm requeued the job of the run.
    Requeue,
    /// The previous attempt failed, and the recipe has `run.on_failure = "resume"`.
    Heal,
}

impl RunDir {
    /// Returns the numbers of all attempts, ascending. An attempt without `attempt.toml` counts, because its folder is the lock.
    ///
    /// # Errors
    /// [`Error::File`]; a missing folder is an empty list.
    pub fn attempt_numbers(&self) -> Result<Vec<u32>, Error> {
        let dir = self.attempts();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("list", &dir, e)),
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| Error::io("list", &dir, e))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.len() >= 4 && name.bytes().all(|b| b.is_ascii_digit()) {
                numbers.extend(name.parse::<u32>().ok());
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads an attempt. `job.toml` and `allocation.toml` supply the job and the placement of a Slurm attempt.
    ///
    /// # Errors
    /// As [`read_toml`].
    pub fn read_attempt(&self, number: u32) -> Result<Attempt, Error> {
        let mut attempt: Attempt = read_toml(&self.attempt_toml(number))?;
        let Some(slurm) = &mut attempt.slurm else { return Ok(attempt) };
        if attempt.placement.ranks.is_empty()
            && let Some(begun) = present(read_toml::<Allocation>(&self.allocation_toml(number)))?
        {
            (attempt.placement, slurm.job) = (begun.placement, Some(begun.job));
        } else if slurm.job.is_none() {
            slurm.job = present(read_toml::<Submitted>(&self.job_toml(number)))?.map(|submitted| submitted.job);
        }
        Ok(attempt)
    }

    /// Writes `job.toml`.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_submitted(&self, attempt: u32, submitted: &Submitted) -> Result<(), Error> {
        write_toml(&self.job_toml(attempt), submitted)
    }

    /// Writes `allocation.toml`.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_allocation(&self, attempt: u32, allocation: &Allocation) -> Result<(), Error> {
        write_toml(&self.allocation_toml(attempt), allocation)
    }

    /// Writes an attempt; its folder must exist.
    ///
    /// # Errors
    /// As [`write_toml`].
    pub fn write_attempt(&self, attempt: &Attempt) -> Result<(), Error> {
        write_toml(&self.attempt_toml(attempt.number), attempt)
    }

    /// Reads the newest attempt. Skips an attempt whose launch was interrupted before `attempt.toml` was written.
    ///
    /// # Errors
    /// As [`read_toml`], except for a missing file.
    pub fn latest_attempt(&self) -> Result<Option<Attempt>, Error> {
        for number in self.attempt_numbers()?.into_iter().rev() {
            match self.read_attempt(number) {
                Ok(attempt) => return Ok(Some(attempt)),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attempt, node, temp, write_attempt};

    #[test]
    fn an_attempt_is_read_as_it_was_written() {
        let (_keep, run) = temp();
        let spares = vec![SpareNode { login: Login::by_name(node("ml-3")), slots: 8 }];
        let written = Attempt { steps: Some(80), spares, ..attempt(2, 40, &["ml-1", "ml-2"]) };
        fs::create_dir_all(run.attempt_dir(2)).unwrap();
        run.write_attempt(&written).unwrap();
        assert_eq!(run.read_attempt(2).unwrap(), written);
    }

    #[test]
    fn an_attempt_executes_the_recipe_with_its_own_mesh_and_steps() {
        let recipe = crate::fixtures::run().recipe().unwrap();
        let mesh = Mesh { dp_replicate: 3, dp_shard: 2, tp: 1 };
        let longer = Attempt { steps: Some(80), mesh, ..attempt(2, 40, &["ml-1", "ml-2"]) };
        let effective = longer.effective(&recipe);
        assert_eq!((effective.mesh, effective.train.length), (mesh, Length::Steps(80)));
        let same = Attempt { steps: None, mesh: recipe.mesh, ..longer };
        assert_eq!(same.effective(&recipe), recipe);
    }

    #[test]
    fn an_attempt_is_read_with_its_job_and_then_with_its_nodes() {
        let (_keep, run) = temp();
        let spec = SlurmSpec::parse("nodes = 2\ngpus_per_node = 1\ntime = '10:00'").unwrap();
        let placed = attempt(1, 0, &["ml-1", "ml-2"]);
        let placement = Placement { ranks: Vec::new() };
        let waiting = Attempt { placement, slurm: Some(SlurmJob { job: None, spec: spec.clone() }), ..placed.clone() };
        fs::create_dir_all(run.attempt_dir(1)).unwrap();
        run.write_attempt(&waiting).unwrap();
        assert_eq!(run.read_attempt(1).unwrap(), waiting);
        run.write_submitted(1, &Submitted { schema: 1, job: 42, submitted_s: 1000.0 }).unwrap();
        let slurm = Some(SlurmJob { job: Some(42), spec });
        assert_eq!(run.read_attempt(1).unwrap(), Attempt { slurm: slurm.clone(), ..waiting });
        let placement = placed.placement.clone();
        run.write_allocation(1, &Allocation { schema: 1, job: 42, began_s: 1100.0, placement }).unwrap();
        assert_eq!(run.read_attempt(1).unwrap(), Attempt { slurm, ..placed });
    }

    #[test]
    fn the_latest_attempt_is_the_last_one_with_an_attempt_file() {
        let (_keep, run) = temp();
        assert_eq!(run.latest_attempt().unwrap(), None);
        write_attempt(&run, 9, 0);
        write_attempt(&run, 10, 40);
        // The console ended after it created the folder and before it wrote the file.
        fs::create_dir_all(run.attempt_dir(11)).unwrap();
        fs::create_dir_all(run.attempts().join("notes")).unwrap();
        assert_eq!(run.attempt_numbers().unwrap(), [9, 10, 11]);
        assert_eq!(run.latest_attempt().unwrap().unwrap().number, 10);
    }

    #[test]
    fn an_attempt_with_an_unknown_axis_of_the_mesh_is_read() {
        let (_keep, run) = temp();
        write_attempt(&run, 1, 0);
        let text = fs::read_to_string(run.attempt_toml(1)).unwrap();
        fs::write(run.attempt_toml(1), text.replace("[mesh]", "[mesh]\nstages = 4")).unwrap();
        assert_eq!(run.read_attempt(1).unwrap().mesh, Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 });
    }
}
