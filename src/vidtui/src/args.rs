//! The command line: commands, arguments and flags. The doc comments are the text of `--help`.

mod alerts;
mod blank;
mod data;
mod export;
#[cfg(test)]
mod hints_tests;
mod interop;
mod launch;
mod nodes;
mod queue;
mod read;
mod sample;
mod weights;

use crate::simulate::Simulation;
use crate::workspace::LATEST;
use camino::Utf8PathBuf;
use clap::{Args as Arguments, Parser, Subcommand};
use ui::run_state::StateKind;

pub use alerts::*;
pub use blank::refuse_blank;
pub use data::*;
pub use export::*;
pub use interop::*;
pub use launch::*;
pub use nodes::*;
pub use queue::*;
pub use read::read;
pub use sample::*;
pub use weights::*;

/// Encodes videos, trains video diffusion transformers and makes videos with them, on one or many nodes.
#[derive(Debug, Parser)]
#[command(
    name = "vidtui",
    version = env!("VIDTUI_VERSION"),
    after_help = "Without a command, vidtui opens the console.\n\
                  RUN is the id of a run, a unique name, prefix or suffix of an id, or `latest`:\n\
                  the newest run, or the newest that has what a command needs: weights, charts,\n\
                  training or encoding to resume. Commands that only read a run use `latest`\n\
                  by default. They print which run it is.\n\
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

    /// Shows N simulated nodes with eight GPUs each, to try the screens without a cluster. N@SPEED sends their samples
    /// SPEED times as often
    #[arg(long, value_name = "N")]
    pub simulate: Option<Simulation>,

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
    /// Continues even if this check fails (repeatable). What a run cannot start without, such as its data, is refused all the same
    #[arg(long, value_name = "CHECK", value_parser = waivable)]
    pub waive: Vec<String>,
    /// Whether these options replace the options before the command, even if all are absent. The launch form sets this, because it
    /// shows every option of the launch
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
    /// Shows recipes, and the keys that a recipe can have
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
    Sample(Box<SampleArgs>),
    /// Lists the runs, newest first. Writes notes and tags, deletes and restores runs
    Runs(RunsArgs),
    /// Shows a run: state, progress, loss, newest checkpoint, findings
    Status(StatusArgs),
    /// Compares runs: state, progress, loss, step time, and the keys in which their recipes differ
    Compare(CompareArgs),
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
    /// Writes the charts of a run to an SVG or PNG file, or its metrics to a CSV file or for TensorBoard
    Export(ExportArgs),
    /// Writes a page (HTML) about a run that needs no other file: charts, recipe, events, failures, samples
    Report(ReportArgs),
    /// Watches a program that was started without vidtui, by its log, TensorBoard folder or W&B run
    Attach(AttachArgs),
    /// Makes runs from TensorBoard folders and offline runs of W&B, to look at them and compare them
    Import(ImportArgs),
    /// Prepares data sets
    #[command(subcommand)]
    Data(DataCommand),
    /// Downloads a model or a data set from the Hugging Face Hub and prints its folder
    Fetch(FetchArgs),
    /// Converts weights to a checkpoint, a diffusers model or a LoRA adapter
    Convert(ConvertArgs),
    /// Shows the family, size and completeness of weights. With a second path, shows the differences
    Inspect(InspectArgs),
    /// Shows the settings of the console and their origins: theme, glyphs, mouse, keys
    Config(ConfigArgs),
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
    /// Returns whether the command prints JSON.
    pub fn is_json(&self) -> bool {
        match self {
            Self::Stages(args) => args.output.json,
            Self::Recipe(RecipeCommand::Show(args)) => args.output.json,
            Self::Recipe(RecipeCommand::Keys(args)) => args.output.json,
            Self::Check(args) => args.output.json,
            Self::Launch(args) => args.then.output.json,
            Self::Sample(args) => args.output.json,
            Self::Resume(args) => args.then.output.json,
            Self::Next(args) => args.then.output.json,
            Self::Runs(args) => args.is_json(),
            Self::Status(args) => args.output.json,
            Self::Compare(args) => args.output.json,
            Self::Stacks(args) => args.output.json,
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
            Self::Data(DataCommand::Cut(args)) => args.output.json,
            Self::Data(DataCommand::Score(args)) => args.output.json,
            Self::Data(DataCommand::Export(args)) => args.output.json,
            Self::Data(DataCommand::Import(args)) => args.output.json,
            Self::Data(DataCommand::Buckets(args)) => args.output.json,
            Self::Data(DataCommand::Show(args)) => args.output.json,
            Self::Data(DataCommand::Verify(args)) => args.output.json,
            Self::Data(DataCommand::Prune(args)) => args.output.json,
            Self::Fetch(args) => args.output.json,
            Self::Data(DataCommand::Encode(args)) => args.then.output.json,
            Self::Convert(args) => args.output.json,
            Self::Inspect(args) => args.output.json,
            Self::Attach(args) => args.then.output.json,
            Self::Import(args) => args.output.json,
            Self::Config(args) => args.output.json,
            Self::Export(_)
            | Self::Report(_)
            | Self::Replay(_)
            | Self::Supervise(_)
            | Self::Job(_)
            | Self::Completions { .. } => false,
        }
    }
}

/// Machine-readable output.
#[derive(Clone, Debug, Default, Arguments)]
pub struct JsonArgs {
    /// Prints one JSON document. Failures are JSON too
    #[arg(long)]
    pub json: bool,
}

