//! The buckets of Open-Sora 1.2 and 2: resolutions, lengths with probabilities, and the draws that choose among them.

use super::aspect::{self, Aspect};
use super::draws::Draws;
use super::{BadBuckets, Bucket, BucketRule, BucketSpec, ClipSize, Misfit};
use crate::nearest::nearest;

/// The resolutions, those with the most pixels first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpenSora {
    rule: BucketRule,
    resolutions: Vec<Resolution>,
}

/// A resolution with its lengths.
#[derive(Debug, Clone, PartialEq)]
struct Resolution {
    name: String,
    pixels: usize,
    aspects: Vec<Aspect>,
    /// In descending order.
    lengths: Vec<Length>,
}

/// A number of frames at a resolution.
#[derive(Debug, Clone, PartialEq)]
struct Length {
    frames: usize,
    /// The probability that a clip is taken.
    accept: f64,
    /// 1.2: the probability to stay at this length. 2: the probability to skip to a shorter one.
    second: Option<f64>,
    batch: Option<usize>,
    /// The number among all pairs of resolution and length, which is part of the seed in 1.2.
    number: u64,
}

impl OpenSora {
    pub fn new(rule: BucketRule, specs: &[BucketSpec]) -> Result<Self, BadBuckets> {
        let mut resolutions: Vec<Resolution> = Vec::new();
        for spec in specs {
            let Some(name) = &spec.size else {
                return Err(BadBuckets::new(
                    format!("a bucket of {} frames has no size", spec.frames),
                    format!("write size = \"{}\" in each bucket", if rule.is_first() { "360p" } else { "256px" }),
                ));
            };
            let length = Length {
                frames: spec.frames,
                accept: spec.accept.unwrap_or(1.0),
                second: if rule.is_first() { spec.stay } else { spec.skip },
                batch: spec.batch,
                number: 0,
            };
            match resolutions.iter_mut().find(|known| known.name == *name) {
                Some(known) if known.lengths.iter().any(|other| other.frames == length.frames) => {
                    return Err(BadBuckets::new(
                        format!("two buckets have size {name} and {} frames", spec.frames),
                        "remove one of them",
                    ));
                }
                Some(known) => known.lengths.push(length),
                None => {
                    let (pixels, aspects) = if rule.is_first() { first(name)? } else { second(name)? };
                    let lengths = vec![length];
                    resolutions.push(Resolution { name: name.clone(), pixels, aspects, lengths });
                }
            }
        }
        // Both sorts are stable, as Open-Sora's are.
        resolutions.sort_by_key(|resolution| std::cmp::Reverse(resolution.pixels));
        let mut number = 0;
        for resolution in &mut resolutions {
            resolution.lengths.sort_by_key(|length| std::cmp::Reverse(length.frames));
            for length in &mut resolution.lengths {
                length.number = number;
                number += 1;
            }
        }
        Ok(OpenSora { rule, resolutions })
    }

    /// Returns the sizes of a resolution of Open-Sora 2.
    #[cfg(test)]
    pub fn sizes_of_2(name: &str) -> Vec<Aspect> {
        second(name).map(|(_, aspects)| aspects).unwrap_or_default()
    }

    /// Returns the number of triples of resolution, length and ratio: Open-Sora's seeds of successive clips differ by it.
    pub fn count(&self) -> usize {
        self.resolutions.iter().map(|resolution| resolution.lengths.len() * resolution.aspects.len()).sum()
    }

    /// Returns every bucket with its batch.
    pub fn all(&self) -> impl Iterator<Item = (Bucket, Option<usize>)> {
        self.resolutions.iter().flat_map(|resolution| {
            let lengths = resolution.lengths.iter().filter(|length| length.accept > 0.0);
            lengths.flat_map(|length| {
                resolution.aspects.iter().map(|(_, size)| (bucket(length.frames, *size), length.batch))
            })
        })
    }

    pub fn assign(&self, clip: ClipSize, seed: u64) -> Result<Bucket, Misfit> {
        let large = |resolution: &&Resolution| is_large_enough(clip, resolution.pixels);
        let mut resolutions = self.resolutions.iter().filter(large).peekable();
        if resolutions.peek().is_none() {
            return Err(Misfit::TooSmall);
        }
        let mut drawn = Draws::new(seed);
        let mut misfit = Misfit::TooShort;
        for resolution in resolutions {
            let taken = match (clip.frames, self.rule.is_first()) {
                (1, first) => resolution.image(seed, first, &mut drawn),
                (_, true) => resolution.length_of_1_2(clip.frames, seed),
                (_, false) => resolution.length_of_2(clip.frames, &mut drawn),
            };
            match taken {
                Some((length, true)) => {
                    return Ok(bucket(length.frames, aspect::nearest(&resolution.aspects, clip.height, clip.width)));
                }
                Some((_, false)) => misfit = Misfit::NotDrawn,
                None => {}
            }
        }
        Err(misfit)
    }
}

