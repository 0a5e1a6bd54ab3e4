//! `vidtui launch`, `vidtui resume` and `vidtui next`: three ways to make a plan, one way to execute it.

use crate::args::{LaunchArgs, NextArgs, ResumeArgs, StageArgs, ThenArgs};
use crate::command_error::CommandError;
use crate::commands::waiting;
use crate::output;
use crate::workspace::{LaunchOptions, Workspace};
use plan::{LaunchPlan, ResumeKind, ResumeOptions};
use rundir::{ErrorCode, Failure};

/// Starts a run.
pub fn launch(workspace: &Workspace, args: &LaunchArgs) -> Result<(), CommandError> {
    let StageArgs { recipe, how, init } = &args.stage;
    let mut subject = workspace.subject(recipe, &how.sets())?;
    let fitted = workspace.fit(subject.resolved_mut(), how.fit.into(), &how.nodes)?;
    let (name, init) = (args.name.as_deref(), init.as_deref().into());
    let options = LaunchOptions { subject: &subject, ranks: how.local, nodes: &how.nodes, name, init, fitted };
    let plan = workspace.plan_launch(&options)?;
    execute(workspace, &plan, &args.then)
}

/// Continues a run.
pub fn resume(workspace: &Workspace, args: &ResumeArgs) -> Result<(), CommandError> {
    let kind = match (args.weights_only, args.fresh_data) {
        (true, _) => ResumeKind::WeightsOnly,
        (_, true) => ResumeKind::FreshData,
        _ => ResumeKind::Everything,
    };
    let options = ResumeOptions { step: args.step, kind, steps: steps(&args.set)? };
    let plan = workspace.plan_resume(&workspace.find(&args.run)?, args.ranks, &args.nodes, options)?;
    execute(workspace, &plan, &args.then)
}

/// Starts the stage after the stage of a run.
pub fn next(workspace: &Workspace, args: &NextArgs) -> Result<(), CommandError> {
    let how = &args.how;
    let plan = workspace.plan_next(&workspace.find(&args.run)?, how.local, &how.nodes, &how.sets(), how.fit.into())?;
    execute(workspace, &plan, &args.then)
}

/// Returns the number of steps, the only key that a resume can change.
fn steps(sets: &[String]) -> Result<Option<u64>, CommandError> {
    let invalid = |set: &str, why: &str| {
        let fix = "change train.steps only; for other keys, launch a new run with --init RUN";
        Err(CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot resume with --set {set}"),
            why,
            fix,
        )))
    };
    let mut steps = None;
    for set in sets {
        match set.split_once('=').map(|(key, value)| (key.trim(), value.trim().parse())) {
            Some(("train.steps", Ok(number))) => steps = Some(number),
            Some(("train.steps", Err(_))) => return invalid(set, "the number of steps is not an integer"),
            _ => return invalid(set, "a resumed run keeps its recipe"),
        }
    }
    Ok(steps)
}

/// Starts a plan, or shows it.
pub fn execute(workspace: &Workspace, plan: &LaunchPlan, then: &ThenArgs) -> Result<(), CommandError> {
    if then.dry_run {
        return show(plan, then.output.json);
    }
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    let dir = workspace.launch(plan, &|step| eprintln!("{step}"))?;
    if then.output.json {
        let (run, attempt) = (&plan.run.id, plan.attempt.number);
        output::json(&serde_json::json!({ "run": run, "attempt": attempt, "dir": dir.root }))?;
    } else {
        output::line(plan.run.id.as_str())?;
    }
    if then.wait { waiting::until_finished(workspace, &dir) } else { Ok(()) }
}

/// Shows a plan: the summary, as in the launch dialog of the console, and the scripts.
pub(super) fn show(plan: &LaunchPlan, json: bool) -> Result<(), CommandError> {
    if json {
        let summary: serde_json::Map<_, _> =
            plan.summary.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let scripts: serde_json::Map<_, _> =
            plan.nodes.iter().map(|node| (node.node.to_string(), node.script.clone().into())).collect();
        return output::json(&serde_json::json!({
            "run": plan.run.id,
            "attempt": plan.attempt.number,
            "dir": plan.dir.root,
            "summary": summary,
            "warnings": plan.warnings,
            "scripts": scripts,
            "job_script": plan.job_script,
        }));
    }
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    output::text(&output::facts(&plan.summary))?;
    if let Some(script) = &plan.job_script {
        output::text(&format!("\n# {}\n{script}", plan.dir.job_script(plan.attempt.number)))?;
    }
    for node in &plan.nodes {
        output::text(&format!("\n# on {}\n{}", node.node, node.script))?;
    }
    Ok(())
}
