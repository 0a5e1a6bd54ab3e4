//! VideoX-Fun's token budget: clips with larger frames get fewer frames, so that their tokens stay near or below
//! the budget.

use super::aspect;
use super::draws::Draws;
use super::{BadBuckets, Bucket, BucketSpec, ClipSize};
use crate::VIDEO_FRAMES;

/// A budget of `frames × side²` pixels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TokenBudget {
    frames: usize,
    side: usize,
    sides: Vec<usize>,
    random_ratio: bool,
    random_frames: bool,
    tile: bool,
    batch: Option<usize>,
}

/// The distance between the sides from `min_side` to `max_side`, in pixels.
const STEP: usize = 128;
/// The ratios of `random_ratio`, and their weights.
const RATIOS: [(f64, f64); 15] = [
    (0.42, 1.0),
    (0.5, 2.0),
    (0.57, 4.0),
    (0.68, 4.0),
    (0.78, 4.0),
    (0.88, 4.0),
    (0.94, 8.0),
    (1.0, 8.0),
    (1.07, 8.0),
    (1.13, 4.0),
    (1.29, 4.0),
    (1.46, 4.0),
    (1.75, 4.0),
    (2.0, 2.0),
    (2.4, 1.0),
];
/// The probability that `random_frames` keeps all frames.
const ALL_FRAMES: f64 = 0.9;

impl TokenBudget {
    pub fn new(specs: &[BucketSpec]) -> Result<Self, BadBuckets> {
        let example = "write buckets = [{ frames = 49, side = 512, min_side = 256, max_side = 1024 }]";
        let [spec] = specs else {
            return Err(BadBuckets::new(
                format!("token_budget has one entry, and data.buckets has {}", specs.len()),
                example,
            ));
        };
        let Some(side) = spec.side else {
            return Err(BadBuckets::new("the token budget has no side", example));
        };
        let (min, max) = (spec.min_side.unwrap_or(side), spec.max_side.unwrap_or(side));
        if min > max {
            return Err(BadBuckets::new(
                format!("min_side {min} of the token budget is above max_side {max}"),
                format!("set min_side to {max} or less"),
            ));
        }
        let mut sides: Vec<usize> = (min..=max).step_by(STEP).collect();
        if sides.last() != Some(&max) {
            sides.push(max);
        }
        Ok(TokenBudget {
            frames: spec.frames,
            side,
            sides,
            random_ratio: spec.random_ratio,
            random_frames: spec.random_frames,
            tile: spec.tile,
            batch: spec.batch,
        })
    }

    /// Returns the pixels of a clip that uses the whole budget.
    fn pixels(&self) -> usize {
        self.frames * self.side * self.side
    }

    /// Returns the maximum number of frames for frames of about `side × side` pixels.
    fn frames_at(&self, side: usize) -> usize {
        (self.pixels() / (side * side)).min(self.frames) / VIDEO_FRAMES * VIDEO_FRAMES + 1
    }

    /// Returns the buckets of all sides, each with the maximum number of frames, and those of images: one frame of the largest side.
    pub fn all(&self) -> impl Iterator<Item = (Bucket, Option<usize>)> {
        let largest = self.sides.last().map(|side| (*side, 1));
        let lengths = self.sides.iter().map(|side| (*side, self.frames_at(*side))).chain(largest);
        lengths.flat_map(move |(side, frames)| {
            aspect::fun_512(side as f64 / 512.0).into_iter().map(move |(_, [height, width])| {
                let bucket = Bucket { frames, height, width }.rounded();
                (bucket, self.batch_of(bucket))
            })
        })
    }

    /// Returns the micro-batch size; `None`: that of `[train]`. With `tile`, it is 4 or 2 times as large for clips of at most 1/16 or
    /// 1/4 of the budget.
    pub fn batch_of(&self, bucket: Bucket) -> Option<usize> {
        let pixels = bucket.frames * bucket.height * bucket.width;
        let factor = match self.pixels() {
            _ if !self.tile => 1,
            budget if pixels <= budget / 16 => 4,
            budget if pixels <= budget / 4 => 2,
            _ => 1,
        };
        match (self.batch, factor) {
            (None, 1) => None,
            (batch, factor) => Some(batch.unwrap_or(1) * factor),
        }
    }

    /// Draws side, ratio and frames for a clip, in this order. An image has the largest side.
    pub fn assign(&self, clip: ClipSize, seed: u64) -> Bucket {
        let mut draws = Draws::new(seed);
        let mean = (clip.height + clip.width) as f64 / 2.0;
        let fitting: Vec<usize> = self.sides.iter().copied().filter(|side| (*side as f64) < 1.25 * mean).collect();
        let choice = if fitting.is_empty() { &self.sides } else { &fitting };
        let side = if clip.frames == 1 { self.sides[self.sides.len() - 1] } else { choice[draws.index(choice.len())] };
        let aspects = aspect::fun_512(side as f64 / 512.0);
        let [height, width] = match self.random_ratio {
            true => aspect::nearest_ratio(&aspects, weighted(&mut draws)),
            false => aspect::nearest(&aspects, clip.height, clip.width),
        };
        let most = whole_frames(clip.frames.min(self.frames_at(side)));
        let frames = match self.random_frames && most > 1 && draws.uniform() >= ALL_FRAMES {
            // 5, 9, … up to the largest candidate below `most`.
            true if most > VIDEO_FRAMES + 1 => VIDEO_FRAMES * (1 + draws.index(most / VIDEO_FRAMES - 1)) + 1,
            _ => most,
        };
        Bucket { frames, height, width }.rounded()
    }
}

/// Returns the largest 4k + 1 that is not above `frames`.
fn whole_frames(frames: usize) -> usize {
    frames.saturating_sub(1) / VIDEO_FRAMES * VIDEO_FRAMES + 1
}

fn weighted(draws: &mut Draws) -> f64 {
    let mut left = draws.uniform() * RATIOS.iter().map(|(_, weight)| weight).sum::<f64>();
    for (ratio, weight) in RATIOS {
        left -= weight;
        if left < 0.0 {
            return ratio;
        }
    }
    1.0
}
