//! `vidtui import`: creates a run from a log of TensorBoard or W&B.

use crate::args::ImportArgs;
use crate::command_error::CommandError;
use crate::output;
use crate::workspace::Workspace;
use camino::{Utf8Path, Utf8PathBuf};
use cluster::Placement;
use interop::{Log, Mapped, map_metrics, tensorboard, wandb};
use recipe::{Mesh, Recipe};
use rundir::{
    Attempt, AttemptWhy, Error, ErrorCode, Event, EventKind, Failure, Imported, Run, RunDir, RunId, SCHEMA, StartFrom,
    WholeFolder, write_atomic,
};
use std::fs;
use std::hash::{BuildHasher, RandomState};

/// The number of levels of folders below the given folder that are searched for logs.
const DEPTH: usize = 3;
/// The maximum number of logs that the error names if there are several.
const SHOWN: usize = 4;

/// Creates a run from a log. The console shows and compares it like any other run.
pub fn run(workspace: &Workspace, args: &ImportArgs) -> Result<(), CommandError> {
    let source = find(&args.path)?;
    let log = source.read()?;
    log.warnings.iter().for_each(|warning| eprintln!("warning: {}", printable(warning)));
    let mapped = map_metrics(&log);
    let (Some(first), Some(last)) = (mapped.samples.first(), mapped.samples.last()) else {
        let why = "it has no numbers that were logged at steps";
        let fix = "name another log; pictures and texts alone are not imported";
        return Err(Failure::new(ErrorCode::NotFound, format!("cannot import {}", args.path), why, fix).into());
    };
    let name = printable(&args.name.clone().or_else(|| log.name.clone()).unwrap_or_else(|| source.name()));
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    // The id has the time when training began, so that the run is listed among the runs of that time.
    let began_s = if first.t > 0.0 { first.t } else { rundir::now_s() };
    let id = RunId::new(began_s, &name, random);
    let recipe = recipe(&id, last.step)?;
    let from = fs::canonicalize(&args.path).ok().and_then(|path| Utf8PathBuf::try_from(path).ok());
    let run = Run {
        schema: SCHEMA,
        id: id.clone(),
        name: name.clone(),
        curriculum: None,
        stage: None,
        created_s: began_s,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: String::new(),
        libtorch: String::new(),
        start: StartFrom::Random,
        lineage: None,
        imported: Some(Imported {
            from: from.unwrap_or_else(|| args.path.clone()),
            tool: source.tool().into(),
            config: log.config.clone(),
        }),
        recipe,
    };
    let dir = RunDir::of(&workspace.runs, &id);
    write(&dir, &run, &mapped, last.t, &workspace.user())?;
    if args.output.json {
        return output::json(&serde_json::json!({
            "run": id,
            "dir": dir.root,
            "tool": source.tool(),
            "steps": last.step,
            "values": log.len(),
            "metrics": mapped.metrics,
            "others": mapped.others,
            "warnings": log.warnings,
        }));
    }
    output::line(id.as_str())?;
    let of = |(metric, series): (&&str, &String)| match *metric == series {
        true => series.clone(),
        false => format!("{metric} from {series}"),
    };
    let metrics: Vec<String> = mapped.metrics.iter().map(of).collect();
    let series = mapped.metrics.len() + mapped.others.len();
    output::line(&format!(
        "{} values of {series} series, up to step {}",
        units::grouped(log.len() as u64),
        units::grouped(last.step)
    ))?;
    if !metrics.is_empty() {
        output::line(&printable(&format!("metrics: {}", metrics.join(", "))))?;
    }
    if !mapped.others.is_empty() {
        let others = mapped.others.join(", ");
        output::line(&printable(&format!("others, for `vidtui export {id} --metric NAME`: {others}")))?;
    }
    Ok(())
}

/// Replaces control characters: names in a log must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A log of another tool.
#[derive(Debug, PartialEq)]
enum Source {
    /// Event files of one run.
    TensorBoard(Vec<Utf8PathBuf>),
    /// A W&B log.
    Wandb(Utf8PathBuf),
}

impl Source {
    fn tool(&self) -> &'static str {
        match self {
            Self::TensorBoard(_) => "TensorBoard",
            Self::Wandb(_) => "W&B",
        }
    }

    fn read(&self) -> Result<Log, Failure> {
        let log = match self {
            Self::TensorBoard(files) => tensorboard::read_files(files),
            Self::Wandb(file) => wandb::read_file(file),
        };
        Ok(log?)
    }

    /// Returns the folder or file that a user names to import this log.
    fn path(&self) -> &Utf8Path {
        match self {
            Self::TensorBoard(files) => files.first().and_then(|file| file.parent()).unwrap_or("".into()),
            Self::Wandb(file) => file,
        }
    }

    /// Returns a name for a run whose log has none.
    fn name(&self) -> String {
        let folder = match self {
            Self::TensorBoard(_) => self.path().file_name(),
            Self::Wandb(file) => file.file_stem(),
        };
        folder.unwrap_or("imported").to_owned()
    }
}

