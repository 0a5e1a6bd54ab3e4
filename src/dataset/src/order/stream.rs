//! The stream of a bucket: its items in random order, epoch after epoch.

use super::{OrderedItem, SetItems, ShapeBucket};
use crate::seeds::{Purpose, permutation, shuffle};
use std::collections::VecDeque;

/// How many epochs of samples are cached: a micro-batch may begin in one epoch and end in the next.
const KEPT: usize = 2;

/// Reads the stream of a bucket.
#[derive(Debug)]
pub(super) struct Stream {
    seed: u64,
    /// The cached epochs, each with its number and its samples (item and pass).
    epochs: VecDeque<(u64, Vec<(u32, u32)>)>,
}

impl Stream {
    pub fn new(seed: u64) -> Self {
        Stream { seed, epochs: VecDeque::new() }
    }

    /// Returns a sample by its place in the stream.
    pub fn sample(&mut self, bucket: &ShapeBucket, index: u64) -> OrderedItem {
        let epoch = epoch_of(bucket, index);
        let at = (index - bucket.samples(epoch)) as usize;
        let known = self.epochs.iter().position(|(number, _)| *number == epoch);
        let known = known.unwrap_or_else(|| {
            if self.epochs.len() == KEPT {
                self.epochs.pop_front();
            }
            self.epochs.push_back((epoch, samples(bucket, self.seed, epoch)));
            self.epochs.len() - 1
        });
        let (item, pass) = self.epochs[known].1[at];
        OrderedItem { item: item as usize, pass: u64::from(pass) }
    }
}

/// Returns the epoch of a place in a bucket's stream.
fn epoch_of(bucket: &ShapeBucket, index: u64) -> u64 {
    let rate: f64 = bucket.parts.iter().map(|part| part.uses * part.items.len() as f64).sum();
    let mut epoch = (index as f64 / rate) as u64;
    // The division rounds, and each part of an epoch is rounded down.
    while bucket.samples(epoch) > index {
        epoch -= 1;
    }
    while bucket.samples(epoch + 1) <= index {
        epoch += 1;
    }
    epoch
}

/// Returns the items of an epoch, with their passes, in random order.
fn samples(bucket: &ShapeBucket, seed: u64, epoch: u64) -> Vec<(u32, u32)> {
    let mut samples = Vec::with_capacity((bucket.samples(epoch + 1) - bucket.samples(epoch)) as usize);
    for (number, part) in bucket.parts.iter().enumerate() {
        let key = seed ^ ((number as u64) << 32);
        part_of_epoch(part, key, epoch, |item, pass| samples.push((item, pass)));
    }
    shuffle(seed, Purpose::Order, epoch, &mut samples);
    samples
}

/// Calls `each` with the items of an epoch and their passes. A pass uses each item once. If the end of an epoch divides a pass, both epochs
/// take their items from one permutation of this pass.
fn part_of_epoch(part: &SetItems, key: u64, epoch: u64, mut each: impl FnMut(u32, u32)) {
    let (from, to, len) = (part.samples(epoch), part.samples(epoch + 1), part.items.len() as u64);
    let mut at = from;
    while at < to {
        let pass = at / len;
        let end = to.min((pass + 1) * len);
        let range = (at - pass * len) as usize..(end - pass * len) as usize;
        if range.len() as u64 == len {
            part.items.iter().for_each(|item| each(*item, pass as u32));
        } else {
            let order = permutation(key, Purpose::PartOfPass, pass, part.items.len());
            order[range].iter().for_each(|place| each(part.items[*place], pass as u32));
        }
        at = end;
    }
}
