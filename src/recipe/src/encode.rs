//! The task of a run, and the sections `[encoders]` and `[encode]`, which turn videos and captions into a data set of
//! latents.

use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;

use crate::schema::{
    BOOL, EMBEDDED, ENCODE, ENCODE_AND_SAMPLE, Kind, NOT_NEGATIVE, OPTIONAL_PATH, PATH, SHARE, Spec, int, word,
};
use crate::{ComputeDtype, PIXELS, ResumeEffect, VIDEO_FRAMES};

words! {
    /// The task of a run of the embedded trainer.
    #[derive(Default)]
    pub enum Task {
        /// All ranks train one model together.
        #[default]
        Train = "train",
        /// Each rank encodes clips and captions independently.
        Encode = "encode",
        /// The ranks make videos from a checkpoint together.
        Sample = "sample",
    }
}

impl Task {
    /// Returns whether the end of one rank ends the others, because ranks exchange tensors in every step.
    pub fn ranks_depend_on_each_other(self) -> bool {
        self != Task::Encode
    }
}

section! {
    /// The VAE, the text encoder and the tokenizer.
    pub struct Encoders("encoders", EMBEDDED, ResumeEffect::None) with Default {
        /// diffusers folder with vae/, text_encoder/ and tokenizer/, such as one that `vidtui fetch zai-org/CogVideoX-5b` makes
        pub folder: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH.needed_by(ENCODE_AND_SAMPLE);
        /// dtype of the weights and the computation of the VAE and the text encoder
        pub dtype: ComputeDtype = ComputeDtype::Bfloat16 => Spec::of(Kind::OneOf(&["bfloat16", "float32"]));
        /// pixels of the VAE per latent pixel, in rows and columns: 8, or 16 for the VAE of Wan 2.2
        pub latent_pixels: usize = PIXELS => int(1, 64);
        /// reads <start_scene> and <end_scene> in captions and prompts as one token each, as ttt-video-dit does; false: as any other
        /// text
        pub scene_tokens: bool = false => BOOL;
        /// whether the VAE works on tiles of a frame, which need less memory; auto: only for clips that do not fit into memory as whole
        /// frames
        pub tiling: Tiling = Tiling::Auto => word::<Tiling>();
    }
}

words! {
    /// When the VAE works on tiles of a frame. Tiles need less memory, and their latents differ slightly from the latents
    /// of whole frames.
    pub enum Tiling {
        /// Only for clips that do not fit into memory as whole frames.
        Auto = "auto",
        /// For every clip.
        On = "on",
        /// Never; a clip that does not fit into memory fails.
        Off = "off",
    }
}

section! {
    /// The clips, the frames that are taken from them, and where their latents go.
    pub struct Encode("encode", ENCODE, ResumeEffect::OtherRun) with Default {
        /// manifest of the clips, which `vidtui data check` writes
        pub manifest: Utf8PathBuf => PATH;
        /// folder of the data set: latents, texts and their index; existing latents and texts are reused
        pub out: Utf8PathBuf => PATH;
        /// frames per clip: 4k + 1, which the VAE encodes to k + 1 latent frames; 49 for CogVideoX, 81 for 1.5; 0: those of data.buckets
        pub frames: usize = 0 => int(0, 100_001).needed_by(ENCODE).unless("data.buckets");
        /// rows of a frame in pixels, a multiple of encoders.latent_pixels, and twice that for models with 2 × 2 patches; 0: those of data.buckets
        pub height: usize = 0 => int(0, 16_384).needed_by(ENCODE).unless("data.buckets");
        /// columns of a frame in pixels, a multiple of encoders.latent_pixels, and twice that for models with 2 × 2 patches; 0: those of data.buckets
        pub width: usize = 0 => int(0, 16_384).needed_by(ENCODE).unless("data.buckets");
        /// rate at which frames are taken, per second, and rate of folders of frames: 8 for CogVideoX, 16 for 1.5; 0: the rate of each
        /// clip
        pub fps: f64 = 0.0 => NOT_NEGATIVE;
        /// frames of a clip that are taken, by their times: from its head, middle or a random start; every n-th (stride); evenly spread
        /// (linspace); nearest to the times of fps (time@fps)
        pub mode: FrameMode = FrameMode::Head => word::<FrameMode>();
        /// distance between taken frames, in frames, if fps = 0
        pub stride: usize = 1 => int(1, 1000);
        /// part of a picture with another aspect ratio that is kept; none: all of it, stretched
        pub crop: CropMode = CropMode::Center => word::<CropMode>();
        /// seed of random starts, random crops and the draws of buckets
        pub seed: u64 = 42 => int(0, i64::MAX);
        /// captions that the text encoder encodes together; halved where memory is short. The VAE encodes clips one by one
        pub batch: usize = 1 => int(1, 1024);
        /// tokens of a caption; longer captions are cut, shorter ones padded
        pub text_len: usize = 226 => int(1, 4096);
        /// clips that each rank decodes ahead of the VAE; each needs the memory of its frames; 0: the CPU threads of the rank, at least
        /// 2
        pub decoders: usize = 0 => int(0, 256);
        /// retries clips that failed in an earlier encode into the same folder
        pub retry_failed: bool = false => BOOL;
        /// share of the clips that may be dropped, from 0 to 1; an encode that would lose more, by its manifest or by clips that fail,
        /// is refused, and one without any clip always; 0: no clip may be dropped
        pub max_dropped: f64 = 0.05 => SHARE;
    }
}

