//! Keeps the newest results of a function, so that a frame in which only the cursor has moved does not compute them again.

use std::cell::RefCell;
use std::rc::Rc;

/// The number of results that are kept: more than a screen has charts.
const KEPT: usize = 32;

/// The newest results of a function of `K`, the last used first.
pub struct Memo<K, V> {
    results: RefCell<Vec<(K, Rc<V>)>>,
}

impl<K: PartialEq, V> Memo<K, V> {
    /// Makes one without results.
    pub const fn empty() -> Self {
        Self { results: RefCell::new(Vec::new()) }
    }

    /// Returns the result for a key; computes it if it is not kept.
    pub fn get(&self, key: K, compute: impl FnOnce(&K) -> V) -> Rc<V> {
        let mut results = self.results.borrow_mut();
        match results.iter().position(|(other, _)| *other == key) {
            Some(at) => results[..=at].rotate_right(1),
            None => {
                results.truncate(KEPT - 1);
                let result = Rc::new(compute(&key));
                results.insert(0, (key, result));
            }
        }
        Rc::clone(&results[0].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_computed_once_until_many_others_were_used() {
        let memo = Memo::empty();
        let double = |key: usize| {
            let mut is_computed = false;
            let result = memo.get(key, |_| {
                is_computed = true;
                2 * key
            });
            (*result, is_computed)
        };
        assert_eq!((double(1), double(1)), ((2, true), (2, false)));
        (2..=KEPT).for_each(|key| assert_eq!(double(key), (2 * key, true)));
        assert_eq!((double(1), double(KEPT)), ((2, false), (2 * KEPT, false)), "all fit");
        assert_eq!(
            (double(KEPT + 1), double(1), double(2)),
            ((2 * KEPT + 2, true), (2, false), (4, true)),
            "2 was used longest ago"
        );
    }
}
