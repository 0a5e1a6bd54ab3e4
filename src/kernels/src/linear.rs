//! A linear layer that multiplies fp32 matrices on the CPU with oneDNN.
//!
//! libtorch multiplies fp32 matrices with MKL, which has no AVX-512 code for AMD processors and takes twice the time there.

use crate::ffi;
use tch::Tensor;
use torch_error::TorchError;

/// Computes `x Wᵀ + b`; differentiable. `x` is `[…, in]`, `weight` `[out, in]`, `bias` `[out]`.
///
/// # Errors
/// The shapes do not fit, or memory is short.
pub fn f_linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TorchError> {
    call(x, weight, bias, false)
}

fn call(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, only_gradients: bool) -> Result<Tensor, TorchError> {
    let mut out = std::ptr::null_mut();
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: all pointers are of tensors that outlive the call, or null where the C++ allows it; it writes one new
    // tensor on success.
    ffi::done(unsafe { ffi::vidtui_linear(x.as_ptr(), weight.as_ptr(), bias, only_gradients, &mut out) })?;
    // SAFETY: the call above created the tensor and transfers ownership to us.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Computes [`f_linear`], and panics instead of returning an error.
///
/// # Panics
/// The shapes do not fit, or memory is short. tch's own operators panic too.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    f_linear(x, weight, bias).unwrap_or_else(|e| panic!("cannot apply a linear layer: {e}"))
}

/// Returns zeros in the shape of [`linear`]'s output, with the same backward pass. This saves the product of the forward pass in a
/// recomputed layer, if no gradient depends on the value of the layer's output.
///
/// # Panics
/// As [`linear`].
pub fn linear_gradients(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    call(x, weight, bias, true).unwrap_or_else(|e| panic!("cannot prepare the gradients of a linear layer: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn difference(got: &Tensor, want: &Tensor) -> f64 {
        assert_eq!((got.size(), got.kind()), (want.size(), want.kind()));
        (got - want).abs().max().to_kind(Kind::Double).double_value(&[])
    }

    /// One size below the least number of multiplications for oneDNN and one above it.
    const SHAPES: [([i64; 3], i64); 2] = [([2, 3, 8], 5), ([2, 100, 96], 64)];

    #[test]
    fn a_linear_layer_has_the_output_and_gradients_of_libtorchs() {
        for ([batch, rows, width], out) in SHAPES {
            for has_bias in [true, false] {
                let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true);
                let (x, w, b) = (random(&[batch, rows, width]), random(&[out, width]), random(&[out]));
                let bias = has_bias.then_some(&b);
                let pull = Tensor::randn([batch, rows, out], (Kind::Float, Device::Cpu));
                let wanted: Vec<&Tensor> = [&x, &w].into_iter().chain(bias).collect();
                let grads = |y: &Tensor| Tensor::run_backward(&[(y * &pull).sum(Kind::Float)], &wanted, false, false);
                let (ours, theirs) = (linear(&x, &w, bias), x.linear(&w, bias));
                assert!(difference(&ours, &theirs) < 1e-4);
                assert_eq!(tch::no_grad(|| linear(&x, &w, bias)), ours.detach());
                for (got, want) in grads(&ours).iter().zip(&grads(&theirs)) {
                    assert!(difference(got, want) < 1e-3);
                }
            }
        }
    }

    #[test]
    fn the_gradients_of_a_layer_do_not_need_its_output() {
        for (([batch, rows, width], out), kind) in SHAPES.into_iter().zip([Kind::Double, Kind::Float]) {
            let random = |size: &[i64]| Tensor::randn(size, (kind, Device::Cpu)).set_requires_grad(true);
            let (x, w, b) = (random(&[batch, rows, width]), random(&[out, width]), random(&[out]));
            let pull = Tensor::randn([batch, rows, out], (kind, Device::Cpu));
            let grads = |y: &Tensor| Tensor::run_backward(&[(y * &pull).sum(kind)], &[&x, &w, &b], false, false);
            let without = linear_gradients(&x, &w, Some(&b));
            assert_eq!(without, Tensor::zeros([batch, rows, out], (kind, Device::Cpu)));
            for (got, want) in grads(&without).iter().zip(&grads(&x.linear(&w, Some(&b)))) {
                assert!(difference(got, want) < 1e-3);
            }
            assert!(!tch::no_grad(|| linear_gradients(&x, &w, None)).requires_grad());
        }
    }

    #[test]
    fn the_output_may_be_changed_in_place() {
        for ([batch, rows, width], out) in SHAPES {
            let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true);
            let (x, w) = (random(&[batch, rows, width]), random(&[out, width]));
            let grads = |mut y: Tensor| {
                y += x.sum(Kind::Float);
                Tensor::run_backward(&[y.sum(Kind::Float)], &[&x, &w], false, false)
            };
            for (got, want) in grads(linear(&x, &w, None)).iter().zip(&grads(x.linear(&w, None::<Tensor>))) {
                assert!(difference(got, want) < 1e-2);
            }
        }
    }

    #[test]
    fn frozen_weights_and_inputs_get_no_gradient() {
        let ([batch, rows, width], out) = SHAPES[1];
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        let (x, w) = (random(&[batch, rows, width]), random(&[out, width]));
        assert!(!linear(&x, &w, None).requires_grad());
        let grad =
            |input: &Tensor, y: Tensor| Tensor::run_backward(&[y.sum(Kind::Float)], &[input], false, false).remove(0);
        let trained = x.copy().set_requires_grad(true);
        let want = grad(&trained, trained.linear(&w, None::<Tensor>));
        assert!(difference(&grad(&trained, linear(&trained, &w, None)), &want) < 1e-3);
        let trained = w.copy().set_requires_grad(true);
        let want = grad(&trained, x.linear(&trained, None::<Tensor>));
        assert!(difference(&grad(&trained, linear(&x, &trained, None)), &want) < 1e-3);
    }

    #[test]
    fn bf16_and_views_of_other_tensors_are_accepted() {
        let ([batch, rows, width], out) = SHAPES[1];
        let whole = Tensor::randn([batch, width, 2 * rows], (Kind::Float, Device::Cpu));
        let x = whole.narrow(2, rows, rows).transpose(1, 2);
        let w = Tensor::randn([width, out], (Kind::Float, Device::Cpu)).transpose(0, 1);
        assert!(difference(&linear(&x, &w, None), &x.linear(&w, None::<Tensor>)) < 1e-4);
        let [x, w] = [x, w].map(|t| t.to_kind(Kind::BFloat16));
        assert_eq!(linear(&x, &w, None), x.linear(&w, None::<Tensor>));
    }

    #[test]
    fn shapes_that_do_not_fit_are_an_error() {
        let ([batch, rows, width], out) = SHAPES[1];
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        assert!(f_linear(&random(&[batch, rows, width]), &random(&[out, width + 1]), None).is_err());
    }
}
