//! CogVideoX's transformer as functions of its parameters.
//!
//! This crate owns no parameters. A block is a function ([`block`]) of views into tensors that the caller gathered;
//! [`network::Network::forward_backward`] processes the units of the network and requests each unit's parameters from its caller through
//! the trait [`network::Units`]. One process with whole tensors, FSDP and HSDP are different callers of the same code. With
//! tensor parallelism the callers pass parts of tensors, and [`parallel::TensorParallel`] combines the results.
//!
//! Shapes are written as suffixes: B batch, T latent frames, C channels, L tokens (text first, then video by frame, row,
//! column), D model width, H heads, F head width, E width of the time embedding.

pub mod block;
pub mod conditions;
pub mod diffusion;
pub mod dropout;
pub mod embed;
pub mod head;
pub mod masks;
pub mod network;
pub mod parallel;
pub mod params;
pub mod positions;
pub mod sampler;
pub mod segments;
pub mod ttt;
mod vjp;
