//! Places tensors in chunks of page-locked memory.
//!
//! libtorch's allocator of page-locked memory rounds each request up to a power of two. A tensor slightly larger than half a gigabyte would
//! take a whole gigabyte. Chunks whose sizes are powers of two lose nothing to this rounding, and hold many tensors.

/// The place of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of its chunk.
    pub chunk: usize,
    /// Its first byte in the chunk, a multiple of [`ALIGNMENT`].
    pub start: u64,
}

/// Chunks of memory, and the places of tensors in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slab {
    /// The bytes of each chunk: powers of two.
    pub chunks: Vec<u64>,
    /// The place of each tensor, in the order of the sizes.
    pub places: Vec<Place>,
}

/// The alignment of places, that of libtorch's own tensors on a GPU.
pub const ALIGNMENT: u64 = 512;

impl Slab {
    /// Places tensors of these sizes in bytes.
    ///
    /// Each chunk takes the largest tensors that fit. Its size is the largest power of two that is at most the size of all remaining
    /// tensors. At some point, one last chunk takes all remaining tensors: where the sum of all chunks is smallest. The chunks are at
    /// most 10 % larger than the tensors if no tensor is larger than 1/40 of their sum.
    pub fn of(sizes: &[u64]) -> Self {
        let aligned = |tensor: &usize| sizes[*tensor].next_multiple_of(ALIGNMENT);
        let mut left: Vec<usize> = (0..sizes.len()).filter(|tensor| sizes[*tensor] > 0).collect();
        left.sort_by_key(|tensor| std::cmp::Reverse(sizes[*tensor]));
        let mut slab = Slab { chunks: Vec::new(), places: vec![Place { chunk: 0, start: 0 }; sizes.len()] };
        // The smallest sum so far of chunks whose last one takes all remaining tensors, and the number of chunks before the last.
        let (mut best, mut ends) = (u64::MAX, 0);
        let (mut chunks, mut rest) = (Vec::new(), Vec::new());
        while let Some(largest) = left.first() {
            let size: u64 = left.iter().map(aligned).sum();
            let sum = chunks.iter().sum::<u64>() + size.next_power_of_two();
            if sum < best {
                (best, ends) = (sum, chunks.len());
                rest = left.clone();
            }
            let chunk = (1 << size.ilog2()).max(aligned(largest).next_power_of_two());
            left = slab.fill(chunks.len(), chunk, left, aligned);
            chunks.push(chunk);
        }
        if chunks.iter().sum::<u64>() > best {
            chunks.truncate(ends);
            let size: u64 = rest.iter().map(aligned).sum();
            let none = slab.fill(ends, size.next_power_of_two(), rest, aligned);
            debug_assert!(none.is_empty(), "the last chunk takes all");
            chunks.push(size.next_power_of_two());
        }
        slab.chunks = chunks;
        slab
    }

    /// Places the tensors that fit in a chunk, in order, and returns the others.
    fn fill(&mut self, chunk: usize, size: u64, tensors: Vec<usize>, aligned: impl Fn(&usize) -> u64) -> Vec<usize> {
        let (mut start, mut others) = (0, Vec::new());
        for tensor in tensors {
            if start + aligned(&tensor) > size {
                others.push(tensor);
                continue;
            }
            self.places[tensor] = Place { chunk, start };
            start += aligned(&tensor);
        }
        others
    }

    /// Returns the bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Asserts that each tensor has bytes of its own, within its chunk.
    fn assert_no_overlap(sizes: &[u64], slab: &Slab) {
        let mut taken: Vec<(usize, u64, u64)> = sizes
            .iter()
            .zip(&slab.places)
            .filter(|(size, _)| **size > 0)
            .map(|(size, place)| (place.chunk, place.start, place.start + size))
            .collect();
        taken.sort_unstable();
        for (chunk, start, end) in &taken {
            assert!(*end <= slab.chunks[*chunk] && start % ALIGNMENT == 0, "{slab:?}");
        }
        for pair in taken.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
        }
        assert!(slab.chunks.iter().all(|chunk| chunk.is_power_of_two()), "{:?}", slab.chunks);
    }

    /// Equal sizes, sizes of one order, or sizes of all orders.
    fn sizes() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![
            (0u64..1 << 32, 0usize..300).prop_map(|(size, count)| vec![size; count]),
            proptest::collection::vec(1u64 << 20..1 << 25, 0..300),
            proptest::collection::vec((0u32..33).prop_flat_map(|bits| 0u64..1 << bits), 0..300),
        ]
    }

    proptest! {
        #[test]
        fn no_tensor_overlaps_another(sizes in sizes()) {
            assert_no_overlap(&sizes, &Slab::of(&sizes));
        }

        #[test]
        fn chunks_are_at_most_a_tenth_larger_than_many_tensors(sizes in sizes()) {
            let (all, largest) = (sizes.iter().sum::<u64>(), sizes.iter().copied().max().unwrap_or(0));
            // Without the waste of the alignment, which is large for tensors of a few bytes.
            let aligned: u64 = sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT)).sum();
            if largest * 40 <= all {
                prop_assert!(Slab::of(&sizes).bytes() as f64 <= 1.1 * aligned as f64);
            }
        }
    }

    #[test]
    fn saved_inputs_of_539_mb_take_less_than_two_thirds_of_what_one_allocation_for_each_takes() {
        let sizes = [539_394_048; 41];
        let (all, slab) = (sizes.iter().sum::<u64>(), Slab::of(&sizes));
        assert_eq!(sizes.iter().map(|size| size.next_power_of_two()).sum::<u64>(), 41 << 30);
        assert!(slab.bytes() < all + all / 10, "{:?}", slab.chunks);
    }

    #[test]
    fn nothing_takes_no_chunk() {
        assert_eq!((Slab::of(&[]).bytes(), Slab::of(&[0, 0]).chunks.len()), (0, 0));
        assert_eq!(Slab::of(&[1]), Slab { chunks: vec![512], places: vec![Place { chunk: 0, start: 0 }] });
    }
}
