//! Handles signals to this process: sends them to the queue of the console, and exits by the signal that ends the process.

use crate::queue::{Item, Sender};
use crate::terminal;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io;
use tokio::signal::unix::{SignalKind, signal};

/// Sends every signal to the queue. A terminating signal ends the process at once if it is the second one, or if the loop of the console
/// has ended.
///
/// The tasks run on the workers of the runtime, so that a second signal also ends a loop that hangs.
///
/// # Errors
/// A handler cannot be installed.
pub fn watch(queue: &Sender) -> io::Result<()> {
    // One task handles all terminating signals, because the second signal may differ from the first.
    let (mut term, mut hup, mut int) = (listen(SIGTERM)?, listen(SIGHUP)?, listen(SIGINT)?);
    let terminated = queue.clone();
    tokio::spawn(async move {
        let mut terminating = false;
        loop {
            let signal = tokio::select! {
                Some(()) = term.recv() => SIGTERM,
                Some(()) = hup.recv() => SIGHUP,
                Some(()) = int.recv() => SIGINT,
                else => return,
            };
            let sent = terminated.urgent(Item::Signal(signal)).is_ok();
            if terminating || !sent {
                terminal::restore();
                exit_by(signal);
            }
            terminating = true;
        }
    });
    for number in [SIGCONT, SIGWINCH] {
        let (mut signals, queue) = (listen(number)?, queue.clone());
        tokio::spawn(
            async move { while signals.recv().await.is_some() && queue.urgent(Item::Signal(number)).is_ok() {} },
        );
    }
    Ok(())
}

fn listen(number: i32) -> io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::from_raw(number))
}

/// Ends this process as `signal` would have, so that a waiting shell sees the cause. Tokio has no such function, and keeps
/// its handlers until the process ends.
pub fn exit_by(signal: i32) -> ! {
    // Returns only for signals that are ignored by default, and none of those is handled here.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
