use std::thread;

use cluster::NodeId;

use crate::Transport;

/// Does something with each of these that has a transport, all at the same time, and returns the results in order.
pub(crate) fn at_once<T: Send, R: Send>(
    items: Vec<(NodeId, T)>,
    transports: &mut [Box<dyn Transport>],
    work: impl Fn(T, &mut dyn Transport) -> R + Sync,
) -> Vec<R> {
    let mut free: Vec<Option<&mut Box<dyn Transport>>> = transports.iter_mut().map(Some).collect();
    let mut jobs = Vec::new();
    for (node, item) in items {
        let found = free.iter_mut().find(|slot| slot.as_ref().is_some_and(|transport| *transport.node() == node));
        if let Some(transport) = found.and_then(Option::take) {
            jobs.push((item, transport));
        }
    }
    // A thread costs more than a look at this machine's own processes.
    if let [_] = &jobs[..] {
        return jobs.into_iter().map(|(item, transport)| work(item, transport.as_mut())).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            jobs.into_iter().map(|(item, transport)| scope.spawn(move || work(item, transport.as_mut()))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, R>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}
