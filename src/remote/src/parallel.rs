//! Work on several nodes in parallel.

use std::thread;

use cluster::NodeId;

use crate::transport::Shell;

/// Runs `work` for each item on the shell of its node, all in parallel, and returns the results in order. Items of nodes
/// without a shell are skipped.
pub(crate) fn on_nodes<S: Shell + ?Sized, T: Send, R: Send>(
    items: Vec<(NodeId, T)>,
    shells: &mut [Box<S>],
    work: impl Fn(T, &mut S) -> R + Sync,
) -> Vec<R> {
    let mut free: Vec<Option<&mut Box<S>>> = shells.iter_mut().map(Some).collect();
    let mut jobs = Vec::new();
    for (node, item) in items {
        let found = free.iter_mut().find(|slot| slot.as_ref().is_some_and(|shell| *shell.node() == node));
        if let Some(shell) = found.and_then(Option::take) {
            jobs.push((item, shell));
        }
    }
    // Starting a thread takes longer than listing this machine's processes.
    if let [_] = &jobs[..] {
        return jobs.into_iter().map(|(item, shell)| work(item, shell.as_mut())).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            jobs.into_iter().map(|(item, shell)| scope.spawn(move || work(item, shell.as_mut()))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, R>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}
