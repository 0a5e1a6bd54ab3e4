//! `vidtui launch`, `vidtui resume` and `vidtui next`: three ways to a plan, one way to carry it out.

use crate::args::{LaunchArgs, NextArgs, ResumeArgs, StageArgs, ThenArgs};
use crate::commands::waiting;
use crate::output;
use crate::refusal::Refusal;
use crate::workspace::{LaunchOptions, Workspace};
use plan::{LaunchPlan, ResumeKind, ResumeOptions};
use rundir::Failure;

/// Starts a run.
pub fn launch(workspace: &Workspace, args: &LaunchArgs) -> Result<(), Refusal> {
    let StageArgs { recipe, how, init } = &args.stage;
    let mut subject = workspace.subject(recipe, &how.sets())?;
    let fitted = workspace.fit(subject.resolved_mut(), how.fit.into(), &how.nodes)?;
    let (name, init) = (args.name.as_deref(), init.as_deref().into());
    let options = LaunchOptions { subject: &subject, ranks: how.local, nodes: &how.nodes, name, init, fitted };
    let plan = workspace.plan_launch(&options)?;
    carry_out(workspace, &plan, &args.then)
}

/// Continues a run.
pub fn resume(workspace: &Workspace, args: &ResumeArgs) -> Result<(), Refusal> {
    let kind = match (args.weights_only, args.fresh_data) {
        (true, _) => ResumeKind::WeightsOnly,
        (_, true) => ResumeKind::FreshData,
        _ => ResumeKind::Everything,
    };
    let options = ResumeOptions { step: args.step, kind, steps: steps(&args.set)? };
    let plan = workspace.plan_resume(&workspace.find(&args.run)?, args.ranks, &args.nodes, options)?;
    carry_out(workspace, &plan, &args.then)
}

/// Starts the stage that follows a run's.
pub fn next(workspace: &Workspace, args: &NextArgs) -> Result<(), Refusal> {
    let how = &args.how;
    let plan = workspace.plan_next(&workspace.find(&args.run)?, how.local, &how.nodes, &how.sets(), how.fit.into())?;
    carry_out(workspace, &plan, &args.then)
}

/// The one key that a resume may change: how long the run is to be.
fn steps(sets: &[String]) -> Result<Option<u64>, Refusal> {
    let refuse = |set: &str, why: &str| {
        let fix =
            "a resume can only train longer: --set train.steps=N; for other settings launch a new run with --init RUN";
        Err(Refusal::request(Failure::new(
            rundir::ErrorCode::Unclassified,
            format!("cannot resume with --set {set}"),
            why,
            fix,
        )))
    };
    let mut steps = None;
    for set in sets {
        match set.split_once('=').map(|(key, value)| (key.trim(), value.trim().parse())) {
            Some(("train.steps", Ok(number))) => steps = Some(number),
            Some(("train.steps", Err(_))) => return refuse(set, "the number of steps is not a whole number"),
            _ => return refuse(set, "the run keeps the recipe that it was launched with"),
        }
    }
    Ok(steps)
}

fn carry_out(workspace: &Workspace, plan: &LaunchPlan, then: &ThenArgs) -> Result<(), Refusal> {
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

/// Shows a plan: what the dialog of the console shows, and the scripts that would run.
fn show(plan: &LaunchPlan, json: bool) -> Result<(), Refusal> {
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
