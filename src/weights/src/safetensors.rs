//! Reads and validates the header of a safetensors file.
//!
//! Layout: eight bytes with the header's length, the header as JSON, the data. The format allows no gaps and no overlaps.
//! Source: <https://github.com/huggingface/safetensors>, section "Format".

use crate::tensor_spans::elements;
use crate::{Dtype, lfs};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, open_regular};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// The longest header that the format allows, in bytes. A longer one is invalid and is not allocated.
const MAX_HEADER: u64 = 100_000_000;

/// An error in reading a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system returned an error.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: Utf8PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is shorter than its data.
    #[error("{path} is truncated: it has {found} of {wanted} bytes")]
    Truncated {
        /// The file.
        path: Utf8PathBuf,
        /// The size of the file in bytes.
        found: u64,
        /// The size in bytes that the header requires.
        wanted: u64,
    },
    /// The file is not a valid safetensors file.
    #[error("{path} is not a valid safetensors file: {why}")]
    Malformed {
        /// The file.
        path: Utf8PathBuf,
        /// The rule that it violates.
        why: String,
    },
    /// The file is a pointer of git-lfs to a file that was not downloaded.
    #[error("{path} is a pointer of git-lfs, not the file itself")]
    LfsPointer {
        /// The file.
        path: Utf8PathBuf,
    },
    /// A tensor in the file is not valid.
    #[error("tensor '{tensor}' in {path} is not valid: {why}")]
    BadTensor {
        /// The file.
        path: Utf8PathBuf,
        /// The tensor.
        tensor: String,
        /// The rule that it violates.
        why: String,
    },
    /// The file does not have the tensor.
    #[error("{path} has no tensor '{tensor}'; it has {has}")]
    NoTensor {
        /// The file.
        path: Utf8PathBuf,
        /// The tensor.
        tensor: String,
        /// The names of the first few tensors of the file.
        has: String,
    },
    /// The requested range is outside of the tensor.
    #[error("cannot read elements {start}..{end} of a tensor of {elements} elements in {path} into {out} bytes")]
    Range {
        /// The file.
        path: Utf8PathBuf,
        /// The first requested element.
        start: u64,
        /// One past the last requested element.
        end: u64,
        /// The number of elements of the tensor.
        elements: u64,
        /// The size of the output buffer in bytes.
        out: usize,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let again = |path: &Utf8Path| format!("recreate {path}, or copy it again from its source");
        match error {
            Error::Io { path, source } if source.kind() == io::ErrorKind::NotFound => Failure::new(
                ErrorCode::NotFound,
                format!("cannot read {path}"),
                "the file does not exist",
                format!("check the spelling of {path} and that its file system is mounted"),
            ),
            Error::Io { path, source } => Failure::new(
                ErrorCode::Io,
                format!("cannot read {path}"),
                source.to_string(),
                format!("check its permissions and its disk: ls -l {path}"),
            ),
            Error::Truncated { path, found, wanted } => Failure::new(
                ErrorCode::Malformed,
                format!("{path} is truncated"),
                format!("it has {found} of {wanted} bytes"),
                again(&path),
            ),
            Error::Malformed { path, why } => {
                Failure::new(ErrorCode::Malformed, format!("{path} is not a valid safetensors file"), why, again(&path))
            }
            Error::LfsPointer { path } => lfs::failure(&path),
            Error::BadTensor { path, tensor, why } => Failure::new(
                ErrorCode::Malformed,
                format!("tensor '{tensor}' in {path} is not valid"),
                why,
                again(&path),
            ),
            Error::NoTensor { path, tensor, has } => Failure::new(
                ErrorCode::TensorMismatch,
                format!("{path} has no tensor '{tensor}'"),
                format!("it has {has}"),
                format!("use another file, or save the tensor as '{tensor}'"),
            ),
            Error::Range { .. } => Failure::new(
                ErrorCode::Internal,
                "cannot read a tensor outside of its bounds",
                error.to_string(),
                "this is a bug in vidtui: please report it",
            ),
        }
    }
}

/// The header of a safetensors file: its tensors and metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The file.
    pub path: Utf8PathBuf,
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// The `__metadata__` entry, which the writer of the file can set.
    pub metadata: BTreeMap<String, String>,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// A tensor of a file: its dtype, shape and location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The element type.
    pub dtype: Dtype,
    /// The shape.
    pub shape: Vec<usize>,
    /// The offset of the first byte in the file.
    pub begin: u64,
    /// The offset after the last byte.
    pub end: u64,
}

