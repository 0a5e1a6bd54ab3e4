//! Gradients of outputs whose own gradients are known.

use crate::ffi;
use tch::Tensor;
use torch_error::TorchError;

/// Returns the gradient of `Σ ⟨output, cotangent⟩` with respect to each input, and `None` for an input that no output depends on. Frees the
/// graph.
///
/// * `outputs` — each output with its cotangent, of the same shape and dtype. Every output has a graph.
///
/// # Errors
/// An operator of the graph failed, for example a collective because a peer exited.
pub fn gradients(outputs: &[(&Tensor, &Tensor)], inputs: &[&Tensor]) -> Result<Vec<Option<Tensor>>, TorchError> {
    let (of, cotangents): (Vec<_>, Vec<_>) = outputs.iter().map(|(of, pull)| (of.as_ptr(), pull.as_ptr())).unzip();
    let leaves: Vec<_> = inputs.iter().map(|tensor| tensor.as_ptr()).collect();
    let mut grads = vec![std::ptr::null_mut(); inputs.len()];
    // SAFETY: all pointers are of tensors that outlive the call; it reads as many as the two numbers say, and writes a new tensor or null
    // into each element of `grads` on success.
    let status = unsafe {
        let (of, cotangents) = (of.as_ptr(), cotangents.as_ptr());
        ffi::vidtui_gradients(of, cotangents, outputs.len(), leaves.as_ptr(), leaves.len(), grads.as_mut_ptr())
    };
    ffi::done(status)?;
    let owned = |pointer: *mut torch_sys::C_tensor| {
        // SAFETY: a pointer that is not null is of a tensor that the call created; it transfers ownership to us.
        (!pointer.is_null()).then(|| unsafe { Tensor::from_ptr(pointer) })
    };
    Ok(grads.into_iter().map(owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn gradients_are_those_of_the_inner_product_with_the_cotangents() {
        let random = || Tensor::randn([3, 4], (Kind::Float, Device::Cpu));
        let [x, y, unused] = [(); 3].map(|()| random().set_requires_grad(true));
        let (first, second) = (&x * &y, x.exp());
        let cotangents = [random(), random()];
        let got = gradients(&[(&first, &cotangents[0]), (&second, &cotangents[1])], &[&x, &unused, &y]).unwrap();
        let want = [&cotangents[0] * &y + &cotangents[1] * x.exp(), &cotangents[0] * &x];
        assert!(got[1].is_none());
        for (got, want) in [&got[0], &got[2]].into_iter().zip(&want) {
            assert!((got.as_ref().unwrap() - want.detach()).abs().max().double_value(&[]) < 1e-6);
        }
    }

    #[test]
    fn a_cotangent_of_another_shape_is_an_error() {
        let x = Tensor::ones([3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let error = gradients(&[(&(&x * 2.0), &Tensor::ones([4], (Kind::Float, Device::Cpu)))], &[&x]).unwrap_err();
        assert!(error.to_string().contains("shape"), "{error}");
    }
}
