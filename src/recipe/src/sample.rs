//! The section `[sample]`: the videos that are made from the weights, and the validation loss.

use camino::{Utf8Path, Utf8PathBuf};

use crate::schema::{BOOL, MANY, NOT_NEGATIVE, OPTIONAL_PATH, POSITIVE, SAMPLE, TEXTS, TRAIN_AND_SAMPLE, int, word};
use crate::{ConditionKind, Encode, FamilyName, Model, Prompt, Recipe, RecipeError, ResumeEffect, Task, UseEma};

/// Video frames per latent frame, after the first, in every VAE of CogVideoX and Wan. Before a run starts, the VAE's files are checked for it.
pub const VIDEO_FRAMES: usize = 4;
/// The default of `encoders.latent_pixels`: the pixels of a side per latent pixel in every VAE of CogVideoX, and in that of Wan 2.1.
pub const PIXELS: usize = 8;

/// Returns the latent frames of a video: one for its first frame, and one for each full group of four frames that follow.
pub fn latent_frames(frames: usize) -> usize {
    frames.saturating_sub(1) / VIDEO_FRAMES + 1
}

/// Returns the number of video frames that the VAE decodes from latent frames. The VAE decodes two latent frames at a time. If their
/// number is odd, it decodes the first one to a single video frame.
pub fn decoded_frames(latent_frames: usize) -> usize {
    VIDEO_FRAMES * latent_frames - (VIDEO_FRAMES - 1) * (latent_frames % 2)
}

section! {
    /// The videos that are made from the weights, and the validation loss.
    pub struct Sampling("sample", TRAIN_AND_SAMPLE, ResumeEffect::None) with Default {
        /// prompts, each with flags of its own as in musubi-tuner: "a rabbit --w 720 --h 480 --f 49 --d 42 --s 50 --g 6 --i IMAGE"; ||
        /// separates the texts of segments
        pub prompts: Vec<String> = Vec::new() => TEXTS;
        /// optimizer steps between the samples and validation losses of a training run, which also follow the last step; 0: none
        pub every: u64 = 0 => int(0, MANY);
        /// seed of the noise of a sample, for prompts without --d
        pub seed: u64 = 42 => int(0, i64::MAX);
        /// sampling steps, for prompts without --s
        pub steps: usize = 50 => int(1, 1000);
        /// scale of classifier-free guidance, for prompts without --g; 1 or less: no guidance
        pub guidance: f64 = 6.0 => NOT_NEGATIVE;
        /// guidance that depends on the timestep, as CogVideoX's use_dynamic_cfg; auto: with dpm and vpsde
        pub dynamic_guidance: DynamicGuidance = DynamicGuidance::Auto => word::<DynamicGuidance>().of_family(FamilyName::CogVideoX);
        /// sampler; auto: vpsde (ttt-video-dit's) for models with TTT layers, ddim for sincos positions (CogVideoX-2B), dpm for other models
        /// of CogVideoX, unipc for Wan, which also has euler
        pub scheduler: SampleScheduler = SampleScheduler::Auto => word::<SampleScheduler>();
        /// shift of noise levels, as objective.shift; 5: as the code of Wan (3 at 480p), and 12 for text to video of Wan 2.2 A14B
        pub shift: f64 = 5.0 => POSITIVE.of_family(FamilyName::Wan);
        /// frames of a video, for prompts without --f: a multiple of 8, or one more (Wan: a
        /// multiple of 4 plus 1); 0: those that model.latent_frames decode to
        pub frames: usize = 0 => int(0, 100_001);
        /// rows of a video in pixels, for prompts without --h; 0: encoders.latent_pixels x model.latent_height
        pub height: usize = 0 => int(0, 16_384);
        /// columns of a video in pixels, for prompts without --w; 0: encoders.latent_pixels x model.latent_width
        pub width: usize = 0 => int(0, 16_384);
        /// frames per second of the mp4; 0: data.fps of the training recipe; if that is unknown, the rate of the published models: 16
        /// for CogVideoX 1.5, 8 for the others
        pub fps: f64 = 0.0 => NOT_NEGATIVE;
        /// first image of the videos of an image-to-video model, for prompts without --i
        pub image: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// last image of the videos of a model for inpainting, for prompts without --e
        pub image_end: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// video of which a model for inpainting replaces the masked pixels, for prompts without --v
        pub video: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// image that is white (240 to 255) where the pixels of the video are replaced, in all frames, for prompts without --m
        pub mask: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// folder of the videos; default: samples/ in the run directory
        pub out: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// also writes each frame as a PNG file
        pub png: bool = false => BOOL;
        /// adapters (LoRA) that are merged into the weights before sampling, as PATH or PATH:WEIGHT; files of diffusers, PEFT or kohya,
        /// or checkpoints of adapters
        pub lora: Vec<String> = Vec::new() => TEXTS.read_by(SAMPLE);
        /// makes samples from the moving average of the weights; auto: where there is one; on: otherwise an error; the validation loss
        /// is that of the same weights
        pub ema: UseEma = UseEma::Auto => word::<UseEma>();
        /// index of held-out clips, in the form of data.index; every sample.every steps their loss is measured at nine noise levels;
        /// default: none
        pub validation_index: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// held-out clips whose loss is measured, from the start of sample.validation_index
        pub validation_clips: usize = 32 => int(1, MANY);
    }
}

