//! Detects whether a video has changed since `vidtui data check`: compares its size and modification time and, if these differ, the
//! hash of its bytes.

use crate::ExclusionReason;
use camino::Utf8Path;
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use xxhash_rust::xxh3::Xxh3;

/// The bytes that are read and hashed at a time.
const CHUNK: usize = 1 << 20;

/// The size and modification time of a file. If both are unchanged, the file counts as unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stamp {
    /// Size of the file.
    pub bytes: u64,
    /// The time of its last change, Unix nanoseconds; 0 if it is not known.
    pub modified_ns: i64,
}

impl Stamp {
    /// Reads the stamp of a file; returns the reason if the file cannot be a video.
    pub(crate) fn of(path: &Utf8Path) -> Result<Self, ExclusionReason> {
        let metadata = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ExclusionReason::VideoMissing,
            _ => ExclusionReason::Unreadable { why: error.to_string() },
        })?;
        match metadata.len() {
            _ if metadata.is_dir() => Err(ExclusionReason::NotAVideo { what: "it is a folder".into() }),
            0 => Err(ExclusionReason::VideoEmpty),
            bytes => {
                use std::os::unix::fs::MetadataExt;
                let modified_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
                Ok(Self { bytes, modified_ns })
            }
        }
    }
}

impl Stamp {
    /// Checks that a video still has the bytes with the hash `content`, and returns its present stamp. Reads the bytes only if the
    /// stamp differs. An empty `content` fits any bytes.
    ///
    /// # Errors
    /// The file cannot be read, or has other bytes.
    pub fn check(self, path: &Utf8Path, content: &str) -> Result<Self, Failure> {
        let now = Self::of(path).map_err(|reason| changed(path, format!("{}: {reason}", reason.title())))?;
        if now == self || content.is_empty() {
            return Ok(now);
        }
        let found = hash(path).map_err(|error| Failure::from(rundir::Error::io("read", path, error)))?;
        if found == content {
            return Ok(now);
        }
        Err(changed(path, format!("it had {} bytes, and now has {} with another hash", self.bytes, now.bytes)))
    }

    /// Checks that a video has not changed since its stamp was read.
    ///
    /// # Errors
    /// The video has changed.
    pub fn check_same(self, path: &Utf8Path) -> Result<(), Failure> {
        if Self::of(path).is_ok_and(|now| now == self) {
            return Ok(());
        }
        Err(changed(path, "it was written while it was decoded".into()))
    }
}

fn changed(path: &Utf8Path, why: String) -> Failure {
    let fix = "check the videos again with vidtui data check, then encode again with --retry-failed";
    Failure::new(ErrorCode::InvalidDataset, format!("{path} has changed since it was checked"), why, fix)
}

/// Hashes the bytes of a file.
pub(crate) fn hash(path: &Utf8Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(format!("{:032x}", hash.digest128())),
            n => hash.update(&chunk[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8PathBuf;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_file_that_was_touched_is_the_same_and_one_that_was_written_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("a.mp4")).unwrap();
        fs::write(&path, "frames").unwrap();
        let (stamp, content) = (Stamp::of(&path).unwrap(), hash(&path).unwrap());
        assert_eq!(stamp.check(&path, &content).unwrap(), stamp);
        let later = SystemTime::now() + Duration::from_secs(10);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let touched = stamp.check(&path, &content).unwrap();
        assert_ne!(touched, stamp);
        touched.check_same(&path).unwrap();
        // The same size.
        fs::write(&path, "FRAMES").unwrap();
        assert_eq!(stamp.check(&path, &content).unwrap_err().code, ErrorCode::InvalidDataset);
        assert_eq!(touched.check_same(&path).unwrap_err().code, ErrorCode::InvalidDataset);
        // A manifest of an earlier version has no time.
        let old = Stamp { bytes: 6, modified_ns: 0 };
        old.check(&path, &hash(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(stamp.check(&path, &content).unwrap_err().code, ErrorCode::InvalidDataset);
    }
}
