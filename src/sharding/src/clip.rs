//! The norm of a sharded gradient.

use crate::fsdp::{Fsdp, ShardView};
use c10d::{Reduce, Result};
use tch::{Kind, Tensor};

/// Returns the Euclidean norm of the whole gradient, the same bits on every rank; not finite when any element is not.
pub fn grad_norm(fsdp: &Fsdp) -> Result<f64> {
    norm(fsdp, |shard| shard.grad)
}

/// Returns the Euclidean norm of all trained weights, the same bits on every rank.
pub fn weight_norm(fsdp: &Fsdp) -> Result<f64> {
    norm(fsdp, |shard| shard.master)
}

fn norm(fsdp: &Fsdp, of: for<'a> fn(&ShardView<'a>) -> &'a Tensor) -> Result<f64> {
    let mut sum = Tensor::zeros([1], (Kind::Double, fsdp.groups().device));
    for own in fsdp.own(of) {
        // The norm of each in fp32 has a relative error of 1e-7 at most; the squares are added in fp64.
        sum += own.norm().to_kind(Kind::Double).square();
    }
    fsdp.groups().shard.all_reduce(&sum, Reduce::Sum)?.wait()?;
    fsdp.groups().tp.all_reduce(&sum, Reduce::Sum)?.wait()?;
    Ok(sum.double_value(&[0]).sqrt())
}

/// Returns the factor that scales the gradient so that its norm does not exceed `limit`; a limit of 0 scales nothing.
///
/// Source: `torch.nn.utils.clip_grad_norm_`, whose 1e-6 keeps a zero gradient from dividing by zero.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit == 0.0 {
        return 1.0;
    }
    (limit / (norm + 1e-6)).min(1.0)
}
