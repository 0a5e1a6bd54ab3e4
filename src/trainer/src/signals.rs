//! The signals that a rank receives. A thread of their own takes them; all other threads block them.
//!
//! A signal must not interrupt a thread that computes. While oneDNN's AVX-512 kernel multiplies matrices, the stack pointer is the address
//! of its scratch memory on the heap. When a thread is interrupted for a signal handler, Linux writes the thread's registers (3 KB, 11 KB
//! with AMX) below the stack pointer, here over other data on the heap.
//!
//! Programs that the rank starts, such as ffmpeg, inherit the blocked signals. The rank ends them with KILL; if it dies, they end because
//! their pipes close.

use nix::sys::signal::{SigSet, Signal};
use rundir::{ErrorCode, Failure};
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The signals that are handled: TERM and INT (save and stop), USR1 (save now), HUP, which is ignored, because a run outlives the
/// terminal that started it, and XFSZ, which is ignored, because the write that exceeds the limit of file sizes returns an error.
const HANDLED: [Signal; 5] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGXFSZ];

/// The signals that this process has received.
#[derive(Debug, Default)]
struct Received {
    /// Whether TERM and INT request a stop. Before, they end the process.
    requests_stop: AtomicBool,
    stop: AtomicBool,
    save: AtomicBool,
}

/// Starts the thread that takes the signals, unless it runs. Call this before other threads start, because threads inherit the blocked
/// signals from the thread that starts them.
///
/// # Errors
/// `StartFailed`: the thread cannot be started.
pub fn take_over() -> Result<(), Failure> {
    received().map(drop)
}

fn received() -> Result<Arc<Received>, Failure> {
    static RECEIVED: Mutex<Option<Arc<Received>>> = Mutex::new(None);
    let mut known = RECEIVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(received) = &*known {
        return Ok(Arc::clone(received));
    }
    let received = start_thread().map_err(|error| {
        let fix = "check the limits of this node: ulimit -u";
        Failure::new(ErrorCode::StartFailed, "cannot handle signals", error.to_string(), fix)
    })?;
    Ok(Arc::clone(known.insert(received)))
}

fn start_thread() -> io::Result<Arc<Received>> {
    let signals = SigSet::from_iter(HANDLED);
    signals.thread_block()?;
    let received: Arc<Received> = Arc::default();
    let of_thread = Arc::clone(&received);
    thread::Builder::new().name("signals".into()).spawn(move || receive(signals, &of_thread))?;
    Ok(received)
}

/// Takes signals until the process ends.
fn receive(signals: SigSet, received: &Received) {
    while let Ok(signal) = signals.wait() {
        match signal {
            Signal::SIGUSR1 => received.save.store(true, Ordering::Relaxed),
            Signal::SIGHUP | Signal::SIGXFSZ => {}
            _ if received.requests_stop.load(Ordering::Relaxed) => received.stop.store(true, Ordering::Relaxed),
            signal => {
                let ended = signals.thread_unblock().map_err(io::Error::from);
                let ended = ended.and_then(|()| emulate_default_handler(signal as i32));
                rundir::log!("{signal} did not end this rank: {ended:?}");
            }
        }
    }
}

/// The requests that this process has received by signals.
#[derive(Debug)]
pub struct Signals {
    received: Arc<Received>,
    parent: u32,
}

impl Signals {
    /// From now on, TERM and INT request a stop.
    ///
    /// # Errors
    /// As [`take_over`].
    pub fn watch() -> Result<Self, Failure> {
        let received = received()?;
        received.requests_stop.store(true, Ordering::Relaxed);
        Ok(Signals { received, parent: std::os::unix::process::parent_id() })
    }

    /// Returns whether SIGTERM or SIGINT arrived.
    pub fn stop(&self) -> bool {
        self.received.stop.load(Ordering::Relaxed)
    }

    /// Returns whether the supervisor has ended. Then no process would report how this rank ends, so the rank saves and
    /// stops.
    pub fn orphaned(&self) -> bool {
        std::os::unix::process::parent_id() != self.parent
    }

    /// Returns whether SIGUSR1 arrived since the last call.
    pub fn take_save(&self) -> bool {
        self.received.save.swap(false, Ordering::Relaxed)
    }
}
