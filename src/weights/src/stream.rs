//! Streams the bytes of a tensor to be written, in order and in chunks.

use crate::cast::cast;
use crate::finite::{self, NotFinite};
use crate::initial_values::InitialValues;
use crate::merge::Merge;
use crate::tensor_spans::{Files, Span};
use crate::{Dtype, Error};
use rundir::{ErrorCode, Failure};

/// The number of bytes that are read and written at a time. They stay in the CPU cache between read and write. Larger
/// writes also take more kernel time: on Linux 6.18 with ext4, 2 GB took 0.7 s at 256 KiB and 1.5 s at 512 KiB.
pub(crate) const CHUNK: usize = 256 << 10;

/// A run of bytes of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Segment {
    /// Bytes of a file.
    File(Span),
    /// This number of zero bytes.
    Zeros(u64),
    /// Initial values in float32, with this size in bytes.
    Initial(InitialValues, u64),
    /// Bytes in memory.
    Given(Vec<u8>),
}

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Self::File(span) => span.len,
            Self::Zeros(len) | Self::Initial(_, len) => *len,
            Self::Given(bytes) => bytes.len() as u64,
        }
    }
}

/// The numbers of values that are not finite in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streamed {
    /// In the written tensor.
    written: u64,
    /// In the factors of the adapter that was merged.
    factors: u64,
}

impl Streamed {
    /// Returns the entry of a tensor with such values, or that of its adapter, which is the cause then; `None` if all are finite.
    pub fn of(self, name: &str) -> Option<NotFinite> {
        let of_adapter = NotFinite::of(&format!("the adapter of {name}"), self.factors);
        of_adapter.or_else(|| NotFinite::of(name, self.written))
    }
}

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorToWrite {
    /// The name in the written file.
    pub name: String,
    /// The shape in the written file.
    pub shape: Vec<usize>,
    /// The dtype of the segments.
    pub(crate) from: Dtype,
    /// The dtype that is written.
    pub(crate) to: Dtype,
    /// The sources of the bytes, in order.
    pub(crate) segments: Vec<Segment>,
    /// The LoRA product to add.
    pub(crate) merge: Option<Merge>,
}

impl TensorToWrite {
    /// Creates a tensor that is copied from ranges of files.
    pub fn copied(name: &str, shape: &[usize], dtype: Dtype, spans: Vec<Span>) -> Self {
        Self::new(name, shape, dtype, dtype, spans.into_iter().map(Segment::File).collect())
    }

    /// Creates a tensor of zeros.
    pub fn zeros(name: &str, shape: &[usize], dtype: Dtype) -> Self {
        let bytes = dtype.size() * shape.iter().product::<usize>();
        Self::new(name, shape, dtype, dtype, vec![Segment::Zeros(bytes as u64)])
    }

    /// Creates a tensor without a merged adapter.
    pub(crate) fn new(name: &str, shape: &[usize], from: Dtype, to: Dtype, segments: Vec<Segment>) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), from, to, segments, merge: None }
    }

    /// Returns the size in bytes of the written tensor.
    pub fn bytes(&self) -> u64 {
        let read: u64 = self.segments.iter().map(Segment::len).sum();
        read / self.from.size() as u64 * self.to.size() as u64
    }

    /// Reads the tensor in pieces, converts each piece to the dtype that is written, and passes it to `give`. `buffer` returns a
    /// buffer to fill, whose content is arbitrary. Counts the values that are not finite.
    pub(crate) fn stream(
        &self,
        files: &mut Files,
        mut buffer: impl FnMut() -> Vec<u8>,
        mut give: impl FnMut(Vec<u8>) -> Result<(), Failure>,
    ) -> Result<Streamed, Failure> {
        let mut raw = Vec::new();
        let mut reader = Reader { segments: &self.segments, at: 0 };
        let mut merge = self.merge.as_ref().map(|merge| merge.read(files)).transpose()?;
        let mut counts = Streamed { written: 0, factors: merge.as_ref().map_or(0, |merge| merge.not_finite) };
        let mut left: u64 = self.segments.iter().map(Segment::len).sum();
        while left > 0 {
            let len = left.min(CHUNK as u64) as usize;
            left -= len as u64;
            // A reused buffer usually has the length of the next piece already, and need not be cleared.
            let mut out = buffer();
            if self.from == self.to && merge.is_none() {
                out.resize(len, 0);
                reader.fill(files, &mut out)?;
            } else {
                raw.resize(len, 0);
                reader.fill(files, &mut raw)?;
                out.clear();
                let converted = match &mut merge {
                    Some(merge) => merge.add_to(self.from, self.to, &raw, &mut out),
                    None => cast(self.from, self.to, &raw, &mut out),
                };
                converted.map_err(|value| {
                    let why = format!("its value {value:e} is out of the range of {}", self.to);
                    let fix = match self.to {
                        Dtype::F16 => "choose another --dtype, such as bfloat16",
                        _ => "get weights that are finite in float32: the trainer computes with no wider type",
                    };
                    Failure::new(ErrorCode::InvalidArgument, format!("cannot convert {}", self.name), why, fix)
                })?;
            }
            counts.written += finite::count(self.to, &out);
            give(out)?;
        }
        Ok(counts)
    }
}

/// The read position in the segments.
struct Reader<'a> {
    segments: &'a [Segment],
    at: u64,
}

impl Reader<'_> {
    /// Fills `out` with the next bytes. The segments must have enough bytes left.
    fn fill(&mut self, files: &mut Files, out: &mut [u8]) -> Result<(), Error> {
        let mut filled = 0;
        while let [segment, rest @ ..] = self.segments
            && filled < out.len()
        {
            let len = (segment.len() - self.at).min((out.len() - filled) as u64) as usize;
            let part = &mut out[filled..filled + len];
            match segment {
                Segment::File(span) => files.read(&span.file, span.begin + self.at, part)?,
                Segment::Zeros(_) => part.fill(0),
                Segment::Given(bytes) => part.copy_from_slice(&bytes[self.at as usize..][..len]),
                Segment::Initial(values, _) => {
                    let first = self.at / 4;
                    for (n, value) in part.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *value = values.value(first + n as u64).to_le_bytes();
                    }
                }
            }
            filled += len;
            self.at += len as u64;
            if self.at == segment.len() {
                (self.segments, self.at) = (rest, 0);
            }
        }
        debug_assert_eq!(filled, out.len());
        Ok(())
    }
}
