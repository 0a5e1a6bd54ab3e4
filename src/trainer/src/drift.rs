//! Compares the weights of replicas and of TP ranks, which must have the same bits.
//!
//! Ranks that hold the same weights apply the same updates to them. A faulty GPU, faulty memory or a nondeterministic operation makes
//! them differ. The loss may not show this for a long time.

use crate::exchange::agree_on;
use crate::torch_failure::failed;
use c10d::Group;
use c10d::waits::{self, Place};
use recipe::ParamSpec;
use rundir::{ErrorCode, Failure};
use sharding::flat::TpLayout;
use sharding::fsdp::Fsdp;
use tch::{Kind, Tensor};

/// The elements that are hashed at a time, which bounds the temporary memory to some 30 MiB.
const CHUNK: i64 = 1 << 20;
/// The multipliers of elements repeat after this prime number of them.
const MULTIPLIERS: i64 = 65_521;

/// The numbers that identify the content of a tensor.
type Hash = [i64; 2];

/// Compares the weights of replicas after `step`. With `copies`, also compares the tensors of which every TP rank has a copy. A
/// collective.
///
/// # Errors
/// [`ErrorCode::WeightsDiffer`] on every rank, which names the ranks and the first tensor; or a peer is lost.
pub fn check(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], step: u64, copies: bool) -> Result<(), Failure> {
    let groups = fsdp.groups();
    if groups.replicate.size() == 1 && groups.tp.size() == 1 {
        return Ok(());
    }
    let found = waits::at(Place::Drift, || difference(fsdp, tables, copies)).map_err(failed)?;
    agree_on(&groups.world, found.map_or(Ok(()), |found| Err(found.failure(step))))
}

/// A tensor whose bits are not the same on all ranks that hold it.
#[derive(Debug, PartialEq)]
struct Difference {
    tensor: String,
    /// `replicas` or `TP ranks`.
    of: &'static str,
    /// The ranks, in sets with the same bits, the largest set first.
    sets: Vec<Vec<i64>>,
}

