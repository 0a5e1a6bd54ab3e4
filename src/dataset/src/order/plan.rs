//! The steps of an epoch, computed from the sizes of buckets alone.

use super::{Order, ShapeBucket};
use crate::seeds::{Purpose, shuffle};
use std::ops::Range;

/// The samples of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlan {
    /// The number of the first sample, counted from the start of the order.
    pub first: u64,
    /// The micro-batches of all data-parallel ranks: number `m` of rank `r` is at `r × grad_accum + m`.
    pub micro_batches: Vec<MicroBatch>,
    /// The place in the step of the first sample of each micro-batch, then the number of samples of the step.
    starts: Vec<u64>,
}

/// The samples that a rank processes at a time: successive samples of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// The index of the bucket in [`Order::buckets()`].
    pub bucket: usize,
    /// The place of the first sample in the bucket's stream.
    pub start: u64,
    /// The number of samples.
    pub len: usize,
}

impl StepPlan {
    fn new(first: u64, micro_batches: Vec<MicroBatch>) -> Self {
        let sizes = micro_batches.iter().scan(0, |end, micro_batch| {
            *end += micro_batch.len as u64;
            Some(*end)
        });
        let starts = std::iter::once(0).chain(sizes).collect();
        StepPlan { first, micro_batches, starts }
    }

    /// Makes a step of micro-batches of equal size and shape.
    pub fn even(first: u64, samples: usize, micro_batches: usize) -> Self {
        let len = samples / micro_batches;
        StepPlan::new(
            first,
            (0..micro_batches).map(|at| MicroBatch { bucket: 0, start: first + (at * len) as u64, len }).collect(),
        )
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.starts[self.micro_batches.len()]
    }

    /// Returns the numbers of the samples, counted from the start of the order.
    pub fn numbers(&self) -> Range<u64> {
        self.first..self.first + self.samples()
    }

    /// Returns the places of a micro-batch's samples in the step.
    pub fn places(&self, micro_batch: usize) -> Range<u64> {
        self.starts[micro_batch]..self.starts[micro_batch + 1]
    }

    /// Returns the bucket of a sample, and its place in the bucket's stream.
    pub(super) fn place(&self, number: u64) -> (usize, u64) {
        let place = number - self.first;
        let at = self.starts.partition_point(|start| *start <= place) - 1;
        let MicroBatch { bucket, start, .. } = self.micro_batches[at];
        (bucket, start + place - self.starts[at])
    }
}

/// Steps of an epoch that take the same numbers of micro-batches from the same buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// Pairs of a bucket and the number of micro-batches that each step takes of it.
    pub takes: Vec<(usize, u64)>,
    /// The number of steps.
    pub steps: u64,
}

impl Order {
    /// Returns the steps of an epoch. `taken` has for each bucket the number of micro-batches that earlier epochs took.
    pub(super) fn windows(&self, epoch: u64, taken: &[u64]) -> Vec<Window> {
        let micro_batches = self.micro_batches as u64;
        let free = |(bucket, taken): (&ShapeBucket, &u64)| bucket.samples(epoch + 1) / bucket.batch as u64 - taken;
        let mut free: Vec<u64> = self.buckets.iter().zip(taken).map(free).collect();
        let mut windows = Vec::new();
        let Some(tolerance) = self.tolerance else {
            let full = free.iter().map(|free| free / micro_batches).enumerate().filter(|(_, steps)| *steps > 0);
            return full.map(|(bucket, steps)| Window { takes: vec![(bucket, micro_batches)], steps }).collect();
        };
        let cost = |bucket: &usize| self.buckets[*bucket].micro_batch_cost();
        let mut costly: Vec<usize> = (0..free.len()).collect();
        costly.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
        for (at, &most) in costly.iter().enumerate() {
            let steps = free[most] / micro_batches;
            if steps > 0 {
                windows.push(Window { takes: vec![(most, micro_batches)], steps });
                free[most] %= micro_batches;
            }
            // One step takes the rest of this bucket, and the rest of the step from cheaper buckets within the tolerance. If these
            // cannot fill it, the rest of this bucket waits for the next epoch.
            let near = costly[at..].iter().take_while(|bucket| cost(bucket) >= (1.0 - tolerance) * cost(&most));
            let near: Vec<usize> = near.copied().collect();
            if free[most] == 0 || near.iter().map(|bucket| free[*bucket]).sum::<u64>() < micro_batches {
                continue;
            }
            let mut missing = micro_batches;
            let mut takes = Vec::new();
            for bucket in near {
                let take = missing.min(free[bucket]);
                if take > 0 {
                    takes.push((bucket, take));
                    free[bucket] -= take;
                    missing -= take;
                }
            }
            windows.push(Window { takes, steps: 1 });
        }
        windows
    }
}

