//! Meshes and sharded parameters. The crate depends on collectives and flat tensors, not on a model.
//!
//! A *unit* is a list of tensors (its *slots*) that are gathered together. Its trained slots are concatenated in one
//! flat tensor, its frozen slots in another; each rank of a shard group owns one equal part, its *shard*, of each.

pub mod clip;
pub mod flat;
pub mod fsdp;
pub mod mesh;
pub mod offload;
pub mod slab;
