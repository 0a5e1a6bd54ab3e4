//! Arguments of the commands that launch, resume, check and continue runs.

use super::{JsonArgs, NodesArgs, QueueAddArgs};
use camino::Utf8PathBuf;
use clap::{Args as Arguments, Subcommand, ValueEnum};
use cluster::NodeId;
use plan::ScheduleChoice;

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
    /// Lists the keys of recipes: meaning, values, default, the jobs that read it, and the effect of a change on a resume
    Keys(RecipeKeysArgs),
}

/// `vidtui stages`.
#[derive(Debug, Arguments)]
pub struct StagesArgs {
    /// The curriculum: its TOML file, or the folder of `curriculum.toml`
    pub curriculum: Utf8PathBuf,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui recipe show`.
#[derive(Debug, Arguments)]
pub struct RecipeShowArgs {
    /// A recipe file, CURRICULUM:STAGE, or a run
    #[arg(value_name = "RECIPE|RUN")]
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

/// `vidtui recipe keys`.
#[derive(Debug, Arguments)]
pub struct RecipeKeysArgs {
    /// Lists the keys whose name or meaning contains every WORD [default: all keys]
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
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
    /// A recipe file, or CURRICULUM:STAGE
    #[arg(required_unless_present = "log")]
    pub recipe: Option<String>,
    /// Changes mesh and gradient accumulation to fit N ranks. The global batch stays the same
    #[arg(long, value_name = "N")]
    pub fit: Option<usize>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Starts from these weights: a checkpoint folder, or the newest checkpoint of a run [default: the source in the stage, else
    /// random]
    #[arg(long, value_name = "PATH|RUN")]
    pub init: Option<String>,
    /// Prints what each line of the log of a command yields with the recipe's `[command]`, or with its defaults. Runs no checks
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fit_memory", "table"])]
    pub log: Option<Utf8PathBuf>,
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

/// `vidtui resume`.
#[derive(Debug, Arguments)]
pub struct ResumeArgs {
    /// The run
    pub run: String,
    /// Continues from the checkpoint of this step [default: the newest]
    #[arg(long)]
    pub step: Option<u64>,
    /// Loads only the weights. Optimizer and data order restart
    #[arg(long, conflicts_with_all = ["fresh_data", "schedule"])]
    pub weights_only: bool,
    /// Loads weights and optimizer. The data order restarts
    #[arg(long)]
    pub fresh_data: bool,
    /// Continues on this machine with N ranks [default: the nodes of the last attempt]
    #[arg(long, visible_alias = "local", value_name = "N", conflicts_with_all = ["hostfile", "include", "exclude", "slurm", "push"])]
    pub ranks: Option<usize>,
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// How the schedule of the learning rate goes on, for example with --set train.steps [default: as the recipe sets it: stretch,
    /// unless optimizer.schedule_steps is set]
    #[arg(long, value_enum, value_name = "HOW")]
    pub schedule: Option<ScheduleArg>,
    /// Changes a key of the recipe (repeatable): data, rates, schedule, batch, mesh, samples, log. The plan shows what each change
    /// does to the losses
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub then: ThenArgs,
}

/// How the schedule of the learning rate goes on in a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScheduleArg {
    /// Each step has the rate that it would have had; after the old number of steps, the rate stays at its end
    Keep,
    /// The schedule covers the new number of steps; the rate of the next step may jump
    Stretch,
    /// Warm-up and schedule begin again with the next step
    Restart,
}

impl From<ScheduleArg> for ScheduleChoice {
    fn from(arg: ScheduleArg) -> Self {
        match arg {
            ScheduleArg::Keep => Self::Keep,
            ScheduleArg::Stretch => Self::Stretch,
            ScheduleArg::Restart => Self::Restart,
        }
    }
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