words! {
    /// Whether the guidance depends on the timestep.
    pub enum DynamicGuidance {
        /// Only with the samplers for which CogVideoX and ttt-video-dit use dynamic guidance: dpm and vpsde.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}

words! {
    /// The sampler.
    pub enum SampleScheduler {
        /// The sampler that the makers of the model use.
        Auto = "auto",
        /// CogVideoX's DDIM.
        Ddim = "ddim",
        /// CogVideoX's DPM++ 2M SDE.
        Dpm = "dpm",
        /// ttt-video-dit's DPM++ 2M SDE.
        Vpsde = "vpsde",
        /// UniPC of order 2 for flow matching.
        Unipc = "unipc",
        /// Euler's method for flow matching.
        Euler = "euler",
    }
}

/// One video to make, with every value decided.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleSpec {
    /// The text of each segment.
    pub texts: Vec<String>,
    /// The negative text of each segment for classifier-free guidance; empty by default.
    pub negatives: Vec<String>,
    /// The image that the video begins with.
    pub image: Option<Utf8PathBuf>,
    /// The image that the video ends with.
    pub image_end: Option<Utf8PathBuf>,
    /// The video whose masked pixels are replaced, and its mask.
    pub masked: Option<MaskedVideo>,
    /// The model at the size of the video.
    pub model: Model,
    /// Frames.
    pub frames: usize,
    /// Rows, in pixels.
    pub height: usize,
    /// Columns, in pixels.
    pub width: usize,
    /// Frames per second.
    pub fps: f64,
    /// The seed of noise.
    pub seed: u64,
    /// Sampling steps.
    pub steps: usize,
    /// The scale of classifier-free guidance.
    pub guidance: f64,
    /// Whether the guidance depends on the timestep.
    pub dynamic_guidance: bool,
    /// The sampler, not [`SampleScheduler::Auto`].
    pub scheduler: SampleScheduler,
    /// The shift of noise levels, for flow matching.
    pub shift: f64,
}

/// A video and the image of its mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedVideo {
    /// The video.
    pub video: Utf8PathBuf,
    /// The mask: white where pixels are replaced.
    pub mask: Utf8PathBuf,
}

impl SampleSpec {
    /// Returns the images and the video that the sample is made from, with the mask.
    pub fn files(&self) -> impl Iterator<Item = &Utf8PathBuf> {
        let masked = self.masked.iter().flat_map(|masked| [&masked.video, &masked.mask]);
        self.image.iter().chain(&self.image_end).chain(masked)
    }

    /// Returns how frames are taken from the video of [`SampleSpec::masked`]: those that the VAE encodes to the latent frames of the sample,
    /// from the start of the video, at the rate of the sample.
    pub fn known_frames(&self) -> Encode {
        let frames = (self.model.latent_frames - 1) * VIDEO_FRAMES + 1;
        Encode { frames, fps: self.fps, ..Encode::default() }
    }

    /// Returns the prompt: the texts of the segments.
    pub fn prompt(&self) -> String {
        joined(&self.texts)
    }

