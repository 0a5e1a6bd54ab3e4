//! The LoRA adapters that `vidtui sample --lora` merges into the sampled weights.

use crate::command_error::CommandError;
use crate::workspace::Workspace;
use recipe::{MergedLora, Recipe};
use weights::{LoraFile, WeightsSource};

/// Adds the adapters of `--lora` to a sampling recipe, and checks that they fit its model and that their values are finite. Returns
/// a warning for each adapter that was trained on other weights or has no alpha.
pub fn add(
    workspace: &Workspace,
    recipe: &mut Recipe,
    source: &WeightsSource,
    given: &[String],
) -> Result<Vec<String>, CommandError> {
    let specs = recipe::param_specs(&recipe.model);
    let mut warnings = Vec::new();
    for text in given {
        let MergedLora { path, weight } = MergedLora::parse(text);
        // A run stands for its newest checkpoint.
        let path = WeightsSource::open(&workspace.find_weights(path.as_str())?)?.location.weights;
        let path = workspace.here.join(path);
        let lora = LoraFile::open(&path)?;
        lora.check_model(&specs)?;
        lora.check_finite()?;
        warnings.extend(lora.other_base(source));
        warnings.extend(lora.note().map(str::to_owned));
        recipe.sample.lora.push(MergedLora { path, weight }.to_string());
    }
    Ok(warnings)
}
