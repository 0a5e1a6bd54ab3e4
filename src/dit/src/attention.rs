//! Full attention over text and video tokens, with its backward pass in reach.

use tch::{Kind, Tensor};

/// What attention must remember for its backward pass: its output and the log of its normaliser.
#[derive(Debug)]
pub struct Attended {
    /// `[B, H, L, F]`
    pub out: Tensor,
    /// `[B, H, L]`, fp32
    pub logsumexp: Tensor,
}

/// Queries, keys and values, each `[B, H, L, F]`.
#[derive(Debug)]
pub(crate) struct Qkv {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
}

/// Attends without a mask, scale 1/√F. Never builds a graph: [`attend_backward`] is its derivative.
pub(crate) fn attend(x: &Qkv) -> Attended {
    tch::no_grad(|| {
        let (out, logsumexp) = Tensor::internal_scaled_dot_product_flash_attention_for_cpu(
            &x.q,
            &x.k,
            &x.v,
            0.0,
            false,
            None::<&Tensor>,
            None,
        );
        Attended { out, logsumexp }
    })
}

/// Returns the gradients of queries, keys and values, given that of the output `[B, H, L, F]`.
pub(crate) fn attend_backward(x: &Qkv, attended: &Attended, grad_out: &Tensor) -> Qkv {
    tch::no_grad(|| {
        let (q, k, v) = Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out,
            &x.q,
            &x.k,
            &x.v,
            &attended.out,
            &attended.logsumexp,
            0.0,
            false,
            None::<&Tensor>,
            None,
        );
        Qkv { q, k, v }
    })
}

/// Turns adjacent pairs of `x_blhf` by the rotary factors `[L, F/2]`. The rotation is done in fp32.
pub(crate) fn rotate(x_blhf: &Tensor, rotary: &Tensor) -> Tensor {
    let size = x_blhf.size();
    let pairs = x_blhf.to_kind(Kind::Float).reshape([size[0], size[1], size[2], size[3] / 2, 2]).view_as_complex();
    (pairs * rotary.unsqueeze(1)).view_as_real().flatten(3, 4).to_kind(x_blhf.kind())
}
