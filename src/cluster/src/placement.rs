//! The placement of ranks on nodes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Node, NodeId};

/// The node of each rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// One entry per rank, in rank order.
    pub ranks: Vec<RankPlace>,
}

/// The node of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// The rank, counted over all nodes.
    pub rank: usize,
    /// The node.
    pub node: NodeId,
    /// The rank, counted within its node.
    pub local_rank: usize,
}

/// The reason why ranks cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The run has no ranks.
    #[error("cannot place a run of 0 ranks")]
    NoRanks,
    /// The nodes have too few slots.
    #[error("cannot place {ranks} rank{}: {}, {} too few", if *ranks == 1 { "" } else { "s" }, sum(nodes), ranks - total(nodes))]
    TooFewSlots {
        /// The ranks to place.
        ranks: usize,
        /// The nodes.
        nodes: Vec<Node>,
    },
    /// A node is listed twice.
    #[error("cannot place ranks: node {0} is listed twice")]
    TwiceListed(NodeId),
}

impl Placement {
    /// Fills the nodes with ranks, in their order.
    ///
    /// Consecutive ranks share a node, so that a shard group stays on one node if it fits.
    ///
    /// # Errors
    /// When the nodes have too few slots or one of them is listed twice.
    pub fn new(nodes: &[Node], world: usize) -> Result<Placement, PlacementError> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = nodes.iter().find(|node| !seen.insert(&node.id)) {
            return Err(PlacementError::TwiceListed(twice.id.clone()));
        }
        if world == 0 {
            return Err(PlacementError::NoRanks);
        }
        if total(nodes) < world {
            return Err(PlacementError::TooFewSlots { ranks: world, nodes: nodes.to_vec() });
        }
        let slots = nodes.iter().flat_map(|node| (0..node.slots).map(move |local_rank| (node, local_rank)));
        let ranks = slots.take(world).enumerate().map(|(rank, (node, local_rank))| RankPlace {
            rank,
            node: node.id.clone(),
            local_rank,
        });
        Ok(Placement { ranks: ranks.collect() })
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the nodes in use with their ranks, in rank order.
    pub fn by_node(&self) -> Vec<(&NodeId, Vec<&RankPlace>)> {
        let mut nodes: Vec<(&NodeId, Vec<&RankPlace>)> = Vec::new();
        for place in &self.ranks {
            match nodes.iter_mut().find(|(node, _)| **node == place.node) {
                Some((_, places)) => places.push(place),
                None => nodes.push((&place.node, vec![place])),
            }
        }
        nodes
    }
}

fn total(nodes: &[Node]) -> usize {
    nodes.iter().map(|node| node.slots).sum()
}

/// Formats the slots of nodes: `nodes have a 8 + b 4 = 12 slots`.
fn sum(nodes: &[Node]) -> String {
    match nodes {
        [] => "there are no nodes".into(),
        [node] => format!("node {} has {} slots", node.id, node.slots),
        _ => {
            let each: Vec<_> = nodes.iter().map(|node| format!("{} {}", node.id, node.slots)).collect();
            format!("nodes have {} = {} slots", each.join(" + "), total(nodes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(slots: &[usize]) -> Vec<Node> {
        slots.iter().zip(["a", "b", "c"]).map(|(&slots, name)| Node::local(name, slots)).collect()
    }

    #[test]
    fn nodes_are_filled_one_after_another() {
        let placement = Placement::new(&nodes(&[2, 0, 3]), 4).unwrap();
        let places: Vec<_> = placement.ranks.iter().map(|p| (p.rank, p.node.as_str(), p.local_rank)).collect();
        assert_eq!(places, [(0, "a", 0), (1, "a", 1), (2, "c", 0), (3, "c", 1)]);
        let per_node: Vec<_> = placement.by_node().iter().map(|(node, places)| (node.as_str(), places.len())).collect();
        assert_eq!(per_node, [("a", 2), ("c", 2)]);
    }

    #[test]
    fn too_few_slots_are_refused() {
        let errors = [(&[2][..], 3), (&[8, 4], 16), (&[], 1)]
            .map(|(slots, world)| Placement::new(&nodes(slots), world).unwrap_err());
        assert!(errors.iter().all(|error| matches!(error, PlacementError::TooFewSlots { .. })));
        insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"), @r"
        cannot place 3 ranks: node a has 2 slots, 1 too few
        cannot place 16 ranks: nodes have a 8 + b 4 = 12 slots, 4 too few
        cannot place 1 rank: there are no nodes, 1 too few
        ");
    }

    #[test]
    fn a_node_listed_twice_is_refused() {
        let twice = [Node::local("a", 1), Node::local("a", 1)];
        assert_eq!(Placement::new(&twice, 1), Err(PlacementError::TwiceListed(NodeId::from_hostname("a"))));
    }

    #[test]
    fn a_run_without_ranks_is_refused() {
        assert_eq!(Placement::new(&nodes(&[1]), 0), Err(PlacementError::NoRanks));
    }
}
