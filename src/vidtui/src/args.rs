//! The command line: what can be asked for, in the words that `--help` prints.

use camino::Utf8PathBuf;
use clap::{Args as Arguments, Parser, Subcommand};
use cluster::NodeId;

/// Trains video diffusion transformers and watches them train.
#[derive(Debug, Parser)]
#[command(
    name = "vidtui",
    version,
    after_help = "Without a command, vidtui opens the console on the runs folder.\n\
                  RUN is an id, the start or end of one that no other run shares, or `latest`.\n\
                  Exit code: 0 done, 1 it failed, 2 the request was wrong."
)]
pub struct Args {
    /// Folder that holds the runs
    #[arg(long, global = true, value_name = "DIR", default_value = "runs")]
    pub runs: Utf8PathBuf,

    /// Folder of the curricula that the console offers
    #[arg(long, global = true, value_name = "DIR", default_value = "configs")]
    pub configs: Utf8PathBuf,

    /// Opens the console on this run
    #[arg(long, value_name = "RUN")]
    pub open: Option<String>,

    /// Records what happens in the console to this file, for `vidtui replay`
    #[arg(long, value_name = "FILE")]
    pub record: Option<Utf8PathBuf>,

    #[command(flatten)]
    pub nodes: NodesArgs,

    /// Shows this many made-up nodes of eight GPUs, to try the screens without a cluster
    #[arg(long, global = true, value_name = "NODES")]
    pub simulate: Option<usize>,

    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Nodes to train on, reached by SSH as `ssh` reaches them or chosen by Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
pub struct NodesArgs {
    /// Trains on the nodes that this file lists, one to a line: `gpu[001-024] slots=8`
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Trains as a Slurm job that asks for what this file says: partition, nodes, GPUs, time
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostfile", "include", "exclude"])]
    pub slurm: Option<Utf8PathBuf>,
    /// Only these of the nodes: gpu[001-004],gpu009
    #[arg(long, value_name = "NODES")]
    pub include: Option<String>,
    /// All but these of the nodes
    #[arg(long, value_name = "NODES")]
    pub exclude: Option<String>,
    /// Copies the trainer to nodes that have another one or none
    #[arg(long)]
    pub push: bool,
    /// Goes on although this check fails (may be repeated)
    #[arg(long, value_name = "CHECK")]
    pub waive: Vec<String>,
}

/// A command; without one the console opens.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the stages of a curriculum: state, what each changes, where its weights come from
    Stages(StagesArgs),
    /// Shows recipes
    #[command(subcommand)]
    Recipe(RecipeCommand),
    /// Makes every check that a launch makes, and starts nothing
    Check(CheckArgs),
    /// Starts a run and prints its id; the run goes on without the console
    Launch(LaunchArgs),
    /// Continues a run from its newest complete checkpoint
    Resume(ResumeArgs),
    /// Starts the stage that follows, from this run's last checkpoint
    Next(NextArgs),
    /// Lists the runs
    Runs(JsonArgs),
    /// Shows one run: state, progress, losses, checkpoint
    Status(RunArgs),
    /// Shows what nodes do: power, memory, processes and faults of their GPUs
    Nodes(NodesCommandArgs),
    /// Shows one node: its GPUs, what runs on them and whose it is, and what nvidia-smi prints
    Smi(SmiArgs),
    /// Prints what a rank printed
    Logs(LogsArgs),
    /// Lists the checkpoints of a run
    Checkpoints(RunArgs),
    /// Stops a run after it has saved a checkpoint
    Stop(StopArgs),
    /// Writes the stacks of all ranks into the run's folder: where a run that hangs is
    Stacks(RunArgs),
    /// Ends a run now, without a checkpoint
    Kill(KillArgs),
    /// Writes the curves of a run as SVG, PNG or CSV
    Export(ExportArgs),
    /// Prepares datasets
    #[command(subcommand)]
    Data(DataCommand),
    /// Turns weights into a checkpoint to start from, or into a diffusers model
    Convert(ConvertArgs),
    /// Shows what weights are: family, size, whether complete; with a second path, how they differ
    Inspect(InspectArgs),
    /// Plays a recorded session of the console
    Replay(ReplayArgs),
    /// Starts and watches the ranks of one node; what a launch runs on every node
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// What the script of a Slurm job asks, on its first node
    #[command(hide = true, subcommand)]
    Job(JobCommand),
    /// Prints the completions of a shell
    Completions {
        /// The shell to complete in
        shell: clap_complete::Shell,
    },
}

