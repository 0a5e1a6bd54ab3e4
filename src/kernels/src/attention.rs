//! Full attention that can reuse a saved result.

use crate::ffi;
use tch::Tensor;

/// The results of attention that its backward pass needs.
#[derive(Debug)]
pub struct AttentionOutput {
    /// `[B, H, L, F]`
    pub out: Tensor,
    /// The logsumexp of the softmax, `[B, H, L]`, fp32.
    pub logsumexp: Tensor,
}

impl AttentionOutput {
    /// Returns the result detached from the autograd graph.
    pub fn detach(&self) -> Self {
        AttentionOutput { out: self.out.detach(), logsumexp: self.logsumexp.detach() }
    }
}

/// Computes attention without a mask, scale 1/√F; differentiable in queries, keys and values, each `[B, H, L, F]`.
///
/// A GPU runs flash attention for 16-bit floats, and libtorch's memory-efficient kernel for fp32.
/// If `known` holds the result for the same inputs, the forward pass computes nothing, and the gradients are the same.
pub fn scaled_dot_product(q: &Tensor, k: &Tensor, v: &Tensor, known: Option<&AttentionOutput>) -> AttentionOutput {
    let (mut out, mut logsumexp) = (std::ptr::null_mut(), std::ptr::null_mut());
    let pointer = |t: Option<&Tensor>| t.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: all pointers are of tensors that outlive the call, or null where the C++ allows it; it writes two new
    // tensors on success.
    let status = unsafe {
        ffi::vidtui_attention(
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            pointer(known.map(|a| &a.out)),
            pointer(known.map(|a| &a.logsumexp)),
            &mut out,
            &mut logsumexp,
        )
    };
    ffi::expect_done(status, "compute attention");
    // SAFETY: the call above created both and transfers ownership to us.
    unsafe { AttentionOutput { out: Tensor::from_ptr(out), logsumexp: Tensor::from_ptr(logsumexp) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn a_known_result_gives_the_gradients_of_attention() {
        let random = || Tensor::randn([2, 3, 5, 8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (q, k, v) = (random(), random(), random());
        let weights = Tensor::randn([2, 3, 5, 8], (Kind::Float, Device::Cpu));
        let pull =
            |out: &Tensor| Tensor::run_backward(&[(out * &weights).sum(Kind::Float)], &[&q, &k, &v], false, false);
        let plain = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false);
        let want = pull(&plain);
        let first = scaled_dot_product(&q, &k, &v, None);
        let again = scaled_dot_product(&q, &k, &v, Some(&first.detach()));
        for attended in [first, again] {
            assert!((&attended.out - &plain).abs().max().double_value(&[]) < 1e-6);
            for (got, want) in pull(&attended.out).iter().zip(&want) {
                assert!((got - want).abs().max().double_value(&[]) < 1e-5);
            }
        }
    }
}
