//! The stage of clips: threads decode frames ahead, and the VAE encodes them to moments, one clip after the other.

// B batch, C channels, F frames, T latent frames, H and W pixels, h and w latent pixels.

use super::conditions::{frames_first, of_clip};
use super::fit::{FrameSplit, whole_or_tiles};
use super::report::{Counts, EncodeStage};
use super::{Left, Rank, SharedQueue, Stop, StoredTensor, claim, commit, is_of_item, not_finite, queue};
use camino::{Utf8Path, Utf8PathBuf};
use dataset::Stamp;
use dataset::store::{Held, Item, ItemKind, Queue, Range, StoreSpec, Work};
use encoders::VideoVae;
use rundir::{ErrorCode, Failure};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use video::{CropMode, FrameChoice, FrameMode, Frames, Order, Picture, Pool, PoolOptions, Programs, VideoFile};

/// Encodes clips.
pub struct Clips {
    folder: Utf8PathBuf,
    tiling: recipe::Tiling,
    kind: Kind,
    device: Device,
    decoders: usize,
    decoder: Decoder,
    counts: Counts,
}

/// The rules for choosing and decoding frames.
#[derive(Clone)]
struct Decoder {
    spec: StoreSpec,
    mode: FrameMode,
    crop: CropMode,
    counts: Counts,
}

/// A clip whose frames are chosen and not decoded.
struct Probed<'i> {
    path: &'i Utf8Path,
    stamp: Stamp,
    source: VideoFile,
    times: Vec<f64>,
    /// The size of the frames, and the seed of random crops.
    picture: Picture,
}

/// The chosen frames of a clip.
struct Decoded {
    times: Vec<f64>,
    frames: Frames,
}

/// The ranges that this rank holds, in the order of their items in the pool.
#[derive(Default)]
struct Claimed {
    ranges: VecDeque<Box<Range>>,
    /// The remaining work, once no more ranges can be claimed.
    left: Option<Result<Left, Failure>>,
}

type SharedClaims = Arc<Mutex<Claimed>>;

impl Clips {
    pub fn new(rank: &Rank<'_>, queue: &Queue, kind: Kind, counts: Counts) -> Result<Self, Failure> {
        let encode = &rank.recipe.encode;
        Ok(Self {
            folder: rank.recipe.encoders.folder.join("vae"),
            tiling: rank.recipe.encoders.tiling,
            kind,
            device: rank.device,
            decoders: encode.decoders_of_rank(rank.threads),
            decoder: Decoder {
                spec: queue.spec().clone(),
                mode: encode.mode,
                crop: encode.crop,
                counts: counts.clone(),
            },
            counts,
        })
    }

    /// Encodes clips until none is left to claim, or a stop is requested.
    pub fn work(&mut self, queue: &SharedQueue, stop: &Stop) -> Result<Left, Failure> {
        let first = match claim(queue, ItemKind::Latent)? {
            Ok(range) => range,
            Err(left) => return Ok(left),
        };
        let claims = SharedClaims::default();
        let items = Items::new(queue.clone(), claims.clone(), first, self.counts.clone());
        let decoder = self.decoder.clone();
        let options = PoolOptions { workers: self.decoders, order: Order::AsGiven };
        let pool = Pool::start(&Programs::default(), options, items, move |programs, item: &Item| {
            decoder.decode(programs, item)
        });
        // The first clips are decoded while the VAE is read.
        let mut vae = VideoVae::open(&self.folder, self.kind, self.device)?;
        vae.in_tiles(self.tiling == recipe::Tiling::On)?;
        let result = self.consume(pool, &claims, &mut vae, stop);
        self.counts.released(&[EncodeStage::Probe, EncodeStage::Decode, EncodeStage::Vae]);
        // Ranges that are not done go back to the queue.
        let mut claims = claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.ranges.clear();
        result?;
        claims.left.take().unwrap_or(Ok(Left::Held))
    }

