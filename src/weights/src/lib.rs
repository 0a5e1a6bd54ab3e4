//! Tensor files on disk: safetensors headers and ranges, and the index of a latent dataset. No libtorch.
//!
//! Files are read with `read_exact_at`, never mapped: a file that shrinks under us is an error, not a dead process.

mod dataset;
mod dtype;
#[cfg(test)]
mod fixtures;
mod safetensors;

pub use dataset::{DatasetInfo, Index, LATENT, Sample, TEXT};
pub use dtype::Dtype;
pub use safetensors::{Error, Header, TensorInfo, read_range};
