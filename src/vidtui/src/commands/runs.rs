//! `vidtui runs`: lists the runs.

use crate::args::RunsArgs;
use crate::command_error::CommandError;
use crate::documents::RunDocument;
use crate::output::{self, Side, note};
use crate::workspace::Workspace;
use rundir::now_s;
use runstate::RunSummary;
use ui::run_state::StateKind;

/// Lists the runs, the newest first.
pub fn run(workspace: &Workspace, args: &RunsArgs) -> Result<(), CommandError> {
    let (mut runs, unreadable) = workspace.summaries();
    let has_none = runs.is_empty();
    runs.retain(|summary| is_wanted(args, summary));
    runs.reverse();
    runs.truncate(args.limit.unwrap_or(usize::MAX));
    if args.output.json {
        let runs: Vec<_> = runs.iter().map(RunDocument::new).collect();
        return output::json(&serde_json::json!({ "runs": runs, "unreadable": unreadable }));
    }
    for failure in &unreadable {
        note!("{failure}");
    }
    if runs.is_empty() && !has_none {
        return output::line("no such runs; leave out --name, --state and --limit to list all");
    }
    if runs.is_empty() {
        return output::line(&format!("no runs in {}; start one with: vidtui launch RECIPE", workspace.runs));
    }
    const COLUMNS: [(&str, Side); 6] = [
        ("run", Side::Left),
        ("state", Side::Left),
        ("done", Side::Right),
        ("loss", Side::Right),
        ("left", Side::Right),
        ("started", Side::Left),
    ];
    let rows: Vec<_> = runs.iter().map(row).collect();
    output::text(&output::table(&COLUMNS, &rows))
}

/// Returns whether a run has the name and the state that the arguments select.
fn is_wanted(args: &RunsArgs, summary: &RunSummary) -> bool {
    let run = &summary.run;
    let has_name = |part: &String| run.name.contains(part) || run.id.as_str().contains(part);
    args.name.as_ref().is_none_or(has_name)
        && (args.state.is_empty() || args.state.contains(&StateKind::of(&summary.state)))
}

fn row(summary: &RunSummary) -> Vec<String> {
    let loss = summary.with_loss.as_ref().and_then(|sample| sample.loss);
    vec![
        summary.run.id.to_string(),
        StateKind::of(&summary.state).word().into(),
        summary.progress().short(),
        loss.map(units::number).unwrap_or_default(),
        summary.eta_s.map(units::duration).unwrap_or_default(),
        units::ago(now_s(), summary.run.created_s),
    ]
}
