//! Elements from one type to another.

use crate::Dtype;
use half::{bf16, f16};

/// The types that parameters may have.
pub(crate) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// Appends `input`, elements of type `from`, to `out` as elements of type `to`, rounded to the nearest.
///
/// # Errors
/// The first number that is finite in `from` and not in `to`.
pub(crate) fn cast(from: Dtype, to: Dtype, input: &[u8], out: &mut Vec<u8>) -> Result<(), f64> {
    let lost = |value: f32, stays: bool| if stays || !value.is_finite() { Ok(()) } else { Err(f64::from(value)) };
    for value in values(from, input) {
        match to {
            Dtype::F16 => {
                let short = f16::from_f32(value as f32);
                lost(value as f32, short.is_finite())?;
                out.extend(short.to_le_bytes());
            }
            Dtype::BF16 => {
                let short = bf16::from_f32(value as f32);
                lost(value as f32, short.is_finite())?;
                out.extend(short.to_le_bytes());
            }
            _ => out.extend((value as f32).to_le_bytes()),
        }
    }
    Ok(())
}

/// The numbers that bytes stand for; nothing for types that are not plain numbers.
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
        // Halfway between two bfloat16, once to each side.
        cast(Dtype::F32, Dtype::BF16, &bytes(&[257.0 / 256.0, 259.0 / 256.0, -0.0, f32::INFINITY]), &mut out).unwrap();
        let back: Vec<f64> = values(Dtype::BF16, &out).collect();
        assert_eq!(back, [1.0, 1.015625, 0.0, f64::INFINITY]);
        assert!(back[2].is_sign_negative());
    }

    #[test]
    fn a_number_that_does_not_fit_is_an_error() {
        assert_eq!(cast(Dtype::F32, Dtype::F16, &bytes(&[1.0, 70000.0]), &mut Vec::new()), Err(70000.0));
        assert_eq!(cast(Dtype::F32, Dtype::BF16, &bytes(&[f32::MAX]), &mut Vec::new()), Err(f64::from(f32::MAX)));
    }

    proptest! {
        #[test]
        fn what_is_short_survives_being_long(bits: Vec<u16>) {
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
