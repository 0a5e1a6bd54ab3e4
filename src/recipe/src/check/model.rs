//! The rules about the model that all families have: patches, conditions and kernels.

use super::{Advice, around, division};
use crate::{ConditionKind, Device, Fused, Recipe, VIDEO_FRAMES};

pub(super) fn whole_patches(key: &str, size: usize, recipe: &Recipe) -> Result<(), Advice> {
    multiple(key, size, "patch_size", recipe.model.patch_size)
}

pub(super) fn whole_base_patches(recipe: &Recipe) -> Result<(), Advice> {
    multiple("base_height", recipe.model.base_height, "patch_size", recipe.model.patch_size)?;
    multiple("base_width", recipe.model.base_width, "patch_size", recipe.model.patch_size)
}

fn multiple(key: &str, size: usize, of: &str, patch: usize) -> Result<(), Advice> {
    if size.is_multiple_of(patch) {
        return Ok(());
    }
    Err(Advice {
        why: format!("model.{key} {size} is not a multiple of model.{of} {patch}: {}", division(size, patch)),
        fix: format!("set model.{key} = {}", around(size, patch)),
    })
}

/// The network receives the noised latent, which has as many channels as the prediction, and the condition.
pub(super) fn channels_fit_the_condition(recipe: &Recipe) -> Result<(), Advice> {
    let (kind, input, output) = (recipe.condition.kind, recipe.model.in_channels, recipe.model.out_channels);
    let (word, wanted, of_family) =
        (kind.name(), kind.in_channels(output), recipe.model.family().conditions(&recipe.model));
    if !of_family.contains(&kind) {
        let names: Vec<_> = of_family.iter().map(|kind| format!("\"{}\"", kind.name())).collect();
        return Err(Advice {
            why: format!(
                "no network of model.family \"{}\" has condition.kind \"{word}\"",
                recipe.model.family.name().name()
            ),
            fix: format!("set condition.kind to one of {}", names.join(", ")),
        });
    }
    if input == wanted {
        return Ok(());
    }
    let sum = match kind {
        ConditionKind::None | ConditionKind::FirstFrame => "the noised latent".to_owned(),
        ConditionKind::Image => format!("{output} noised latent + {output} image latent"),
        ConditionKind::Inpaint => format!("{output} noised latent + 1 mask + {output} masked latent"),
        ConditionKind::ImageClip => format!("{output} noised latent + {VIDEO_FRAMES} mask + {output} masked latent"),
    };
    Err(Advice {
        why: format!(
            "condition.kind \"{word}\" needs {wanted} input channels ({sum}), and model.in_channels is {input}"
        ),
        fix: match recipe.model.condition() {
            Some(other) => format!("set condition.kind = \"{}\", or model.in_channels = {wanted}", other.name()),
            None => format!("set model.in_channels = {wanted}"),
        },
    })
}

pub(super) fn masks_have_probabilities(recipe: &Recipe) -> Result<(), Advice> {
    let Err(why) = recipe.condition.mask_kinds() else { return Ok(()) };
    Err(Advice {
        why: format!("condition.masks cannot be used: {why}"),
        fix: "write masks = [\"all=0.5\", \"tail=0.5\"], or omit it for VideoX-Fun's kinds".into(),
    })
}

pub(super) fn fused_kernels_have_a_gpu(recipe: &Recipe) -> Result<(), Advice> {
    if recipe.train.fused != Fused::Kernel || recipe.train.device != Device::Cpu {
        return Ok(());
    }
    Err(Advice {
        why: "train.fused \"kernel\" selects CUDA kernels, and train.device is \"cpu\"".into(),
        fix: "set train.device = \"cuda\", or train.fused = \"operators\"".into(),
    })
}
