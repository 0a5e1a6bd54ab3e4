//! Times the scan of TTT layers and compares it with the peak of an H100: `scan_speed [cpu|cuda]`.
//!
//! Prints microseconds per mini-batch over all heads, for the forward pass alone and with the backward pass, and which share of the
//! peak of one multiprocessor per head the forward pass reaches; on GPUs that have them, also for clusters of blocks for each head.

use kernels::OnGpu;
use kernels::ttt::{Blocks, Inputs, Settings, scan, supports_clusters};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// A scan to time.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The name of the case.
    pub name: &'static str,
    /// Whether the inner network is an MLP.
    pub mlp: bool,
    /// Heads of a rank.
    pub heads: i64,
    /// Tokens, a multiple of the mini-batch.
    pub tokens: i64,
    /// Tokens of a mini-batch.
    pub mini_batch: i64,
    /// Width of a head.
    pub width: i64,
}

/// The times of a scan, in microseconds for each mini-batch.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Forward without a graph.
    pub forward_us: f64,
    /// Forward and backward.
    pub both_us: f64,
    /// Floating-point operations of the forward pass for each mini-batch of one head.
    pub forward_flop: f64,
}

/// The scans of the presets: the first stage on one GPU, and the last stage on each rank of a TP group of four.
const CASES: [Case; 3] = [
    Case { name: "TTT-MLP, 3 s", mlp: true, heads: 48, tokens: 18_048, mini_batch: 64, width: 64 },
    Case { name: "TTT-MLP, 63 s, TP 4", mlp: true, heads: 12, tokens: 351_168, mini_batch: 64, width: 64 },
    Case { name: "TTT-Linear, 3 s", mlp: false, heads: 48, tokens: 18_048, mini_batch: 16, width: 64 },
];

/// Dense bf16 operations per second of an H100 SXM (NVIDIA's data sheet).
const PEAK: f64 = 989e12;
/// Multiprocessors of an H100 SXM (NVIDIA's data sheet).
const PROCESSORS: f64 = 132.0;

fn main() {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda") => Device::Cuda(0),
        _ => Device::Cpu,
    };
    for case in CASES {
        let clusters =
            [2, 4].into_iter().filter(|n| supports_clusters(case.mlp, case.width, *n, 0) && device != Device::Cpu);
        for blocks in std::iter::once(Blocks::One).chain(clusters.map(Blocks::Cluster)) {
            print(case, blocks, device);
        }
    }
}

fn print(case: Case, blocks: Blocks, device: Device) {
    // On the CPU a sample of the mini-batches is enough.
    let tokens = if device == Device::Cpu { 16 * case.mini_batch } else { case.tokens };
    let Times { forward_us, both_us, forward_flop } = measure(Case { tokens, ..case }, blocks, device, 3);
    let share = forward_flop / (forward_us / 1e6) / (PEAK / PROCESSORS);
    let of_each = match blocks {
        Blocks::Cluster(n) => format!("clusters of {n} blocks"),
        _ => "one block".into(),
    };
    println!(
        "{:>20}, {of_each} for each head: {forward_us:9.2} us forward, {both_us:9.2} us forward and backward per mini-batch; forward \
         reaches {:.1} % of one multiprocessor of an H100 for each head",
        case.name,
        100.0 * share
    );
}

/// Times a scan: the best of `rounds` rounds after a warm-up round.
pub fn measure(case: Case, blocks: Blocks, device: Device, rounds: usize) -> Times {
    let Case { mlp, heads, tokens, mini_batch, width, .. } = case;
    let kind = if device == Device::Cpu { Kind::Float } else { Kind::BFloat16 };
    let hidden = if mlp { 4 * width } else { width };
    let random = |size: &[i64], kind| (Tensor::randn(size, (Kind::Float, device)) * 0.1).to_kind(kind);
    let leaf = |size: &[i64], kind| random(size, kind).set_requires_grad(true);
    let [q, k, target] = [(); 3].map(|()| leaf(&[heads, tokens, width], kind));
    let eta = (random(&[heads, tokens], Kind::Float).abs() / mini_batch as f64).to_kind(kind).set_requires_grad(true);
    let [gain, bias] = [(); 2].map(|()| leaf(&[heads, width], Kind::Float));
    let first = (leaf(&[heads, width, hidden], Kind::Float), leaf(&[heads, 1, hidden], Kind::Float));
    let second = (leaf(&[heads, hidden, width], Kind::Float), leaf(&[heads, 1, width], Kind::Float));
    let inputs = Inputs {
        q: &q,
        k: &k,
        target: &target,
        eta: &eta,
        norm: (&gain, &bias),
        first: (&first.0, &first.1),
        second: mlp.then_some((&second.0, &second.1)),
    };
    let settings = Settings { mini_batch, scan_group: 16, eps: 1e-6, on_gpu: OnGpu::Kernel, blocks };
    let leaves = [&q, &k, &target, &eta];
    let best_us = |run: &dyn Fn()| {
        let time = |_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        };
        let best = (0..=rounds).map(time).skip(1).fold(f64::INFINITY, f64::min);
        best * 1e6 / (tokens / mini_batch) as f64
    };
    // A read waits for the GPU.
    let finish = |tensor: &Tensor| {
        let _ = tensor.view(-1).get(0).double_value(&[]);
    };
    let forward = || tch::no_grad(|| finish(&scan(settings, &inputs, None)));
    let both = || {
        let out = scan(settings, &inputs, None);
        let grads = Tensor::run_backward(&[out.sum(Kind::Float)], &leaves, false, false);
        finish(&grads[0]);
    };
    // Matrix products: seven of `[b, F]` with `[F, M]` for the MLP, three of `[b, F]` with `[F, F]` for the linear kind.
    let products = if mlp { 7.0 } else { 3.0 };
    Times {
        forward_us: best_us(&forward),
        both_us: best_us(&both),
        forward_flop: products * 2.0 * (mini_batch * width * hidden) as f64,
    }
}
