//! Reads PyTorch distributed checkpoints: a pickle in `.metadata`, and `.distcp` files with chunks of tensors.

use crate::Dtype;
use crate::archive::MAX_PICKLE;
use crate::pickle::{At, Node, Pickle};
use crate::tensor_spans::{Files, Span, StoredTensor, Tensors, elements};
use crate::torch_file::open_torch_tensor;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, read_regular};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::sync::Arc;

/// The file with the locations of all chunks. The writer creates it last.
pub(crate) const METADATA: &str = ".metadata";

/// The dtypes by their names in torch.
const DTYPES: [(&str, Dtype); 11] = [
    ("bfloat16", Dtype::BF16),
    ("bool", Dtype::Bool),
    ("float16", Dtype::F16),
    ("float32", Dtype::F32),
    ("float64", Dtype::F64),
    ("int16", Dtype::I16),
    ("int32", Dtype::I32),
    ("int64", Dtype::I64),
    ("int8", Dtype::I8),
    ("uint8", Dtype::U8),
    ("uint16", Dtype::U16),
];

/// The maximum number of contiguous runs of all tensors: they take 1.5 GiB. Row-parallel tensors have one per row and rank: those of a model
/// of 14 billion parameters on 8 ranks with its optimizer have a third of that.
const MAX_RUNS: u64 = 1 << 25;

/// The location of a chunk.
struct ChunkLocation {
    file: Arc<Utf8Path>,
    offset: u64,
    length: u64,
}

/// The box of a tensor that a chunk covers.
struct Chunk {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
}

/// A tensor as `.metadata` describes it.
struct Described<'a> {
    name: &'a str,
    shape: Vec<u64>,
    elements: u64,
    dtype: Dtype,
    /// The locations of the rows found so far.
    runs: Vec<(u64, Span)>,
}

/// Why a checkpoint cannot be opened.
enum Wrong {
    /// Files that `.metadata` names do not exist. `of` is the number of named files.
    Missing { files: BTreeSet<String>, of: usize },
    /// A file is damaged, or the folder is not a distributed checkpoint.
    Damaged(String),
}

