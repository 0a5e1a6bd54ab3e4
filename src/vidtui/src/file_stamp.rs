//! Detects that a file has changed, for caches of what was read from it.

use camino::Utf8Path;
use std::time::SystemTime;

/// Modification time and size of a file or folder. `None` if there is none.
pub type FileStamp = Option<(SystemTime, u64)>;

/// Returns the stamp of a file or folder.
pub fn stamp_of(file: &Utf8Path) -> FileStamp {
    let found = file.metadata().ok()?;
    Some((found.modified().ok()?, found.len()))
}