/// `vidtui job …`: called by the batch script of a Slurm job.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Writes the attempt that begins in this job, and prints its number; prints nothing when nothing is left to do
    Begin {
        /// The run's directory
        #[arg(long)]
        run_dir: Utf8PathBuf,
        /// Number of the attempt that was submitted
        #[arg(long)]
        attempt: u32,
    },
    /// Succeeds if the job, whose ranks have ended, is to wait in the queue for another turn
    Again {
        /// The run's directory
        #[arg(long)]
        run_dir: Utf8PathBuf,
        /// Slurm has warned that the job's time is over
        #[arg(long)]
        warned: bool,
    },
}

/// `vidtui recipe …`.
#[derive(Debug, Subcommand)]
pub enum RecipeCommand {
    /// Prints the complete recipe: every key, with its value
    Show(RecipeShowArgs),
}

/// `vidtui data …`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Turns a dataset of torch pickles, as ttt-video-dit writes it, into one that training reads; runs nothing in them
    Import(DataImportArgs),
}

/// The machine-readable output of commands that take nothing else.
#[derive(Debug, Arguments)]
pub struct JsonArgs {
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `vidtui stages`.
#[derive(Debug, Arguments)]
pub struct StagesArgs {
    /// The curriculum: its TOML file, or the folder that holds `curriculum.toml`
    pub curriculum: Utf8PathBuf,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui recipe show`.
#[derive(Debug, Arguments)]
pub struct RecipeShowArgs {
    /// A recipe file, or CURRICULUM:STAGE
    pub recipe: String,
    /// Overrides one key
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Adds the file and line, or the flag, that each value came from
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
    #[command(flatten)]
    pub how: HowArgs,
    /// Starts from these weights: a step folder of a checkpoint, or a run
    #[arg(long, value_name = "PATH")]
    pub init: Option<String>,
}

/// With which ranks and settings a stage starts.
#[derive(Debug, Arguments)]
pub struct HowArgs {
    /// Trains on this machine in N ranks (default: as many as the mesh of the recipe)
    #[arg(long, value_name = "N", conflicts_with_all = ["hostfile", "slurm"])]
    pub local: Option<usize>,
    /// Fits mesh and accumulation to N ranks, with the same global batch
    #[arg(long, value_name = "N")]
    pub fit: Option<usize>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Overrides one key of the stage
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// File of KEY=value lines for the ranks' environment, readable by you alone; the values are written nowhere
    #[arg(long, value_name = "FILE")]
    secrets: Option<Utf8PathBuf>,
}

impl HowArgs {
    /// The keys that are overridden, `--secrets` among them.
    pub fn sets(&self) -> Vec<String> {
        self.set.iter().cloned().chain(self.secrets.iter().map(|path| format!("env.secrets={path}"))).collect()
    }
}

/// What is done with a plan.
#[derive(Debug, Arguments)]
pub struct ThenArgs {
    /// Shows what would be started, and starts nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Waits until the run has ended; its end decides the exit code
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
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui launch`.
#[derive(Debug, Arguments)]
pub struct LaunchArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Names the run (default: the name in the recipe)
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// `vidtui resume`.
#[derive(Debug, Arguments)]
pub struct ResumeArgs {
    /// The run
    pub run: String,
    /// Continues from this step instead of the newest checkpoint
    #[arg(long)]
    pub step: Option<u64>,
    /// Takes only the weights: fresh optimizer, fresh data order
    #[arg(long, conflicts_with = "fresh_data")]
    pub weights_only: bool,
    /// Keeps the optimizer, begins the data again
    #[arg(long)]
    pub fresh_data: bool,
    /// Continues on this machine in N ranks
    #[arg(long, visible_alias = "local", value_name = "N", conflicts_with_all = ["hostfile", "include", "exclude", "slurm"])]
    pub ranks: Option<usize>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Trains longer than the recipe says
    #[arg(long, value_name = "train.steps=N")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// `vidtui next`.
#[derive(Debug, Arguments)]
pub struct NextArgs {
    /// The run whose stage is done
    pub run: String,
    #[command(flatten)]
    pub how: HowArgs,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// A run and how to print it.
#[derive(Debug, Arguments)]
pub struct RunArgs {
    /// The run
    pub run: String,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui nodes`.
#[derive(Debug, Arguments)]
pub struct NodesCommandArgs {
    /// Shows the nodes that this run is on
    #[arg(conflicts_with_all = ["hostfile", "slurm", "local"])]
    pub run: Option<String>,
    /// Shows this machine
    #[arg(long, conflicts_with_all = ["hostfile", "slurm"])]
    pub local: bool,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Sorts by faults, power, util, memory, temp, processes or name (default: as they are listed)
    #[arg(long, value_name = "WHAT")]
    pub sort: Option<String>,
    /// Sorts the other way round
    #[arg(long)]
    pub reverse: bool,
    /// Goes on showing them, until it is ended; with --json an object per line
    #[arg(long, short)]
    pub watch: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui smi`.
#[derive(Debug, Arguments)]
pub struct SmiArgs {
    /// The node: a name of the hostfile, of Slurm's partition, of the run, or one that `ssh` knows
    pub node: String,
    /// Takes the node from this run
    #[arg(long, conflicts_with_all = ["hostfile", "slurm"])]
    pub run: Option<String>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui logs`.
#[derive(Debug, Arguments)]
pub struct LogsArgs {
    /// The run
    pub run: String,
    /// The rank whose output to print (default: all, each line with its rank)
    #[arg(long)]
    pub rank: Option<usize>,
    /// Prints the last N lines only
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Goes on printing until the run has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Prints one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Nodes to look for processes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Arguments)]
pub struct OnNodesArgs {
    /// The nodes that this file lists, one to a line
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub hostfile: Option<Utf8PathBuf>,
    /// Only these of the nodes: gpu[001-004],gpu009
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub include: Option<String>,
    /// All but these of the nodes
    #[arg(long, value_name = "NODES", requires = "hostfile")]
    pub exclude: Option<String>,
}

impl OnNodesArgs {
    /// The nodes, as a launch names them.
    pub fn nodes(&self) -> NodesArgs {
        let Self { hostfile, include, exclude } = self.clone();
        NodesArgs { hostfile, include, exclude, ..NodesArgs::default() }
    }
}

/// `vidtui stop`.
#[derive(Debug, Arguments)]
pub struct StopArgs {
    /// The run; without it, all of your runs that are found on the nodes of --hostfile
    #[arg(required_unless_present = "hostfile")]
    pub run: Option<String>,
    #[command(flatten)]
    pub on: OnNodesArgs,
    /// Waits until the run has stopped
    #[arg(long)]
    pub wait: bool,
    /// Shows what would be signalled, and signals nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui kill`.
#[derive(Debug, Arguments)]
pub struct KillArgs {
    /// The run; without it, all of your runs that are found on the nodes of --hostfile
    #[arg(required_unless_present_any = ["hostfile", "pattern"])]
    pub run: Option<String>,
    #[command(flatten)]
    pub on: OnNodesArgs,
    /// Ends processes by their command line instead, whatever started them; on this machine without --hostfile
    #[arg(long, value_name = "REGEX", conflicts_with = "run")]
    pub pattern: Option<String>,
    /// Other users' processes as well, as far as you may signal them
    #[arg(long, requires = "pattern")]
    pub all_users: bool,
    /// Signals by `sudo -n kill`, other users' processes as well
    #[arg(long, requires = "pattern")]
    pub sudo: bool,
    /// Asks nodes that do not answer again, until every process on them is seen to be gone
    #[arg(long)]
    pub wait: bool,
    /// Shows what would be signalled, and signals nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Does not ask
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
    /// The file to write; its ending decides the format: .svg, .png or .csv
    #[arg(long, value_name = "FILE")]
    pub out: Utf8PathBuf,
    /// A curve to draw (may be repeated; default: loss for a picture, all for a table)
    #[arg(long, value_name = "METRIC")]
    pub metric: Vec<String>,
}

/// `vidtui replay`.
#[derive(Debug, Arguments)]
pub struct ReplayArgs {
    /// The recording
    pub file: Utf8PathBuf,
    /// Prints the last screen as text at this size instead of playing
    #[arg(long, value_name = "COLSxROWS")]
    pub screen: Option<String>,
    /// Plays this many times faster
    #[arg(long, default_value_t = 1.0, value_name = "TIMES")]
    pub speed: f64,
}

/// `vidtui supervise`.
#[derive(Debug, Arguments)]
pub struct SuperviseArgs {
    /// The run's directory
    #[arg(long)]
    pub run_dir: Utf8PathBuf,
    /// Number of the attempt
    #[arg(long)]
    pub attempt: u32,
    /// This node's name in the attempt's placement
    #[arg(long, value_parser = |name: &str| NodeId::new(name))]
    pub node: NodeId,
}

/// `vidtui convert`.
#[derive(Debug, Arguments)]
pub struct ConvertArgs {
    /// A diffusers model or pipeline, a checkpoint, a run, a .pt file or distributed checkpoint of ttt-video-dit, or a
    /// LoRA adapter
    pub source: String,
    /// The folder to make
    pub target: Utf8PathBuf,
    /// What to make
    #[arg(long, value_enum)]
    pub to: FormArg,
    /// Layers besides attention (default: as the source has them); new ones get fresh values
    #[arg(long, value_enum)]
    pub layer: Option<LayerArg>,
    /// Input channels, for image-to-video (32) or inpainting (33); new ones are zero
    #[arg(long, value_name = "N")]
    pub in_channels: Option<usize>,
    /// Type of the parameters (default: as the source has them)
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeArg>,
    /// Seed of the values of new layers
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,
    /// A tensor of the source that need not be used; a `*` at the end stands for any rest (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub allow_unused: Vec<String>,
    /// A LoRA adapter to add to the weights
    #[arg(long, value_name = "ADAPTER")]
    pub merge: Option<Utf8PathBuf>,
    /// How much of the adapter is added
    #[arg(long, default_value_t = 1.0, requires = "merge", allow_negative_numbers = true)]
    pub scale: f64,
    /// Largest size of a file (default: 5 for diffusers, 1 for a checkpoint)
    #[arg(long, value_name = "GB")]
    pub shard_gb: Option<f64>,
    /// Takes files over that would be copied byte for byte, as hard links: in seconds, and without room on the disk. Neither
    /// name's content may be written to afterwards
    #[arg(long)]
    pub link: bool,
    /// Replaces an earlier conversion at TARGET
    #[arg(long)]
    pub force: bool,
    /// Shows what would become of every tensor, and writes nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui data import`.
#[derive(Debug, Arguments)]
pub struct DataImportArgs {
    /// The index: a line for each sample, with `vid_emb` and `text_chunk_emb`
    pub index: Utf8PathBuf,
    /// The folder to make: a new index and a safetensors file for each tensor
    pub target: Utf8PathBuf,
    /// Where the relative paths of the index start (default: its own folder)
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Channels of a latent; files with twice as many hold means and log-variances, from which latents are drawn
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub channels: usize,
    /// Replaces an earlier import at TARGET
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// What weights are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FormArg {
    /// A checkpoint, for `launch --init`
    Internal,
    /// A folder that diffusers loads
    Diffusers,
    /// A LoRA adapter as diffusers saves it
    LoraDiffusers,
    /// A LoRA adapter as PEFT saves it
    LoraPeft,
    /// A LoRA adapter with kohya's names
    LoraKohya,
}

/// The layers that a model has besides attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum LayerArg {
    /// None
    None,
    /// TTT layers whose inner model is a matrix
    TttLinear,
    /// TTT layers whose inner model is a small MLP
    TttMlp,
}

/// The type of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DtypeArg {
    /// 4 bytes
    Float32,
    /// 2 bytes, the range of float32
    Bfloat16,
    /// 2 bytes, more digits and less range
    Float16,
}

/// `vidtui inspect`.
#[derive(Debug, Arguments)]
pub struct InspectArgs {
    /// Whatever `convert` takes, or any .safetensors file
    pub path: String,
    /// Other weights, to show how they differ
    pub other: Option<String>,
    /// Lists every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Reads every number and adds smallest, largest, mean, and how many are none
    #[arg(long, conflicts_with = "other")]
    pub stats: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}
