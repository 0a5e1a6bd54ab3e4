//! The files of another trainer's checkpoint, and whether each is complete.
//!
//! None of these trainers marks a checkpoint as complete. vidtui checks the files that are written last, the files that
//! other files name, and the lengths that file headers contain.

use camino::{Utf8Path, Utf8PathBuf};
use rundir::{MAX_TEXT, is_no_answer, open_regular, read_regular};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::time::{Duration, UNIX_EPOCH};

/// The largest header that the safetensors format allows, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// The reason why a checkpoint cannot be loaded.
#[derive(Debug)]
pub(crate) enum Defect {
    /// A file is missing or damaged.
    Incomplete(String),
    /// A file could not be read: the error of the file system.
    Unreadable(String),
}

impl Defect {
    fn of_file(path: &Utf8Path, error: &io::Error) -> Self {
        let why = format!("{path}: {error}");
        if is_no_answer(error) { Self::Unreadable(why) } else { Self::Incomplete(why) }
    }
}

impl From<String> for Defect {
    fn from(why: String) -> Self {
        Self::Incomplete(why)
    }
}

impl From<&str> for Defect {
    fn from(why: &str) -> Self {
        Self::Incomplete(why.to_owned())
    }
}

/// The files of a checkpoint.
pub(crate) struct Contents {
    root: Utf8PathBuf,
    /// Whether the checkpoint is a single file, which is then the only one of `files`.
    pub is_file: bool,
    /// Sorted by path.
    pub files: Vec<FileEntry>,
    /// A file or folder that could not be inspected, and the file system's error.
    unread: Option<(Utf8PathBuf, io::Error)>,
}

/// One file of a checkpoint.
pub(crate) struct FileEntry {
    /// Relative to the checkpoint.
    pub path: Utf8PathBuf,
    pub bytes: u64,
    /// Unix seconds.
    pub modified_s: f64,
}

fn file_entry(path: Utf8PathBuf, meta: &fs::Metadata) -> FileEntry {
    let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    FileEntry { path, bytes: meta.len(), modified_s: modified.map_or(0.0, |since| since.as_secs_f64()) }
}

impl Contents {
    /// Lists the files below `root`, or `root` itself if it is a file.
    pub fn read(root: &Utf8Path) -> Self {
        let mut contents = Self { root: root.to_owned(), is_file: false, files: Vec::new(), unread: None };
        match fs::metadata(root) {
            Ok(meta) if meta.is_dir() => contents.walk(Utf8Path::new("")),
            Ok(meta) => {
                contents.is_file = true;
                let (folder, name) =
                    (root.parent().unwrap_or(Utf8Path::new(".")), root.file_name().unwrap_or_default());
                contents.root = folder.to_owned();
                contents.files.push(file_entry(name.into(), &meta));
            }
            Err(error) => contents.unread = Some((root.to_owned(), error)),
        }
        contents.files.sort_by(|a, b| a.path.cmp(&b.path));
        contents
    }

