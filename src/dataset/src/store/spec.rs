//! The specification of a store (how its latents and texts are made), and the keys that follow from it.

use crate::layouts::VIDEO_ENDINGS;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Bucket, BucketRule, BucketSpec, ConditionKind, Conditioning, FamilyName, Model};
use rundir::{ErrorCode, Failure, Versioned, read_toml};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The name of the file with the specification.
pub const SPEC: &str = "dataset.toml";
/// The version of the code that makes latents and texts. It is part of every key: a new version makes all items stale.
pub const CODE: &str = "1";
/// The newest schema of a store that this program reads.
pub(crate) const SCHEMA: u32 = 1;

/// The settings by which a store is made. Equal specifications give equal keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreSpec {
    /// The version of the format.
    pub schema: u32,
    /// [`CODE`] of the program that made the store.
    pub code: String,
    /// The choice of frames from a video.
    pub frames: FrameSpec,
    /// The scaling and cropping of a frame to the requested size.
    pub picture: PictureSpec,
    /// The encoder of videos.
    pub vae: VaeSpec,
    /// The encoder of captions.
    pub text: TextSpec,
    /// The tensors that each clip has besides its latent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionSpec>,
    /// The rule that gives each clip its size; `None` if all clips have one size. With it, the number of frames in `frames` and the size
    /// in `picture` are 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<BucketsSpec>,
}

/// The rule that gives each clip its size, with the values of the recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BucketsSpec {
    /// `data.bucket_rule`.
    pub rule: BucketRule,
    /// `data.buckets`.
    pub list: Vec<BucketSpec>,
}

/// The choice of frames from a video.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrameSpec {
    /// The mode, as recipes name it: `head`, `middle`, `random`, `stride`, `linspace`, `time@fps`.
    pub mode: String,
    /// The number of frames; 0 if it is not known (imported latents) or that of a bucket.
    pub count: usize,
    /// The rate in frames per second; `None` to take frames without regard to time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fps: Option<f64>,
    /// The distance between chosen frames, in frames of the video.
    pub stride: usize,
    /// The seed of random choices, which also depend on the content of the video, and never on its name.
    pub seed: u64,
}

/// The scaling and cropping of a frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PictureSpec {
    /// Pixels; 0 if it is not known.
    pub width: usize,
    /// Pixels; 0 if it is not known.
    pub height: usize,
    /// The crop, as recipes name it.
    pub crop: String,
    /// The identity of the rules of decoding and colour.
    pub colour_rule: String,
}

/// The encoder of videos.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VaeSpec {
    /// The folder from which the encoder was read; for users only.
    pub name: String,
    /// The hash of its weights and configuration; empty if it is not known.
    pub identity: String,
    /// Channels of a latent.
    pub channels: usize,
    /// The factor that multiplies latents before training; 0 if it is not known.
    pub scaling_factor: f64,
    /// The element type of the computation: `bf16` or `fp32`.
    pub dtype: String,
}

/// The encoder of captions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextSpec {
    /// The folder from which the encoder was read; for users only.
    pub name: String,
    /// The hash of the tokenizer.
    pub tokenizer: String,
    /// The hash of the encoder's weights and configuration; empty if it is not known.
    pub encoder: String,
    /// Tokens of a text.
    pub len: usize,
    /// Width of a token.
    pub dim: usize,
    /// The element type of the computation: `bf16` or `fp32`.
    pub dtype: String,
}

/// The tensors of a clip for models that receive an image or a masked video. Noise and masks are drawn from the seed of the frames
/// and the content of the video.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConditionSpec {
    /// The kind of condition that the model receives.
    pub kind: ConditionKind,
    /// Whether noise is added to the pixels of the image (`condition.image_noise`).
    pub noise: bool,
    /// The kinds of masks, as `KIND=PROBABILITY`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masks: Vec<String>,
    /// The number of random draws of noise and masks that are stored for each clip.
    pub draws: usize,
}

