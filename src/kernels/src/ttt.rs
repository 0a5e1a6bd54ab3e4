//! The inner loop of a TTT layer: a small network per head that is trained on the tokens of the sequence.
//!
//! The loop runs over mini-batches of `b` tokens. For each, with the current weights `W`:
//!
//! * MLP: `Z1 = K W1 + b1`, `X = gelu(Z1)`, `Z = X W2 + b2`; linear: `Z = K W1 + b1`.
//! * `x̂` is `Z` normalised by row, `G = (γ∘x̂ + β - T)∘γ`, `g2 = (G - mean G - x̂ mean(G∘x̂))/σ`: the gradient of
//!   `½‖γ∘x̂ + β - T‖²`. MLP: `g1 = (g2 W2ᵀ)∘gelu'(Z1)`.
//! * update: `W1 -= (η∘K)ᵀ g1`, `b1 -= Σ η g1`, `W2 -= (η∘X)ᵀ g2`, `b2 -= Σ η g2` (linear: `W1 -= (η∘K)ᵀ g2`).
//! * apply, with the updated weights: `out = Q + γ∘norm(Q's Z) + β`.
//!
//! Every sequence starts from the learned weights; the last state is dropped. Source: the reference's kernels
//! (`ttt-tk kernels/ttt/ttt.cu`), with one ε in both directions.
//!
//! N sequences (samples × heads, heads innermost), H heads, L tokens, F head width, M hidden width.

use crate::ffi;
use tch::Tensor;

/// Sizes and constants of the loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Tokens of a mini-batch; the sequence length is a multiple of it.
    pub mini_batch: i64,
    /// Mini-batches between the states that are saved for the backward pass.
    pub scan_group: i64,
    /// ε of the inner LayerNorm.
    pub eps: f64,
}

/// The inputs of the loop.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// Queries, `[N, L, F]`.
    pub q: &'a Tensor,
    /// Keys, `[N, L, F]`.
    pub k: &'a Tensor,
    /// Reconstruction targets, `[N, L, F]`.
    pub target: &'a Tensor,
    /// Learning rate of every token, `[N, L]`.
    pub eta: &'a Tensor,
    /// Gain and bias of the inner norm, `[H, F]` each.
    pub norm: (&'a Tensor, &'a Tensor),
    /// First weights `[H, F, M]` and biases `[H, 1, M]`; `[H, F, F]` and `[H, 1, F]` for the linear kind.
    pub first: (&'a Tensor, &'a Tensor),
    /// Second weights `[H, M, F]` and biases `[H, 1, F]` of the MLP.
    pub second: Option<(&'a Tensor, &'a Tensor)>,
}

/// Runs the loop and returns `[N, L, F]` in the dtype of the queries; differentiable in all of its inputs.
///
/// The inner state is always fp32. On the CPU a kernel computes the backward pass: no graph is built, and states are
/// saved only every [`Settings::scan_group`] mini-batches, and only if autograd is recording. On a GPU the loop consists
/// of libtorch's operators, which autograd records one group at a time.
///
/// # Panics
/// The shapes do not match, or `L` is not a multiple of the mini-batch. The recipe's check excludes both.
pub fn scan(settings: Settings, x: &Inputs<'_>) -> Tensor {
    scan_by(Means::Fastest, settings, x)
}

/// The implementation of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// The kernel on the CPU, ATen's operators elsewhere.
    Fastest,
    /// ATen's operators everywhere.
    #[cfg(test)]
    Operators,
}

fn scan_by(means: Means, settings: Settings, x: &Inputs<'_>) -> Tensor {
    let (n, l, f) = x.q.size3().expect("queries are [N, L, F]");
    let (h, m) = (x.norm.0.size()[0], x.first.0.size()[2]);
    assert!(n % h == 0 && l % settings.mini_batch == 0, "{n} sequences of {h} heads, {l} tokens, {settings:?}");
    let check = |t: &Tensor, size: &[i64], what: &str| assert_eq!(t.size(), size, "shape of {what}");
    check(x.k, &[n, l, f], "the keys");
    check(x.target, &[n, l, f], "the targets");
    check(x.eta, &[n, l], "the learning rates");
    check(x.norm.0, &[h, f], "the inner norm's gain");
    check(x.norm.1, &[h, f], "the inner norm's bias");
    check(x.first.0, &[h, f, m], "W1");
    check(x.first.1, &[h, 1, m], "b1");
    if let Some((w2, b2)) = x.second {
        check(w2, &[h, m, f], "W2");
        check(b2, &[h, 1, f], "b2");
    }
    let tensors = [x.q, x.k, x.target, x.eta, x.norm.0, x.norm.1, x.first.0, x.first.1];
    let pointers: Vec<_> = tensors
        .into_iter()
        .map(Tensor::as_ptr)
        .chain(x.second.map_or([std::ptr::null(); 2], |(w2, b2)| [w2.as_ptr(), b2.as_ptr()]))
        .collect();
    let mut out = std::ptr::null_mut();
    let generic = i32::from(means != Means::Fastest);
    let Settings { mini_batch, scan_group, eps } = settings;
    // SAFETY: the ten pointers are of tensors that outlive the call, or null for the last two, with matching shapes
    // as checked above; the C++ writes a new tensor on success.
    let status = unsafe { ffi::vidtui_ttt_scan(pointers.as_ptr(), mini_batch, scan_group, eps, generic, &mut out) };
    ffi::expect_done(status, "scan the tokens");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    unsafe { Tensor::from_ptr(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    /// Returns the output and the gradients of all inputs, for five mini-batches of four tokens, two samples of three heads.
    fn run(means: Means, mlp: bool, leaves: &[Tensor], pull: &Tensor) -> Vec<Tensor> {
        let settings = Settings { mini_batch: 4, scan_group: 2, eps: 1e-6 };
        let t = |i: usize| &leaves[i];
        let inputs = Inputs {
            q: t(0),
            k: t(1),
            target: t(2),
            eta: t(3),
            norm: (t(4), t(5)),
            first: (t(6), t(7)),
            second: mlp.then(|| (t(8), t(9))),
        };
        let out = scan_by(means, settings, &inputs);
        let wanted: Vec<&Tensor> = leaves.iter().collect();
        let mut all = Tensor::run_backward(&[(&out * pull).sum(Kind::Float)], &wanted, false, false);
        all.push(out.detach());
        all
    }

    #[test]
    fn the_operators_give_the_numbers_of_the_kernel() {
        tch::manual_seed(3);
        let (n, h, l, f) = (6, 3, 20, 8);
        for mlp in [false, true] {
            let m = if mlp { 4 * f } else { f };
            let mut sizes = vec![vec![n, l, f], vec![n, l, f], vec![n, l, f], vec![n, l], vec![h, f], vec![h, f]];
            sizes.extend([vec![h, f, m], vec![h, 1, m]]);
            sizes.extend(mlp.then(|| [vec![h, m, f], vec![h, 1, f]]).into_iter().flatten());
            let leaf =
                |size: &Vec<i64>| (Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.3).set_requires_grad(true);
            let leaves: Vec<Tensor> = sizes.iter().map(leaf).collect();
            let pull = Tensor::randn([n, l, f], (Kind::Float, Device::Cpu));
            let (want, got) = (run(Means::Fastest, mlp, &leaves, &pull), run(Means::Operators, mlp, &leaves, &pull));
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let error = ((got - want).norm() / want.norm()).double_value(&[]);
                assert!(
                    error < 1e-4,
                    "tensor {i} of the {} kind is off by {error:e}",
                    if mlp { "MLP" } else { "linear" }
                );
            }
        }
    }
}