/// Returns whether a clip has at least 0.8 of the pixels of a resolution.
pub(super) fn is_large_enough(clip: ClipSize, pixels: usize) -> bool {
    (clip.height * clip.width) as f64 >= 0.8 * pixels as f64
}

fn bucket(frames: usize, [height, width]: [usize; 2]) -> Bucket {
    Bucket { frames, height, width }
}

/// Each function returns the length that a clip reaches, and whether that length takes the clip; `None` if it reaches none.
impl Resolution {
    fn image(&self, seed: u64, is_first: bool, drawn: &mut Draws) -> Option<(&Length, bool)> {
        let length = self.lengths.iter().find(|length| length.frames == 1)?;
        let draw = if is_first { Draws::new(seed.wrapping_add(length.number)).uniform() } else { drawn.uniform() };
        Some((length, draw < length.accept))
    }

    /// Finds the first length that is shorter than the clip and at which the clip stays. Each length has its own stream of draws.
    fn length_of_1_2(&self, frames: usize, seed: u64) -> Option<(&Length, bool)> {
        self.lengths.iter().find_map(|length| {
            let mut drawn = Draws::new(seed.wrapping_add(length.number));
            if length.second.is_some_and(|stay| drawn.uniform() > stay) || length.frames == 1 || frames <= length.frames
            {
                return None;
            }
            Some((length, length.accept >= 1.0 || drawn.uniform() < length.accept))
        })
    }

    /// Finds the first length that is not longer than the clip and that the clip does not skip. All lengths share a stream of draws.
    fn length_of_2(&self, frames: usize, drawn: &mut Draws) -> Option<(&Length, bool)> {
        self.lengths.iter().filter(|length| length.frames > 1 && length.frames <= frames).find_map(|length| {
            if length.second.is_some_and(|skip| skip >= 1.0 || drawn.uniform() <= skip) {
                return None;
            }
            Some((length, length.accept >= 1.0 || drawn.uniform() <= length.accept))
        })
    }
}

fn first(name: &str) -> Result<(usize, Vec<Aspect>), BadBuckets> {
    aspect::of_open_sora_1_2(name).ok_or_else(|| {
        let names = aspect::OPEN_SORA_1_2;
        let fix = match nearest(name, names) {
            Some(near) => format!("did you mean \"{near}\"? The sizes are {}", names.join(", ")),
            None => format!("use one of {}", names.join(", ")),
        };
        BadBuckets::new(format!("open_sora_1_2 has no size \"{name}\""), fix)
    })
}

/// Reads `256px` (256 × 256 pixels) or `480p` (480 rows at 16:9), possibly with `_ar16:9` (this ratio alone) or `_max` (the
/// ratio with the most pixels).
fn second(name: &str) -> Result<(usize, Vec<Aspect>), BadBuckets> {
    let bad = |why: String| {
        let fix = "write \"256px\" (256 × 256 pixels) or \"480p\" (480 rows at 16:9), and _ar1:1 or _max after it for one ratio";
        BadBuckets::new(why, fix)
    };
    let (base, suffix) = name.split_once('_').map_or((name, None), |(base, suffix)| (base, Some(suffix)));
    let number = |text: &str| text.parse::<usize>().ok().filter(|side| (16..=16_384).contains(side));
    let pixels = match (base.strip_suffix("px"), base.strip_suffix('p')) {
        (Some(side), _) => number(side).map(|side| side * side),
        (None, Some(rows)) => number(rows).map(|rows| (rows * rows) as f64 / 9.0 * 16.0).map(|pixels| pixels as usize),
        (None, None) => None,
    };
    let pixels = pixels.ok_or_else(|| bad(format!("open_sora_2 has no size \"{name}\"")))?;
    let mut aspects = aspect::of_open_sora_2(pixels);
    match suffix {
        None => {}
        Some("max") => {
            let most = aspects.iter().map(|(_, [height, width])| height * width).max();
            let first = aspects.iter().position(|(_, [height, width])| Some(height * width) == most);
            aspects = first.map(|first| aspects[first]).into_iter().collect();
        }
        Some(suffix) => {
            let ratio = suffix.strip_prefix("ar").and_then(|ratio| ratio.split_once(':')).and_then(|(wide, high)| {
                let side = |text: &str| text.parse::<f64>().ok().filter(|side| side.is_finite() && *side > 0.0);
                Some(side(high)? / side(wide)?)
            });
            let ratio = ratio.ok_or_else(|| bad(format!("the size \"{name}\" does not end in a ratio")))?;
            aspects.retain(|(known, _)| (known - ratio).abs() < 1e-9);
            if aspects.is_empty() {
                return Err(bad(format!("the size \"{name}\" has a ratio that open_sora_2 does not have at {base}")));
            }
        }
    }
    Ok((pixels, aspects))
}
