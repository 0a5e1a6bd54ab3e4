//! Saves a checkpoint so that it exists completely or not at all.

use crate::files::{write_atomic, write_toml};
use crate::layout::step_files;
use crate::{CheckpointManifest, Error, FileSum, RunDir, TrainState, WholeFolder, file_sum};
use camino::{Utf8Path, Utf8PathBuf};

/// A checkpoint that is being saved, in a separate folder beside the complete ones.
///
/// One rank calls [`Staging::prepare`], then every rank writes its files into [`Staging::dir`], then one rank calls
/// [`Staging::seal`] and [`Staging::publish`]. Until then, complete checkpoints are untouched, even one of the same
/// step.
#[derive(Debug, Clone)]
pub struct Staging {
    folder: WholeFolder,
}

impl Staging {
    /// Describes the staging folder of a step; does not create it.
    pub fn new(run: &RunDir, step: u64) -> Self {
        let dir = run.checkpoints().join(format!("saving-{step:08}"));
        Staging { folder: WholeFolder::new(dir, run.step_dir(step)) }
    }

    /// Describes the staging folder of a checkpoint outside of any run, such as converted weights; does not create it.
    pub fn alone(place: &Utf8Path) -> Self {
        Staging { folder: WholeFolder::beside(place) }
    }

    /// Returns the folder that the ranks write to.
    pub fn dir(&self) -> Utf8PathBuf {
        self.folder.dir().to_owned()
    }

    /// Creates the staging folder and removes the files of an interrupted save.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn prepare(&self) -> Result<(), Error> {
        self.folder.prepare()
    }

    /// Removes the staging folder of a save that failed.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn abandon(&self) -> Result<(), Error> {
        self.folder.abandon()
    }

    /// Writes state and manifest; `manifest.files` lists the files of all ranks. Returns the size of the checkpoint in
    /// bytes.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Incomplete`] when the manifest does not describe whole tensors.
    pub fn seal(&self, state: &TrainState, mut manifest: CheckpointManifest) -> Result<u64, Error> {
        let dir = self.dir();
        write_toml(&dir.join(step_files::STATE), state)?;
        manifest.files.push(file_sum(&dir.join(step_files::STATE))?);
        manifest.check_slices().map_err(|why| Error::Incomplete { dir: dir.clone(), why })?;
        manifest.write(&dir)?;
        Ok(manifest.files.iter().map(|f: &FileSum| f.bytes).sum())
    }

    /// Renames a sealed checkpoint to its final path, and returns that path. It stays pinned if it replaces a pinned one.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn publish(&self) -> Result<Utf8PathBuf, Error> {
        if self.folder.place().join(step_files::PINNED).exists() {
            write_atomic(&self.dir().join(step_files::PINNED), b"")?;
        }
        self.folder.commit()?;
        Ok(self.folder.place().to_owned())
    }

    /// Seals and publishes the checkpoint; returns its folder and its size in bytes.
    ///
    /// # Errors
    /// As [`Staging::seal`] and [`Staging::publish`].
    pub fn commit(&self, state: &TrainState, manifest: CheckpointManifest) -> Result<(Utf8PathBuf, u64), Error> {
        let bytes = self.seal(state, manifest)?;
        Ok((self.publish()?, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::latest;
    use crate::{Checkpoint, RunId, SCHEMA, step_checkpoints};
    use recipe::Mesh;
    use std::fs;

    fn state(step: u64) -> TrainState {
        TrainState {
            step,
            samples_seen: step,
            epoch: 0,
            position: step,
            seed: 1,
            adam_step: step,
            global_batch: 1,
            data_fingerprint: "x".into(),
            data_order: String::new(),
            bad_steps: 0,
            ..TrainState::default()
        }
    }

    fn manifest(step: u64, attempt: u32) -> CheckpointManifest {
        CheckpointManifest {
            format: SCHEMA,
            run: RunId::parse("2026-11-20T0340-demo-k7f2").unwrap(),
            attempt,
            step,
            saved_s: 1.0,
            params: 0,
            mesh: Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 },
            base: None,
            same_as: None,
            files: vec![],
            tensors: vec![],
        }
    }

    fn run() -> (tempfile::TempDir, RunDir) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::new(Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap());
        (folder, run)
    }

    #[test]
    fn a_checkpoint_does_not_exist_until_it_is_committed() {
        let (_keep, run) = run();
        let staging = Staging::new(&run, 40);
        staging.prepare().unwrap();
        fs::write(staging.dir().join("rank-00000.safetensors"), b"half").unwrap();
        assert!(step_checkpoints(&run).unwrap().is_empty());
        staging.commit(&state(40), manifest(40, 1)).unwrap();
        assert_eq!(latest(&run).unwrap().step, 40);
        assert!(!staging.dir().exists());
    }

    #[test]
    fn saving_a_step_twice_replaces_the_first_checkpoint_only_when_the_second_is_complete() {
        let (_keep, run) = run();
        let staging = Staging::new(&run, 40);
        staging.prepare().unwrap();
        staging.commit(&state(40), manifest(40, 1)).unwrap();
        staging.prepare().unwrap();
        assert_eq!(Checkpoint::open(&run.step_dir(40)).unwrap().manifest.attempt, 1);
        staging.commit(&state(40), manifest(40, 2)).unwrap();
        assert_eq!(Checkpoint::open(&run.step_dir(40)).unwrap().manifest.attempt, 2);
        assert_eq!(fs::read_dir(run.checkpoints()).unwrap().count(), 1);
    }

    #[test]
    fn a_checkpoint_that_replaces_a_pinned_one_is_pinned() {
        let (_keep, run) = run();
        let staging = Staging::new(&run, 40);
        let save = |attempt| {
            staging.prepare().unwrap();
            staging.commit(&state(40), manifest(40, attempt)).unwrap();
            latest(&run).unwrap().is_pinned
        };
        assert!(!save(1));
        crate::pin_checkpoint(&run, 40).unwrap();
        assert!(save(2));
    }

    #[test]
    fn files_of_an_interrupted_save_are_removed_before_the_next() {
        let (_keep, run) = run();
        let staging = Staging::new(&run, 40);
        staging.prepare().unwrap();
        fs::write(staging.dir().join("rank-00001.safetensors"), b"of another mesh").unwrap();
        staging.prepare().unwrap();
        assert_eq!(fs::read_dir(staging.dir()).unwrap().count(), 0);
        staging.abandon().unwrap();
        assert!(!staging.dir().exists());
    }
}
