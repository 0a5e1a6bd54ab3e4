//! The inputs of an encode (manifest and encoder files), and the sizes and memory that follow from them before it runs.

use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Bucket, ComputeDtype, ConditionKind, Encoders, Recipe, Tiling};
use rundir::{ErrorCode, Failure};
use tokenizer::{SCENE_END, SCENE_START, Tokenizer};
use video::FrameChoice;
use weights::{EncoderFiles, Peak, T5Config, VideoVaeConfig, t5_memory};

use crate::lost::{LostClips, LostIn};
use crate::store::{
    BucketsSpec, ConditionSpec, FrameSpec, PictureSpec, Plan, Quarantined, Queue, StoreSpec, TextSpec, VaeSpec,
    plan_encode,
};
use crate::{Assigner, BucketClips, ClipManifest};

/// The subfolders of a diffusers model that an encode reads.
pub const ENCODER_FOLDERS: [&str; 3] = ["vae", "text_encoder", "tokenizer"];

/// The inputs of a recipe with `task = "encode"`, opened and checked.
#[derive(Debug)]
pub struct EncodeInputs {
    recipe: Recipe,
    /// The clips.
    pub manifest: ClipManifest,
    /// The configuration of the VAE.
    pub vae: VideoVaeConfig,
    /// The configuration of the text encoder.
    pub text: T5Config,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    vae_files: EncoderFiles,
    text_files: EncoderFiles,
}

/// The sizes in bytes that determine the disk space and the memory of an encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeCost {
    /// One latent, with the tensors of its condition.
    pub latent_bytes: u64,
    /// One text.
    pub text_bytes: u64,
    /// Decoded frames of one clip, in the memory of the node.
    pub clip_bytes: u64,
    /// The peak memory of the VAE.
    pub vae: Peak,
    /// The peak memory of the VAE with tiles, if tiles reduce it.
    pub tiled: Option<Peak>,
    /// The peak memory of the text encoder.
    pub text: Peak,
}

impl EncodeCost {
    /// Returns the peak memory of a rank: the text encoder is freed before the VAE is loaded.
    pub fn peak_bytes(&self) -> u64 {
        self.vae.total().max(self.text.total())
    }

    /// Returns the peak memory if both encoders were loaded together.
    pub fn both_bytes(&self) -> u64 {
        self.vae.total().max(self.text.total()) + self.vae.weights.min(self.text.weights)
    }

    /// Returns the disk space for this many latents and texts. It includes the part files, which exist while shards are
    /// written.
    pub fn disk_bytes(&self, latents: u64, texts: u64) -> u64 {
        2 * (latents * self.latent_bytes + texts * self.text_bytes)
    }
}

impl EncodeInputs {
    /// Reads the manifest and the configurations, and checks the tables of weights. Reads no weights.
    ///
    /// # Errors
    /// The manifest cannot be read or excludes too many clips; a folder of the encoders is missing or holds another model; the
    /// sizes of the recipe do not fit the VAE.
    pub fn open(recipe: &Recipe) -> Result<Self, Failure> {
        check_folder(&recipe.encoders.folder)?;
        let encode = &recipe.encode;
        let mut manifest = ClipManifest::read(&encode.manifest)?;
        manifest.assign(Assigner::new(recipe, FrameChoice::of(encode)).as_ref());
        manifest.refuse_if_dropped(encode.max_dropped)?;
        let folder = |name: &str| recipe.encoders.folder.join(name);
        let (vae, vae_files) = VideoVaeConfig::open(&folder("vae"))?;
        let (text, text_files) = T5Config::open(&folder("text_encoder"))?;
        let tokenizer = open_tokenizer(&recipe.encoders)?;
        check_sizes(recipe, &vae)?;
        check_tokens(&recipe.encoders.folder, tokenizer.vocabulary(), text.vocab_size)?;
        check_scenes(recipe, &manifest)?;
        Ok(Self { recipe: recipe.clone(), manifest, vae, text, tokenizer, vae_files, text_files })
    }