impl TensorInfo {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        (self.end - self.begin) / self.dtype.size() as u64
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A header whose entries all have the form that the format requires, for fast parsing.
#[derive(Default)]
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawTensor)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> serde::de::Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                    } else {
                        header.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl Header {
    /// Reads and validates the header of a file, and checks that the file has all the data without reading it.
    ///
    /// # Errors
    /// Returns an [`Error`] with the file, the tensor, and the expected and actual values.
    pub fn read(path: &Utf8Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let malformed = |why: String| Error::Malformed { path: path.to_owned(), why };
        let truncated = |found, wanted| Error::Truncated { path: path.to_owned(), found, wanted };

        let file = open_regular(path).map_err(|error| match error.kind() {
            ErrorKind::IsADirectory | ErrorKind::InvalidInput => malformed("it is not a file".into()),
            _ => io(error),
        })?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes < 8 {
            return Err(truncated(bytes, 8));
        }
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER {
            if lfs::is_pointer(&file) {
                return Err(Error::LfsPointer { path: path.to_owned() });
            }
            return Err(malformed(format!("its header length is {length} bytes, the format allows {MAX_HEADER}")));
        }
        let data_start = 8 + length;
        if bytes < data_start {
            return Err(truncated(bytes, data_start));
        }
        let mut json = vec![0; usize::try_from(length).expect("at most MAX_HEADER")];
        file.read_exact_at(&mut json, 8).map_err(io)?;
        // A shard of a data set has thousands of tensors, and this parser takes a fifth of the time of the parser below. If it
        // fails, the parser below returns an error that names the tensor.
        if let Ok(raw) = serde_json::from_slice::<RawHeader>(&json)
            && let Some(tensors) = usual_tensors(raw.tensors, data_start)
            && check_layout(&tensors, data_start).is_ok_and(|end| end == bytes)
        {
            return Ok(Self { path: path.to_owned(), tensors, metadata: raw.metadata, bytes });
        }
        let mut raw: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&json).map_err(|e| malformed(format!("its header is not JSON: {e}")))?;
        let metadata = match raw.remove("__metadata__") {
            Some(text) => serde_json::from_value(text).map_err(|e| malformed(format!("__metadata__: {e}")))?,
            None => BTreeMap::new(),
        };
        let mut tensors = BTreeMap::new();
        for (name, raw) in raw {
            let info = check_tensor(raw, data_start).map_err(|why| Error::BadTensor {
                path: path.to_owned(),
                tensor: name.clone(),
                why,
            })?;
            tensors.insert(name, info);
        }
        let end = check_layout(&tensors, data_start).map_err(|(tensor, why)| Error::BadTensor {
            path: path.to_owned(),
            tensor,
            why,
        })?;
        if bytes < end {
            return Err(truncated(bytes, end));
        }
        if bytes > end {
            return Err(malformed(format!("it has {bytes} bytes, but its tensors end at byte {end}")));
        }
        Ok(Self { path: path.to_owned(), tensors, metadata, bytes })
    }

    /// Returns the tensor with that name.
    ///
    /// # Errors
    /// [`Error::NoTensor`] with the names that the file has.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.tensors.get(name).ok_or_else(|| {
            let mut has: Vec<String> = self.tensors.keys().take(5).map(|k| format!("'{k}'")).collect();
            if self.tensors.len() > has.len() {
                has.push(format!("{} more", self.tensors.len() - has.len()));
            }
            let has = if has.is_empty() { "none".into() } else { has.join(", ") };
            Error::NoTensor { path: self.path.clone(), tensor: name.into(), has }
        })
    }

    /// Reads a whole tensor, as the little-endian bytes of the file.
    ///
    /// # Errors
    /// [`Error::NoTensor`] or [`Error::Io`].
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>, Error> {
        let info = self.tensor(name)?;
        let mut out = vec![0; usize::try_from(info.end - info.begin).expect("tensors fit in the address space")];
        let file = open_regular(&self.path).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        read_range(&file, &self.path, info, 0, info.elements(), &mut out)?;
        Ok(out)
    }
}

/// Reads `len` elements of a tensor, from element `start` on, into `out`, which must have their exact size in bytes. Only errors
/// use `path`.
///
/// # Errors
/// [`Error::Range`] or [`Error::Io`].
pub fn read_range(
    file: &File,
    path: &Utf8Path,
    info: &TensorInfo,
    start: u64,
    len: u64,
    out: &mut [u8],
) -> Result<(), Error> {
    let size = info.dtype.size() as u64;
    let end = start.checked_add(len).filter(|end| *end <= info.elements() && len * size == out.len() as u64);
    if end.is_none() {
        return Err(Error::Range {
            path: path.to_owned(),
            start,
            end: start.saturating_add(len),
            elements: info.elements(),
            out: out.len(),
        });
    }
    let io = |source| Error::Io { path: path.to_owned(), source };
    file.read_exact_at(out, info.begin + start * size).map_err(io)
}

