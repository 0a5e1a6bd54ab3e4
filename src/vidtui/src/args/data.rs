//! Arguments of the commands that check, encode, list and import data sets.

use super::{HowArgs, JsonArgs, ThenArgs};
use crate::command_error::CommandError;
use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args as Arguments, Subcommand};
use rundir::{ErrorCode, Failure};

/// `vidtui data …`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Checks a folder or table of videos with captions: which clips can be used, which are dropped and why. Writes a
    /// manifest
    Check(DataCheckArgs),
    /// Cuts long videos into clips of one scene each, and writes a table of them. A second call does only what is missing
    Cut(DataCutArgs),
    /// Measures motion, brightness, sharpness, black and frozen frames, black bars and near duplicates, and writes them into a table
    Score(DataScoreArgs),
    /// Writes the tables and folders that other trainers read: Open-Sora, finetrainers, VideoX-Fun, musubi-tuner, diffusion-pipe and
    /// ttt-video-dit
    Export(DataExportArgs),
    /// Imports latents that ttt-video-dit, finetrainers or cogvideox-factory prepared. Runs no code of their pickles
    Import(DataImportArgs),
    /// Shows the clips, sizes and failures of a data set of latents, or one clip with its tensors, frames and caption
    Show(DataShowArgs),
    /// Shows which clips go into which bucket of a recipe, what is thrown away and why, and the memory and batches of each bucket
    Buckets(DataBucketsArgs),
    /// Reads every latent and text of a data set, compares their checksums, and lists the clips that are damaged
    Verify(DataVerifyArgs),
    /// Removes the shards of a data set that its index no longer names, unless a run reads the data set
    Prune(DataPruneArgs),
    /// Encodes videos and captions to latents and texts, in a run on this machine or on many nodes. Encodes only what is new
    Encode(Box<DataEncodeArgs>),
}

