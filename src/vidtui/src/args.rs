//! The command line: commands, arguments and flags. The doc comments are the text of `--help`.

use crate::command_error::CommandError;
use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args as Arguments, Parser, Subcommand};
use cluster::NodeId;
use rundir::{ErrorCode, Failure};

/// Encodes videos, trains video diffusion transformers and makes videos with them, on one or many nodes.
#[derive(Debug, Parser)]
#[command(
    name = "vidtui",
    version,
    after_help = "Without a command, vidtui opens the console.\n\
                  RUN is the id of a run, a unique prefix or suffix of an id, or `latest`:\n\
                  the newest run, or the newest that has the weights or charts a command needs.\n\
                  Exit codes: 0 success, 1 failure, 2 invalid request.\n\
                  With --json, a failure is one line on standard error:\n\
                  {\"error\": {\"code\", \"what\", \"why\", \"fix\"}}.\n\
                  docs/json.md lists the fields of the documents on standard output.\n\n\
                  Examples:\n  \
                  vidtui data encode videos --model CogVideoX-5b --out data --local 8 --wait\n  \
                  vidtui launch configs/cogvideox/5b.toml --init weights --set data.index=data\n  \
                  vidtui status latest\n  \
                  vidtui sample latest --prompt \"a rabbit on a meadow\" --encoders CogVideoX-5b"
)]
pub struct Args {
    /// Folder of the runs
    #[arg(long, global = true, value_name = "DIR", default_value = "runs", help_heading = GLOBAL)]
    pub runs: Utf8PathBuf,

    /// Folder of the curricula that the console lists
    #[arg(long, value_name = "DIR", default_value = CONFIGS)]
    pub configs: Utf8PathBuf,

    /// Opens the console on this run
    #[arg(long, value_name = "RUN")]
    pub open: Option<String>,

    /// Records the console session to a new file, for `vidtui replay`
    #[arg(long, value_name = "FILE")]
    pub record: Option<Utf8PathBuf>,

    #[command(flatten)]
    pub nodes: NodesArgs,

