//! `vidtui check`.

use crate::appearance;
use crate::args::{CheckArgs, StageArgs};
use crate::checks;
use crate::output;
use crate::refusal::Refusal;
use crate::workspace::{Wish, Workspace};
use recipe::{Flops, TrainerKind};
use rundir::Failure;

/// Makes every check that a launch makes, and starts nothing.
pub fn run(workspace: &Workspace, args: &CheckArgs) -> Result<(), Refusal> {
    let StageArgs { recipe: named, how, init } = &args.stage;
    let mut subject = workspace.subject(named, &how.sets())?;
    let fitted = workspace.fit(subject.resolved_mut(), how.fit.into(), &how.nodes)?;
    let init = init.as_deref().into();
    let wish = Wish { subject: &subject, ranks: how.local, nodes: &how.nodes, name: None, init, fitted };
    let recipe = &subject.resolved().recipe;
    let rows = checks::all(workspace, &wish);
    // What a command costs, it alone knows.
    let own = recipe.trainer == TrainerKind::Embedded;
    let bad = rows.iter().filter(|row| row.failure().is_some()).count();
    if args.output.json {
        output::json(&serde_json::json!({
            "recipe": named,
            "ready": bad == 0,
            "checks": rows,
            "mesh": recipe.mesh,
            "grad_accum": recipe.train.grad_accum,
            "cost": own.then(|| recipe.cost()),
            "step_flops_of_a_sample": own.then(|| Flops::step(recipe)),
        }))?;
    } else {
        let fitted = wish.fitted.iter().map(|fitted| format!("{fitted}\n")).collect::<String>();
        let costs = if own { format!("\n{}", output::facts(&plan::cost_rows(recipe))) } else { String::new() };
        output::text(&format!("{fitted}{}{costs}", checks::table(&rows, appearance::is_unicode())))?;
    }
    match rows.iter().find_map(|row| row.failure()) {
        None => Ok(()),
        Some(failure) => {
            let what = format!("{named} cannot be launched");
            let why = format!("{} of {} checks failed, the first is '{}'", bad, rows.len(), failure.what);
            Err(Failure::new(rundir::ErrorCode::Unclassified, what, why, failure.fix.clone()).into())
        }
    }
}
