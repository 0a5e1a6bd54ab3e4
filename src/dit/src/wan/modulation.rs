//! Shifts, scales and gates that depend on the timestep of a token.

use crate::parallel::TensorParallel;
use tch::{Kind, Tensor};

/// Applies `f` to this rank's part `x` `[B, l, D]` of `len` tokens and to the row of each token in `vectors`, `[B, G, D]` each: tokens are G
/// groups of equally many neighbours. `f` gets tensors that broadcast, and works on each token and channel alone.
///
/// If a rank has all tokens, no row is repeated in memory.
fn by_group<const N: usize>(
    x: &Tensor,
    len: i64,
    vectors: [&Tensor; N],
    tp: &dyn TensorParallel,
    f: impl Fn(&Tensor, [Tensor; N]) -> Tensor,
) -> Tensor {
    let groups = vectors[0].size()[1];
    if groups == 1 {
        return f(x, vectors.map(Tensor::shallow_clone));
    }
    if tp.size() == 1 {
        return f(&x.unflatten(1, [groups, -1]), vectors.map(|rows| rows.unsqueeze(2))).flatten(1, 2);
    }
    let part = x.size()[1];
    // Padding after the last token has the row of the last group.
    let tokens = Tensor::arange(part, (Kind::Int64, x.device())) + tp.rank() * part;
    let group = tokens.clamp_max(len - 1).floor_divide_scalar(len / groups);
    f(x, vectors.map(|rows| rows.index_select(1, &group)))
}

/// Applies the LayerNorm without gain and bias, then scale and shift, in fp32. Returns fp32.
pub(super) fn modulated_norm(
    x: &Tensor,
    len: i64,
    [shift, scale]: [&Tensor; 2],
    eps: f64,
    tp: &dyn TensorParallel,
) -> Tensor {
    let width = *x.size().last().expect("tokens have a width");
    let normed = x.to_kind(Kind::Float).layer_norm([width], None::<&Tensor>, None::<&Tensor>, eps, true);
    by_group(&normed, len, [shift, scale], tp, |normed, [shift, scale]| shift.addcmul(normed, &(scale + 1.0)))
}

/// Adds `update`, multiplied by the gate, to the tokens, in fp32. Returns the kind of the tokens.
pub(super) fn gated_add(x: &Tensor, update: &Tensor, len: i64, gate: &Tensor, tp: &dyn TensorParallel) -> Tensor {
    let gated = by_group(&update.to_kind(Kind::Float), len, [gate], tp, |update, [gate]| update * gate);
    (x.to_kind(Kind::Float) + gated).to_kind(x.kind())
}
