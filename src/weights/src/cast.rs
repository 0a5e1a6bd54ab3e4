//! Converts tensor elements from one dtype to another.

use crate::Dtype;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The dtypes that a conversion can write.
pub(crate) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// Returns the dtype that parameters of a source keep by default, or `None` if parameters cannot have this dtype. F64 becomes F32:
/// diffusers computes the initial learned positions in F64, and no trainer computes with more than F32.
pub(crate) fn kept(dtype: Dtype) -> Option<Dtype> {
    match dtype {
        Dtype::F64 => Some(Dtype::F32),
        _ => FLOATS.contains(&dtype).then_some(dtype),
    }
}

/// The number of elements per batch. A batch stays in the CPU cache between decoding and encoding.
const AT_ONCE: usize = 1024;

/// Appends `input`, elements of type `from`, to `out` as elements of type `to`, rounded to the nearest.
///
/// # Errors
/// Returns the first number that is finite in `from` but not in `to`.
pub(crate) fn cast(from: Dtype, to: Dtype, input: &[u8], out: &mut Vec<u8>) -> Result<(), f64> {
    let mut numbers = [0f32; AT_ONCE];
    for part in input.chunks(AT_ONCE * from.size()) {
        let numbers = &mut numbers[..part.len() / from.size()];
        decode(from, part, numbers);
        fits_f32(from, part, numbers)?;
        encode(to, numbers, out)?;
    }
    Ok(())
}

/// Checks that the finite elements of `input` are finite in `numbers`, into which they were decoded. Only F64 can fail.
///
/// # Errors
/// Returns the first number of an F64 tensor whose nearest F32 number is infinite.
pub(crate) fn fits_f32(from: Dtype, input: &[u8], numbers: &[f32]) -> Result<(), f64> {
    if from != Dtype::F64 {
        return Ok(());
    }
    let lost = values(from, input).zip(numbers).find(|(wide, narrow)| wide.is_finite() && !narrow.is_finite());
    lost.map_or(Ok(()), |(wide, _)| Err(wide))
}

/// Decodes elements of type `from` into `numbers`, which has the same length.
pub(crate) fn decode(from: Dtype, input: &[u8], numbers: &mut [f32]) {
    // The compiler vectorizes loops over arrays of a constant size.
    match from {
        Dtype::F32 => {
            let all = input.as_chunks::<4>().0.iter();
            numbers.iter_mut().zip(all).for_each(|(number, bytes)| *number = f32::from_le_bytes(*bytes));
        }
        Dtype::BF16 => {
            let all = input.as_chunks::<2>().0.iter();
            let long = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            numbers.iter_mut().zip(all).for_each(|(number, bytes)| *number = long(bytes));
        }
        Dtype::F16 => {
            let mut short = [f16::ZERO; AT_ONCE];
            for (numbers, input) in numbers.chunks_mut(AT_ONCE).zip(input.chunks(AT_ONCE * 2)) {
                let short = &mut short[..numbers.len()];
                let all = input.as_chunks::<2>().0.iter();
                short.iter_mut().zip(all).for_each(|(short, bytes)| *short = f16::from_le_bytes(*bytes));
                short.convert_to_f32_slice(numbers);
            }
        }
        _ => numbers.iter_mut().zip(values(from, input)).for_each(|(number, value)| *number = value as f32),
    }
}

/// Encodes numbers as elements of type `to` and appends them.
///
/// # Errors
/// As [`cast`].
pub(crate) fn encode(to: Dtype, numbers: &[f32], out: &mut Vec<u8>) -> Result<(), f64> {
    let at = out.len();
    let size = if to == Dtype::F32 { 4 } else { 2 };
    out.resize(at + numbers.len() * size, 0);
    let out = &mut out[at..];
    let mut lost = false;
    match to {
        Dtype::BF16 => {
            for (bytes, number) in out.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
                let short = bf16_bits(number.to_bits());
                lost |= number.is_finite() & (short & 0x7fff == 0x7f80);
                *bytes = short.to_le_bytes();
            }
        }
        Dtype::F16 => {
            let mut short = [f16::ZERO; AT_ONCE];
            for (out, numbers) in out.chunks_mut(AT_ONCE * 2).zip(numbers.chunks(AT_ONCE)) {
                let short = &mut short[..numbers.len()];
                short.convert_from_f32_slice(numbers);
                lost |= short.iter().zip(numbers).any(|(short, number)| number.is_finite() && !short.is_finite());
                out.as_chunks_mut::<2>().0.iter_mut().zip(short).for_each(|(out, short)| *out = short.to_le_bytes());
            }
        }
        _ => {
            let all = out.as_chunks_mut::<4>().0.iter_mut();
            all.zip(numbers).for_each(|(bytes, number)| *bytes = number.to_le_bytes());
        }
    }
    let fits = |number: f32| match to {
        Dtype::BF16 => bf16::from_f32(number).is_finite(),
        _ => f16::from_f32(number).is_finite(),
    };
    match numbers.iter().find(|number| lost && number.is_finite() && !fits(**number)) {
        Some(number) => Err(f64::from(*number)),
        None => Ok(()),
    }
}