    /// Shows N simulated nodes with eight GPUs each, to try the screens without a cluster
    #[arg(long, value_name = "N")]
    pub simulate: Option<usize>,

    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The default folder of the curricula.
const CONFIGS: &str = "configs";

/// The heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// The nodes to use: those of a hostfile, reached over SSH, or those that Slurm allocates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
pub struct NodesArgs {
    /// Nodes of this hostfile, which has one entry per line: `gpu[001-024] slots=8`
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Nodes of a Slurm job, with the resources of this file: partition, nodes, GPUs per node, time limit
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostfile", "include", "exclude", "push"])]
    pub slurm: Option<Utf8PathBuf>,
    /// Uses only these nodes: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES")]
    pub include: Option<String>,
    /// Leaves these nodes out: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES")]
    pub exclude: Option<String>,
    /// Copies the trainer to nodes where it is missing or differs
    #[arg(long)]
    pub push: bool,
    /// Continues even if this check fails (repeatable)
    #[arg(long, value_name = "CHECK", value_parser = waivable)]
    pub waive: Vec<String>,
    /// Whether they replace the flags before the command even if all are absent. The launch form shows what it starts, so nothing is
    /// added to it
    #[arg(skip)]
    pub replaces: bool,
}

/// Reads the name of a check that can be waived.
fn waivable(name: &str) -> Result<String, String> {
    let mut names = remote::CheckId::waivable().map(remote::CheckId::name);
    if names.clone().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    let last = names.next_back().unwrap_or_default();
    Err(format!("the checks are {} and {last}", names.collect::<Vec<_>>().join(", ")))
}

/// The nodes to show: those of a hostfile, or those of a Slurm partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
pub struct ShownNodesArgs {
    /// Nodes of this hostfile, which has one entry per line: `gpu[001-024] slots=8`
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Nodes of the partition in this Slurm file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostfile", "include", "exclude"])]
    pub slurm: Option<Utf8PathBuf>,
    /// Shows only these nodes: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub include: Option<String>,
    /// Leaves these nodes out: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub exclude: Option<String>,
}

impl ShownNodesArgs {
    /// Returns the nodes in the form that a launch uses.
    pub fn nodes(&self) -> NodesArgs {
        let Self { hostfile, slurm, include, exclude } = self.clone();
        NodesArgs { hostfile, slurm, include, exclude, ..NodesArgs::default() }
    }
}

impl Args {
    /// Returns an option before the command that has no effect on the command, and the commands that have it.
    pub fn unused(&self) -> Option<(&'static str, &'static str)> {
        const CONSOLE: &str = "the console";
        const LAUNCHES: &str = "the console, check, launch, resume, next, sample and data encode";
        const NODES: &str = "the console, check, launch, resume, next, sample, data encode, nodes and smi";
        let command = self.command.as_ref()?;
        let launches = match command {
            Command::Check(_) | Command::Launch(_) | Command::Resume(_) | Command::Next(_) | Command::Sample(_) => true,
            Command::Data(data) => matches!(data, DataCommand::Encode(_)),
            _ => false,
        };
        let shows = launches || matches!(command, Command::Nodes(_) | Command::Smi(_));
        let NodesArgs { hostfile, slurm, include, exclude, push, waive, replaces: _ } = &self.nodes;
        let given = [
            ("--open", self.open.is_some(), CONSOLE),
            ("--record", self.record.is_some(), CONSOLE),
            ("--configs", self.configs != CONFIGS, CONSOLE),
            ("--simulate", self.simulate.is_some(), "the console and nodes, which has it after the command"),
            ("--hostfile", hostfile.is_some() && !shows, NODES),
            ("--slurm", slurm.is_some() && !shows, NODES),
            ("--include", include.is_some() && !shows, NODES),
            ("--exclude", exclude.is_some() && !shows, NODES),
            ("--push", *push && !launches, LAUNCHES),
            ("--waive", !waive.is_empty() && !launches, LAUNCHES),
        ];
        given.into_iter().find(|(_, is_unused, _)| *is_unused).map(|(name, _, of)| (name, of))
    }
}

/// A command. Without one, the console opens.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the stages of a curriculum: state, changed keys, source of the weights
    Stages(StagesArgs),
    /// Shows recipes
    #[command(subcommand)]
    Recipe(RecipeCommand),
    /// Runs every check of a launch without starting anything
    Check(CheckArgs),
    /// Starts a run and prints its id. The run does not need the console
    Launch(LaunchArgs),
    /// Continues a run; training continues from the newest complete checkpoint
    Resume(ResumeArgs),
    /// Starts the next stage of the curriculum from the newest checkpoint of a run
    Next(NextArgs),
    /// Makes videos of prompts, with the weights of a run, a checkpoint or a downloaded model
    Sample(SampleArgs),
    /// Lists the runs, newest first
    Runs(JsonArgs),
    /// Shows a run: state, progress, loss, newest checkpoint, findings
    Status(RunArgs),
    /// Lists the alerts of all runs, newest first; tests channels, acknowledges and snoozes
    Alerts(AlertsArgs),
    /// Shows nodes: power, memory, processes and faults of their GPUs
    Nodes(NodesCommandArgs),
    /// Shows one node: its GPUs, their processes and owners, the output of nvidia-smi
    Smi(SmiArgs),
    /// Prints the logs of the ranks
    Logs(LogsArgs),
    /// Lists the checkpoints of a run, including incomplete ones. Pins, unpins or deletes one
    Checkpoints(CheckpointsArgs),
    /// Stops a run; training saves a checkpoint first
    Stop(StopArgs),
    /// Writes the stacks of all ranks of a run into its folder, to find where it hangs
    Stacks(RunArgs),
    /// Records the operators of the next steps on every rank as Chrome traces, which Perfetto (ui.perfetto.dev) opens
    Profile(ProfileArgs),
    /// Resumes a run whenever it fails, until it has finished or is stopped; a launch starts this if run.on_failure is "resume"
    Heal(HealArgs),
    /// Lists the queue of runs, which start one after the other on the same nodes, or changes it
    Queue(QueueArgs),
    /// Ends the processes of a run within seconds, even if they cannot save; asks for confirmation
    Kill(KillArgs),
    /// Writes the charts of a run to an SVG or PNG file, or its metrics to a CSV file
    Export(ExportArgs),
    /// Prepares data sets
    #[command(subcommand)]
    Data(DataCommand),
    /// Downloads a model from the Hugging Face Hub and prints its folder
    Fetch(FetchArgs),
    /// Converts weights to a checkpoint, a diffusers model or a LoRA adapter
    Convert(ConvertArgs),
    /// Shows the family, size and completeness of weights. With a second path, shows the differences
    Inspect(InspectArgs),
    /// Plays a recorded console session
    Replay(ReplayArgs),
    /// Starts and supervises the ranks of one node. A launch runs it on every node
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Called by the script of a Slurm job, on the first node of the job
    #[command(hide = true, subcommand)]
    Job(JobCommand),
    /// Prints a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether the output is JSON.
    pub fn is_json(&self) -> bool {
        match self {
            Self::Stages(args) => args.output.json,
            Self::Recipe(RecipeCommand::Show(args)) => args.output.json,
            Self::Check(args) => args.output.json,
            Self::Launch(args) => args.then.output.json,
            Self::Sample(args) => args.output.json,
            Self::Resume(args) => args.then.output.json,
            Self::Next(args) => args.then.output.json,
            Self::Runs(output) => output.json,
            Self::Status(args) | Self::Stacks(args) => args.output.json,
            Self::Checkpoints(args) => args.output.json,
            Self::Profile(args) => args.output.json,
            Self::Heal(args) => args.output.json,
            Self::Queue(args) => args.json,
            Self::Alerts(args) => args.is_json(),
            Self::Nodes(args) => args.output.json,
            Self::Smi(args) => args.output.json,
            Self::Logs(args) => args.json,
            Self::Stop(args) => args.output.json,
            Self::Kill(args) => args.output.json,
            Self::Data(DataCommand::Check(args)) => args.output.json,
            Self::Data(DataCommand::Import(args)) => args.output.json,
            Self::Data(DataCommand::Buckets(args)) => args.output.json,
            Self::Data(DataCommand::Show(args)) => args.output.json,
            Self::Data(DataCommand::Prune(args)) => args.output.json,
            Self::Fetch(args) => args.output.json,
            Self::Data(DataCommand::Encode(args)) => args.then.output.json,
            Self::Convert(args) => args.output.json,
            Self::Inspect(args) => args.output.json,
            Self::Export(_) | Self::Replay(_) | Self::Supervise(_) | Self::Job(_) | Self::Completions { .. } => false,
        }
    }
}

