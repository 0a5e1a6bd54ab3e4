//! PyTorch's distributed engine, called from Rust.
//!
//! A [`Store`] lets ranks find each other, a [`Group`] moves tensors between them, and every collective returns a
//! [`Pending`] to wait on. Beside them lives the optimizer step over a shard ([`ops`]).
//!
//! Its `unsafe` code is all in talking to `cpp/shim.cpp`.

mod error;
mod ffi;
mod group;
mod pending;
mod store;

pub mod ops;

pub use error::Error;
pub use group::{Group, Reduce};
pub use pending::Pending;
pub use store::Store;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;
