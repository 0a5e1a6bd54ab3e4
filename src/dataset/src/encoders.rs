//! Checks that the VAE, the text encoder and the tokenizer in a folder belong together and to a model.

use crate::check_folder;
use crate::encode::check_tokens;
use camino::Utf8Path;
use recipe::{Model, Task};
use rundir::{ErrorCode, Failure};
use tokenizer::Tokenizer;
use weights::{T5Config, VaeConfig};

/// Two latent scales are equal if their relative difference is at most this.
const SAME: f64 = 1e-4;

/// Checks that the encoders in a folder are complete and belong to a model that samples, or that trains on what they encode. Reads
/// no weights.
///
/// # Errors
/// A part or a tensor is missing, or a part belongs to another model.
pub fn check_encoders(folder: &Utf8Path, model: &Model, task: Task) -> Result<(), Failure> {
    check_folder(folder)?;
    let (vae, _) = VaeConfig::open(&folder.join("vae"))?;
    let (text, _) = T5Config::open(&folder.join("text_encoder"))?;
    check_tokens(folder, Tokenizer::open(&folder.join("tokenizer"))?.vocabulary(), text.vocab_size)?;
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
    let (channels, features) = (vae.latent_channels, text.d_model);
    if channels != model.out_channels {
        return refuse(format!(
            "the latents of its VAE have {channels} channels, and those of the model have {}",
            model.out_channels
        ));
    }
    if features != model.text_dim {
        return refuse(format!(
            "the embeddings of its text encoder have {features} features, and those of the model have {}",
            model.text_dim
        ));
    }
    // Latents that were scaled before they were stored train with a scale of 1, whatever their VAE.
    let (scale, trained) = (vae.scaling_factor, model.latent_scale);
    if trained != 1.0 && (scale - trained).abs() > SAME * trained.abs() {
        return refuse(format!("the scaling_factor of its VAE is {scale}, and the model was trained with {trained}"));
    }
    Ok(())
}