    /// Returns the specification of the data set. Reads all weights to hash them.
    ///
    /// # Errors
    /// Weights cannot be read.
    pub fn spec(&self) -> Result<StoreSpec, Failure> {
        let Recipe { encode, encoders, .. } = &self.recipe;
        let dtype = match encoders.dtype {
            ComputeDtype::Bfloat16 => "bf16",
            ComputeDtype::Float32 => "fp32",
        };
        let folder = encoders.folder.to_string();
        let frames = FrameSpec {
            mode: encode.mode.name().into(),
            count: encode.frames,
            fps: encode.rate(),
            stride: encode.stride,
            seed: encode.seed,
        };
        let picture = PictureSpec {
            width: encode.width,
            height: encode.height,
            crop: encode.crop.name().into(),
            colour_rule: video::COLOUR_RULE.into(),
        };
        // Tiles change latents slightly.
        let tiled = if encoders.tiling == Tiling::On { " in tiles" } else { "" };
        let vae = VaeSpec {
            name: folder.clone(),
            identity: self.vae_files.identity()? + tiled,
            channels: self.vae.latent_channels(),
            scaling_factor: self.vae.scaling_factor(),
            dtype: dtype.into(),
        };
        let text = TextSpec {
            name: folder,
            tokenizer: self.tokenizer.identity().to_owned(),
            encoder: self.text_files.identity()?,
            len: encode.text_len,
            dim: self.text.d_model,
            dtype: dtype.into(),
        };
        let condition = ConditionSpec::of(&self.recipe.condition)?;
        let data = &self.recipe.data;
        let buckets =
            (!data.buckets.is_empty()).then(|| BucketsSpec { rule: data.bucket_rule, list: data.buckets.clone() });
        Ok(StoreSpec { condition, buckets, ..StoreSpec::new(frames, picture, vae, text) })
    }

    /// Plans the encode: which items are reused, new or stale. Reads all weights to hash them, and writes nothing.
    ///
    /// # Errors
    /// The weights or the existing data set cannot be read, or too many clips failed in an earlier encode and are left out.
    pub fn plan(&self) -> Result<Plan, Failure> {
        let encode = &self.recipe.encode;
        let quarantined = if encode.retry_failed { Quarantined::Retry } else { Quarantined::Skip };
        let plan = plan_encode(&encode.out, &self.manifest, &self.spec()?, quarantined)?;
        let failed = plan.quarantined.iter().map(|(item, failure)| (item.name.as_str(), failure));
        let lost = LostClips {
            all: self.manifest.clips.len(),
            excluded: self.manifest.excluded().count(),
            failed: failed.collect(),
        };
        lost.refuse(LostIn::EarlierEncode, encode.max_dropped)?;
        Ok(plan)
    }

    /// Refuses the results of an encode whose work is done if too many clips failed. Call it before [`Queue::finish`].
    ///
    /// # Errors
    /// As [`Queue::refuse_if_lost`].
    pub fn refuse_if_lost(&self, queue: &Queue) -> Result<(), Failure> {
        queue.refuse_if_lost(self.manifest.excluded().count(), self.recipe.encode.max_dropped)
    }

    /// Returns the sizes of the outputs and the memory that the encode needs. With buckets, the size of a latent is the mean over all
    /// clips, and the memory is that of the bucket that needs the most.
    pub fn cost(&self) -> EncodeCost {
        let encode = &self.recipe.encode;
        let buckets = self.manifest.buckets();
        if buckets.is_empty() {
            return self.cost_at([encode.frames, encode.height, encode.width]);
        }
        let costs: Vec<(usize, EncodeCost)> = buckets
            .iter()
            .map(|BucketClips { bucket, clips, .. }| {
                (*clips, self.cost_at([bucket.frames, bucket.height, bucket.width]))
            })
            .collect();
        let clips: usize = costs.iter().map(|(clips, _)| clips).sum();
        let latents: u64 = costs.iter().map(|(clips, cost)| *clips as u64 * cost.latent_bytes).sum();
        let largest = costs.iter().map(|(_, cost)| *cost).max_by_key(|cost| cost.vae.total());
        let largest = largest.expect("there is a bucket");
        EncodeCost {
            latent_bytes: latents.div_ceil(clips as u64),
            clip_bytes: costs.iter().map(|(_, cost)| cost.clip_bytes).max().unwrap_or(0),
            ..largest
        }
    }

