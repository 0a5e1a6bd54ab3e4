//! Operators that the model needs and libtorch lacks or computes slowly, each differentiable, behind one safe function.
//!
//! [`ttt::scan`] is the inner loop of TTT layers; [`attention::scaled_dot_product`] is attention that can reuse a saved
//! result; [`linear::linear`] is a linear layer that is fast on any processor; [`fused`] has operators that keep fewer tensors;
//! [`order::Order`] reorders tokens; [`gradients::gradients`] runs backward passes from given gradients; [`normal::normal`] draws noise.
//! The code is in `cpp/`, and only this crate calls it. CUDA kernels belong here too.

pub mod attention;
mod ffi;
pub mod fused;
pub mod gradients;
pub mod linear;
pub mod normal;
pub mod order;
pub mod ttt;

/// The implementation of an operator on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnGpu {
    /// A CUDA kernel of this crate where it can run, else libtorch's operators.
    Auto,
    /// libtorch's operators.
    Operators,
    /// A CUDA kernel of this crate. The scan and the fused operators need a GPU and sizes for which [`ttt::supports`] and
    /// [`fused::supports`] return true.
    Kernel,
}

impl OnGpu {
    /// Returns whether a kernel computes what it supports.
    pub(crate) fn prefers_kernel(self) -> bool {
        self != OnGpu::Operators
    }
}