    /// Returns the negative prompt: the negative texts of the segments.
    pub fn negative(&self) -> String {
        joined(&self.negatives)
    }
}

/// Joins the texts of segments, unless all are equal.
fn joined(texts: &[String]) -> String {
    let is_one = texts.windows(2).all(|pair| pair[0] == pair[1]);
    if is_one { texts[0].clone() } else { texts.join(" || ") }
}

/// The reason why a prompt cannot be sampled, and the change that helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPrompt {
    /// The number of the prompt, from 0.
    pub index: usize,
    /// The flag that is wrong, if one is: `--w`.
    pub flag: Option<String>,
    /// The reason.
    pub why: String,
    /// The hint: what to change.
    pub fix: String,
}

/// An adapter that is merged into the weights before sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedLora {
    /// A file, or a checkpoint of adapters.
    pub path: Utf8PathBuf,
    /// The factor that multiplies the adapter's product of A and B.
    pub weight: f64,
}

impl MergedLora {
    /// Reads `PATH` or `PATH:WEIGHT`. A part after the last colon that is not a number belongs to the path.
    pub fn parse(text: &str) -> Self {
        let split = text.rsplit_once(':').and_then(|(path, weight)| Some((path, weight.parse::<f64>().ok()?)));
        match split.filter(|(path, weight)| !path.is_empty() && weight.is_finite()) {
            Some((path, weight)) => MergedLora { path: path.into(), weight },
            None => MergedLora { path: text.into(), weight: 1.0 },
        }
    }
}

impl std::fmt::Display for MergedLora {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path, self.weight)
    }
}

impl Sampling {
    /// Returns the adapters that are merged into the weights, in their order.
    pub fn merged(&self) -> Vec<MergedLora> {
        self.lora.iter().map(|text| MergedLora::parse(text)).collect()
    }

    /// Returns whether a training run of `steps` steps makes samples and measures the validation loss after a step: after each multiple
    /// of `every`, and after the last step.
    pub fn is_due(&self, step: u64, steps: u64) -> bool {
        self.every > 0 && (step.is_multiple_of(self.every) || step == steps)
    }

    /// Returns the index of held-out clips, if there is one.
    pub fn validation_index(&self) -> Option<&Utf8Path> {
        (!self.validation_index.as_str().is_empty()).then_some(self.validation_index.as_path())
    }

    /// Returns the folder of the videos, if the recipe names one.
    pub fn out(&self) -> Option<&Utf8Path> {
        (!self.out.as_str().is_empty()).then_some(self.out.as_path())
    }
}

impl Recipe {
    /// Returns a recipe that samples a model, without prompts. Environment, dtype, device, mesh and encoders are as in
    /// the recipe that trained it, or the defaults.
    ///
    /// # Errors
    /// If the model breaks a rule.
    pub fn for_sampling(model: &Model, trained: Option<&Recipe>) -> Result<Recipe, RecipeError> {
        let like = match trained {
            Some(trained) => trained.clone(),
            None => {
                let mut table: toml::Table =
                    "[data]\nindex = \"/\"\n[train]\nsteps = 1\nglobal_batch = 1".parse().expect("this is TOML");
                if let Some(kind) = model.condition().filter(|kind| *kind != ConditionKind::None) {
                    let section = toml::Table::from_iter([("kind".to_owned(), kind.name().into())]);
                    table.insert("condition".into(), section.into());
                }
                table.insert("model".into(), model.to_table().into());
                Recipe::from_table(&table)?
            }
        };
        let (fps, validation_index) = (like.sample_fps(), Utf8PathBuf::new());
        let sample = Sampling { every: 0, validation_index, fps, ..like.sample.clone() };
        Ok(Recipe { name: "sample".into(), task: Task::Sample, model: model.clone(), sample, ..like })
    }

    /// Returns the frames per second of samples: those of the recipe, of the training videos, or, if neither is known, of the published
    /// models.
    fn sample_fps(&self) -> f64 {
        let published = self.model.family().published_fps(&self.model);
        [self.sample.fps, self.data.fps].into_iter().find(|fps| *fps > 0.0).unwrap_or(published)
    }

