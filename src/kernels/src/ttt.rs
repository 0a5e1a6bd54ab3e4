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

use crate::{OnGpu, ffi};
use std::ptr::NonNull;
use tch::{Device, Kind, Tensor};

/// Sizes and constants of the loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Tokens of a mini-batch; the sequence length is a multiple of it.
    pub mini_batch: i64,
    /// Mini-batches between the states that are saved for the backward pass.
    pub scan_group: i64,
    /// ε of the inner LayerNorm.
    pub eps: f64,
    /// The implementation on GPUs. The CPU has a kernel of its own.
    pub on_gpu: OnGpu,
    /// The thread blocks that share a sequence in the CUDA kernel.
    pub blocks: Blocks,
}

/// The thread blocks that share a sequence in the CUDA kernel. Those of a cluster divide the hidden units of TTT-MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// For TTT-MLP with a width of 64, from sm_90 on: clusters of 2, if all clusters run at the same time. Otherwise one block.
    Auto,
    /// One block.
    One,
    /// Clusters of so many blocks, 2 or 4. [`supports_clusters`] must return true.
    Cluster(u8),
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

/// The output of a loop and the states for its backward pass, both of which the next pass over the same inputs can reuse.
#[derive(Debug)]
pub struct ScanOutput(NonNull<ffi::SavedScan>);

// SAFETY: the handle owns tensors, which any thread may use, and has one owner.
unsafe impl Send for ScanOutput {}

impl Drop for ScanOutput {
    fn drop(&mut self) {
        // SAFETY: the C++ created the handle, and this is its only owner.
        unsafe { ffi::vidtui_saved_scan_drop(self.0.as_ptr()) }
    }
}

/// Returns whether this build has a CUDA kernel for these sizes and GPU number `gpu` can run it.
pub fn supports(mlp: bool, width: i64, mini_batch: i64, gpu: usize) -> bool {
    let Ok(device) = i32::try_from(gpu) else { return false };
    // SAFETY: only numbers are passed.
    unsafe { ffi::vidtui_ttt_supports(i32::from(mlp), width, mini_batch, device) != 0 }
}

/// Returns whether this build has a CUDA kernel for clusters of `blocks` blocks and GPU number `gpu` can run it: from sm_90 on.
pub fn supports_clusters(mlp: bool, width: i64, blocks: u8, gpu: usize) -> bool {
    let Ok(device) = i32::try_from(gpu) else { return false };
    // SAFETY: only numbers are passed.
    unsafe { ffi::vidtui_ttt_supports_clusters(i32::from(mlp), width, blocks.into(), device) != 0 }
}

/// Runs the loop and returns `[N, L, F]` in the dtype of the queries; differentiable in all of its inputs.
///
/// The inner state is always fp32. On the CPU a kernel computes the backward pass: no graph is built, and states are
/// saved only every [`Settings::scan_group`] mini-batches, and only if autograd is recording. On a GPU, [`OnGpu::Operators`]
/// lets autograd record one group at a time, and [`OnGpu::Kernel`] computes in bf16.
///
/// If `known` has the result for the same inputs, the forward pass computes nothing, and the gradients are the same.
///
/// # Panics
/// The shapes do not match, or `L` is not a multiple of the mini-batch. The recipe's check excludes both.
pub fn scan(settings: Settings, x: &Inputs<'_>, known: Option<&ScanOutput>) -> Tensor {
    run(settings.means(x), settings, x, known, false).0
}

/// Runs the loop as [`scan`] does, and also returns what the next pass over the same inputs needs.
///
/// # Panics
/// As [`scan`].
pub fn scan_and_save(settings: Settings, x: &Inputs<'_>) -> (Tensor, ScanOutput) {
    let (out, saved) = run(settings.means(x), settings, x, None, true);
    (out, saved.expect("the C++ returns what it is asked for"))
}

/// The implementation of the loop. The C++ uses the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// The kernel on the CPU, ATen's operators elsewhere.
    Default = 0,
    /// ATen's operators everywhere.
    #[cfg(test)]
    Operators = 1,
    /// The CUDA kernel.
    CudaKernel = 2,
}

