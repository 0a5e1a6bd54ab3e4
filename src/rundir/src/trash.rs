//! The trash: deleted runs, in the folder `trash` beside the runs. No command lists or starts a run in it.

use crate::files::{Versioned, read_toml, write_toml};
use crate::layout::REMOVING;
use crate::trust::other_owner;
use crate::{Error, ErrorCode, Failure, RunDir, SCHEMA};
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The days after which a deleted run is removed.
pub const TRASH_DAYS: u32 = 7;

/// The file in the folder of a deleted run that records its deletion.
const DELETED: &str = "deleted.toml";

/// The trash of a folder of runs.
#[derive(Debug, Clone)]
pub struct Trash {
    runs: Utf8PathBuf,
    folder: Utf8PathBuf,
}

/// `trash/RUN/deleted.toml`: the user that deleted a run, and the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Deletion {
    schema: u32,
    /// Unix seconds.
    at_s: f64,
    /// The user, as `user@node`.
    by: String,
}

impl Versioned for Deletion {
    fn version(&self) -> u32 {
        self.schema
    }
}

/// A run in the trash.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeletedRun {
    /// The name of its folder: the id of the run.
    pub run: String,
    /// Its folder in the trash.
    pub dir: Utf8PathBuf,
    /// When it was deleted, Unix seconds; `None` if that is not recorded.
    pub deleted_s: Option<f64>,
    /// The user that deleted it, as `user@node`.
    pub by: Option<String>,
}

impl DeletedRun {
    /// Returns when it may be removed, Unix seconds; `None`: never on its own.
    pub fn expires_s(&self) -> Option<f64> {
        self.deleted_s.map(|at_s| at_s + f64::from(TRASH_DAYS) * 86_400.0)
    }
}

impl Trash {
    /// Returns the trash of a folder of runs.
    pub fn of(runs: &Utf8Path) -> Self {
        Self { runs: runs.to_owned(), folder: runs.join("trash") }
    }

    /// Lists the deleted runs, the one that was deleted first at the front.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn list(&self) -> Result<Vec<DeletedRun>, Error> {
        let entries = match self.folder.read_dir_utf8() {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("list", &self.folder, error)),
        };
        let is_run = |entry: &camino::Utf8DirEntry| {
            entry.file_type().is_ok_and(|kind| kind.is_dir()) && !entry.file_name().starts_with(REMOVING)
        };
        let folders = entries.flatten().filter(is_run);
        let mut runs: Vec<DeletedRun> = folders
            .map(|entry| {
                let deletion = read_toml::<Deletion>(&entry.path().join(DELETED)).ok();
                DeletedRun {
                    run: entry.file_name().to_owned(),
                    dir: entry.path().to_owned(),
                    deleted_s: deletion.as_ref().map(|deletion| deletion.at_s),
                    by: deletion.map(|deletion| deletion.by),
                }
            })
            .collect();
        runs.sort_by(|a, b| a.deleted_s.unwrap_or(0.0).total_cmp(&b.deleted_s.unwrap_or(0.0)).then(a.run.cmp(&b.run)));
        Ok(runs)
    }

    /// Moves a run into the trash. Returns its folder there.
    ///
    /// # Errors
    /// When the run is a link, the trash has a run of this name, or the folder cannot be moved.
    pub fn put(&self, run: &RunDir, by: &str, at_s: f64) -> Result<Utf8PathBuf, Failure> {
        let what = || format!("cannot delete {}", run.name());
        if run.root.is_symlink() {
            let (why, fix) = (format!("{} is a symbolic link", run.root), "remove the link yourself".to_owned());
            return Err(Failure::new(ErrorCode::InvalidArgument, what(), why, fix));
        }
        let to = self.folder.join(run.name());
        if to.symlink_metadata().is_ok() {
            let why = format!("{to} exists");
            return Err(Failure::new(
                ErrorCode::AlreadyExists,
                what(),
                why,
                "empty the trash: vidtui runs trash --empty",
            ));
        }
        fs::create_dir_all(&self.folder).map_err(|error| Error::io("create", &self.folder, error))?;
        let record = run.root.join(DELETED);
        write_toml(&record, &Deletion { schema: SCHEMA, at_s, by: by.to_owned() })?;
        if let Err(error) = fs::rename(&run.root, &to) {
            // The record alone means nothing, but the run is not deleted.
            let _ = fs::remove_file(&record);
            return Err(Error::io("move", &run.root, error).into());
        }
        Ok(to)
    }

    /// Moves a deleted run back.
    ///
    /// # Errors
    /// When there is a run of this name, or the folder cannot be moved.
    pub fn restore(&self, deleted: &DeletedRun) -> Result<RunDir, Failure> {
        let run = RunDir::new(self.runs.join(&deleted.run));
        if run.root.symlink_metadata().is_ok() {
            let (what, why) = (format!("cannot restore {}", deleted.run), format!("{} exists", run.root));
            return Err(Failure::new(ErrorCode::AlreadyExists, what, why, "rename that folder first"));
        }
        fs::rename(&deleted.dir, &run.root).map_err(|error| Error::io("move", &deleted.dir, error))?;
        let _ = fs::remove_file(run.root.join(DELETED));
        Ok(run)
    }

    /// Removes a deleted run for good.
    ///
    /// # Errors
    /// When the run belongs to another user, or its files cannot be removed.
    pub fn remove(&self, deleted: &DeletedRun) -> Result<(), Failure> {
        let owner = fs::symlink_metadata(&deleted.dir).map_err(|error| Error::io("read", &deleted.dir, error))?.uid();
        if let Some(owner) = other_owner(&deleted.dir, owner) {
            let (what, why) = (format!("cannot remove {}", deleted.dir), format!("it belongs to {owner}"));
            return Err(Failure::new(ErrorCode::PermissionDenied, what, why, "leave it to that user"));
        }
        // An interrupted removal leaves no run that could be restored with missing files.
        let aside = self.folder.join(format!("{REMOVING}{}", deleted.run));
        fs::rename(&deleted.dir, &aside).map_err(|error| Error::io("move", &deleted.dir, error))?;
        remove_folder(&aside)
    }

    /// Removes the runs of this user that were deleted more than [`TRASH_DAYS`] days ago. Returns their names. Runs that cannot be
    /// removed stay.
    pub fn remove_expired(&self, now_s: f64) -> Vec<String> {
        let entries = self.folder.read_dir_utf8().into_iter().flatten().flatten();
        for interrupted in entries.filter(|entry| entry.file_name().starts_with(REMOVING)) {
            // Those of another user stay.
            let _ = remove_folder(interrupted.path());
        }
        let expired = |deleted: &DeletedRun| deleted.expires_s().is_some_and(|at_s| at_s <= now_s);
        let all = self.list().unwrap_or_default().into_iter().filter(expired);
        all.filter(|deleted| self.remove(deleted).is_ok()).map(|deleted| deleted.run).collect()
    }
}

