//! The inputs of an encode (manifest and encoder files), and the sizes and memory that follow from them before it runs.

use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Dtype, Encode, Recipe, Tiling};
use rundir::{ErrorCode, Failure};
use tokenizer::Tokenizer;
use weights::{EncoderFiles, Peak, T5Config, VaeConfig, t5_memory, vae_memory};

use crate::Manifest;
use crate::store::{FrameSpec, PictureSpec, Plan, Quarantined, StoreSpec, TextSpec, VaeSpec, plan_encode};

/// The folders of a diffusers folder that an encode reads.
pub const ENCODER_FOLDERS: [&str; 3] = ["vae", "text_encoder", "tokenizer"];

/// The inputs of a recipe with `task = "encode"`, opened and checked.
#[derive(Debug)]
pub struct EncodeInputs {
    recipe: Recipe,
    /// The clips.
    pub manifest: Manifest,
    /// The configuration of the VAE.
    pub vae: VaeConfig,
    /// The configuration of the text encoder.
    pub text: T5Config,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    vae_files: EncoderFiles,
    text_files: EncoderFiles,
}

/// The sizes of an encode in bytes: its outputs, and the memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeCost {
    /// One latent.
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
        let manifest = Manifest::read(&encode.manifest)?;
        manifest.refuse_if_dropped(encode.max_dropped)?;
        let folder = |name: &str| recipe.encoders.folder.join(name);
        let (vae, vae_files) = VaeConfig::open(&folder("vae"))?;
        let (text, text_files) = T5Config::open(&folder("text_encoder"))?;
        let tokenizer = Tokenizer::open(&folder("tokenizer"))?;
        check_sizes(encode, &vae)?;
        if tokenizer.vocabulary() > text.vocab_size {
            return Err(Failure::new(
                ErrorCode::TensorMismatch,
                format!("the tokenizer and the text encoder of {} do not belong together", recipe.encoders.folder),
                format!(
                    "the tokenizer has {} tokens, the text encoder embeds {}",
                    tokenizer.vocabulary(),
                    text.vocab_size
                ),
                "copy tokenizer/ and text_encoder/ of one model",
            ));
        }
        Ok(Self { recipe: recipe.clone(), manifest, vae, text, tokenizer, vae_files, text_files })
    }

    /// Returns how the data set is made. Reads all weights for their hashes.
    ///
    /// # Errors
    /// Weights cannot be read.
    pub fn spec(&self) -> Result<StoreSpec, Failure> {
        let Recipe { encode, encoders, .. } = &self.recipe;
        let dtype = match encoders.dtype {
            Dtype::Bfloat16 => "bf16",
            Dtype::Float32 => "fp32",
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
            channels: self.vae.latent_channels,
            scaling_factor: self.vae.scaling_factor,
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
        Ok(StoreSpec::new(frames, picture, vae, text))
    }

    /// Plans the encode: which items are reused, new or stale. Reads all weights for their hashes, and writes nothing.
    ///
    /// # Errors
    /// The weights or the existing data set cannot be read.
    pub fn plan(&self) -> Result<Plan, Failure> {
        let quarantined = if self.recipe.encode.retry_failed { Quarantined::Retry } else { Quarantined::Skip };
        plan_encode(&self.recipe.encode.out, &self.manifest, &self.spec()?, quarantined)
    }

    /// Returns the sizes of the outputs and the memory that the encode needs.
    pub fn cost(&self) -> EncodeCost {
        let Recipe { encode, encoders, .. } = &self.recipe;
        let element = encoders.dtype.bytes();
        let size = [encode.frames, encode.height, encode.width];
        let tiles = weights::Tiling::of(&self.vae);
        let (whole, tiled) =
            (vae_memory(&self.vae, size, None, element), vae_memory(&self.vae, size, Some(&tiles), element));
        let factor = self.vae.spatial_factor();
        let pixels = (encode.height / factor) * (encode.width / factor);
        // Moments: mean and log-variance, in bf16.
        let latent = self.vae.latent_frames(encode.frames) * 2 * self.vae.latent_channels * pixels * 2;
        EncodeCost {
            latent_bytes: latent as u64,
            text_bytes: (encode.text_len * self.text.d_model * 2) as u64,
            clip_bytes: (encode.frames * encode.height * encode.width * 3) as u64,
            vae: if encoders.tiling == Tiling::On { tiled } else { whole },
            tiled: (encoders.tiling == Tiling::Auto && tiled.total() < whole.total()).then_some(tiled),
            text: t5_memory(&self.text, encode.batch, encode.text_len, element),
        }
    }

    /// Returns the number of different captions, the empty one included.
    pub fn captions(&self) -> usize {
        let mut captions: std::collections::BTreeSet<&str> =
            self.manifest.usable().map(|clip| clip.caption.as_str()).collect();
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
        "get them with `vidtui fetch zai-org/CogVideoX-5b`, and set encoders.folder to the folder that it prints",
    ))
}

fn check_sizes(encode: &Encode, vae: &VaeConfig) -> Result<(), Failure> {
    let (pixels, frames) = (vae.spatial_factor(), 1 << vae.temporal_levels());
    let bad = |why: String, fix: String| {
        Err(Failure::new(ErrorCode::InvalidRecipe, "the recipe does not fit the VAE", why, fix))
    };
    for (key, size) in [("height", encode.height), ("width", encode.width)] {
        if !size.is_multiple_of(pixels) {
            let below = (size / pixels * pixels).max(pixels);
            return bad(
                format!("encode.{key} is {size}, and the VAE makes one latent pixel of {pixels} pixels"),
                format!("set encode.{key} = {below} or {}", below + pixels),
            );
        }
    }
    if !(encode.frames - 1).is_multiple_of(frames) {
        let below = (encode.frames - 1) / frames * frames + 1;
        return bad(
            format!(
                "encode.frames is {}, and the VAE makes one latent frame of {frames} frames after the first",
                encode.frames
            ),
            format!("set encode.frames = {below} or {}", below + frames),
        );
    }
    Ok(())
}
