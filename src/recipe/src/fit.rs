//! Fits a recipe to a number of ranks without changing the global batch.

use crate::load::{Origin, Resolved};
use crate::{Accumulate, JobKind, Mesh, Recipe, RecipeError, RecipeErrorKind};
use units::counted;

/// The changes that [`Recipe::fit`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshFit {
    /// The mesh of the recipe, and the mesh that fits.
    pub mesh: [Mesh; 2],
    /// The gradient accumulation of the recipe, and the value that fits.
    pub grad_accum: [usize; 2],
}

impl Recipe {
    /// Returns the mesh and the gradient accumulation that train the same global batch on `ranks` ranks.
    ///
    /// `tp` does not change, because it decides how much of a sample a rank holds. `dp_shard` stays the same if it
    /// fits. Otherwise `dp_shard` grows, so that a rank needs less memory. If there are fewer ranks than `dp_shard`,
    /// one replica is sharded over all ranks. A rank never processes more samples at a time than before.
    ///
    /// # Errors
    /// If the recipe runs a command, or if no mesh fits; the hint then gives the nearest numbers of ranks that fit.
    pub fn fit(&self, ranks: usize) -> Result<MeshFit, RecipeError> {
        if self.job() == JobKind::Command {
            return Err(RecipeError::new(
                RecipeErrorKind::WrongTrainer,
                format!("{} cannot be fitted to {}", self.name, counted(ranks, "rank")),
                "the recipe runs a command, which divides its batch itself and starts on all ranks of the nodes",
                "remove --fit, and pass batch sizes to your program in command.run",
            ));
        }
        let (batch, tp) = (self.train.global_batch, self.mesh.tp);
        if !self.can_fit(ranks) {
            let why = if ranks == 0 {
                "there are no ranks".to_owned()
            } else if !ranks.is_multiple_of(tp) {
                format!("{} cannot be divided into groups of mesh.tp {tp}", counted(ranks, "rank"))
            } else {
                let of = if tp == 1 { String::new() } else { format!(" / mesh.tp {tp}") };
                let sharing = format!("{}{of}", counted(ranks, "rank"));
                format!("train.global_batch {batch} cannot be divided equally among {sharing}")
            };
            let nearest: Vec<String> = self.nearest_fits(ranks).iter().map(ToString::to_string).collect();
            return Err(RecipeError::new(
                RecipeErrorKind::Mesh,
                format!("{} does not fit {}", self.name, counted(ranks, "rank")),
                why,
                format!("train on {}", nearest.join(" or ")),
            ));
        }
        let groups = ranks / tp;
        let shards = (1..=groups).filter(|shards| groups.is_multiple_of(*shards));
        let dp_shard = shards.clone().find(|shards| *shards >= self.mesh.dp_shard).unwrap_or(groups);
        let mesh = Mesh { dp_replicate: groups / dp_shard, dp_shard, tp };
        let share = batch / groups;
        let at_a_time = batch / self.mesh.data_ranks() / self.train.grad_accum;
        let samples = (1..=share.min(at_a_time)).rev().find(|samples| share.is_multiple_of(*samples)).unwrap_or(1);
        Ok(MeshFit { mesh: [self.mesh, mesh], grad_accum: [self.train.grad_accum, share / samples] })
    }

    /// Checks that the mesh has exactly `ranks` ranks.
    ///
    /// # Errors
    /// As [`Mesh::check_world`]; the hint offers `--fit` when the recipe can be fitted.
    pub fn check_world(&self, ranks: usize) -> Result<(), RecipeError> {
        self.mesh.check_world(ranks).map_err(|error| match self.fit(ranks) {
            Ok(_) => {
                RecipeError { fix: format!("{}; or use --fit {ranks}, which keeps the batch", error.fix), ..error }
            }
            Err(_) => error,
        })
    }

    fn can_fit(&self, ranks: usize) -> bool {
        let groups = ranks / self.mesh.tp;
        groups > 0 && ranks.is_multiple_of(self.mesh.tp) && self.train.global_batch.is_multiple_of(groups)
    }

    /// Returns the nearest numbers of ranks that fit, at most one on each side.
    fn nearest_fits(&self, ranks: usize) -> Vec<usize> {
        let most = self.train.global_batch * self.mesh.tp;
        let below = (1..ranks.min(most + 1)).rev().find(|n| self.can_fit(*n));
        let above = (ranks + 1..=most).find(|n| self.can_fit(*n));
        below.into_iter().chain(above).collect()
    }
}

impl MeshFit {
    /// Returns whether nothing changed.
    pub fn is_none(&self) -> bool {
        self.mesh[0] == self.mesh[1] && self.grad_accum[0] == self.grad_accum[1]
    }
}

/// Shows the changes: `dp_replicate 2 × dp_shard 8 = 16 ranks instead of …, train.grad_accum 4 instead of 1`.
impl std::fmt::Display for MeshFit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} instead of {}", self.mesh[1], self.mesh[0])?;
        let [before, now] = self.grad_accum;
        if before == now { Ok(()) } else { write!(f, ", train.grad_accum {now} instead of {before}") }
    }
}

