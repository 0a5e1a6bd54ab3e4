//! The checks that a launch makes, one after the other, so that nothing is started that cannot be finished.

use crate::dataset;
use crate::refusal::Refusal;
use crate::workspace::{self, Wish, Workspace};
use plan::Target;
use recipe::{Recipe, TrainerKind};
use remote::Check;
use rundir::{Checkpoint, Failure};
use serde::Serialize;

/// One row of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What was looked at.
    pub what: String,
    /// What was found.
    #[serde(flatten)]
    pub found: Found,
}

/// What a check found.
#[derive(Debug, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Found {
    /// It holds; with what.
    Good {
        /// In a few words.
        detail: String,
    },
    /// It does not hold.
    Bad(Failure),
    /// It does not hold, and somebody has said that it need not.
    Waived(Failure),
    /// It was not looked at, because something before it does not hold.
    Skipped {
        /// What it needs.
        needs: String,
    },
}

/// Makes every check on a launch; each row stands for itself, so that one look shows all that is wrong.
pub fn all(workspace: &Workspace, wish: &Wish<'_>) -> Vec<Row> {
    let recipe = &wish.subject.resolved().recipe;
    let place = workspace.place(wish.ranks, wish.nodes, recipe.mesh.world()).map_err(Refusal::into_failure);
    let known = good("recipe", format!("{}: every key known, every rule holds", recipe.name));
    let mut rows = match recipe.trainer {
        TrainerKind::Embedded => embedded(workspace, wish, recipe, place),
        TrainerKind::Command => vec![row("ranks", place.map(|place| ranks(&place))), row("supervisor", supervisor())],
    };
    rows.insert(0, known);
    if rows.iter().all(Row::holds) {
        // A launch looks at some things once more; they have their row.
        let new = |what: &str| rows.iter().all(|known| known.what != what);
        let machine = machine(workspace, wish, &new);
        rows.extend(machine);
    } else {
        let needs = "the checks above".to_owned();
        rows.push(Row { what: "disk and run folder".into(), found: Found::Skipped { needs } });
    }
    rows
}

/// What vidtui's own trainer needs.
fn embedded(workspace: &Workspace, wish: &Wish<'_>, recipe: &Recipe, place: Result<Target, Failure>) -> Vec<Row> {
    vec![
        row("mesh", place.and_then(|place| mesh(recipe, &place))),
        row("data", dataset::check(recipe)),
        row("weights", weights(workspace, wish)),
        row(
            "trainer",
            remote::find_trainer().map(|trainer| {
                let wanted = recipe.train.device;
                let device = match (wanted.on_gpus(trainer.cuda), trainer.cuda) {
                    (false, _) => "on the CPU",
                    (true, true) => "on GPUs",
                    (true, false) => "on GPUs, which it does not find on this machine",
                };
                let (path, version, libtorch) = (trainer.path, trainer.version, trainer.libtorch);
                format!("{path} {version}, libtorch {libtorch}, {device} (train.device = \"{}\")", wanted.name())
            }),
        ),
    ]
}

fn ranks(place: &Target) -> String {
    let nodes = place.pending_slurm().map_or(place.nodes.len(), |spec| spec.nodes);
    format!("{} on {}", units::counted(place.slots(), "rank"), units::counted(nodes, "node"))
}

fn supervisor() -> Result<String, Failure> {
    let program = workspace::program(TrainerKind::Command)?;
    Ok(format!("{} {}, no libtorch needed", program.path, program.version))
}

fn mesh(recipe: &Recipe, place: &Target) -> Result<String, Failure> {
    let (mesh, ranks) = (&recipe.mesh, place.slots());
    recipe.check_world(ranks).map_err(|error| workspace::recipe_failure(error).into_failure())?;
    let of_nodes = match place.pending_slurm().map_or(place.nodes.len(), |spec| spec.nodes) {
        1 => String::new(),
        nodes => format!(" on {}", units::counted(nodes, "node")),
    };
    Ok(format!("{mesh}{of_nodes}"))
}