fn remove_folder(folder: &Utf8Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        // Another program may empty the trash at the same time.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", folder, error).into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{run, save, temp};

    /// Makes a folder of runs, and the paths of a run in it.
    fn in_folder() -> (tempfile::TempDir, RunDir) {
        let (keep, folder) = temp();
        (keep, RunDir::new(folder.root.join("2026-11-20T0340-demo-2s-k7f2")))
    }

    #[test]
    fn a_deleted_run_can_be_restored_until_its_days_are_over() {
        let (_keep, dir) = in_folder();
        fs::create_dir_all(&dir.root).unwrap();
        dir.write_run(&run()).unwrap();
        save(&dir, 20, 1);
        let trash = Trash::of(dir.root.parent().unwrap());
        assert_eq!(trash.list().unwrap(), []);
        let to = trash.put(&dir, "ada@ml-1", 1000.0).unwrap();
        assert!(!dir.root.exists() && to.join("run.toml").exists());
        let [deleted] = &trash.list().unwrap()[..] else { panic!("one run was deleted") };
        assert_eq!((deleted.run.as_str(), deleted.by.as_deref()), (dir.name(), Some("ada@ml-1")));
        assert_eq!(trash.remove_expired(1000.0 + 6.9 * 86_400.0), [""; 0]);
        assert_eq!(trash.restore(deleted).unwrap(), dir);
        assert!(dir.read_run().is_ok() && dir.step_dir(20).exists() && !dir.root.join(DELETED).exists());
        trash.put(&dir, "ada@ml-1", 1000.0).unwrap();
        assert_eq!(trash.remove_expired(1000.0 + 7.0 * 86_400.0), [dir.name()]);
        assert_eq!((trash.list().unwrap(), to.exists()), (Vec::new(), false));
    }

    #[test]
    fn nothing_is_overwritten_in_the_trash_or_beside_it() {
        let (_keep, dir) = in_folder();
        let trash = Trash::of(dir.root.parent().unwrap());
        fs::create_dir_all(&dir.root).unwrap();
        trash.put(&dir, "ada@ml-1", 1.0).unwrap();
        fs::create_dir_all(&dir.root).unwrap();
        assert_eq!(trash.put(&dir, "ada@ml-1", 1.0).unwrap_err().code, ErrorCode::AlreadyExists);
        let deleted = trash.list().unwrap().remove(0);
        assert_eq!(trash.restore(&deleted).unwrap_err().code, ErrorCode::AlreadyExists);
        let link = RunDir::new(dir.root.with_file_name("link"));
        std::os::unix::fs::symlink(&dir.root, &link.root).unwrap();
        assert_eq!(trash.put(&link, "ada@ml-1", 1.0).unwrap_err().code, ErrorCode::InvalidArgument);
        assert!(link.root.is_symlink() && dir.root.is_dir());
    }

    #[test]
    fn a_folder_without_a_record_is_never_removed_on_its_own() {
        let (_keep, dir) = in_folder();
        let trash = Trash::of(dir.root.parent().unwrap());
        fs::create_dir_all(trash.folder.join("kept")).unwrap();
        fs::create_dir_all(trash.folder.join("removing-a/checkpoints")).unwrap();
        assert_eq!(trash.list().unwrap().len(), 1);
        assert_eq!(trash.remove_expired(1e12), [""; 0]);
        assert!(!trash.folder.join("removing-a").exists(), "an interrupted removal is ended");
        trash.remove(&trash.list().unwrap()[0]).unwrap();
        assert_eq!(trash.list().unwrap(), []);
    }
}