/// The reason that an error gives when a number of frames is not 4k + 1. See [`nearest_clip_frames`].
pub const LATENT_FRAMES: &str = "the VAE makes one latent frame from the first frame, and one from every 4 that follow";

/// Returns the two valid numbers of frames (4k + 1) around `frames`, or `None` if `frames` is valid.
pub fn nearest_clip_frames(frames: usize) -> Option<[usize; 2]> {
    let below = frames.saturating_sub(1) / VIDEO_FRAMES * VIDEO_FRAMES + 1;
    (below != frames).then_some([below, below + VIDEO_FRAMES])
}

impl Encode {
    /// Returns the rate at which frames are taken, per second; `None` means the rate of each clip.
    pub fn rate(&self) -> Option<f64> {
        (self.fps > 0.0).then_some(self.fps)
    }

    /// Returns the number of clips that a rank with `threads` CPU threads decodes ahead of the VAE.
    pub fn decoders_of_rank(&self, threads: usize) -> usize {
        if self.decoders > 0 { self.decoders } else { threads.max(2) }
    }
}

words! {
    /// The frames of a clip that are taken.
    ///
    /// With a rate, the wanted times are `1 / fps` apart, and the frame nearest to each time is taken. If two frames are
    /// equally near, the earlier one is taken. Without a rate, the frames are `stride` frames apart.
    pub enum FrameMode {
        /// From the first frame on.
        Head = "head",
        /// Around the middle of the clip.
        Middle = "middle",
        /// From a random start, drawn from the seed and the clip.
        Random = "random",
        /// Every `stride`-th frame from the first one on. Ignores the rate.
        Stride = "stride",
        /// Evenly over the whole clip, with its first and its last frame. Ignores rate and stride.
        Linspace = "linspace",
        /// From the first frame on at the rate, which must be given.
        TimeFps = "time@fps",
    }
}

impl fmt::Display for FrameMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FrameMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no frame mode {name:?}; the modes are {names}")
        })
    }
}

