//! Checks of the inputs of a launch plan: the recipe, the target, the data set, the weights and the trainer.

use plan::{Target, TrainerBinary, Weights, check_weights};
use recipe::{JobKind, Recipe, Trainable};
use rundir::{Checkpoint, Failure};
use units::counted;

use super::answer::CheckResult;
use super::check::{Check, CheckId};

/// The inputs of a launch. Each input may have failed already, so that one run of the checks shows all errors.
pub struct LaunchInputs<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The nodes.
    pub target: Result<Target, Failure>,
    /// Whether the data set fits the model. Not read for a command.
    pub data: Result<String, Failure>,
    /// The initial weights; `None` for random weights.
    pub weights: Result<Option<Weights>, Failure>,
    /// The trainer, or the supervisor of a command.
    pub program: Result<TrainerBinary, Failure>,
}

pub(super) fn checks(inputs: LaunchInputs<'_>) -> Vec<Check> {
    let LaunchInputs { recipe, target, data, weights, program } = inputs;
    let valid = format!("{}: valid", recipe.name);
    let mut checks = vec![Check::new(CheckId::Recipe, None, Ok(valid))];
    match recipe.job() {
        JobKind::Encode => checks.extend([
            Check::new(CheckId::Ranks, None, target.map(|target| ranks(&target))),
            Check::new(CheckId::Data, None, data),
            Check::new(CheckId::Trainer, None, program.map(|program| trainer(recipe, &program))),
        ]),
        JobKind::Train | JobKind::Sample => checks.extend([
            Check::new(CheckId::Mesh, None, target.and_then(|target| mesh(recipe, &target))),
            Check::new(CheckId::Data, None, data),
            Check::new(CheckId::Weights, None, weights.and_then(|weights| starting_weights(recipe, weights))),
            Check::new(CheckId::Trainer, None, program.map(|program| trainer(recipe, &program))),
        ]),
        JobKind::Command => {
            checks.push(Check::new(CheckId::Ranks, None, target.map(|target| ranks(&target))));
            // Weights that were found are checked with the plan.
            checks.extend(weights.err().map(|failure| Check::new(CheckId::Weights, None, Err(failure))));
            let program = program.map(|program| format!("{} {}, no libtorch needed", program.path, program.version));
            checks.push(Check::new(CheckId::Supervisor, None, program));
        }
    }
    checks
}

fn nodes(target: &Target) -> usize {
    target.pending_slurm().map_or(target.nodes.len(), |spec| spec.nodes)
}

fn ranks(target: &Target) -> String {
    format!("{} on {}", counted(target.slots(), "rank"), counted(nodes(target), "node"))
}

fn mesh(recipe: &Recipe, target: &Target) -> CheckResult {
    recipe.check_world(target.slots())?;
    Ok(match nodes(target) {
        1 => recipe.mesh.to_string(),
        nodes => format!("{} on {}", recipe.mesh, counted(nodes, "node")),
    })
}

fn starting_weights(recipe: &Recipe, weights: Option<Weights>) -> CheckResult {
    let Some(weights) = weights else {
        let random = format!("random, from seed {}", recipe.train.seed);
        return Ok(match &recipe.train.trainable {
            Trainable::All => random,
            // The launch plan contains the same warning.
            only => format!("{random}; only {only} is trained, all other weights stay random"),
        });
    };
    let checkpoint = Checkpoint::open(&weights.path)?;
    check_weights("cannot start from these weights", &checkpoint.manifest, recipe)?;
    Ok(match weights.lineage {
        Some(lineage) => format!("step {} of {}, complete", lineage.step, lineage.run),
        None => format!("{}, complete", weights.path),
    })
}

fn trainer(recipe: &Recipe, trainer: &TrainerBinary) -> String {
    let requested = recipe.train.device;
    let device = match (requested.on_gpus(trainer.cuda), trainer.cuda) {
        (false, _) => "on the CPU",
        (true, true) => "on GPUs",
        (true, false) => "on GPUs, but this machine has no usable GPU",
    };
    let TrainerBinary { path, version, libtorch, .. } = trainer;
    format!("{path} {version}, libtorch {libtorch}, {device} (train.device = \"{}\")", requested.name())
}
