//! Buckets: the sizes (frames, height, width) that clips are cut to, the choice of a bucket for each clip, and the
//! micro-batch size of each bucket.
//!
//! Recipes have three forms: a plain list, Open-Sora's probabilities (1.2 and 2), and VideoX-Fun's token budget.

mod aspect;
mod draws;
mod open_sora;
#[cfg(test)]
mod tests;
mod token_budget;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sample::latent_frames;
use crate::{LATENT_FRAMES, Recipe, Shape, VIDEO_FRAMES, nearest_clip_frames};
use open_sora::{OpenSora, is_large_enough};
use token_budget::TokenBudget;

/// The sides of Open-Sora 2 are multiples of this: 8 pixels of its VAE × 2 latent pixels of a patch.
const MULTIPLE: usize = 16;
/// The latent pixels of a patch, to which the sides that a rule computes are rounded down.
const PATCH: usize = 2;

words! {
    /// The rule by which clips are assigned to buckets.
    #[derive(Default)]
    pub enum BucketRule {
        /// The bucket with the nearest ratio of height to width, then the most frames, then the largest.
        #[default]
        List = "list",
        /// Probabilities to accept a clip and to stay at a length.
        OpenSora12 = "open_sora_1_2",
        /// Probabilities to accept a clip and to skip to a shorter length.
        OpenSora2 = "open_sora_2",
        /// A clip with larger frames has fewer of them.
        TokenBudget = "token_budget",
    }
}

impl BucketRule {
    fn is_first(self) -> bool {
        self == BucketRule::OpenSora12
    }

    /// Returns the keys of an entry of `data.buckets`.
    fn keys(self) -> &'static [&'static str] {
        match self {
            BucketRule::List => &["frames", "height", "width", "batch"],
            BucketRule::OpenSora12 => &["frames", "size", "accept", "stay", "batch"],
            BucketRule::OpenSora2 => &["frames", "size", "accept", "skip", "batch"],
            BucketRule::TokenBudget => {
                &["frames", "side", "min_side", "max_side", "random_ratio", "random_frames", "tile", "batch"]
            }
        }
    }
}

/// An entry of `data.buckets`. The rule decides which keys it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketSpec {
    /// The frames of a clip; the most frames of a token budget.
    pub frames: usize,
    /// The rows of a frame in pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<usize>,
    /// The columns of a frame in pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// The name of an Open-Sora resolution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The probability that a clip that reaches this bucket is taken; `None`: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<f64>,
    /// Open-Sora 1.2: the probability that a clip stays at this length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stay: Option<f64>,
    /// Open-Sora 2: the probability that a clip skips to a shorter length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<f64>,
    /// The side of a square frame: a token budget is `frames × side²` pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<usize>,
    /// The smallest side of a token budget; `None`: `side`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_side: Option<usize>,
    /// The largest side of a token budget; `None`: `side`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_side: Option<usize>,
    /// Whether a ratio is drawn for each clip of a token budget, instead of the nearest.
    #[serde(default, skip_serializing_if = "is_false")]
    pub random_ratio: bool,
    /// Whether one clip of ten in a token budget is cut to a random length.
    #[serde(default, skip_serializing_if = "is_false")]
    pub random_frames: bool,
    /// Whether small clips of a token budget have micro-batches of 2 or 4 times the size.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tile: bool,
    /// The micro-batch size of a rank; `None`: that of `[train]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl BucketSpec {
    /// Returns a key of the entry that `rule` does not use, if there is one.
    fn foreign(&self, rule: BucketRule) -> Option<&'static str> {
        let set = [
            ("height", self.height.is_some()),
            ("width", self.width.is_some()),
            ("size", self.size.is_some()),
            ("accept", self.accept.is_some()),
            ("stay", self.stay.is_some()),
            ("skip", self.skip.is_some()),
            ("side", self.side.is_some()),
            ("min_side", self.min_side.is_some()),
            ("max_side", self.max_side.is_some()),
            ("random_ratio", self.random_ratio),
            ("random_frames", self.random_frames),
            ("tile", self.tile),
        ];
        set.into_iter().find(|(key, set)| *set && !rule.keys().contains(key)).map(|(key, _)| key)
    }
}

