//! Saving a checkpoint so that it is there whole or not at all.

use crate::files::write_toml;
use crate::layout::step_files;
use crate::{Error, FileSum, Manifest, RunDir, TrainState, file_sum};
use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{self, File};
use std::io;

/// A checkpoint being saved, in a folder of its own beside the finished ones.
///
/// Every rank writes its files into [`Staging::dir`]; one of them calls [`Staging::prepare`] before and
/// [`Staging::commit`] after. Until the commit's rename the finished checkpoints are untouched, also one of the same step.
#[derive(Debug, Clone)]
pub struct Staging {
    run: RunDir,
    step: u64,
}

impl Staging {
    /// Names the staging folder of a step; touches nothing.
    pub fn new(run: &RunDir, step: u64) -> Self {
        Staging { run: run.clone(), step }
    }

    /// Where the ranks write.
    pub fn dir(&self) -> Utf8PathBuf {
        self.run.checkpoints().join(format!("saving-{:08}", self.step))
    }

    /// Makes an empty staging folder, removing what an interrupted save left.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn prepare(&self) -> Result<(), Error> {
        let dir = self.dir();
        remove(&dir)?;
        fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))
    }

    /// Removes the staging folder of a save that failed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn abandon(&self) -> Result<(), Error> {
        remove(&self.dir())
    }

    /// Writes state and manifest, then renames the folder into place; `manifest.files` lists the files of all ranks.
    ///
    /// Returns the finished folder and its size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Incomplete`] when the manifest does not describe whole tensors.
    pub fn commit(&self, state: &TrainState, mut manifest: Manifest) -> Result<(Utf8PathBuf, u64), Error> {
        let (dir, last) = (self.dir(), self.run.step_dir(self.step));
        write_toml(&dir.join(step_files::STATE), state)?;
        manifest.files.push(file_sum(&dir.join(step_files::STATE))?);
        manifest.check_slices().map_err(|why| Error::Incomplete { dir: dir.clone(), why })?;
        write_toml(&dir.join(step_files::MANIFEST), &manifest)?;
        sync_dir(&dir)?;
        replace(&dir, &last)?;
        sync_dir(&self.run.checkpoints())?;
        // What was replaced, if anything was.
        remove(&dir)?;
        Ok((last, manifest.files.iter().map(|f: &FileSum| f.bytes).sum()))
    }
}

/// Puts `new` in the place of `old`, which may not exist. Where the system can, both change places at once, so that
/// there is no moment without either.
fn replace(new: &Utf8Path, old: &Utf8Path) -> Result<(), Error> {
    let swapped = renameat2(AT_FDCWD, new.as_std_path(), AT_FDCWD, old.as_std_path(), RenameFlags::RENAME_EXCHANGE);
    match swapped {
        Ok(()) => Ok(()),
        Err(Errno::ENOENT) => fs::rename(new, old).map_err(|e| Error::io("create", old, e)),
        // Some network file systems cannot swap.
        Err(_) => remove(old).and_then(|()| fs::rename(new, old).map_err(|e| Error::io("create", old, e))),
    }
}

fn remove(dir: &Utf8Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", dir, e)),
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Utf8Path) -> Result<(), Error> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("sync", dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, RunId, SCHEMA, checkpoints, latest};
    use recipe::Mesh;

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
            bad_steps: 0,
        }
    }

    fn manifest(step: u64, attempt: u32) -> Manifest {
        Manifest {
            format: SCHEMA,
            run: RunId::parse("2026-11-20T0340-demo-k7f2").unwrap(),
            attempt,
            step,
            saved_s: 1.0,
            params: 0,
            mesh: Mesh { dp_replicate: 1, dp_shard: 1 },
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
    fn a_checkpoint_is_not_there_until_it_is_committed() {
        let (_keep, run) = run();
        let staging = Staging::new(&run, 40);
        staging.prepare().unwrap();
        fs::write(staging.dir().join("rank-00000.safetensors"), b"half").unwrap();
        assert!(checkpoints(&run).unwrap().is_empty());
        staging.commit(&state(40), manifest(40, 1)).unwrap();
        assert_eq!(latest(&run).unwrap().step, 40);
        assert!(!staging.dir().exists());
    }

    #[test]
    fn saving_a_step_again_replaces_it_only_when_the_new_one_is_whole() {
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
    fn what_an_interrupted_save_left_does_not_disturb_the_next() {
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