/// The steps of an epoch in their order.
#[derive(Debug)]
pub(super) struct Epoch {
    number: u64,
    /// The number of its first sample.
    pub first: u64,
    /// The number of the first sample after it.
    pub end: u64,
    /// The number of micro-batches that were taken of each bucket up to the end of the epoch.
    taken: Vec<u64>,
    steps: Vec<Planned>,
    takes: Vec<Take>,
}

/// A step of an epoch.
#[derive(Debug, Clone, Copy)]
struct Planned {
    first: u64,
    /// The index of its first entry in [`Epoch::takes`].
    takes: usize,
}

/// The micro-batches that a step takes of a bucket.
#[derive(Debug, Clone, Copy)]
struct Take {
    bucket: usize,
    micro_batches: u64,
    first_micro_batch: u64,
}

impl Epoch {
    pub fn first(order: &Order) -> Self {
        Self::plan(order, 0, 0, vec![0; order.buckets.len()])
    }

    pub fn next(self, order: &Order) -> Self {
        Self::plan(order, self.number + 1, self.end, self.taken)
    }

    fn plan(order: &Order, number: u64, first: u64, mut taken: Vec<u64>) -> Self {
        let windows = order.windows(number, &taken);
        let mut shapes: Vec<usize> =
            windows.iter().enumerate().flat_map(|(at, window)| (0..window.steps).map(move |_| at)).collect();
        shuffle(order.seed, Purpose::StepOrder, number, &mut shapes);
        let (mut steps, mut takes, mut end) = (Vec::with_capacity(shapes.len()), Vec::new(), first);
        for at in shapes {
            steps.push(Planned { first: end, takes: takes.len() });
            for &(bucket, micro_batches) in &windows[at].takes {
                takes.push(Take { bucket, micro_batches, first_micro_batch: taken[bucket] });
                taken[bucket] += micro_batches;
                end += micro_batches * order.buckets[bucket].batch as u64;
            }
        }
        Epoch { number, first, end, taken, steps, takes }
    }

    /// Returns the step of this epoch that contains a sample.
    pub fn step_of(&self, sample: u64, order: &Order) -> StepPlan {
        let at = self.steps.partition_point(|step| step.first <= sample) - 1;
        let Planned { first, takes } = self.steps[at];
        let end = self.steps.get(at + 1).map_or(self.takes.len(), |next| next.takes);
        let takes = &self.takes[takes..end];
        let mut buckets: Vec<usize> =
            takes.iter().enumerate().flat_map(|(at, take)| (0..take.micro_batches).map(move |_| at)).collect();
        shuffle(order.seed, Purpose::MicroBatchOrder, first, &mut buckets);
        let mut next: Vec<u64> = takes.iter().map(|take| take.first_micro_batch).collect();
        let micro_batches = buckets.into_iter().map(|at| {
            let (bucket, number) = (takes[at].bucket, next[at]);
            next[at] += 1;
            let len = order.buckets[bucket].batch;
            MicroBatch { bucket, start: number * len as u64, len }
        });
        StepPlan::new(first, micro_batches.collect())
    }
}
