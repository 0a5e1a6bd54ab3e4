//! Finds the ranks that other ranks wait for, from the records that ranks write of their collectives.

use std::collections::BTreeMap;

use rundir::{GroupCollectives, RankCollectives};
use serde::{Deserialize, Serialize};

/// A collective in which ranks wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveWait {
    /// The name of the process group.
    pub group: String,
    /// The number of the collective in the group.
    pub number: u64,
    /// The ranks that wait, by operation. With several operations the collective never completes: the ranks started different ones.
    pub operations: BTreeMap<String, Vec<usize>>,
    /// The ranks of the group that have not started the collective.
    pub absent: Vec<usize>,
    /// The ranks of the group without a record.
    #[serde(default)]
    pub unrecorded: Vec<usize>,
}

/// Returns the first incomplete collective of each group, from the records of ranks. Groups that wait for absent ranks come first.
pub fn collective_waits(records: &[RankCollectives]) -> Vec<CollectiveWait> {
    let mut groups: BTreeMap<&str, Vec<(usize, &GroupCollectives)>> = BTreeMap::new();
    for record in records {
        for group in &record.groups {
            groups.entry(&group.group).or_default().push((record.rank, group));
        }
    }
    let mut waits: Vec<_> = groups.into_iter().filter_map(|(name, ranks)| first_wait(name, &ranks)).collect();
    waits.sort_by_key(|wait| wait.absent.is_empty());
    waits
}

fn first_wait(name: &str, ranks: &[(usize, &GroupCollectives)]) -> Option<CollectiveWait> {
    let first = |group: &GroupCollectives| group.waiting.iter().map(|waiting| waiting.number).min();
    let number = ranks.iter().filter_map(|(_, group)| first(group)).min()?;
    let mut operations: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, group) in ranks {
        if let Some(waiting) = group.waiting.iter().find(|waiting| waiting.number == number) {
            operations.entry(waiting.operation.clone()).or_default().push(*rank);
        }
    }
    let record = |rank: usize| ranks.iter().find(|(other, _)| *other == rank).map(|(_, group)| group);
    let members = || ranks.first().map_or(&[][..], |(_, group)| &group.ranks).iter().copied();
    let absent = members().filter(|&rank| record(rank).is_some_and(|group| group.started < number)).collect();
    let unrecorded = members().filter(|&rank| record(rank).is_none()).collect();
    Some(CollectiveWait { group: name.to_owned(), number, operations, absent, unrecorded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::{SCHEMA, WaitingCollective};

    /// The record of a rank in one group of four: the last collective it started, and those it waits in.
    fn record(rank: usize, started: u64, waiting: &[(u64, &str)]) -> RankCollectives {
        let waiting = waiting.iter().map(|&(number, operation)| WaitingCollective {
            number,
            operation: operation.to_owned(),
            started_s: 0.0,
        });
        let group =
            GroupCollectives { group: "tp".into(), ranks: vec![0, 1, 2, 3], started, waiting: waiting.collect() };
        RankCollectives { v: SCHEMA, rank, t: 0.0, groups: vec![group] }
    }

    fn wait(operations: &[(&str, &[usize])], absent: &[usize], unrecorded: &[usize]) -> Vec<CollectiveWait> {
        let operations = operations.iter().map(|(name, ranks)| ((*name).to_owned(), ranks.to_vec())).collect();
        vec![CollectiveWait {
            group: "tp".into(),
            number: 7,
            operations,
            absent: absent.to_vec(),
            unrecorded: unrecorded.to_vec(),
        }]
    }

    #[test]
    fn a_rank_that_did_not_start_the_collective_is_absent_and_one_without_a_record_is_unknown() {
        let sum = (7, "all_reduce");
        // Rank 2 is behind, rank 3 has no record, and rank 1 has passed the collective and waits in a later one.
        let records = [record(0, 7, &[sum]), record(1, 8, &[(8, "all_gather")]), record(2, 6, &[])];
        assert_eq!(collective_waits(&records), wait(&[("all_reduce", &[0])], &[2], &[3]));
    }

    #[test]
    fn ranks_in_different_operations_are_listed_by_operation() {
        let records =
            [0, 1, 2, 3].map(|rank| record(rank, 7, &[(7, if rank == 1 { "all_gather" } else { "all_reduce" })]));
        assert_eq!(collective_waits(&records), wait(&[("all_gather", &[1]), ("all_reduce", &[0, 2, 3])], &[], &[]));
    }

    #[test]
    fn without_incomplete_collectives_nothing_waits() {
        assert_eq!(collective_waits(&[record(0, 7, &[]), record(1, 6, &[])]), []);
        assert_eq!(collective_waits(&[]), []);
    }
}
