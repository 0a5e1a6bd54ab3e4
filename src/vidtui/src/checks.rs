//! Prints the checks of a launch as a table or as JSON.

use crate::adapter_file;
use crate::command_error::CommandError;
use crate::workspace::{self, LaunchOptions, Workspace};
use recipe::TrainerKind;
use remote::{Check, CheckStatus, LaunchInputs, merge_passed, run_checks};
use rundir::Failure;
use serde_json::{Value, json};

/// Runs every check of a launch and starts nothing.
pub fn all(workspace: &Workspace, options: &LaunchOptions<'_>) -> Vec<Check> {
    let recipe = &options.subject.resolved().recipe;
    let inputs = LaunchInputs {
        recipe,
        target: workspace
            .target(options.ranks, options.nodes, recipe.mesh.world(), recipe.run.spares)
            .map_err(CommandError::into_failure),
        data: match recipe.trainer {
            TrainerKind::Embedded => workspace.check_data(recipe, None),
            TrainerKind::Command => Ok(String::new()),
        },
        weights: workspace.weights_of(options).map_err(CommandError::into_failure).and_then(|weights| {
            adapter_file::check(recipe, weights.is_some())?;
            Ok(weights)
        }),
        program: workspace::program(recipe.trainer),
    };
    let plan = || workspace.plan_launch(options).map_err(CommandError::into_failure);
    merge_passed(&run_checks(inputs, plan, |logins| workspace.transports(logins), &|_| {}))
}

/// Returns a check as JSON.
pub fn document(check: &Check) -> Value {
    let mut document = match &check.status {
        CheckStatus::Passed(detail) => json!({ "result": "good", "detail": detail }),
        CheckStatus::Failed(failure) => json!({ "result": "bad", "failure": failure }),
        CheckStatus::Waived(failure) => json!({ "result": "waived", "failure": failure }),
        CheckStatus::Unknown(needs) => json!({ "result": "skipped", "needs": needs }),
    };
    document["id"] = json!(check.id);
    document["name"] = json!(check.id.name());
    if let Some(node) = &check.node {
        document["node"] = json!(node);
    }
    document
}

/// Writes the checks as a table, with the hint of each failure below it.
pub fn table(checks: &[Check], unicode: bool) -> String {
    let marks = if unicode { ["✓", "✗", "·"] } else { ["ok", "no", "--"] };
    let width = checks.iter().map(|check| check.id.name().chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (mark, detail) = match &check.status {
            CheckStatus::Passed(detail) => (marks[0], detail.clone()),
            // The reason names the node.
            CheckStatus::Failed(failure) if check.node.is_some() => (marks[1], failure.why.clone()),
            CheckStatus::Failed(failure) => (marks[1], format!("{}: {}", failure.what, failure.why)),
            CheckStatus::Waived(failure) => (marks[2], format!("waived: {}", failure.why)),
            CheckStatus::Unknown(needs) => (marks[2], format!("not checked, requires {needs}")),
        };
        text += &format!("{mark} {:<width$}  {detail}\n", check.id.name());
        if let Some(Failure { fix, .. }) = check.failure().filter(|failure| !failure.fix.is_empty()) {
            text += &format!("{:indent$}hint: {fix}\n", "", indent = mark.chars().count() + 1 + width + 2);
        }
    }
    text
}
