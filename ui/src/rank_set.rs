//! A set of ranks, written as `0-3,8`.

use std::fmt;

/// A set of ranks, as ascending ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankSet(Vec<(usize, usize)>);

impl RankSet {
    /// Returns the set of one rank.
    pub fn one(rank: usize) -> Self {
        Self(vec![(rank, rank)])
    }

    /// Parses a list of ranks and ranges, such as `0-3,8`. An empty text is an empty set.
    ///
    /// # Errors
    /// The part of the text that is neither a rank nor an ascending range.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ranks = Self::default();
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<usize>(), last.parse::<usize>()) {
                (Ok(first), Ok(last)) if first <= last => ranks.0.push((first, last)),
                _ => return Err(part.to_owned()),
            }
        }
        ranks.join();
        Ok(ranks)
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> usize {
        self.0.iter().fold(0usize, |sum, (first, last)| sum.saturating_add(last - first).saturating_add(1))
    }

    /// Returns the rank of a set that has exactly one.
    pub fn single(&self) -> Option<usize> {
        match self.0[..] {
            [(first, last)] if first == last => Some(first),
            _ => None,
        }
    }

    /// Returns whether a rank is in the set.
    pub fn contains(&self, rank: usize) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < rank);
        self.0.get(at).is_some_and(|(first, _)| *first <= rank)
    }

    /// Returns whether the two sets have a rank in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().any(|(first, last)| other.0.iter().any(|(a, b)| a <= last && first <= b))
    }

    /// Adds a rank.
    pub fn insert(&mut self, rank: usize) {
        if self.contains(rank) {
            return;
        }
        let at = self.0.partition_point(|(_, last)| *last < rank);
        let before = at.checked_sub(1).filter(|before| self.0[*before].1.checked_add(1) == Some(rank));
        let after = self.0.get(at).is_some_and(|(first, _)| rank.checked_add(1) == Some(*first));
        match (before, after) {
            (Some(before), true) => {
                self.0[before].1 = self.0[at].1;
                self.0.remove(at);
            }
            (Some(before), false) => self.0[before].1 = rank,
            (None, true) => self.0[at].0 = rank,
            (None, false) => self.0.insert(at, (rank, rank)),
        }
    }

    /// Returns the ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// Returns the ranks that are also in another set, ascending.
    pub fn iter_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        other.iter().filter(|rank| self.contains(*rank))
    }

    /// Sorts the ranges and joins those that overlap or touch.
    fn join(&mut self) {
        self.0.sort_unstable();
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for (first, last) in self.0.drain(..) {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        self.0 = joined;
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> Self {
        let mut set = Self(ranks.into_iter().map(|rank| (rank, rank)).collect());
        set.join();
        set
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_list_of_ranks_and_ranges_is_parsed() {
        assert_eq!(RankSet::parse("8, 0-3,4 2").unwrap().to_string(), "0-4,8");
        assert_eq!(RankSet::parse("").unwrap(), RankSet::default());
        for wrong in ["x", "3-1", "-2", "1-", "0-3,b"] {
            assert!(RankSet::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_set_has_exactly_the_ranks_that_were_inserted(ranks in prop::collection::vec(0usize..40, 0..60)) {
            let mut set = RankSet::default();
            ranks.iter().for_each(|rank| set.insert(*rank));
            let known: BTreeSet<usize> = ranks.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), known.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.count(), known.len());
            prop_assert!((0..41).all(|rank| set.contains(rank) == known.contains(&rank)));
            prop_assert_eq!(&RankSet::parse(&set.to_string()).unwrap(), &set);
            prop_assert_eq!(ranks.into_iter().collect::<RankSet>(), set);
        }
    }
}
