//! The Rust side of the optimizer benchmark (`cargo xtask bench optimizer`): AdamW with 8-bit or fp32 moments.
//!
//! usage: adamw8_speed 8|32 THREADS STEPS. Updates 12 matrices of 2048 × 2048. Prints one JSON object: seconds of each step, bytes of
//! state per parameter, and the norms of the matrices after the steps, which must equal those of `tests/bench/optimizer.py`.

use c10d::adamw8::{Maps, Quantized};
use c10d::ops::AdamW;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

const MATRICES: i64 = 12;
const LEN: i64 = 2048 * 2048;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bits, threads, steps] = args.as_slice() else { panic!("usage: adamw8_speed 8|32 THREADS STEPS") };
    let number = |text: &str| text.parse::<i32>().unwrap_or_else(|e| panic!("{text:?} is not a number: {e}"));
    tch::set_num_threads(number(threads));
    let (maps, quantized) = (Maps::on(Device::Cpu), number(bits) == 8);
    let zeros = |_| Tensor::zeros([LEN], (Kind::Float, Device::Cpu));
    let mut matrices: Vec<_> = (0..MATRICES)
        .map(|matrix| {
            let (param, grad) = (waves(0.37, matrix as f64) * 0.05, waves(0.61, matrix as f64) * 1e-3);
            let full = if quantized { None } else { Some([0, 1].map(zeros)) };
            (param, grad, [0, 1].map(|_| Quantized::zeros(0, if quantized { LEN } else { 0 }, Device::Cpu)), full)
        })
        .collect();

    let mut seconds = Vec::new();
    for step in 1..=number(steps) as u64 {
        for (_, grad, ..) in &mut matrices {
            // The sign and size of gradients differ from step to step.
            let _ = grad.g_mul_scalar_(if step % 3 == 0 { -1.25 } else { 0.9 });
        }
        let adamw = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step, grad_scale: 1.0 };
        let start = Instant::now();
        for (param, grad, [first, second], full) in &mut matrices {
            match full {
                None => adamw.step8(param, grad, [first, second], &maps),
                Some([mean, square]) => adamw.step(param, grad, mean, square),
            }
            .expect("the tensors fit each other");
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    let bytes_of = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
    let state: usize = matrices
        .iter()
        .flat_map(|(_, _, moments, full)| {
            let quantized = moments.iter().flat_map(|moment| [&moment.codes, &moment.scales]);
            quantized.chain(full.iter().flatten()).map(bytes_of).collect::<Vec<_>>()
        })
        .sum();
    let norms: Vec<f64> = matrices.iter().map(|(param, ..)| param.norm().double_value(&[])).collect();
    let bytes = state as f64 / (MATRICES * LEN) as f64;
    println!("{{\"step_s\":{seconds:?},\"bytes_per_parameter\":{bytes},\"norms\":{norms:?}}}");
}

/// Returns numbers that Python can reproduce: `sin(frequency · i + matrix)`.
fn waves(frequency: f64, matrix: f64) -> Tensor {
    let angles = Tensor::arange(LEN, (Kind::Double, Device::Cpu)) * frequency + matrix;
    angles.sin().to_kind(Kind::Float)
}
