//! Tensor parallelism as a block sees it: heads and hidden units are shared out over ranks that hold the same tokens.
//!
//! A block applies the rows or columns of a weight that it is given, whatever their number, and says here where the
//! ranks' results meet. Which rows and columns a rank is given, [`recipe::Split`] says; how results travel is the
//! caller's affair.

use tch::{TchError, Tensor};

/// Megatron's four differentiable collectives.
pub trait TensorParallel {
    /// How many ranks share a block's heads and hidden units.
    fn size(&self) -> i64;

    /// What every rank has and each uses in its own way: itself, and its gradient is the sum of the ranks' gradients.
    ///
    /// # Errors
    /// When a peer is gone; so for all of them.
    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// The sum of what the ranks have; the gradient of each is that of the sum.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn reduce_from(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// What the ranks have, joined along the last dimension; the gradient of each is its part.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// This rank's part of the last dimension; the gradient is joined from all ranks.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn scatter_to(&self, x: &Tensor) -> Result<Tensor, TchError>;
}

/// One rank that has everything.
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