    fn consume(
        &self,
        mut pool: Pool<Item, Decoded>,
        claims: &SharedClaims,
        vae: &mut VideoVae,
        stop: &Stop,
    ) -> Result<(), Failure> {
        let mut range: Option<Box<Range>> = None;
        let mut todo = 0;
        loop {
            if stop.source().is_some() {
                pool.cancel();
                return Ok(());
            }
            let began = Instant::now();
            let next = pool.next();
            self.counts.waited(EncodeStage::Vae, began);
            let Some((item, decoded)) = next else { break };
            if decoded.is_ok() {
                self.counts.begun(EncodeStage::Vae, 1);
            }
            // The signal of a stop or a kill reaches ffmpeg too. A clip that the signal interrupted has not failed.
            if decoded.is_err() && stop.source().is_some() {
                pool.cancel();
                return Ok(());
            }
            while todo == 0 {
                if let Some(mut done) = range.take() {
                    done.finish()?;
                }
                let next = claims.lock().unwrap_or_else(PoisonError::into_inner).ranges.pop_front();
                let Some(next) = next else { return Err(queue::wrong_stage(&item.name)) };
                todo = next.items().len();
                range = Some(next);
            }
            todo -= 1;
            let Some(held) = range.as_mut() else { return Err(queue::wrong_stage(&item.name)) };
            // Another rank encodes the items of a lost range. This rank only counts them down.
            self.store(vae, held, &item, decoded)?;
        }
        if let Some(mut done) = range.take() {
            done.finish()?;
        }
        // If the previous holder of a range stored all its items, the pool has none of them.
        let rest = std::mem::take(&mut claims.lock().unwrap_or_else(PoisonError::into_inner).ranges);
        for mut range in rest {
            range.finish()?;
        }
        Ok(())
    }

    fn store(
        &self,
        vae: &mut VideoVae,
        range: &mut Range,
        item: &Item,
        decoded: Result<Decoded, Failure>,
    ) -> Result<Held, Failure> {
        let began = Instant::now();
        let encoded = decoded.and_then(|decoded| Ok((self.encode(vae, item, &decoded)?, decoded.times)));
        let (tensors, times) = match encoded {
            Ok(encoded) => encoded,
            Err(failure) if is_of_item(&failure) => {
                rundir::log!("{}: {failure}", item.name);
                let held = range.fail(item, failure.clone())?;
                if held == Held::Mine {
                    self.counts.quarantined(&item.name, failure);
                }
                return Ok(held);
            }
            Err(failure) => return Err(failure),
        };
        let bytes = tensors.iter().map(StoredTensor::len).sum();
        let held = commit(range, item, &times, &tensors)?;
        if held == Held::Mine {
            self.counts.passed(EncodeStage::Vae, began, bytes);
            self.counts.stored(EncodeStage::Vae);
        }
        Ok(held)
    }

    /// Returns the moments `[T, 2C, h, w]` of a clip, then the tensors of its condition.
    fn encode(&self, vae: &mut VideoVae, item: &Item, decoded: &Decoded) -> Result<Vec<StoredTensor>, Failure> {
        let Work::Video { content, .. } = &item.work else { return Err(queue::wrong_stage(&item.name)) };
        let Frames { width, height, count, rgb } = &decoded.frames;
        let shape = [1, *count as i64, *height as i64, *width as i64, 3];
        let video_bfhwc = Tensor::from_slice(rgb).view(shape).to_device(self.device);
        let video_bcfhw = video_bfhwc.permute([0, 4, 1, 2, 3]).to_kind(Kind::Float) / 127.5 - 1.0;
        drop(video_bfhwc);
        let spec = &self.decoder.spec;
        let mut moments = |video: &Tensor| self.moments(vae, &item.name, video);
        let encoded = moments(&video_bcfhw).and_then(|latent| {
            let latent = StoredTensor::of("", &frames_first(&latent));
            let extra = match &spec.condition {
                Some(condition) => of_clip(condition, spec.seed_of(content), &video_bcfhw, &mut moments)?,
                None => Vec::new(),
            };
            let extra = extra.iter().map(|(role, tensor)| StoredTensor::of(role, tensor));
            let tensors: Option<Vec<_>> = std::iter::once(latent).chain(extra).collect();
            tensors.ok_or_else(|| not_finite(format!("cannot encode {}", item.name)))
        });
        encoded.inspect_err(|_| self.counts.failed_in(EncodeStage::Vae))
    }

