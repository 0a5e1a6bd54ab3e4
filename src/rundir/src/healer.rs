//! The healer of a run: the program that resumes the run after failures. A lock allows one healer per run.

use crate::files::{Versioned, read_toml, write_toml};
use crate::lock::{LockUsers, lock_holder, locked, open_lock};
use crate::{Error, RunDir};
use camino::Utf8Path;
use cluster::NodeId;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use text_file::open_regular;

/// The file `healer`: the process that resumes the run after failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healer {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The machine on which the process runs.
    pub node: NodeId,
    /// The process id.
    pub pid: u32,
}

/// The lock of the healer. The operating system releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct HealerLock {
    _file: File,
}

impl RunDir {
    /// Takes the lock of the healer. Returns `None` if another process has it.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be made or locked, [`Error::Locked`] when another user has locked it.
    pub fn lock_healer(&self, healer: &Healer) -> Result<Option<HealerLock>, Error> {
        lock_program(&self.healer_file(), healer)
    }

    /// Returns the healer, if a process has its lock.
    pub fn healer(&self) -> Option<Healer> {
        holder(&self.healer_file())
    }
}

/// Takes the lock beside `file` and writes to `file` which process has it. Returns `None` if another process of this user has it.
pub(crate) fn lock_program(file: &Utf8Path, program: &Healer) -> Result<Option<HealerLock>, Error> {
    let path = file.with_extension("lock");
    let io = |source| Error::io("lock", &path, source);
    let lock = open_lock(&path, LockUsers::Owner).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) if is_held_by_other_user(&path) => return Err(locked(&path)),
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path, source)),
    }
    write_toml(file, program)?;
    Ok(Some(HealerLock { _file: lock }))
}

/// Returns the program that has the lock beside `file`, if a process has it.
pub(crate) fn holder(file: &Utf8Path) -> Option<Healer> {
    let path = file.with_extension("lock");
    let is_locked = match open_regular(&path) {
        Ok(lock) => matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)) && !is_held_by_other_user(&path),
        // Only its owner can open it. Other users see the locks of this machine.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            lock_holder(&path).is_some() && !is_held_by_other_user(&path)
        }
        Err(_) => false,
    };
    if is_locked { read_toml(file).ok() } else { None }
}

/// Returns whether a process of another user than the owner of a lock file holds the lock. Readers can lock the files that earlier
/// versions made. Root may work for the owner.
fn is_held_by_other_user(lock: &Utf8Path) -> bool {
    let owner = fs::metadata(lock).ok().map(|lock| lock.uid());
    let holder = lock_holder(lock).and_then(|holder| holder.uid);
    holder.zip(owner).is_some_and(|(holder, owner)| holder != owner && holder != 0)
}

impl Versioned for Healer {
    fn version(&self) -> u32 {
        self.schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{node, temp};

    #[test]
    fn a_run_has_one_healer_at_a_time() {
        let (_keep, run) = temp();
        let healer = |pid| Healer { schema: crate::SCHEMA, node: node("ml-1"), pid };
        assert_eq!(run.healer(), None);
        let lock = run.lock_healer(&healer(7)).unwrap().unwrap();
        assert_eq!(run.healer(), Some(healer(7)));
        assert!(run.lock_healer(&healer(8)).unwrap().is_none());
        assert_eq!(run.healer(), Some(healer(7)), "the other did not replace it");
        drop(lock);
        assert_eq!(run.healer(), None);
        assert!(run.lock_healer(&healer(8)).unwrap().is_some());
    }
}
