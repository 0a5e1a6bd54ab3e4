//! The queue for every key, every signal and every message of a stream or a job, in one order.
//!
//! It has two lanes. The *urgent* one (keys, signals, answers of jobs) is unbounded and never blocks its senders. The *stream*
//! one is bounded: when the screen cannot keep up, the threads that read files wait. No data is lost, because every reader
//! keeps its byte offset.

use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use ui::Msg;

/// The capacity of the stream lane.
const STREAM_CAPACITY: usize = 1024;

/// An item of the queue.
#[derive(Debug)]
pub enum Item {
    /// From the keyboard or a job.
    Msg(Msg),
    /// From a stream. Dropped if the stream has been stopped since.
    Stream(StopFlag, Msg),
    /// A signal to this process.
    Signal(i32),
    /// The keyboard can no longer be read.
    Gone,
}

/// Makes an empty queue. Dropping the reader closes it.
pub fn queue() -> (Sender, Reader) {
    let (urgent, urgent_items) = mpsc::channel();
    let (stream, stream_items) = mpsc::sync_channel(STREAM_CAPACITY);
    (Sender { urgent, stream }, Reader { urgent: urgent_items, stream: stream_items })
}

/// The sending end; every thread has its own clone.
#[derive(Clone)]
pub struct Sender {
    urgent: mpsc::Sender<Item>,
    /// `None` wakes the reader after an urgent item.
    stream: SyncSender<Option<Item>>,
}

/// The receiving end.
pub struct Reader {
    urgent: Receiver<Item>,
    stream: Receiver<Option<Item>>,
}

/// The reader was dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

impl Sender {
    /// Sends an urgent item. Never blocks.
    ///
    /// # Errors
    /// `Closed` if the reader was dropped.
    pub fn urgent(&self, item: Item) -> Result<(), Closed> {
        self.urgent.send(item).map_err(|_| Closed)?;
        match self.stream.try_send(None) {
            // If the lane is full, the reader does not wait.
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Disconnected(_)) => Err(Closed),
        }
    }

    /// Sends a stream item. Blocks while the lane is full.
    ///
    /// # Errors
    /// `Closed` if the reader was dropped.
    pub fn stream(&self, item: Item) -> Result<(), Closed> {
        self.stream.send(Some(item)).map_err(|_| Closed)
    }
}

impl Reader {
    /// Takes up to `most` items, the urgent ones first. Waits until there is one or the deadline has passed.
    pub fn take(&self, most: usize, deadline: Instant) -> Vec<Item> {
        let mut items: Vec<Item> = self.urgent.try_iter().take(most).collect();
        if items.is_empty() {
            let first = self.stream.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok().flatten();
            items.extend(self.urgent.try_iter().take(most - usize::from(first.is_some())));
            items.extend(first);
        }
        while items.len() < most
            && let Ok(item) = self.stream.try_recv()
        {
            items.extend(item);
        }
        items
    }
}

/// Stops one stream, even while it sleeps.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<(Mutex<bool>, Condvar)>);

impl StopFlag {
    /// Requests the stop.
    pub fn request(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether the stop was requested.
    pub fn requested(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until the time is over or the stop is requested. Returns whether the stream continues.
    pub fn sleep(&self, time: Duration) -> bool {
        let requested = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.0.1.wait_timeout_while(requested, time, |requested| !*requested);
        !*woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Signals stand for items of either lane.
    fn numbers(items: Vec<Item>) -> Vec<i32> {
        items.iter().map(|item| if let Item::Signal(number) = item { *number } else { -1 }).collect()
    }

    #[test]
    fn urgent_items_overtake_stream_items_and_each_lane_keeps_its_order() {
        let (sender, reader) = queue();
        sender.stream(Item::Signal(11)).unwrap();
        sender.stream(Item::Signal(12)).unwrap();
        sender.urgent(Item::Signal(1)).unwrap();
        sender.urgent(Item::Signal(2)).unwrap();
        assert_eq!(numbers(reader.take(3, soon())), [1, 2, 11]);
        assert_eq!(numbers(reader.take(3, soon())), [12]);
    }

    #[test]
    fn an_empty_queue_returns_nothing_when_the_deadline_has_passed() {
        let (_sender, reader) = queue();
        assert!(reader.take(8, Instant::now()).is_empty());
    }

    #[test]
    fn an_urgent_item_wakes_a_waiting_reader() {
        let (sender, reader) = queue();
        let waiting = thread::spawn(move || reader.take(8, soon()));
        sender.urgent(Item::Signal(1)).unwrap();
        assert_eq!(numbers(waiting.join().unwrap()), [1]);
    }

    #[test]
    fn a_full_stream_lane_blocks_its_sender_and_not_the_keys() {
        let (sender, reader) = queue();
        for i in 0..STREAM_CAPACITY {
            sender.stream(Item::Signal(i as i32)).unwrap();
        }
        let blocked = thread::spawn({
            let sender = sender.clone();
            move || sender.stream(Item::Signal(-2))
        });
        sender.urgent(Item::Signal(-7)).unwrap();
        let mut taken = numbers(reader.take(STREAM_CAPACITY, soon()));
        assert_eq!(taken[0], -7);
        while taken.len() < STREAM_CAPACITY + 2 {
            taken.extend(numbers(reader.take(8, soon())));
        }
        blocked.join().unwrap().unwrap();
        assert_eq!(taken.last(), Some(&-2));
    }

    #[test]
    fn closing_the_queue_frees_a_blocked_stream() {
        let (sender, reader) = queue();
        for i in 0..STREAM_CAPACITY {
            sender.stream(Item::Signal(i as i32)).unwrap();
        }
        let blocked = thread::spawn({
            let sender = sender.clone();
            move || sender.stream(Item::Signal(0))
        });
        drop(reader);
        assert_eq!(blocked.join().unwrap(), Err(Closed));
        assert_eq!(sender.urgent(Item::Gone), Err(Closed));
    }
}
