//! Checks the adapter that training starts from.

use camino::Utf8Path;
use recipe::{JobKind, Recipe};
use rundir::{ErrorCode, Failure};
use weights::LoraFile;

/// Checks that the adapter of `lora.from`, if a recipe has one, fits the recipe and that its values are finite.
///
/// # Errors
/// The file cannot be read, has other layers, another rank or values that are not finite, or the launch has no weights to apply the
/// adapter to.
pub fn check(recipe: &Recipe, has_weights: bool) -> Result<(), Failure> {
    let Some(path) = path(recipe) else { return Ok(()) };
    if !has_weights {
        return Err(Failure::new(
            ErrorCode::NoWeights,
            format!("cannot start from the adapter {path}"),
            "the launch starts from random weights, and an adapter belongs to the weights that it was trained on",
            "name these weights with --init",
        ));
    }
    let lora = LoraFile::open(path)?;
    lora.check_start(recipe)?;
    lora.check_finite()
}

/// Returns a note about the adapter of `lora.from`, such as one without an alpha. `None` if there is no note, or if the adapter
/// cannot be read, which [`check`] reports.
pub fn note(recipe: &Recipe) -> Option<String> {
    LoraFile::open(path(recipe)?).ok()?.note().map(str::to_owned)
}

/// Returns the path of the adapter that training starts from.
fn path(recipe: &Recipe) -> Option<&Utf8Path> {
    recipe.lora.starts_from().filter(|_| recipe.job() == JobKind::Train && recipe.lora.is_used())
}
