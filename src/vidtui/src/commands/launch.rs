//! `vidtui launch`, `vidtui resume` and `vidtui next`: three ways to a plan, one way to carry it out.

use crate::args::{LaunchArgs, NextArgs, ResumeArgs, with_secrets};
use crate::commands::waiting;
use crate::desk::{Desk, Wish};
use crate::output;
use crate::refusal::Refusal;
use plan::{LaunchPlan, ResumeKind, ResumeOptions};
use rundir::Failure;

/// What is done with a plan.
struct Then {
    dry_run: bool,
    wait: bool,
    json: bool,
}

/// Starts a run.
pub fn launch(desk: &Desk, args: &LaunchArgs) -> Result<(), Refusal> {
    let mut subject = desk.subject(&args.recipe, &with_secrets(&args.set, args.secrets.as_ref()))?;
    let fitted = desk.fit(subject.resolved_mut(), args.fit.into(), &args.nodes)?;
    let (name, init) = (args.name.as_deref(), args.init.as_deref().into());
    let wish = Wish { subject: &subject, ranks: args.local, nodes: &args.nodes, name, init, fitted };
    let plan = desk.plan_launch(&wish)?;
    carry_out(desk, &plan, &Then { dry_run: args.dry_run, wait: args.wait, json: args.output.json })
}

/// Continues a run.
pub fn resume(desk: &Desk, args: &ResumeArgs) -> Result<(), Refusal> {
    let kind = match (args.weights_only, args.fresh_data) {
        (true, _) => ResumeKind::WeightsOnly,
        (_, true) => ResumeKind::FreshData,
        _ => ResumeKind::Everything,
    };
    let options = ResumeOptions { step: args.step, kind, steps: steps(&args.set)? };
    let plan = desk.plan_resume(&desk.find(&args.run)?, args.ranks, &args.nodes, options)?;
    carry_out(desk, &plan, &Then { dry_run: args.dry_run, wait: args.wait, json: args.output.json })
}

/// Starts the stage that follows a run's.
pub fn next(desk: &Desk, args: &NextArgs) -> Result<(), Refusal> {
    let sets = with_secrets(&args.set, args.secrets.as_ref());
    let plan = desk.plan_next(&desk.find(&args.run)?, args.local, &args.nodes, &sets, args.fit.into())?;
    carry_out(desk, &plan, &Then { dry_run: args.dry_run, wait: args.wait, json: args.output.json })
}

/// The one key that a resume may change: how long the run is to be.
fn steps(sets: &[String]) -> Result<Option<u64>, Refusal> {
    let refuse = |set: &str, why: &str| {
        let fix =
            "a resume can only train longer: --set train.steps=N; for other settings launch a new run with --init RUN";
        Err(Refusal::request(Failure::new(format!("cannot resume with --set {set}"), why, fix)))
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

fn carry_out(desk: &Desk, plan: &LaunchPlan, then: &Then) -> Result<(), Refusal> {
    if then.dry_run {
        return show(plan, then.json);
    }
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    let dir = desk.launch(plan, &|step| eprintln!("{step}"))?;
    if then.json {
        let (run, attempt) = (&plan.run.id, plan.attempt.number);
        output::json(&serde_json::json!({ "run": run, "attempt": attempt, "dir": dir.root }))?;
    } else {
        output::line(plan.run.id.as_str())?;
    }
    if then.wait { waiting::until_finished(desk, &dir) } else { Ok(()) }
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
