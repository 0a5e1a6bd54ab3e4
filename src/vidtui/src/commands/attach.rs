//! `vidtui attach`: watches a program that another process started, as a run.
//!
//! The run is a command run. On the first node, `tail` copies the log of the program into the log of rank 0 and ends with the program. Other
//! nodes wait for that end, and their supervisors record the GPUs. Metrics, charts, alerts and stops are those of every command run.

mod program_nodes;

use crate::args::{AttachArgs, NodesArgs};
use crate::command_error::CommandError;
use crate::commands::import::source;
use crate::commands::launch;
use crate::commands::typed::typed;
use crate::workspace::{Init, LaunchOptions, Subject, Workspace};
use camino::{Utf8Path, Utf8PathBuf};
use interop::Tool;
use other_trainers::steps_total;
use plan::LaunchPlan;
use program_nodes::ProgramNodes;
use recipe::{MOST_STEPS, Recipe, Resolved, literal_word, name_of};
use rundir::{Attached, Error, ErrorCode, Failure};
use serde_json::Map;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use toml::{Table, Value};

/// The bytes at the end of a log in which the number of steps is searched.
const TAIL: u64 = 256 * 1024;

/// The log or the event files that a run follows.
struct Watched {
    kind: Kind,
    /// The log, or the folder of the event files: absolute, without symbolic links.
    path: Utf8PathBuf,
    /// The files that the program writes.
    files: Vec<Utf8PathBuf>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Log,
    Events(Tool),
}

/// Starts a run that watches a program.
pub fn run(workspace: &Workspace, args: &AttachArgs) -> Result<(), CommandError> {
    launch::execute(workspace, &plan(workspace, args)?, &args.then, Map::new())
}

/// Plans a run that watches a program. `line` has the arguments of `vidtui attach`.
///
/// # Errors
/// The arguments are invalid, or there is nothing to watch.
pub fn plan_typed(workspace: &Workspace, line: &str) -> Result<LaunchPlan, CommandError> {
    plan(workspace, &typed(line, "attach", "train.log --pid 4711")?)
}

fn plan(workspace: &Workspace, args: &AttachArgs) -> Result<LaunchPlan, CommandError> {
    let watched = find(&args.path)?;
    let nodes = ProgramNodes::of(workspace, args)?;
    let (pid, process) = match &nodes {
        Some(nodes) if !nodes.first_is_here(workspace) => match args.pid {
            Some(pid) => (Some(pid), format!("{pid} on {}; the run ends with it", nodes.first)),
            None => (None, nodes.end_in_words()),
        },
        Some(nodes) if args.nodes.slurm_job.is_some() => (None, nodes.end_in_words()),
        _ => process(args, &watched)?,
    };
    let steps = match watched.kind {
        Kind::Log => args.steps.or_else(|| steps_of(&watched.path)),
        Kind::Events(_) => args.steps,
    };
    let attached = Attached { path: watched.path.clone(), pid, steps };
    let recipe = recipe(args, &watched, &attached, nodes.as_ref())?;
    let resolved = Resolved { table: recipe.to_table(), recipe, origins: BTreeMap::new() };
    let subject = Subject::Recipe(Box::new(resolved), None);
    let options = LaunchOptions {
        subject: &subject,
        ranks: Some(1),
        nodes: &NodesArgs { push: args.nodes.push, ..NodesArgs::default() },
        name: None,
        init: Init::ByStage,
        fitted: None,
    };
    let mut plan = match &nodes {
        Some(nodes) => workspace.plan_launch_on(nodes.target.clone(), &options)?,
        None => workspace.plan_launch(&options)?,
    };
    let what = match watched.kind {
        Kind::Log => "the log",
        Kind::Events(Tool::TensorBoard) => "the event files of TensorBoard in",
        Kind::Events(Tool::Wandb) => "the run of W&B in",
    };
    let steps = steps.map_or("unknown; give them with --steps".to_owned(), units::grouped);
    plan.summary = vec![
        ("run".into(), plan.run.id.to_string()),
        ("watches".into(), format!("{what} {}", watched.path)),
        ("process".into(), process),
    ];
    plan.summary.extend(nodes.map(|nodes| ("nodes".into(), nodes.in_words())));
    plan.summary.extend(args.pattern.iter().map(|pattern| ("pattern".into(), pattern.clone())));
    plan.summary.extend([("steps".into(), steps), ("stop".into(), "ends the watching; the program goes on".into())]);
    plan.run.attached = Some(attached);
    Ok(plan)
}

/// Finds the log or the event files at a path. Of several logs below a folder, it is the one that was written last.
fn find(path: &Utf8Path) -> Result<Watched, CommandError> {
    let cannot = |code, why: String, fix: &str| {
        Err(CommandError::request(Failure::new(code, format!("cannot attach to {path}"), why, fix)))
    };
    let real = match path.canonicalize_utf8() {
        Ok(real) => real,
        Err(error) => {
            return cannot(ErrorCode::NotFound, error.to_string(), "name the log of the program, or its log folder");
        }
    };
    if !real.is_file() && !real.is_dir() {
        let fix = "let the program write to a file, for example with `> train.log 2>&1`";
        return cannot(ErrorCode::InvalidArgument, "it is neither a file nor a folder".into(), fix);
    }
    let sources = source::logs_at(path).map_err(|error| Failure::from(Error::io("list", path, error)))?;
    let written = |files: &[Utf8PathBuf]| files.iter().filter_map(|file| file.metadata().ok()?.modified().ok()).max();
    if let Some(newest) = sources.into_iter().max_by_key(|source| written(&source.files)) {
        let folder = newest.files.last().and_then(|file| file.parent()).unwrap_or(&real).to_owned();
        return Ok(Watched { kind: Kind::Events(newest.tool), path: folder, files: newest.files });
    }
    if real.is_file() {
        return Ok(Watched { kind: Kind::Log, files: vec![real.clone()], path: real });
    }
    cannot(
        ErrorCode::NotFound,
        "the folder has no event files of TensorBoard and no run of W&B".into(),
        "name the file that the program writes its log to",
    )
}

