//! Starts work that blocks, on new threads or, in the console, on the threads of its runtime.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

static RUNTIME: OnceLock<Box<dyn Fn(Work) + Send + Sync>> = OnceLock::new();

/// Makes [`spawn`] start work with `start` instead of on a new thread. Only the first call has an effect, because a process has one
/// console.
///
/// Work may last as long as a connection or a watch, so `start` must not wait for other work to end.
pub fn run_blocking_work_with(start: impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static) {
    // The end of a second runtime would also end the work that it started.
    let _ = RUNTIME.set(Box::new(start));
}

/// Starts work that may block.
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    match RUNTIME.get() {
        Some(start) => start(Box::new(work)),
        None => drop(thread::spawn(work)),
    }
}

/// Starts work that may block. If it runs on a new thread, the thread has this name and stack size in bytes.
///
/// # Errors
/// When the system cannot start another thread.
pub fn spawn_named(name: String, stack: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    match RUNTIME.get() {
        Some(start) => start(Box::new(work)),
        None => drop(thread::Builder::new().name(name).stack_size(stack).spawn(work)?),
    }
    Ok(())
}

/// Starts work that may block and returns the channel of its result.
pub fn result_of<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, result) = mpsc::channel();
    // The result may no longer be needed.
    spawn(move || drop(sender.send(work())));
    result
}
