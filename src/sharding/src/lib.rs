//! Meshes and sharded parameters. Knows collectives and flat tensors, and no model.
//!
//! A *unit* is what is gathered at once: a list of tensors (its *slots*). Its trained slots are laid end to end in one
//! flat tensor, its frozen slots in another; each rank of a shard group keeps one equal part, its *shard*, of each.

pub mod clip;
pub mod flat;
pub mod fsdp;
pub mod mesh;