    /// Returns the moments `[B, 2C, T, h, w]` of a video. Encodes whole frames, or tiles if memory is short.
    fn moments(&self, vae: &mut VideoVae, name: &str, video_bcfhw: &Tensor) -> Result<Tensor, Failure> {
        let moments = whole_or_tiles(self.tiling == recipe::Tiling::Auto, |frames| {
            if frames == FrameSplit::Whole {
                return vae.encode(video_bcfhw);
            }
            rundir::log!("{name}: out of memory; encoding it in tiles");
            vae.in_tiles(true)?;
            let moments = vae.encode(video_bcfhw);
            vae.in_tiles(false)?;
            moments
        });
        Ok(moments?.joined())
    }
}

impl Decoder {
    /// Chooses and decodes the frames of a clip.
    fn decode(&self, programs: &Programs, item: &Item) -> Result<Decoded, Failure> {
        self.counts.begun(EncodeStage::Probe, 1);
        let probed = self.probe(programs, item).inspect_err(|_| self.counts.failed_in(EncodeStage::Probe));
        self.counts.begun(EncodeStage::Decode, 1);
        let decoded = self.frames(programs, probed?).inspect_err(|_| self.counts.failed_in(EncodeStage::Decode))?;
        self.counts.queued(EncodeStage::Vae, 1);
        Ok(decoded)
    }

    /// Chooses the frames of a clip by their times.
    fn probe<'i>(&self, programs: &Programs, item: &'i Item) -> Result<Probed<'i>, Failure> {
        let Work::Video { source: path, content, stamp, bucket } = &item.work else {
            return Err(queue::wrong_stage(&item.name));
        };
        let began = Instant::now();
        let stamp = stamp.check(path, content)?;
        let StoreSpec { frames, picture, .. } = self.spec.at(*bucket);
        let source = again_if_killed(|| programs.open(path))?.at_rate(frames.fps);
        let seed = self.spec.seed_of(content);
        let choice =
            FrameChoice { mode: self.mode, frames: frames.count, fps: frames.fps, stride: frames.stride, seed };
        let times = source.choose(&choice)?;
        let picture = Picture { width: picture.width, height: picture.height, crop: self.crop, seed };
        self.counts.passed(EncodeStage::Probe, began, 0);
        Ok(Probed { path, stamp, source, times, picture })
    }

    /// Decodes the chosen frames of a clip.
    fn frames(&self, programs: &Programs, probed: Probed<'_>) -> Result<Decoded, Failure> {
        let began = Instant::now();
        let Probed { path, stamp, source, times, picture } = probed;
        let frames = again_if_killed(|| programs.decode(&source, &times, &picture))?;
        stamp.check_same(path)?;
        self.counts.passed(EncodeStage::Decode, began, frames.rgb.len() as u64);
        Ok(Decoded { times, frames })
    }
}

/// Retries a program once if a signal ended it, because the cause, such as a lack of memory, may be gone. A damaged clip that
/// crashes the program does so twice.
fn again_if_killed<T>(mut run: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    match run() {
        Err(failure) if failure.code == ErrorCode::CommandFailed => run(),
        done => done,
    }
}

/// An iterator over the items of ranges. It claims the next range when all earlier items are taken.
struct Items {
    queue: SharedQueue,
    claims: SharedClaims,
    items: VecDeque<Item>,
    counts: Counts,
}

impl Items {
    fn new(queue: SharedQueue, claims: SharedClaims, first: Box<Range>, counts: Counts) -> Self {
        let shared = claims.clone();
        let mut items = Self { queue, claims, items: VecDeque::new(), counts };
        items.add(first, &mut shared.lock().unwrap_or_else(PoisonError::into_inner));
        items
    }

    fn add(&mut self, range: Box<Range>, claims: &mut Claimed) {
        let count = range.items().len();
        [EncodeStage::Probe, EncodeStage::Decode].into_iter().for_each(|stage| self.counts.queued(stage, count));
        self.items.extend(range.items().iter().cloned());
        claims.ranges.push_back(range);
    }
}

impl Iterator for Items {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let shared = self.claims.clone();
        while self.items.is_empty() {
            let claimed = claim(&self.queue, ItemKind::Latent);
            let mut claims = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if claims.left.is_some() {
                return None;
            }
            match claimed {
                Ok(Ok(range)) => self.add(range, &mut claims),
                Ok(Err(left)) => claims.left = Some(Ok(left)),
                Err(failure) => claims.left = Some(Err(failure)),
            }
        }
        self.items.pop_front()
    }
}