    /// Returns the videos to make, one for each of `sample.prompts`, in their order.
    ///
    /// # Errors
    /// Returns the first prompt that cannot be sampled: a flag is wrong, or the model does not allow the size or the image.
    pub fn samples(&self) -> Result<Vec<SampleSpec>, BadPrompt> {
        self.sample.prompts.iter().enumerate().map(|(index, line)| self.sample_spec(index, line)).collect()
    }

    fn sample_spec(&self, index: usize, line: &str) -> Result<SampleSpec, BadPrompt> {
        let bad = |flag: Option<&str>, why: String, fix: String| BadPrompt {
            index,
            flag: flag.map(ToOwned::to_owned),
            why,
            fix,
        };
        let prompt = Prompt::parse(line).map_err(|wrong| bad(Some(&wrong.flag), wrong.why, wrong.fix))?;
        let (keys, own, pixels) = (&self.sample, &self.model, self.encoders.latent_pixels);
        let or = |given: Option<usize>, key: usize, model: usize| given.unwrap_or(if key == 0 { model } else { key });
        let family = own.family();
        let frames = or(prompt.frames, keys.frames, family.decoded_frames(own.latent_frames));
        let height = or(prompt.height, keys.height, own.latent_height * pixels);
        let width = or(prompt.width, keys.width, own.latent_width * pixels);
        let fits = |frames: &usize| *frames > 0 && *frames == family.decoded_frames(latent_frames(*frames));
        if !fits(&frames) {
            let below = (1..frames).rev().find(fits);
            let two: Vec<_> = below.into_iter().chain((frames + 1..).filter(fits)).take(2).collect();
            let why = format!("the VAE does not make videos of {}", units::counted(frames, "frame"));
            return Err(bad(Some("--f"), why, format!("use {} or {} frames", two[0], two[1])));
        }
        let unit = pixels * own.patch_size;
        for (flag, name, size) in [("--h", "height", height), ("--w", "width", width)] {
            if size == 0 || !size.is_multiple_of(unit) {
                let below = (size / unit * unit).max(unit);
                let why = format!("the {name} {size} is not a multiple of {unit}, the pixels of one token");
                return Err(bad(Some(flag), why, format!("use {below} or {}", below + unit)));
            }
        }
        let model = own.resized(latent_frames(frames), height / pixels, width / pixels);
        let sized = Recipe { model: model.clone(), ..self.clone() };
        if let Some(broken) = crate::check::broken_model(&sized) {
            let why = format!("the model does not allow {frames} frames of {height} x {width}: {}", broken.why);
            return Err(bad(None, why, format!("use the size that the model was trained at, or {}", broken.fix)));
        }
        let path = |given: &Option<Utf8PathBuf>, key: &Utf8PathBuf| {
            given.clone().or_else(|| (!key.as_str().is_empty()).then(|| key.clone()))
        };
        let image = path(&prompt.image, &keys.image);
        self.check_image(image.as_deref()).map_err(|(why, fix)| bad(Some("--i"), why, fix))?;
        let image_end = path(&prompt.image_end, &keys.image_end);
        let (video, mask) = (path(&prompt.video, &keys.video), path(&prompt.mask, &keys.mask));
        for (flag, file) in [("--e", &image_end), ("--v", &video), ("--m", &mask)] {
            let Some(file) = file else { continue };
            self.check_inpaint(file).map_err(|(why, fix)| bad(Some(flag), why, fix))?;
        }
        let has_images = image.is_some() || image_end.is_some();
        let masked = match (video, mask) {
            (None, None) => None,
            (Some(_), Some(_)) if has_images => {
                let why = "a masked video has its first and last image in itself".to_owned();
                return Err(bad(Some("--v"), why, "remove the images, or the video and its mask".into()));
            }
            (Some(video), Some(mask)) => Some(MaskedVideo { video, mask }),
            (Some(_), None) => {
                let why = "the video has no mask".to_owned();
                return Err(bad(Some("--v"), why, "add --m IMAGE, which is white where pixels are replaced".into()));
            }
            (None, Some(_)) => {
                return Err(bad(Some("--m"), "the mask belongs to no video".into(), "add --v VIDEO".into()));
            }
        };
        let of_segments = |flag: Option<&str>, texts: &[String]| match texts {
            [one] => Ok(vec![one.clone(); model.segments()]),
            several if several.len() == model.segments() => Ok(several.to_vec()),
            several => {
                let (texts, segments) = (several.len(), units::counted(model.segments(), "segment"));
                let why = format!("it has {texts} texts, and the video has {segments}");
                Err(bad(flag, why, "write one text, or one for each segment, separated by ||".into()))
            }
        };
        let texts = of_segments(None, &prompt.texts)?;
        let negatives = of_segments(Some("--n"), &prompt.negative_texts())?;
        if texts.iter().any(|text| text.trim().is_empty()) {
            return Err(bad(None, "its text is empty".into(), "write what the video shows".into()));
        }
        let scheduler = match keys.scheduler {
            SampleScheduler::Auto => family.sampler(),
            given => given,
        };
        let steps = prompt.steps.unwrap_or(keys.steps);
        if steps > 1000 || steps < if scheduler == SampleScheduler::Vpsde { 2 } else { 1 } {
            let why = format!("{steps} sampling steps are not possible with {}", scheduler.name());
            return Err(bad(Some("--s"), why, "use 2 to 1000 steps, 50 as CogVideoX does".into()));
        }
        let dynamic_guidance = match keys.dynamic_guidance {
            DynamicGuidance::Auto => matches!(scheduler, SampleScheduler::Dpm | SampleScheduler::Vpsde),
            DynamicGuidance::On => true,
            DynamicGuidance::Off => false,
        };
        Ok(SampleSpec {
            texts,
            negatives,
            image,
            image_end,
            masked,
            model,
            frames,
            height,
            width,
            fps: self.sample_fps(),
            seed: prompt.seed.unwrap_or(keys.seed),
            steps,
            guidance: prompt.guidance.unwrap_or(keys.guidance),
            dynamic_guidance,
            scheduler,
            shift: keys.shift,
        })
    }

