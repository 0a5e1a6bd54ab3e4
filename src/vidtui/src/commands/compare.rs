//! `vidtui compare`: prints what the Compare screen shows of several runs.

use crate::args::CompareArgs;
use crate::command_error::CommandError;
use crate::comparison;
use crate::documents::ComparisonDocument;
use crate::output::{self, Side};
use crate::workspace::Workspace;
use rundir::{ErrorCode, Failure, RunDir};
use runstate::RunSummary;
use ui::run_state::StateKind;
use ui::screens::compare::mark;
use ui::{Difference, RecipeSetting, differences};

/// Compares runs: their progress, and the keys in which their recipes differ.
pub fn run(workspace: &Workspace, args: &CompareArgs) -> Result<(), CommandError> {
    let mut dirs: Vec<RunDir> = Vec::new();
    for name in &args.compared {
        let dir = workspace.find(name)?;
        if dirs.iter().any(|known| known.root == dir.root) {
            let (what, why) =
                (format!("cannot compare {}", dir.name()), format!("it is named twice, last as '{name}'"));
            return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, "name another run")));
        }
        dirs.push(dir);
    }
    let summaries = dirs.iter().map(|dir| Ok(workspace.summary(dir)?.0));
    let summaries = summaries.collect::<Result<Vec<RunSummary>, CommandError>>()?;
    let settings = |summary: &RunSummary| {
        RecipeSetting::with_defaults(comparison::settings(&summary.run, summary.attempt.as_ref()))
    };
    let recipes: Vec<Vec<RecipeSetting>> = summaries.iter().map(settings).collect();
    let recipes: Vec<_> = recipes.iter().map(|recipe| Some(recipe.as_slice())).collect();
    let differences = differences(&recipes);
    if args.output.json {
        return output::json(&ComparisonDocument::new(&summaries, &differences));
    }
    output::text(&format!("{}\n{}", runs_table(&summaries), keys_table(summaries.len(), &differences)))
}

fn runs_table(summaries: &[RunSummary]) -> String {
    const COLUMNS: [(&str, Side); 6] = [
        ("", Side::Left),
        ("state", Side::Left),
        ("done", Side::Right),
        ("loss", Side::Right),
        ("step time", Side::Right),
        ("run", Side::Left),
    ];
    let row = |(number, summary): (usize, &RunSummary)| {
        let loss = summary.with_loss.as_ref().filter(|sample| sample.is_training());
        let last = summary.last.as_ref().filter(|sample| sample.is_training());
        vec![
            mark(number).to_string(),
            StateKind::of(&summary.state).word().into(),
            summary.progress().short(),
            loss.map(|sample| sample.loss.map_or("nan".into(), units::number)).unwrap_or_default(),
            last.filter(|sample| !sample.is_from_log || sample.step_s > 0.0)
                .map(|sample| units::value(sample.step_s, units::Unit::Seconds))
                .unwrap_or_default(),
            summary.run.id.to_string(),
        ]
    };
    let rows: Vec<_> = summaries.iter().enumerate().map(row).collect();
    output::table(&COLUMNS, &rows)
}

fn keys_table(runs: usize, differences: &[Difference]) -> String {
    if differences.is_empty() {
        return "The recipes are equal\n".into();
    }
    let marks: Vec<String> = (0..runs).map(|number| mark(number).to_string()).collect();
    let columns: Vec<_> =
        ["key"].into_iter().chain(marks.iter().map(String::as_str)).map(|title| (title, Side::Left)).collect();
    let row = |difference: &Difference| [vec![difference.key.clone()], difference.cells("-")].concat();
    let rows: Vec<_> = differences.iter().map(row).collect();
    output::table(&columns, &rows)
}
