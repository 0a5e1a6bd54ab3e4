//! The healer of a run: the program that resumes it after failures. A lock makes sure that there is only one.

use crate::files::{Versioned, read_toml, write_toml};
use crate::{Error, RunDir};
use cluster::NodeId;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};

/// `healer`: who resumes the run after failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healer {
    /// [`crate::SCHEMA`].
    pub schema: u32,
    /// The machine that it runs on.
    pub node: NodeId,
    /// Its process.
    pub pid: u32,
}

/// The lock of the healer. The operating system releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct HealerLock {
    _file: File,
}

impl RunDir {
    /// Takes the lock of the healer. `None` if another process has it.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be made or locked.
    pub fn lock_healer(&self, healer: &Healer) -> Result<Option<HealerLock>, Error> {
        let path = self.healer_file().with_extension("lock");
        let io = |source| Error::Io { action: "lock", path: path.clone(), source };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(Error::Io { action: "lock", path, source }),
        }
        write_toml(&self.healer_file(), healer)?;
        Ok(Some(HealerLock { _file: file }))
    }

    /// Returns the healer, if a process has its lock.
    pub fn healer(&self) -> Option<Healer> {
        let file = File::open(self.healer_file().with_extension("lock")).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => read_toml(&self.healer_file()).ok(),
            _ => None,
        }
    }
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