/// The size that a clip is cut to, in frames and pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bucket {
    /// The frames of the clip.
    pub frames: usize,
    /// The rows of a frame, in pixels.
    pub height: usize,
    /// The columns of a frame, in pixels.
    pub width: usize,
}

impl Bucket {
    /// Rounds both sides down to multiples of `multiple`. The sizes of Open-Sora 1.2 are not all multiples.
    fn rounded(self, multiple: usize) -> Self {
        let round = |side: usize| (side / multiple * multiple).max(multiple);
        Bucket { height: round(self.height), width: round(self.width), ..self }
    }
}

/// Shows `49x480x720`, as the index of a data set does.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}x{}", self.frames, self.height, self.width))
    }
}

/// The size of a clip: the frames that can be taken from it, and its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClipSize {
    /// The frames that can be taken at the wanted rate; 1: an image.
    pub frames: usize,
    /// The rows of a frame, in pixels.
    pub height: usize,
    /// The columns of a frame, in pixels.
    pub width: usize,
}

/// The reason why a clip has no bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Misfit {
    /// Every bucket has more frames; or the clip is an image, and no bucket has one frame.
    TooShort,
    /// The clip has less than 0.8 of the pixels of every bucket.
    TooSmall,
    /// The draws left the clip out.
    NotDrawn,
}

/// The buckets of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    rule: Rule,
    /// The pixels of the VAE per latent pixel (`encoders.latent_pixels`).
    pixels: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Rule {
    List(Vec<(Bucket, Option<usize>)>),
    OpenSora(OpenSora),
    TokenBudget(TokenBudget),
}

/// The reason why `data.buckets` cannot be used, and the hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadBuckets {
    pub why: String,
    pub fix: String,
}

impl BadBuckets {
    fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        BadBuckets { why: why.into(), fix: fix.into() }
    }
}

impl Buckets {
    /// Makes the buckets of a rule; `None` without entries.
    pub(crate) fn new(rule: BucketRule, specs: &[BucketSpec], pixels: usize) -> Result<Option<Self>, BadBuckets> {
        if specs.is_empty() {
            return match rule {
                BucketRule::List => Ok(None),
                rule => Err(BadBuckets::new(
                    format!("data.bucket_rule is {}, and data.buckets is empty", rule.name()),
                    "add [[data.buckets]], or remove data.bucket_rule",
                )),
            };
        }
        for spec in specs {
            if let Some(key) = spec.foreign(rule) {
                return Err(foreign(key, rule));
            }
            if let Some([below, above]) = nearest_clip_frames(spec.frames) {
                return Err(BadBuckets::new(
                    format!("a bucket has {} frames, not {VIDEO_FRAMES}k + 1: {LATENT_FRAMES}", spec.frames),
                    format!("set frames = {below} or {above}"),
                ));
            }
        }
        Self::of(rule, specs, pixels).map(Some)
    }

    /// Makes the buckets of a rule without checking the keys and the frames of its entries.
    fn of(rule: BucketRule, specs: &[BucketSpec], pixels: usize) -> Result<Self, BadBuckets> {
        Ok(Buckets {
            pixels,
            rule: match rule {
                BucketRule::List => Rule::List(list(specs, pixels)?),
                BucketRule::OpenSora12 | BucketRule::OpenSora2 => Rule::OpenSora(OpenSora::new(rule, specs)?),
                BucketRule::TokenBudget => Rule::TokenBudget(TokenBudget::new(specs)?),
            },
        })
    }

    /// Assigns a clip to a bucket. Equal sizes and seeds give equal buckets.
    ///
    /// Open-Sora's seed of clip `i` in epoch `e` is `seed + e + i · count`, with [`Buckets::count`].
    ///
    /// # Errors
    /// Why no bucket takes the clip.
    pub fn assign(&self, clip: ClipSize, seed: u64) -> Result<Bucket, Misfit> {
        match &self.rule {
            Rule::List(buckets) => nearest(buckets, clip),
            Rule::OpenSora(rule) => rule.assign(clip, seed).map(|bucket| self.rounded(bucket)),
            Rule::TokenBudget(rule) => Ok(self.rounded(rule.assign(clip, seed))),
        }
    }