    fn walk(&mut self, below: &Utf8Path) {
        let entries = match self.root.join(below).read_dir_utf8() {
            Ok(entries) => entries,
            Err(error) => return self.unread = Some((below.to_owned(), error)),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.unread = Some((below.to_owned(), error)),
            };
            let path = below.join(entry.file_name());
            // Open-Sora writes videos that it samples from a checkpoint into its folder at any later time.
            if path == "eval" {
                continue;
            }
            match fs::metadata(entry.path()) {
                Ok(meta) if meta.is_dir() => self.walk(&path),
                Ok(meta) => self.files.push(file_entry(path, &meta)),
                // The file was removed after it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.unread = Some((path, error)),
            }
        }
    }

    /// Returns when the newest file was last changed, in Unix seconds.
    pub fn newest_s(&self) -> f64 {
        self.files.iter().map(|file| file.modified_s).fold(0.0, f64::max)
    }

    /// Returns when the oldest file was last changed, in Unix seconds.
    pub fn oldest_s(&self) -> f64 {
        self.files.iter().map(|file| file.modified_s).fold(f64::INFINITY, f64::min)
    }

    /// Returns whether the checkpoint certainly has no file.
    pub fn is_empty(&self) -> bool {
        self.unread.is_none() && self.files.is_empty()
    }

    /// Returns whether there is a file.
    pub fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    /// Requires a file.
    pub fn need(&self, path: &str) -> Result<(), String> {
        if self.has(path) { Ok(()) } else { Err(format!("{path} is missing")) }
    }

    /// Requires one of several files or non-empty folders.
    pub fn need_one(&self, what: &str, choice: &[&str]) -> Result<(), String> {
        let is_there = |path: &&str| self.files.iter().any(|file| file.path.starts_with(path));
        if choice.iter().any(is_there) { Ok(()) } else { Err(format!("it has no {what} ({})", choice.join(", "))) }
    }

    /// Requires a distributed checkpoint of PyTorch: the file `.metadata`, which is written after every rank has
    /// written its part, and the parts that it names.
    pub fn need_distributed(&self) -> Result<(), Defect> {
        self.need_distributed_in(Utf8Path::new(""))
    }

    /// Requires a distributed checkpoint in a folder of this checkpoint.
    pub fn need_distributed_in(&self, folder: &Utf8Path) -> Result<(), Defect> {
        let path = |name: &str| folder.join(name).into_string();
        self.need(&path(".metadata"))?;
        let metadata = self.bytes(&path(".metadata"))?;
        Ok(named_parts(&metadata).iter().try_for_each(|part| self.need(&path(part)))?)
    }

    /// Returns the folder of a distributed checkpoint in this one; `None` if there is none.
    pub fn distributed(&self) -> Option<&Utf8Path> {
        let metadata = self.files.iter().find(|file| file.path.file_name() == Some(".metadata"))?;
        metadata.path.parent()
    }

    /// Leaves out a file that may be empty.
    pub fn allow_empty(&mut self, path: &str) {
        self.files.retain(|file| file.bytes > 0 || file.path != path);
    }

    /// Returns the folder with the files of the checkpoint.
    pub fn folder(&self) -> &Utf8Path {
        &self.root
    }

    /// Returns the folder that contains the checkpoint.
    pub fn folder_around(&self) -> &Utf8Path {
        if self.is_file { &self.root } else { self.root.parent().unwrap_or(&self.root) }
    }

    /// Requires that no file has changed for some time.
    pub fn need_unchanged(&self, time: Duration) -> Result<(), Defect> {
        if rundir::now_s() - self.newest_s() >= time.as_secs_f64() {
            return Ok(());
        }
        Err(format!("it may still be written: it changed less than {} s ago", time.as_secs()).into())
    }

    /// Reads a file.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Defect> {
        read_regular(self.root.join(path), MAX_TEXT).map_err(|error| Defect::of_file(Utf8Path::new(path), &error))
    }

    /// Runs the check of a trainer, then checks that every file is complete.
    pub fn check(&self, check: impl FnOnce(&Self) -> Result<(), Defect>) -> Result<(), Defect> {
        if let Some((path, error)) = &self.unread {
            return Err(Defect::of_file(path, error));
        }
        check(self)?;
        self.files.iter().try_for_each(|file| self.check_file(file))
    }

    fn check_file(&self, file: &FileEntry) -> Result<(), Defect> {
        let FileEntry { path, bytes, .. } = file;
        let full = self.root.join(path);
        let failed = |error: io::Error| Defect::of_file(path, &error);
        match path.extension() {
            Some("safetensors") => match safetensors_bytes(&full).map_err(failed)? {
                Some(wanted) if wanted == *bytes => Ok(()),
                Some(wanted) => Err(format!("{path} has {bytes} of {wanted} bytes").into()),
                None => Err(format!("the header of {path} is cut off or damaged").into()),
            },
            Some("bin" | "pt" | "pth" | "pkl") | None if is_cut_zip(&full, *bytes).map_err(failed)? => {
                Err(format!("{path} is cut off").into())
            }
            Some("bin" | "pt" | "pth" | "pkl" | "distcp") | None if *bytes == 0 => {
                Err(format!("{path} is empty").into())
            }
            Some("json") if path.as_str().ends_with(".index.json") => {
                let text = read_regular(&full, MAX_TEXT).map_err(failed)?;
                let index: Index = serde_json::from_slice(&text).map_err(|error| format!("{path}: {error}"))?;
                let folder = path.parent().unwrap_or(Utf8Path::new(""));
                Ok(index.weight_map.values().try_for_each(|shard| self.need(folder.join(shard).as_str()))?)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the files that `.metadata` names. It is a pickle, in which names are plain text.
fn named_parts(metadata: &[u8]) -> BTreeSet<String> {
    const ENDING: &[u8] = b".distcp";
    let ends = (0..metadata.len()).filter(|at| metadata[*at..].starts_with(ENDING));
    let name = |end: usize| {
        let begin =
            metadata[..end].iter().rposition(|byte| !byte.is_ascii_digit() && *byte != b'_').map_or(0, |at| at + 1);
        format!("{}.distcp", String::from_utf8_lossy(&metadata[begin..end]))
    };
    ends.map(name).collect()
}

/// The part of `model.safetensors.index.json` that is needed here.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    weight_map: BTreeMap<String, String>,
}

/// Returns the length of a safetensors file according to its header; `None` if the header is cut off or damaged.
fn safetensors_bytes(path: &Utf8Path) -> io::Result<Option<u64>> {
    #[derive(Deserialize)]
    struct Tensor {
        data_offsets: Option<[u64; 2]>,
    }
    let mut file = open_regular(path)?;
    let mut length = [0; 8];
    if !is_read(&mut file, &mut length)? {
        return Ok(None);
    }
    let length = u64::from_le_bytes(length);
    let mut header = Vec::new();
    file.take(length.min(MAX_HEADER)).read_to_end(&mut header)?;
    let Ok(tensors) = serde_json::from_slice::<BTreeMap<String, Tensor>>(&header) else { return Ok(None) };
    let data = tensors.values().filter_map(|tensor| tensor.data_offsets).map(|[_, end]| end).max().unwrap_or(0);
    Ok(length.checked_add(8).and_then(|bytes| bytes.checked_add(data)))
}

/// Fills a buffer from a file; returns false if the file is shorter.
fn is_read(file: &mut File, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a file begins like the ZIP archives of torch.save but does not end like one.
fn is_cut_zip(path: &Utf8Path, bytes: u64) -> io::Result<bool> {
    let mut file = open_regular(path)?;
    let mut magic = [0; 2];
    if !is_read(&mut file, &mut magic)? || magic != *b"PK" {
        return Ok(false);
    }
    // The end of the central directory, without a comment.
    const END: u64 = 22;
    if bytes < END {
        return Ok(true);
    }
    file.seek(SeekFrom::Start(bytes - END))?;
    let mut end = [0; 4];
    file.read_exact(&mut end)?;
    Ok(end != *b"PK\x05\x06")
}
