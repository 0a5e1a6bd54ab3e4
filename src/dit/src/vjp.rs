//! Vector-Jacobian products through libtorch's autograd.

use kernels::gradients::gradients;
use tch::Tensor;
use torch_error::TorchError;

/// Returns the gradient of `Σ ⟨output, cotangent⟩` with respect to each input; zeros for an input that no output depends on.
///
/// # Errors
/// A collective in the graph failed because a peer exited.
pub(crate) fn vjp(outputs: &[(&Tensor, &Tensor)], inputs: &[&Tensor]) -> Result<Vec<Tensor>, TorchError> {
    let grads = vjp_of_used(outputs, inputs)?;
    Ok(grads.into_iter().zip(inputs).map(|(grad, input)| grad.unwrap_or_else(|| input.zeros_like())).collect())
}

/// Returns the gradients of [`vjp`], and `None` for an input that no output depends on.
///
/// # Errors
/// A collective in the graph failed because a peer exited.
pub(crate) fn vjp_of_used(
    outputs: &[(&Tensor, &Tensor)],
    inputs: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, TorchError> {
    let with_graph: Vec<_> = outputs.iter().copied().filter(|(output, _)| output.requires_grad()).collect();
    if with_graph.is_empty() || inputs.is_empty() {
        return Ok(inputs.iter().map(|_| None).collect());
    }
    gradients(&with_graph, inputs)
}

/// Returns a leaf tensor with the same values.
pub(crate) fn leaf(t: &Tensor) -> Tensor {
    t.detach().set_requires_grad(true)
}
