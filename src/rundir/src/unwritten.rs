//! The lines that this process could not write, for instance because the disk is full.

use crate::{ErrorCode, now_s};
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines that could not be written. They are kept in memory and written when that is possible again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unwritten {
    /// Since when, Unix seconds.
    pub since_s: f64,
    /// The file, or one of several.
    pub path: Utf8PathBuf,
    /// The kind of the error.
    pub code: ErrorCode,
    /// The error of the newest attempt: `No space left on device (os error 28)`.
    pub why: String,
    /// The number of lines that are kept.
    pub lines: u64,
    /// The number of lines that were dropped, because too many were kept.
    pub lost: u64,
}

static FILES: Mutex<BTreeMap<Utf8PathBuf, Unwritten>> = Mutex::new(BTreeMap::new());

/// Returns the lines of all files that this process could not write; `None` if there are none.
pub fn unwritten() -> Option<Unwritten> {
    let files = files();
    let first = files.values().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
    let sum = |count: fn(&Unwritten) -> u64| files.values().map(count).sum();
    Some(Unwritten { lines: sum(|file| file.lines), lost: sum(|file| file.lost), ..first.clone() })
}

/// Records the result of writing to a file, of which `lines` lines are kept and `lost` were dropped.
pub(crate) fn record(path: &Utf8Path, error: Option<&io::Error>, lines: u64, lost: u64) {
    let mut files = files();
    match error {
        None => drop(files.remove(path)),
        Some(error) => {
            let since_s = files.get(path).map_or_else(now_s, |known| known.since_s);
            let code = ErrorCode::of_io(error);
            let unwritten = Unwritten { since_s, path: path.to_owned(), code, why: error.to_string(), lines, lost };
            files.insert(path.to_owned(), unwritten);
        }
    }
}

/// Forgets the lines of a file that is closed.
pub(crate) fn forget(path: &Utf8Path) {
    files().remove(path);
}

pub(crate) fn files() -> MutexGuard<'static, BTreeMap<Utf8PathBuf, Unwritten>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