fn weights(workspace: &Workspace, wish: &Wish<'_>) -> Result<String, Failure> {
    let recipe = &wish.subject.resolved().recipe;
    let Some(weights) = workspace.weights_of(wish).map_err(Refusal::into_failure)? else {
        return Ok(format!("random, from seed {}", recipe.train.seed));
    };
    let checkpoint = Checkpoint::open(&weights.path)?;
    plan::check_weights("cannot start from these weights", &checkpoint.manifest, recipe)?;
    Ok(match weights.lineage {
        Some(lineage) => format!("step {} of {}, complete", lineage.step, lineage.run),
        None => format!("{}, complete", weights.path),
    })
}

/// What only a whole plan can be asked: disk, the run folder, and whatever else the node says.
fn machine(workspace: &Workspace, wish: &Wish<'_>, new: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let plan = match workspace.plan_launch(wish) {
        Ok(plan) => plan,
        Err(refusal) => return vec![Row { what: "plan".into(), found: Found::Bad(refusal.into_failure()) }],
    };
    let starts = plan.summary.iter().find(|(name, _)| plan.is_command() && name == "command");
    let starts = starts.map(|(_, command)| good("starts", command.clone()));
    match workspace.transports(&plan.attempt.logins) {
        Ok(mut nodes) => by_check(&remote::checks(&plan, &mut nodes), new).into_iter().chain(starts).collect(),
        Err(failure) => vec![Row { what: "node".into(), found: Found::Bad(failure) }],
    }
}

/// A row for each check: what holds on many nodes is said once, what does not hold is said for each.
pub fn by_check(checks: &[Check], new: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let of_all = checks.iter().filter(|check| check.node.is_none() && new(&check.what));
    let mut rows: Vec<Row> = of_all.map(|check| row(&check.what, check.result.clone())).collect();
    let mut names: Vec<&str> = Vec::new();
    for check in checks.iter().filter(|check| check.node.is_some()) {
        if !names.contains(&check.what.as_str()) {
            names.push(&check.what);
        }
    }
    for name in names {
        let of_nodes = || checks.iter().filter(|check| check.node.is_some() && check.what == name);
        let good: Vec<&str> = of_nodes().filter_map(|check| check.result.as_deref().ok()).collect();
        if let Some(first) = good.first() {
            let all = if good.iter().all(|said| said == first) { "" } else { "first: " };
            let many = units::counted(good.len(), "node");
            let detail = if good.len() == 1 { (*first).to_owned() } else { format!("{many}, {all}{first}") };
            rows.push(Row { what: name.to_owned(), found: Found::Good { detail } });
        }
        for check in of_nodes() {
            if let Err(failure) = &check.result {
                // The row says what was looked at, and the reason names the node.
                let failure = Failure { what: name.to_owned(), ..failure.clone() };
                let found = if check.waived { Found::Waived(failure) } else { Found::Bad(failure) };
                rows.push(Row { what: name.to_owned(), found });
            }
        }
    }
    rows
}

impl Row {
    /// Whether it holds.
    pub fn holds(&self) -> bool {
        matches!(self.found, Found::Good { .. })
    }

    /// Why it does not hold.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.found {
            Found::Bad(failure) => Some(failure),
            _ => None,
        }
    }
}

fn good(what: &str, detail: String) -> Row {
    Row { what: what.into(), found: Found::Good { detail } }
}

fn row(what: &str, result: Result<String, Failure>) -> Row {
    match result {
        Ok(detail) => good(what, detail),
        Err(failure) => Row { what: what.into(), found: Found::Bad(failure) },
    }
}

/// Shows the table, each failure with its hint below.
pub fn table(rows: &[Row], unicode: bool) -> String {
    let marks = if unicode { ["✓", "✗", "·"] } else { ["ok", "no", "--"] };
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let (mark, said) = match &row.found {
            Found::Good { detail } => (marks[0], detail.clone()),
            Found::Bad(failure) if failure.what == row.what => (marks[1], failure.why.clone()),
            Found::Bad(failure) => (marks[1], format!("{}: {}", failure.what, failure.why)),
            Found::Waived(failure) => (marks[2], format!("waived: {}", failure.why)),
            Found::Skipped { needs } => (marks[2], format!("not looked at, it needs {needs}")),
        };
        text += &format!("{mark} {:<width$}  {said}\n", row.what);
        if let Found::Bad(Failure { fix, .. }) = &row.found
            && !fix.is_empty()
        {
            text += &format!("{:indent$}hint: {fix}\n", "", indent = mark.chars().count() + 1 + width + 2);
        }
    }
    text
}
