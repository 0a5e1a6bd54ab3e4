//! `vidtui export`: writes the curves of a run as a picture, as a table or as TensorBoard's event files.

use crate::args::ExportArgs;
use crate::chart_export;
use crate::command_error::CommandError;
use crate::commands::{named_run, refuse_existing, report_latest};
use crate::comparison;
use crate::curves::{self, Column, Group, Measured, View};
use crate::output::{self, note};
use crate::workspace::{Needs, Workspace};
use camino::Utf8Path;
use recipe::Task;
use rundir::{Chart, Error, ErrorCode, Failure, RunDir};
use std::collections::BTreeSet;
use std::fs;
use ui::MOST_COMPARED;
use ui::series::Axis;

/// The default charts of a picture.
pub fn overview(task: Task) -> &'static [Chart] {
    match task {
        Task::Train => &[Chart::Loss, Chart::LearningRate, Chart::GradNorm, Chart::StepTime],
        Task::Encode => &[Chart::ItemRate, Chart::Queue, Chart::ItemBytes, Chart::FailedItems],
        Task::Sample => &[Chart::StepTime],
    }
}

/// Writes the curves of a run as a picture, as a table or as TensorBoard's event files.
pub fn run(workspace: &Workspace, args: &ExportArgs) -> Result<(), CommandError> {
    let to = &args.out;
    let cannot = |why: String, fix: &str| {
        CommandError::request(Failure::new(ErrorCode::InvalidArgument, format!("cannot export to {to}"), why, fix))
    };
    if args.tensorboard {
        return tensorboard(workspace, args);
    }
    let is_table = match to.extension() {
        Some("csv") => true,
        Some("svg" | "png") => false,
        _ => {
            let why = "the file name does not end in a known format";
            return Err(cannot(
                why.into(),
                "end it in .svg or .png for a picture, or in .csv for a table; for a folder of TensorBoard, add --tensorboard",
            ));
        }
    };
    if is_table && (args.smooth.is_some() || args.log || args.x.is_some() || !args.chart.is_empty()) {
        let why = "--chart, --x, --smooth and --log are for pictures";
        return Err(cannot(why.into(), "leave them out, or end the file name in .svg or .png"));
    }
    let view = view(args)?;
    refuse_existing(to, args.force)?;
    if !args.with.is_empty() {
        if is_table {
            let fix = "export each run to a table of its own without --with, or end the file name in .svg or .png";
            return Err(cannot("a table has one run, and --with adds others".into(), fix));
        }
        return compare(workspace, args, view);
    }
    let named = named(workspace, args)?;
    let groups = |measured: &Measured| -> Vec<Group> {
        let charts = args.chart.iter().map(|&chart| Group::of_chart(chart.into(), measured));
        charts.chain(named.iter().cloned().map(Group::of_column)).collect()
    };
    // `latest` is the newest run with these values: after a training run was sampled, still the training run.
    let has_all = |dir: &RunDir| {
        let measured = curves::read(dir).ok();
        measured.is_some_and(|measured| groups(&measured).iter().all(|group| group.has_values(&measured)))
    };
    let dir = workspace.find_that(&args.run, has_all)?;
    report_latest(&args.run, &dir.root, false);
    let (summary, _) = workspace.summary(&dir)?;
    let measured = curves::read(&summary.dir)?;
    let mut groups = groups(&measured);
    if !groups.is_empty() && !groups.iter().any(|group| group.has_values(&measured)) {
        let names: Vec<&str> = groups.iter().map(|group| group.label()).collect();
        let what = format!("cannot export {} of {}", names.join(", "), summary.run.id);
        let fix = "choose a run that has values, see `vidtui runs`; without --chart and --metric, the charts of the run are written";
        return Err(Failure::new(ErrorCode::NotFound, what, "the run has logged no values of it", fix).into());
    }
    if is_table {
        let columns = if named.is_empty() { Column::all(&measured) } else { named };
        rundir::write_atomic(to, curves::csv(&measured, &columns, view.window).as_bytes())?;
    } else {
        if groups.is_empty() {
            let charts = overview(summary.run.task()).iter();
            groups = charts.map(|chart| Group::of_chart(*chart, &measured)).collect();
        }
        let marks = curves::read_marks(&summary, &measured)?;
        chart_export::write(&curves::chart(&groups, view, &summary, &measured, &marks), to)?;
    }
    output::line(to.as_str())
}