/// Returns the process at whose end the run ends, if there is one, and a phrase about it: the given process, or else the oldest process that
/// has a file of the log open for writing.
fn process(args: &AttachArgs, watched: &Watched) -> Result<(Option<u32>, String), CommandError> {
    if let Some(pid) = args.pid {
        return match command_of(pid) {
            Some(command) => Ok((Some(pid), format!("{pid} {command}; the run ends with it"))),
            None => Err(CommandError::request(Failure::new(
                ErrorCode::NotFound,
                format!("cannot attach to process {pid}"),
                "there is no such process on this machine",
                "leave out --pid to find the process that writes the log, or name another one",
            ))),
        };
    }
    // A process that has exited meanwhile is none.
    let started =
        |pid: u32| i32::try_from(pid).ok().and_then(|id| supervise::start_ticks(id).ok()).map(|ticks| (ticks, pid));
    let pid = writers(&watched.files).into_iter().filter_map(started).min().map(|(_, pid)| pid);
    Ok(match pid {
        Some(pid) => (
            Some(pid),
            format!("{pid} {}; it writes the log, and the run ends with it", command_of(pid).unwrap_or_default()),
        ),
        None => (None, "unknown: no process that you can see has the log open; the run lasts until you stop it".into()),
    })
}

/// Returns the processes that have one of the files open for writing.
fn writers(files: &[Utf8PathBuf]) -> Vec<u32> {
    let writes = |pid: u32| {
        let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        open.flatten().any(|entry| {
            let is_it = fs::read_link(entry.path()).is_ok_and(|to| files.iter().any(|file| file.as_std_path() == to));
            is_it && is_for_writing(pid, &entry.file_name().to_string_lossy())
        })
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| writes(*pid)).collect()
}

/// Returns whether a descriptor is open for writing, from the access mode in its flags, which are octal.
fn is_for_writing(pid: u32, descriptor: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 0b11 != 0)
}

/// Returns the command line of a process, shortened, as one printable line; `None` if there is no such process.
fn command_of(pid: u32) -> Option<String> {
    const MOST: usize = 60;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = String::from_utf8_lossy(&line).replace('\0', " ");
    let text = units::terminal::printable_line(words.trim()).into_owned();
    let cut: String = text.chars().take(MOST).collect();
    Some(if cut.len() < text.len() { format!("{cut}…") } else { cut })
}

/// Returns the number of steps that the end of a log names.
fn steps_of(log: &Utf8Path) -> Option<u64> {
    let mut file = text_file::open_regular(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    steps_total(&bytes)
}

fn recipe(
    args: &AttachArgs,
    watched: &Watched,
    attached: &Attached,
    nodes: Option<&ProgramNodes>,
) -> Result<Recipe, CommandError> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut tail = match watched.kind {
        Kind::Log => words(&["-n", "+1", "-F", &literal_word(watched.path.as_str())]),
        Kind::Events(_) => words(&["-f", "/dev/null"]),
    };
    tail.extend(attached.pid.map(|pid| format!("--pid={pid}")));
    let run = match nodes {
        Some(nodes) => nodes.command(watched.path.as_str(), tail),
        None => [words(&["tail"]), tail].concat(),
    };
    let world = nodes.map_or(1, |nodes| i64::try_from(nodes.world).unwrap_or(1));
    let mut command = Table::from_iter([("run".to_owned(), Value::from(run))]);
    match watched.kind {
        Kind::Log => {}
        Kind::Events(Tool::TensorBoard) => drop(command.insert("tensorboard".into(), watched.path.as_str().into())),
        Kind::Events(Tool::Wandb) => drop(command.insert("wandb".into(), watched.path.as_str().into())),
    }
    if !args.pattern.is_empty() {
        let patterns = args.pattern.iter().map(|text| Table::from_iter([("match".to_owned(), text.as_str().into())]));
        command.insert("patterns".into(), Value::Array(patterns.map(Value::Table).collect()));
    }
    let own = match watched.kind {
        Kind::Log => watched.path.file_stem(),
        Kind::Events(_) => watched.path.file_name(),
    };
    let name = args.name.clone().unwrap_or_else(|| name_of(own.unwrap_or("attached")));
    let steps =
        attached.steps.map_or(MOST_STEPS, |steps| i64::try_from(steps).unwrap_or(MOST_STEPS).clamp(1, MOST_STEPS));
    let table = Table::from_iter([
        ("name".to_owned(), Value::from(name)),
        ("trainer".to_owned(), "command".into()),
        ("train".to_owned(), Table::from_iter([("steps".to_owned(), Value::Integer(steps))]).into()),
        ("mesh".to_owned(), Table::from_iter([("dp_replicate".to_owned(), Value::Integer(world))]).into()),
        ("command".to_owned(), command.into()),
    ]);
    Recipe::from_table(&table).map_err(|error| {
        let why = format!("{}: {}", error.what, error.why);
        CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot attach to {}", args.path),
            why,
            error.fix,
        ))
    })
}
