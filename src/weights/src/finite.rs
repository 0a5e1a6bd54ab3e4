//! Counts the values of tensors that are not finite: NaN and infinite values.

use crate::Dtype;
use crate::tensor_spans::Span;
use serde::Serialize;

/// A tensor with values that are not finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotFinite {
    /// The name of the tensor.
    pub tensor: String,
    /// The number of its values that are NaN or infinite.
    pub values: u64,
}

impl NotFinite {
    /// Makes the entry of a tensor; `None` if all its values are finite.
    pub(crate) fn of(tensor: &str, values: u64) -> Option<Self> {
        (values > 0).then(|| Self { tensor: tensor.to_owned(), values })
    }

    /// Describes tensors with such values: their number of values, and the first five tensors.
    pub fn words(found: &[Self]) -> String {
        let total: u64 = found.iter().map(|tensor| tensor.values).sum();
        let values = if total == 1 { "value is" } else { "values are" };
        let names = units::listed(found, 5, |tensor| format!("{} ({})", tensor.tensor, units::grouped(tensor.values)));
        let tensors = units::counted(found.len(), "tensor");
        format!("{} {values} not finite (NaN or infinite), in {tensors}: {names}", units::grouped(total))
    }
}

/// Returns the number of values that are NaN or infinite. Integers and float8 numbers count as finite.
pub fn count(dtype: Dtype, bytes: &[u8]) -> u64 {
    macro_rules! counted {
        ($bits:ty, $len:literal, $exponent:literal) => {{
            fn is_bad(bytes: [u8; $len]) -> bool {
                <$bits>::from_le_bytes(bytes) & $exponent == $exponent
            }
            let all = bytes.as_chunks::<$len>().0;
            // The compiler vectorizes a loop without a branch and without a sum. Few tensors need the second loop.
            if all.iter().fold(false, |found, value| found | is_bad(*value)) {
                all.iter().filter(|value| is_bad(**value)).count() as u64
            } else {
                0
            }
        }};
    }
    match dtype {
        Dtype::F64 => counted!(u64, 8, 0x7ff0_0000_0000_0000),
        Dtype::F32 => counted!(u32, 4, 0x7f80_0000),
        Dtype::BF16 => counted!(u16, 2, 0x7f80),
        Dtype::F16 => counted!(u16, 2, 0x7c00),
        _ => 0,
    }
}

/// Counts the values that are not finite in some tensors of a file, while the file is read from its first to its last byte.
pub(crate) struct Scan {
    /// The tensors in the order of the file.
    parts: Vec<Part>,
    /// The index of the first tensor whose end has not been read.
    next: usize,
    /// The number of bytes that have been read.
    at: u64,
    /// The first bytes of a value whose rest has not been read.
    begun: Vec<u8>,
}

struct Part {
    tensor: String,
    dtype: Dtype,
    begin: u64,
    end: u64,
    values: u64,
}

impl Scan {
    /// Makes a scan of tensors, each of which is one range of the file.
    pub fn new<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a Span)>) -> Self {
        let part = |(tensor, dtype, span): (&str, Dtype, &Span)| Part {
            tensor: tensor.to_owned(),
            dtype,
            begin: span.begin,
            end: span.begin + span.len,
            values: 0,
        };
        let mut parts: Vec<Part> = tensors.map(part).collect();
        parts.sort_by_key(|part| (part.begin, part.end));
        Self { parts, next: 0, at: 0, begun: Vec::new() }
    }

    /// Takes the next bytes of the file.
    pub fn see(&mut self, mut bytes: &[u8]) {
        while let Some(part) = self.parts.get_mut(self.next) {
            let before = part.begin.saturating_sub(self.at).min(bytes.len() as u64);
            bytes = &bytes[before as usize..];
            self.at += before;
            if self.at < part.begin {
                return;
            }
            let len = part.end.saturating_sub(self.at).min(bytes.len() as u64);
            let (own, rest) = bytes.split_at(len as usize);
            part.values += count_next(&mut self.begun, part.dtype, own);
            bytes = rest;
            self.at += len;
            if self.at < part.end {
                return;
            }
            self.next += 1;
        }
    }

    /// Returns the tensors with values that are not finite.
    pub fn found(self) -> Vec<NotFinite> {
        self.parts.iter().filter_map(|part| NotFinite::of(&part.tensor, part.values)).collect()
    }
}

/// Counts the values in the next bytes of a tensor. The bytes may end within a value, whose first bytes then stay in `begun`.
fn count_next(begun: &mut Vec<u8>, dtype: Dtype, mut bytes: &[u8]) -> u64 {
    let mut values = 0;
    if !begun.is_empty() {
        let (rest, after) = bytes.split_at(dtype.size().saturating_sub(begun.len()).min(bytes.len()));
        begun.extend_from_slice(rest);
        if begun.len() < dtype.size() {
            return 0;
        }
        values += count(dtype, begun);
        begun.clear();
        bytes = after;
    }
    let (whole, rest) = bytes.split_at(bytes.len() / dtype.size() * dtype.size());
    begun.extend_from_slice(rest);
    values + count(dtype, whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::values;
    use camino::Utf8Path;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn each_float_type_has_nan_and_infinities_and_other_types_have_none() {
        let f16s = |numbers: [f32; 4]| -> Vec<u8> {
            numbers.iter().flat_map(|n| half::f16::from_f32(*n).to_le_bytes()).collect()
        };
        let bf16s = |numbers: [f32; 4]| -> Vec<u8> {
            numbers.iter().flat_map(|n| half::bf16::from_f32(*n).to_le_bytes()).collect()
        };
        let numbers = [f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY];
        let cases: [(Dtype, Vec<u8>); 4] = [
            (Dtype::F16, f16s(numbers)),
            (Dtype::BF16, bf16s(numbers)),
            (Dtype::F32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect()),
            (Dtype::F64, numbers.iter().flat_map(|n| f64::from(*n).to_le_bytes()).collect()),
        ];
        for (dtype, bytes) in cases {
            assert_eq!(count(dtype, &bytes), 3, "{dtype}");
        }
        assert_eq!(count(Dtype::I32, &[0xff; 64]), 0);
    }

    proptest! {
        #[test]
        fn the_count_is_that_of_one_value_at_a_time(bytes: Vec<u8>) {
            for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64] {
                let expected = values(dtype, &bytes).filter(|value| !value.is_finite()).count() as u64;
                prop_assert_eq!(count(dtype, &bytes), expected);
            }
        }

        #[test]
        fn a_file_that_is_read_in_pieces_gives_the_counts_of_its_tensors(
            file in proptest::collection::vec(prop_oneof![Just(0xffu8), any::<u8>()], 100),
            cuts in proptest::collection::vec(1..40usize, 0..20),
        ) {
            let span = |begin, len| Span { file: Arc::from(Utf8Path::new("a")), begin, len };
            // The second tensor begins at an odd offset, and a gap lies between both.
            let tensors = [("b", Dtype::F16, span(63, 36)), ("a", Dtype::F32, span(3, 40))];
            let mut scan = Scan::new(tensors.iter().map(|(name, dtype, span)| (*name, *dtype, span)));
            let mut rest = &file[..];
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                scan.see(piece);
                rest = after;
            }
            scan.see(rest);
            let found = scan.found();
            for (name, dtype, span) in &tensors {
                let all = count(*dtype, &file[span.begin as usize..][..span.len as usize]);
                let seen = found.iter().find(|tensor| tensor.tensor == *name).map_or(0, |tensor| tensor.values);
                prop_assert_eq!(seen, all);
            }
        }
    }
}
