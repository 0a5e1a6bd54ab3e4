//! Detects whether a video has changed since `vidtui data check`: compares its size and modification time and, if these differ, the
//! hash of its bytes.

use crate::ExclusionReason;
use camino::Utf8Path;
use rundir::{ErrorCode, Failure, open_regular};
use serde::{Deserialize, Serialize};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use video::{Cancel, ClipError, ClipFault};
use xxhash_rust::xxh3::Xxh3;

/// The bytes that are read and hashed at a time.
const CHUNK: usize = 1 << 20;

/// The size and modification time of a file. If both are unchanged, the file counts as unchanged. Those of a folder of frames are the
/// size of all pictures, and the time of the last change of the folder or of a picture.
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
            _ if metadata.is_dir() => Self::of_frames(path, &metadata),
            // A pipe or a device, which also has 0 bytes.
            _ if !metadata.is_file() => Err(ExclusionReason::NotAVideo { what: "it is not a regular file".into() }),
            0 => Err(ExclusionReason::VideoEmpty),
            bytes => Ok(Self { bytes, modified_ns: modified_ns(&metadata) }),
        }
    }

    fn of_frames(folder: &Utf8Path, metadata: &Metadata) -> Result<Self, ExclusionReason> {
        let pictures = video::frame_files(folder).map_err(|ClipError { fault, failure }| match fault {
            ClipFault::NotAVideo => ExclusionReason::NotAVideo { what: failure.why },
            ClipFault::Unsupported => ExclusionReason::Unsupported { why: failure.why },
            _ => ExclusionReason::Unreadable { why: failure.why },
        })?;
        // The time of the folder changes when a picture is added, removed or renamed.
        let mut stamp = Self { bytes: 0, modified_ns: modified_ns(metadata) };
        for picture in pictures {
            let metadata = fs::metadata(&picture).map_err(|error| {
                let why = format!("its frame {}: {error}", picture.file_name().unwrap_or_default());
                ExclusionReason::Unreadable { why }
            })?;
            stamp.bytes = stamp.bytes.saturating_add(metadata.len());
            stamp.modified_ns = stamp.modified_ns.max(modified_ns(&metadata));
        }
        Ok(stamp)
    }
}

/// Returns the time of the last change in Unix nanoseconds.
fn modified_ns(metadata: &Metadata) -> i64 {
    use std::os::unix::fs::MetadataExt;
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
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
        if hash(path, &Cancel::default())? == content {
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

/// Hashes the bytes of a file; of a folder of frames, the hashes of its pictures in their order.
///
/// # Errors
/// A file cannot be read or is not a regular file; or the work was cancelled.
pub(crate) fn hash(path: &Utf8Path, cancel: &Cancel) -> Result<String, Failure> {
    let mut chunk = vec![0; CHUNK];
    let mut hash = |path: &Utf8Path| hash_file(path, &mut chunk, cancel);
    let digest = if path.is_dir() {
        let mut all = Xxh3::new();
        for picture in video::frame_files(path)? {
            let digest = hash(&picture).map_err(|failure| {
                let why = format!("its frame {}: {}", picture.file_name().unwrap_or_default(), failure.why);
                Failure { why, ..failure }
            })?;
            all.update(&digest.to_le_bytes());
        }
        all.digest128()
    } else {
        hash(path)?
    };
    Ok(format!("{digest:032x}"))
}

fn hash_file(path: &Utf8Path, chunk: &mut [u8], cancel: &Cancel) -> Result<u128, Failure> {
    let io = |error| Failure::from(rundir::Error::io("read", path, error));
    let mut file = open_regular(path).map_err(io)?;
    let mut hash = Xxh3::new();
    loop {
        if cancel.is_cancelled() {
            let what = format!("cannot read {path}");
            return Err(Failure::new(ErrorCode::Cancelled, what, "the work was cancelled", "start it again"));
        }
        match file.read(chunk).map_err(io)? {
            0 => return Ok(hash.digest128()),
            n => hash.update(&chunk[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8PathBuf;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    fn content_of(path: &Utf8Path) -> String {
        hash(path, &Cancel::default()).unwrap()
    }

    #[test]
    fn the_hash_of_a_pipe_is_not_waited_for_and_that_of_a_large_file_can_be_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Utf8PathBuf::from_path_buf(folder.path().join(name)).unwrap();
        mkfifo(at("pipe").as_std_path(), Mode::S_IRWXU).unwrap();
        assert!(matches!(Stamp::of(&at("pipe")), Err(ExclusionReason::NotAVideo { .. })));
        assert!(hash(&at("pipe"), &Cancel::default()).unwrap_err().why.contains("pipe"));
        fs::write(at("file"), "frames").unwrap();
        let cancel = Cancel::default();
        cancel.cancel();
        assert_eq!(hash(&at("file"), &cancel).unwrap_err().code, ErrorCode::Cancelled);
    }

    #[test]
    fn a_file_that_was_touched_is_the_same_and_one_that_was_written_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("a.mp4")).unwrap();
        fs::write(&path, "frames").unwrap();
        let (stamp, content) = (Stamp::of(&path).unwrap(), content_of(&path));
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
        old.check(&path, &content_of(&path)).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(stamp.check(&path, &content).unwrap_err().code, ErrorCode::InvalidDataset);
    }

    #[test]
    fn the_content_of_a_folder_of_frames_is_that_of_its_pictures_in_their_order() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().join("clip")).unwrap();
        fs::create_dir(&folder).unwrap();
        assert!(matches!(Stamp::of(&folder), Err(ExclusionReason::NotAVideo { .. })));
        let write = |name: &str, bytes: &str| fs::write(folder.join(name), bytes).unwrap();
        write("2.png", "second");
        write("10.png", "tenth");
        let (stamp, content) = (Stamp::of(&folder).unwrap(), content_of(&folder));
        assert_eq!((stamp.bytes, content.len()), (11, 32));
        assert_eq!(stamp.check(&folder, &content).unwrap(), stamp);
        // Without a time, the pictures are read. The clock of a file system may not tell these changes apart.
        let old = Stamp { modified_ns: 0, ..stamp };
        // Other files and other names in the same order do not change the clip.
        write("notes.txt", "blurred");
        fs::rename(folder.join("2.png"), folder.join("02.png")).unwrap();
        old.check(&folder, &content).unwrap();
        // The same pictures in another order are another clip.
        fs::rename(folder.join("02.png"), folder.join("11.png")).unwrap();
        assert_eq!(old.check(&folder, &content).unwrap_err().code, ErrorCode::InvalidDataset);
        fs::rename(folder.join("11.png"), folder.join("2.png")).unwrap();
        old.check(&folder, &content).unwrap();
        // So is a folder with a picture more, or with another picture of the same size.
        write("11.png", "");
        assert_eq!(old.check(&folder, &content).unwrap_err().code, ErrorCode::InvalidDataset);
        fs::remove_file(folder.join("11.png")).unwrap();
        write("2.png", "SECOND");
        let later = SystemTime::now() + Duration::from_secs(10);
        File::options().write(true).open(folder.join("2.png")).unwrap().set_modified(later).unwrap();
        assert_eq!(stamp.check_same(&folder).unwrap_err().code, ErrorCode::InvalidDataset);
        assert_eq!(stamp.check(&folder, &content).unwrap_err().code, ErrorCode::InvalidDataset);
    }
}
