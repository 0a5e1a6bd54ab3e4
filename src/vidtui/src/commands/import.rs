//! `vidtui import`: creates runs from logs of TensorBoard and W&B.

mod run_folder;
pub mod source;

use crate::args::ImportArgs;
use crate::command_error::CommandError;
use crate::output::{self, Side, note};
use crate::workspace::Workspace;
use camino::Utf8PathBuf;
use interop::map_metrics;
use rundir::{ErrorCode, Failure, RunDir, RunId};
use serde::Serialize;
use source::Source;
use std::collections::BTreeMap;
use units::terminal::printable_line;

/// The maximum number of logs that the error names if several cannot be imported.
const SHOWN: usize = 4;

/// The document of an import.
#[derive(Default, Serialize)]
struct Done {
    runs: Vec<NewRun>,
    skipped: Vec<Skipped>,
    failed: Vec<Failed>,
}

/// A log that was imported, or would be without `--dry-run`.
#[derive(Serialize)]
struct NewRun {
    run: Option<RunId>,
    dir: Option<Utf8PathBuf>,
    name: String,
    from: Utf8PathBuf,
    tool: &'static str,
    steps: usize,
    last_step: u64,
    values: usize,
    metrics: BTreeMap<&'static str, String>,
    others: Vec<String>,
    warnings: Vec<String>,
}

/// A log that was imported before.
#[derive(Serialize)]
struct Skipped {
    from: Utf8PathBuf,
    run: RunId,
}

/// A log that cannot be imported.
#[derive(Serialize)]
struct Failed {
    from: Utf8PathBuf,
    failure: Failure,
}

/// Creates a run from each log. The console shows and compares them like any other run.
pub fn run(workspace: &Workspace, args: &ImportArgs) -> Result<(), CommandError> {
    let sources = source::find(&args.paths)?;
    if args.name.is_some() && sources.len() > 1 {
        let why = format!("--name is for one run, and these are {} logs", sources.len());
        let fix = "leave out --name, or name one of the logs";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, "cannot use --name", why, fix)));
    }
    let imported = if args.again { BTreeMap::new() } else { imported_before(workspace) };
    let mut done = Done::default();
    for source in &sources {
        let from = source.path.clone();
        if let Some(run) = imported.get(&from) {
            done.skipped.push(Skipped { from, run: run.clone() });
            continue;
        }
        match import(workspace, args, source) {
            Ok(run) => done.runs.push(run),
            Err(failure) if sources.len() == 1 => return Err(failure.into()),
            Err(failure) => done.failed.push(Failed { from, failure }),
        }
    }
    match args.output.json {
        true => output::json(&done)?,
        false => print(&done, args.dry_run)?,
    }
    let Some(first) = done.failed.first() else { return Ok(()) };
    let what = format!("cannot import {} of {} logs", done.failed.len(), sources.len());
    let why = units::listed(&done.failed, SHOWN, |failed| failed.from.to_string());
    let fix = "see the error of each log; without --again, the same command skips the logs that were imported";
    Err(Failure::new(first.failure.code, what, why, fix).into())
}

/// Returns the runs that were imported before, by the paths of their logs.
fn imported_before(workspace: &Workspace) -> BTreeMap<Utf8PathBuf, RunId> {
    let runs = runstate::list_runs(&workspace.runs).into_iter().flatten().filter_map(|dir| dir.read_run().ok());
    runs.filter_map(|run| Some((run.imported?.from, run.id))).collect()
}

/// Reads a log and creates a run from it. Creates nothing with `--dry-run`.
fn import(workspace: &Workspace, args: &ImportArgs, source: &Source) -> Result<NewRun, Failure> {
    let log = source.read()?;
    // A document has them.
    if !args.output.json {
        log.warnings.iter().for_each(|warning| note!("warning: {warning}"));
    }
    let mapped = map_metrics(&log);
    let (Some(first), Some(last)) = (mapped.samples.first(), mapped.samples.last()) else {
        let why = "it has no numbers that were logged at steps";
        let fix = "name another log; pictures and texts alone are not imported";
        return Err(Failure::new(ErrorCode::NotFound, format!("cannot import {}", source.path), why, fix));
    };
    let name = args.name.clone().or_else(|| log.name.clone()).unwrap_or_else(|| source.name.clone());
    let name = printable_line(&name).into_owned();
    // The id has the time when training began, so that the run is listed among the runs of that time.
    let began_s = if first.t > 0.0 { first.t } else { rundir::now_s() };
    let id = run_folder::new_id(&workspace.runs, &name, began_s);
    let run = run_folder::new_run(source, &log, id, &name, began_s, last.step)?;
    let dir = RunDir::of(&workspace.runs, &run.id);
    if !args.dry_run {
        run_folder::write(&dir, &run, &mapped, last.t, &workspace.user())?;
    }
    Ok(NewRun {
        run: (!args.dry_run).then_some(run.id),
        dir: (!args.dry_run).then_some(dir.root),
        name,
        from: source.path.clone(),
        tool: source.tool.name(),
        steps: mapped.samples.len(),
        last_step: last.step,
        values: log.len(),
        metrics: mapped.metrics,
        others: mapped.others,
        warnings: log.warnings,
    })
}

/// Prints the details of a single new run, or a table of several runs, and then the other logs.
fn print(done: &Done, is_dry_run: bool) -> Result<(), CommandError> {
    match (&done.runs[..], done.skipped.len() + done.failed.len()) {
        ([], _) => {}
        ([only @ NewRun { run: Some(id), .. }], 0) => print_details(id, only)?,
        (runs, _) => {
            const COLUMNS: [(&str, Side); 5] = [
                ("name", Side::Left),
                ("steps", Side::Right),
                ("series", Side::Right),
                ("last step", Side::Right),
                ("run", Side::Left),
            ];
            let shown = if is_dry_run { COLUMNS.len() - 1 } else { COLUMNS.len() };
            output::text(&output::table(&COLUMNS[..shown], &runs.iter().map(row).collect::<Vec<_>>()))?;
        }
    }
    for Skipped { from, run } in &done.skipped {
        output::line(&format!("{from} is imported already, as {run}"))?;
    }
    if !done.skipped.is_empty() {
        output::line("use --again to import a log as another run")?;
    }
    for Failed { failure, .. } in &done.failed {
        note!("{failure}");
    }
    Ok(())
}

fn row(new: &NewRun) -> Vec<String> {
    vec![
        new.name.clone(),
        units::grouped(new.steps as u64),
        units::grouped(new.series() as u64),
        units::grouped(new.last_step),
        new.run.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}

fn print_details(id: &RunId, new: &NewRun) -> Result<(), CommandError> {
    output::line(id.as_str())?;
    let of = |(metric, series): (&&str, &String)| match *metric == series {
        true => series.clone(),
        false => format!("{metric} from {series}"),
    };
    let metrics: Vec<String> = new.metrics.iter().map(of).collect();
    output::line(&format!(
        "{} values of {} series, up to step {}",
        units::grouped(new.values as u64),
        new.series(),
        units::grouped(new.last_step)
    ))?;
    if !metrics.is_empty() {
        output::line(&format!("metrics: {}", metrics.join(", ")))?;
    }
    if !new.others.is_empty() {
        let others = new.others.join(", ");
        output::line(&format!("others, for `vidtui export {id} --metric NAME --out FILE`: {others}"))?;
    }
    Ok(())
}

impl NewRun {
    fn series(&self) -> usize {
        self.metrics.len() + self.others.len()
    }
}
