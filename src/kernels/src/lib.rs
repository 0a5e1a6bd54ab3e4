//! Operators that the model needs and libtorch lacks, each differentiable, behind one safe function.
//!
//! [`ttt::scan`] is the inner loop of TTT layers; [`attention::attend`] is attention that can be told its own result.
//! The code is in `cpp/`, and only this crate calls it: a CUDA kernel would come in here.

pub mod attention;
mod ffi;
pub mod ttt;
