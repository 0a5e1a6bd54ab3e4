//! `vidtui data score`: measures the clips of a data set, and writes the scores into a table.

use crate::args::DataScoreArgs;
use crate::command_error::CommandError;
use crate::commands::data_check::source_request;
use crate::commands::refuse_existing;
use crate::commands::transfer::{Measure, Step, Transfer};
use crate::output::{self, note};
use dataset::score::{ScoreRequest, refuse_format, score};
use rundir::{ErrorCode, Failure};

/// The maximum number of videos without scores that are named. `--json` lists all of them.
const NAMED: usize = 10;

/// Scores the clips, and prints the range and distribution of each score.
pub fn run(args: &DataScoreArgs) -> Result<(), CommandError> {
    let DataScoreArgs { source, out, listed, force, output } = args;
    refuse_existing(out, *force)?;
    refuse_format(out).map_err(CommandError::request)?;
    if listed.template.is_some() || listed.max_characters.is_some() {
        let option = if listed.template.is_some() { "--caption" } else { "--max-characters" };
        let why = "the table has the captions of the source";
        let fix = format!("leave it out, and use it in vidtui data check {out}");
        return Err(CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot use {option}"),
            why,
            fix,
        )));
    }
    let request = ScoreRequest::new(source_request(source, listed), out.clone());
    let mut transfer = Transfer::begin();
    let done = score(&request, &mut |at| {
        transfer.step(Step {
            phase: "scoring",
            done: at.done as u64,
            total: at.total as u64,
            measure: Measure::Items("video"),
        })
    });
    transfer.end();
    let report = done?;
    if output.json {
        return output::json(&report);
    }
    output::text(&report.text())?;
    for (path, why) in report.failures.iter().take(NAMED) {
        note!("no scores: {path}: {why}");
    }
    if report.failures.len() > NAMED {
        note!("no scores: {} more videos; --json lists all", report.failures.len() - NAMED);
    }
    if !report.kept_columns.is_empty() {
        note!("kept from {source}: {}", report.kept_columns.join(", "));
    }
    let known =
        if report.cached == 0 { String::new() } else { format!(", {} known from an earlier call", report.cached) };
    note!("{} in {}{known}", units::counted(report.rows, "row"), units::counted(report.videos, "video"));
    output::line(out.as_str())
}
