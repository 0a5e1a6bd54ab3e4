//! Boxes (ranges of each dimension) of tensors, and the elements that two pieces of a tensor have in common.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A part of a tensor: a range of each dimension.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorBox {
    /// The start of the box in each dimension.
    pub offset: Vec<usize>,
    /// Its size in each dimension.
    pub size: Vec<usize>,
}

/// A contiguous range of elements that two pieces of a tensor have in common. Indices count from the start of each
/// piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// The index of the first common element in this piece.
    pub here: u64,
    /// The index of the first common element in the other piece.
    pub there: u64,
    /// The number of elements.
    pub len: u64,
}

impl TensorBox {
    /// Returns the box of a whole tensor.
    pub fn whole(shape: &[usize]) -> Self {
        Self { offset: vec![0; shape.len()], size: shape.to_vec() }
    }

    /// Returns the number of elements, or `None` if it overflows.
    pub fn elements(&self) -> Option<u64> {
        self.size.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64))
    }

    /// Returns whether the box is inside a tensor of this shape.
    pub(crate) fn fits(&self, shape: &[usize]) -> bool {
        self.offset.len() == shape.len()
            && self.size.len() == shape.len()
            && (self.offset.iter().zip(&self.size).zip(shape))
                .all(|((offset, size), all)| offset.checked_add(*size).is_some_and(|end| end <= *all))
    }

    /// Returns whether two boxes of a tensor have an element in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.ranges().zip(other.ranges()).all(|(a, b)| a.start.max(b.start) < a.end.min(b.end))
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.offset.iter().zip(&self.size).map(|(offset, size)| *offset..offset + size)
    }

    /// Returns the elements that two pieces of a tensor have in common. A piece is a range of the elements of a box, row by row.
    ///
    /// The ranges are in ascending order, at most one for each row that both pieces have.
    pub fn overlaps(&self, range: Range<u64>, other: &Self, other_range: Range<u64>) -> Vec<Overlap> {
        let mut dims: Vec<(Range<usize>, Range<usize>)> = self.ranges().zip(other.ranges()).collect();
        // If both boxes have the same range of the last dimension, merge this dimension with the one before.
        while dims.len() > 1
            && let Some((same, _)) = dims.pop_if(|(a, b)| a == b)
            && let Some((a, b)) = dims.last_mut()
        {
            let len = same.end - same.start;
            (*a, *b) = (a.start * len..a.end * len, b.start * len..b.end * len);
        }
        let (a, b): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let both: Vec<Range<usize>> = a.iter().zip(&b).map(|(a, b)| a.start.max(b.start)..a.end.min(b.end)).collect();
        if both.iter().any(Range::is_empty) {
            return Vec::new();
        }
        let Some(last) = both.last() else {
            // A tensor without dimensions has one element.
            let len = u64::from(range.contains(&0) && other_range.contains(&0));
            return Vec::from_iter((len > 0).then_some(Overlap { here: 0, there: 0, len }));
        };
        let mut at: Vec<usize> = both.iter().map(|range| range.start).collect();
        let mut found: Vec<Overlap> = Vec::new();
        loop {
            let (here, there) = (flat(&at, &a), flat(&at, &b));
            // `skip..end` is the part of the row that is in both ranges.
            let skip = range.start.saturating_sub(here).max(other_range.start.saturating_sub(there));
            let row = (last.end - last.start) as u64;
            let end = row.min(range.end.saturating_sub(here)).min(other_range.end.saturating_sub(there));
            if skip < end {
                let run = Overlap {
                    here: here + skip - range.start,
                    there: there + skip - other_range.start,
                    len: end - skip,
                };
                match found.last_mut() {
                    Some(c) if (c.here + c.len, c.there + c.len) == (run.here, run.there) => c.len += run.len,
                    _ => found.push(run),
                }
            }
            // Advances to the next row.
            let Some(dim) = (0..both.len() - 1).rev().find(|&dim| at[dim] + 1 < both[dim].end) else {
                return found;
            };
            at[dim] += 1;
            for (at, range) in at.iter_mut().zip(&both).skip(dim + 1) {
                *at = range.start;
            }
        }
    }
}

