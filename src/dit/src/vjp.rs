//! Vector-Jacobian products through libtorch's autograd.

use tch::{TchError, Tensor};

/// Returns the gradient of `Σ ⟨output, cotangent⟩` with respect to each input.
///
/// tch's binding has no `grad_outputs`. The inner product has the same gradients, bit for bit, because its derivative
/// multiplies the cotangent by exactly one.
///
/// # Errors
/// A collective in the graph failed because a peer exited.
pub(crate) fn vjp(outputs: &[(&Tensor, &Tensor)], inputs: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let total = outputs
        .iter()
        .map(|(output, cotangent)| (*output * *cotangent).sum(output.kind()))
        .reduce(|sum, term| sum + term)
        .expect("a vector-Jacobian product has at least one output");
    Tensor::f_run_backward(&[total], inputs, false, false)
}

/// Returns a leaf tensor with the same values.
pub(crate) fn leaf(t: &Tensor) -> Tensor {
    t.detach().set_requires_grad(true)
}
