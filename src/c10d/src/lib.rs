//! Rust bindings for PyTorch's distributed library c10d: stores, process groups and collectives over gloo and NCCL.
//!
//! Ranks find each other through a [`Store`], a [`Group`] moves tensors between them, and every collective returns a
//! [`Pending`] to wait on; those in autograd graphs return a tensor or [`TokensInFlight`]. The crate also has the optimizer steps of a
//! shard ([`ops`], [`adamw8`]), CUDA functions that tch does not bind ([`cuda`]), tensors in memory-mapped files ([`mapped`]), libtorch's
//! profiler ([`profile`]), counts of the waits of the host for the device ([`waits`]), a filter against connections of strangers
//! ([`drop_new_connections`]), and an exit of the process that skips libtorch's destructors ([`exit`]).
//!
//! On the CPU, gloo runs the collectives. The feature `cuda` adds NCCL, and then the crate links against a libtorch
//! with CUDA. Without the feature, the CUDA functions also exist, but return an error.
//!
//! Most `unsafe` code calls the C++ functions in `cpp/`. Comments call these functions the shim.

mod error;
mod exit;
mod ffi;
mod group;
mod listeners;
mod pending;
mod store;
mod threads;
mod tokens;

pub mod adamw8;
pub mod collectives;
pub mod cuda;
pub mod mapped;
pub mod ops;
pub mod profile;
pub mod waits;

pub use error::Error;
pub use exit::exit;
pub use group::{Group, Sent};
pub use listeners::drop_new_connections;
pub use pending::{Pending, Reduce};
pub use store::Store;
pub use threads::compute_alone;
pub use tokens::TokensInFlight;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
