//! Signals to this process: they go into the queue, and a process that a signal ends exits by that signal.

use crate::queue::{Item, Sender};
use crate::terminal;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io;
use std::thread;

/// Sends every signal into the queue. A signal to terminate exits here if the loop has ended, or if it is the second one.
pub fn watch(queue: Sender) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP, SIGINT, SIGCONT, SIGWINCH])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut terminating = false;
        for signal in signals.forever() {
            let terminates = !matches!(signal, SIGCONT | SIGWINCH);
            let sent = queue.urgent(Item::Signal(signal)).is_ok();
            if terminates && (terminating || !sent) {
                terminal::restore();
                exit_by(signal);
            }
            terminating |= terminates;
        }
    })?;
    Ok(())
}

/// Ends this process as `signal` would have, so that a waiting shell sees the cause.
pub fn exit_by(signal: i32) -> ! {
    // Returns only for signals that are ignored by default, and none of those is handled here.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
