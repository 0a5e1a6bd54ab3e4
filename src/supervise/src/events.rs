//! The queue through which threads send events to the event loop, each with its time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::decide::Event;

/// The sending end of the events, for threads.
#[derive(Clone)]
pub struct Events {
    sender: Sender<Input>,
    started: Instant,
}

/// The receiving end of the events.
pub struct Inputs {
    receiver: Receiver<Input>,
    started: Instant,
}

enum Input {
    /// A rank may have ended.
    ChildExited,
    Event(Duration, Event),
}

/// Makes the queue, and returns its sending end and its receiving end.
pub fn events() -> (Events, Inputs) {
    let (sender, receiver) = channel();
    let started = Instant::now();
    (Events { sender, started }, Inputs { receiver, started })
}

impl Events {
    /// Sends an event that happened now.
    pub fn send(&self, event: Event) {
        self.input(Input::Event(self.started.elapsed(), event));
    }

    /// Makes the loop check which ranks have ended.
    pub fn child_exited(&self) {
        self.input(Input::ChildExited);
    }

    fn input(&self, input: Input) {
        // An error means that the event loop has ended, and the process is about to exit.
        let _ = self.sender.send(input);
    }
}

impl Inputs {
    /// Returns the time since the supervisor started.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until events arrive, a rank may have ended or `deadline` is reached. Returns all events; the list may be
    /// empty.
    pub fn wait(&self, deadline: Option<Duration>) -> Vec<(Duration, Event)> {
        let first = match deadline {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self.receiver.recv_timeout(deadline.saturating_sub(self.elapsed())),
        };
        let inputs = first.into_iter().chain(self.receiver.try_iter());
        let events = inputs.filter_map(|input| match input {
            Input::ChildExited => None,
            Input::Event(at, event) => Some((at, event)),
        });
        events.collect()
    }
}

#[cfg(test)]
impl Inputs {
    /// Waits for one event until `deadline`. Returns `None` at the deadline, or if a rank may have ended.
    pub fn wait_for_one(&self, deadline: Duration) -> Option<(Duration, Event)> {
        match self.receiver.recv_timeout(deadline.saturating_sub(self.elapsed())).ok()? {
            Input::ChildExited => None,
            Input::Event(at, event) => Some((at, event)),
        }
    }
}
