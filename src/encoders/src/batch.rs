//! Batches of videos and of latents, `[B, C, T, H, W]`.

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
