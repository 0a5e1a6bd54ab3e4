//! The table of a data set: the file and offset of each sample's tensors, in a few bytes per sample, and the reader of the tensors.
//!
//! Rank 0 makes the table from the index and the headers of the files, and sends its bytes to the other ranks. A sample takes 24
//! bytes for its latent, 24 for each text, and 24 for each tensor of its condition.

use crate::{RawTensor, TensorSum, store};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Shape;
use rundir::{ErrorCode, Failure, open_regular};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use weights::{Dtype, Error, Header, TensorInfo, count_not_finite};

/// The maximum number of open files. A store of a million clips has thousands of shards, more than a process may open.
const OPEN: usize = 128;
/// The size of a [`Slot`] in bytes.
const SLOT: usize = 24;

/// The size and identity of a data set that fits a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// The number of samples.
    pub samples: usize,
    /// The size of all files.
    pub bytes: u64,
    /// The identity of the data set: equal for the same items in the same order, in any folder. For several data sets, their
    /// fingerprints joined by `+`.
    pub fingerprint: String,
}

/// The location of each sample's tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The index file; with several data sets, that of the first.
    pub path: Utf8PathBuf,
    /// The size and identity of the data set.
    pub info: DatasetInfo,
    files: Vec<SourceFile>,
    kinds: Vec<TensorKind>,
    /// The number of texts per sample.
    segments: usize,
    latents: Vec<Slot>,
    /// The slots of texts, [`Table::segments`] per sample.
    texts: Vec<Slot>,
    empty_text: Option<Slot>,
    /// The slots of the condition's tensors; their number per sample depends on the condition.
    extras: Vec<Slot>,
    /// The number of samples of each joined data set; may be empty for a single one.
    sets: Vec<usize>,
}

/// A file with tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceFile {
    pub path: Utf8PathBuf,
    pub bytes: u64,
}

/// The type, shape and meaning that many tensors share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct TensorKind {
    pub dtype: String,
    pub shape: Vec<usize>,
    /// True for means and log-variances.
    pub moments: bool,
}

impl TensorKind {
    /// Returns the shape of a latent `[T, C, H, W]`.
    fn latent_shape(&self) -> Shape {
        Shape { frames: self.shape[0], height: self.shape[2], width: self.shape[3] }
    }
}

/// The location of a tensor: its file, its kind, and its offset in the file, and its checksum if the data set has it. [`Reader::read`]
/// reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    file: u32,
    kind: u32,
    begin: u64,
    sum: Option<TensorSum>,
}

/// A tensor that was found and checked.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub path: Utf8PathBuf,
    pub bytes: u64,
    pub kind: TensorKind,
    pub begin: u64,
    pub sum: Option<TensorSum>,
}

impl Located {
    pub fn of(header: &Header, info: &TensorInfo, moments: bool) -> Self {
        let kind = TensorKind { dtype: info.dtype.name().to_owned(), shape: info.shape.clone(), moments };
        Self { path: header.path.clone(), bytes: header.bytes, kind, begin: info.begin, sum: None }
    }
}

/// The first line of [`Table::to_bytes`]: everything but the slots, which follow in binary form.
#[derive(Serialize, Deserialize)]
struct Described {
    path: Utf8PathBuf,
    info: DatasetInfo,
    files: Vec<SourceFile>,
    kinds: Vec<TensorKind>,
    segments: usize,
    samples: usize,
    empty_text: bool,
    extras: usize,
    #[serde(default)]
    sets: Vec<usize>,
}

impl Table {
    pub(crate) fn new(path: &Utf8Path, segments: usize) -> Self {
        let info = DatasetInfo { samples: 0, bytes: 0, fingerprint: String::new() };
        let (files, kinds, latents, texts) = Default::default();
        Self {
            path: path.to_owned(),
            info,
            files,
            kinds,
            segments,
            latents,
            texts,
            empty_text: None,
            extras: Vec::new(),
            sets: Vec::new(),
        }
    }

    /// Makes a table of slots.
    pub(crate) fn of_slots(
        path: &Utf8Path,
        info: DatasetInfo,
        (files, kinds): (Vec<SourceFile>, Vec<TensorKind>),
        segments: usize,
        (latents, texts, empty_text): (Vec<Slot>, Vec<Slot>, Option<Slot>),
    ) -> Self {
        let (extras, sets) = (Vec::new(), Vec::new());
        Self { path: path.to_owned(), info, files, kinds, segments, latents, texts, empty_text, extras, sets }
    }