impl ConditionSpec {
    /// Returns the tensors that an encode with this condition makes, or `None` for text-only models.
    ///
    /// # Errors
    /// The masks of the condition cannot be used.
    pub fn of(condition: &Conditioning) -> Result<Option<Self>, Failure> {
        let masks = match condition.kind {
            ConditionKind::None | ConditionKind::FirstFrame => return Ok(None),
            ConditionKind::Image | ConditionKind::ImageClip => Vec::new(),
            ConditionKind::Inpaint => condition.mask_kinds().map_err(|why| {
                let fix = "omit condition.masks for VideoX-Fun's kinds";
                Failure::new(ErrorCode::InvalidRecipe, "cannot draw masks", why, fix)
            })?,
        };
        let masks = masks.iter().filter(|(_, share)| *share > 0.0).map(|(kind, share)| format!("{kind}={share}"));
        let (kind, noise, draws) = (condition.kind, condition.image_noise, condition.draws());
        Ok(Some(Self { kind, noise, masks: masks.collect(), draws }))
    }
}

impl ConditionSpec {
    /// Describes the tensors: `image, with noise, 4 draws`.
    pub fn in_words(&self) -> String {
        let mut words = vec![self.kind.name().to_owned()];
        if self.noise {
            words.push("with noise".into());
        }
        if self.draws != 1 {
            words.push(units::counted(self.draws, "draw"));
        }
        words.extend(self.masks.iter().cloned());
        words.join(", ")
    }
}

impl Versioned for StoreSpec {
    fn version(&self) -> u32 {
        self.schema
    }
}

impl StoreSpec {
    /// Makes a specification of the current schema.
    pub fn new(frames: FrameSpec, picture: PictureSpec, vae: VaeSpec, text: TextSpec) -> Self {
        Self { schema: SCHEMA, code: CODE.into(), frames, picture, vae, text, condition: None, buckets: None }
    }

    /// Reads the specification of a store.
    ///
    /// # Errors
    /// The specification is missing, malformed, or of a newer schema.
    pub fn read(data: &Utf8Path) -> Result<Self, Failure> {
        read_toml(&data.join(SPEC)).map_err(|error| {
            if error.is_not_found()
                && let Some(video) = a_video(data)
            {
                return Failure::new(
                    ErrorCode::InvalidDataset,
                    format!("cannot read the data set {data}"),
                    format!("it has videos, such as {video}, and training reads encoded latents and texts"),
                    format!(
                        "encode the videos: vidtui data encode {data} --model FOLDER --out DATA, and name DATA instead"
                    ),
                );
            }
            let newer = matches!(error, rundir::Error::Newer { .. });
            let failure = Failure::from(error);
            let fix = if newer { failure.fix } else { format!("give the folder of a data set that has {SPEC}") };
            Failure::new(failure.code, format!("cannot read the data set {data}"), failure.why, fix)
        })
    }

    /// Returns the specification for clips of a bucket: the same as that of an encode in which all clips have the bucket's size.
    pub fn at(&self, bucket: Option<Bucket>) -> Self {
        let mut spec = self.clone();
        if let Some(Bucket { frames, height, width }) = bucket {
            (spec.frames.count, spec.picture.height, spec.picture.width) = (frames, height, width);
            spec.buckets = None;
        }
        spec
    }

    /// Returns the key of a latent. `content` is the hash of the video file.
    pub fn latent_key(&self, content: &str) -> String {
        let vae = (&self.vae.identity, self.vae.channels, &self.vae.dtype);
        let latent = ("latent", &self.code, content, &self.frames, &self.picture, vae);
        match &self.condition {
            None => key(&latent),
            Some(condition) => key(&(latent, condition)),
        }
    }

    /// Returns the key of a text.
    pub fn text_key(&self, caption: &str) -> String {
        let text = &self.text;
        key(&("text", &self.code, caption, &text.tokenizer, &text.encoder, text.len, text.dim, &text.dtype))
    }

    /// Returns a hash of the specification.
    pub fn identity(&self) -> String {
        key(self)
    }

    /// Returns the seed of the random choices for a video with the hash `content`.
    pub fn seed_of(&self, content: &str) -> u64 {
        seed_of(self.frames.seed, content)
    }