/// `vidtui job …`: called by the batch script of a Slurm job.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Writes the attempt that starts in this job and prints its number. Prints nothing if the run is complete
    Begin {
        /// Folder of the run
        #[arg(long)]
        run_dir: Utf8PathBuf,
        /// Number of the submitted attempt
        #[arg(long)]
        attempt: u32,
    },
    /// Exits with 0 if the job must be requeued after its ranks have ended
    #[command(alias = "again")]
    Requeue {
        /// Folder of the run
        #[arg(long)]
        run_dir: Utf8PathBuf,
        /// Slurm has sent the warning signal before the time limit
        #[arg(long)]
        warned: bool,
    },
}

/// `vidtui recipe …`.
#[derive(Debug, Subcommand)]
pub enum RecipeCommand {
    /// Prints the complete recipe: every key with its value
    Show(RecipeShowArgs),
}

/// `vidtui data …`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Checks a folder or table of videos with captions: which clips can be used, which are dropped and why. Writes a
    /// manifest
    Check(DataCheckArgs),
    /// Imports latents that ttt-video-dit, finetrainers or cogvideox-factory prepared. Runs no code of their pickles
    Import(DataImportArgs),
    /// Shows the clips, sizes and failures of a data set of latents, or one clip with its tensors, frames and caption
    Show(DataShowArgs),
    /// Shows which clips go into which bucket of a recipe, what is thrown away and why, and the memory and batches of each bucket
    Buckets(DataBucketsArgs),
    /// Removes the shards of a data set that its index no longer names, unless a run reads the data set
    Prune(DataPruneArgs),
    /// Encodes videos and captions to latents and texts, in a run on this machine or on many nodes. Encodes only what is new
    Encode(Box<DataEncodeArgs>),
}

/// Machine-readable output.
#[derive(Debug, Default, Arguments)]
pub struct JsonArgs {
    /// Prints one JSON document. Failures are JSON too
    #[arg(long)]
    pub json: bool,
}

