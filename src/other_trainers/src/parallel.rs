//! Work on many lines in several threads.

use std::thread;

/// The fewest lines for a thread. Starting one takes as long as reading about a hundred lines.
const FEWEST: usize = 1000;
/// The most threads, because training needs the CPU too.
const MOST_THREADS: usize = 4;

/// Applies a function to each line, and returns the results in order.
pub(crate) fn map<T: Send>(lines: &[String], work: impl Fn(&String) -> T + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MOST_THREADS).min(lines.len() / FEWEST);
    if threads < 2 {
        return lines.iter().map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let parts = lines.chunks(lines.len().div_ceil(threads));
        let threads: Vec<_> =
            parts.map(|part| scope.spawn(move || part.iter().map(work).collect::<Vec<_>>())).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<T>>| match thread.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().flat_map(join).collect()
    })
}