    /// Joins the tables of data sets for the same model and condition.
    pub(crate) fn join(tables: Vec<Table>) -> Option<Self> {
        let sets = tables.iter().map(Table::len).collect();
        let mut tables = tables.into_iter();
        let mut all = tables.next()?;
        for table in tables {
            all.info.samples += table.info.samples;
            all.info.bytes += table.info.bytes;
            all.info.fingerprint += &format!("+{}", table.info.fingerprint);
            let (files, kinds) = (all.files.len() as u32, all.kinds.len() as u32);
            let moved = |slot: Slot| Slot { file: slot.file + files, kind: slot.kind + kinds, ..slot };
            all.files.extend(table.files);
            all.kinds.extend(table.kinds);
            all.latents.extend(table.latents.into_iter().map(moved));
            all.texts.extend(table.texts.into_iter().map(moved));
            all.extras.extend(table.extras.into_iter().map(moved));
            all.empty_text = all.empty_text.or(table.empty_text.map(moved));
        }
        Some(Self { sets, ..all })
    }

    /// Returns the samples of each data set.
    pub fn sets(&self) -> Vec<Range<usize>> {
        if self.sets.len() < 2 {
            return std::iter::once(0..self.len()).collect();
        }
        let ranges = self.sets.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len..*end)
        });
        ranges.collect()
    }

    /// Returns the shape of the latent of a sample.
    pub fn shape(&self, sample: usize) -> Shape {
        self.kinds[self.latents[sample].kind as usize].latent_shape()
    }

    /// Appends a sample: its latent, then its texts.
    pub(crate) fn push(&mut self, tensors: &[Located]) {
        for (number, tensor) in tensors.iter().enumerate() {
            let slot = self.slot(tensor);
            if number == 0 { self.latents.push(slot) } else { self.texts.push(slot) }
        }
    }

    /// Appends a tensor of the condition of the next sample.
    pub(crate) fn push_extra(&mut self, tensor: &Located) {
        let slot = self.slot(tensor);
        self.extras.push(slot);
    }

    fn slot(&mut self, tensor: &Located) -> Slot {
        // Neighbouring samples often share texts, but rarely other tensors.
        let recent = self.files.len().saturating_sub(16);
        let file = self.files[recent..].iter().position(|file| file.path == tensor.path).map(|at| recent + at);
        let file = file.unwrap_or_else(|| {
            self.files.push(SourceFile { path: tensor.path.clone(), bytes: tensor.bytes });
            self.files.len() - 1
        });
        let kind = self.kinds.iter().position(|kind| *kind == tensor.kind).unwrap_or_else(|| {
            self.kinds.push(tensor.kind.clone());
            self.kinds.len() - 1
        });
        Slot::new(file, kind, tensor.begin, tensor.sum)
    }

    /// Returns the number of tensors of conditions so far, over all samples.
    pub(crate) fn extras_len(&self) -> usize {
        self.extras.len()
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.latents.len()
    }

    /// Returns whether there are no samples. A table that was opened has at least one.
    pub fn is_empty(&self) -> bool {
        self.latents.is_empty()
    }

    /// Returns the latent of a sample.
    pub fn latent(&self, sample: usize) -> Slot {
        self.latents[sample]
    }

    /// Returns the texts of a sample, one per segment.
    pub fn texts(&self, sample: usize) -> &[Slot] {
        &self.texts[sample * self.segments..][..self.segments]
    }

    /// Returns the tensors of the condition of a sample, draw by draw; see [`crate::condition_tensors`].
    pub fn extras(&self, sample: usize) -> &[Slot] {
        let count = self.extras.len() / self.len();
        &self.extras[sample * count..][..count]
    }

    /// Returns the text of the empty caption, if the store has it.
    pub fn empty_text(&self) -> Option<Slot> {
        self.empty_text
    }

    /// Returns the files of a sample, the latent first.
    pub fn files_of(&self, sample: usize) -> Vec<&Utf8Path> {
        let slots = std::iter::once(self.latent(sample)).chain(self.texts(sample).iter().copied());
        slots.map(|slot| self.files[slot.file as usize].path.as_path()).collect()
    }

    /// Returns the names of the clips of samples, sorted: their ids in a store, otherwise the paths of their latents. Reads the index.
    pub fn clip_names(&self, samples: &[usize]) -> Vec<String> {
        let place = |sample: &usize| {
            let Slot { file, begin, .. } = self.latents[*sample];
            (self.files[file as usize].path.as_path(), begin)
        };
        store::clips_at(&samples.iter().map(place).collect())
    }

    /// Makes a reader of the files.
    pub fn reader(&self) -> Reader {
        Reader { files: self.files.clone(), kinds: self.kinds.clone(), open: Mutex::default() }
    }

    /// Returns the table as bytes, which rank 0 sends to the other ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let described = Described {
            path: self.path.clone(),
            info: self.info.clone(),
            files: self.files.clone(),
            kinds: self.kinds.clone(),
            segments: self.segments,
            samples: self.latents.len(),
            empty_text: self.empty_text.is_some(),
            extras: self.extras.len(),
            sets: self.sets.clone(),
        };
        let mut bytes = serde_json::to_vec(&described).expect("a table has a JSON form");
        bytes.push(b'\n');
        bytes.reserve(SLOT * (self.latents.len() + self.texts.len() + self.extras.len() + 1));
        for slot in self.latents.iter().chain(&self.texts).chain(&self.extras).chain(&self.empty_text) {
            bytes.extend(slot.file.to_le_bytes());
            bytes.extend(slot.kind.to_le_bytes());
            bytes.extend(slot.begin.to_le_bytes());
            bytes.extend(slot.sum.map_or(0, TensorSum::hash).to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes of [`Table::to_bytes`]. Returns `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let Described { path, info, files, kinds, segments, samples, empty_text, extras, sets } =
            serde_json::from_slice(&bytes[..end]).ok()?;
        let slots = bytes[end + 1..].as_chunks::<SLOT>().0;
        if slots.len() != samples * (1 + segments) + extras + usize::from(empty_text) {
            return None;
        }
        let slot = |bytes: &[u8; SLOT]| {
            let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            Slot { file: short(0), kind: short(4), begin: long(8), sum: TensorSum::new(long(16)) }
        };
        let (latents, texts) = slots.split_at(samples);
        let (texts, rest) = texts.split_at(samples * segments);
        let (extras, empty) = rest.split_at(extras);
        Some(Self {
            path,
            info,
            files,
            kinds,
            segments,
            latents: latents.iter().map(slot).collect(),
            texts: texts.iter().map(slot).collect(),
            empty_text: empty.first().map(slot),
            extras: extras.iter().map(slot).collect(),
            sets,
        })
    }
}

impl Slot {
    pub(crate) fn new(file: usize, kind: usize, begin: u64, sum: Option<TensorSum>) -> Self {
        let number = |n: usize| u32::try_from(n).expect("fewer than 4 billion files");
        Self { file: number(file), kind: number(kind), begin, sum }
    }
}

/// Reads tensors of a table. Threads can share it.
///
/// Reads with `pread` instead of a memory mapping: a mapping needs unsafe code, and if a shard is truncated while it is mapped, SIGBUS
/// ends the process, where `pread` returns an error. A mapping would save little: to read a latent of 4.5 MB in the page cache takes
/// 1.2 ms with `pread`, and 1.0 ms with a copy from a mapping (two busy cores).
#[derive(Debug)]
pub struct Reader {
    files: Vec<SourceFile>,
    kinds: Vec<TensorKind>,
    open: Mutex<HashMap<u32, Arc<File>>>,
}

impl Reader {
    /// Reads a tensor.
    ///
    /// # Errors
    /// The file cannot be read, it has another size than when the table was made, or the bytes have another checksum than the data set
    /// records. The failure names the clip.
    pub fn read(&self, slot: Slot) -> Result<RawTensor, Failure> {
        let kind = &self.kinds[slot.kind as usize];
        let dtype = Dtype::parse(&kind.dtype).expect("a table has known types only");
        let mut bytes = vec![0; dtype.size() * kind.shape.iter().product::<usize>()];
        let SourceFile { path, bytes: size } = &self.files[slot.file as usize];
        let file = self.file(slot.file)?;
        file.read_exact_at(&mut bytes, slot.begin).map_err(|source| match file.metadata() {
            Ok(meta) if meta.len() < *size => truncated(path, meta.len(), *size),
            _ => Failure::from(Error::Io { path: path.clone(), source }),
        })?;
        // The thread that reads the next batch hashes it, while a step computes.
        if slot.sum.is_some_and(|sum| !sum.is_of(&bytes)) {
            return Err(store::damaged(path, slot.begin));
        }
        Ok(RawTensor { bytes, shape: kind.shape.clone(), dtype, moments: kind.moments })
    }

    /// Returns whether all values of a tensor are finite.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn is_finite(&self, slot: Slot) -> Result<bool, Failure> {
        let tensor = self.read(slot)?;
        Ok(count_not_finite(tensor.dtype, &tensor.bytes) == 0)
    }

    fn file(&self, number: u32) -> Result<Arc<File>, Failure> {
        let mut open = self.open.lock().expect("no thread panics with this lock");
        if let Some(file) = open.get(&number) {
            return Ok(file.clone());
        }
        let SourceFile { path, bytes } = &self.files[number as usize];
        let io = |source| Failure::from(Error::Io { path: path.clone(), source });
        let file = open_regular(path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        if found < *bytes {
            return Err(truncated(path, found, *bytes));
        }
        if found != *bytes {
            return Err(Failure::new(
                ErrorCode::InvalidDataset,
                format!("{path} has changed since the start"),
                format!("it has {found} bytes, and had {bytes}"),
                "restore the file, or start the run again with the new data set",
            ));
        }
        if open.len() >= OPEN {
            open.clear();
        }
        let file = Arc::new(file);
        open.insert(number, file.clone());
        Ok(file)
    }
}

/// Returns the failure of a read from a file that was cut after the table was made.
fn truncated(path: &Utf8Path, found: u64, wanted: u64) -> Failure {
    Error::Truncated { path: path.to_owned(), found, wanted }.into()
}
