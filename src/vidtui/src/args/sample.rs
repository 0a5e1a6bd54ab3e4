//! Arguments of the commands that make videos.

use super::{JsonArgs, NodesArgs};
use camino::Utf8PathBuf;
use clap::Args as Arguments;

/// `vidtui sample`.
#[derive(Debug, Clone, Default, Arguments)]
pub struct SampleArgs {
    /// A run, whose newest checkpoint is used, a checkpoint, a diffusers folder, or a model that `vidtui fetch` downloaded
    #[arg(value_name = "RUN|CHECKPOINT|WEIGHTS")]
    pub from: String,
    /// Merges an adapter (LoRA) into the weights first, with a factor (repeatable): a file of diffusers, PEFT or kohya, a run or a
    /// checkpoint of adapters
    #[arg(long, value_name = "PATH[:WEIGHT]")]
    pub lora: Vec<String>,
    /// A prompt (repeatable). It may end in flags: --w width, --h height, --f frames, --d seed, --s steps, --g guidance,
    /// --n negative prompt, --i first image, --e last image, --v video, --m mask
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// File with a prompt on each line; lines that begin with # are comments. A .json or .jsonl file has lists of segments, as
    /// ttt-video-dit reads them
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<Utf8PathBuf>,
    /// First image of the videos, for image-to-video models: PNG, JPEG or WebP
    #[arg(long, value_name = "FILE")]
    pub image: Option<Utf8PathBuf>,
    /// Last image of the videos, for models for inpainting
    #[arg(long, value_name = "FILE")]
    pub image_end: Option<Utf8PathBuf>,
    /// Video of which a model for inpainting replaces the masked pixels
    #[arg(long, value_name = "FILE", requires = "mask")]
    pub video: Option<Utf8PathBuf>,
    /// Image that is white where the pixels of the video are replaced
    #[arg(long, value_name = "FILE", requires = "video")]
    pub mask: Option<Utf8PathBuf>,
    /// Seed of the noise [default: sample.seed of the run, else 42]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Sampling steps [default: sample.steps of the run, else 50]
    #[arg(long)]
    pub steps: Option<usize>,
    /// Scale of classifier-free guidance [default: sample.guidance of the run, else 6]
    #[arg(long)]
    pub guidance: Option<f64>,
    /// Sampler [default: sample.scheduler of the run, or the scheduler of the folder, else the sampler that the authors of the model use]
    #[arg(long)]
    pub scheduler: Option<SchedulerArg>,
    /// Shift of noise levels of models of Wan [default: sample.shift of the run, else 5]
    #[arg(long)]
    pub shift: Option<f64>,
    /// Frames per video [default: sample.frames of the run, else as the model was trained]
    #[arg(long)]
    pub frames: Option<usize>,
    /// Height of the videos in pixels [default: sample.height of the run, else as the model was trained]
    #[arg(long)]
    pub height: Option<usize>,
    /// Width of the videos in pixels [default: sample.width of the run, else as the model was trained]
    #[arg(long)]
    pub width: Option<usize>,
    /// Frames per second of the mp4 [default: sample.fps or data.fps of the run; else 8, or 16 for CogVideoX 1.5]
    #[arg(long)]
    pub fps: Option<f64>,
    /// Numbers of the computation [default: train.dtype of the run; else bfloat16 if the weights have it, and float32 if not]
    #[arg(long)]
    pub dtype: Option<ComputeArg>,
    /// Folder of the videos [default: samples/ in the folder of the new run]
    #[arg(long, value_name = "DIR")]
    pub out: Option<Utf8PathBuf>,
    /// Replaces videos of the same names in the folder of --out
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Also writes each frame as a PNG file
    #[arg(long)]
    pub png: bool,
    /// Samples the moving average (EMA) of the weights; auto: if the checkpoint has one [default: sample.ema of the run]
    #[arg(long)]
    pub ema: Option<EmaArg>,
    /// Diffusers folder with vae/, text_encoder/ and tokenizer/ [default: WEIGHTS, or encoders.folder of the run]
    #[arg(long, value_name = "DIR")]
    pub encoders: Option<Utf8PathBuf>,
    /// Uses this machine, with N ranks [default: the size of the mesh of the run]
    #[arg(long, value_name = "N", conflicts_with_all = ["hostfile", "include", "exclude", "slurm", "push"])]
    pub local: Option<usize>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Name of the new run [default: sample]
    #[arg(long)]
    pub name: Option<String>,
    /// Makes the samples of a training run's recipe now, from its current weights
    #[arg(long, conflicts_with_all = [
        "lora", "prompt", "prompts", "image", "image_end", "video", "mask", "seed", "steps", "guidance", "scheduler", "shift", "frames", "height", "width", "fps", "dtype", "out", "png", "ema",
        "encoders", "local", "hostfile", "slurm", "include", "exclude", "push", "waive", "name", "dry_run", "no_wait",
    ])]
    pub now: bool,
    /// Samples every checkpoint of a training run that has no samples, and each new one until the run has ended; the videos become samples of
    /// the run. On another machine or other GPUs, training does not wait for them [default prompts: sample.prompts of the run]
    #[arg(long, conflicts_with_all = ["now", "out", "force", "dry_run", "no_wait"])]
    pub follow: bool,
    /// Shows the plan and starts nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Prints the id of the new run and does not wait for the videos
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// Whether the moving average of the weights is used.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum EmaArg {
    /// If there is one
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

impl From<EmaArg> for recipe::UseEma {
    fn from(arg: EmaArg) -> Self {
        match arg {
            EmaArg::Auto => recipe::UseEma::Auto,
            EmaArg::On => recipe::UseEma::On,
            EmaArg::Off => recipe::UseEma::Off,
        }
    }
}

/// The numbers of a computation.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum ComputeArg {
    /// 16-bit floats with the range of 32-bit ones
    Bfloat16,
    /// 32-bit floats
    Float32,
}

impl From<ComputeArg> for recipe::ComputeDtype {
    fn from(arg: ComputeArg) -> Self {
        match arg {
            ComputeArg::Bfloat16 => Self::Bfloat16,
            ComputeArg::Float32 => Self::Float32,
        }
    }
}

/// A sampler.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum SchedulerArg {
    /// CogVideoX's DDIM
    Ddim,
    /// CogVideoX's DPM++ 2M SDE
    Dpm,
    /// The sampler of ttt-video-dit
    Vpsde,
    /// UniPC, for Wan
    Unipc,
    /// Euler's method, for Wan
    Euler,
}

impl From<SchedulerArg> for recipe::SampleScheduler {
    fn from(arg: SchedulerArg) -> Self {
        match arg {
            SchedulerArg::Ddim => Self::Ddim,
            SchedulerArg::Dpm => Self::Dpm,
            SchedulerArg::Vpsde => Self::Vpsde,
            SchedulerArg::Unipc => Self::Unipc,
            SchedulerArg::Euler => Self::Euler,
        }
    }
}