/// Rounds the bits of a float32 to the nearest bfloat16, ties to even. The code has no branch, so that the compiler
/// vectorizes it; the crate `half` converts one element at a time.
fn bf16_bits(bits: u32) -> u16 {
    let nearest = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { bits >> 16 | 0x40 } else { nearest }) as u16
}

/// Decodes elements as numbers. The iterator is empty for the float8 types.
pub(crate) fn values(dtype: Dtype, bytes: &[u8]) -> Box<dyn Iterator<Item = f64> + '_> {
    macro_rules! numbers {
        ($number:ty, $len:literal, $as_f64:expr) => {
            Box::new(bytes.as_chunks::<$len>().0.iter().map(|b| $as_f64(<$number>::from_le_bytes(*b))))
        };
    }
    match dtype {
        Dtype::F32 => numbers!(f32, 4, f64::from),
        Dtype::BF16 => numbers!(bf16, 2, f64::from),
        Dtype::F16 => numbers!(f16, 2, f64::from),
        Dtype::F64 => numbers!(f64, 8, |x| x),
        Dtype::Bool | Dtype::U8 => numbers!(u8, 1, f64::from),
        Dtype::I8 => numbers!(i8, 1, f64::from),
        Dtype::I16 => numbers!(i16, 2, f64::from),
        Dtype::U16 => numbers!(u16, 2, f64::from),
        Dtype::I32 => numbers!(i32, 4, f64::from),
        Dtype::U32 => numbers!(u32, 4, f64::from),
        Dtype::I64 => numbers!(i64, 8, |x: i64| x as f64),
        Dtype::U64 => numbers!(u64, 8, |x: u64| x as f64),
        Dtype::F8E4M3 | Dtype::F8E5M2 => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_even() {
        let mut out = Vec::new();
        // Two values halfway between two bfloat16 numbers: one rounds down, one up.
        cast(Dtype::F32, Dtype::BF16, &bytes(&[257.0 / 256.0, 259.0 / 256.0, -0.0, f32::INFINITY]), &mut out).unwrap();
        let back: Vec<f64> = values(Dtype::BF16, &out).collect();
        assert_eq!(back, [1.0, 1.015625, 0.0, f64::INFINITY]);
        assert!(back[2].is_sign_negative());
    }

    #[test]
    fn a_number_that_does_not_fit_is_an_error() {
        assert_eq!(cast(Dtype::F32, Dtype::F16, &bytes(&[1.0, 70000.0]), &mut Vec::new()), Err(70000.0));
        assert_eq!(cast(Dtype::F32, Dtype::BF16, &bytes(&[f32::MAX]), &mut Vec::new()), Err(f64::from(f32::MAX)));
        let wide: Vec<u8> = [1.0f64, f64::INFINITY, -1e39].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(cast(Dtype::F64, Dtype::F32, &wide, &mut Vec::new()), Err(-1e39));
        let mut out = Vec::new();
        cast(Dtype::F64, Dtype::F32, &wide[..16], &mut out).unwrap();
        assert_eq!(out, bytes(&[1.0, f32::INFINITY]));
    }

    proptest! {
        #[test]
        fn every_cast_equals_the_cast_of_one_number_at_a_time(bits in proptest::collection::vec(any::<u32>(), 0..3000)) {
            let input: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            for from in FLOATS {
                let numbers: Vec<f32> = values(from, &input).map(|value| value as f32).collect();
                for to in FLOATS {
                    let one = |n: &f32| match to {
                        Dtype::BF16 => f64::from(bf16::from_f32(*n)),
                        Dtype::F16 => f64::from(f16::from_f32(*n)),
                        _ => f64::from(*n),
                    };
                    let lost = numbers.iter().find(|n| n.is_finite() && !one(n).is_finite());
                    let mut out = Vec::new();
                    let done = cast(from, to, &input, &mut out);
                    prop_assert_eq!(done, lost.map_or(Ok(()), |n| Err(f64::from(*n))));
                    let same = |(a, b): (f64, f64)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                    prop_assert!(lost.is_some() || values(to, &out).zip(numbers.iter().map(one)).all(same));
                    prop_assert!(lost.is_some() || out.len() == numbers.len() * to.size());
                }
            }
        }

        #[test]
        fn half_precision_numbers_survive_a_round_trip_through_float32(bits: Vec<u16>) {
            let input: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            for dtype in [Dtype::BF16, Dtype::F16] {
                let (mut long, mut short) = (Vec::new(), Vec::new());
                cast(dtype, Dtype::F32, &input, &mut long).unwrap();
                cast(Dtype::F32, dtype, &long, &mut short).unwrap();
                let same = values(dtype, &input).zip(values(dtype, &short)).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
                prop_assert!(same);
            }
        }
    }
}
