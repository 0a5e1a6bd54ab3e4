//! The message queue of the console: keys, signals and answers of jobs overtake messages of streams.
//!
//! The queue has two lanes. The *urgent* lane (keys, signals, answers of jobs) is unbounded and never blocks its senders. The
//! *stream* lane is bounded: when the screen cannot keep up, the streams that read files wait. No data is lost, because
//! every stream keeps its byte offset.

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use ui::Msg;

/// The capacity of the stream lane, in messages. A message holds up to 250 samples.
const STREAM_CAPACITY: usize = 32;

/// An item of the queue.
#[derive(Debug)]
pub enum Item {
    /// From the keyboard or a job.
    Msg(Msg),
    /// From a stream. Dropped if the stream has been stopped since.
    Stream(CancellationToken, Msg),
    /// A signal to this process.
    Signal(i32),
    /// The keyboard can no longer be read.
    Gone,
}

/// Makes an empty queue. Dropping the reader closes it.
pub fn queue() -> (Sender, Reader) {
    let (urgent, urgent_items) = mpsc::unbounded_channel();
    let (stream, stream_items) = mpsc::channel(STREAM_CAPACITY);
    (Sender { urgent, stream }, Reader { urgent: urgent_items, stream: stream_items })
}

/// The sending end; every task and thread has its own clone.
#[derive(Clone)]
pub struct Sender {
    urgent: UnboundedSender<Item>,
    stream: mpsc::Sender<Item>,
}

/// The receiving end.
pub struct Reader {
    urgent: UnboundedReceiver<Item>,
    stream: mpsc::Receiver<Item>,
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
        self.urgent.send(item).map_err(|_| Closed)
    }

    /// Sends a stream item. Waits while the lane is full.
    ///
    /// # Errors
    /// `Closed` if the reader was dropped.
    pub async fn stream(&self, item: Item) -> Result<(), Closed> {
        self.stream.send(item).await.map_err(|_| Closed)
    }

    /// Sends a stream item from a thread that may block.
    ///
    /// # Errors
    /// `Closed` if the reader was dropped.
    pub fn stream_blocking(&self, item: Item) -> Result<(), Closed> {
        self.stream.blocking_send(item).map_err(|_| Closed)
    }
}

impl Reader {
    /// Takes up to `most` urgent items, or one stream item if there is no urgent item: the caller can redraw after a key before it handles
    /// messages of streams. Waits until there is an item or the deadline has passed.
    pub async fn take(&mut self, most: usize, deadline: Instant) -> Vec<Item> {
        let first = tokio::select! {
            biased;
            Some(item) = self.urgent.recv() => item,
            Some(item) = self.stream.recv() => return vec![item],
            () = sleep_until(deadline) => return Vec::new(),
        };
        let mut items = vec![first];
        while items.len() < most
            && let Ok(item) = self.urgent.try_recv()
        {
            items.push(item);
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A deadline that no passing test reaches.
    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Returns the numbers of signals, which stand for items of either lane in these tests.
    fn numbers(items: Vec<Item>) -> Vec<i32> {
        items.iter().map(|item| if let Item::Signal(number) = item { *number } else { -1 }).collect()
    }

    #[tokio::test]
    async fn urgent_items_are_taken_alone_and_first_and_each_lane_keeps_its_order() {
        let (sender, mut reader) = queue();
        sender.stream(Item::Signal(11)).await.unwrap();
        sender.stream(Item::Signal(12)).await.unwrap();
        sender.urgent(Item::Signal(1)).unwrap();
        sender.urgent(Item::Signal(2)).unwrap();
        sender.urgent(Item::Signal(3)).unwrap();
        assert_eq!(numbers(reader.take(2, soon()).await), [1, 2]);
        assert_eq!(numbers(reader.take(2, soon()).await), [3]);
        assert_eq!(numbers(reader.take(2, soon()).await), [11]);
        assert_eq!(numbers(reader.take(2, soon()).await), [12]);
    }

    #[tokio::test]
    async fn an_empty_queue_returns_nothing_when_the_deadline_has_passed() {
        let (_sender, mut reader) = queue();
        assert!(reader.take(8, Instant::now()).await.is_empty());
    }

    #[tokio::test]
    async fn items_that_are_ready_are_taken_although_the_deadline_has_passed() {
        let (sender, mut reader) = queue();
        sender.stream(Item::Signal(11)).await.unwrap();
        sender.urgent(Item::Signal(1)).unwrap();
        assert_eq!(numbers(reader.take(8, Instant::now()).await), [1]);
        assert_eq!(numbers(reader.take(8, Instant::now()).await), [11]);
    }

    #[tokio::test]
    async fn an_urgent_item_wakes_a_waiting_reader() {
        let (sender, mut reader) = queue();
        let waiting = tokio::spawn(async move { reader.take(8, soon()).await });
        tokio::task::yield_now().await;
        sender.urgent(Item::Signal(1)).unwrap();
        assert_eq!(numbers(waiting.await.unwrap()), [1]);
    }

    #[tokio::test]
    async fn a_full_stream_lane_blocks_its_senders_and_not_the_keys() {
        let (sender, mut reader) = queue();
        for i in 0..STREAM_CAPACITY {
            sender.stream(Item::Signal(i as i32)).await.unwrap();
        }
        let (task, thread) = (sender.clone(), sender.clone());
        let blocked_task = tokio::spawn(async move { task.stream(Item::Signal(-2)).await });
        let blocked_thread = tokio::task::spawn_blocking(move || thread.stream_blocking(Item::Signal(-2)));
        tokio::task::yield_now().await;
        sender.urgent(Item::Signal(-7)).unwrap();
        let mut taken = numbers(reader.take(STREAM_CAPACITY, soon()).await);
        assert_eq!(taken[0], -7);
        while taken.len() < STREAM_CAPACITY + 3 {
            taken.extend(numbers(reader.take(8, soon()).await));
        }
        blocked_task.await.unwrap().unwrap();
        blocked_thread.await.unwrap().unwrap();
        assert_eq!(taken[STREAM_CAPACITY + 1..], [-2, -2]);
    }

    #[tokio::test]
    async fn closing_the_queue_frees_the_blocked_streams() {
        let (sender, reader) = queue();
        for i in 0..STREAM_CAPACITY {
            sender.stream(Item::Signal(i as i32)).await.unwrap();
        }
        let (task, thread) = (sender.clone(), sender.clone());
        let blocked_task = tokio::spawn(async move { task.stream(Item::Signal(0)).await });
        let blocked_thread = tokio::task::spawn_blocking(move || thread.stream_blocking(Item::Signal(0)));
        tokio::task::yield_now().await;
        drop(reader);
        assert_eq!(blocked_task.await.unwrap(), Err(Closed));
        assert_eq!(blocked_thread.await.unwrap(), Err(Closed));
        assert_eq!(sender.urgent(Item::Gone), Err(Closed));
    }
}
