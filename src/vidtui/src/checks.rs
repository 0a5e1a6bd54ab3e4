//! Runs the checks of a launch, and formats them as a table, as JSON or for the launch form.

use crate::adapter_file;
use crate::command_error::CommandError;
use crate::workspace::{LaunchOptions, Workspace};
use cluster::NodeId;
use plan::LaunchPlan;
use recipe::TrainerKind;
use remote::{Check, CheckId, CheckStatus, LaunchInputs, merge_passed, run_checks};
use rundir::Failure;
use serde_json::{Value, json};
use ui::draft::{PreflightResult, PreflightRow};

/// Runs every check of a launch and starts nothing. A check that several nodes pass becomes one entry.
///
/// * `on_plan` — receives the plan, if the inputs allow one.
/// * `progress` — receives the results so far, one entry per node.
pub fn all(
    workspace: &Workspace,
    options: &LaunchOptions<'_>,
    on_plan: &dyn Fn(&LaunchPlan),
    progress: &(dyn Fn(&[Check]) + Sync),
) -> Vec<Check> {
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
        program: workspace.trainer(recipe.trainer),
    };
    let plan = || {
        let plan = workspace.plan_launch(options).map_err(CommandError::into_failure)?;
        on_plan(&plan);
        Ok(plan)
    };
    merge_passed(&run_checks(inputs, plan, |logins| workspace.transports(logins), progress))
}

/// Returns checks as the launch form shows them. A check that several nodes pass becomes one row.
///
/// * `nodes` — the nodes of the plan. Nodes without a result are pending, unless the checks are complete.
pub fn preflight(checks: &[Check], nodes: &[NodeId], is_complete: bool) -> Vec<PreflightRow> {
    let row = |check: &Check| PreflightRow {
        name: check.id.name().to_owned(),
        node: check.node.clone(),
        result: match &check.status {
            CheckStatus::Passed(detail) => PreflightResult::Passed(detail.clone()),
            CheckStatus::Failed(failure) => PreflightResult::Failed(failure.clone()),
            CheckStatus::Waived(failure) => PreflightResult::Waived(failure.clone()),
            CheckStatus::Unknown(needs) => PreflightResult::Unknown(needs.clone()),
        },
        is_waivable: is_waivable(check),
    };
    let mut rows: Vec<PreflightRow> = merge_passed(checks).iter().map(row).collect();
    if !is_complete {
        let pending = |node: &NodeId| PreflightRow {
            name: CheckId::Node.name().to_owned(),
            node: Some(node.clone()),
            result: PreflightResult::Pending,
            is_waivable: false,
        };
        let answered = |node: &&NodeId| !checks.iter().any(|check| check.node.as_ref() == Some(node));
        rows.extend(nodes.iter().filter(answered).map(pending));
    }
    rows
}

/// Returns whether the user can waive a check. The checks of inputs cannot be waived, because there is no plan without inputs.
fn is_waivable(check: &Check) -> bool {
    let is_input = check.node.is_none() && matches!(check.id, CheckId::Data | CheckId::Weights | CheckId::Trainer);
    !is_input && CheckId::waivable().any(|id| id == check.id)
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
            // The reason already names the node.
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
