//! The one queue of the console: everything that happens comes through it, in one order.
//!
//! Two lanes. The *urgent* one (keys, signals) is unbounded and never waits. The *stream* one is bounded: when the
//! screen cannot keep up, whoever reads files waits, which loses nothing because a reader remembers its byte offset.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many stream messages may wait.
pub const STREAM_CAPACITY: usize = 1024;

/// A queue with an urgent lane and a bounded lane, shared by reference between threads.
pub struct Queue<T> {
    lanes: Mutex<Lanes<T>>,
    filled: Condvar,
    drained: Condvar,
}

struct Lanes<T> {
    urgent: VecDeque<T>,
    stream: VecDeque<T>,
    closed: bool,
}

/// What a sender is told when nobody reads any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

impl<T> Queue<T> {
    /// Makes an empty queue.
    pub fn new() -> Self {
        let lanes = Lanes { urgent: VecDeque::new(), stream: VecDeque::new(), closed: false };
        Self { lanes: Mutex::new(lanes), filled: Condvar::new(), drained: Condvar::new() }
    }

    /// Adds something that must not wait.
    ///
    /// # Errors
    /// `Closed` when the reader has gone.
    pub fn push_urgent(&self, item: T) -> Result<(), Closed> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Err(Closed);
        }
        lanes.urgent.push_back(item);
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// Adds something of a stream, waiting while the lane is full.
    ///
    /// # Errors
    /// `Closed` when the reader has gone.
    pub fn push(&self, item: T) -> Result<(), Closed> {
        let mut lanes = self.lock();
        while lanes.stream.len() >= STREAM_CAPACITY && !lanes.closed {
            lanes = self.drained.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
        if lanes.closed {
            return Err(Closed);
        }
        lanes.stream.push_back(item);
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// Takes up to `most` items, the urgent ones first; waits until there is one or the deadline has passed.
    pub fn take(&self, most: usize, deadline: Instant) -> Vec<T> {
        let mut lanes = self.lock();
        while lanes.urgent.is_empty() && lanes.stream.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Vec::new();
            }
            lanes = self.filled.wait_timeout(lanes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let urgent = lanes.urgent.len().min(most);
        let stream = lanes.stream.len().min(most - urgent);
        let Lanes { urgent: first, stream: then, .. } = &mut *lanes;
        let items = first.drain(..urgent).chain(then.drain(..stream)).collect();
        drop(lanes);
        self.drained.notify_all();
        items
    }

    /// Tells all senders that nobody reads any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.drained.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<T>> {
        // A sender that panicked left whole items or none.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn keys_overtake_streams_and_each_lane_keeps_its_order() {
        let queue = Queue::new();
        queue.push("line 1").unwrap();
        queue.push("line 2").unwrap();
        queue.push_urgent("key 1").unwrap();
        queue.push_urgent("key 2").unwrap();
        assert_eq!(queue.take(3, soon()), ["key 1", "key 2", "line 1"]);
        assert_eq!(queue.take(3, soon()), ["line 2"]);
    }

    #[test]
    fn an_empty_queue_gives_nothing_once_the_deadline_has_passed() {
        assert!(Queue::<u8>::new().take(8, Instant::now()).is_empty());
    }

    #[test]
    fn a_full_stream_waits_while_keys_still_come_through() {
        let queue = Arc::new(Queue::new());
        for i in 0..STREAM_CAPACITY {
            queue.push(i).unwrap();
        }
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.push(usize::MAX)
        });
        queue.push_urgent(7).unwrap();
        let taken = queue.take(STREAM_CAPACITY + 1, soon());
        assert_eq!(taken[0], 7);
        assert!(taken.len() > STREAM_CAPACITY);
        waiting.join().unwrap().unwrap();
        assert_eq!(queue.take(8, soon()), [usize::MAX]);
    }

    #[test]
    fn closing_frees_a_waiting_stream() {
        let queue = Arc::new(Queue::new());
        for i in 0..STREAM_CAPACITY {
            queue.push(i).unwrap();
        }
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.push(0)
        });
        queue.close();
        assert_eq!(waiting.join().unwrap(), Err(Closed));
    }
}
