//! The norms of the sharded gradient and the sharded weights, and the factor that clips the gradient.

use crate::fsdp::{Access, Fsdp, ShardView};
use c10d::Result;
use c10d::waits::{self, Place};
use tch::{Kind, Tensor};

/// Returns the square of the L2 norm of the whole gradient: `[1]`, fp64, on the device. All ranks get the same bits.
/// The result is not finite if any element is not finite.
pub fn grad_norm_squared(fsdp: &Fsdp) -> Result<Tensor> {
    sum_of_squares(fsdp, |shard| shard.grad)
}

/// Returns the L2 norm of all trained weights. All ranks get the same bits.
pub fn weight_norm(fsdp: &Fsdp) -> Result<f64> {
    let squared = sum_of_squares(fsdp, |shard| shard.master)?;
    Ok(waits::read(Place::WeightNorm, &squared)[0].sqrt())
}

/// Returns the sum of squares over a replica, `[1]`, in fp64.
fn sum_of_squares(fsdp: &Fsdp, of: for<'a> fn(&ShardView<'a>) -> &'a Tensor) -> Result<Tensor> {
    let mut sum = Tensor::zeros([1], (Kind::Double, fsdp.groups().device));
    fsdp.visit(Access::Read, |shard| {
        for own in fsdp.own(shard.unit, of(&shard)) {
            // The norm of each tensor in fp32 has a relative error of at most 1e-7; the squares are added in fp64.
            sum += own.norm().to_kind(Kind::Double).square();
        }
        Ok(())
    })?;
    fsdp.groups().sum_over_replica(&sum)?;
    Ok(sum)
}

/// Returns the factor that scales the gradient so that its norm does not exceed `limit`. A limit of 0 disables
/// clipping: the factor is 1.
///
/// Source: `torch.nn.utils.clip_grad_norm_`. Its 1e-6 avoids a division by zero.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit == 0.0 {
        return 1.0;
    }
    (limit / (norm + 1e-6)).min(1.0)
}
