//! Checks the adapter that training starts from.

use recipe::{Recipe, Task, TrainerKind};
use rundir::{ErrorCode, Failure};
use weights::LoraFile;

/// Checks that the adapter of `lora.from`, if a recipe has one, fits the recipe.
///
/// # Errors
/// The file cannot be read, has other layers or another rank, or the launch has no weights to apply the adapter to.
pub fn check(recipe: &Recipe, has_weights: bool) -> Result<(), Failure> {
    let trains = (recipe.trainer, recipe.task) == (TrainerKind::Embedded, Task::Train);
    let Some(path) = recipe.lora.starts_from().filter(|_| trains && recipe.lora.is_used()) else { return Ok(()) };
    if !has_weights {
        return Err(Failure::new(
            ErrorCode::NoWeights,
            format!("cannot start from the adapter {path}"),
            "the launch starts from random weights, and an adapter belongs to the weights that it was trained on",
            "name these weights with --init",
        ));
    }
    LoraFile::open(path)?.check_start(recipe)
}
