//! Diffusion transformers as functions of their parameters.
//!
//! This crate owns no parameters. A [`family::Family`] of networks has three functions: [`embed`](family::Family::embed),
//! [`block`](family::Family::block) and [`head`](family::Family::head), which take views into tensors that the caller gathered.
//! [`network::Network::forward_backward`] processes the units of any family and requests each unit's parameters from its caller
//! through the trait [`network::Units`]. One process with whole tensors, FSDP and HSDP are different callers of the same code.
//! With tensor parallelism the callers pass parts of tensors, and [`parallel::TensorParallel`] combines the results.
//!
//! The families are [`cogvideox`], [`mmdit`], [`stdit3`] and [`wan`]. An [`objective::Objective`] noises latents and computes the loss, for any family.
//!
//! Shapes are written as suffixes: B batch, T latent frames, C channels, L tokens (text first, then video by frame, row,
//! column), S tokens of one segment, D model width, H heads, F head width, E width of the time embedding.

pub mod block;
pub mod cogvideox;
pub mod conditions;
pub mod diffusion;
pub mod dropout;
pub mod family;
pub mod masks;
pub mod mixers;
pub mod mmdit;
pub mod network;
pub mod objective;
pub mod parallel;
pub mod params;
pub mod patches;
pub mod sampler;
pub mod stdit3;
mod vjp;
pub mod wan;
pub mod waves;
