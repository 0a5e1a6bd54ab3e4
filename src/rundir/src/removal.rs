//! Pins checkpoints, and removes them.

use crate::files::write_atomic;
use crate::layout::REMOVING;
use crate::{Error, RunDir};
use std::fs;
use std::io;

/// Pins a checkpoint, so that it stays when old checkpoints are removed.
///
/// # Errors
/// [`Error::File`].
pub fn pin_checkpoint(run: &RunDir, step: u64) -> Result<(), Error> {
    write_atomic(&run.pin_file(step), b"")
}

/// Unpins a checkpoint, so that it can be removed as old. Does nothing if it is not pinned.
///
/// # Errors
/// [`Error::File`].
pub fn unpin_checkpoint(run: &RunDir, step: u64) -> Result<(), Error> {
    let file = run.pin_file(step);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &file, error)),
        _ => Ok(()),
    }
}

/// Removes a checkpoint. The folder gets another name first, so that an interrupted removal leaves no step directory with
/// missing files. Also removes the folders of interrupted removals.
///
/// # Errors
/// [`Error::File`].
pub fn remove_checkpoint(run: &RunDir, step: u64) -> Result<(), Error> {
    let (folder, aside) = (run.step_dir(step), run.checkpoints().join(format!("{REMOVING}{step:08}")));
    remove_removed(run)?;
    fs::rename(&folder, &aside).map_err(|error| Error::io("remove", &folder, error))?;
    remove_removed(run)
}

/// Removes the folders that have been renamed for their removal.
fn remove_removed(run: &RunDir) -> Result<(), Error> {
    let all = run.checkpoints();
    let entries = all.read_dir_utf8().map_err(|error| Error::io("list", &all, error))?;
    for entry in entries.flatten().filter(|entry| entry.file_name().starts_with(REMOVING)) {
        match fs::remove_dir_all(entry.path()) {
            // Another program may remove the folder at the same time.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", entry.path(), error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{save, temp};
    use crate::{step_checkpoints, to_prune};

    #[test]
    fn a_pinned_checkpoint_is_kept_until_it_is_unpinned() {
        let (_keep, run) = temp();
        for step in [10, 20, 30] {
            save(&run, step, 1);
        }
        pin_checkpoint(&run, 10).unwrap();
        let pruned = || to_prune(&step_checkpoints(&run).unwrap(), 1, 0);
        assert_eq!(pruned(), [20]);
        unpin_checkpoint(&run, 10).unwrap();
        unpin_checkpoint(&run, 10).unwrap();
        assert_eq!(pruned(), [10, 20]);
    }

    #[test]
    fn a_removal_leaves_no_files_and_ends_interrupted_ones() {
        let (_keep, run) = temp();
        for step in [10, 20] {
            save(&run, step, 1);
        }
        fs::rename(run.step_dir(20), run.checkpoints().join("removing-00000020")).unwrap();
        assert_eq!(step_checkpoints(&run).unwrap().len(), 1);
        remove_checkpoint(&run, 10).unwrap();
        assert_eq!(fs::read_dir(run.checkpoints()).unwrap().count(), 0);
        assert!(remove_checkpoint(&run, 10).is_err());
    }
}