impl Settings {
    fn means(&self, x: &Inputs<'_>) -> Means {
        match (self.on_gpu, x.q.device()) {
            (OnGpu::Kernel, Device::Cuda(_)) => Means::CudaKernel,
            (OnGpu::Auto, Device::Cuda(gpu)) if x.q.kind() == Kind::BFloat16 => {
                let width = x.first.0.size()[1];
                let can_run = supports(x.second.is_some(), width, self.mini_batch, gpu);
                if can_run { Means::CudaKernel } else { Means::Default }
            }
            _ => Means::Default,
        }
    }
}

fn run(
    means: Means,
    settings: Settings,
    x: &Inputs<'_>,
    known: Option<&ScanOutput>,
    saves: bool,
) -> (Tensor, Option<ScanOutput>) {
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
    let mut made = std::ptr::null_mut();
    let known = known.map_or(std::ptr::null(), |known| known.0.as_ptr().cast_const());
    let to = if saves { &raw mut made } else { std::ptr::null_mut() };
    let Settings { mini_batch, scan_group, eps, .. } = settings;
    let blocks = match settings.blocks {
        Blocks::Auto => 0,
        Blocks::One => 1,
        Blocks::Cluster(blocks) => {
            assert!(blocks > 1, "a cluster has several blocks");
            blocks.into()
        }
    };
    // SAFETY: the ten pointers are of tensors that outlive the call, or null for the last two, with matching shapes
    // as checked above; `known` is null or a handle that outlives the call; the C++ writes a new tensor, and a new handle unless `to` is
    // null, on success.
    let status = unsafe {
        ffi::vidtui_ttt_scan(pointers.as_ptr(), mini_batch, scan_group, blocks, eps, means as i32, known, to, &mut out)
    };
    ffi::expect_done(status, "scan the tokens");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    (unsafe { Tensor::from_ptr(out) }, NonNull::new(made).map(ScanOutput))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    /// Returns the output and the gradients of all inputs, for five mini-batches of four tokens, two samples of three heads.
    fn results(means: Means, mlp: bool, leaves: &[Tensor], pull: &Tensor, known: Option<&ScanOutput>) -> Vec<Tensor> {
        let out = run(means, SETTINGS, &inputs(mlp, leaves), known, false).0;
        gradients(out, leaves, pull)
    }

    /// Returns the gradients of the leaves and the output.
    fn gradients(out: Tensor, leaves: &[Tensor], pull: &Tensor) -> Vec<Tensor> {
        let wanted: Vec<&Tensor> = leaves.iter().collect();
        let mut all = Tensor::run_backward(&[(&out * pull).sum(Kind::Float)], &wanted, false, false);
        all.push(out.detach());
        all
    }

    fn inputs(mlp: bool, leaves: &[Tensor]) -> Inputs<'_> {
        let t = |i: usize| &leaves[i];
        Inputs {
            q: t(0),
            k: t(1),
            target: t(2),
            eta: t(3),
            norm: (t(4), t(5)),
            first: (t(6), t(7)),
            second: mlp.then(|| (t(8), t(9))),
        }
    }

    const SETTINGS: Settings =
        Settings { mini_batch: 4, scan_group: 2, eps: 1e-6, on_gpu: OnGpu::Operators, blocks: Blocks::Auto };

    /// Returns leaves of random numbers, and the gradient of the output.
    fn random(mlp: bool) -> (Vec<Tensor>, Tensor) {
        random_of(mlp, [6, 3, 20, 8])
    }

    fn random_of(mlp: bool, [n, h, l, f]: [i64; 4]) -> (Vec<Tensor>, Tensor) {
        let m = if mlp { 4 * f } else { f };
        let mut sizes = vec![vec![n, l, f], vec![n, l, f], vec![n, l, f], vec![n, l], vec![h, f], vec![h, f]];
        sizes.extend([vec![h, f, m], vec![h, 1, m]]);
        sizes.extend(mlp.then(|| [vec![h, m, f], vec![h, 1, f]]).into_iter().flatten());
        let draw = |key: usize, size: &[i64]| crate::normal::normal(key as u64, size, Device::Cpu);
        let leaf = |(key, size): (usize, &Vec<i64>)| (draw(key, size) * 0.3).set_requires_grad(true);
        (sizes.iter().enumerate().map(leaf).collect(), draw(sizes.len(), &[n, l, f]))
    }

    #[test]
    fn a_known_result_gives_the_same_numbers_without_a_scan() {
        for (means, mlp) in
            [Means::Default, Means::Operators].into_iter().flat_map(|means| [(means, false), (means, true)])
        {
            let (leaves, pull) = random(mlp);
            let (out, saved) = tch::no_grad(|| run(means, SETTINGS, &inputs(mlp, &leaves), None, true));
            let want = results(means, mlp, &leaves, &pull, None);
            let got = results(means, mlp, &leaves, &pull, saved.as_ref());
            assert!(!out.requires_grad() && got.last().unwrap().equal(&out), "the known output is returned");
            // The order of additions in a sum depends on the addresses of temporary memory, which other tests change.
            let same = |got: &Tensor, want: &Tensor| ((got - want).norm() / want.norm()).double_value(&[]) < 1e-5;
            assert!(got.iter().zip(&want).all(|(got, want)| same(got, want)), "{means:?}, MLP {mlp}");
        }
    }

    #[test]
    fn the_cuda_kernel_gives_the_numbers_of_the_cpu_kernel() {
        let one = Blocks::One;
        for (mlp, width, mini_batch, blocks) in [
            (true, 64, 64, one),
            (true, 16, 16, one),
            (false, 64, 16, one),
            (false, 32, 64, one),
            (true, 64, 64, Blocks::Cluster(2)),
            (true, 64, 48, Blocks::Cluster(4)),
            (true, 64, 64, Blocks::Auto),
        ] {
            let has_blocks = !matches!(blocks, Blocks::Cluster(n) if !supports_clusters(mlp, width, n, 0));
            if !supports(mlp, width, mini_batch, 0) || !has_blocks {
                println!(
                    "skipped: no GPU that has the CUDA kernel for a width of {width}, mini-batches of {mini_batch} and {blocks:?}"
                );
                continue;
            }
            println!("width {width}, mini-batches of {mini_batch}, {blocks:?}");
            let (leaves, pull) = random_of(mlp, [4, 2, 5 * mini_batch, width]);
            let settings = Settings { mini_batch, on_gpu: OnGpu::Kernel, blocks, ..SETTINGS };
            let there = |t: &Tensor| t.detach().to_device(Device::Cuda(0)).set_requires_grad(true);
            let on_gpu: Vec<Tensor> = leaves.iter().map(there).collect();
            // Learning rates of a real layer: at most one over the tokens of a mini-batch.
            let scale = |leaves: &[Tensor]| tch::no_grad(|| drop(leaves[3].shallow_clone().f_mul_scalar_(0.1)));
            scale(&leaves);
            scale(&on_gpu);
            let want = gradients(scan(settings, &inputs(mlp, &leaves), None), &leaves, &pull);
            let out = scan(settings, &inputs(mlp, &on_gpu), None);
            let got = gradients(out, &on_gpu, &pull.to_device(Device::Cuda(0)));
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let error = ((got.to_device(Device::Cpu) - want).norm() / want.norm()).double_value(&[]);
                // A rounding to bf16 is one part in 256; sums of many of them average out.
                assert!(error < 0.02, "tensor {i}, MLP {mlp}, width {width}, {blocks:?}: off by {error:e}");
            }
        }
    }

    #[test]
    fn a_build_without_cuda_supports_no_sizes() {
        // With CUDA, all calls return false too: there is no GPU 99, no kernel has a width of 8, and no clusters have three blocks or the linear
        // kind.
        assert!(!supports(true, 64, 64, 99) && !supports(true, 8, 64, 0));
        assert!(
            !supports_clusters(true, 64, 4, 99)
                && !supports_clusters(true, 64, 3, 0)
                && !supports_clusters(false, 64, 2, 0)
        );
    }

    #[test]
    fn the_operators_give_the_numbers_of_the_kernel() {
        for mlp in [false, true] {
            let (leaves, pull) = random(mlp);
            let by = |means| results(means, mlp, &leaves, &pull, None);
            let (want, got) = (by(Means::Default), by(Means::Operators));
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
