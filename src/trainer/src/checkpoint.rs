//! Saves and loads sharded parameters as logical tensors.
//!
//! Each rank of the first replica writes the pieces that it owns; rank 0 writes the manifest with the place of every piece.
//! Loading looks up the pieces that this rank owns now, so a checkpoint can be loaded on any mesh.

mod load;
mod pieces;
mod save;

pub use load::{Loaded, Restore, has_average, load};
pub use save::{PendingSave, SaveInfo, StagingMemory, begin, finish};

use crate::ema::EmaWeights;
use crate::optim::OptimizerState;
use recipe::ParamSpec;
use rundir::BaseWeights;
use sharding::fsdp::Fsdp;

/// The sharded state of training.
pub struct TrainingState<'a> {
    /// The sharded parameters.
    pub fsdp: &'a Fsdp,
    /// The optimizer state of the trained shards.
    pub moments: &'a mut OptimizerState,
    /// The average of the trained weights, if there is one.
    pub ema: Option<&'a EmaWeights>,
    /// The parameter tables of the units.
    pub tables: &'a [Vec<ParamSpec>],
    /// The checkpoint that the frozen parameters come from. If it is set, a save contains only the trained parameters.
    pub base: Option<&'a BaseWeights>,
}

#[cfg(test)]
mod tests;
