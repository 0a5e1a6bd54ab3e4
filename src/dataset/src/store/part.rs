//! Part files: a file to which a worker appends tensors, and a journal with one line for each complete item.
//!
//! The line is written after the tensors, so an item is complete if its line is. A crash of the worker loses at most the item that
//! was being written. After a crash of the node, the file system may have lost tensors that were written before the line, so lines
//! have checksums of their tensors.

use super::index::{cannot_write, unreadable};
use crate::TensorSum;
use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use rundir::{Failure, open_regular, read_regular};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weights::Dtype;

/// A tensor to store.
#[derive(Debug, Clone, Copy)]
pub struct NewTensor<'a> {
    /// The role of the tensor: empty for the latent or the text itself, otherwise a role such as `image`.
    pub role: &'a str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its little-endian bytes.
    pub bytes: &'a [u8],
}

/// An interface for writes to a disk. Tests replace it with disks that are full or fail.
pub trait Disk: Debug + Send + Sync {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// As [`FileExt::write_all_at`]; a part of the bytes may be written.
    fn write_all_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()>;
}

/// The real disk.
#[derive(Debug, Clone, Copy)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn write_all_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }
}

/// A line of a journal: an item that was stored or failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The key of the item.
    pub key: String,
    /// The part file, relative to `work/`.
    pub part: String,
    /// The tensors of the item; empty if it failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<Piece>,
    /// The times of the chosen frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<f64>,
    /// Why the item could not be encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A tensor in a part file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub begin: u64,
    pub len: u64,
    /// The checksum of the bytes; `None` for a hash of 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<TensorSum>,
}

/// A part file that this worker writes.
#[derive(Debug)]
pub(super) struct Part {
    disk: Arc<dyn Disk>,
    name: String,
    path: Utf8PathBuf,
    journal_path: Utf8PathBuf,
    tensors: File,
    journal: File,
    tensors_end: u64,
    journal_end: u64,
}

impl Part {
    /// Creates a part and its journal. `name` is relative to `work`, without an extension.
    pub fn create(work: &Utf8Path, name: &str, disk: Arc<dyn Disk>) -> Result<Self, Failure> {
        let create = |path: &Utf8Path| {
            OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| cannot_write(path, &e))
        };
        let file_name = format!("{name}.part");
        let (path, journal_path) = (work.join(&file_name), work.join(format!("{name}.jsonl")));
        Ok(Self {
            disk,
            tensors: create(&path)?,
            journal: create(&journal_path)?,
            name: file_name,
            path,
            journal_path,
            tensors_end: 0,
            journal_end: 0,
        })
    }

    /// Appends an item: its tensors, then its line in the journal. After an error, the next item overwrites the partial bytes.
    pub fn commit(&mut self, key: &str, times: &[f64], tensors: &[NewTensor]) -> Result<Entry, Failure> {
        let (mut at, mut pieces) = (self.tensors_end, Vec::with_capacity(tensors.len()));
        for tensor in tensors {
            let written = self.disk.write_all_at(&self.tensors, tensor.bytes, at);
            written.map_err(|e| cannot_write(&self.path, &e))?;
            let len = tensor.bytes.len() as u64;
            pieces.push(Piece {
                role: tensor.role.to_owned(),
                dtype: tensor.dtype.name().to_owned(),
                shape: tensor.shape.to_vec(),
                begin: at,
                len,
                sum: TensorSum::of(tensor.bytes),
            });
            at += len;
        }
        let entry = Entry {
            key: key.to_owned(),
            part: self.name.clone(),
            tensors: pieces,
            times: times.to_vec(),
            failure: None,
        };
        self.log(&entry)?;
        self.tensors_end = at;
        Ok(entry)
    }

    /// Records that an item failed.
    pub fn fail(&mut self, key: &str, failure: Failure) -> Result<Entry, Failure> {
        let entry = Entry {
            key: key.to_owned(),
            part: self.name.clone(),
            tensors: Vec::new(),
            times: Vec::new(),
            failure: Some(failure),
        };
        self.log(&entry)?;
        Ok(entry)
    }

    /// Syncs tensors and journal to the disk.
    pub fn sync(&self) -> Result<(), Failure> {
        self.tensors.sync_data().map_err(|e| cannot_write(&self.path, &e))?;
        self.journal.sync_data().map_err(|e| cannot_write(&self.journal_path, &e))
    }

    fn log(&mut self, entry: &Entry) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(entry).expect("an entry has a JSON form");
        line.push(b'\n');
        let written = self.disk.write_all_at(&self.journal, &line, self.journal_end);
        written.map_err(|e| {
            // Truncate, so that the rest of a longer partial line cannot follow the next line.
            let _ = self.journal.set_len(self.journal_end);
            cannot_write(&self.journal_path, &e)
        })?;
        self.journal_end += line.len() as u64;
        Ok(())
    }
}

/// Whether the tensors of entries are compared with their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verify {
    /// Compares the checksums.
    Sums,
    /// Trusts the entries, because their tensors were synced before the entries were written.
    Nothing,
}

/// Returns the complete items of a journal. A torn last line, and items whose bytes are missing or differ, are left
/// out.
pub(super) fn read_journal(work: &Utf8Path, journal: &Utf8Path, verify: Verify) -> Result<Vec<Entry>, Failure> {
    let text = read_regular(journal, u64::MAX).map_err(|e| unreadable(journal, &e))?;
    let whole = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let mut entries = Vec::new();
    for line in whole {
        let Ok(entry) = serde_json::from_slice::<Entry>(line) else { break };
        // The part is a file below `work/`.
        if !Utf8Path::new(&entry.part).components().all(|part| matches!(part, Utf8Component::Normal(_))) {
            continue;
        }
        if verify == Verify::Nothing || is_intact(work, &entry) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// Returns whether the bytes of an item have their recorded checksums.
fn is_intact(work: &Utf8Path, entry: &Entry) -> bool {
    let Ok(file) = open_regular(work.join(&entry.part)) else { return entry.tensors.is_empty() };
    let size = file.metadata().map_or(0, |meta| meta.len());
    entry.tensors.iter().all(|piece| {
        let fits = piece.begin.checked_add(piece.len).is_some_and(|end| end <= size);
        let mut bytes = vec![0; if fits { piece.len as usize } else { 0 }];
        fits && file.read_exact_at(&mut bytes, piece.begin).is_ok() && TensorSum::of(&bytes) == piece.sum
    })
}
