//! Checks that the VAE, the text encoder and the tokenizer in a folder belong together and to a model.

use crate::check_folder;
use crate::encode::{check_latent_pixels, check_tokens, open_tokenizer};
use recipe::{Encoders, FamilyName, Model, Task};
use rundir::{ErrorCode, Failure};
use weights::{T5Config, VideoVaeConfig};

/// Checks that the encoders in a folder are complete and belong to a model that samples, or that trains on what they encode. Reads
/// no weights.
///
/// # Errors
/// A part or a tensor is missing, or a part belongs to another model.
pub fn check_encoders(encoders: &Encoders, model: &Model, task: Task) -> Result<(), Failure> {
    let folder = &encoders.folder;
    check_folder(folder)?;
    let (vae, _) = VideoVaeConfig::open(&folder.join("vae"))?;
    let (text, _) = T5Config::open(&folder.join("text_encoder"))?;
    check_tokens(folder, open_tokenizer(encoders)?.vocabulary(), text.vocab_size)?;
    let (what, fix) = match task {
        Task::Encode => {
            ("encode for the recipe of --for", "use the folder of the model that the recipe trains: --model DIR")
        }
        Task::Sample | Task::Train => (
            "sample",
            "use the folder of the model that the weights belong to: --encoders DIR, or encoders.folder in the recipe",
        ),
    };
    let refuse = |why: String| {
        let what = format!("cannot {what} with the encoders in {folder}");
        Err(Failure::new(ErrorCode::TensorMismatch, what, why, fix))
    };
    let (channels, features) = (vae.latent_channels(), text.d_model);
    if channels != model.out_channels {
        return refuse(format!(
            "the latents of its VAE have {channels} channels, and those of the model have {}",
            model.out_channels
        ));
    }
    check_latent_pixels(encoders, &vae)?;
    if features != model.text_dim {
        return refuse(format!(
            "the embeddings of its text encoder have {features} features, and those of the model have {}",
            model.text_dim
        ));
    }
    let is_wan = |is: bool| if is { "Wan" } else { "CogVideoX" };
    let (own, of_model) = (text.is_umt5(), model.family.name() == FamilyName::Wan);
    if own != of_model {
        return refuse(format!(
            "its text encoder is that of {}, and the model is one of {}",
            is_wan(own),
            is_wan(of_model)
        ));
    }
    if !model.fits_vae_scale(vae.scaling_factor()) {
        return refuse(format!(
            "the scaling_factor of its VAE is {}, and the model's latent_scale is {}",
            vae.scaling_factor(),
            model.latent_scale
        ));
    }
    Ok(())
}