/// `vidtui stages`.
#[derive(Debug, Arguments)]
pub struct StagesArgs {
    /// The curriculum: its TOML file, or the folder of `curriculum.toml`
    pub curriculum: Utf8PathBuf,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data encode`.
#[derive(Debug, Arguments)]
pub struct DataEncodeArgs {
    /// A folder or table of videos, which is checked first, or the manifest that `vidtui data check` wrote
    pub source: Utf8PathBuf,
    #[command(flatten)]
    pub listed: ListedArgs,
    /// The diffusers folder with vae/, text_encoder/ and tokenizer/
    #[arg(long, value_name = "FOLDER")]
    pub model: Utf8PathBuf,
    /// The folder of the data set. Existing latents and texts are reused
    #[arg(long, value_name = "DATA")]
    pub out: Utf8PathBuf,
    /// The recipe, or CURRICULUM:STAGE, that will train on the data set: sets frames, height and width or the buckets, the text length, and the
    /// condition of image-to-video and inpainting
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
    /// Rate at which frames are taken, per second [default: the rate of each clip]
    #[arg(long)]
    pub fps: Option<f64>,
    /// Which frames are taken: head, middle, random, stride, linspace or time@fps [default: head]
    #[arg(long, value_parser = str::parse::<video::FrameMode>)]
    pub mode: Option<video::FrameMode>,
    /// How pictures with another aspect ratio are cropped: center, random or none [default: center]
    #[arg(long)]
    pub crop: Option<String>,
    /// Tokens of a caption [default: those of the recipe, or 226]
    #[arg(long, value_name = "N")]
    pub text_len: Option<usize>,
    /// dtype of the encoders: bfloat16 or float32 [default: bfloat16]
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

/// `vidtui recipe show`.
#[derive(Debug, Arguments)]
pub struct RecipeShowArgs {
    /// A recipe file, or CURRICULUM:STAGE
    pub recipe: String,
    /// Overrides a key of the recipe (repeatable)
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Adds the source of each value: file and line, flag or default
    #[arg(long)]
    pub why: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// A stage to start.
#[derive(Debug, Arguments)]
pub struct StageArgs {
    /// A recipe file, or CURRICULUM:STAGE
    pub recipe: String,
    /// Changes mesh and gradient accumulation to fit N ranks. The global batch stays the same
    #[arg(long, value_name = "N")]
    pub fit: Option<usize>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Starts from these weights: a checkpoint folder, or the newest checkpoint of a run [default: the source in the stage, else
    /// random]
    #[arg(long, value_name = "PATH|RUN")]
    pub init: Option<String>,
}

/// The ranks and settings that a stage starts with.
#[derive(Debug, Clone, Arguments)]
pub struct HowArgs {
    /// Uses this machine, with N ranks [default: the size of the mesh in the recipe]
    #[arg(long, value_name = "N", conflicts_with_all = ["hostfile", "include", "exclude", "slurm", "push"])]
    pub local: Option<usize>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Overrides a key of the recipe (repeatable)
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// File with KEY=value lines for the environment of the ranks. Only you may have access (chmod 600). Values are not stored
    #[arg(long, value_name = "FILE")]
    secrets: Option<Utf8PathBuf>,
}

impl HowArgs {
    /// Returns the overridden keys, `--secrets` included.
    pub fn sets(&self) -> Vec<String> {
        self.set.iter().cloned().chain(self.secrets.iter().map(|path| format!("env.secrets={path}"))).collect()
    }
}

/// The options for executing a plan.
#[derive(Debug, Default, Arguments)]
pub struct ThenArgs {
    /// Shows the plan and starts nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Waits until the run has ended. The exit code is 0 if it has finished
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui check`.
#[derive(Debug, Arguments)]
pub struct CheckArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Proposes the fastest settings with which a rank fits this memory, such as 24GiB. Runs no checks
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub fit_memory: Option<u64>,
    /// Prints the memory of LoRA and full training on one GPU, beside published figures. Runs no checks
    #[arg(long, conflicts_with = "fit_memory")]
    pub table: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui launch`.
#[derive(Debug, Arguments)]
pub struct LaunchArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Name of the run [default: the name in the recipe]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// `vidtui sample`.
#[derive(Debug, Default, Arguments)]
pub struct SampleArgs {
    /// A run, whose newest checkpoint is used, a checkpoint, a diffusers folder, or a model that `vidtui fetch` downloaded
    #[arg(value_name = "RUN|CHECKPOINT|WEIGHTS")]
    pub from: String,
    /// Merges an adapter (LoRA) into the weights first, with a factor (repeatable): a file of diffusers, PEFT or kohya, a run or a
    /// checkpoint of adapters
    #[arg(long, value_name = "PATH[:WEIGHT]")]
    pub lora: Vec<String>,
    /// A prompt (repeatable). It may end in flags: --w width, --h height, --f frames, --d seed, --s steps, --g guidance,
    /// --n negative prompt, --i first image
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// File with a prompt on each line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<Utf8PathBuf>,
    /// First image of the videos, for image-to-video models: PNG, JPEG or WebP
    #[arg(long, value_name = "FILE")]
    pub image: Option<Utf8PathBuf>,
    /// Seed of the noise [default: 42]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Sampling steps [default: 50]
    #[arg(long)]
    pub steps: Option<usize>,
    /// Scale of classifier-free guidance [default: 6]
    #[arg(long)]
    pub guidance: Option<f64>,
    /// Sampler [default: the scheduler of the folder, or the sampler that the authors of the model use]
    #[arg(long)]
    pub scheduler: Option<SchedulerArg>,
    /// Frames per video [default: as the model was trained]
    #[arg(long)]
    pub frames: Option<usize>,
    /// Height of the videos in pixels [default: as the model was trained]
    #[arg(long)]
    pub height: Option<usize>,
    /// Width of the videos in pixels [default: as the model was trained]
    #[arg(long)]
    pub width: Option<usize>,
    /// Frames per second of the mp4 [default: 8, or 16 for CogVideoX 1.5]
    #[arg(long)]
    pub fps: Option<f64>,
    /// Folder of the videos [default: samples/ in the folder of the new run]
    #[arg(long, value_name = "DIR")]
    pub out: Option<Utf8PathBuf>,
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
        "lora", "prompt", "prompts", "image", "seed", "steps", "guidance", "scheduler", "frames", "height", "width", "fps", "out", "png", "ema",
        "encoders", "local", "hostfile", "slurm", "include", "exclude", "push", "waive", "name", "dry_run", "no_wait",
    ])]
    pub now: bool,
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

/// A sampler.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum SchedulerArg {
    /// CogVideoX's DDIM
    Ddim,
    /// CogVideoX's DPM++ 2M SDE
    Dpm,
    /// The sampler of ttt-video-dit
    Vpsde,
}

impl From<SchedulerArg> for recipe::SampleScheduler {
    fn from(arg: SchedulerArg) -> Self {
        match arg {
            SchedulerArg::Ddim => Self::Ddim,
            SchedulerArg::Dpm => Self::Dpm,
            SchedulerArg::Vpsde => Self::Vpsde,
        }
    }
}

/// `vidtui resume`.
#[derive(Debug, Arguments)]
pub struct ResumeArgs {
    /// The run
    pub run: String,
    /// Continues from the checkpoint of this step [default: the newest]
    #[arg(long)]
    pub step: Option<u64>,
    /// Loads only the weights. Optimizer and data order restart
    #[arg(long, conflicts_with = "fresh_data")]
    pub weights_only: bool,
    /// Loads weights and optimizer. The data order restarts
    #[arg(long)]
    pub fresh_data: bool,
    /// Continues on this machine with N ranks [default: the nodes of the last attempt]
    #[arg(long, visible_alias = "local", value_name = "N", conflicts_with_all = ["hostfile", "include", "exclude", "slurm", "push"])]
    pub ranks: Option<usize>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Changes the number of steps
    #[arg(long, value_name = "train.steps=N")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// `vidtui profile`.
#[derive(Debug, Arguments)]
pub struct ProfileArgs {
    /// The run
    pub run: String,
    /// Number of steps
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub steps: u64,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui alerts`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AlertsArgs {
    #[command(subcommand)]
    pub command: Option<AlertsCommand>,
    /// The most alerts to list
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui alerts …`.
#[derive(Debug, Subcommand)]
pub enum AlertsCommand {
    /// Sends a test alert to each channel of alerts.toml, or to one
    Test {
        /// The channel, such as slack
        channel: Option<String>,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Acknowledges an alert, so that it is not open any more
    Ack {
        /// The id of the alert, or its beginning
        id: String,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Sends no alerts of a run, or none like this alert, for a time
    Snooze {
        /// The id of an alert, or a run
        #[arg(value_name = "RUN|ID")]
        what: String,
        /// The time, such as 30m or 2h
        time: recipe::TimeLimit,
        #[command(flatten)]
        output: JsonArgs,
    },
}

impl AlertsArgs {
    fn is_json(&self) -> bool {
        match &self.command {
            None => self.output.json,
            Some(
                AlertsCommand::Test { output, .. }
                | AlertsCommand::Ack { output, .. }
                | AlertsCommand::Snooze { output, .. },
            ) => output.json,
        }
    }
}

/// `vidtui heal`.
#[derive(Debug, Arguments)]
pub struct HealArgs {
    /// The run
    pub run: String,
    /// Starts it in the background, where it continues after the end of this terminal, and returns
    #[arg(long)]
    pub detached: bool,
    /// Leaves the session of the program that started it
    #[arg(long, hide = true, conflicts_with = "detached")]
    pub own_session: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui queue`.
#[derive(Debug, Arguments)]
pub struct QueueArgs {
    /// Prints one JSON document. Failures are JSON too
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Option<QueueCommand>,
}

/// `vidtui queue …`.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// Adds runs to the end of the queue and prints their numbers. They start without the console, each when its nodes are free
    Add(Box<QueueAddArgs>),
    /// Keeps entries from starting
    Hold(QueueEntriesArgs),
    /// Lets entries start that are held, or that failed to start
    Release(QueueEntriesArgs),
    /// Changes the place of an entry
    Move(QueueMoveArgs),
    /// Removes entries from the list. A run that was started continues
    Remove(QueueEntriesArgs),
    /// Starts the runs of the queue until none is left; adding a run starts this
    Work(QueueWorkArgs),
}

/// `vidtui queue add`.
#[derive(Debug, Arguments)]
pub struct QueueAddArgs {
    /// Recipe files, CURRICULUM:STAGE, or a curriculum with all of its stages
    #[arg(required = true, value_name = "RECIPE|CURRICULUM")]
    pub recipes: Vec<String>,
    /// Changes mesh and gradient accumulation to fit N ranks. The global batch stays the same
    #[arg(long, value_name = "N")]
    pub fit: Option<usize>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Starts from these weights: a checkpoint folder, or the newest checkpoint of a run when it starts [default: the source in the
    /// stage, else random]
    #[arg(long, value_name = "PATH|RUN")]
    pub init: Option<String>,
    /// Name of the runs [default: the name in the recipe]
    #[arg(long)]
    pub name: Option<String>,
    /// Keeps the entries from starting until they are released
    #[arg(long)]
    pub hold: bool,
}

/// Entries of the queue.
#[derive(Debug, Arguments)]
pub struct QueueEntriesArgs {
    /// The numbers of the entries
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<u32>,
}

/// `vidtui queue move`.
#[derive(Debug, Arguments)]
pub struct QueueMoveArgs {
    /// The number of the entry
    pub id: u32,
    /// Its new place
    pub place: MovePlace,
    /// The entry that follows it, for `before`
    #[arg(value_name = "OTHER", required_if_eq("place", "before"))]
    pub other: Option<u32>,
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MovePlace {
    /// The first entry that waits
    First,
    /// The last one
    Last,
    /// Before another entry
    Before,
}

/// `vidtui queue work`.
#[derive(Debug, Arguments)]
pub struct QueueWorkArgs {
    /// Starts it in the background, where it continues after the end of this terminal, and returns
    #[arg(long)]
    pub detached: bool,
    /// Leaves the session of the program that started it
    #[arg(long, hide = true, conflicts_with = "detached")]
    pub own_session: bool,
}

impl LaunchArgs {
    /// Returns the launch of a recipe or stage that is added to the queue.
    pub fn of_queue(recipe: String, added: &QueueAddArgs) -> Self {
        let QueueAddArgs { fit, how, init, name, .. } = added;
        let stage = StageArgs { recipe, fit: *fit, how: how.clone(), init: init.clone() };
        Self { stage, name: name.clone(), then: ThenArgs::default() }
    }
}

/// `vidtui next`.
#[derive(Debug, Arguments)]
pub struct NextArgs {
    /// The run of the previous stage
    pub run: String,
    /// Starts from the checkpoint of this step [default: the newest]
    #[arg(long)]
    pub step: Option<u64>,
    /// Changes mesh and gradient accumulation to fit N ranks. The global batch stays the same
    #[arg(long, value_name = "N")]
    pub fit: Option<usize>,
    #[command(flatten)]
    pub how: HowArgs,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// A run and the output format.
#[derive(Debug, Arguments)]
pub struct RunArgs {
    /// The run
    pub run: String,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui checkpoints`.
#[derive(Debug, Arguments)]
pub struct CheckpointsArgs {
    /// The run
    pub run: String,
    /// What to do with the checkpoint of STEP [default: list all]
    #[arg(value_enum, requires = "step")]
    pub action: Option<CheckpointAction>,
    /// The step of the checkpoint
    pub step: Option<u64>,
    /// Does not ask for confirmation
    #[arg(long, requires = "action")]
    pub yes: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// An action on a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckpointAction {
    /// Keeps it when old checkpoints are removed
    Pin,
    /// Lets it be removed again
    Unpin,
    /// Removes it; asks for confirmation. Refused if a run needs it
    Delete,
}

/// `vidtui nodes`.
#[derive(Debug, Arguments)]
pub struct NodesCommandArgs {
    /// Shows the nodes of this run [default: the nodes of --hostfile or --slurm, else this machine]
    #[arg(conflicts_with_all = ["hostfile", "slurm", "include", "exclude", "local"])]
    pub run: Option<String>,
    /// Shows this machine
    #[arg(long, conflicts_with_all = ["hostfile", "slurm", "include", "exclude"])]
    pub local: bool,
    #[command(flatten)]
    pub nodes: ShownNodesArgs,
    /// Shows N simulated nodes with eight GPUs each
    #[arg(long, value_name = "N", conflicts_with_all = ["run", "local", "hostfile", "slurm", "include", "exclude"])]
    pub simulate: Option<usize>,
    /// Sorts by faults, power, util, memory, temp, processes or name [default: order of the hostfile]
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
    /// Reverses the order
    #[arg(long)]
    pub reverse: bool,
    /// Repeats every 2 seconds until interrupted. With --json, prints one object per line
    #[arg(long, short)]
    pub watch: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui smi`.
#[derive(Debug, Arguments)]
pub struct SmiArgs {
    /// The node: a name in the hostfile, in the Slurm partition or in the run, or a name that `ssh` resolves
    pub node: String,
    /// Looks the node up in this run
    #[arg(long, conflicts_with_all = ["hostfile", "slurm", "include", "exclude"])]
    pub run: Option<String>,
    #[command(flatten)]
    pub nodes: ShownNodesArgs,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui logs`.
#[derive(Debug, Arguments)]
pub struct LogsArgs {
    /// The run
    pub run: String,
    /// Prints the log of this rank [default: all ranks, each line with its rank]
    #[arg(long)]
    pub rank: Option<usize>,
    /// Starts with the last N lines of each log [default: all lines]
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Prints new lines until the run has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Prints one JSON object per line. Failures are JSON too
    #[arg(long)]
    pub json: bool,
}

/// Nodes to search for processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
pub struct OnNodesArgs {
    /// Searches the nodes of this hostfile
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Uses only these nodes: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub include: Option<String>,
    /// Leaves these nodes out: `gpu[001-004],gpu009`
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub exclude: Option<String>,
}

impl OnNodesArgs {
    /// Returns the nodes in the form that a launch uses.
    pub fn nodes(&self) -> NodesArgs {
        let Self { hostfile, include, exclude } = self.clone();
        NodesArgs { hostfile, include, exclude, ..NodesArgs::default() }
    }
}

/// `vidtui stop`.
#[derive(Debug, Arguments)]
pub struct StopArgs {
    /// The run [default with --hostfile: all of your runs on its nodes]
    #[arg(required_unless_present = "hostfile")]
    pub run: Option<String>,
    #[command(flatten)]
    pub on: OnNodesArgs,
    /// Waits until the run has ended
    #[arg(long, conflicts_with = "hostfile")]
    pub wait: bool,
    /// Shows the processes and signals none
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui kill`.
#[derive(Debug, Arguments)]
#[command(group(clap::ArgGroup::new("many").args(["pattern", "training"])))]
pub struct KillArgs {
    /// The run [default with --hostfile: all of your runs on its nodes]
    #[arg(required_unless_present_any = ["hostfile", "pattern", "training"])]
    pub run: Option<String>,
    #[command(flatten)]
    pub on: OnNodesArgs,
    /// Ends all runs, orphan processes of runs, and processes of other trainers [on this machine, or on the nodes of --hostfile]
    #[arg(long, conflicts_with_all = ["run", "pattern"])]
    pub training: bool,
    /// Ends all processes with a matching command line [on this machine, or on the nodes of --hostfile]
    #[arg(long, value_name = "REGEX", conflicts_with = "run")]
    pub pattern: Option<String>,
    /// Includes processes of other users, as far as you are permitted to signal them
    #[arg(long, requires = "many")]
    pub all_users: bool,
    /// Includes processes of other users and signals with `sudo -n kill`
    #[arg(long, requires = "many")]
    pub sudo: bool,
    /// Retries unreachable nodes until every process on them has ended
    #[arg(long)]
    pub wait: bool,
    /// Shows the processes and signals none
    #[arg(long)]
    pub dry_run: bool,
    /// Does not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui export`.
#[derive(Debug, Arguments)]
pub struct ExportArgs {
    /// The run
    pub run: String,
    /// The file to write. The extension selects the format: .svg, .png or .csv
    #[arg(long, value_name = "FILE")]
    pub out: Utf8PathBuf,
    /// Draws a chart of the console (repeatable)
    #[arg(long, value_enum)]
    pub chart: Vec<ChartArg>,
    /// Draws or tabulates a metric (repeatable) [default: the main charts of the run in a picture, all metrics in a table]
    #[arg(long, value_name = "METRIC")]
    pub metric: Vec<String>,
    /// Unit of the x axis [default: step]
    #[arg(long, value_enum)]
    pub x: Option<XArg>,
    /// Starts at this step, or at this second with `--x time` [default: the first]
    #[arg(long, value_name = "X")]
    pub from: Option<f64>,
    /// Ends with this step, or with this second with `--x time` [default: the last]
    #[arg(long, value_name = "X")]
    pub to: Option<f64>,
    /// Draws the exponential moving average over the raw values, 0 <= WEIGHT < 1. The console uses 0.9 and 0.99
    #[arg(long, value_name = "WEIGHT")]
    pub smooth: Option<f64>,
    /// Draws a logarithmic y axis
    #[arg(long)]
    pub log: bool,
}

/// The charts of the console, with the names that its exported files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ChartArg {
    /// Training loss and mean validation loss
    Loss,
    /// Validation loss at each noise level
    ValidationLoss,
    /// Learning rates of the weights and of TTT layers
    LearningRate,
    /// Norm of the gradient before clipping
    GradientNorm,
    /// Norm of the trained weights
    WeightNorm,
    /// Model FLOP utilisation
    Mfu,
    /// Seconds per step and waiting for data
    StepTime,
    /// Memory of each rank
    Memory,
    /// Items per second of an encode, by stage
    Items,
    /// Clips of an encode that wait for decoding or for the VAE
    Queue,
    /// Data that an encode has made, by stage
    Data,
    /// Items of an encode that failed
    Failed,
    /// GPU power, or CPU use on nodes without GPUs
    Power,
    /// GPU memory, or memory of nodes without GPUs
    NodeMemory,
}

impl From<ChartArg> for rundir::Chart {
    fn from(arg: ChartArg) -> Self {
        match arg {
            ChartArg::Loss => Self::Loss,
            ChartArg::ValidationLoss => Self::ValidationLoss,
            ChartArg::LearningRate => Self::LearningRate,
            ChartArg::GradientNorm => Self::GradNorm,
            ChartArg::WeightNorm => Self::WeightNorm,
            ChartArg::Mfu => Self::Mfu,
            ChartArg::StepTime => Self::StepTime,
            ChartArg::Memory => Self::Memory,
            ChartArg::Items => Self::ItemRate,
            ChartArg::Queue => Self::Queue,
            ChartArg::Data => Self::ItemBytes,
            ChartArg::Failed => Self::FailedItems,
            ChartArg::Power => Self::Power,
            ChartArg::NodeMemory => Self::NodeMemory,
        }
    }
}

/// The x axis of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum XArg {
    /// Optimizer steps
    Step,
    /// Seconds since the first step
    Time,
}

impl From<XArg> for ui::XAxis {
    fn from(arg: XArg) -> Self {
        match arg {
            XArg::Step => Self::Step,
            XArg::Time => Self::Time,
        }
    }
}

/// `vidtui replay`.
#[derive(Debug, Arguments)]
pub struct ReplayArgs {
    /// The recording
    pub file: Utf8PathBuf,
    /// Prints the last screen as text, at this size in columns and rows, instead of playing
    #[arg(long, value_name = "COLSxROWS")]
    pub screen: Option<String>,
    /// Factor of the playing speed
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", conflicts_with = "screen")]
    pub speed: f64,
}

/// `vidtui supervise`.
#[derive(Debug, Arguments)]
pub struct SuperviseArgs {
    /// Folder of the run
    #[arg(long)]
    pub run_dir: Utf8PathBuf,
    /// Number of the attempt
    #[arg(long)]
    pub attempt: u32,
    /// Name of this node in the placement of the attempt
    #[arg(long, value_parser = |name: &str| NodeId::new(name))]
    pub node: NodeId,
}

/// `vidtui fetch`.
#[derive(Debug, Arguments)]
#[command(after_help = "These environment variables apply, as in Python's huggingface_hub:\n\
                  HF_TOKEN (gated models), HF_ENDPOINT (mirror),\n\
                  HF_HOME or HF_HUB_CACHE (cache), HF_HUB_OFFLINE, HTTPS_PROXY and NO_PROXY.")]
pub struct FetchArgs {
    /// OWNER/NAME, for example zai-org/CogVideoX-5b
    pub model: String,
    /// Files, folders, or patterns such as 'vae/*.json' [default: all except documents and pictures]
    pub files: Vec<String>,
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
    /// Merges a LoRA adapter into the weights
    #[arg(long, value_name = "ADAPTER")]
    pub merge: Option<Utf8PathBuf>,
    /// Scale of the merged adapter
    #[arg(long, default_value_t = 1.0, requires = "merge", allow_negative_numbers = true)]
    pub scale: f64,
    /// Takes the moving average (EMA) in place of the weights; auto: if the checkpoint has one
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
    /// The recipe, or CURRICULUM:STAGE, that will train on the clips: sets frames, height and width, or the buckets
    #[arg(long = "for", value_name = "RECIPE", group = "length", conflicts_with_all = ["frames", "height", "width"])]
    pub recipe: Option<String>,
    /// Frames that each clip must have, for example 49 for CogVideoX
    #[arg(long, value_name = "N", group = "length")]
    pub frames: Option<usize>,
    /// Rate at which frames are taken, per second, for example 8 for CogVideoX [default: the rate of each clip]
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
    /// Rate at which frames are taken, per second [default: the rate of each clip]
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
    /// Column of a table that holds the caption [default: detected]
    #[arg(long, value_name = "COLUMN")]
    pub caption_column: Option<String>,
    /// Folder that relative paths of a table start from [default: the folder of the table]
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Drops captions with more characters [default: 5000]
    #[arg(long, value_name = "N")]
    pub max_characters: Option<usize>,
}

impl ListedArgs {
    /// Refuses these options for a manifest, whose clips and captions are fixed.
    pub fn refuse_with_manifest(&self, manifest: &Utf8Path) -> Result<(), CommandError> {
        let why = format!("{manifest} is a manifest, and `vidtui data check` wrote it with the clips and captions");
        refuse(self.given(), why, "manifest")
    }

