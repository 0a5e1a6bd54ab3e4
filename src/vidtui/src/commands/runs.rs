//! `vidtui runs`: lists the runs.

use crate::args::JsonArgs;
use crate::command_error::CommandError;
use crate::documents::RunDocument;
use crate::output::{self, Side, note};
use crate::workspace::Workspace;
use rundir::now_s;
use runstate::RunSummary;
use ui::run_state::StateKind;

/// Lists the runs, the newest first.
pub fn run(workspace: &Workspace, args: &JsonArgs) -> Result<(), CommandError> {
    let (mut runs, unreadable) = workspace.summaries();
    runs.reverse();
    if args.json {
        let runs: Vec<_> = runs.iter().map(RunDocument::new).collect();
        return output::json(&serde_json::json!({ "runs": runs, "unreadable": unreadable }));
    }
    for failure in &unreadable {
        note!("{failure}");
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
