//! Reads the state dicts and tensors that `torch.save` wrote, without libtorch and without running code of their pickles.

use crate::archive::Archive;
use crate::pickle::{At, Node, Pickle};
use crate::tensor_spans::{Files, Span, StoredTensor, Tensors, elements};
use crate::{Dtype, lfs};
use camino::Utf8Path;
use rundir::{ErrorCode, Failure, open_regular};
use std::io::Read;
use std::sync::Arc;

/// The ends of the names of `torch.save` files.
const ENDS: [&str; 4] = [".pt", ".pth", ".bin", ".ckpt"];

/// Returns whether a path has the name of a `torch.save` file.
pub(crate) fn has_torch_name(path: &Utf8Path) -> bool {
    ENDS.iter().any(|end| path.as_str().ends_with(end))
}

/// The keys of a training checkpoint that may hold the weights, if the weights are not at the top level.
const INSIDE: [&str; 4] = ["state_dict", "model", "module", "ema"];

/// The maximum number of contiguous runs of a tensor. A permuted video latent has one run per frame and channel, which is far fewer.
const MAX_RUNS: u64 = 1 << 16;

/// The maximum number of contiguous runs of all tensors of a file: they take 128 MiB. A file of kilobytes can have thousands of tensors that
/// repeat one number 65 536 times.
const MAX_FILE_RUNS: usize = 1 << 22;

/// The classes of storages, and the types of their elements.
const STORAGES: [(&str, Dtype); 10] = [
    ("BFloat16Storage", Dtype::BF16),
    ("BoolStorage", Dtype::Bool),
    ("ByteStorage", Dtype::U8),
    ("CharStorage", Dtype::I8),
    ("DoubleStorage", Dtype::F64),
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("IntStorage", Dtype::I32),
    ("LongStorage", Dtype::I64),
    ("ShortStorage", Dtype::I16),
];

/// Opens a state dict that `torch.save` wrote, without running code of its pickle.
///
/// # Errors
/// The file cannot be read, is damaged or has no tensors, or its pickle uses a name that is not allowed.
pub fn open_torch_file(path: &Utf8Path) -> Result<Tensors, Failure> {
    let bad = |why: String| {
        let fix = "copy it again from where it came; save it as .safetensors if you can";
        Failure::new(ErrorCode::Malformed, format!("cannot read {path}"), why, fix)
    };
    let missing = |e: std::io::Error| {
        Failure::new(ErrorCode::of_io(&e), format!("cannot read {path}"), e.to_string(), "check the path")
    };
    let opened = open_regular(path).map_err(missing)?;
    let len = opened.metadata().map_err(missing)?.len();
    if lfs::is_pointer(&opened) {
        return Err(lfs::failure(path));
    }
    let (mut files, file) = (Files::default(), Arc::<Utf8Path>::from(path));
    let archive = Archive::open(&mut files, &file, 0, len).map_err(bad)?;
    let pickle = archive.read(&mut files, "data.pkl").and_then(|bytes| Pickle::read(&bytes)).map_err(bad)?;
    check_byte_order(&archive, &mut files).map_err(bad)?;
    let (mut tensors, inside) = (Tensors::new(), |key: &&str| pickle.get(pickle.root, key));
    let dict =
        INSIDE.iter().find_map(|key| inside(key).filter(|at| pickle.pairs(*at).is_some())).unwrap_or(pickle.root);
    let (mut runs, mut bytes) = (0, 0u64);
    for (key, value) in pickle.pairs(dict).ok_or_else(|| bad("it is not a state dict".into()))? {
        let (Some(name), Some(tensor)) = (pickle.text(*key), tensor(&pickle, *value)) else { continue };
        let stored = tensor.and_then(|tensor| tensor.stored(&archive, &file));
        let stored = stored.map_err(|why| bad(format!("tensor {name}: {why}")))?;
        runs += stored.spans.len();
        // Views of a sparse file can have more bytes than a number holds.
        bytes = bytes.checked_add(stored.bytes()).ok_or_else(|| bad("the size of its tensors overflows".into()))?;
        if runs > MAX_FILE_RUNS {
            return Err(bad(format!(
                "its tensors have more than {MAX_FILE_RUNS} separate rows, which is the limit; save them with .contiguous()"
            )));
        }
        tensors.insert(name.to_owned(), stored);
    }
    if tensors.is_empty() {
        return Err(bad("it holds no tensors".into()));
    }
    Ok(tensors)
}