    /// Returns the cost of clips of a size: frames, height, width.
    fn cost_at(&self, size: [usize; 3]) -> EncodeCost {
        let Recipe { encode, encoders, .. } = &self.recipe;
        let [frames, height, width] = size;
        let element = encoders.dtype.bytes();
        let (whole, tiled) = (self.vae.memory(size, false, element), self.vae.memory(size, true, element));
        let factor = self.vae.spatial_factor();
        let pixels = (height / factor) * (width / factor);
        let (count, channels) = (self.vae.latent_frames(frames), 2 * self.vae.latent_channels());
        let condition = &self.recipe.condition;
        let conditions = condition.draws()
            * match condition.kind {
                ConditionKind::None | ConditionKind::FirstFrame => 0,
                ConditionKind::Image => channels,
                ConditionKind::Inpaint => count * (channels + 1),
                ConditionKind::ImageClip => count * channels,
            };
        // Moments: mean and log-variance, in bf16.
        let latent = (count * channels + conditions) * pixels * 2;
        EncodeCost {
            latent_bytes: latent as u64,
            text_bytes: (encode.text_len * self.text.d_model * 2) as u64,
            clip_bytes: (frames * height * width * 3) as u64,
            vae: if encoders.tiling == Tiling::On { tiled } else { whole },
            tiled: (encoders.tiling == Tiling::Auto && tiled.total() < whole.total()).then_some(tiled),
            text: t5_memory(&self.text, encode.batch, encode.text_len, element),
        }
    }

    /// Returns the number of different captions, the empty one included.
    pub fn captions(&self) -> usize {
        let mut captions: std::collections::BTreeSet<&str> =
            self.manifest.usable().flat_map(crate::Clip::captions).collect();
        captions.insert("");
        captions.len()
    }
}

/// Checks that a diffusers folder has all files that an encode reads.
///
/// # Errors
/// [`ErrorCode::NoWeights`] with the parts that are missing and the command that fetches them.
pub fn check_folder(folder: &Utf8Path) -> Result<(), Failure> {
    let missing: Vec<Utf8PathBuf> =
        ENCODER_FOLDERS.map(|name| folder.join(name)).into_iter().filter(|path| !path.is_dir()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = missing.iter().map(|path| format!("{}/", path.file_name().unwrap_or_default())).collect();
    let why = match folder.is_dir() {
        true => format!("it has no {}", names.join(", ")),
        false => "the folder does not exist".into(),
    };
    Err(Failure::new(
        ErrorCode::NoWeights,
        format!("cannot use the encoders in {folder}"),
        why,
        "get a model with them, for example with `vidtui fetch zai-org/CogVideoX-5b` or `vidtui fetch Wan-AI/Wan2.1-T2V-1.3B-Diffusers`, \
         and set encoders.folder to the folder that it prints",
    ))
}

/// The tables of T5 are rounded up to a multiple of this.
const ROUNDED: usize = 128;

/// Checks that the text encoder has an embedding for every token, and hardly any more.
pub(crate) fn check_tokens(folder: &Utf8Path, tokens: usize, embedded: usize) -> Result<(), Failure> {
    if (tokens..tokens + ROUNDED).contains(&embedded) {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::TensorMismatch,
        format!("the tokenizer and the text encoder of {folder} do not belong together"),
        format!("the tokenizer has {tokens} tokens, the text encoder embeds {embedded}"),
        "copy tokenizer/ and text_encoder/ of one model",
    ))
}

/// Opens the tokenizer of the encoders, with scene tokens if the recipe has them. That of umT5 cleans texts.
///
/// # Errors
/// The tokenizer is missing, damaged or of another kind.
pub fn open_tokenizer(encoders: &Encoders) -> Result<Tokenizer, Failure> {
    let tokenizer = Tokenizer::open(&encoders.folder.join("tokenizer"))?;
    let tokenizer = if encoders.scene_tokens { tokenizer.with_scene_tokens() } else { tokenizer };
    let cleans = T5Config::open(&encoders.folder.join("text_encoder"))?.0.is_umt5();
    Ok(if cleans { tokenizer.with_cleaning() } else { tokenizer })
}

