//! Locates tensors on disk as lists of file ranges.

use crate::{Dtype, Error, Header};
use camino::Utf8Path;
use rundir::open_regular;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Tensors by name.
pub type Tensors = BTreeMap<String, StoredTensor>;

/// The limit of open files. A checkpoint of hundreds of ranks has more files than a process may open.
const OPEN: usize = 64;

/// A tensor on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// The element type.
    pub dtype: Dtype,
    /// The shape.
    pub shape: Vec<usize>,
    /// The file ranges that contain the tensor's bytes, in row-major order.
    pub spans: Vec<Span>,
}

/// A range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The file.
    pub file: Arc<Utf8Path>,
    /// The offset of the first byte.
    pub begin: u64,
    /// The length in bytes.
    pub len: u64,
}

impl StoredTensor {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.bytes() / self.dtype.size() as u64
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.len).sum()
    }

    /// Returns the first file that holds a part of the tensor, for messages.
    pub fn file(&self) -> &str {
        self.spans.first().map_or("", |span| span.file.as_str())
    }

    /// Returns the file ranges of the tensor's bytes `begin..begin + len`.
    pub fn cut(&self, begin: u64, len: u64) -> Vec<Span> {
        let (mut at, end, mut cut) = (0, begin + len, Vec::new());
        for span in &self.spans {
            let (first, last) = (begin.max(at), end.min(at + span.len));
            if first < last {
                cut.push(Span { file: span.file.clone(), begin: span.begin + first - at, len: last - first });
            }
            at += span.len;
        }
        cut
    }
}

/// Returns the number of elements of a shape; `None` if a product of its axes overflows, which an axis of length 0 does not hide.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    let largest = shape.iter().try_fold(1u64, |n, d| n.checked_mul((*d).max(1)))?;
    // Callers multiply with the size of an element.
    largest.checked_mul(8)?;
    Some(if shape.contains(&0) { 0 } else { largest })
}

/// Returns the tensors of a safetensors file.
pub fn tensors_of_header(header: &Header) -> Tensors {
    let file: Arc<Utf8Path> = Arc::from(header.path.as_path());
    let stored = |info: &crate::TensorInfo| StoredTensor {
        dtype: info.dtype,
        shape: info.shape.clone(),
        spans: vec![Span { file: file.clone(), begin: info.begin, len: info.end - info.begin }],
    };
    header.tensors.iter().map(|(name, info)| (name.clone(), stored(info))).collect()
}

/// Files that are open for reading, at most 64 at a time.
#[derive(Debug, Default)]
pub struct Files {
    open: HashMap<Arc<Utf8Path>, File>,
}

impl Files {
    /// Fills `out` with the bytes of a file from offset `at` on.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or is too short.
    pub fn read(&mut self, path: &Arc<Utf8Path>, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        if !self.open.contains_key(path) {
            if self.open.len() >= OPEN {
                self.open.clear();
            }
            self.open.insert(path.clone(), open_regular(path.as_std_path()).map_err(io)?);
        }
        self.open[path].read_exact_at(out, at).map_err(io)
    }
}

impl Files {
    /// Reads a whole tensor, as the little-endian bytes of the files.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read.
    pub fn read_all(&mut self, tensor: &StoredTensor) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; usize::try_from(tensor.bytes()).expect("a tensor that fits in the address space")];
        let mut rest = &mut out[..];
        for span in &tensor.spans {
            let (part, after) = rest.split_at_mut(span.len as usize);
            self.read(&span.file, span.begin, part)?;
            rest = after;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_length_0_does_not_hide_that_a_shape_overflows() {
        assert_eq!((elements(&[]), elements(&[2, 3]), elements(&[2, 0])), (Some(1), Some(6), Some(0)));
        assert_eq!(
            (elements(&[0, 1 << 32, 1 << 32]), elements(&[1 << 61]), elements(&[u64::MAX, 2])),
            (None, None, None)
        );
    }

    #[test]
    fn a_cut_takes_the_parts_of_the_spans_that_it_covers() {
        let span = |file: &str, begin, len| Span { file: Arc::from(Utf8Path::new(file)), begin, len };
        let tensor =
            StoredTensor { dtype: Dtype::U8, shape: vec![30], spans: vec![span("a", 100, 10), span("b", 8, 20)] };
        assert_eq!(tensor.cut(4, 10), [span("a", 104, 6), span("b", 8, 4)]);
        assert_eq!(tensor.cut(12, 3), [span("b", 10, 3)]);
        assert_eq!(tensor.cut(0, 30), tensor.spans);
        assert!(tensor.cut(30, 0).is_empty());
    }
}
