//! PyTorch's distributed engine, called from Rust.
//!
//! A [`Store`] lets ranks find each other, a [`Group`] moves tensors between them, and every collective returns a
//! [`Pending`] to wait on. Beside them live the optimizer step over a shard ([`ops`]) and what of CUDA tch does not bind
//! ([`cuda`]).
//!
//! Collectives on the CPU are gloo's. With the feature `cuda` there are NCCL's too, and the crate links against a libtorch
//! with CUDA; without it everything of CUDA is there as well, and fails with a text that says so.
//!
//! Its `unsafe` code is all in talking to the C++ in `cpp/`.

mod error;
mod ffi;
mod group;
mod pending;
mod store;

pub mod cuda;
pub mod ops;

pub use error::Error;
pub use group::{Group, Reduce, Sent};
pub use pending::Pending;
pub use store::Store;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;
