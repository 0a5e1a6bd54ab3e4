//! Fused operators of a transformer block. Autograd keeps fewer tensors of the size of the sequence than for separate operators.
//!
//! A sequence `[B, L, D]` has two parts, the first `split` tokens and the others, each with its own vectors: `[B, 1, D]`, or `[D]` if
//! all samples share them. The parts are views of one tensor; separate operators would concatenate them, and the gradient of
//! each part would be as long as the sequence.
//!
//! On a GPU, all but [`OnGpu::Operators`] select CUDA kernels that compute in fp32 and round once. They support bf16 and fp32, and widths
//! that are multiples of 16 bytes, up to 3,072 for norms and gates. Other tensors use libtorch's operators, as on the CPU.

use crate::{OnGpu, ffi};
use tch::{Kind, Tensor};

/// Returns whether this build has the CUDA kernels and GPU number `gpu` can run them for tokens of `width` numbers in heads of `head_width`
/// numbers.
pub fn supports(width: i64, head_width: i64, kind: Kind, gpu: usize) -> bool {
    let Ok(device) = i32::try_from(gpu) else { return false };
    let is_bf16 = match kind {
        Kind::BFloat16 => true,
        Kind::Float => false,
        _ => return false,
    };
    // SAFETY: only numbers are passed.
    unsafe { ffi::vidtui_fused_supports(width, head_width, is_bf16, device) != 0 }
}

/// The vectors that modulate the tokens of one part of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Modulation<'a> {
    /// Added after the scale.
    pub shift: &'a Tensor,
    /// The tokens are multiplied by `1 + scale`.
    pub scale: &'a Tensor,
}

