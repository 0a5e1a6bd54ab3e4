//! Retries an encode that ran out of memory with less at a time: halves of a batch, or tiles instead of whole frames.

use rundir::{ErrorCode, Failure};
use std::ops::Range;

/// Encodes items together, or in halves if they do not fit into memory together. Returns the results in the order of
/// the items.
pub fn in_halves<T>(
    items: Range<usize>,
    encode: &mut dyn FnMut(Range<usize>) -> Result<T, Failure>,
) -> Vec<(Range<usize>, Result<T, Failure>)> {
    match encode(items.clone()) {
        Err(failure) if failure.code == ErrorCode::OutOfMemory && items.len() > 1 => {
            let middle = items.start + items.len() / 2;
            let mut results = in_halves(items.start..middle, encode);
            results.extend(in_halves(middle..items.end, encode));
            results
        }
        result => vec![(items, result)],
    }
}

/// Whether pictures are encoded whole or in tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameSplit {
    Whole,
    InTiles,
}

/// Encodes whole frames, or tiles if whole frames do not fit into memory and `may_tile` is set.
pub fn whole_or_tiles<T>(
    may_tile: bool,
    mut encode: impl FnMut(FrameSplit) -> Result<T, Failure>,
) -> Result<T, Failure> {
    match encode(FrameSplit::Whole) {
        Err(failure) if failure.code == ErrorCode::OutOfMemory && may_tile => encode(FrameSplit::InTiles),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Failure {
        Failure::new(ErrorCode::OutOfMemory, "cannot encode", "8 GiB are missing", "use a smaller batch")
    }

    #[test]
    fn captions_are_encoded_in_halves_until_they_fit_and_only_a_single_caption_fails() {
        let mut asked = Vec::new();
        let results = in_halves(0..6, &mut |items| {
            asked.push(items.clone());
            // Two captions fit together. Caption 4 does not fit even alone.
            if items.len() > 2 || items.contains(&4) { Err(short()) } else { Ok(items.len()) }
        });
        let shown: Vec<_> =
            results.iter().map(|(items, result)| (items.clone(), result.as_ref().ok().copied())).collect();
        assert_eq!(shown, [(0..1, Some(1)), (1..3, Some(2)), (3..4, Some(1)), (4..5, None), (5..6, Some(1))]);
        assert_eq!(asked[0], 0..6);
        let other = Failure::new(ErrorCode::DeviceFailed, "the GPU is lost", "", "");
        let results = in_halves(0..6, &mut |_| Err::<(), _>(other.clone()));
        assert_eq!(results, [(0..6, Err(other))], "only a lack of memory causes another try");
    }

    #[test]
    fn a_clip_is_encoded_in_tiles_only_if_memory_is_short_and_tiles_are_allowed() {
        let encoded = |may_tile, fits: &[FrameSplit]| {
            let mut asked = Vec::new();
            let result = whole_or_tiles(may_tile, |frames| {
                asked.push(frames);
                if fits.contains(&frames) { Ok(()) } else { Err(short()) }
            });
            (asked, result.map_err(|failure| failure.code))
        };
        use FrameSplit::{InTiles, Whole};
        assert_eq!(encoded(true, &[Whole, InTiles]), (vec![Whole], Ok(())));
        assert_eq!(encoded(true, &[InTiles]), (vec![Whole, InTiles], Ok(())));
        assert_eq!(encoded(true, &[]), (vec![Whole, InTiles], Err(ErrorCode::OutOfMemory)));
        assert_eq!(encoded(false, &[InTiles]), (vec![Whole], Err(ErrorCode::OutOfMemory)));
    }
}