/// Finds the log at a path: a log file, or a folder with exactly one log.
fn find(path: &Utf8Path) -> Result<Source, CommandError> {
    let refuse = |code, why: String, fix: String| {
        Err(CommandError::request(Failure::new(code, format!("cannot import {path}"), why, fix)))
    };
    let mut found = Vec::new();
    if path.is_file() {
        if path.extension() == Some("wandb") {
            found.push(Source::Wandb(path.to_owned()));
        } else if path.file_name().is_some_and(|name| name.contains("tfevents")) {
            found.push(Source::TensorBoard(vec![path.to_owned()]));
        }
    } else {
        logs_in(path, DEPTH, &mut found).map_err(|error| Failure::from(Error::io("list", path, error)))?;
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => refuse(
            ErrorCode::NotFound,
            "it is neither a TensorBoard event file (events.out.tfevents…) nor a W&B log (run-….wandb), nor a folder with one".into(),
            "name the folder of the old run".into(),
        ),
        n => {
            let shown: Vec<&str> = found.iter().take(SHOWN).map(|source| source.path().as_str()).collect();
            let more = if n > SHOWN { format!(" and {} more", n - SHOWN) } else { String::new() };
            refuse(ErrorCode::AmbiguousName, format!("it has the logs of {n} runs: {}{more}", shown.join(", ")), "name one of them".into())
        }
    }
}

/// Adds the logs in a folder, and those in folders up to `depth` levels below it.
fn logs_in(folder: &Utf8Path, depth: usize, found: &mut Vec<Source>) -> std::io::Result<()> {
    let events = tensorboard::event_files(folder)?;
    if !events.is_empty() {
        found.push(Source::TensorBoard(events));
    }
    found.extend(wandb::run_files(folder)?.into_iter().map(Source::Wandb));
    if depth == 0 {
        return Ok(());
    }
    // A folder whose name is not UTF-8 cannot be named in an argument either. `latest-run` of W&B is a link to another folder.
    let folders = folder.read_dir_utf8()?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut below: Vec<Utf8PathBuf> = folders.map(|entry| entry.into_path()).collect();
    below.sort();
    for folder in below {
        if let Err(error) = logs_in(&folder, depth - 1, found) {
            eprintln!("warning: {folder} is left out: {error}");
        }
    }
    Ok(())
}

/// Returns the recipe of an imported run. It has only the number of steps, so that no run can be started from it.
fn recipe(id: &RunId, steps: u64) -> Result<toml::Table, Failure> {
    let mut table = toml::Table::new();
    let mut section = |name: &str, key: &str, value: toml::Value| {
        let section = table.entry(name).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(section) = section.as_table_mut() {
            section.insert(key.into(), value);
        }
    };
    section("command", "run", toml::Value::Array(vec!["imported".into()]));
    section("train", "steps", toml::Value::Integer(i64::try_from(steps.max(1)).unwrap_or(i64::MAX)));
    table.insert("name".into(), id.name().into());
    table.insert("trainer".into(), "command".into());
    let recipe = Recipe::from_table(&table).map_err(|error| {
        let why = format!("{}: {}", error.what, error.why);
        Failure::new(ErrorCode::InvalidRecipe, "cannot import the run", why, error.fix)
    })?;
    Ok(recipe.to_table())
}

/// Writes the folder of the run, which gets its name only when it is complete.
fn write(dir: &RunDir, run: &Run, mapped: &Mapped, ended_s: f64, by: &str) -> Result<(), Failure> {
    let folder = WholeFolder::beside(&dir.root);
    folder.prepare()?;
    let part = RunDir::new(folder.dir());
    let mut lines = Vec::new();
    for sample in &mapped.samples {
        serde_json::to_writer(&mut lines, sample).map_err(|error| Error::io("write", &part.metrics(), error.into()))?;
        lines.push(b'\n');
    }
    write_atomic(&part.metrics(), &lines)?;
    let attempt = Attempt {
        schema: SCHEMA,
        number: 1,
        why: AttemptWhy::Launch,
        by: by.into(),
        started_s: run.created_s,
        start_step: 0,
        start: StartFrom::Random,
        asked_step: None,
        steps: None,
        checkpoint: None,
        waived: Vec::new(),
        mesh: Mesh { dp_replicate: 1, dp_shard: 1, tp: 1 },
        placement: Placement { ranks: Vec::new() },
        logins: Vec::new(),
        spares: Vec::new(),
        slurm: None,
    };
    let create = |path: &Utf8Path| fs::create_dir_all(path).map_err(|error| Error::io("create", path, error));
    create(&part.attempt_dir(1))?;
    part.write_attempt(&attempt)?;
    let mut events = Vec::new();
    let [first, last] = [mapped.samples.first(), mapped.samples.last()].map(|sample| sample.map(|sample| sample.step));
    for (t, step, kind) in
        [(run.created_s, first, EventKind::Started { world: 1 }), (ended_s, last, EventKind::Finished)]
    {
        let event = Event { step, ..Event::new(t, 1, Some(0), kind) };
        serde_json::to_writer(&mut events, &event).map_err(|error| Error::io("write", &part.events(), error.into()))?;
        events.push(b'\n');
    }
    write_atomic(&part.events(), &events)?;
    part.write_run(run)?;
    Ok(folder.commit()?)
}
