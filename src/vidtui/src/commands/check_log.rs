//! `vidtui check --log FILE`: prints what each line of a command's log yields.

use crate::command_error::CommandError;
use crate::output::{self, note};
use crate::workspace::Workspace;
use camino::Utf8Path;
use other_trainers::{LineYield, LogReport, ReaderOptions, report};
use recipe::{JobKind, OtherTrainer};
use rundir::{ErrorCode, Failure, FileError, open_regular};
use serde::Serialize;
use std::io::Read;
use units::terminal::printable_line;

/// The most bytes of a log that are read: its beginning decides how it is read.
const MOST: u64 = 64 << 20;
/// The most characters of a line that are printed.
const WIDTH: usize = 100;

/// The document.
#[derive(Serialize)]
struct Document<'a> {
    log: &'a Utf8Path,
    is_truncated: bool,
    lines: u64,
    recognized: Option<&'a str>,
    steps: usize,
    first_step: Option<u64>,
    last_step: Option<u64>,
    yields: &'a [LineYield],
}

/// Prints what each line yields. Without a recipe, the defaults of `[command]` apply.
pub fn run(
    workspace: &Workspace,
    named: Option<&str>,
    sets: &[String],
    path: &Utf8Path,
    is_json: bool,
) -> Result<(), CommandError> {
    let options = match named {
        Some(named) => options_of(workspace, named, sets)?,
        None => ReaderOptions::new(OtherTrainer::Auto),
    };
    let mut log = Vec::new();
    open_regular(path)
        .and_then(|file| file.take(MOST + 1).read_to_end(&mut log))
        .map_err(|error| Failure::from(FileError::io("read", path, error)))?;
    let is_truncated = log.len() as u64 > MOST;
    log.truncate(MOST as usize);
    if is_truncated {
        note!("only the first {} of {path} were read", units::short_size(MOST));
    }
    let report = report(&options, &log);
    if is_json {
        return output::json(&Document {
            log: path,
            is_truncated,
            lines: report.lines,
            recognized: report.recognized.as_deref(),
            steps: report.steps.len(),
            first_step: report.steps.first().map(|(step, _)| *step),
            last_step: report.steps.last().map(|(step, _)| *step),
            yields: &report.yields,
        });
    }
    print(&report)
}

fn options_of(workspace: &Workspace, named: &str, sets: &[String]) -> Result<ReaderOptions, CommandError> {
    let subject = workspace.subject(named, sets)?;
    let recipe = &subject.resolved().recipe;
    if recipe.job() != JobKind::Command {
        let what = format!("cannot read a log with {named}");
        let why = "it is a recipe of the embedded trainer, which writes metrics without a log";
        let fix = "name a recipe with trainer = \"command\", or no recipe";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    Ok(ReaderOptions {
        accumulation: recipe.train.grad_accum as u64,
        steps_total: recipe.train.length.steps(),
        ranks: recipe.mesh.world(),
        patterns: recipe.command.patterns.clone(),
        ..ReaderOptions::new(recipe.command.adapter)
    })
}

fn print(report: &LogReport) -> Result<(), CommandError> {
    let mut next = 1;
    for found in &report.yields {
        print_nothing(next, found.line)?;
        next = found.line + 1;
        let step = found.step.map_or(String::new(), |step| format!(", step {step}"));
        let values = in_words(&found.values);
        let text: String = printable_line(&found.text).chars().take(WIDTH).collect();
        output::line(&format!(
            "{:>6}  {}{step}{}{values}",
            found.line,
            found.kind,
            if values.is_empty() { "" } else { ": " }
        ))?;
        output::line(&format!("        {text}"))?;
    }
    print_nothing(next, report.lines + 1)?;
    output::line("")?;
    match (&report.recognized, report.steps.first(), report.steps.last()) {
        (Some(format), Some((first, _)), Some((last, values))) => {
            output::line(&format!("recognized: {format}"))?;
            let count = units::counted(report.steps.len(), "step");
            output::line(&format!("shown: {count}, from step {first} to {last}; the last has {}", in_words(values)))
        }
        _ => {
            output::line("recognized: nothing. A run would have no steps and no charts.")?;
            output::line("hint: describe the lines with the steps in [[command.patterns]]: docs/other-trainers.md")
        }
    }
}

/// Prints the range of lines from `next` to before `line`, which yield nothing.
fn print_nothing(next: u64, line: u64) -> Result<(), CommandError> {
    match line.saturating_sub(next) {
        0 => Ok(()),
        1 => output::line(&format!("{next:>6}  nothing")),
        _ => output::line(&format!("{next:>6}  to {}: nothing", line - 1)),
    }
}

fn in_words(values: &[(String, Option<f64>)]) -> String {
    let one = |(name, value): &(String, Option<f64>)| {
        format!("{} {}", printable_line(name), value.map_or("not finite".to_owned(), units::number))
    };
    values.iter().map(one).collect::<Vec<_>>().join(", ")
}
