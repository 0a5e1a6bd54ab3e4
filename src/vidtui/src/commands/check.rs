//! `vidtui check`: runs and prints every check of a launch, and predicts the cost of training.

use crate::appearance;
use crate::args::CheckArgs;
use crate::checks;
use crate::command_error::CommandError;
use crate::commands::{check_log, fit_memory};
use crate::output;
use crate::workspace::{LaunchOptions, Workspace, cores};
use recipe::Flops;
use remote::Check;
use rundir::{ErrorCode, Failure};
use std::cell::Cell;

/// Runs every check of a launch and starts nothing.
pub fn run(workspace: &Workspace, args: &CheckArgs) -> Result<(), CommandError> {
    let CheckArgs { recipe, fit, how, init, .. } = args;
    if let Some(log) = &args.log {
        return check_log::run(workspace, recipe.as_deref(), &how.sets(), log, args.output.json);
    }
    let named = recipe.as_deref().unwrap_or_default();
    let mut subject = workspace.subject(named, &how.sets())?;
    let fitted = workspace.fit(subject.resolved_mut(), (*fit).into(), &how.nodes)?;
    if let Some(limit) = args.fit_memory {
        return fit_memory::fit(&subject.resolved().recipe, named, limit, args.output.json);
    }
    if args.table {
        return fit_memory::table(&subject.resolved().recipe, named, args.output.json);
    }
    let init = init.as_deref().into();
    let options = LaunchOptions { subject: &subject, ranks: how.local, nodes: &how.nodes, name: None, init, fitted };
    let recipe = &subject.resolved().recipe;
    let is_on_cpus = Cell::new(None);
    let checks = checks::all(workspace, &options, &|plan| is_on_cpus.set(Some(plan.is_on_cpus_here())), &|_| {});
    // Without a plan, `--local` shows that the recipe is for this machine.
    let finds_no_gpus = || workspace.trainer(recipe.trainer).is_ok_and(|trainer| !recipe.on_gpus(trainer.cuda));
    let cores = is_on_cpus.get().unwrap_or_else(|| how.local.is_some() && finds_no_gpus()).then(cores);
    let on_cpus = cores.map(|_| recipe.on_cpus());
    let recipe = on_cpus.as_ref().unwrap_or(recipe);
    // The cost of an external trainer is unknown, and an encode has its own facts.
    let own = recipe.job().has_model();
    let encode = crate::dataset::encode_facts(recipe);
    let failed: Vec<&Check> = checks.iter().filter(|check| check.failure().is_some()).collect();
    if args.output.json {
        output::json(&serde_json::json!({
            "recipe": named,
            "ready": failed.is_empty(),
            "checks": checks.iter().map(checks::document).collect::<Vec<_>>(),
            "mesh": recipe.mesh,
            "grad_accum": recipe.train.grad_accum,
            "cost": own.then(|| recipe.cost()),
            "overhead": own.then(|| recipe.overhead()),
            "step_flops_of_a_sample": own.then(|| Flops::step(recipe)),
        }))?;
    } else {
        let fitted = options.fitted.iter().map(|fitted| format!("{fitted}\n")).collect::<String>();
        let rows =
            if own { plan::cost_rows(recipe, cores) } else { encode.map_or_else(Vec::new, |encode| encode.rows) };
        let costs = if rows.is_empty() { String::new() } else { format!("\n{}", output::facts(&rows)) };
        output::text(&format!("{fitted}{}{costs}", checks::table(&checks, appearance::is_unicode())))?;
    }
    match failed.first().and_then(|check| Some((check.id, check.failure()?))) {
        None => Ok(()),
        Some((first, failure)) => {
            let what = format!("{named} cannot be launched");
            let why = format!("{} of {} checks failed, first '{}'", failed.len(), checks.len(), first.name());
            Err(Failure::new(ErrorCode::CheckFailed, what, why, failure.fix.clone()).into())
        }
    }
}
