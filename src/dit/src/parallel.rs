//! Tensor parallelism in a block: heads and hidden units are split over ranks that hold the same tokens.
//!
//! A block applies the rows or columns of a weight that it receives, and calls these collectives where the
//! ranks' results are combined. [`recipe::Split`] defines the rows and columns of each rank; the caller implements
//! the collectives.

use tch::{TchError, Tensor};

/// Megatron's four differentiable collectives.
pub trait TensorParallel {
    /// Returns the number of ranks that share a block's heads and hidden units.
    fn size(&self) -> i64;

    /// Returns a replicated tensor unchanged; its gradient is the sum of all ranks' gradients.
    ///
    /// # Errors
    /// A peer exited. The other three functions have the same error.
    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// Sums the tensors of all ranks; each rank's gradient is that of the sum.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn reduce_from(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// Concatenates the tensors of all ranks along the last dimension; each rank's gradient is its part.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// Returns this rank's part of the last dimension; the gradient is gathered from all ranks.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn scatter_to(&self, x: &Tensor) -> Result<Tensor, TchError>;
}

/// A TP group of one rank.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl TensorParallel for Alone {
    fn size(&self) -> i64 {
        1
    }

    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }

    fn reduce_from(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }

    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }

    fn scatter_to(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }
}