    /// Returns each option, and whether it is given.
    fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("--layout", self.layout.is_some()),
            ("--video-column", self.video_column.is_some()),
            ("--caption-column", self.caption_column.is_some()),
            ("--root", self.root.is_some()),
            ("--max-characters", self.max_characters.is_some()),
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
    /// Videos with .txt files of the same name beside them
    Pairs,
    /// prompts.txt or captions.txt, and videos.txt, line by line
    Lists,
    /// A table: metadata.csv, .json, .jsonl or .parquet
    Table,
}

impl From<LayoutArg> for dataset::Layout {
    fn from(arg: LayoutArg) -> Self {
        match arg {
            LayoutArg::Pairs => Self::Pairs,
            LayoutArg::Lists => Self::Lists,
            LayoutArg::Table => Self::Table,
        }
    }
}

/// `vidtui data show`.
#[derive(Debug, clap::Args)]
pub struct DataShowArgs {
    /// The folder of the data set, which has dataset.toml and index.jsonl
    pub data: Utf8PathBuf,
    /// The id of a clip
    pub id: Option<String>,
    /// Decodes the latent of the clip with the VAE into this mp4
    #[arg(long, value_name = "MP4", requires = "id")]
    pub decode: Option<Utf8PathBuf>,
    /// The tensor to decode in place of the latent, for clips that were encoded with a condition: image, masked, masked.1…
    #[arg(long, value_name = "NAME", requires = "decode")]
    pub tensor: Option<String>,
    /// The folder of the VAE [default: the VAE that encoded the data set]
    #[arg(long, value_name = "DIR", requires = "decode")]
    pub vae: Option<Utf8PathBuf>,
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
    /// Replaces an earlier import at TARGET
    #[arg(long)]
    pub force: bool,
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
    /// Reads every value and adds minimum, maximum, mean, and the counts of NaN and infinite values
    #[arg(long, conflicts_with = "other")]
    pub stats: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_examples_of_the_help_are_valid() {
        let help = Args::command().get_after_help().expect("there is a text after the options").to_string();
        let examples: Vec<&str> =
            help.split("Examples:").nth(1).expect("it ends with examples").trim().lines().collect();
        assert_eq!(examples.len(), 4);
        for example in examples {
            assert!(example.len() <= 80, "{example}");
            // The only quoted argument is a prompt.
            let words = example.trim().split('"').enumerate();
            let words =
                words.flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
            assert!(Args::try_parse_from(words).is_ok(), "{example}");
        }
    }

