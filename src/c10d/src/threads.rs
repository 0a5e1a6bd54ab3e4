//! The number of threads that libtorch's operators use.

use crate::ffi;

/// Makes the operators of the calling thread use this thread only, so that they do not compete with other threads for cores.
pub fn compute_alone() {
    // SAFETY: the function takes nothing, and changes the calling thread only.
    unsafe { ffi::vidtui_compute_alone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_alone_leaves_the_threads_of_others() {
        let before = tch::get_num_threads();
        let alone = std::thread::spawn(|| {
            compute_alone();
            tch::get_num_threads()
        });
        assert_eq!((alone.join().unwrap(), tch::get_num_threads()), (1, before));
        assert_eq!(std::thread::spawn(tch::get_num_threads).join().unwrap(), before);
    }
}
