//! Batches of videos and of latents, `[B, C, T, H, W]`.

use failure::{ErrorCode, Failure};
use tch::{TchError, Tensor};

/// Computes each sample of a batch.
pub fn each(batch: &Tensor, compute: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Tensor, TchError> {
    let mut results = Vec::new();
    for sample in 0..batch.size()[0] {
        results.push(compute(&batch.f_select(0, sample)?)?.f_unsqueeze(0)?);
    }
    match results.len() {
        1 => Ok(results.remove(0)),
        _ => Tensor::f_cat(&results, 0),
    }
}

/// Checks that a tensor is `[B, C, T, H, W]` and not empty.
///
/// # Errors
/// It has another number of axes or channels, or is empty.
pub fn check_shape(what: &str, tensor: &Tensor, channels: usize) -> Result<(), Failure> {
    let shape = tensor.size();
    if shape.len() == 5 && shape[1] == channels as i64 && tensor.numel() > 0 {
        return Ok(());
    }
    let why = format!("its shape is {shape:?}, expected [B, {channels}, T, H, W]");
    Err(Failure::new(ErrorCode::TensorMismatch, what, why, "use the VAE that belongs to the data"))
}