/// Returns whether a file begins with the signature of a `torch.save` archive.
pub fn is_torch_file(path: &Utf8Path) -> bool {
    let mut head = [0; 4];
    let read = open_regular(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head == *b"PK\x03\x04"
}

/// Opens the one tensor that `torch.save` wrote into a range of a file, without running code of its pickle.
///
/// # Errors
/// The reason, if the range is damaged, is not one tensor, or uses a name that is not allowed.
pub fn open_torch_tensor(files: &mut Files, file: &Arc<Utf8Path>, base: u64, len: u64) -> Result<StoredTensor, String> {
    let archive = Archive::open(files, file, base, len)?;
    let pickle = Pickle::read(&archive.read(files, "data.pkl")?)?;
    check_byte_order(&archive, files)?;
    tensor(&pickle, pickle.root).ok_or("it is not a tensor")??.stored(&archive, file)
}

fn check_byte_order(archive: &Archive, files: &mut Files) -> Result<(), String> {
    match archive.place("byteorder") {
        Some(_) if archive.read(files, "byteorder")? != b"little" => {
            Err("its numbers are big-endian, which is not supported".into())
        }
        _ => Ok(()),
    }
}

/// A tensor as a pickle describes it.
struct Described {
    storage: String,
    dtype: Dtype,
    /// The number of elements in the storage.
    held: u64,
    /// The index of the tensor's first element in the storage.
    first: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

/// Reads a value that is a tensor or a parameter; `None` for any other value.
fn tensor(pickle: &Pickle, at: At) -> Option<Result<Described, String>> {
    if let Some(args) = pickle.call(at, "torch._utils", "_rebuild_parameter") {
        return tensor(pickle, *args.first().filter(|inner| **inner != at && !is_parameter(pickle, **inner))?);
    }
    let args = pickle
        .call(at, "torch._utils", "_rebuild_tensor_v2")
        .or_else(|| pickle.call(at, "torch._utils", "_rebuild_tensor"))?;
    Some(described(pickle, args).ok_or_else(|| "its description in the pickle is not supported".into()))
}

fn is_parameter(pickle: &Pickle, at: At) -> bool {
    pickle.call(at, "torch._utils", "_rebuild_parameter").is_some()
}

fn described(pickle: &Pickle, args: &[At]) -> Option<Described> {
    let [storage, first, shape, strides, ..] = args else { return None };
    let Node::Persistent(id) = pickle.node(*storage) else { return None };
    let [word, class, key, _device, held] = pickle.items(*id)? else { return None };
    let Node::Global("torch", class) = pickle.node(*class) else { return None };
    (pickle.text(*word)? == "storage").then_some(())?;
    Some(Described {
        storage: pickle.text(*key)?.to_owned(),
        dtype: STORAGES.iter().find(|(name, _)| name == class)?.1,
        held: pickle.size(*held)?,
        first: pickle.size(*first)?,
        shape: pickle.sizes(*shape)?,
        strides: pickle.sizes(*strides)?,
    })
}

impl Described {
    /// Finds the tensor in the archive.
    fn stored(&self, archive: &Archive, file: &Arc<Utf8Path>) -> Result<StoredTensor, String> {
        let elements = elements(&self.shape).ok_or("its shape overflows")?;
        let name = format!("data/{}", self.storage);
        let (at, bytes) = archive.place(&name).ok_or_else(|| format!("its storage {name} is missing"))?;
        let size = self.dtype.size() as u64;
        let reach = self.reach().ok_or("its strides do not fit its shape")?;
        let inside = elements == 0 || self.first.checked_add(reach).is_some_and(|last| last < self.held);
        if !inside || self.held.checked_mul(size) != Some(bytes) {
            return Err(format!(
                "it has {elements} elements of {} at offset {}, but its storage has {} elements in {bytes} bytes",
                self.dtype, self.first, self.held
            ));
        }
        let shape = self.shape.iter().map(|d| usize::try_from(*d).map_err(|_| "its shape overflows".to_owned()));
        let span = |first: u64, len: u64| Span { file: file.clone(), begin: at + first * size, len: len * size };
        let spans = self.runs(elements)?.into_iter().map(|(first, len)| span(first, len)).collect();
        Ok(StoredTensor { dtype: self.dtype, shape: shape.collect::<Result<_, _>>()?, spans })
    }

    /// Returns the distance in the storage from the first to the last element.
    fn reach(&self) -> Option<u64> {
        let far =
            |reach: u64, (size, stride): (&u64, &u64)| reach.checked_add(size.saturating_sub(1).checked_mul(*stride)?);
        (self.shape.len() == self.strides.len())
            .then(|| self.shape.iter().zip(&self.strides).try_fold(0, far))
            .flatten()
    }

    /// Returns the tensor as runs of adjacent elements in row-major order: the start of each run in the storage, and
    /// its length.
    ///
    /// A view, such as a permuted tensor, is split along its outer axes.
    fn runs(&self, elements: u64) -> Result<Vec<(u64, u64)>, String> {
        if elements == 0 {
            // Its offset was not compared with the storage.
            return Ok(vec![(0, 0)]);
        }
        let mut outer: Vec<(u64, u64)> = self.shape.iter().copied().zip(self.strides.iter().copied()).collect();
        let mut run = 1;
        while let Some((size, _)) = outer.pop_if(|(size, stride)| *size == 1 || *stride == run) {
            run *= size;
        }
        if elements / run > MAX_RUNS {
            return Err("it is not stored row by row: save it again with .contiguous()".into());
        }
        let mut starts = vec![self.first];
        for (size, stride) in &outer {
            starts = starts.iter().flat_map(|start| (0..*size).map(move |i| start + i * stride)).collect();
        }
        Ok(starts.into_iter().map(|start| (start, run)).collect())
    }
}
