//! Tensor and sequence parallelism in a block: heads and hidden units are split over ranks, and so are the tokens wherever a
//! computation needs only one token at a time: norms, modulations, gates and residuals.
//!
//! A block applies the rows or columns of a weight that it receives, and calls these collectives where the
//! ranks' results are combined. [`recipe::Split`] defines the rows and columns of each rank; the caller implements
//! the collectives. Between blocks each rank has its part of the tokens: `len / ranks` rounded up, with padding after the last token.
//!
//! Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.2.2.

use tch::{TchError, Tensor};

/// Megatron's differentiable collectives.
pub trait TensorParallel {
    /// Returns the number of ranks that share a block's heads, hidden units and tokens.
    fn size(&self) -> i64;

    /// Returns the number of this rank.
    fn rank(&self) -> i64;

    /// Returns a replicated tensor unchanged; its gradient is the sum of all ranks' gradients.
    ///
    /// # Errors
    /// A peer exited. The other three functions have the same error.
    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// Concatenates the tensors of all ranks along the last dimension; each rank's gradient is its part.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// Concatenates the ranks' parts of `len` tokens to `[B, len, D]`; the gradient is this rank's part of the sum of all ranks' gradients.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn gather_tokens(&self, part: &Tensor, len: i64) -> Result<Tensor, TchError>;

    /// Sums the tokens `[B, L, D]` of all ranks and returns this rank's part; the gradients of all parts are gathered.
    #[expect(clippy::missing_errors_doc, reason = "as above")]
    fn reduce_tokens(&self, x: &Tensor) -> Result<Tensor, TchError>;
}

/// Returns this rank's part of the tokens `[B, L, D]`. Tokens after the last are zero.
pub fn own_tokens(x_bld: &Tensor, tp: &dyn TensorParallel) -> Tensor {
    let (size, len) = (tp.size(), x_bld.size()[1]);
    if size == 1 {
        return x_bld.shallow_clone();
    }
    let part = (len + size - 1) / size;
    let start = (tp.rank() * part).min(len);
    let own = x_bld.narrow(1, start, part.min(len - start));
    // A copy, because the whole sequence is not needed after this.
    let mut shape = x_bld.size();
    shape[1] = part - own.size()[1];
    Tensor::cat(&[own, x_bld.new_zeros(&shape, (x_bld.kind(), x_bld.device()))], 1)
}

/// Returns how many of the first `split` tokens of a sequence are in this rank's part of `part_len` tokens.
pub fn own_split(split: i64, part_len: i64, tp: &dyn TensorParallel) -> i64 {
    (split - tp.rank() * part_len).clamp(0, part_len)
}

/// A TP group of one rank.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl TensorParallel for Alone {
    fn size(&self) -> i64 {
        1
    }

    fn rank(&self) -> i64 {
        0
    }

    fn copy_to(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }

    fn gather_from(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }

    fn gather_tokens(&self, part: &Tensor, _len: i64) -> Result<Tensor, TchError> {
        Ok(part.shallow_clone())
    }

    fn reduce_tokens(&self, x: &Tensor) -> Result<Tensor, TchError> {
        Ok(x.shallow_clone())
    }
}
