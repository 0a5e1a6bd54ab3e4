//! Vector-Jacobian products through libtorch's autograd.

use tch::{TchError, Tensor};

/// Returns the gradient of `Σ ⟨output, cotangent⟩` with respect to each input; zeros for an input that no output depends on.
///
/// # Errors
/// A collective in the graph failed because a peer exited.
pub(crate) fn vjp(outputs: &[(&Tensor, &Tensor)], inputs: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
    let grads = vjp_of_used(outputs, inputs)?;
    Ok(grads.into_iter().zip(inputs).map(|(grad, input)| grad.unwrap_or_else(|| input.zeros_like())).collect())
}

/// Returns the gradients of [`vjp`], and `None` for an input that no output depends on.
///
/// tch's binding has no `grad_outputs`. The inner product has the same gradients, bit for bit, because its derivative
/// multiplies the cotangent by exactly one.
///
/// # Errors
/// A collective in the graph failed because a peer exited.
pub(crate) fn vjp_of_used(outputs: &[(&Tensor, &Tensor)], inputs: &[&Tensor]) -> Result<Vec<Option<Tensor>>, TchError> {
    let total = outputs
        .iter()
        .filter(|(output, _)| output.requires_grad())
        .map(|(output, cotangent)| (*output * *cotangent).sum(output.kind()))
        .reduce(|sum, term| sum + term);
    match total {
        Some(total) if !inputs.is_empty() => {
            let grads = Tensor::f_run_backward(&[total], inputs, false, false)?;
            Ok(grads.into_iter().map(|grad| grad.defined().then_some(grad)).collect())
        }
        _ => Ok(inputs.iter().map(|_| None).collect()),
    }
}

/// Returns a leaf tensor with the same values.
pub(crate) fn leaf(t: &Tensor) -> Tensor {
    t.detach().set_requires_grad(true)
}
