//! The cache of Python's `huggingface_hub`: blobs by hash, snapshots by commit, refs by name.
//!
//! ```text
//! models--zai-org--CogVideoX-5b/
//! ├── blobs/HASH, HASH.incomplete
//! ├── snapshots/COMMIT/vae/config.json -> ../../../blobs/HASH
//! └── refs/main                                the commit
//! ```
//!
//! The folder of a data set begins with `datasets--`.

use crate::kind::Kind;
use camino::{Utf8Path, Utf8PathBuf};
use failure::{ErrorCode, Failure, FileError};
use std::fs::{self, File};
use std::io;

/// The folder of one model or data set in the cache.
#[derive(Debug, Clone)]
pub struct Cache {
    hub: Utf8PathBuf,
    name: String,
}

impl Cache {
    /// Prepares access to the cache folder of a model or a data set such as `zai-org/CogVideoX-5b`. `hub` holds all of them.
    pub fn new(hub: &Utf8Path, kind: Kind, name: &str) -> Self {
        Self { hub: hub.to_owned(), name: format!("{}--{}", kind.plural(), name.replace('/', "--")) }
    }

    /// Returns the folder of the model or data set.
    pub fn folder(&self) -> Utf8PathBuf {
        self.hub.join(&self.name)
    }

    /// Returns the file with the bytes of a hash.
    pub fn blob(&self, hash: &str) -> Utf8PathBuf {
        self.folder().join("blobs").join(hash)
    }

    /// Returns the file that a download is written to.
    pub fn incomplete(&self, hash: &str) -> Utf8PathBuf {
        self.folder().join("blobs").join(format!("{hash}.incomplete"))
    }

    /// Returns the folder of a commit.
    pub fn snapshot(&self, commit: &str) -> Utf8PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// Returns the commit to which a revision pointed at the last download.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let known = fs::read_to_string(self.folder().join("refs").join(revision)).ok();
        let known = known.map(|text| text.trim().to_owned());
        known.or_else(|| self.snapshot(revision).is_dir().then(|| revision.to_owned()))
    }

    /// Records the commit of a revision.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), Failure> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision);
        create_parent(&path)?;
        let partial = self.folder().join(format!("refs/.{}.partial", std::process::id()));
        fs::write(&partial, commit).map_err(|error| FileError::io("write", &partial, error))?;
        fs::rename(&partial, &path).map_err(|error| FileError::io("write", &path, error).into())
    }

    /// Creates a file of a snapshot, which is a symbolic link to its blob.
    pub(crate) fn link(&self, commit: &str, file: &str, hash: &str) -> Result<(), Failure> {
        let path = self.snapshot(commit).join(file);
        create_parent(&path)?;
        let up = "../".repeat(file.matches('/').count() + 2);
        let target = format!("{up}blobs/{hash}");
        if fs::read_link(&path).is_ok_and(|found| found.as_os_str() == target.as_str()) {
            return Ok(());
        }
        let partial =
            path.with_file_name(format!(".{}.{}.partial", path.file_name().unwrap_or_default(), std::process::id()));
        let _ = fs::remove_file(&partial);
        std::os::unix::fs::symlink(&target, &partial)
            .map_err(|error| FileError::io("create the link", &partial, error))?;
        fs::rename(&partial, &path).map_err(|error| FileError::io("create the link", &path, error).into())
    }

    /// Acquires the lock that Python's `huggingface_hub` also holds while it downloads a blob. Dropping the
    /// file releases the lock.
    pub(crate) fn lock(&self, hash: &str) -> Result<File, Failure> {
        let path = self.hub.join(".locks").join(&self.name).join(format!("{hash}.lock"));
        create_parent(&path)?;
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|error| FileError::io("write", &path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(Failure::new(
                ErrorCode::AlreadyExists,
                format!("cannot download into {}", self.folder()),
                "another process is downloading the same file",
                "wait until it has ended, then run the command again",
            )),
            // On a network file system without locks, the last process to rename wins. That is safe, because every
            // process has verified its bytes.
            Err(fs::TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
            Err(fs::TryLockError::Error(error)) => Err(FileError::io("lock", &path, error).into()),
        }
    }
}

/// Creates the folder of a file.
pub(crate) fn create_parent(path: &Utf8Path) -> Result<(), Failure> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| FileError::io("create", folder, error).into())
}