/// `vidtui data encode`.
#[derive(Debug, Arguments)]
#[command(mut_arg("local", |arg| arg.help("Uses this machine, with N ranks [default: 1]")))]
pub struct DataEncodeArgs {
    /// A folder or table of videos, which is checked first, or the manifest that `vidtui data check` wrote
    pub source: Utf8PathBuf,
    #[command(flatten)]
    pub listed: ListedArgs,
    /// The diffusers folder with vae/, text_encoder/ and tokenizer/ [default: encoders.folder of the recipe of --for]
    #[arg(long, value_name = "FOLDER")]
    pub model: Option<Utf8PathBuf>,
    /// The folder of the data set. Existing latents and texts are reused
    #[arg(long, value_name = "DATA")]
    pub out: Utf8PathBuf,
    /// The recipe, or CURRICULUM:STAGE, that will train on the data set: sets frames, height, width and rate or the buckets, the encoders, the
    /// text length, and the condition of image-to-video and inpainting
    #[arg(long = "for", value_name = "RECIPE")]
    pub recipe: Option<String>,
    /// Frames per clip: 4k + 1 [default: those of the recipe, or 49]
    #[arg(long)]
    pub frames: Option<usize>,
    /// Height of the frames in pixels [default: that of the recipe, or 480]
    #[arg(long)]
    pub height: Option<usize>,
    /// Width of the frames in pixels [default: that of the recipe, or 720]
    #[arg(long)]
    pub width: Option<usize>,
    /// Rate at which frames are taken, per second, and rate of folders of frames [default: data.fps of the recipe, or the rate of each clip]
    #[arg(long)]
    pub fps: Option<f64>,
    /// Which frames are taken: head, middle, random, stride, linspace or time@fps [default: head]
    #[arg(long, value_parser = str::parse::<video::FrameMode>)]
    pub mode: Option<video::FrameMode>,
    /// Distance between taken frames, in frames, if there is no rate [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "fps")]
    pub stride: Option<usize>,
    /// How pictures with another aspect ratio are cropped: center, random or none [default: center]
    #[arg(long)]
    pub crop: Option<String>,
    /// Tokens of a caption [default: those of the recipe of --for, or 512 for umT5 and 226 for T5]
    #[arg(long, value_name = "N")]
    pub text_len: Option<usize>,
    /// dtype of the encoders: bfloat16 or float32 [default: that of the recipe of --for, or bfloat16]
    #[arg(long)]
    pub dtype: Option<String>,
    /// Largest share of clips that may be dropped; a larger share is a failure
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    pub max_dropped: f64,
    /// Retries clips that failed in an earlier encode into the same folder
    #[arg(long)]
    pub retry_failed: bool,
    /// Name of the run [default: encode, and the name of the folder]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub how: HowArgs,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// `vidtui data check`.
#[derive(Debug, Arguments)]
pub struct DataCheckArgs {
    /// A folder of videos, or a table: .csv, .tsv, .json, .jsonl or .parquet
    pub source: Utf8PathBuf,
    /// Writes the manifest, which `data encode` reads, to this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub listed: ListedArgs,
    /// The recipe, or CURRICULUM:STAGE, that will train on the clips: sets frames, height, width and rate, or the buckets
    #[arg(long = "for", value_name = "RECIPE", group = "length", conflicts_with_all = ["frames", "height", "width"])]
    pub recipe: Option<String>,
    /// Frames that each clip must have, for example 49 for CogVideoX
    #[arg(long, value_name = "N", group = "length")]
    pub frames: Option<usize>,
    /// Rate at which frames are taken, per second, and rate of folders of frames, for example 8 for CogVideoX [default: data.fps of the
    /// recipe, or the rate of each clip]
    #[arg(long, value_name = "FPS")]
    pub fps: Option<f64>,
    /// Which frames are taken: head, middle, random, stride, linspace or time@fps
    #[arg(long, value_name = "MODE", default_value = "head", value_parser = str::parse::<video::FrameMode>, requires = "length")]
    pub mode: video::FrameMode,
    /// Distance between taken frames, in frames, if there is no rate
    #[arg(long, value_name = "N", default_value_t = 1, requires = "length", conflicts_with = "fps")]
    pub stride: usize,
    /// Height that pictures are scaled to. Smaller videos are counted
    #[arg(long, value_name = "PIXELS", requires = "width")]
    pub height: Option<usize>,
    /// Width that pictures are scaled to
    #[arg(long, value_name = "PIXELS", requires = "height")]
    pub width: Option<usize>,
    /// Counts captions with more tokens, which the text encoder cuts; needs --tokenizer
    #[arg(long, value_name = "N", default_value_t = dataset::check::CAPTION_TOKENS, requires = "tokenizer")]
    pub max_tokens: usize,
    /// Folder with spiece.model, to count tokens: tokenizer/ of a diffusers model
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<Utf8PathBuf>,
    /// Largest share of clips that may be dropped; a larger share is a failure
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    pub max_dropped: f64,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data cut`.
#[derive(Debug, Arguments)]
pub struct DataCutArgs {
    /// A video, or a folder of videos
    pub videos: Utf8PathBuf,
    /// The folder of the clips and of their table cuts.csv. No file in it is replaced
    #[arg(long, value_name = "CLIPS")]
    pub out: Utf8PathBuf,
    /// Score from which a frame begins a scene, 0 to 100: the change of luma in percent beyond that of the frames around it
    #[arg(long, value_name = "SCORE", default_value_t = dataset::cut::CutRules::default().threshold)]
    pub threshold: f64,
    /// Leaves out shorter scenes
    #[arg(long = "min", value_name = "SECONDS", default_value_t = dataset::cut::CutRules::default().min_s)]
    pub min_s: f64,
    /// Divides longer scenes into clips of equal length
    #[arg(long = "max", value_name = "SECONDS")]
    pub max_s: Option<f64>,
    /// Leaves out so much time on both sides of a cut
    #[arg(long = "margin", value_name = "SECONDS", default_value_t = dataset::cut::CutRules::default().margin_s)]
    pub margin_s: f64,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data score`.
#[derive(Debug, Arguments)]
pub struct DataScoreArgs {
    /// A folder of videos, or a table: .csv, .tsv, .json, .jsonl or .parquet
    pub source: Utf8PathBuf,
    /// The table to write, .csv or .jsonl: the columns of the source, and one per score. Scores that the source has are kept
    #[arg(long, value_name = "TABLE")]
    pub out: Utf8PathBuf,
    #[command(flatten)]
    pub listed: ListedArgs,
    /// Replaces an existing table
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data export`.
#[derive(Debug, Arguments)]
pub struct DataExportArgs {
    /// A folder or table of videos, which is checked first, or the manifest that `vidtui data check` wrote
    pub source: Utf8PathBuf,
    /// The trainer: open-sora, finetrainers, videox-fun, musubi, diffusion-pipe or ttt-video-dit
    #[arg(long, value_name = "TRAINER", value_parser = str::parse::<dataset::export::ExportFormat>)]
    pub format: dataset::export::ExportFormat,
    /// The folder to write to. Videos stay where they are; ttt-video-dit gets converted ones
    #[arg(long, value_name = "DIR")]
    pub out: Utf8PathBuf,
    #[command(flatten)]
    pub listed: ListedArgs,
    /// Frames that the trainer takes of a clip. Shorter clips are dropped [default: any for open-sora and videox-fun, 49 for finetrainers,
    /// musubi and diffusion-pipe]
    #[arg(long, value_name = "N")]
    pub frames: Option<usize>,
    /// Height that the trainer scales to, for its configuration [default: 480]
    #[arg(long, value_name = "PIXELS", requires = "width")]
    pub height: Option<usize>,
    /// Width that the trainer scales to [default: 720]
    #[arg(long, value_name = "PIXELS", requires = "height")]
    pub width: Option<usize>,
    /// Largest share of clips that may be dropped; a larger share is a failure
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    pub max_dropped: f64,
    /// Replaces existing tables
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data buckets`.
#[derive(Debug, Arguments)]
pub struct DataBucketsArgs {
    /// A folder or table of videos, the manifest that `vidtui data check` wrote, or a data set of latents
    pub source: Utf8PathBuf,
    /// The recipe, or CURRICULUM:STAGE, whose buckets and mesh are used
    #[arg(long, value_name = "RECIPE")]
    pub recipe: String,
    /// Overrides a key of the recipe (repeatable)
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub listed: ListedArgs,
    /// Rate at which frames are taken, per second, and rate of folders of frames [default: data.fps of the recipe, or the rate of each clip]
    #[arg(long, value_name = "FPS")]
    pub fps: Option<f64>,
    /// Which frames are taken: head, middle, random, stride, linspace or time@fps [default: head]
    #[arg(long, value_name = "MODE", value_parser = str::parse::<video::FrameMode>)]
    pub mode: Option<video::FrameMode>,
    /// Distance between taken frames, in frames, if there is no rate [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "fps")]
    pub stride: Option<usize>,
    #[command(flatten)]
    pub output: JsonArgs,
}

impl DataBucketsArgs {
    /// Refuses the options for videos if the source is a data set of latents, whose frames were taken by an encode.
    pub fn refuse_with_latents(&self) -> Result<(), CommandError> {
        let given =
            [("--fps", self.fps.is_some()), ("--mode", self.mode.is_some()), ("--stride", self.stride.is_some())];
        let why = format!("{} is a data set of latents, and its encode has read the videos", self.source);
        refuse(self.listed.given().into_iter().chain(given), why, "data set")
    }
}

/// How a folder or table of videos is read.
#[derive(Debug, Default, Arguments)]
pub struct ListedArgs {
    /// How videos and captions are listed [default: detected]
    #[arg(long, value_enum)]
    pub layout: Option<LayoutArg>,
    /// Column of a table that names the video [default: detected]
    #[arg(long, value_name = "COLUMN")]
    pub video_column: Option<String>,
    /// Column of a table that holds the caption (repeatable: each caption of a video is a clip) [default: detected]
    #[arg(long = "caption-column", value_name = "COLUMN")]
    pub caption_columns: Vec<String>,
    /// Folder that relative paths of a table start from [default: the folder of the table]
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Drops captions with more characters [default: 5000]
    #[arg(long, value_name = "N")]
    pub max_characters: Option<usize>,
    /// Leaves out the clips that do not meet conditions on columns of numbers: "aesthetic >= 5 and motion between 0.5 and 20"
    #[arg(long = "where", value_name = "CONDITIONS", value_parser = str::parse::<dataset::Filter>)]
    pub filter: Option<dataset::Filter>,
    /// Writes captions by a template, with the columns of the table: "{caption} motion score: {motion:.1f}, {fps} FPS"
    #[arg(long = "caption", value_name = "TEMPLATE", value_parser = str::parse::<dataset::CaptionTemplate>)]
    pub template: Option<dataset::CaptionTemplate>,
}

impl ListedArgs {
    /// Refuses these options for a manifest, whose clips and captions are fixed.
    pub fn refuse_with_manifest(&self, manifest: &Utf8Path) -> Result<(), CommandError> {
        let why = format!("{manifest} is a manifest, and `vidtui data check` wrote it with the clips and captions");
        refuse(self.given(), why, "manifest")
    }

