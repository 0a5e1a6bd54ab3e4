//! Finds clips that show nearly the same, by the hashes of their frames.

use std::collections::HashMap;

/// The number of differing bits, over all three frames, up to which two clips are near duplicates.
const MOST: u32 = 12;
/// The number of groups of bits of a frame. If three frames differ in at most 12 bits, one of them differs in at most 4, and then one of
/// its 5 groups is equal in both clips.
const GROUPS: u32 = 5;

/// Returns for each clip the first clip before it that shows nearly the same. `None` in `hashes` is a clip without a hash.
pub(super) fn near_duplicates(hashes: &[Option<[u64; 3]>]) -> Vec<Option<usize>> {
    let mut groups: HashMap<(usize, u32, u64), Vec<usize>> = HashMap::new();
    let mut found = Vec::with_capacity(hashes.len());
    for (clip, hash) in hashes.iter().enumerate() {
        let Some(hash) = hash else {
            found.push(None);
            continue;
        };
        let keys: Vec<(usize, u32, u64)> = hash
            .iter()
            .enumerate()
            .flat_map(|(frame, hash)| (0..GROUPS).map(move |group| (frame, group, bits(*hash, group))))
            .collect();
        let candidates = keys.iter().filter_map(|key| groups.get(key)).flatten();
        let is_near = |other: &&usize| hashes[**other].is_some_and(|other| distance(&other, hash) <= MOST);
        let first = candidates.filter(is_near).min().copied();
        if first.is_none() {
            // The duplicates of a clip are compared with that clip alone.
            keys.into_iter().for_each(|key| groups.entry(key).or_default().push(clip));
        }
        found.push(first);
    }
    found
}

/// Returns a group of the bits of a hash.
fn bits(hash: u64, group: u32) -> u64 {
    let begin = group * u64::BITS / GROUPS;
    let end = (group + 1) * u64::BITS / GROUPS;
    hash >> begin & ((1 << (end - begin)) - 1)
}

fn distance(a: &[u64; 3], b: &[u64; 3]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_at_most_12_differing_bits_is_found() {
        let first = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0x0f0f_1e1e_2d2d_3c3c_u64];
        // Four bits of each frame, each in another group.
        let spread = |bits: [u32; 4]| bits.iter().fold(0_u64, |mask, bit| mask | 1 << bit);
        let near =
            [first[0] ^ spread([0, 13, 26, 40]), first[1] ^ spread([12, 25, 38, 63]), first[2] ^ spread([1, 2, 3, 4])];
        let far = [near[0], near[1], near[2] ^ 1 << 60];
        let other = [!first[0], first[1], !first[2]];
        assert_eq!(distance(&first, &near), 12);
        let found = near_duplicates(&[Some(first), None, Some(near), Some(far), Some(other), Some(first)]);
        assert_eq!(found, [None, None, Some(0), None, None, Some(0)]);
        assert_eq!((0..GROUPS).map(|group| bits(u64::MAX, group).count_ones()).sum::<u32>(), 64);
    }
}