fn usual_tensors(raw: Vec<(String, RawTensor)>, data_start: u64) -> Option<BTreeMap<String, TensorInfo>> {
    raw.into_iter().map(|(name, raw)| Some((name, check_raw(&raw, data_start).ok()?))).collect()
}

fn check_tensor(raw: serde_json::Value, data_start: u64) -> Result<TensorInfo, String> {
    check_raw(&serde_json::from_value(raw).map_err(|e| e.to_string())?, data_start)
}

fn check_raw(raw: &RawTensor, data_start: u64) -> Result<TensorInfo, String> {
    let dtype = Dtype::parse(&raw.dtype).ok_or_else(|| format!("its element type '{}' is unknown", raw.dtype))?;
    let [begin, end] = raw.data_offsets;
    let size = elements(&raw.shape).map(|elements| elements * dtype.size() as u64);
    let size = size.ok_or_else(|| format!("its shape {:?} overflows", raw.shape))?;
    if begin > end || end - begin != size {
        return Err(format!(
            "its shape {:?} of {dtype} needs {size} bytes, but its offsets are {begin}..{end}",
            raw.shape
        ));
    }
    let absolute = |offset: u64| data_start.checked_add(offset).ok_or_else(|| format!("its offset {offset} overflows"));
    let dims = raw.shape.iter().map(|d| usize::try_from(*d).map_err(|_| format!("its dimension {d} is too large")));
    Ok(TensorInfo { dtype, shape: dims.collect::<Result<_, _>>()?, begin: absolute(begin)?, end: absolute(end)? })
}