/// `vidtui config`.
#[derive(Debug, Arguments)]
pub struct ConfigArgs {
    /// Prints a file with all settings, to edit: the defaults are comments
    #[arg(long, conflicts_with = "json")]
    pub all: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui runs`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunsArgs {
    #[command(subcommand)]
    pub command: Option<RunsCommand>,
    /// Lists only runs with this text in their name or id
    #[arg(long, value_name = "PART")]
    pub name: Option<String>,
    /// Lists only runs in this state, such as running, finished or failed (repeatable)
    #[arg(long, value_name = "STATE", value_parser = run_state)]
    pub state: Vec<StateKind>,
    /// Lists only runs whose note has this tag: a word with `#` (repeatable)
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Lists the N newest of these runs [default: all]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui runs …`.
#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// Prints the note of a run, or replaces it: one line, whose words with `#` are tags
    Note {
        /// The run
        run: String,
        /// The note; "" removes it [default: print it]
        text: Vec<String>,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Moves runs into the trash; asks for confirmation. Refused for a run that is active or that another one needs
    Delete {
        /// The runs
        #[arg(required = true, value_name = "RUN")]
        chosen: Vec<String>,
        /// Does not ask for confirmation
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Moves a deleted run back
    Restore {
        /// The run
        run: String,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Lists the deleted runs. Each is removed for good after 7 days
    Trash {
        /// Removes all of them for good now; asks for confirmation
        #[arg(long)]
        empty: bool,
        /// Does not ask for confirmation
        #[arg(long, requires = "empty")]
        yes: bool,
        #[command(flatten)]
        output: JsonArgs,
    },
}

impl RunsArgs {
    /// Returns whether the command prints JSON.
    pub fn is_json(&self) -> bool {
        match &self.command {
            None => self.output.json,
            Some(
                RunsCommand::Note { output, .. }
                | RunsCommand::Delete { output, .. }
                | RunsCommand::Restore { output, .. }
                | RunsCommand::Trash { output, .. },
            ) => output.json,
        }
    }
}

/// Reads the word of a state.
fn run_state(word: &str) -> Result<StateKind, String> {
    let found = StateKind::ALL.into_iter().find(|state| state.word() == word);
    found.ok_or_else(|| format!("the states are {}", StateKind::ALL.map(StateKind::word).join(", ")))
}

/// A run and the output format.
#[derive(Debug, Arguments)]
pub struct RunArgs {
    /// The run
    #[arg(default_value = LATEST)]
    pub run: String,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui status`.
#[derive(Debug, Arguments)]
pub struct StatusArgs {
    /// The run
    #[arg(default_value = LATEST)]
    pub run: String,
    /// Prints one line for a status bar: state, steps, loss, time left
    #[arg(long, conflicts_with = "json")]
    pub oneline: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui compare`.
#[derive(Debug, Arguments)]
pub struct CompareArgs {
    /// The runs, two to eight
    #[arg(value_name = "RUN", required = true, num_args = 2..=ui::MOST_COMPARED)]
    pub compared: Vec<String>,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui checkpoints`.
#[derive(Debug, Arguments)]
pub struct CheckpointsArgs {
    /// The run
    #[arg(default_value = LATEST)]
    pub run: String,
    /// The action on the checkpoint of STEP [default: list all checkpoints]
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_of_ranks_names_the_default_of_the_command() {
        let help = |path: &[&str]| {
            let root = Args::command();
            let command = path.iter().fold(&root, |at, name| at.find_subcommand(name).unwrap());
            let local = command.get_arguments().find(|arg| arg.get_id() == "local").unwrap();
            local.get_help().unwrap().to_string()
        };
        assert!(help(&["data", "encode"]).ends_with("[default: 1]"));
        assert!(help(&["launch"]).ends_with("[default: the size of the mesh in the recipe]"));
    }

    #[test]
    fn the_version_has_the_target_that_was_built() {
        let shown = Args::command().render_version();
        let (version, build) = shown.trim_end().strip_prefix("vidtui ").unwrap().split_once(" (").unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let target = build.strip_suffix(')').unwrap().rsplit(", ").next().unwrap();
        assert!(target.starts_with(std::env::consts::ARCH), "{shown}");
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
    fn the_help_names_the_days_of_the_trash() {
        let root = Args::command();
        let trash = root.find_subcommand("runs").unwrap().find_subcommand("trash").unwrap();
        let about = trash.get_about().unwrap().to_string();
        assert!(about.contains(&format!("after {} days", rundir::TRASH_DAYS)), "{about}");
    }

    #[test]
    fn filters_of_runs_are_refused_with_a_command() {
        let is_valid = |line: &str| Args::try_parse_from(std::iter::once("vidtui").chain(line.split(' '))).is_ok();
        for line in [
            "runs --tag baseline --limit 2 --json",
            "runs delete k7f2 q2xw --yes --json",
            "runs note k7f2 a #b",
            "runs trash",
        ] {
            assert!(is_valid(line), "{line}");
        }
        for line in ["runs --tag baseline delete k7f2", "runs delete", "runs trash --yes", "runs restore"] {
            assert!(!is_valid(line), "{line}");
        }
    }

    #[test]
    fn two_to_eight_runs_are_compared() {
        let is_valid = |count: usize| {
            let runs = (0..count).map(|number| format!("run-{number}"));
            let words = ["vidtui", "compare"].map(str::to_owned).into_iter().chain(runs);
            Args::try_parse_from(words).is_ok()
        };
        assert_eq!([0, 1, 2, 8, 9].map(is_valid), [false, false, true, true, false]);
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
            "data encode videos --model model --out data --mode stride --stride 3",
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
            "data encode videos --model model --out data --fps 8 --stride 3",
            "data buckets videos --recipe recipe.toml --fps 8 --stride 3",
        ] {
            assert!(!is_used(line), "{line}");
        }
    }
}
