//! Our side of the TTT benchmark (`cargo xtask bench ttt`): the inner loop of a TTT-MLP layer, forward and backward.
//!
//! usage: ttt_speed THREADS ROUNDS. Prints one JSON object: seconds of each round, and by how much the peak resident
//! memory grew, in GiB. The sizes are those of `tests/bench/ttt.py`.

use kernels::ttt::{Inputs, Settings, scan};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

const HEADS: i64 = 8;
const WIDTH: i64 = 64;
const TOKENS: i64 = 64 * 64;

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<i32>().expect("usage: ttt_speed THREADS ROUNDS"));
    let (threads, rounds) = (args.next().unwrap_or(2), args.next().unwrap_or(5));
    tch::set_num_threads(threads);
    let random = |shape: &[i64], scale: f64| {
        (Tensor::randn(shape, (Kind::Float, Device::Cpu)) * scale).detach().set_requires_grad(true)
    };
    let rows = [HEADS, TOKENS, WIDTH];
    let eta = (Tensor::rand([HEADS, TOKENS], (Kind::Float, Device::Cpu)) * 2e-5).detach().set_requires_grad(true);
    let x = [
        random(&rows, 0.125),
        random(&rows, 0.125),
        random(&rows, 0.125),
        eta,
        random(&[HEADS, WIDTH], 1.0),
        random(&[HEADS, WIDTH], 1.0),
        random(&[HEADS, WIDTH, 4 * WIDTH], 0.02),
        random(&[HEADS, 1, 4 * WIDTH], 0.02),
        random(&[HEADS, 4 * WIDTH, WIDTH], 0.02),
        random(&[HEADS, 1, WIDTH], 0.02),
    ];
    let grad = Tensor::randn(rows, (Kind::Float, Device::Cpu));
    let inputs = Inputs {
        q: &x[0],
        k: &x[1],
        target: &x[2],
        eta: &x[3],
        norm: (&x[4], &x[5]),
        first: (&x[6], &x[7]),
        second: Some((&x[8], &x[9])),
    };
    let before = peak_gib();
    let seconds: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            let out = scan(Settings { mini_batch: 64, scan_group: 16, eps: 1e-6 }, &inputs);
            let grads = Tensor::run_backward(&[(out * &grad).sum(Kind::Float)], &x, false, false);
            assert_eq!(grads.len(), x.len());
            start.elapsed().as_secs_f64()
        })
        .collect();
    println!("{{\"step_s\":{seconds:?},\"peak_gib\":{}}}", peak_gib() - before);
}

/// The highest resident memory so far.
fn peak_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / (1024.0 * 1024.0)
}