    /// Returns the buckets; those of a token budget with the most frames of each size.
    pub fn all(&self) -> Vec<Bucket> {
        let mut all: Vec<Bucket> = self.with_batches().into_iter().map(|(bucket, _)| bucket).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns Open-Sora's number of buckets, by which the seeds of successive clips differ.
    pub fn count(&self) -> usize {
        match &self.rule {
            Rule::OpenSora(rule) => rule.count(),
            _ => self.all().len(),
        }
    }

    /// Returns the micro-batch size that the recipe sets for a bucket: the smallest, if several entries have this size.
    /// `None`: that of `[train]`.
    pub fn batch_of(&self, bucket: Bucket) -> Option<usize> {
        if let Rule::TokenBudget(rule) = &self.rule {
            return rule.batch_of(bucket);
        }
        let same = self.with_batches().into_iter().filter(|(known, _)| *known == bucket);
        same.filter_map(|(_, batch)| batch).min()
    }

    fn with_batches(&self) -> Vec<(Bucket, Option<usize>)> {
        match &self.rule {
            Rule::List(buckets) => buckets.clone(),
            Rule::OpenSora(rule) => rule.all().map(|(bucket, batch)| (self.rounded(bucket), batch)).collect(),
            Rule::TokenBudget(rule) => rule
                .all()
                .map(|bucket| {
                    let bucket = self.rounded(bucket);
                    (bucket, rule.batch_of(bucket))
                })
                .collect(),
        }
    }

    /// Returns a bucket that a rule computed, with whole patches of latent pixels.
    fn rounded(&self, bucket: Bucket) -> Bucket {
        bucket.rounded(PATCH * self.pixels)
    }
}

impl Recipe {
    /// Returns the buckets; `None` if the recipe has none.
    pub fn buckets(&self) -> Option<Buckets> {
        // The check of the recipe has accepted its buckets.
        Buckets::new(self.data.bucket_rule, &self.data.buckets, self.encoders.latent_pixels).ok().flatten()
    }

    /// Returns the size of the latent of a clip.
    pub fn latent_of(&self, clip: Bucket) -> Shape {
        let pixels = self.encoders.latent_pixels;
        Shape { frames: latent_frames(clip.frames), height: clip.height / pixels, width: clip.width / pixels }
    }

    /// Returns the size of a clip with a latent of this shape.
    pub fn clip_of(&self, latent: Shape) -> Bucket {
        let pixels = self.encoders.latent_pixels;
        Bucket {
            frames: (latent.frames - 1) * VIDEO_FRAMES + 1,
            height: latent.height * pixels,
            width: latent.width * pixels,
        }
    }

    /// Returns the micro-batch size of a rank for latents of a shape: that of the bucket, otherwise that of `[train]`.
    pub fn micro_batch_at(&self, shape: Shape) -> usize {
        let of_bucket = self.buckets().and_then(|buckets| buckets.batch_of(self.clip_of(shape)));
        of_bucket.unwrap_or(self.train.global_batch / self.mesh.data_ranks() / self.train.grad_accum)
    }

    /// Returns the bucket with the most tokens per micro-batch, which needs the most memory.
    pub fn largest_bucket(&self) -> Option<Bucket> {
        let tokens = |bucket: &Bucket| {
            let shape = self.latent_of(*bucket);
            self.micro_batch_at(shape) * self.at(shape).model.seq_len()
        };
        self.buckets()?.all().into_iter().max_by_key(tokens)
    }

    /// Returns the recipe for batches of the largest bucket alone; without buckets, the recipe itself.
    pub fn in_largest_bucket(&self) -> Recipe {
        let Some(bucket) = self.largest_bucket() else { return self.clone() };
        let latent = self.latent_of(bucket);
        let mut recipe = self.at(latent);
        recipe.train.global_batch = self.micro_batch_at(latent) * self.mesh.data_ranks() * self.train.grad_accum;
        recipe.data.buckets.clear();
        recipe
    }