/// Writes TensorBoard's event files of a run.
fn tensorboard(workspace: &Workspace, args: &ExportArgs) -> Result<(), CommandError> {
    let to = &args.out;
    let refuse =
        |code, what: String, why: &str, fix: &str| Err(CommandError::request(Failure::new(code, what, why, fix)));
    let selects = !args.chart.is_empty() || !args.metric.is_empty() || !args.with.is_empty();
    let draws = args.x.is_some() || args.smooth.is_some() || args.log;
    if selects || draws || args.from.is_some() || args.to.is_some() {
        let why =
            "--tensorboard writes all metrics of one run, and cannot be combined with options that select or draw";
        let fix = "leave out --chart, --metric, --with, --x, --from, --to, --smooth and --log";
        return refuse(ErrorCode::InvalidArgument, format!("cannot export to {to}"), why, fix);
    }
    if to.symlink_metadata().is_ok() && !to.is_dir() {
        let fix = "choose another name for the folder of the event files";
        return refuse(ErrorCode::AlreadyExists, format!("cannot write {to}"), "it exists, and is not a folder", fix);
    }
    let is_empty = |to: &Utf8Path| fs::read_dir(to).map(|mut entries| entries.next().is_none());
    if to.is_dir() && !args.force && !is_empty(to).map_err(|source| Error::io("list", to, source))? {
        let fix = "choose another folder, or replace its event files with --force";
        return refuse(ErrorCode::AlreadyExists, format!("cannot write {to}"), "the folder is not empty", fix);
    }
    let dir = workspace.find_that(&args.run, |dir| dir.metrics().exists() && !is_imported(dir))?;
    report_latest(&args.run, &dir.root, false);
    let absolute = workspace.here.join(to);
    let real = absolute.ancestors().find_map(|path| path.canonicalize_utf8().ok());
    if real.is_some_and(|to| to.ancestors().any(|folder| folder.join("run.toml").exists())) {
        let why = "it is a folder of a run, which may write event files of its own there";
        return refuse(ErrorCode::InvalidArgument, format!("cannot export to {to}"), why, "choose another folder");
    }
    let missing = supervise::export_tensorboard(&dir, to)?;
    if let Some(Failure { what, why, fix, .. }) = missing.first() {
        note!("{} left out: {what}: {why}; {fix}", units::counted(missing.len(), "sample"));
    }
    output::line(to.as_str())
}

fn is_imported(dir: &RunDir) -> bool {
    dir.read_run().is_ok_and(|run| run.imported.is_some())
}

/// Writes the curves of several runs as one picture.
fn compare(workspace: &Workspace, args: &ExportArgs, view: View) -> Result<(), CommandError> {
    if args.with.len() >= MOST_COMPARED {
        let why = format!("{} runs are named; at most {MOST_COMPARED} can be compared", args.with.len() + 1);
        let what = format!("cannot export to {}", args.out);
        let fix = "leave out some of --with";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    let names = [&args.run].into_iter().chain(&args.with);
    let read = |name: &String| comparison::read(workspace, &named_run(workspace, name, Needs::Nothing, false)?);
    let runs = names.map(read).collect::<Result<Vec<_>, _>>()?;
    let has = |name: &str| runs.iter().any(|run| run.measured.others().contains(name));
    // One panel for each metric: a panel of several would have a curve for each metric of each run.
    let charts: Vec<Chart> = args.chart.iter().map(|&chart| chart.into()).collect();
    let has_power = runs.iter().any(|run| run.measured.node_points.iter().any(|point| point.power_w.is_some()));
    let of_charts = charts.iter().flat_map(|chart| chart.metrics(has_power)).map(|metric| metric.name.to_owned());
    let mut metrics: Vec<String> = of_charts.chain(args.metric.iter().cloned()).collect();
    let mut seen = BTreeSet::new();
    metrics.retain(|name| seen.insert(name.clone()));
    if metrics.is_empty() {
        metrics.push(Chart::Loss.info(true).name.to_owned());
    }
    let columns = metrics.iter().map(|name| Column::named(name, has)).collect::<Result<Vec<_>, _>>()?;
    chart_export::write(&comparison::chart(&columns, view, &runs), &args.out)?;
    output::line(args.out.as_str())
}

/// Returns the columns that the arguments name. The names of an imported run's columns are only in the lines of its metrics.
fn named(workspace: &Workspace, args: &ExportArgs) -> Result<Vec<Column>, CommandError> {
    let mut others = BTreeSet::new();
    if !args.metric.is_empty()
        && let Ok(dir) = workspace.find(&args.run)
    {
        others = curves::read(&dir)?.others();
    }
    args.metric.iter().map(|name| Column::named(name, |name| others.contains(name))).collect()
}

fn view(args: &ExportArgs) -> Result<View, CommandError> {
    let invalid = |what: String, why: &str, fix: &str| {
        Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)))
    };
    let (from, to) = (args.from.unwrap_or(f64::NEG_INFINITY), args.to.unwrap_or(f64::INFINITY));
    if from.is_nan() || to.is_nan() || from > to {
        let what = format!("cannot export from {from} to {to}");
        return invalid(what, "--from is greater than --to", "exchange the two values");
    }
    if let Some(weight) = args.smooth.filter(|weight| !(0.0..1.0).contains(weight)) {
        let what = format!("cannot smooth with weight {weight}");
        return invalid(what, "the weight must be at least 0 and less than 1", "for example: --smooth 0.9");
    }
    Ok(View {
        x: args.x.map_or(Axis::Step, Into::into),
        window: (args.from.is_some() || args.to.is_some()).then_some((from, to)),
        smoothing: args.smooth,
        log_y: args.log,
    })
}