impl From<String> for Wrong {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

/// Opens the folder of a distributed checkpoint.
///
/// # Errors
/// `NotFound` if files are missing. `Malformed` if a file is damaged, or if the pickle uses a name that is not allowed.
pub(crate) fn open(folder: &Utf8Path) -> Result<Tensors, Failure> {
    let path = folder.join(METADATA);
    let what = || format!("cannot read the distributed checkpoint {folder}");
    let bad = |why: String| Failure::new(ErrorCode::Malformed, what(), why, "copy it again from its source");
    let bytes = read_regular(&path, MAX_PICKLE).map_err(|e| bad(format!("{METADATA}: {e}")))?;
    let pickle = Pickle::read(&bytes).map_err(|why| bad(format!("{METADATA}: {why}")))?;
    let tensors = tensors(folder, &pickle).map_err(|wrong| match wrong {
        Wrong::Damaged(why) => bad(why),
        Wrong::Missing { files, of } => {
            let names = files.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let why = format!("{} of the {of} files that its {METADATA} names do not exist: {names}", files.len());
            let fix = format!("copy them to {folder} from its source; each rank saved a file of its own");
            Failure::new(ErrorCode::NotFound, what(), why, fix)
        }
    })?;
    if tensors.is_empty() {
        return Err(bad("it holds no tensors".into()));
    }
    Ok(tensors)
}

fn tensors(folder: &Utf8Path, pickle: &Pickle) -> Result<Tensors, Wrong> {
    let strange = || format!("its {METADATA} does not describe a distributed checkpoint");
    let part = |name| pickle.field(pickle.root, name).and_then(|at| pickle.pairs(at)).ok_or_else(strange);
    let places = places(folder, pickle, part("storage_data")?)?;
    let (mut described, mut parts) = (Vec::new(), Vec::new());
    for (name, about) in part("state_dict_metadata")? {
        let name = pickle.text(*name).ok_or_else(strange)?;
        // Only tensors have a size.
        let Some(size) = pickle.field(*about, "size") else { continue };
        let wrong = |why: String| format!("tensor {name}: {why}");
        let shape = pickle.sizes(size).ok_or_else(strange)?;
        let dtype = dtype(pickle, *about).ok_or_else(|| wrong("its dtype is unknown".into()))?;
        let chunks = pickle.field(*about, "chunks").and_then(|at| pickle.items(at)).ok_or_else(strange)?;
        let elements = elements(&shape).ok_or_else(|| wrong("its shape overflows".into()))?;
        for chunk in chunks {
            let sizes = |field| pickle.field(*chunk, field).and_then(|at| pickle.sizes(at)).ok_or_else(strange);
            let chunk = Chunk { offsets: sizes("offsets")?, sizes: sizes("sizes")? };
            let place = places
                .get(&(name, chunk.offsets.clone()))
                .ok_or_else(|| wrong(format!("{METADATA} has no location for its chunk at {:?}", chunk.offsets)))?;
            parts.push((place, described.len(), chunk));
        }
        described.push(Described { name, shape, elements, dtype, runs: Vec::new() });
    }
    // Read chunks in file order, because there may be more files than a process may open.
    parts.sort_by(|(a, ..), (b, ..)| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
    let (mut files, mut room) = (Files::default(), MAX_RUNS);
    for (place, of, chunk) in parts {
        let Described { name, shape, dtype, runs, .. } = &mut described[of];
        let wrong = |why: String| format!("tensor {name}: {why}");
        let stored = open_torch_tensor(&mut files, &place.file, place.offset, place.length)
            .map_err(|why| wrong(format!("{} at byte {}: {why}", place.file, place.offset)))?;
        let same = stored.shape.iter().map(|d| *d as u64).eq(chunk.sizes.iter().copied());
        if !same || stored.dtype != *dtype {
            let found = format!("{} {:?}", stored.dtype, stored.shape);
            return Err(wrong(format!("its chunk is {found}, {METADATA} expects {dtype} {:?}", chunk.sizes)).into());
        }
        room = spread(shape, &chunk, &stored, runs, room).map_err(wrong)?;
    }
    let joined = described.into_iter().map(|Described { name, shape, elements, dtype, runs }| {
        let stored = joined(&shape, elements, dtype, runs).map_err(|why| format!("tensor {name}: {why}"))?;
        Ok((name.to_owned(), stored))
    });
    Ok(joined.collect::<Result<_, String>>()?)
}

/// Returns the location of each chunk by tensor name and offsets.
fn places<'a>(
    folder: &Utf8Path,
    pickle: &'a Pickle,
    entries: &[(At, At)],
) -> Result<HashMap<(&'a str, Vec<u64>), ChunkLocation>, Wrong> {
    // A file that does not exist has no size.
    let mut files: HashMap<&str, (Arc<Utf8Path>, Option<u64>)> = HashMap::new();
    let mut places = HashMap::new();
    for (index, info) in entries {
        // An entry without an offset is not a chunk of a tensor.
        let offset = pickle.field(*index, "offset").filter(|at| *pickle.node(*at) != Node::None);
        let Some(offsets) = offset.and_then(|at| pickle.sizes(at)) else { continue };
        let number = |name| pickle.field(*info, name).and_then(|at| pickle.size(at));
        let name = pickle.field(*index, "fqn").and_then(|at| pickle.text(at));
        let file = pickle.field(*info, "relative_path").and_then(|at| pickle.text(at));
        let (Some(name), Some(file), Some(offset), Some(length)) = (name, file, number("offset"), number("length"))
        else {
            return Err(format!("its {METADATA} has a chunk without a location").into());
        };
        if file.is_empty() || file.contains(['/', '\\', '\0']) || file == ".." {
            return Err(format!("its {METADATA} names a file outside of the folder: '{}'", file.escape_debug()).into());
        }
        if !files.contains_key(file) {
            let path: Utf8PathBuf = folder.join(file);
            let size = match fs::metadata(&path) {
                Ok(found) => Some(found.len()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(format!("{file}: {error}").into()),
            };
            files.insert(file, (Arc::from(path), size));
        }
        let (path, size) = &files[file];
        if let Some(size) = size.filter(|size| offset.checked_add(length).is_none_or(|end| end > *size)) {
            return Err(format!(
                "{file} is truncated: it has {size} bytes, and {name} has {length} bytes at offset {offset}"
            )
            .into());
        }
        let previous = places.insert((name, offsets), ChunkLocation { file: path.clone(), offset, length });
        if previous.is_some() {
            return Err(format!("its {METADATA} lists a chunk of {name} twice").into());
        }
    }
    let missing = files.iter().filter(|(_, (_, size))| size.is_none()).map(|(name, _)| (*name).to_owned());
    let missing: BTreeSet<String> = missing.collect();
    if missing.is_empty() { Ok(places) } else { Err(Wrong::Missing { files: missing, of: files.len() }) }
}

/// Returns the dtype of a tensor: the property `dtype`, or else the first property.
fn dtype(pickle: &Pickle, about: At) -> Option<Dtype> {
    let properties = pickle.field(about, "properties")?;
    let Node::Call { state: Some(state), .. } = pickle.node(properties) else { return None };
    let at = pickle.get(*state, "dtype").or_else(|| pickle.items(*state)?.first().copied())?;
    let Node::Global("torch", name) = pickle.node(at) else { return None };
    DTYPES.iter().find(|(known, _)| known == name).map(|(_, dtype)| *dtype)
}

/// Appends the rows of a chunk to `runs`: the first element of each in the tensor, and its range of a file. Returns what is left of `room`,
/// the number of runs that may be appended.
fn spread(
    shape: &[u64],
    chunk: &Chunk,
    stored: &StoredTensor,
    runs: &mut Vec<(u64, Span)>,
    room: u64,
) -> Result<u64, String> {
    let inside = chunk.offsets.len() == shape.len()
        && chunk.sizes.len() == shape.len()
        && (0..shape.len()).all(|n| chunk.offsets[n].checked_add(chunk.sizes[n]).is_some_and(|end| end <= shape[n]));
    if !inside {
        return Err(format!("its chunk of {:?} at {:?} is outside of {shape:?}", chunk.sizes, chunk.offsets));
    }
    if chunk.sizes.contains(&0) {
        return Ok(room);
    }
    // The innermost axes that the chunk covers fully form one contiguous run, together with the chunk's range of the next axis.
    let whole = (0..shape.len()).rev().take_while(|n| chunk.sizes[*n] == shape[*n]).count();
    let axis = (shape.len() - whole).saturating_sub(1);
    let run: u64 = chunk.sizes[axis.min(shape.len())..].iter().product();
    let size = stored.dtype.size() as u64;
    let mut left = Left { spans: &stored.spans, at: 0 };
    let outer: u64 = chunk.sizes[..axis.min(shape.len())].iter().product();
    let room = outer.checked_add(stored.spans.len() as u64).and_then(|most| room.checked_sub(most));
    let room =
        room.ok_or_else(|| format!("the tensors have more than {MAX_RUNS} separate rows, which is the limit"))?;
    for row in 0..outer {
        let (mut rest, mut first, mut step) = (row, 0, 1u64);
        for n in (0..shape.len()).rev() {
            let within = if n < axis {
                let index = rest % chunk.sizes[n];
                rest /= chunk.sizes[n];
                index
            } else {
                0
            };
            first += (chunk.offsets[n] + within) * step;
            step *= shape[n];
        }
        let end = first + run;
        while first < end {
            // A chunk that is a view of another tensor has several ranges in its file, each of whole elements.
            let span = left.take((end - first) * size).ok_or("its chunk has fewer elements than its shape")?;
            let elements = span.len / size;
            runs.push((first, span));
            first += elements;
        }
    }
    Ok(room)
}

/// The ranges of a chunk that have not been assigned yet, in order.
struct Left<'a> {
    spans: &'a [Span],
    /// The number of assigned bytes of the first span.
    at: u64,
}

impl Left<'_> {
    /// Takes up to `most` bytes from one range; `None` if the chunk is exhausted.
    fn take(&mut self, most: u64) -> Option<Span> {
        while let [span, rest @ ..] = self.spans {
            if self.at < span.len {
                let len = most.min(span.len - self.at);
                let taken = Span { file: span.file.clone(), begin: span.begin + self.at, len };
                self.at += len;
                return Some(taken);
            }
            (self.spans, self.at) = (rest, 0);
        }
        None
    }
}

/// Joins the runs, which must cover the tensor exactly once.
fn joined(shape: &[u64], elements: u64, dtype: Dtype, mut runs: Vec<(u64, Span)>) -> Result<StoredTensor, String> {
    runs.sort_by_key(|(first, _)| *first);
    let mut at = 0;
    let mut spans: Vec<Span> = Vec::with_capacity(runs.len());
    for (first, span) in runs {
        if first != at {
            return Err(format!("its chunks have a gap or an overlap at element {}", at.min(first)));
        }
        at += span.len / dtype.size() as u64;
        spans.push(span);
    }
    if at != elements {
        return Err(format!("its chunks have {at} of {elements} elements"));
    }
    let shape = shape.iter().map(|d| usize::try_from(*d).map_err(|_| "its shape overflows".to_owned()));
    Ok(StoredTensor { dtype, shape: shape.collect::<Result<_, _>>()?, spans })
}
