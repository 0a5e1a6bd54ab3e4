//! The threads of work that blocks: threads of its own or, in the console, those of its runtime.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

static RUNTIME: OnceLock<Box<dyn Fn(Work) + Send + Sync>> = OnceLock::new();

/// From now on, starts work that blocks with `start` instead of in a thread of its own. Only the first call counts, because a process has one
/// console.
///
/// Work lasts as long as a connection or a watch, so `start` must not wait for other work.
pub fn run_blocking_work_with(start: impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static) {
    // A second runtime of the process would end its work with itself.
    let _ = RUNTIME.set(Box::new(start));
}

/// Starts work that may block.
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    match RUNTIME.get() {
        Some(start) => start(Box::new(work)),
        None => drop(thread::spawn(work)),
    }
}

/// Starts work that may block. A thread of its own has this name and size of stack.
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
