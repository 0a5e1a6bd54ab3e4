//! The task of a run, and the sections `[encoders]` and `[encode]`, which turn videos and captions into a data set of
//! latents.

use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::{ComputeDtype, VIDEO_FRAMES};

/// The task of a run of the embedded trainer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// All ranks train one model together.
    #[default]
    Train,
    /// Each rank encodes clips and captions independently.
    Encode,
    /// The ranks make videos from a checkpoint together.
    Sample,
}

impl Task {
    /// Every task, in the order of the documentation.
    pub const ALL: [Task; 3] = [Task::Train, Task::Encode, Task::Sample];

    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Task::Train => "train",
            Task::Encode => "encode",
            Task::Sample => "sample",
        }
    }

    /// Returns whether the end of one rank ends the others, because ranks exchange tensors in every step.
    pub fn ranks_depend_on_each_other(self) -> bool {
        self != Task::Encode
    }
}

/// The VAE, the text encoder and the tokenizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encoders {
    /// A diffusers folder with `vae/`, `text_encoder/` and `tokenizer/`.
    pub folder: Utf8PathBuf,
    /// The dtype of weights and computation.
    pub dtype: ComputeDtype,
    /// Whether captions and prompts may contain the scene tokens of ttt-video-dit.
    pub scene_tokens: bool,
    /// Whether the VAE works on tiles of a frame.
    pub tiling: Tiling,
}

/// The encoders of a recipe that sets none.
impl Default for Encoders {
    fn default() -> Self {
        Self { folder: Utf8PathBuf::new(), dtype: ComputeDtype::Bfloat16, scene_tokens: false, tiling: Tiling::Auto }
    }
}

/// When the VAE works on tiles of a frame. Tiles need less memory, and their latents differ slightly from the latents
/// of whole frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tiling {
    /// Only for clips that do not fit into memory as whole frames.
    Auto,
    /// For every clip.
    On,
    /// Never; a clip that does not fit into memory fails.
    Off,
}

/// The clips, the frames that are taken from them, and where their latents go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encode {
    /// The manifest of the clips, which `vidtui data check` writes.
    pub manifest: Utf8PathBuf,
    /// The folder of the data set.
    pub out: Utf8PathBuf,
    /// Frames per clip. If frames, height and width are 0, the buckets define the sizes.
    pub frames: usize,
    /// The rows of a frame, in pixels.
    pub height: usize,
    /// The columns of a frame, in pixels.
    pub width: usize,
    /// The rate at which frames are taken, per second; 0: the rate of each clip.
    pub fps: f64,
    /// The frames of a clip that are taken.
    pub mode: FrameMode,
    /// The distance from one taken frame to the next, in frames, if `fps` is 0.
    pub stride: usize,
    /// How a frame with another aspect ratio is fitted.
    pub crop: CropMode,
    /// The seed of random frames and crops.
    pub seed: u64,
    /// The batch size of the text encoder, in captions.
    pub batch: usize,
    /// Tokens of a caption: longer ones are cut, shorter ones padded.
    pub text_len: usize,
    /// Clips that each rank decodes ahead of the VAE; 0: the CPU threads of the rank, at least 2.
    pub decoders: usize,
    /// Whether clips that failed in an earlier encode into the same folder are retried.
    pub retry_failed: bool,
    /// The largest share of the clips that may be dropped, from 0 to 1.
    pub max_dropped: f64,
}

/// The reason that an error gives when a number of frames is not 4k + 1. See [`nearest_clip_frames`].
pub const LATENT_FRAMES: &str = "the VAE makes one latent frame from the first frame, and one from every 4 that follow";

/// Returns the two valid numbers of frames (4k + 1) around `frames`, or `None` if `frames` is valid.
pub fn nearest_clip_frames(frames: usize) -> Option<[usize; 2]> {
    let below = frames.saturating_sub(1) / VIDEO_FRAMES * VIDEO_FRAMES + 1;
    (below != frames).then_some([below, below + VIDEO_FRAMES])
}

/// The encode settings of a recipe that trains, which are not used.
impl Default for Encode {
    fn default() -> Self {
        Self {
            manifest: Utf8PathBuf::new(),
            out: Utf8PathBuf::new(),
            frames: 0,
            height: 0,
            width: 0,
            fps: 0.0,
            mode: FrameMode::Head,
            stride: 1,
            crop: CropMode::Center,
            seed: 42,
            batch: 1,
            text_len: 226,
            decoders: 0,
            retry_failed: false,
            max_dropped: 0.05,
        }
    }
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

/// The frames of a clip that are taken.
///
/// With a rate, the wanted times are `1 / fps` apart, and the frame nearest to each time is taken. If two frames are
/// equally near, the earlier one is taken. Without a rate, the frames are `stride` frames apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameMode {
    /// From the first frame on.
    Head,
    /// Around the middle of the clip.
    Middle,
    /// From a random start, drawn from the seed and the clip.
    Random,
    /// Every `stride`-th frame from the first one on. Ignores the rate.
    Stride,
    /// Evenly over the whole clip, with its first and its last frame. Ignores rate and stride.
    Linspace,
    /// From the first frame on at the rate, which must be given.
    #[serde(rename = "time@fps")]
    TimeFps,
}

impl FrameMode {
    /// All modes.
    pub const ALL: [Self; 6] = [Self::Head, Self::Middle, Self::Random, Self::Stride, Self::Linspace, Self::TimeFps];

    /// Returns the name in recipes and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Middle => "middle",
            Self::Random => "random",
            Self::Stride => "stride",
            Self::Linspace => "linspace",
            Self::TimeFps => "time@fps",
        }
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

/// How a frame with another aspect ratio is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropMode {
    /// Scaled until it covers the picture; the same amount is cut off on both sides.
    Center,
    /// Scaled until it covers the picture; the seed and the clip choose the part that is kept.
    Random,
    /// Stretched: the whole frame in another aspect ratio.
    None,
}

impl CropMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Center, Self::Random, Self::None];

    /// Returns the name in recipes and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Center => "center",
            Self::Random => "random",
            Self::None => "none",
        }
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;
    use crate::{Key, Recipe, RecipeError, RecipeErrorKind, Resolved, SCHEMA, TrainerKind, load};

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
    fn every_key_is_read_by_a_task_or_by_commands() {
        for key in SCHEMA {
            let by_task = Task::ALL.iter().any(|task| key.is_for(*task, TrainerKind::Embedded));
            assert!(by_task || key.is_for(Task::Train, TrainerKind::Command), "{}", key.path);
        }
        let folder = Key::find("encoders.folder").unwrap();
        assert_eq!(Task::ALL.map(|task| folder.is_needed(task)), [false, true, true]);
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