/// Checks that the tensors have no gaps or overlaps, and returns the end of the last one.
fn check_layout(tensors: &BTreeMap<String, TensorInfo>, data_start: u64) -> Result<u64, (String, String)> {
    let mut ordered: Vec<_> = tensors.iter().collect();
    ordered.sort_by_key(|(_, info)| (info.begin, info.end));
    let mut at = data_start;
    for (name, info) in ordered {
        let bytes = format!("its data begins at {}", info.begin - data_start);
        if info.begin < at {
            return Err((
                name.clone(),
                format!("{bytes}, inside of the previous tensor, which ends at {}", at - data_start),
            ));
        }
        if info.begin > at {
            return Err((
                name.clone(),
                format!("{bytes}, after a gap: the previous tensor ends at {}", at - data_start),
            ));
        }
        at = info.end;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{bytes_of, shown, temp, write};
    use std::fs;

    fn refused(json: &str, data: usize) -> String {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend(json.as_bytes());
        file.extend(vec![0; data]);
        fs::write(&path, file).unwrap();
        Failure::from(Header::read(&path).unwrap_err()).to_string().replace(folder.as_str(), "")
    }

    #[test]
    fn a_file_of_the_reference_crate_is_read() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(
            &path,
            &[
                ("w", Dtype::F32, &[2, 3]),
                ("b", Dtype::BF16, &[3]),
                ("n", Dtype::I64, &[]),
                ("none", Dtype::U8, &[0, 4]),
            ],
        );
        let header = Header::read(&path).unwrap();
        let found = |name: &str| header.tensors[name].clone();
        assert_eq!((found("w").dtype, found("w").shape, found("w").elements()), (Dtype::F32, vec![2, 3], 6));
        assert_eq!((found("n").shape, found("n").elements()), (vec![], 1));
        assert_eq!(found("none").elements(), 0);
        assert_eq!(header.bytes, fs::metadata(&path).unwrap().len());
        assert_eq!(header.read_tensor("w").unwrap(), bytes_of(24));
        assert_eq!(header.read_tensor("b").unwrap(), bytes_of(6));
        assert!(header.read_tensor("none").unwrap().is_empty());
    }

    #[test]
    fn a_range_is_read_without_the_rest() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(&path, &[("first", Dtype::U8, &[5]), ("w", Dtype::F32, &[4])]);
        let (file, header) = (File::open(&path).unwrap(), Header::read(&path).unwrap());
        let mut out = [0; 8];
        read_range(&file, &path, header.tensor("w").unwrap(), 1, 2, &mut out).unwrap();
        assert_eq!(out, bytes_of(16)[4..12]);
        read_range(&file, &path, header.tensor("w").unwrap(), 4, 0, &mut []).unwrap();
    }

    #[test]
    fn a_range_outside_of_the_tensor_is_refused() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(&path, &[("w", Dtype::F32, &[4]), ("x", Dtype::F32, &[4])]);
        let (file, header) = (File::open(&path).unwrap(), Header::read(&path).unwrap());
        let w = header.tensor("w").unwrap();
        for (start, len, out) in [(3, 2, 8), (5, 0, 0), (u64::MAX, 2, 8), (0, u64::MAX, 8), (0, 2, 7)] {
            assert!(matches!(read_range(&file, &path, w, start, len, &mut vec![0; out]), Err(Error::Range { .. })));
        }
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_an_error() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(&path, &[("w", Dtype::F32, &[4])]);
        let header = Header::read(&path).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(header.bytes - 1).unwrap();
        assert!(matches!(header.read_tensor("w"), Err(Error::Io { .. })));
    }

    #[test]
    fn the_error_of_a_missing_tensor_lists_the_tensors_of_the_file() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(&path, &[("latents", Dtype::F32, &[4]), ("text", Dtype::F32, &[4])]);
        let failure = Failure::from(Header::read(&path).unwrap().tensor("latent").unwrap_err());
        assert_eq!(failure.code, rundir::ErrorCode::TensorMismatch);
        insta::assert_snapshot!(failure.why, @"it has 'latents', 'text'");
    }

    #[test]
    fn the_error_of_a_truncated_file_has_both_sizes() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        write(&path, &[("w", Dtype::F32, &[4])]);
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let Err(Error::Truncated { found, wanted, .. }) = Header::read(&path) else { panic!("{len} was read") };
            assert!(found == len as u64 && found < wanted);
        }
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert!(matches!(Header::read(&path), Err(Error::Malformed { .. })), "a file with more than its tensors");
    }

    #[test]
    fn each_violated_rule_is_named() {
        let tensor = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let overlap = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
        let cases = [
            refused("{]", 0),
            refused(&tensor("Q4", "[4]", "[0,16]"), 16),
            refused(&tensor("F32", "[4]", "[0,15]"), 15),
            refused(&tensor("F32", "[4]", "[16,0]"), 16),
            refused(&tensor("F32", "[4]", "[4,20]"), 20),
            refused(&tensor("F32", "[-4]", "[0,16]"), 16),
            refused(&tensor("F32", "[4294967296,4294967296]", "[0,16]"), 16),
            refused(r#"{"__metadata__":{"a":1}}"#, 0),
            refused(r#"{"w":7}"#, 0),
            refused(overlap, 6),
        ];
        insta::assert_snapshot!(cases.join("\n"));
    }

    #[test]
    fn a_header_longer_than_the_format_allows_is_not_allocated() {
        let (_keep, folder) = temp();
        let path = folder.join("a.safetensors");
        fs::write(&path, [0xff; 64]).unwrap();
        let failure = Failure::from(Header::read(&path).unwrap_err());
        insta::assert_snapshot!(shown(&failure, &folder));
    }

    #[test]
    fn a_missing_path_or_a_folder_is_an_error() {
        let (_keep, folder) = temp();
        let failure = Failure::from(Header::read(&folder.join("none")).unwrap_err());
        assert_eq!(failure.code, ErrorCode::NotFound);
        insta::assert_snapshot!(shown(&failure, &folder));
        assert!(matches!(Header::read(&folder), Err(Error::Malformed { .. })));
    }

    #[test]
    fn a_pointer_of_git_lfs_is_named_as_such() {
        let (_keep, folder) = temp();
        let text = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 11300\n", "0".repeat(64));
        let path = folder.join("a.safetensors");
        fs::write(&path, &text).unwrap();
        assert!(matches!(Header::read(&path), Err(Error::LfsPointer { .. })));
        let torch = folder.join("a.bin");
        fs::write(&torch, &text).unwrap();
        let failures = [Failure::from(Header::read(&path).unwrap_err()), crate::open_torch_file(&torch).unwrap_err()];
        assert!(failures.iter().all(|failure| failure.code == ErrorCode::Malformed && failure.fix.contains("git lfs")));
    }

    #[test]
    fn the_checkpoint_files_of_the_frozen_run_are_read() {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/runs/v1/2026-11-20T0340-demo-2s-k7f2");
        let latest = other_trainers::latest(&rundir::RunDir::new(run)).unwrap();
        let checkpoint = rundir::Checkpoint::open(&latest.dir).unwrap();
        for slice in checkpoint.manifest.tensors.iter().flat_map(|t| &t.slices) {
            let header = Header::read(&checkpoint.dir.join(&slice.file)).unwrap();
            assert_eq!(header.tensor(&slice.key).unwrap().elements(), slice.len);
        }
    }
}
