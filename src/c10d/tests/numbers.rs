//! Tests of the results of the fused AdamW step.

use c10d::Result;
use c10d::ops::AdamW;
use tch::{Device, Kind, Tensor};

/// Returns roughly normal numbers from a generator of this call: parallel tests share libtorch's generator.
fn random(len: usize, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let normal: Vec<f32> = (0..len).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
    Tensor::from_slice(&normal)
}

/// Computes the textbook update (Loshchilov and Hutter, algorithm 2, as in `torch.optim.AdamW`), in fp64.
fn textbook(settings: &AdamW, [p, g, m, v]: [&Tensor; 4]) -> [Tensor; 3] {
    let [p, g, m, v] = [p, g, m, v].map(|tensor| tensor.to_kind(Kind::Double));
    let AdamW { lr, beta1, beta2, eps, weight_decay, step, grad_scale } = *settings;
    let g = g * grad_scale;
    let m = m * beta1 + &g * (1.0 - beta1);
    let v = v * beta2 + g.square() * (1.0 - beta2);
    let (fix1, fix2) = (1.0 - beta1.powi(step as i32), 1.0 - beta2.powi(step as i32));
    let p = p * (1.0 - lr * weight_decay) - lr / fix1 * &m / ((&v / fix2).sqrt() + eps);
    [p, m, v]
}

#[test]
fn the_fused_step_equals_the_textbook_step() -> Result<()> {
    for (threads, grad_scale, weight_decay) in [(1, 1.0, 1e-2), (2, 1.0, 0.0), (1, 0.037, 0.0), (2, 0.037, 1e-2)] {
        tch::set_num_threads(threads);
        // The length is not a multiple of a vector length. The weights have a realistic magnitude.
        let (p, m, v) = (random(100_003, 1) * 0.02, random(100_003, 2) * 0.01, random(100_003, 3).square() * 1e-4);
        for step in [1, 2, 3, 1000] {
            let g = random(100_003, 10 + step) * 0.01;
            let settings = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, step, grad_scale };
            let want = textbook(&settings, [&p, &g, &m, &v]);
            settings.step(&p, &g, &m, &v)?;
            for (name, got, want) in [("param", &p, &want[0]), ("exp_avg", &m, &want[1]), ("exp_avg_sq", &v, &want[2])]
            {
                let error = (got.to_kind(Kind::Double) - want).abs().max() / want.abs().max();
                // The tolerance is a few roundings of fp32 (6e-8 each), relative to the largest element.
                let error = error.double_value(&[]);
                assert!(error < 5e-7, "{name} after step {step} is off by {error:e} (scale {grad_scale})");
            }
        }
    }
    Ok(())
}

#[test]
fn the_fused_step_on_a_view_changes_nothing_outside_it() -> Result<()> {
    let [p, m, v] = [1, 2, 3].map(|_| Tensor::ones([10], (Kind::Float, Device::Cpu)));
    let g = random(10, 4);
    let part = |tensor: &Tensor| tensor.narrow(0, 3, 4);
    let settings = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0, step: 1, grad_scale: 1.0 };
    settings.step(&part(&p), &part(&g), &part(&m), &part(&v))?;
    let changed: Vec<bool> = Vec::try_from(p.ne(1.0)).expect("a flat tensor of booleans");
    assert_eq!(changed, [0, 0, 0, 1, 1, 1, 1, 0, 0, 0].map(|bit| bit == 1));
    Ok(())
}

#[test]
fn the_fused_step_of_a_shard_has_the_same_bits_as_that_of_the_whole() -> Result<()> {
    let make = || [random(1000, 1), random(1000, 2), random(1000, 3) * 0.1, random(1000, 4).square()];
    let settings = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 7, grad_scale: 0.3 };
    let [p, g, m, v] = make();
    settings.step(&p, &g, &m, &v)?;
    let [p2, g2, m2, v2] = make();
    for (start, len) in [(0, 333), (333, 667)] {
        let part = |tensor: &Tensor| tensor.narrow(0, start, len);
        settings.step(&part(&p2), &part(&g2), &part(&m2), &part(&v2))?;
    }
    assert!(p.equal(&p2) && m.equal(&m2) && v.equal(&v2));
    Ok(())
}

#[test]
fn a_step_with_mismatched_tensors_is_an_error() {
    let zeros = |len, kind| Tensor::zeros([len], (kind, Device::Cpu));
    let settings = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 1, grad_scale: 1.0 };
    let f = |len| zeros(len, Kind::Float);
    let error = settings.step(&f(4), &zeros(4, Kind::BFloat16), &f(4), &f(4)).expect_err("a bf16 gradient");
    let text = "cannot apply AdamW step 1 to a tensor of [4]: its gradient is BFloat16 [4] on Cpu with strides [1]";
    assert_eq!(error.to_string(), text);
    assert!(settings.step(&f(4), &f(5), &f(4), &f(4)).is_err());
    assert!(AdamW { step: 0, ..settings }.step(&f(4), &f(4), &f(4), &f(4)).is_err());
}