words! {
    /// How a frame with another aspect ratio is fitted.
    pub enum CropMode {
        /// Scaled until it covers the picture; the same amount is cut off on both sides.
        Center = "center",
        /// Scaled until it covers the picture; the seed and the clip choose the part that is kept.
        Random = "random",
        /// Stretched: the whole frame in another aspect ratio.
        None = "none",
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;
    use crate::{JobKind, Key, Recipe, RecipeError, RecipeErrorKind, Resolved, load};

    fn encode(sets: &[&str]) -> Result<Resolved, RecipeError> {
        let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
        load(Utf8Path::new("../../tests/fixtures/configs/valid/encode.toml"), &sets)
    }

    #[test]
    fn a_recipe_that_encodes_has_only_the_keys_that_encoding_reads() {
        let Resolved { recipe, table, .. } = encode(&[]).unwrap();
        assert_eq!(recipe.task, Task::Encode);
        let sections: Vec<_> = table.keys().collect();
        assert_eq!(
            sections,
            [
                "condition",
                "data",
                "encode",
                "encoders",
                "env",
                "log",
                "mesh",
                "name",
                "run",
                "task",
                "train",
                "trainer"
            ]
        );
        assert_eq!(table["train"].as_table().unwrap().keys().collect::<Vec<_>>(), ["device", "threads"]);
        assert_eq!(Recipe::from_table(&table), Ok(recipe));
    }

    #[test]
    fn the_values_of_a_recipe_without_encoding_are_the_defaults_of_the_table() {
        let train = load(Utf8Path::new("../../tests/fixtures/configs/valid/minimal.toml"), &[]).unwrap().recipe;
        assert_eq!((train.task, train.encoders, train.encode), <(Task, Encoders, Encode)>::default());
    }

    #[test]
    fn encoding_and_sampling_need_the_folder_of_the_encoders() {
        let folder = Key::find("encoders.folder").unwrap();
        assert_eq!(JobKind::ALL.map(|job| folder.is_needed(job)), [false, true, true, false]);
    }

    #[test]
    fn frames_between_whole_latent_frames_are_refused_with_the_nearest_counts() {
        let fix = |frames: usize| encode(&[&format!("encode.frames={frames}")]).map_err(|error| error.fix);
        for whole in [1, 5, 49, 81] {
            assert!(fix(whole).is_ok(), "{whole}");
        }
        insta::assert_snapshot!([2, 48, 51].map(|frames| fix(frames).unwrap_err()).join("\n"), @r"
        set encode.frames = 1 or 5
        set encode.frames = 45 or 49
        set encode.frames = 49 or 53
        ");
    }

    #[test]
    fn an_encode_has_one_size_or_buckets() {
        let buckets = "data.buckets=[{ frames = 49, height = 480, width = 720 }]";
        let sizes = ["encode.frames=0", "encode.height=0", "encode.width=0"];
        let refused = |sets: &[&str]| encode(sets).map(drop).map_err(|error| (error.kind, error.keys.join(" ")));
        assert_eq!(refused(&[&sizes[..], &[buckets]].concat()), Ok(()));
        let keys = "encode.frames encode.height encode.width";
        assert_eq!(refused(&[buckets]), Err((RecipeErrorKind::BrokenRule, format!("{keys} data.buckets"))));
        assert_eq!(refused(&sizes), Err((RecipeErrorKind::MissingKey, keys.into())));
    }

    #[test]
    fn keys_that_contradict_each_other_are_refused() {
        let refused = |sets: &[&str]| {
            let error = encode(sets).unwrap_err();
            (error.kind, error.keys.join(" "))
        };
        let rule = |keys: &str| (RecipeErrorKind::BrokenRule, keys.to_owned());
        assert_eq!(refused(&["encode.height=100"]), rule("encode.height"));
        assert_eq!(refused(&["encode.width=100"]), rule("encode.width"));
        assert_eq!(refused(&["encode.mode=time@fps", "encode.fps=0"]), rule("encode.mode encode.fps"));
        assert_eq!(refused(&["encode.mode=linspace", "encode.fps=8"]), rule("encode.mode encode.fps"));
        assert_eq!(refused(&["encode.mode=stride", "encode.fps=8"]), rule("encode.mode encode.fps"));
        let stride = rule("encode.mode encode.fps encode.stride");
        assert_eq!(refused(&["encode.mode=head", "encode.fps=8", "encode.stride=2"]), stride);
        assert_eq!(refused(&["encode.mode=linspace", "encode.fps=0", "encode.stride=2"]), stride);
        for mode in ["stride", "head", "middle", "random"] {
            let sets = [&format!("encode.mode={mode}"), "encode.fps=0", "encode.stride=2"];
            assert!(encode(&sets).is_ok(), "{mode}");
        }
        assert_eq!(
            refused(&["task=train"]),
            (RecipeErrorKind::WrongTask, "encode.manifest".to_owned()),
            "a key of another task"
        );
        assert_eq!(refused(&["optimizer.lr=1"]), (RecipeErrorKind::WrongTask, "optimizer.lr".to_owned()));
        assert_eq!(refused(&["trainer=command"]).0, RecipeErrorKind::WrongTrainer);
        assert_eq!(refused(&["encoders.folder="]), (RecipeErrorKind::MissingKey, "encoders.folder".to_owned()));
    }

    #[test]
    fn modes_have_the_same_name_in_files_and_arguments() {
        for mode in FrameMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
        }
        assert!("tail".parse::<FrameMode>().is_err());
        for crop in CropMode::ALL {
            assert_eq!(serde_json::to_value(crop).unwrap(), crop.name());
        }
    }
}