    #[test]
    fn options_that_have_no_effect_are_refused() {
        let is_used = |line: &str| {
            let parsed = Args::try_parse_from(std::iter::once("vidtui").chain(line.split(' ')));
            parsed.is_ok_and(|args| args.unused().is_none())
        };
        for line in [
            "--configs other --simulate 4 --hostfile gpus.txt --push --waive clock",
            "--hostfile gpus.txt --include gpu001 --push launch recipe.toml",
            "--hostfile gpus.txt nodes",
            "--slurm job.toml smi gpu001",
            "launch recipe.toml --hostfile gpus.txt --exclude gpu001 --push --waive disk --waive clock --waive offload",
            "resume latest --include gpu001 --push",
            "nodes --hostfile gpus.txt --include gpu001",
            "nodes --simulate 4",
            "sample latest --now --json",
            "stop latest --wait",
            "data check videos --frames 49 --mode stride --stride 3",
            "data buckets videos --recipe recipe.toml --mode stride --stride 3",
        ] {
            assert!(is_used(line), "{line}");
        }
        for line in [
            "--hostfile gpus.txt runs",
            "--configs other launch recipe.toml",
            "--record session.jsonl status latest",
            "--open latest status latest",
            "--simulate 4 runs",
            "--simulate 4 nodes",
            "--push nodes",
            "--hostfile gpus.txt --waive clock smi gpu001",
            "nodes --push",
            "nodes --waive clock",
            "smi gpu001 --push",
            "smi gpu001 --waive clock",
            "nodes --include gpu001",
            "nodes latest --include gpu001",
            "nodes --local --exclude gpu001",
            "smi gpu001 --run latest --include gpu001",
            "runs --simulate 4",
            "launch recipe.toml --waive clok",
            "launch recipe.toml --local 2 --include gpu001",
            "launch recipe.toml --local 2 --push",
            "launch recipe.toml --slurm job.toml --push",
            "resume latest --local 2 --push",
            "sample latest --prompt rabbit --local 2 --exclude gpu001",
            "sample latest --now --steps 20",
            "sample latest --now --seed 7",
            "sample latest --now --name other",
            "sample latest --now --dry-run",
            "stop --hostfile gpus.txt --wait",
            "replay session.jsonl --screen 80x24 --speed 2",
            "data check videos --stride 3",
            "data check videos --mode middle",
            "data check videos --frames 49 --fps 8 --stride 3",
            "data buckets videos --recipe recipe.toml --fps 8 --stride 3",
        ] {
            assert!(!is_used(line), "{line}");
        }
    }

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        assert_eq!((share("5%"), share("0.05"), share("100 %"), share("1")), (Ok(0.05), Ok(0.05), Ok(1.0), Ok(1.0)));
        assert!(["5", "-1%", "101%", "", "%", "NaN", "some"].iter().all(|text| share(text).is_err()));
    }

    #[test]
    fn the_charts_have_the_names_of_the_files_that_the_console_exports() {
        for chart in ChartArg::value_variants() {
            let name = chart.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(name, rundir::Chart::from(*chart).info(true).name);
        }
    }
}
