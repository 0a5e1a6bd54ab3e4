//! Arguments of the commands that download, convert and inspect weights.

use super::{EmaArg, JsonArgs};
use camino::Utf8PathBuf;
use clap::Args as Arguments;

/// `vidtui fetch`.
#[derive(Debug, Arguments)]
#[command(after_help = "These environment variables apply, as in Python's huggingface_hub:\n\
                  HF_TOKEN (gated models), HF_ENDPOINT (mirror),\n\
                  HF_HOME or HF_HUB_CACHE (cache), HF_HUB_OFFLINE, HTTPS_PROXY and NO_PROXY.")]
pub struct FetchArgs {
    /// OWNER/NAME, for example zai-org/CogVideoX-5b
    pub model: String,
    /// Files, folders, or patterns such as 'vae/*.json' [default: all; of a model all except documents and pictures]
    pub files: Vec<String>,
    /// Downloads a data set in place of a model
    #[arg(long)]
    pub dataset: bool,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main", value_name = "NAME")]
    pub revision: String,
    /// Folder of the cache [default: that of Python's huggingface_hub]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui convert`.
#[derive(Debug, Arguments)]
pub struct ConvertArgs {
    /// A diffusers model or pipeline, a checkpoint, a run, a .pt file or distributed checkpoint of ttt-video-dit, or a
    /// LoRA adapter
    pub source: String,
    /// The folder to create
    pub target: Utf8PathBuf,
    /// The format of the result
    #[arg(long, value_enum)]
    pub to: FormArg,
    /// Layers besides attention [default: those of the source]. New layers are initialized
    #[arg(long, value_enum)]
    pub layer: Option<LayerArg>,
    /// Input channels: 32 for image-to-video, 33 for inpainting [default: those of the source]. New channels are zero
    #[arg(long, value_name = "N")]
    pub in_channels: Option<usize>,
    /// Type of the parameters [default: that of the source]
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeArg>,
    /// Random seed for the values of new layers
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,
    /// Accepts that this tensor of the source is unused. A `*` at the end matches any suffix (repeatable)
    #[arg(long, value_name = "NAME")]
    pub allow_unused: Vec<String>,
    /// Accepts weights and adapters with values that are NaN or infinite
    #[arg(long)]
    pub allow_not_finite: bool,
    /// Merges a LoRA adapter into the weights
    #[arg(long, value_name = "ADAPTER")]
    pub merge: Option<Utf8PathBuf>,
    /// Scale of the merged adapter
    #[arg(long, default_value_t = 1.0, requires = "merge", allow_negative_numbers = true)]
    pub scale: f64,
    /// Converts the moving average (EMA) instead of the trained weights; auto: if the checkpoint has one
    #[arg(long, value_enum, default_value_t = EmaArg::Auto)]
    pub ema: EmaArg,
    /// Largest size of a file in GB (10^9 bytes) [default: 5 for diffusers, 1 for a checkpoint]
    #[arg(long, value_name = "GB")]
    pub shard_gb: Option<f64>,
    /// Creates hard links instead of copies for files that do not change: fast, and needs no disk space. Do not write to
    /// either file afterwards
    #[arg(long)]
    pub link: bool,
    /// Replaces an earlier conversion at TARGET
    #[arg(long)]
    pub force: bool,
    /// Shows the result for every tensor and writes nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// The format of converted weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FormArg {
    /// A checkpoint, for `launch --init`
    Internal,
    /// A diffusers model folder
    Diffusers,
    /// A LoRA adapter in the format of diffusers
    LoraDiffusers,
    /// A LoRA adapter in the format of PEFT
    LoraPeft,
    /// A LoRA adapter in the format of kohya
    LoraKohya,
}

/// The layers of a model besides attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum LayerArg {
    /// None
    None,
    /// TTT layers with a linear inner model
    TttLinear,
    /// TTT layers with an MLP as inner model
    TttMlp,
}

/// The type of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DtypeArg {
    /// 4 bytes
    Float32,
    /// 2 bytes, the range of float32
    Bfloat16,
    /// 2 bytes, more precision and a smaller range
    Float16,
}

/// `vidtui inspect`.
#[derive(Debug, Arguments)]
pub struct InspectArgs {
    /// Any source of `convert`, or any .safetensors file
    pub path: String,
    /// Other weights, to compare with
    pub other: Option<String>,
    /// Lists every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Reads every value and adds minimum, maximum, mean, mean of absolute values, and the counts of NaN and infinite values
    #[arg(long, visible_alias = "values", conflicts_with = "other")]
    pub stats: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}