impl Difference {
    fn failure(&self, step: u64) -> Failure {
        let ranks = |set: &Vec<i64>| {
            let numbers: Vec<String> = set.iter().map(i64::to_string).collect();
            format!("{} {}", if set.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
        };
        let sets: Vec<String> = self.sets.iter().map(ranks).collect();
        Failure::new(
            ErrorCode::WeightsDiffer,
            format!("the weights of {} differ after step {step}", self.of),
            format!("{} is the first tensor that is not the same on {}", self.tensor, sets.join(" and ")),
            "leave out the node of the ranks that differ, check its GPUs (`dmesg`, nvidia-smi -q -d ECC), and resume from a checkpoint that \
             is older than the fault",
        )
    }
}

/// Returns the first tensor that differs between this rank and others: replicas first, then TP ranks.
fn difference(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], copies: bool) -> c10d::Result<Option<Difference>> {
    let groups = fsdp.groups();
    let (mut names, mut is_shared, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
    for owned in fsdp.owned() {
        names.push(&tables[owned.unit][owned.range.slot].name);
        is_shared.push(owned.range.tp_layout != TpLayout::Sharded);
        hashes.push(hash(&owned.values).to_device(groups.device));
        fsdp.release(&[&owned.values])?;
    }
    // The last row is the number of the rank.
    hashes.push(Tensor::from_slice(&[groups.world.rank() as i64, 0]).to_device(groups.device));
    let own = Tensor::stack(&hashes, 0);
    // Every rank takes part in both collectives, whatever it finds in the first one.
    let (replicas, tp) = (gathered(&groups.replicate, &own)?, gathered(&groups.tp, &own)?);
    let of = |of, found: Option<(usize, Vec<Vec<i64>>)>| {
        found.map(|(index, sets)| Difference { tensor: names[index].clone(), of, sets })
    };
    let between_replicas = of("replicas", first_difference(&replicas, |_| true));
    let is_compared = |index: usize| copies && is_shared[index];
    Ok(between_replicas.or_else(|| of("TP ranks", first_difference(&tp, is_compared))))
}

/// Returns the hashes of every rank of a group. A collective.
fn gathered(group: &Group, own: &Tensor) -> c10d::Result<Vec<Vec<Hash>>> {
    let rows = own.size()[0];
    let all = Tensor::zeros([group.size() as i64 * rows, 2], (Kind::Int64, own.device()));
    group.all_gather_into(&all, own)?.wait()?;
    let numbers = Vec::<i64>::try_from(all.view(-1)).map_err(c10d::Error::from)?;
    let rows: Vec<Hash> = numbers.chunks_exact(2).map(|row| [row[0], row[1]]).collect();
    Ok(rows.chunks(rows.len() / group.size()).map(<[Hash]>::to_vec).collect())
}

/// Returns the index of the first compared hash that is not the same on all ranks, and the sets of ranks that have the same one.
fn first_difference(ranks: &[Vec<Hash>], is_compared: impl Fn(usize) -> bool) -> Option<(usize, Vec<Vec<i64>>)> {
    let tensors = ranks[0].len() - 1;
    let index = (0..tensors).find(|&row| is_compared(row) && ranks.iter().any(|rank| rank[row] != ranks[0][row]))?;
    let mut sets: Vec<(Hash, Vec<i64>)> = Vec::new();
    for rank in ranks {
        let number = rank[tensors][0];
        match sets.iter_mut().find(|(hash, _)| *hash == rank[index]) {
            Some((_, set)) => set.push(number),
            None => sets.push((rank[index], vec![number])),
        }
    }
    // The sort is stable: of sets of one size, the one with the lowest rank is first.
    sets.sort_by_key(|(_, set)| std::cmp::Reverse(set.len()));
    Some((index, sets.into_iter().map(|(_, set)| set).collect()))
}

/// Returns the hash of a tensor's bits, `[2]`: their sum, and their sum with multipliers that depend on the place. Sums of integers do
/// not depend on the order of additions, so the device and the number of threads do not matter.
fn hash(values: &Tensor) -> Tensor {
    let bits = match values.kind().elt_size_in_bytes() {
        1 => Kind::Uint8,
        2 => Kind::Int16,
        4 => Kind::Int,
        _ => Kind::Int64,
    };
    let (bits, device) = (values.view_dtype(bits), values.device());
    let mut sums = Tensor::zeros([2], (Kind::Int64, device));
    let len = bits.size()[0];
    for start in (0..len).step_by(CHUNK as usize) {
        let count = CHUNK.min(len - start);
        let part = bits.narrow(0, start, count).to_kind(Kind::Int64);
        let places = Tensor::arange_start(start, start + count, (Kind::Int64, device)).remainder(MULTIPLIERS) + 1;
        sums += Tensor::stack(&[part.sum(Kind::Int64), (part * places).sum(Kind::Int64)], 0);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::cogvideox;
    use crate::parallelize::unit_tables;
    use crate::tests::support::{Rank, on_ranks, recipe};
    use tch::Device;

    fn numbers(values: &Tensor) -> Vec<i64> {
        Vec::try_from(hash(values)).unwrap()
    }

    #[test]
    fn the_hash_changes_with_one_bit_and_with_the_order() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let values = Tensor::arange(3 * CHUNK / 2, (Kind::Float, Device::Cpu)).to_kind(kind);
            let before = numbers(&values);
            assert_eq!(numbers(&values.copy()), before);
            let changed = values.copy();
            let _ = changed.get(CHUNK + 5).fill_(f64::NAN);
            assert_ne!(numbers(&changed), before);
            let swapped = values.copy();
            let (one, other) = (values.get(3).copy(), values.get(CHUNK + 3).copy());
            swapped.get(3).copy_(&other);
            swapped.get(CHUNK + 3).copy_(&one);
            assert_ne!(numbers(&swapped), before, "{kind:?}");
        }
        let zeros = [0.0f32, -0.0].map(|zero| numbers(&Tensor::from_slice(&[zero])));
        assert_ne!(zeros[0], zeros[1], "the bits are compared, not the values");
    }

    #[test]
    fn every_rank_reports_which_ranks_have_other_weights_and_the_first_tensor() {
        let broken = |mesh: [usize; 3], victim: usize, name: &str| {
            let recipe = recipe(mesh, &["train.global_batch=12"]);
            let failures = on_ranks(recipe.mesh, |groups| {
                let tables = unit_tables(&recipe);
                let is_victim = groups.world.rank() == victim;
                let rank = Rank::new(&recipe, tables, cogvideox(&recipe).family(), groups);
                assert_eq!(check(&rank.fsdp, &rank.tables, 7, true), Ok(()));
                let owned = rank.fsdp.owned();
                let changed = owned.iter().rev().find(|owned| rank.tables[owned.unit][owned.range.slot].name == name);
                if let (true, Some(changed)) = (is_victim, changed) {
                    let last = changed.values.get(changed.range.len - 1);
                    tch::no_grad(|| last.shallow_clone().copy_(&(&last * 1.000_001)));
                }
                drop(owned);
                let found = difference(&rank.fsdp, &rank.tables, true)
                    .unwrap()
                    .map(|found| (found.of, found.tensor, found.sets));
                (found, check(&rank.fsdp, &rank.tables, 7, true).unwrap_err())
            });
            assert!(failures.iter().all(|(_, failure)| failure.code == ErrorCode::WeightsDiffer));
            assert!(failures.iter().all(|(_, failure)| failure == &failures[0].1));
            failures.into_iter().find_map(|(found, _)| found).unwrap()
        };
        let split = "blocks.1.mlp.up.weight";
        let shared = "blocks.0.norm2.linear.weight";
        assert_eq!(broken([3, 1, 1], 1, split), ("replicas", split.into(), vec![vec![0, 2], vec![1]]));
        assert_eq!(broken([1, 1, 2], 1, shared), ("TP ranks", shared.into(), vec![vec![0], vec![1]]));
        assert_eq!(broken([2, 1, 2], 3, split), ("replicas", split.into(), vec![vec![1], vec![3]]));
    }
}
