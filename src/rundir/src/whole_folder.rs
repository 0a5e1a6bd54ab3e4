//! A folder that exists completely or not at all.

use crate::Error;
use camino::{Utf8Path, Utf8PathBuf};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

/// A folder that is filled under a temporary name, then renamed.
///
/// Until [`WholeFolder::commit`] a folder at the final path is untouched.
#[derive(Debug, Clone)]
pub struct WholeFolder {
    dir: Utf8PathBuf,
    place: Utf8PathBuf,
}

impl WholeFolder {
    /// Describes a folder that is filled as `dir`, then renamed to `place` in the same parent. Creates nothing.
    pub fn new(dir: Utf8PathBuf, place: Utf8PathBuf) -> Self {
        Self { dir, place }
    }

    /// Describes a folder that is filled under a hidden name beside `place`, then renamed to `place`. Creates nothing.
    pub fn beside(place: &Utf8Path) -> Self {
        let name = place.file_name().unwrap_or("folder");
        Self { dir: parent(place).join(format!(".{name}.part")), place: place.to_owned() }
    }

    /// Returns the folder to write to.
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    /// Returns the final path.
    pub fn place(&self) -> &Utf8Path {
        &self.place
    }

    /// Creates the folder to write to, and removes the files of an interrupted attempt.
    ///
    /// If that attempt was interrupted while it replaced a folder, the old folder is restored, or removed if the new one is at
    /// the final path already.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn prepare(&self) -> Result<(), Error> {
        if self.place.exists() {
            remove(&self.aside())?;
        } else {
            move_if_there(&self.aside(), &self.place)?;
        }
        let list = |e| Error::io("list", &self.dir, e);
        fs::create_dir_all(&self.dir).map_err(|e| Error::io("create", &self.dir, e))?;
        for entry in self.dir.read_dir_utf8().map_err(list)? {
            let path = entry.map_err(list)?.into_path();
            let removed =
                if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|e| Error::io("remove", &path, e))?;
        }
        Ok(())
    }

    /// Returns the bytes that [`WholeFolder::prepare`] frees by removing the files of an interrupted attempt.
    pub fn left_over(&self) -> u64 {
        let aside = if self.place.exists() { held(&self.aside()) } else { 0 };
        held(&self.dir) + aside
    }

    /// Removes the files that were written so far.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn abandon(&self) -> Result<(), Error> {
        remove(&self.dir)
    }

    /// Renames the folder to its final path and replaces a folder there. Its files must have been synced.
    ///
    /// The old folder is renamed first and removed last, so that there is always a complete folder on the disk.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn commit(&self) -> Result<(), Error> {
        sync_dir(&self.dir)?;
        let aside = self.aside();
        remove(&aside)?;
        move_if_there(&self.place, &aside)?;
        fs::rename(&self.dir, &self.place).map_err(|e| Error::io("create", &self.place, e))?;
        sync_dir(parent(&self.place))?;
        remove(&aside)
    }

    /// Returns the temporary path of the old folder while it is being replaced.
    fn aside(&self) -> Utf8PathBuf {
        parent(&self.place).join(format!(".{}.replaced", self.place.file_name().unwrap_or("folder")))
    }
}

fn parent(path: &Utf8Path) -> &Utf8Path {
    path.parent().filter(|p| !p.as_str().is_empty()).unwrap_or(Utf8Path::new("."))
}

fn move_if_there(from: &Utf8Path, to: &Utf8Path) -> Result<(), Error> {
    match fs::rename(from, to) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("replace", from, e)),
        _ => Ok(()),
    }
}

fn remove(dir: &Utf8Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", dir, e)),
        _ => Ok(()),
    }
}

/// Returns the disk space of the files of a folder. Files with another hard link elsewhere and files that cannot be inspected do not
/// count.
fn held(dir: &Utf8Path) -> u64 {
    let files = dir.read_dir_utf8().into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.filter(|meta| meta.is_file() && meta.nlink() == 1).map(|meta| meta.blocks() * 512).sum()
}

fn sync_dir(dir: &Utf8Path) -> Result<(), Error> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("sync", dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_replaces_the_earlier_one_with_all_its_files() {
        let keep = tempfile::tempdir().unwrap();
        let place = Utf8Path::from_path(keep.path()).unwrap().join("out");
        for text in ["old", "new"] {
            let folder = WholeFolder::beside(&place);
            folder.prepare().unwrap();
            fs::write(folder.dir().join(text), text).unwrap();
            folder.commit().unwrap();
        }
        let names: Vec<_> = place.read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned()).collect();
        assert_eq!(names, ["new"]);
        assert_eq!(fs::read_dir(keep.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_replacement_that_was_interrupted_between_its_renames_is_reverted() {
        let keep = tempfile::tempdir().unwrap();
        let folder = WholeFolder::beside(&Utf8Path::from_path(keep.path()).unwrap().join("out"));
        fs::create_dir_all(folder.aside().join("old")).unwrap();
        folder.prepare().unwrap();
        assert!(folder.place().join("old").exists() && !folder.aside().exists());
    }

    #[test]
    fn a_replaced_folder_that_was_not_removed_counts_as_free_space_and_is_removed() {
        let keep = tempfile::tempdir().unwrap();
        let folder = WholeFolder::beside(&Utf8Path::from_path(keep.path()).unwrap().join("out"));
        for dir in [folder.aside(), folder.dir().to_owned()] {
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("half"), vec![1; 1 << 20]).unwrap();
            File::open(dir.join("half")).and_then(|file| file.sync_all()).unwrap();
        }
        fs::hard_link(folder.dir().join("half"), keep.path().join("elsewhere")).unwrap();
        assert_eq!(folder.left_over(), 0, "one would be restored, the other has another hard link");
        fs::create_dir(folder.place()).unwrap();
        assert!((1 << 20..3 << 19).contains(&folder.left_over()), "{}", folder.left_over());
        folder.prepare().unwrap();
        assert!(folder.place().exists() && !folder.aside().exists());
        assert_eq!(folder.left_over(), 0);
    }

    #[test]
    fn files_of_an_interrupted_attempt_are_removed_without_following_links() {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(keep.path()).unwrap();
        fs::create_dir_all(root.join("precious/inner")).unwrap();
        let folder = WholeFolder::beside(&root.join("out"));
        fs::create_dir_all(folder.dir().join("sub/folder")).unwrap();
        std::os::unix::fs::symlink(root.join("precious"), folder.dir().join("link")).unwrap();
        folder.prepare().unwrap();
        assert_eq!(fs::read_dir(folder.dir()).unwrap().count(), 0);
        assert!(root.join("precious/inner").exists());
    }
}
