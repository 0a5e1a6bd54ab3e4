//! Runs a few ranks as threads of this process, each with its own store client and its own group.

use std::time::Duration;

use c10d::{Group, Result, Store};

pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` on every rank and returns the results in rank order.
pub fn on_ranks<T: Send>(size: usize, body: impl Fn(&Group, &Store) -> Result<T> + Sync) -> Result<Vec<T>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("store");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (body, file) = (&body, &file);
                scope.spawn(move || {
                    let store = Store::file(file, size, TIMEOUT)?;
                    let group = Group::gloo(&store.prefix("world"), rank, size, TIMEOUT, Some("lo"))?;
                    let value = body(&group, &store)?;
                    group.barrier()?;
                    Ok(value)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}
