//! The mesh: the arrangement of the ranks of a run.

use std::fmt;

use units::counted;

use crate::schema::{ALL_BUT_ENCODE, EVERY_JOB, int};
use crate::{RecipeError, RecipeErrorKind, ResumeEffect};

section! {
    /// The arrangement of a run's ranks: `dp_replicate` replicas of the model, each split over `dp_shard` × `tp` ranks.
    ///
    /// The last axis is innermost: the ranks of a TP group, which communicate most, are consecutive, so that they share a
    /// node.
    #[derive(Copy, Eq)]
    pub struct Mesh("mesh", ALL_BUT_ENCODE, ResumeEffect::Rounding) {
        /// replicas of the model (data parallel)
        pub dp_replicate: usize = 1 => int(1, 100_000).read_by(EVERY_JOB);
        /// ranks that the parameters of one replica are sharded over (FSDP)
        pub dp_shard: usize = 1 => int(1, 100_000);
        /// ranks that the heads and hidden units of every block are split over, on the same samples (tensor parallel)
        #[serde(default = "one")]
        pub tp: usize = 1 => int(1, 1024);
    }
}

fn one() -> usize {
    1
}

impl Mesh {
    /// Returns the number of ranks the mesh needs.
    pub fn world(&self) -> usize {
        self.dp_replicate * self.dp_shard * self.tp
    }

    /// Returns the number of ranks, or TP groups, that train on different samples.
    pub fn data_ranks(&self) -> usize {
        self.dp_replicate * self.dp_shard
    }

    /// Returns a rank's coordinates, `(replicate, shard, tp)`; `rank = (replicate * dp_shard + shard) * tp + tp_rank`.
    pub fn coords(&self, rank: usize) -> (usize, usize, usize) {
        let data = rank / self.tp;
        (data / self.dp_shard, data % self.dp_shard, rank % self.tp)
    }

    /// Returns the name and size of each axis, without `tp` if it is 1.
    pub fn axes(&self) -> Vec<(&'static str, usize)> {
        let mut axes = vec![("dp_replicate", self.dp_replicate), ("dp_shard", self.dp_shard)];
        if self.tp > 1 {
            axes.push(("tp", self.tp));
        }
        axes
    }

    /// Checks that the mesh fits `ranks` exactly.
    ///
    /// # Errors
    /// When the product of the axes is not `ranks`; the hint gives the nearest mesh that fits.
    pub fn check_world(&self, ranks: usize) -> Result<(), RecipeError> {
        if self.world() == ranks {
            return Ok(());
        }
        let error = RecipeError::new(
            RecipeErrorKind::Mesh,
            "mesh does not fit",
            format!(
                "{} needs {}, and there {} {}",
                product(self.axes().into_iter().map(|(name, size)| format!("mesh.{name} {size}"))),
                counted(self.world(), "rank"),
                if ranks == 1 { "is" } else { "are" },
                ranks
            ),
            match self.nearest(ranks) {
                Some(change) => format!("set {change}, or start {}", counted(self.world(), "rank")),
                None => format!("start {}", counted(self.world(), "rank")),
            },
        );
        Err(self.axes().into_iter().fold(error, |error, (name, _)| error.key(format!("mesh.{name}"))))
    }

    /// Returns the smallest change that fits `ranks`. Tries replicas first: they do not change the memory of a rank.
    fn nearest(&self, ranks: usize) -> Option<String> {
        let (copy, row) = (self.dp_shard * self.tp, self.dp_replicate * self.tp);
        if ranks == 0 {
            None
        } else if ranks.is_multiple_of(copy) {
            Some(format!("mesh.dp_replicate = {}", ranks / copy))
        } else if ranks.is_multiple_of(row) {
            Some(format!("mesh.dp_shard = {}", ranks / row))
        } else if ranks.is_multiple_of(self.tp) {
            Some(format!("mesh.dp_replicate = 1 and mesh.dp_shard = {}", ranks / self.tp))
        } else {
            Some(format!("mesh.dp_replicate = 1, mesh.dp_shard = {ranks} and mesh.tp = 1"))
        }
    }
}

/// Shows the mesh with its product: `dp_replicate 2 × dp_shard 4 = 8 ranks`.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.axes().into_iter().map(|(name, size)| format!("{name} {size}"));
        write!(f, "{} = {}", product(axes), counted(self.world(), "rank"))
    }
}

fn product(factors: impl Iterator<Item = String>) -> String {
    factors.collect::<Vec<_>>().join(" × ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_tp_group_are_consecutive_and_so_are_the_shards_of_a_replica() {
        let places = |mesh: Mesh| (0..mesh.world()).map(|rank| mesh.coords(rank)).collect::<Vec<_>>();
        let data = places(Mesh { dp_replicate: 2, dp_shard: 3, tp: 1 });
        assert_eq!(data, [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0)]);
        let tp = places(Mesh { dp_replicate: 1, dp_shard: 2, tp: 3 });
        assert_eq!(tp, [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 1, 2)]);
    }

    #[test]
    fn a_mesh_is_shown_with_its_product_and_without_a_tp_of_1() {
        let shown = [1, 2].map(|tp| Mesh { dp_replicate: 1, dp_shard: 2, tp }.to_string());
        assert_eq!(shown, ["dp_replicate 1 × dp_shard 2 = 2 ranks", "dp_replicate 1 × dp_shard 2 × tp 2 = 4 ranks"]);
    }

    #[test]
    fn a_mesh_that_does_not_fit_shows_the_product_and_the_nearest_that_does() {
        let errors = [
            (1, 2, 1, 4),
            (4, 2, 1, 6),
            (2, 4, 1, 6),
            (3, 2, 1, 5),
            (1, 2, 1, 1),
            (1, 1, 1, 0),
            (2, 2, 2, 12),
            (2, 3, 2, 10),
            (1, 2, 2, 3),
        ]
        .map(|(dp_replicate, dp_shard, tp, ranks)| {
            Mesh { dp_replicate, dp_shard, tp }.check_world(ranks).unwrap_err().to_string()
        });
        insta::assert_snapshot!(errors.join("\n"));
    }

    #[test]
    fn a_mesh_fits_exactly_its_number_of_ranks() {
        assert_eq!(Mesh { dp_replicate: 2, dp_shard: 4, tp: 1 }.check_world(8), Ok(()));
    }
}