/// Checks that captions have no scene tokens if the tokenizer reads them as text.
fn check_scenes(recipe: &Recipe, manifest: &ClipManifest) -> Result<(), Failure> {
    if recipe.encoders.scene_tokens {
        return Ok(());
    }
    let has_token = |caption: &str| [SCENE_START, SCENE_END].iter().any(|token| caption.contains(token));
    let Some(clip) = manifest.usable().find(|clip| clip.captions().any(has_token)) else { return Ok(()) };
    Err(Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot encode {}", recipe.encode.manifest),
        format!(
            "the caption of {} has the token {SCENE_START} or {SCENE_END}, which would be encoded as words",
            clip.id
        ),
        "encode for a recipe with encoders.scene_tokens = true, for example --for configs/ttt-mlp/9s.toml, or \
         remove the tokens from captions, and the columns scene_start and scene_end from the table",
    ))
}

/// Checks the size of an encode, or of each bucket, against the VAE.
fn check_sizes(recipe: &Recipe, vae: &VideoVaeConfig) -> Result<(), Failure> {
    let encode = &recipe.encode;
    check_latent_pixels(&recipe.encoders, vae)?;
    match recipe.buckets() {
        None => check_size(None, [encode.frames, encode.height, encode.width], vae),
        Some(buckets) => buckets
            .all()
            .into_iter()
            .try_for_each(|bucket| check_size(Some(bucket), [bucket.frames, bucket.height, bucket.width], vae)),
    }
}

/// Checks that the VAE has as many pixels per latent pixel as the recipe assumes.
///
/// # Errors
/// [`ErrorCode::InvalidRecipe`] with the number of the VAE.
pub(crate) fn check_latent_pixels(encoders: &Encoders, vae: &VideoVaeConfig) -> Result<(), Failure> {
    let (own, wanted) = (vae.spatial_factor(), encoders.latent_pixels);
    if own == wanted {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::InvalidRecipe,
        format!("the VAE in {} does not fit the recipe", encoders.folder),
        format!(
            "it makes one latent pixel of {own} pixels in rows and columns, and encoders.latent_pixels is {wanted}"
        ),
        format!("set encoders.latent_pixels = {own} for this VAE, or use the folder of another model"),
    ))
}

