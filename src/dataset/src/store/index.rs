//! Reads and writes the index of a store: a head, then one JSON object per clip, in the order of the manifest.

use super::spec::SCHEMA;
use crate::TensorSum;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, is_file_name, open_regular};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

/// The name of the index within its folder.
pub const INDEX: &str = "index.jsonl";

/// The limit on the bytes of a line. A clip with the captions of hundreds of segments has a hundredth of that.
const MAX_LINE: u64 = 64 << 20;

/// The first line of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the format.
    pub schema: u32,
    /// The number of clips. A reader compares it with the number of lines, to detect a truncated index.
    pub clips: usize,
    /// [`super::StoreSpec::identity`] of the specification by which the latents and texts were made.
    pub spec: String,
    /// The id of the queue that made this index; empty after an import.
    pub queue: String,
    /// The text of the empty caption, which replaces dropped captions; `None` after an import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_text: Option<TensorLocation>,
    /// The key of the empty caption; empty if there is no such text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub empty_key: String,
}

/// A clip in the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The id of the clip, unique within the data set.
    pub id: String,
    /// The video.
    pub source: Utf8PathBuf,
    /// The hash of the video.
    pub content: String,
    /// The times of the chosen frames in seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<f64>,
    /// The shape of the stored latent, `[T, 2C, H, W]`.
    pub shape: Vec<usize>,
    /// Frames × height × width of the clip in pixels, or of the latent if those of the clip are not known: `49x480x720`.
    pub bucket: String,
    /// The caption.
    pub caption: String,
    /// The latent.
    pub latent: TensorLocation,
    /// The key of the latent.
    pub latent_key: String,
    /// True if the store has a drawn latent `[T, C, H, W]` instead of means and log-variances.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drawn: bool,
    /// Further tensors of the clip by role, such as `image`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, TensorLocation>,
    /// The texts, one per segment of the video.
    pub text: Vec<TensorLocation>,
    /// The keys of the texts.
    pub text_keys: Vec<String>,
}

/// The location of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorLocation {
    /// The name of the shard, in the folder of the data set.
    #[serde(deserialize_with = "shard_name")]
    pub shard: String,
    /// The name of the tensor in the file.
    pub name: String,
    /// The checksum of its bytes. Stores of versions before checksums have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xxh3: Option<TensorSum>,
}

/// Reads the name of a shard. A name that leads out of the folder is refused: training would read tensors of other files.
pub(crate) fn shard_name<'de, D: Deserializer<'de>, S: Deserialize<'de> + AsRef<str>>(from: D) -> Result<S, D::Error> {
    let name = S::deserialize(from)?;
    match is_file_name(name.as_ref()) {
        true => Ok(name),
        false => {
            let shown = name.as_ref().escape_debug();
            Err(D::Error::custom(format!("the shard '{shown}' is outside of the folder of the data set")))
        }
    }
}

/// Reads an index, and calls `each` with the line number of every clip (the head is line 1) and the clip.
///
/// # Errors
/// The index is missing, truncated, malformed, or of a newer schema; or `each` fails.
pub fn read_index(data: &Utf8Path, mut each: impl FnMut(usize, Line) -> Result<(), Failure>) -> Result<Head, Failure> {
    let path = data.join(INDEX);
    let (head, mut lines) = Lines::open(&path)?;
    while let Some((number, line)) = lines.next()? {
        each(number, serde_json::from_slice(line).map_err(|e| malformed(&path, number, &e))?)?;
    }
    lines.end(&head)?;
    Ok(head)
}

/// The lines of an index after its head.
pub(crate) struct Lines {
    path: Utf8PathBuf,
    file: BufReader<File>,
    buffer: Vec<u8>,
    number: usize,
    clips: usize,
}