    /// Checks that the model takes a last image or a masked video, and that the path of the file is absolute.
    fn check_inpaint(&self, file: &Utf8Path) -> Result<(), (String, String)> {
        if self.sampled_condition() != Some(ConditionKind::Inpaint) {
            return Err((
                format!("{file} is for a model for inpainting, and this model is none"),
                "remove it, or sample a model for inpainting such as CogVideoX-Fun-InP".into(),
            ));
        }
        if !file.is_absolute() {
            return Err((
                format!("the path {file} is relative, and ranks run in other folders"),
                "write the absolute path".into(),
            ));
        }
        Ok(())
    }

    /// Checks that there is an image if an image-to-video model needs it, and none if a text-to-video model cannot take it. Models
    /// for inpainting, and those with a first frame without noise, take an image, or make the video from text alone.
    fn check_image(&self, image: Option<&Utf8Path>) -> Result<(), (String, String)> {
        let kind = self.sampled_condition();
        match image {
            Some(image) if kind == Some(ConditionKind::None) => Err((
                format!("{image} is the first image, and the model is text-to-video: it takes no image"),
                "remove the image, or sample an image-to-video model".into(),
            )),
            None if matches!(kind, Some(ConditionKind::Image | ConditionKind::ImageClip)) => Err((
                "the model is image-to-video, and there is no first image".into(),
                "give one with --i IMAGE in the prompt, sample.image, or --image".into(),
            )),
            Some(image) if !image.is_absolute() => Err((
                format!("the path {image} is relative, and ranks run in other folders"),
                "write the absolute path of the image".into(),
            )),
            _ if kind.is_none() => Err((
                format!(
                    "the model has {} input channels for {} latent channels",
                    self.model.in_channels, self.model.out_channels
                ),
                "sample a model for text to video, image to video or inpainting".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the condition of the recipe if the model has its channels, or else that of the model.
    fn sampled_condition(&self) -> Option<ConditionKind> {
        let (kind, model) = (self.condition.kind, &self.model);
        if kind.in_channels(model.out_channels) == model.in_channels { Some(kind) } else { model.condition() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecipeErrorKind, load};

    fn minimal(sets: &[&str]) -> Recipe {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap().recipe
    }

    fn with_prompts(prompts: &[&str]) -> Recipe {
        let mut recipe = minimal(&[]);
        recipe.sample.prompts = prompts.iter().map(|prompt| prompt.to_string()).collect();
        recipe
    }

    #[test]
    fn the_values_of_a_recipe_without_sampling_are_the_defaults_of_the_table() {
        assert_eq!(minimal(&[]).sample, Sampling::default());
    }

    #[test]
    fn a_merged_adapter_has_a_path_and_a_weight() {
        let parse = |text: &str| {
            let MergedLora { path, weight } = MergedLora::parse(text);
            (path.into_string(), weight)
        };
        assert_eq!(parse("/a/b.safetensors"), ("/a/b.safetensors".into(), 1.0));
        assert_eq!(parse("/a:0.5"), ("/a".into(), 0.5));
        assert_eq!(parse("/a:b:-2"), ("/a:b".into(), -2.0));
        assert_eq!(parse("/a:b"), ("/a:b".into(), 1.0));
        assert_eq!(parse("/a:nan"), ("/a:nan".into(), 1.0));
        assert_eq!(MergedLora::parse("/a:0.25").to_string(), "/a:0.25");
    }

    #[test]
    fn samples_have_the_rate_of_the_recipe_then_of_the_training_videos_then_of_published_models() {
        let fps = |sets: &[&str]| minimal(sets).sample_fps();
        assert_eq!(fps(&["data.fps=16", "sample.fps=24"]), 24.0);
        assert_eq!(fps(&["data.fps=12.5"]), 12.5);
        assert_eq!(fps(&[]), 8.0);
        let trained = minimal(&["data.fps=16"]);
        assert_eq!(Recipe::for_sampling(&trained.model, Some(&trained)).unwrap().sample.fps, 16.0);
        assert_eq!(Recipe::for_sampling(&trained.model, None).unwrap().sample.fps, 8.0);
    }

    #[test]
    fn a_negative_text_may_be_one_for_each_segment() {
        let recipe = minimal(&[]);
        let negatives = |line: &str| {
            let mut recipe = recipe.clone();
            recipe.model.latent_frames = 25;
            recipe.model = recipe.model.with_cogvideox(|keys| (keys.segments, keys.layer) = (2, crate::Layer::None));
            recipe.sample.prompts = vec![line.into()];
            recipe.samples().map(|specs| specs[0].negatives.clone()).map_err(|bad| bad.flag)
        };
        assert_eq!(negatives("a --n dark").unwrap(), ["dark", "dark"]);
        assert_eq!(negatives("a --n dark || wet").unwrap(), ["dark", "wet"]);
        assert_eq!(negatives("a").unwrap(), ["", ""]);
        assert_eq!(negatives("a --n b || c || d").unwrap_err(), Some("--n".into()));
    }

    #[test]
    fn flags_of_a_prompt_override_the_section() {
        let mut recipe = with_prompts(&["a rabbit", "a rabbit --w 32 --h 48 --f 9 --d 7 --s 12 --g 1.5 --n blurry"]);
        recipe.sample.steps = 20;
        let samples = recipe.samples().unwrap();
        let model = &recipe.model;
        assert_eq!(samples[0].height, model.latent_height * 8);
        assert_eq!((samples[0].steps, samples[0].seed, samples[0].guidance), (20, 42, 6.0));
        let other = &samples[1];
        assert_eq!((other.frames, other.height, other.width), (9, 48, 32));
        assert_eq!((other.model.latent_frames, other.model.latent_height, other.model.latent_width), (3, 6, 4));
        assert_eq!((other.seed, other.steps, other.guidance, other.negative().as_str()), (7, 12, 1.5, "blurry"));
    }

    #[test]
    fn numbers_of_frames_that_the_vae_does_not_decode_are_refused_with_the_nearest() {
        let fix = |frames: usize| with_prompts(&[&format!("a --f {frames}")]).samples().map_err(|bad| bad.fix);
        for (frames, latent_frames) in [(1, 1), (8, 2), (9, 3), (16, 4), (48, 12), (49, 13)] {
            assert_eq!(fix(frames).unwrap()[0].model.latent_frames, latent_frames);
            assert_eq!(decoded_frames(latent_frames), frames);
        }
        for (frames, nearest) in [(0, "1 or 8"), (5, "1 or 8"), (13, "9 or 16"), (45, "41 or 48"), (50, "49 or 56")] {
            assert_eq!(fix(frames).unwrap_err(), format!("use {nearest} frames"));
        }
        // A model that trains on 20 latent frames, made of 77 or 80 frames.
        let mut even = with_prompts(&["a"]);
        even.model.latent_frames = 20;
        assert_eq!(even.samples().unwrap()[0].frames, 80);
    }

    #[test]
    fn sizes_and_images_that_the_model_does_not_allow_name_the_flag() {
        let flag = |line: &str| {
            let bad = with_prompts(&["a rabbit", line]).samples().unwrap_err();
            assert_eq!(bad.index, 1);
            bad.flag
        };
        assert_eq!(flag("a --f 13").as_deref(), Some("--f"));
        assert_eq!(flag("a --w 33").as_deref(), Some("--w"));
        assert_eq!(flag("a --h 0").as_deref(), Some("--h"));
        assert_eq!(flag("a --s 0").as_deref(), Some("--s"));
        assert_eq!(flag("a --i /a.png").as_deref(), Some("--i"));
        assert_eq!(flag("a --w many").as_deref(), Some("--w"));
        assert_eq!(flag("a || b || c"), None);
        assert_eq!(flag("--d 3"), None);
        let mut image = with_prompts(&["a rabbit"]);
        image.model.in_channels = 2 * image.model.out_channels;
        assert_eq!(image.samples().unwrap_err().flag.as_deref(), Some("--i"));
        image.sample.image = "/a.png".into();
        assert_eq!(image.samples().unwrap()[0].image.as_deref(), Some(Utf8Path::new("/a.png")));
    }

    #[test]
    fn a_model_for_inpainting_takes_an_image_or_none() {
        let mut model = minimal(&[]).model;
        model.in_channels = 2 * model.out_channels + 1;
        let mut recipe = Recipe::for_sampling(&model, None).unwrap();
        assert_eq!(recipe.condition.kind, ConditionKind::Inpaint);
        recipe.sample.prompts = ["a rabbit", "a rabbit --i /a.png"].map(String::from).to_vec();
        let images: Vec<_> = recipe.samples().unwrap().into_iter().map(|spec| spec.image).collect();
        assert_eq!(images, [None, Some("/a.png".into())]);
        recipe.sample.prompts = vec!["a rabbit --i a.png".into()];
        assert_eq!(recipe.samples().unwrap_err().flag.as_deref(), Some("--i"), "a relative path");
        recipe.model.in_channels += 3;
        recipe.sample.prompts = vec!["a rabbit".into()];
        assert!(recipe.samples().is_err(), "channels of no known condition");
    }

    #[test]
    fn samples_while_training_need_encoders_and_prompts_or_held_out_clips() {
        let check = |change: fn(&mut Recipe)| {
            let mut recipe = minimal(&[]);
            recipe.sample.every = 10;
            change(&mut recipe);
            recipe.check().map_err(|error| (error.kind, error.keys))
        };
        let rule = |keys: &[&str]| Err((RecipeErrorKind::BrokenRule, keys.iter().map(|k| k.to_string()).collect()));
        let all = ["sample.every", "sample.prompts", "sample.validation_index"];
        assert_eq!(check(|_| ()), rule(&all));
        assert_eq!(check(|r| r.sample.validation_index = "/held-out.jsonl".into()), Ok(()));
        assert_eq!(check(|r| r.sample.prompts = vec!["a".into()]), rule(&["sample.prompts", "encoders.folder"]));
        let both = |r: &mut Recipe| {
            r.sample.prompts = vec!["a".into()];
            r.encoders.folder = "/weights".into();
        };
        assert_eq!(check(both), Ok(()));
    }

    #[test]
    fn a_recipe_that_samples_needs_a_model_encoders_and_prompts_alone() {
        let mut recipe = with_prompts(&["a rabbit"]);
        recipe.task = Task::Sample;
        recipe.encoders.folder = "/weights".into();
        let table = recipe.to_table();
        assert!(!table.contains_key("optimizer") && !table.contains_key("data"), "{table}");
        let again = Recipe::from_table(&table).unwrap();
        assert_eq!((again.samples().unwrap(), again.task), (recipe.samples().unwrap(), Task::Sample));
        recipe.sample.prompts.clear();
        assert!(recipe.check().is_err());
    }
}
