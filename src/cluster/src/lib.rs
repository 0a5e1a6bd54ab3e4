//! Where to train: nodes, ranks, and which rank goes to which node.

mod node;
mod placement;

pub use node::{Node, NodeId, NodeIdError, Rank};
pub use placement::{Placement, PlacementError, RankPlace};
