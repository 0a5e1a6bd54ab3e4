//! The memory of a batch on the device of a rank.

use super::memory::F32;
use crate::{LossWeighting, Recipe};

/// Returns the bytes of one sample: the inputs in the compute dtype and the target in float32. Leaves out single numbers, such as the
/// timestep.
pub(super) fn of_sample(recipe: &Recipe) -> u64 {
    let m = &recipe.model;
    let pixels = (m.padded_frames() * m.latent_height * m.latent_width) as u64;
    // The input channels are those of the noised latent and of the conditions.
    let inputs = pixels * m.in_channels as u64 + (m.text_tokens() * m.text_dim) as u64;
    // The target is the velocity. The error of the clean latent also needs the offset of that latent.
    let targets = if recipe.loss.weighting == LossWeighting::Snr { 2 } else { 1 };
    recipe.train.dtype.bytes() * inputs + F32 * targets * pixels * m.out_channels as u64
}

#[cfg(test)]
mod tests {
    use crate::cost::tests::recipe;

    #[test]
    fn the_current_batch_and_the_next_one_are_planned() {
        let batches = |sets: &[&str]| {
            let base = ["train.dtype=bfloat16", "model.text_dim=4", "mesh.dp_shard=1", "train.global_batch=4"];
            recipe(&[&base[..], sets].concat()).cost().memory.batches
        };
        // Three frames of 16 channels and 8 × 8 pixels, and 16 text tokens.
        let (latent, text) = (3 * 16 * 64, 16 * 4);
        let four = |inputs: u64, targets: u64| 2 * 4 * (2 * inputs + 4 * targets);
        assert_eq!(batches(&[]), four(latent + text, latent));
        assert_eq!(batches(&["train.grad_accum=4"]), batches(&[]) / 4);
        assert_eq!(batches(&["loss.weighting=snr"]), four(latent + text, 2 * latent));
        let image = ["condition.kind=image", "model.in_channels=32"];
        assert_eq!(batches(&image), four(2 * latent + text, latent));
        // Frames are padded to whole patches.
        assert_eq!(batches(&["model.patch_size_t=2"]), four(4 * 16 * 64 + text, 4 * 16 * 64));
    }
}