impl Lines {
    /// Opens an index and reads its head.
    pub fn open(path: &Utf8Path) -> Result<(Head, Self), Failure> {
        let file = open_regular(path).map_err(|e| unreadable(path, &e))?;
        let bytes = file.metadata().map_err(|e| unreadable(path, &e))?.len();
        let file = BufReader::with_capacity(1 << 20, file);
        let mut lines = Self { path: path.to_owned(), file, buffer: Vec::new(), number: 0, clips: 0 };
        let Some((_, first)) = lines.next()? else {
            return Err(bad(path, "it is empty".into()));
        };
        #[derive(Deserialize)]
        struct Version {
            schema: Option<u32>,
        }
        let version: Version = serde_json::from_slice(first).map_err(|e| malformed(path, 1, &e))?;
        match version.schema {
            Some(found) if found > SCHEMA => Err(Failure::new(
                ErrorCode::NewerFormat,
                format!("cannot read {path}"),
                format!("written by a newer vidtui (schema {found}; this one reads {SCHEMA})"),
                "update vidtui, or encode the data set again with this one",
            )),
            Some(_) => {
                let head: Head = serde_json::from_slice(first).map_err(|e| malformed(path, 1, &e))?;
                lines.clips = 0;
                // Readers compute with this number before they know the number of lines.
                if head.clips as u64 > bytes {
                    let why = format!("line 1: it cannot have {} clips, because it has {bytes} bytes", head.clips);
                    return Err(bad(path, why));
                }
                Ok((head, lines))
            }
            None => Err(bad(path, "its first line has no schema".into())),
        }
    }

    /// Returns the number of the next line and its bytes.
    pub fn next(&mut self) -> Result<Option<(usize, &[u8])>, Failure> {
        self.buffer.clear();
        let mut line = (&mut self.file).take(MAX_LINE);
        let read = line.read_until(b'\n', &mut self.buffer).map_err(|e| unreadable(&self.path, &e))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.clips += 1;
        if self.buffer.len() as u64 == MAX_LINE {
            return Err(bad(
                &self.path,
                format!("line {} has {MAX_LINE} bytes or more, which is the limit", self.number),
            ));
        }
        if self.buffer.pop_if(|last| *last == b'\n').is_none() {
            return Err(bad(&self.path, format!("line {} is cut", self.number)));
        }
        Ok(Some((self.number, &self.buffer)))
    }

    /// Checks that no line is missing at the end.
    pub fn end(&self, head: &Head) -> Result<(), Failure> {
        if self.clips == head.clips {
            return Ok(());
        }
        Err(bad(&self.path, format!("it has {} of {}", self.clips, units::counted(head.clips, "clip"))))
    }
}

/// Writes an index under a temporary name and renames it.
pub(crate) fn write_index(
    data: &Utf8Path,
    head: &Head,
    lines: impl Iterator<Item = Result<Line, Failure>>,
) -> Result<(), Failure> {
    let path = data.join(INDEX);
    let temporary = data.join(format!(".{INDEX}.{}.tmp", std::process::id()));
    let io = |e: io::Error| cannot_write(&path, &e);
    let write = || -> Result<(), Failure> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&temporary).map_err(io)?);
        let mut line = |value: &[u8]| file.write_all(value).and_then(|()| file.write_all(b"\n")).map_err(io);
        line(&serde_json::to_vec(head).expect("a head has a JSON form"))?;
        for clip in lines {
            line(&serde_json::to_vec(&clip?).expect("a clip has a JSON form"))?;
        }
        let file = file.into_inner().map_err(|e| io(e.into_error()))?;
        file.sync_all().map_err(io)?;
        fs::rename(&temporary, &path).and_then(|()| File::open(data)?.sync_all()).map_err(io)
    };
    write().inspect_err(|_| {
        // Report the failure of the write, not that of the removal.
        let _ = fs::remove_file(&temporary);
    })
}

pub(crate) fn malformed(path: &Utf8Path, line: usize, error: &serde_json::Error) -> Failure {
    // Each line is parsed on its own, so the parser's own line number is always 1 and would mislead.
    let why = error.to_string().replace(" at line 1 column ", " at column ");
    bad(path, format!("line {line}: {why}"))
}

pub(crate) fn bad(path: &Utf8Path, why: String) -> Failure {
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot read the index {path}"),
        why,
        "copy it again from its source, or remove it and encode the data set again",
    )
}

pub(crate) fn unreadable(path: &Utf8Path, error: &io::Error) -> Failure {
    let fix = match error.kind() {
        io::ErrorKind::NotFound => "give the folder of a data set, or encode or import one first".into(),
        _ => format!("check its permissions and its disk: ls -l {path}"),
    };
    Failure::new(ErrorCode::of_io(error), format!("cannot read {path}"), error.to_string(), fix)
}

pub(crate) fn cannot_write(path: &Utf8Path, error: &io::Error) -> Failure {
    let fix = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            format!("{}, then start the encode again: it continues where it stopped", rundir::room_for(error, path))
        }
        _ => "check the disk and the permissions of its folder, then start the encode again".to_owned(),
    };
    Failure::new(ErrorCode::of_io(error), format!("cannot write {path}"), error.to_string(), fix)
}