    /// Returns each option, and whether it is given.
    fn given(&self) -> [(&'static str, bool); 7] {
        [
            ("--layout", self.layout.is_some()),
            ("--video-column", self.video_column.is_some()),
            ("--caption-column", !self.caption_columns.is_empty()),
            ("--root", self.root.is_some()),
            ("--max-characters", self.max_characters.is_some()),
            ("--where", self.filter.is_some()),
            ("--caption", self.template.is_some()),
        ]
    }
}

/// Refuses the first option that is given although it has no effect on the source.
fn refuse(
    options: impl IntoIterator<Item = (&'static str, bool)>,
    why: String,
    source: &str,
) -> Result<(), CommandError> {
    let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    Err(CommandError::request(Failure::new(
        ErrorCode::InvalidArgument,
        format!("cannot use {option}"),
        why,
        format!("leave it out, or name the videos in place of the {source} and use {option} there"),
    )))
}

/// Reads a share: `5%` or `0.05`.
fn share(text: &str) -> Result<f64, String> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let share = match text.strip_suffix('%') {
        Some(percent) => number(percent).map(|percent| percent / 100.0),
        None => number(text),
    };
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "a share is from 0% to 100%, for example 5%".into())
}

/// The layouts of videos with captions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LayoutArg {
    /// Videos, pictures and folders of frames with .txt files of the same name beside them
    Pairs,
    /// Only folders of frames, one per clip, with .txt files of the same name beside them
    Frames,
    /// prompts.txt or captions.txt, and videos.txt, line by line
    Lists,
    /// A table: metadata.csv, .tsv, .json, .jsonl or .parquet
    Table,
}

impl From<LayoutArg> for dataset::Layout {
    fn from(arg: LayoutArg) -> Self {
        match arg {
            LayoutArg::Pairs => Self::Pairs,
            LayoutArg::Frames => Self::Frames,
            LayoutArg::Lists => Self::Lists,
            LayoutArg::Table => Self::Table,
        }
    }
}

/// `vidtui data show`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("decoded").multiple(true))]
pub struct DataShowArgs {
    /// The folder of the data set, which has dataset.toml and index.jsonl
    pub data: Utf8PathBuf,
    /// The id of a clip
    pub id: Option<String>,
    /// Decodes the latent of the clip with the VAE into this mp4
    #[arg(long, value_name = "MP4", requires = "id", group = "decoded")]
    pub decode: Option<Utf8PathBuf>,
    /// Decodes the latent of the clip with the VAE, and prints some of its frames with coloured characters
    #[arg(long, requires = "id", group = "decoded", conflicts_with = "json")]
    pub picture: bool,
    /// The tensor to decode in place of the latent, for clips that were encoded with a condition: image, masked, masked.1…
    #[arg(long, value_name = "NAME", requires = "decoded")]
    pub tensor: Option<String>,
    /// The folder of the VAE [default: the VAE that encoded the data set]
    #[arg(long, value_name = "DIR", requires = "decoded")]
    pub vae: Option<Utf8PathBuf>,
    /// Replaces an existing mp4
    #[arg(long, requires = "decode")]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data verify`.
#[derive(Debug, clap::Args)]
pub struct DataVerifyArgs {
    /// The folder of the data set
    pub data: Utf8PathBuf,
    /// Leaves out the clips that use a damaged latent or text. The next encode of their videos encodes them again
    #[arg(long)]
    pub drop: bool,
    /// Records the checksums of latents and texts that have none, because an earlier version wrote them
    #[arg(long)]
    pub record: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data prune`.
#[derive(Debug, clap::Args)]
pub struct DataPruneArgs {
    /// The folder of the data set
    pub data: Utf8PathBuf,
    /// Lists the shards and removes none
    #[arg(long)]
    pub dry_run: bool,
    /// Removes the shards even if a run that has not ended trains on the data set
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data import`.
#[derive(Debug, Arguments)]
pub struct DataImportArgs {
    /// The index of ttt-video-dit, or the folder that finetrainers or cogvideox-factory prepared
    pub index: Utf8PathBuf,
    /// The folder to create: a store of latents and texts
    pub target: Utf8PathBuf,
    /// Folder that the relative paths of the index start from [default: the folder of the index]
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Channels of a latent. A file with twice as many holds means and log-variances, and latents are sampled from those
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub channels: usize,
    /// Leaves out clips whose latent or text has values that are NaN or infinite, instead of refusing the import
    #[arg(long)]
    pub drop_not_finite: bool,
    /// Replaces an earlier import at TARGET
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        assert_eq!((share("5%"), share("0.05"), share("100 %"), share("1")), (Ok(0.05), Ok(0.05), Ok(1.0), Ok(1.0)));
        assert!(["5", "-1%", "101%", "", "%", "NaN", "some"].iter().all(|text| share(text).is_err()));
    }
}