impl Resolved {
    /// Changes the recipe to what [`Recipe::fit`] returns.
    ///
    /// # Errors
    /// As [`Recipe::fit`].
    pub fn fit(&mut self, ranks: usize) -> Result<MeshFit, RecipeError> {
        let fit = self.recipe.fit(ranks)?;
        let before = self.recipe.clone();
        self.recipe.mesh = fit.mesh[1];
        self.recipe.train.grad_accum = fit.grad_accum[1];
        // The check rejects keys that have no effect on the new mesh.
        let is_sharded = self.recipe.mesh.dp_shard > 1;
        if !is_sharded || self.recipe.train.grad_accum == 1 {
            self.recipe.train.accumulate = Accumulate::Whole;
        }
        if !is_sharded {
            self.recipe.memory.keep_gathered = 0;
        }
        self.table = self.recipe.to_table();
        for (key, changed) in [
            ("mesh.dp_replicate", before.mesh.dp_replicate != self.recipe.mesh.dp_replicate),
            ("mesh.dp_shard", before.mesh.dp_shard != self.recipe.mesh.dp_shard),
            ("train.grad_accum", before.train.grad_accum != self.recipe.train.grad_accum),
            ("train.accumulate", before.train.accumulate != self.recipe.train.accumulate),
            ("memory.keep_gathered", before.memory.keep_gathered != self.recipe.memory.keep_gathered),
        ] {
            if changed {
                self.origins.insert(key.to_owned(), Origin::Fit(ranks));
            }
        }
        Ok(fit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    /// The recipe of a stage of `configs/ttt-mlp`.
    fn stage(name: &str) -> Resolved {
        load(format!("../../configs/ttt-mlp/{name}.toml").as_str().into(), &[]).unwrap()
    }

    fn fitted(name: &str, ranks: usize) -> ([usize; 3], usize) {
        let mut resolved = stage(name);
        resolved.fit(ranks).unwrap();
        let Recipe { mesh, train, .. } = &resolved.recipe;
        assert_eq!(resolved.recipe.check(), Ok(()));
        assert_eq!((mesh.world(), train.global_batch), (ranks, 64));
        assert_eq!(Recipe::from_table(&resolved.table).as_ref(), Ok(&resolved.recipe));
        ([mesh.dp_replicate, mesh.dp_shard, mesh.tp], train.grad_accum)
    }

    #[test]
    fn fewer_ranks_compute_the_same_batch_in_more_parts() {
        assert_eq!(fitted("3s", 64), ([8, 8, 1], 1));
        assert_eq!(fitted("3s", 16), ([2, 8, 1], 4));
        assert_eq!(fitted("3s", 4), ([1, 4, 1], 16));
        assert_eq!(fitted("3s", 1), ([1, 1, 1], 64));
        assert_eq!(fitted("63s", 64), ([4, 4, 4], 4));
        assert_eq!(fitted("63s", 8), ([1, 2, 4], 32));
    }

    #[test]
    fn a_fit_never_raises_the_samples_of_a_rank_at_a_time() {
        let sets = ["train.global_batch=96".to_owned(), "mesh.dp_shard=4".to_owned(), "mesh.dp_replicate=4".to_owned()];
        let recipe = load("../../configs/ttt-mlp/3s.toml".into(), &sets).unwrap().recipe;
        let accum = |ranks| recipe.fit(ranks).map(|fit| (96 / ranks) / fit.grad_accum[1]);
        // On 16 ranks, a rank of the recipe processes 6 samples at a time. On 24 ranks, its 4 samples fit at once. On
        // 12 and 8 ranks, its 8 and 12 samples are split into parts of 4 and 6.
        assert_eq!([24, 12, 8].map(accum), [Ok(4), Ok(4), Ok(6)]);
    }

    #[test]
    fn a_batch_that_cannot_be_divided_names_the_nearest_numbers_of_ranks() {
        let refused = |name: &str, ranks| stage(name).fit(ranks).unwrap_err().to_string();
        let refusals = [("3s", 24), ("3s", 128), ("3s", 0), ("63s", 30), ("63s", 24), ("63s", 2)];
        insta::assert_snapshot!(refusals.map(|(name, ranks)| refused(name, ranks)).join("\n\n"));
    }

    #[test]
    fn keys_without_effect_on_the_new_mesh_are_reset() {
        let sets = ["train.accumulate=sharded", "mesh.dp_replicate=1", "mesh.dp_shard=8", "train.grad_accum=8"];
        let mut resolved = load("../../configs/ttt-mlp/3s.toml".into(), &sets.map(str::to_owned)).unwrap();
        resolved.fit(1).unwrap();
        assert_eq!((resolved.recipe.train.accumulate, resolved.recipe.check()), (Accumulate::Whole, Ok(())));
        assert_eq!(resolved.origins["train.accumulate"].to_string(), "--fit 1");
    }

    #[test]
    fn keys_that_a_fit_changes_have_the_fit_as_their_origin() {
        let mut resolved = stage("3s");
        let fit = resolved.fit(16).unwrap();
        insta::assert_snapshot!(fit);
        let origin = |key: &str| resolved.origins[key].to_string();
        assert_eq!([origin("mesh.dp_replicate"), origin("train.grad_accum")], ["--fit 16", "--fit 16"]);
        assert!(origin("mesh.dp_shard").contains("base.toml"));
        assert!(stage("3s").fit(64).unwrap().is_none());
    }
}
