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
    /// The sides of images. An image has the first with the probability [`FIRST_IMAGE_SIDE`]; the others share the rest.
    image_sides: Vec<f64>,
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
/// The numbers by which `max_side` is divided for images, by the smallest `max_side` that has them.
const IMAGE_DIVISORS: [(usize, &[f64]); 4] =
    [(1536, &[1.0, 1.25, 1.5, 2.0, 2.5, 3.0]), (1024, &[1.0, 1.25, 1.5, 2.0]), (768, &[1.0, 1.25, 1.5]), (512, &[1.0])];
/// The probability that an image has the largest side.
const FIRST_IMAGE_SIDE: f64 = 0.75;
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
            image_sides: image_sides(min, max),
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

    /// Returns the buckets of all sides of videos, each with the maximum number of frames, and those of images.
    pub fn all(&self) -> impl Iterator<Item = Bucket> {
        let videos = self.sides.iter().map(|side| (*side as f64, self.frames_at(*side)));
        let images = self.image_sides.iter().map(|side| (*side, 1));
        videos.chain(images).flat_map(move |(side, frames)| {
            let aspects = aspect::fun_512(side / 512.0).into_iter();
            aspects.map(move |(_, [height, width])| Bucket { frames, height, width })
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

    /// Draws side, ratio and frames for a clip, in this order.
    pub fn assign(&self, clip: ClipSize, seed: u64) -> Bucket {
        let mut draws = Draws::new(seed);
        let (side, most_frames) = match clip.frames {
            1 => (self.image_side(&mut draws), 1),
            frames => {
                let side = self.video_side(clip, &mut draws);
                (side as f64, frames.min(self.frames_at(side)))
            }
        };
        let aspects = aspect::fun_512(side / 512.0);
        let [height, width] = match self.random_ratio {
            true => aspect::nearest_ratio(&aspects, weighted(&mut draws)),
            false => aspect::nearest(&aspects, clip.height, clip.width),
        };
        let most = whole_frames(most_frames);
        let frames = match self.random_frames && most > 1 && draws.uniform() >= ALL_FRAMES {
            // 5, 9, … up to the largest candidate below `most`.
            true if most > VIDEO_FRAMES + 1 => VIDEO_FRAMES * (1 + draws.index(most / VIDEO_FRAMES - 1)) + 1,
            _ => most,
        };
        Bucket { frames, height, width }
    }

    /// Draws one of the sides that are less than 1.25 times the mean side of the clip; one of all sides if there is none.
    fn video_side(&self, clip: ClipSize, draws: &mut Draws) -> usize {
        let mean = (clip.height + clip.width) as f64 / 2.0;
        let fitting: Vec<usize> = self.sides.iter().copied().filter(|side| (*side as f64) < 1.25 * mean).collect();
        let choice = if fitting.is_empty() { &self.sides } else { &fitting };
        choice[draws.index(choice.len())]
    }

    /// Draws the side of an image, whatever its size: images may be enlarged.
    fn image_side(&self, draws: &mut Draws) -> f64 {
        match &self.image_sides[..] {
            [only] => *only,
            [first, ..] if draws.uniform() < FIRST_IMAGE_SIDE => *first,
            [_, others @ ..] => others[draws.index(others.len())],
            [] => unreachable!("image_sides has at least one side"),
        }
    }
}

/// Returns the sides of images: those of VideoX-Fun's `get_random_downsample_ratio` if sides are drawn, otherwise the only one.
///
/// Source: VideoX-Fun `scripts/cogvideox_fun/train.py`, `random_hw_adapt`.
fn image_sides(min: usize, max: usize) -> Vec<f64> {
    let divisors = IMAGE_DIVISORS.iter().find(|(side, _)| max >= *side && min < max).map(|(_, divisors)| *divisors);
    match divisors {
        None => vec![max as f64],
        // The last one may be equal to one before it, which then has twice the probability.
        Some(divisors) => divisors.iter().map(|divisor| max as f64 / divisor).chain([min as f64]).collect(),
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