/// Returns the index of an element in a box, counted row by row.
fn flat(at: &[usize], within: &[Range<usize>]) -> u64 {
    at.iter().zip(within).fold(0, |n, (at, range)| n * (range.end - range.start) as u64 + (at - range.start) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the index in the whole tensor of every element of a piece.
    fn elements(shape: &[usize], within: &TensorBox, range: Range<u64>) -> Vec<u64> {
        let whole: Vec<Range<usize>> = shape.iter().map(|&d| 0..d).collect();
        let place = |mut n: u64| {
            let mut at = vec![0; shape.len()];
            for dim in (0..shape.len()).rev() {
                at[dim] = within.offset[dim] + n as usize % within.size[dim];
                n /= within.size[dim] as u64;
            }
            flat(&at, &whole)
        };
        range.map(place).collect()
    }

    #[test]
    fn overlaps_are_exactly_the_elements_of_both_pieces() {
        let shape = [4, 6, 3];
        let boxes = [
            TensorBox::whole(&shape),
            TensorBox { offset: vec![2, 0, 0], size: vec![2, 6, 3] },
            TensorBox { offset: vec![0, 3, 0], size: vec![4, 3, 3] },
            TensorBox { offset: vec![1, 2, 1], size: vec![2, 4, 1] },
            TensorBox { offset: vec![0, 0, 0], size: vec![1, 2, 3] },
        ];
        for (a, b) in boxes.iter().flat_map(|a| boxes.iter().map(move |b| (a, b))) {
            let (all_a, all_b) = (a.elements().unwrap(), b.elements().unwrap());
            let cuts = |n: u64| [0..n, 0..n / 2, n / 3..n, n / 3..n / 2 + 1, n..n];
            for (range_a, range_b) in cuts(all_a).into_iter().flat_map(|r| cuts(all_b).map(|s| (r.clone(), s))) {
                let (in_a, in_b) = (elements(&shape, a, range_a.clone()), elements(&shape, b, range_b.clone()));
                let overlaps = a.overlaps(range_a, b, range_b);
                let mut found = Vec::new();
                for run in &overlaps {
                    for i in 0..run.len {
                        assert_eq!(in_a[(run.here + i) as usize], in_b[(run.there + i) as usize]);
                        found.push(in_a[(run.here + i) as usize]);
                    }
                }
                let want: Vec<u64> = in_a.iter().copied().filter(|e| in_b.contains(e)).collect();
                assert_eq!(found, want, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn whole_rows_are_one_run_and_columns_have_one_run_for_each_row() {
        let whole = TensorBox::whole(&[8, 4]);
        let rows = TensorBox { offset: vec![2, 0], size: vec![3, 4] };
        assert_eq!(whole.overlaps(0..32, &rows, 0..12), [Overlap { here: 8, there: 0, len: 12 }]);
        let columns = TensorBox { offset: vec![0, 2], size: vec![8, 2] };
        assert_eq!(whole.overlaps(0..32, &columns, 0..16).len(), 8);
        let none = TensorBox { offset: vec![], size: vec![] };
        assert_eq!(none.overlaps(0..1, &none, 0..1), [Overlap { here: 0, there: 0, len: 1 }]);
    }

    #[test]
    fn a_box_larger_than_the_tensor_or_of_other_dimensions_does_not_fit() {
        let at = |offset: usize, size: usize| TensorBox { offset: vec![offset, 0], size: vec![size, 1] };
        assert!(at(2, 2).fits(&[4, 1]));
        assert!(!at(3, 2).fits(&[4, 1]));
        assert!(!at(usize::MAX, 2).fits(&[4, 1]));
        assert!(!at(0, 1).fits(&[4]));
        assert!(at(0, 2).meets(&at(1, 1)) && !at(0, 2).meets(&at(2, 2)));
    }
}
