//! `vidtui launch`, `vidtui resume` and `vidtui next`: three ways to make a plan, one way to execute it.

use crate::args::{LaunchArgs, NextArgs, ResumeArgs, StageArgs, ThenArgs};
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::commands::typed::typed;
use crate::commands::waiting;
use crate::documents::AttemptDocument;
use crate::output::{self, note};
use crate::workspace::{LaunchOptions, Needs, Workspace};
use plan::{LaunchPlan, ResumeKind, ResumeOptions};
use rundir::{ErrorCode, Failure, RunId};
use serde_json::{Map, Value, json};
use ui::draft::LaunchDraft;

/// Starts a run.
pub fn launch(workspace: &Workspace, args: &LaunchArgs) -> Result<(), CommandError> {
    execute(workspace, &plan(workspace, args)?, &args.then, Map::new())
}

/// Parses arguments of `vidtui launch` that the user typed into the console, and returns them as a launch form.
pub fn read_typed(workspace: &Workspace, line: &str) -> Result<LaunchDraft, CommandError> {
    let example = "configs/cogvideox/5b-lora.toml --init weights --set data.index=data";
    Ok(workspace.draft(typed(line, "launch", example)?))
}

fn plan(workspace: &Workspace, args: &LaunchArgs) -> Result<LaunchPlan, CommandError> {
    let StageArgs { recipe, fit, how, init } = &args.stage;
    let mut subject = workspace.subject(recipe, &how.sets())?;
    let fitted = workspace.fit(subject.resolved_mut(), (*fit).into(), &how.nodes)?;
    let (name, init) = (args.name.as_deref(), init.as_deref().into());
    let options = LaunchOptions { subject: &subject, ranks: how.local, nodes: &how.nodes, name, init, fitted };
    workspace.plan_launch(&options)
}

/// Continues a run.
pub fn resume(workspace: &Workspace, args: &ResumeArgs) -> Result<(), CommandError> {
    execute(workspace, &plan_resume(workspace, args)?, &args.then, Map::new())
}

/// Plans a resume with arguments of `vidtui resume` that the user typed into the console, after the run.
pub fn plan_typed_resume(workspace: &Workspace, run: &RunId, line: &str) -> Result<LaunchPlan, CommandError> {
    let example = "--set optimizer.lr=1e-5 --fresh-data";
    plan_resume(workspace, &typed(&format!("{run} {line}"), "resume", example)?)
}

fn plan_resume(workspace: &Workspace, args: &ResumeArgs) -> Result<LaunchPlan, CommandError> {
    let kind = match (args.weights_only, args.fresh_data) {
        (true, _) => ResumeKind::WeightsOnly,
        (_, true) => ResumeKind::FreshData,
        _ => ResumeKind::Everything,
    };
    let (steps, sets) = split_steps(&args.set)?;
    let options = ResumeOptions { step: args.step, kind, steps, schedule: args.schedule.map(Into::into) };
    let nodes = workspace.wanted(&args.nodes);
    let run = named_run(workspace, &args.run, Needs::Resume, args.then.output.json)?;
    workspace.plan_resume(&run, args.ranks, nodes, options, &sets)
}

/// Starts the stage that follows the stage of a run.
pub fn next(workspace: &Workspace, args: &NextArgs) -> Result<(), CommandError> {
    let how = &args.how;
    let run = named_run(workspace, &args.run, Needs::Weights, args.then.output.json)?;
    let plan = workspace.plan_next(&run, args.step, how.local, &how.nodes, &how.sets(), args.fit.into())?;
    execute(workspace, &plan, &args.then, Map::new())
}

/// Splits the value of `train.steps`, which belongs to the attempt, from the other changes.
fn split_steps(sets: &[String]) -> Result<(Option<u64>, Vec<String>), CommandError> {
    let (mut steps, mut others) = (None, Vec::new());
    for set in sets {
        match set.split_once('=').map(|(key, value)| (key.trim(), value.trim().parse())) {
            Some(("train.steps", Ok(number))) => steps = Some(number),
            Some(("train.steps", Err(_))) => {
                return Err(CommandError::request(Failure::new(
                    ErrorCode::InvalidArgument,
                    format!("cannot resume with --set {set}"),
                    "the number of steps is not an integer",
                    "for example: --set train.steps=2000",
                )));
            }
            _ => others.push(set.clone()),
        }
    }
    Ok((steps, others))
}

/// Executes a plan, or prints it with `--dry-run`. `more` holds additional fields of the JSON document.
pub fn execute(
    workspace: &Workspace,
    plan: &LaunchPlan,
    then: &ThenArgs,
    more: Map<String, Value>,
) -> Result<(), CommandError> {
    if then.dry_run {
        return show(plan, then.output.json);
    }
    for warning in &plan.warnings {
        note!("warning: {warning}");
    }
    let dir = workspace.launch(plan, &|step| note!("{step}"))?;
    if !then.output.json
        && let Some((_, weights)) = plan.summary.iter().find(|(name, _)| name == "weights")
    {
        note!("weights: {weights}");
    }
    report(plan, then.output.json, more)?;
    if then.wait { waiting::until_finished(workspace, &dir) } else { Ok(()) }
}

/// Prints the ID of the run that was started, or its JSON document.
pub(super) fn report(plan: &LaunchPlan, json: bool, more: Map<String, Value>) -> Result<(), CommandError> {
    if !json {
        return output::line(plan.run.id.as_str());
    }
    let attempt = AttemptDocument::new(&plan.attempt);
    let own = [("run", json!(plan.run.id)), ("dir", json!(plan.dir.root)), ("attempt", json!(attempt))];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    output::json(&own.chain(more).collect::<Map<_, _>>())
}

/// Prints a plan: the summary, as in the launch dialog of the console, and the scripts.
pub(super) fn show(plan: &LaunchPlan, json: bool) -> Result<(), CommandError> {
    if json {
        let summary: Map<_, _> =
            plan.summary.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let scripts: Map<_, _> =
            plan.nodes.iter().map(|node| (node.node.to_string(), node.script.clone().into())).collect();
        return output::json(&json!({
            "run": plan.run.id,
            "dir": plan.dir.root,
            "attempt": AttemptDocument::new(&plan.attempt),
            "summary": summary,
            "warnings": plan.warnings,
            "scripts": scripts,
            "job_script": plan.job_script,
        }));
    }
    for warning in &plan.warnings {
        note!("warning: {warning}");
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