    /// Returns the recipe with latents of another shape. The size that the weights were made for stays the same.
    pub fn at(&self, shape: Shape) -> Recipe {
        let model = self.model.resized(shape.frames, shape.height, shape.width);
        Recipe { model, ..self.clone() }
    }
}

fn foreign(key: &str, rule: BucketRule) -> BadBuckets {
    let why = format!("a bucket of the rule {} has no key {key}", rule.name());
    let fix = match (key, rule) {
        ("stay", BucketRule::OpenSora2) => {
            "write skip, the probability to skip to a shorter length; stay = p of Open-Sora 1.2 is skip = 1 - p"
                .to_owned()
        }
        ("skip", BucketRule::OpenSora12) => {
            "write stay, the probability to stay at this length; skip = p of Open-Sora 2 is stay = 1 - p".to_owned()
        }
        _ => {
            let rules = [BucketRule::List, BucketRule::OpenSora12, BucketRule::OpenSora2, BucketRule::TokenBudget];
            let others = rules.into_iter().filter(|other| other.keys().contains(&key));
            let others: Vec<String> = others.map(|other| format!("data.bucket_rule = \"{}\"", other.name())).collect();
            format!("set {}, or write the keys {}", others.join(" or "), rule.keys().join(", "))
        }
    };
    BadBuckets { why, fix }
}

fn list(specs: &[BucketSpec], pixels: usize) -> Result<Vec<(Bucket, Option<usize>)>, BadBuckets> {
    let mut buckets: Vec<(Bucket, Option<usize>)> = Vec::new();
    for spec in specs {
        let (Some(height), Some(width)) = (spec.height, spec.width) else {
            return Err(BadBuckets::new(
                format!("a bucket of {} frames has no height or no width", spec.frames),
                "write frames, height and width in each bucket, for example { frames = 49, height = 480, width = 720 }",
            ));
        };
        let bucket = Bucket { frames: spec.frames, height, width };
        if let Some((key, size)) =
            [("height", height), ("width", width)].into_iter().find(|(_, n)| !n.is_multiple_of(pixels))
        {
            let below = (size / pixels * pixels).max(pixels);
            return Err(BadBuckets::new(
                format!(
                    "the {key} of the bucket {bucket} is not a multiple of {pixels}, the pixels of the VAE per latent pixel"
                ),
                format!("set {key} = {below} or {}", below + pixels),
            ));
        }
        if buckets.iter().any(|(known, _)| *known == bucket) {
            return Err(BadBuckets::new(format!("the bucket {bucket} is listed twice"), "remove one of them"));
        }
        buckets.push((bucket, spec.batch));
    }
    Ok(buckets)
}

/// Returns the bucket of a list for a clip. Among the buckets that need no more frames and pixels than the clip has, it is the one
/// with the nearest ratio, then with the most frames, then the largest. Buckets of one frame take images only.
fn nearest(buckets: &[(Bucket, Option<usize>)], clip: ClipSize) -> Result<Bucket, Misfit> {
    let buckets = || buckets.iter().map(|(bucket, _)| *bucket);
    let long = |bucket: &Bucket| bucket.frames <= clip.frames && (bucket.frames == 1) == (clip.frames == 1);
    let large = |bucket: &Bucket| is_large_enough(clip, bucket.height * bucket.width);
    let off = |bucket: &Bucket| {
        let ratio = |height: usize, width: usize| (height as f64 / width as f64).ln();
        (ratio(bucket.height, bucket.width) - ratio(clip.height, clip.width)).abs()
    };
    let best = buckets().filter(long).filter(large).min_by(|a, b| {
        let size = |bucket: &Bucket| (bucket.frames, bucket.height * bucket.width);
        off(a).total_cmp(&off(b)).then_with(|| size(b).cmp(&size(a)))
    });
    best.ok_or(if buckets().any(|bucket| long(&bucket)) { Misfit::TooSmall } else { Misfit::TooShort })
}
