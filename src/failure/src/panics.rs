//! Calls of libraries that panic on damaged files.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` and returns its result; `None` if it panics. Use it only around a library that panics on input that it should refuse.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    result.ok()
}

/// Returns whether a panic of this thread is caught by [`catch_panic`]. A panic hook that ends the program should return then.
pub fn is_panic_caught() -> bool {
    CAUGHT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_has_no_result_and_only_its_thread_is_in_the_call() {
        assert!(!is_panic_caught());
        assert_eq!(catch_panic(is_panic_caught), Some(true));
        assert_eq!(catch_panic(|| -> u8 { panic!("a damaged file") }), None);
        assert!(!is_panic_caught());
        let other = catch_panic(|| std::thread::spawn(is_panic_caught).join().unwrap());
        assert_eq!(other, Some(false));
    }
}