/// Checks a size of `[encode]`, or of a bucket.
fn check_size(
    bucket: Option<Bucket>,
    [frames, height, width]: [usize; 3],
    vae: &VideoVaeConfig,
) -> Result<(), Failure> {
    let (pixels, step) = (vae.spatial_factor(), vae.temporal_factor());
    let bad = |key: &str, size: usize, why: String, nearest: [usize; 2]| {
        let [below, above] = nearest;
        let (key, place) = match bucket {
            None => (format!("encode.{key}"), String::new()),
            Some(bucket) => (key.to_owned(), format!(" in the entry of data.buckets with the bucket {bucket}")),
        };
        let (why, fix) =
            (format!("{key} is {size}{place}, and {why}"), format!("set {key} = {below} or {above}{place}"));
        Err(Failure::new(ErrorCode::InvalidRecipe, "the recipe does not fit the VAE", why, fix))
    };
    for (key, size) in [("height", height), ("width", width)] {
        if !size.is_multiple_of(pixels) {
            let below = (size / pixels * pixels).max(pixels);
            let why = format!("the VAE makes one latent pixel of {pixels} pixels");
            return bad(key, size, why, [below, below + pixels]);
        }
    }
    if !(frames - 1).is_multiple_of(step) {
        let below = (frames - 1) / step * step + 1;
        let why = format!("the VAE makes one latent frame of {step} frames after the first");
        return bad("frames", frames, why, [below, below + step]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder with the encoders of the fixtures, and a manifest of one clip.
    fn inputs() -> (tempfile::TempDir, Recipe) {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let parts = [
            ("vae", "oracle/vae/cogvideox_5b_tiny/vae"),
            ("text_encoder", "oracle/t5/t5_v1_1_tiny/text_encoder"),
            ("tokenizer", "oracle/t5/t5_v1_1_tiny/tokenizer"),
        ];
        for (part, from) in parts {
            fs::create_dir(folder.join(part)).unwrap();
            for file in fixtures.join(from).read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()) {
                fs::copy(&file, folder.join(part).join(file.file_name().unwrap())).unwrap();
            }
        }
        let clip = crate::Clip { id: "a.mp4".into(), path: "a.mp4".into(), caption: "a".into(), ..Default::default() };
        let header = crate::ManifestHeader::new("clips".into(), "pairs", folder);
        ClipManifest { header, clips: vec![clip] }.write(&folder.join("clips.jsonl")).unwrap();
        let sets = [
            format!("encoders.folder={folder}"),
            format!("encode.manifest={folder}/clips.jsonl"),
            format!("encode.out={folder}/data"),
        ];
        let recipe = recipe::load(&fixtures.join("configs/valid/encode.toml"), &sets).unwrap().recipe;
        (keep, recipe)
    }

    #[test]
    fn encoders_that_are_incomplete_or_of_other_models_are_refused_before_anything_is_encoded() {
        let code = |harm: &dyn Fn(&Utf8Path)| {
            let (_keep, recipe) = inputs();
            harm(&recipe.encoders.folder);
            EncodeInputs::open(&recipe).map(drop).map_err(|failure| failure.code)
        };
        assert_eq!(code(&|_| ()), Ok(()));
        assert_eq!(code(&|folder| fs::remove_dir_all(folder.join("vae")).unwrap()), Err(ErrorCode::NoWeights));
        // The weights of another VAE, and none.
        let edit = |file: &Utf8Path, from: &str, to: &str| {
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(file, text.replacen(from, to, 1)).unwrap();
        };
        let other = |folder: &Utf8Path| {
            edit(&folder.join("vae/config.json"), "\"layers_per_block\": 1", "\"layers_per_block\": 2");
        };
        assert_eq!(code(&other), Err(ErrorCode::TensorMismatch));
        let cut = |folder: &Utf8Path| {
            let weights = folder.join("text_encoder/model-00001-of-00002.safetensors");
            let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
            file.set_len(file.metadata().unwrap().len() - 4).unwrap();
        };
        assert!(code(&cut).is_err());
        assert_eq!(check_tokens("model".into(), 32100, 32128), Ok(()));
        for embedded in [32000, 32256] {
            let failure = check_tokens("model".into(), 32100, embedded).unwrap_err();
            assert_eq!(failure.code, ErrorCode::TensorMismatch);
        }
    }

    #[test]
    fn a_size_that_does_not_fit_the_vae_is_named_with_its_key_and_the_nearest_sizes() {
        let (_keep, recipe) = inputs();
        let vae = EncodeInputs::open(&recipe).unwrap().vae;
        let fix = |bucket: Option<Bucket>, size: [usize; 3]| {
            let failure = check_size(bucket, size, &vae).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidRecipe);
            failure.fix
        };
        assert_eq!(check_size(None, [49, 480, 720], &vae), Ok(()));
        assert!(fix(None, [49, 484, 720]).contains("encode.height = 480 or 488"));
        let bucket = Bucket { frames: 48, height: 480, width: 720 };
        let fix = fix(Some(bucket), [48, 480, 720]);
        assert!(
            fix.contains(" frames = 45 or 49") && fix.contains("data.buckets") && fix.contains("48x480x720"),
            "{fix}"
        );
    }

    #[test]
    fn the_size_of_latents_counts_the_tensors_of_their_condition() {
        let (_keep, mut recipe) = inputs();
        let latent = |recipe: &Recipe| EncodeInputs::open(recipe).unwrap().cost().latent_bytes;
        // 13 × 60 × 90 latent pixels of 2 × 4 channels in bf16.
        let pixels = 60 * 90 * 2;
        assert_eq!(latent(&recipe), 13 * 8 * pixels);
        (recipe.condition.kind, recipe.condition.draws) = (ConditionKind::Image, 3);
        assert_eq!(latent(&recipe), (13 + 1) * 8 * pixels, "images without noise do not differ");
        recipe.condition.kind = ConditionKind::Inpaint;
        assert_eq!(latent(&recipe), (13 * 8 + 3 * 13 * 9) * pixels);
    }
}