/// Normalizes tokens, then computes `norm · (1 + scale) + shift`; differentiable in all tensors. The graph keeps `x`.
///
/// * `x` — `[B, L, D]`
/// * `norm` — gain and bias of the LayerNorm, `[D]` each.
/// * `parts` — the modulation of the first `split` tokens, and of the others.
///
/// # Panics
/// The shapes do not match. tch's own operators panic too.
pub fn modulated_norm(
    x: &Tensor,
    norm: (&Tensor, &Tensor),
    parts: [Modulation<'_>; 2],
    split: i64,
    eps: f64,
    on_gpu: OnGpu,
) -> Tensor {
    let vectors = parts.map(|part| [part.shift, part.scale].map(Tensor::as_ptr));
    let mut out = std::ptr::null_mut();
    // SAFETY: all pointers are of tensors that outlive the call; it reads four of `vectors` and writes one new tensor on success.
    let status = unsafe {
        let (gain, bias) = (norm.0.as_ptr(), norm.1.as_ptr());
        ffi::vidtui_modulated_norm(
            x.as_ptr(),
            gain,
            bias,
            vectors.as_flattened().as_ptr(),
            split,
            eps,
            on_gpu.prefers_kernel(),
            &raw mut out,
        )
    };
    ffi::expect_done(status, "normalize and modulate tokens");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    unsafe { Tensor::from_ptr(out) }
}

/// Computes `x + gate · update`; differentiable in all tensors. The graph keeps `update`, if a gate has a gradient.
///
/// * `x`, `update` — `[B, L, D]`
/// * `gates` — the gate of the first `split` tokens, and of the others.
///
/// # Panics
/// The shapes do not match. tch's own operators panic too.
pub fn gated_add(x: &Tensor, update: &Tensor, gates: [&Tensor; 2], split: i64, on_gpu: OnGpu) -> Tensor {
    let gates = gates.map(Tensor::as_ptr);
    let mut out = std::ptr::null_mut();
    // SAFETY: all pointers are of tensors that outlive the call; it reads two of `gates` and writes one new tensor on success.
    let status = unsafe {
        ffi::vidtui_gated_add(x.as_ptr(), update.as_ptr(), gates.as_ptr(), split, on_gpu.prefers_kernel(), &raw mut out)
    };
    ffi::expect_done(status, "add an update to tokens");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    unsafe { Tensor::from_ptr(out) }
}

/// Normalizes each head of `x`, `[B, L, heads, F]`, with gain and bias `[F]`, then rotates it as [`rotate`] does if there are factors;
/// differentiable in `x`, gain and bias. With the CUDA kernels, the graph keeps only `x`.
///
/// The kernels support heads of 16, 32, … or 512 bytes. Other heads use libtorch's LayerNorm.
///
/// # Panics
/// The shapes do not match. tch's own operators panic too.
pub fn head_norm(x: &Tensor, norm: (&Tensor, &Tensor), factors: Option<&Tensor>, eps: f64, on_gpu: OnGpu) -> Tensor {
    let factors = factors.map_or(std::ptr::null(), Tensor::as_ptr);
    let mut out = std::ptr::null_mut();
    // SAFETY: all pointers are of tensors that outlive the call, or null for missing factors; it writes one new tensor on success.
    let status = unsafe {
        let (gain, bias) = (norm.0.as_ptr(), norm.1.as_ptr());
        ffi::vidtui_head_norm(x.as_ptr(), gain, bias, factors, eps, on_gpu.prefers_kernel(), &raw mut out)
    };
    ffi::expect_done(status, "normalize heads");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    unsafe { Tensor::from_ptr(out) }
}

/// Rotates adjacent pairs of `x`, `[B, L, heads, F]`, by the complex factors `[L, F/2]`, in fp32; differentiable in `x`.
///
/// # Panics
/// The shapes do not match. tch's own operators panic too.
pub fn rotate(x: &Tensor, factors: &Tensor, on_gpu: OnGpu) -> Tensor {
    let mut out = std::ptr::null_mut();
    // SAFETY: both tensors outlive the call, which writes one new tensor on success.
    let status = unsafe { ffi::vidtui_rotate(x.as_ptr(), factors.as_ptr(), on_gpu.prefers_kernel(), &raw mut out) };
    ffi::expect_done(status, "rotate tokens");
    // SAFETY: the call above created the tensor and transfers ownership to us.
    unsafe { Tensor::from_ptr(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    const B: i64 = 2;
    const L: i64 = 7;
    const D: i64 = 8;
    const SPLIT: i64 = 3;
    const EPS: f64 = 1e-5;

    /// The tensors of both operators: x, gain, bias, shift and scale of each part; x, update, and the gate of each part.
    const NORM: [&[i64]; 7] = [&[B, L, D], &[D], &[D], &[B, 1, D], &[B, 1, D], &[B, 1, D], &[B, 1, D]];
    const GATED: [&[i64]; 4] = [&[B, L, D], &[B, L, D], &[B, 1, D], &[B, 1, D]];
    /// The gates of a TTT layer are parameters.
    const GATED_BY_PARAMETERS: [&[i64]; 4] = [&[B, L, D], &[B, L, D], &[D], &[D]];

    /// Heads, gain and bias.
    const HEADS: [&[i64]; 3] = [&[B, L, 3, 8], &[8], &[8]];

    type Operator = fn(&[Tensor]) -> Tensor;

    fn fused_norm(t: &[Tensor]) -> Tensor {
        let part = |i: usize| Modulation { shift: &t[i], scale: &t[i + 1] };
        modulated_norm(&t[0], (&t[1], &t[2]), [part(3), part(5)], SPLIT, EPS, OnGpu::Kernel)
    }

    fn composite_norm(t: &[Tensor]) -> Tensor {
        let normed = t[0].layer_norm([D], Some(&t[1]), Some(&t[2]), EPS, true);
        let part = |start, len, i: usize| t[i].addcmul(&normed.narrow(1, start, len), &(&t[i + 1] + 1.0));
        Tensor::cat(&[part(0, SPLIT, 3), part(SPLIT, L - SPLIT, 5)], 1)
    }

    fn fused_gate(t: &[Tensor]) -> Tensor {
        gated_add(&t[0], &t[1], [&t[2], &t[3]], SPLIT, OnGpu::Kernel)
    }

    fn composite_gate(t: &[Tensor]) -> Tensor {
        let part = |start, len, i: usize| t[0].narrow(1, start, len).addcmul(&t[i], &t[1].narrow(1, start, len));
        Tensor::cat(&[part(0, SPLIT, 2), part(SPLIT, L - SPLIT, 3)], 1)
    }

    const PAIRS: [(&[&[i64]], Operator, Operator); 3] = [
        (&NORM, fused_norm, composite_norm),
        (&GATED, fused_gate, composite_gate),
        (&GATED_BY_PARAMETERS, fused_gate, composite_gate),
    ];

    fn composite_head_norm(t: &[Tensor], factors: Option<&Tensor>) -> Tensor {
        let normed = t[0].layer_norm([8], Some(&t[1]), Some(&t[2]), EPS, true);
        let turned = |factors: &Tensor| {
            let pairs = normed.view([B, L, 3, 4, 2]).view_as_complex();
            (pairs * factors.unsqueeze(1)).view_as_real().flatten(3, 4)
        };
        factors.map_or_else(|| normed.shallow_clone(), turned)
    }

    fn random(sizes: &[&[i64]], kind: Kind) -> Vec<Tensor> {
        sizes.iter().map(|size| Tensor::randn(*size, (Kind::Double, Device::Cpu)).to_kind(kind)).collect()
    }

    /// Returns the output, then the gradients of the tensors whose bit in `trained` is set.
    fn results(operator: &dyn Fn(&[Tensor]) -> Tensor, tensors: &[Tensor], pull: &Tensor, trained: u32) -> Vec<Tensor> {
        let is_trained = |i: usize| (trained >> i) & 1 == 1;
        let leaves: Vec<Tensor> =
            tensors.iter().enumerate().map(|(i, t)| t.detach().set_requires_grad(is_trained(i))).collect();
        let out = operator(&leaves);
        assert_eq!(out.requires_grad(), trained != 0);
        let wanted: Vec<&Tensor> = leaves.iter().filter(|t| t.requires_grad()).collect();
        let mut all = vec![out.detach()];
        if trained != 0 {
            all.extend(Tensor::run_backward(&[(&out * pull).sum(Kind::Double)], &wanted, false, false));
        }
        all
    }

    #[test]
    fn every_choice_of_trained_tensors_gets_the_gradients_of_separate_operators() {
        for (sizes, fused, composite) in PAIRS {
            let tensors = random(sizes, Kind::Double);
            let pull = Tensor::randn([B, L, D], (Kind::Double, Device::Cpu));
            for trained in 0..1 << sizes.len() {
                let got = results(&fused, &tensors, &pull, trained);
                let want = results(&composite, &tensors, &pull, trained);
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.size(), want.size());
                    let error = ((got - want).norm() / want.norm()).double_value(&[]);
                    assert!(error < 1e-13, "trained tensors {trained:b}: off by {error:e}");
                }
            }
        }
    }

    #[test]
    fn the_gradients_are_finite_differences() {
        for (sizes, fused, _) in PAIRS {
            let tensors = random(sizes, Kind::Double);
            let pull = Tensor::randn([B, L, D], (Kind::Double, Device::Cpu));
            let grads = results(&fused, &tensors, &pull, (1 << sizes.len()) - 1);
            for (i, grad) in grads[1..].iter().enumerate() {
                let direction = tensors[i].randn_like();
                let loss = |step: f64| {
                    let mut moved: Vec<Tensor> = tensors.iter().map(Tensor::shallow_clone).collect();
                    moved[i] = &tensors[i] + &direction * step;
                    (fused(&moved) * &pull).sum(Kind::Double).double_value(&[])
                };
                let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                let want = (grad * &direction).sum(Kind::Double).double_value(&[]);
                assert!((slope - want).abs() < 1e-7 * (1.0 + want.abs()), "tensor {i}: {slope} and {want}");
            }
        }
    }

    #[test]
    fn outputs_and_the_gradients_of_tokens_have_the_bits_of_separate_operators() {
        for (kind, (sizes, fused, composite)) in
            [Kind::Float, Kind::BFloat16].into_iter().flat_map(|kind| PAIRS.map(|pair| (kind, pair)))
        {
            let tensors = random(sizes, kind);
            let pull = Tensor::randn([B, L, D], (Kind::Double, Device::Cpu)).to_kind(kind);
            let of = |operator| results(operator, &tensors, &pull, 0b11);
            for (got, want) in of(&fused).iter().zip(&of(&composite)) {
                assert_eq!((got.kind(), got), (want.kind(), want));
            }
        }
    }

    #[test]
    fn inputs_that_are_views_are_accepted() {
        for (sizes, fused, composite) in PAIRS {
            let mut tensors = random(sizes, Kind::Double);
            tensors[0] = Tensor::randn([B, D, 2 * L], (Kind::Double, Device::Cpu)).narrow(2, 2, L).transpose(1, 2);
            let pull = Tensor::randn([B, D, L], (Kind::Double, Device::Cpu)).transpose(1, 2);
            let of = |operator| results(operator, &tensors, &pull, 0b1111);
            for (got, want) in of(&fused).iter().zip(&of(&composite)) {
                assert!((got - want).abs().max().double_value(&[]) < 1e-12);
            }
        }
    }

    /// Rotates as separate operators of libtorch do.
    fn composite_rotation(x: &Tensor, factors: &Tensor) -> Tensor {
        let size = x.size();
        let pairs = x.to_kind(Kind::Float).reshape([size[0], size[1], size[2], size[3] / 2, 2]).view_as_complex();
        (pairs * factors.unsqueeze(1)).view_as_real().flatten(3, 4).to_kind(x.kind())
    }

    #[test]
    fn a_rotation_has_the_bits_of_separate_operators() {
        let angles = Tensor::randn([L, 4], (Kind::Float, Device::Cpu));
        let factors = Tensor::complex(&angles.cos(), &angles.sin());
        for kind in [Kind::Float, Kind::BFloat16] {
            let random = || Tensor::randn([B, L, 3, 8], (Kind::Float, Device::Cpu)).to_kind(kind);
            let (x, pull) = (random().set_requires_grad(true), random());
            let of = |out: Tensor| {
                let grad = Tensor::run_backward(&[(&out * &pull).sum(Kind::Float)], &[&x], false, false).remove(0);
                (out.detach(), grad)
            };
            assert_eq!(of(rotate(&x, &factors, OnGpu::Kernel)), of(composite_rotation(&x, &factors)));
        }
    }

    #[test]
    fn a_head_norm_has_the_numbers_of_separate_operators() {
        let angles = Tensor::randn([L, 4], (Kind::Double, Device::Cpu));
        let factors = Tensor::complex(&angles.cos(), &angles.sin()).to_kind(Kind::ComplexFloat);
        let (tensors, pull) = (random(&HEADS, Kind::Float), Tensor::randn(HEADS[0], (Kind::Float, Device::Cpu)));
        for factors in [None, Some(&factors)] {
            let fused = |t: &[Tensor]| head_norm(&t[0], (&t[1], &t[2]), factors, EPS, OnGpu::Kernel);
            let got = results(&fused, &tensors, &pull, 7);
            let want = results(&|t| composite_head_norm(t, factors), &tensors, &pull, 7);
            assert_eq!(got, want, "with factors: {}", factors.is_some());
        }
    }

    #[test]
    fn a_build_without_cuda_supports_no_width() {
        // With CUDA, all calls return false too: there is no GPU 99, and no kernel has these widths and this dtype.
        let all = [
            (3072, 64, Kind::BFloat16, 99),
            (3080, 64, Kind::BFloat16, 0),
            (64, 4, Kind::BFloat16, 0),
            (64, 64, Kind::Half, 0),
        ];
        for (width, head_width, kind, gpu) in all {
            assert!(!supports(width, head_width, kind, gpu), "{width} {head_width} {kind:?}");
        }
    }

    #[test]
    fn the_cuda_kernels_give_the_numbers_of_the_cpu() {
        if !tch::Cuda::is_available() {
            println!("skipped: no GPU");
            return;
        }
        let there = |t: &Tensor| t.to_device(Device::Cuda(0));
        let near = |got: &Tensor, want: &Tensor, kind: Kind, what: &str| {
            let got = got.to_device(Device::Cpu).to_kind(Kind::Double);
            let error = ((got - want).norm() / want.norm()).double_value(&[]);
            // A rounding to bf16 is one part in 256; the kernels round once.
            assert!(error < if kind == Kind::Float { 1e-5 } else { 5e-3 }, "{what}, {kind:?}: off by {error:e}");
        };
        for kind in [Kind::Float, Kind::BFloat16] {
            for (what, (sizes, fused, composite)) in ["norm", "gate", "gate of parameters"].into_iter().zip(PAIRS) {
                let tensors = random(sizes, kind);
                let pull = Tensor::randn([B, L, D], (Kind::Double, Device::Cpu)).to_kind(kind);
                let all = (1 << sizes.len()) - 1;
                let exact: Vec<Tensor> = tensors.iter().map(|t| t.to_kind(Kind::Double)).collect();
                let want = results(&composite, &exact, &pull.to_kind(Kind::Double), all);
                let got = results(&fused, &tensors.iter().map(there).collect::<Vec<_>>(), &there(&pull), all);
                for (got, want) in got.iter().zip(&want) {
                    near(got, want, kind, what);
                }
            }
            let heads = random(&HEADS, kind);
            let angles = Tensor::randn([L, 4], (Kind::Float, Device::Cpu));
            let factors = Tensor::complex(&angles.cos(), &angles.sin());
            for factors in [None, Some(&factors)] {
                let pull = Tensor::randn(HEADS[0], (Kind::Double, Device::Cpu)).to_kind(kind);
                let exact: Vec<Tensor> = heads.iter().map(|t| t.to_kind(Kind::Double)).collect();
                let want = results(&|t| composite_head_norm(t, factors), &exact, &pull.to_kind(Kind::Double), 7);
                let (on_gpu, factors) = (heads.iter().map(there).collect::<Vec<_>>(), factors.map(there));
                let fused = |t: &[Tensor]| head_norm(&t[0], (&t[1], &t[2]), factors.as_ref(), EPS, OnGpu::Kernel);
                for (got, want) in results(&fused, &on_gpu, &there(&pull), 7).iter().zip(&want) {
                    near(got, want, kind, "head norm");
                }
            }
            let angles = Tensor::randn([L, 4], (Kind::Float, Device::Cpu));
            let factors = Tensor::complex(&angles.cos(), &angles.sin());
            let x = Tensor::randn([B, L, 3, 8], (Kind::Float, Device::Cpu)).to_kind(kind);
            let got = rotate(&there(&x), &there(&factors), OnGpu::Kernel);
            near(&got, &composite_rotation(&x, &factors).to_kind(Kind::Double), kind, "rotation");
        }
    }
}
