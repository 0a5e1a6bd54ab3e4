//! Operators that the model needs and libtorch lacks, each differentiable, behind one safe function.
//!
//! [`ttt::scan`] is the inner loop of TTT layers; [`attention::attend`] is attention that can reuse a saved result.
//! The code is in `cpp/`, and only this crate calls it. CUDA kernels belong here too.

pub mod attention;
mod ffi;
pub mod ttt;
