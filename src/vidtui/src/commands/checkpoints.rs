//! `vidtui checkpoints`: lists the checkpoints of a run; pins, unpins or deletes one.

use crate::args::{CheckpointAction, CheckpointsArgs};
use crate::command_error::CommandError;
use crate::commands::kill_prompt::confirmed;
use crate::commands::named_run;
use crate::documents::CheckpointDocument;
use crate::output::{self, Side, note};
use crate::workspace::{Needs, Workspace};
use plan::{CheckpointDelete, UseOf};
use rundir::{CheckpointEntry, ErrorCode, Failure, RunDir, now_s};
use serde_json::json;

/// Lists the checkpoints of a run, complete or not, or changes one.
pub fn run(workspace: &Workspace, args: &CheckpointsArgs) -> Result<(), CommandError> {
    let dir = named_run(workspace, &args.run, Needs::Training, args.output.json)?;
    match (args.action, args.step) {
        (Some(action), Some(step)) => change(workspace, args, &dir, action, step),
        _ => list(args, &dir),
    }
}

fn change(
    workspace: &Workspace,
    args: &CheckpointsArgs,
    dir: &RunDir,
    action: CheckpointAction,
    step: u64,
) -> Result<(), CommandError> {
    let done = match action {
        CheckpointAction::Pin | CheckpointAction::Unpin => {
            let is_pinned = action == CheckpointAction::Pin;
            workspace.pin_checkpoint(dir, step, is_pinned)?;
            if is_pinned { "pinned" } else { "unpinned" }
        }
        CheckpointAction::Delete => {
            let plan = workspace.plan_delete(dir, step)?;
            if !args.yes {
                let what = format!("cannot delete the checkpoint of step {step} of {}", plan.run);
                note!("{}", consequences(&plan));
                if !confirmed(&what, "Delete it?", "add --yes")? {
                    return Err(
                        Failure::new(ErrorCode::Cancelled, "Deletion cancelled", "nothing was removed", "").into()
                    );
                }
            }
            workspace.delete_checkpoint(&plan)?;
            "deleted"
        }
    };
    match args.output.json {
        true => output::json(&json!({ "run": dir.name(), "step": step, "done": done })),
        false => output::line(&format!("the checkpoint of step {step} is {done}")),
    }
}

/// Describes what a deletion removes and which runs need it, one fact per line.
fn consequences(plan: &CheckpointDelete) -> String {
    let mut lines = vec![plan.checkpoint.dir().to_string()];
    match plan.falls_back_to {
        Some(step) => lines.push(format!("the newest complete checkpoint; a resume then continues from step {step}")),
        None if plan.is_newest => lines.push("the only complete checkpoint; a resume then starts at step 0".into()),
        None => {}
    }
    lines.extend(plan.uses.iter().map(|user| match user.of {
        UseOf::Start => format!("{} started from it", user.run),
        UseOf::Base => format!("{} has adapters that need these base weights", user.run),
    }));
    lines.join("\n")
}

fn list(args: &CheckpointsArgs, dir: &RunDir) -> Result<(), CommandError> {
    let entries = other_trainers::checkpoints(dir)?;
    if args.output.json {
        let documents: Vec<_> = entries.iter().map(CheckpointDocument::new).collect();
        return output::json(&json!({ "run": dir.name(), "checkpoints": documents }));
    }
    if entries.is_empty() {
        return output::line(&format!("{} has no checkpoints yet", dir.name()));
    }
    let row = |entry: &CheckpointEntry| {
        let step = entry.step().to_string();
        match entry.summary() {
            Ok(c) => {
                let saved = units::ago(now_s(), c.saved_s);
                let saved = if c.is_pinned { format!("{saved}, pinned") } else { saved };
                vec![step, units::short_size(c.bytes), saved, c.dir.to_string()]
            }
            Err((how, why)) => vec![step, how.into(), String::new(), why.into()],
        }
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    output::text(&output::table(
        &[("step", Side::Right), ("size", Side::Right), ("saved", Side::Left), ("folder", Side::Left)],
        &rows,
    ))
}
