use serde::{Deserialize, Serialize};

use crate::RecipeError;

/// How the ranks of a run are arranged: `dp_replicate` groups that each hold the whole model, split over `dp_shard` ranks.
///
/// The last axis is innermost: the ranks of one shard group are consecutive, so that they share a node when they fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Copies of the model; gradients are averaged over them.
    pub dp_replicate: usize,
    /// Ranks that one copy of the model is split over.
    pub dp_shard: usize,
}

impl Mesh {
    /// Returns the number of ranks the mesh needs.
    pub fn world(&self) -> usize {
        self.dp_replicate * self.dp_shard
    }

    /// Returns a rank's place, `(replicate, shard)`; `rank = replicate * dp_shard + shard`.
    pub fn coords(&self, rank: usize) -> (usize, usize) {
        (rank / self.dp_shard, rank % self.dp_shard)
    }

    /// Checks that the mesh fits `ranks` exactly.
    ///
    /// # Errors
    /// Shows the product beside the number of ranks, and the nearest mesh that fits.
    pub fn check_world(&self, ranks: usize) -> Result<(), RecipeError> {
        if self.world() == ranks {
            return Ok(());
        }
        Err(RecipeError::new(
            "mesh does not fit",
            format!(
                "mesh.dp_replicate {} × mesh.dp_shard {} needs {}, there {} {}",
                self.dp_replicate,
                self.dp_shard,
                counted(self.world(), "rank"),
                if ranks == 1 { "is" } else { "are" },
                ranks
            ),
            match self.nearest(ranks) {
                Some(change) => format!("set {change}, or start {}", counted(self.world(), "rank")),
                None => format!("start {}", counted(self.world(), "rank")),
            },
        ))
    }

    /// The smallest change that fits `ranks`. Replicas first: they leave the memory of each rank as it is.
    fn nearest(&self, ranks: usize) -> Option<String> {
        if ranks == 0 {
            None
        } else if ranks.is_multiple_of(self.dp_shard) {
            Some(format!("mesh.dp_replicate = {}", ranks / self.dp_shard))
        } else if ranks.is_multiple_of(self.dp_replicate) {
            Some(format!("mesh.dp_shard = {}", ranks / self.dp_replicate))
        } else {
            Some(format!("mesh.dp_replicate = 1 and mesh.dp_shard = {ranks}"))
        }
    }
}

/// Writes a count with its noun, `1 rank` or `2 ranks`.
pub(crate) fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_one_replica_are_consecutive_ranks() {
        let mesh = Mesh { dp_replicate: 2, dp_shard: 3 };
        let places: Vec<_> = (0..mesh.world()).map(|rank| mesh.coords(rank)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_mesh_that_does_not_fit_shows_the_product_and_the_nearest_that_does() {
        let errors = [(1, 2, 4), (4, 2, 6), (2, 4, 6), (3, 2, 5), (1, 2, 1), (1, 1, 0)].map(
            |(dp_replicate, dp_shard, ranks)| {
                Mesh { dp_replicate, dp_shard }.check_world(ranks).unwrap_err().to_string()
            },
        );
        insta::assert_snapshot!(errors.join("\n"));
    }

    #[test]
    fn a_mesh_of_as_many_ranks_as_there_are_fits() {
        assert_eq!(Mesh { dp_replicate: 2, dp_shard: 4 }.check_world(8), Ok(()));
    }
}