    /// Names the differences that make a latent of `old` unusable under `self`; empty if it can be used.
    pub(crate) fn latent_changes(&self, old: &Self) -> Vec<String> {
        let rows = [
            ("VAE", old.vae.identity != self.vae.identity || old.vae.channels != self.vae.channels),
            ("VAE dtype", old.vae.dtype != self.vae.dtype),
            ("choice of frames", old.frames != self.frames),
            ("size", (old.picture.width, old.picture.height) != (self.picture.width, self.picture.height)),
            ("crop", old.picture.crop != self.picture.crop),
            ("buckets", old.buckets != self.buckets),
            ("condition", old.condition != self.condition),
            ("colour rule", old.picture.colour_rule != self.picture.colour_rule),
            ("code", old.code != self.code),
        ];
        rows.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name.to_owned()).collect()
    }

    /// Names the differences that make a text of `old` unusable under `self`; empty if it can be used.
    pub(crate) fn text_changes(&self, old: &Self) -> Vec<String> {
        let rows = [
            ("tokenizer", old.text.tokenizer != self.text.tokenizer),
            ("text encoder", old.text.encoder != self.text.encoder || old.text.dim != self.text.dim),
            ("text length", old.text.len != self.text.len),
            ("text encoder dtype", old.text.dtype != self.text.dtype),
            ("code", old.code != self.code),
        ];
        rows.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name.to_owned()).collect()
    }

    /// Checks that latents and texts fit a model.
    ///
    /// # Errors
    /// The VAE has other channels or another scaling factor than the model expects, or the texts have another length or
    /// width.
    pub fn check_model(&self, data: &Utf8Path, model: &Model) -> Result<(), Failure> {
        let bad = |why: String, fix: String| {
            Err(Failure::new(
                ErrorCode::InvalidDataset,
                format!("the data set {data} does not fit the model"),
                why,
                fix,
            ))
        };
        let (vae, text) = (&self.vae, &self.text);
        let channels = crate::latent_channels(model);
        if vae.channels != channels {
            return bad(
                format!("its VAE {} makes latents of {} channels, the model has {channels}", vae.name, vae.channels),
                "encode the videos again with the VAE of the model".into(),
            );
        }
        let is_wan = model.family.name() == FamilyName::Wan;
        if is_wan && !model.fits_vae_scale(vae.scaling_factor) {
            return bad(
                format!("its latents are not those of the VAE of Wan: they were made with {}", vae.name),
                "encode the videos again: vidtui data encode VIDEOS --for RECIPE --model DIR --out DATA".into(),
            );
        }
        if vae.scaling_factor != 0.0 && !model.fits_vae_scale(vae.scaling_factor) {
            return bad(
                format!(
                    "its VAE {} has scaling factor {}, model.latent_scale is {}",
                    vae.name, vae.scaling_factor, model.latent_scale
                ),
                format!(
                    "encode the videos again with the VAE of the model, or set model.latent_scale = {} if the model \
                     belongs to this VAE",
                    vae.scaling_factor
                ),
            );
        }
        if (text.len, text.dim) != (model.text_len, model.text_dim) {
            return bad(
                format!(
                    "its texts are [{}, {}], the model expects [{}, {}]",
                    text.len, text.dim, model.text_len, model.text_dim
                ),
                format!(
                    "set model.text_len = {} and model.text_dim = {}, or encode the texts again",
                    text.len, text.dim
                ),
            );
        }
        Ok(())
    }
}

/// Returns the seed of the random choices for a video with the hash `content`.
pub fn seed_of(seed: u64, content: &str) -> u64 {
    xxh3_128(format!("{seed} {content}").as_bytes()) as u64
}

/// Hashes a value by its JSON form to 128 bits. Keys are not chosen by users, so a fast, non-cryptographic hash is
/// sufficient.
fn key<T: Serialize>(value: &T) -> String {
    format!("{:032x}", xxh3_128(&serde_json::to_vec(value).expect("specifications have a JSON form")))
}

/// Returns a video in a folder or in one of its folders, if there is one.
fn a_video(folder: &Utf8Path) -> Option<Utf8PathBuf> {
    let entries = |folder: &Utf8Path| -> Vec<Utf8PathBuf> {
        folder.read_dir_utf8().into_iter().flatten().flatten().map(|entry| entry.path().to_owned()).collect()
    };
    let is_video = |path: &Utf8PathBuf| {
        path.extension().is_some_and(|ending| VIDEO_ENDINGS.iter().any(|video| ending.eq_ignore_ascii_case(video)))
    };
    let here = entries(folder);
    let found = here.iter().find(|path| is_video(path)).cloned();
    found.or_else(|| here.iter().find_map(|path| entries(path).into_iter().find(is_video)))
}
