//! Keeps the results of a function for the next frame, so that a frame in which only the cursor has moved does not compute them again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

thread_local! {
    /// The number of frames that were drawn.
    static FRAMES: Cell<u64> = const { Cell::new(0) };
}

/// Begins a frame.
pub fn begin_frame() {
    FRAMES.set(FRAMES.get() + 1);
}

/// The results of a function of `K` that were used in this frame or in the one before.
pub struct Memo<K, V> {
    results: RefCell<Vec<Entry<K, V>>>,
}

struct Entry<K, V> {
    key: K,
    result: Rc<V>,
    /// The last frame that used the result.
    used: u64,
}

impl<K: PartialEq, V> Memo<K, V> {
    /// Makes one without results.
    pub const fn empty() -> Self {
        Self { results: RefCell::new(Vec::new()) }
    }

    /// Returns the result for a key; computes it if it is not kept.
    pub fn get(&self, key: K, compute: impl FnOnce(&K) -> V) -> Rc<V> {
        let frame = FRAMES.get();
        let mut results = self.results.borrow_mut();
        if let Some(entry) = results.iter_mut().find(|entry| entry.key == key) {
            entry.used = frame;
            return Rc::clone(&entry.result);
        }
        results.retain(|entry| entry.used + 1 >= frame);
        let result = Rc::new(compute(&key));
        results.push(Entry { key, result: Rc::clone(&result), used: frame });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_while_each_frame_uses_it() {
        let memo = Memo::empty();
        let double = |key: usize| {
            let mut is_computed = false;
            let result = memo.get(key, |_| {
                is_computed = true;
                2 * key
            });
            (*result, is_computed)
        };
        assert_eq!((double(1), double(1), double(2)), ((2, true), (2, false), (4, true)));
        begin_frame();
        assert_eq!((double(1), double(3)), ((2, false), (6, true)));
        begin_frame();
        assert_eq!(
            (double(4), double(1), double(2)),
            ((8, true), (2, false), (4, true)),
            "2 was not used in the last frame"
        );
        assert_eq!(memo.results.borrow().len(), 4, "1 to 4");
        begin_frame();
        begin_frame();
        assert_eq!((double(5), memo.results.borrow().len()), ((10, true), 1));
    }
}
