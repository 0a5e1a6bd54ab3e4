//! `vidtui checkpoints`: the checkpoints of a run.

use crate::args::RunArgs;
use crate::command_error::CommandError;
use crate::commands::report_latest;
use crate::documents::CheckpointDocument;
use crate::output::{self, Side};
use crate::workspace::Workspace;
use rundir::{CheckpointEntry, now_s};

/// Lists the checkpoints of a run, complete or not.
pub fn run(workspace: &Workspace, args: &RunArgs) -> Result<(), CommandError> {
    let dir = workspace.find_with_weights(&args.run)?;
    report_latest(workspace, &args.run, &dir.root);
    let entries = other_trainers::checkpoints(&dir)?;
    if args.output.json {
        let documents: Vec<_> = entries.iter().map(CheckpointDocument::new).collect();
        return output::json(&serde_json::json!({ "run": dir.name(), "checkpoints": documents }));
    }
    if entries.is_empty() {
        return output::line(&format!("{} has no checkpoints yet", dir.name()));
    }
    let row = |entry: &CheckpointEntry| {
        let step = entry.step().to_string();
        match entry.summary() {
            Ok(c) => vec![step, units::short_size(c.bytes), units::ago(now_s(), c.saved_s), c.dir.to_string()],
            Err((how, why)) => vec![step, how.into(), String::new(), why.into()],
        }
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    output::text(&output::table(
        &[("step", Side::Right), ("size", Side::Right), ("saved", Side::Left), ("folder", Side::Left)],
        &rows,
    ))
}
