//! Decodes clips in threads ahead of a consumer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use failure::{ErrorCode, Failure};

use crate::cancel::Cancel;
use crate::programs::Programs;

/// The order of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The order of the items.
    #[default]
    AsGiven,
    /// The order in which results are ready. The consumer never waits for a slow clip while another is ready.
    AsReady,
}

/// The size of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// The number of threads. Each holds at most one result that the consumer has not taken, so this also limits
    /// memory.
    pub workers: usize,
    /// The order of results.
    pub order: Order,
}

impl Default for PoolOptions {
    /// Returns options with one worker per core.
    fn default() -> Self {
        Self { workers: thread::available_parallelism().map_or(1, usize::from), order: Order::AsGiven }
    }
}

/// A pool of threads that process items. Iterate over it to get each item with its result. A failed item does not end
/// the pool.
///
/// Dropping the pool kills its running programs.
pub struct Pool<I, T> {
    shared: Arc<Shared<I, T>>,
    order: Order,
    /// The number of the item that is returned next, if items are returned in order.
    next: usize,
    cancel: Cancel,
    workers: Vec<JoinHandle<()>>,
}

struct Shared<I, T> {
    state: Mutex<State<I, T>>,
    changed: Condvar,
}

struct State<I, T> {
    /// Results that the consumer has not taken, by the number of their item.
    ready: BTreeMap<usize, (I, Result<T, Failure>)>,
    /// The number of workers that have not ended.
    alive: usize,
    /// The sum of the working times of all workers.
    busy: Duration,
}

impl<I, T> Shared<I, T> {
    fn lock(&self) -> MutexGuard<'_, State<I, T>> {
        // Work runs outside the lock, so a panic cannot leave the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Send + 'static, T: Send + 'static> Pool<I, T> {
    /// Starts the threads. `work` decodes one clip with the programs that it receives, which this pool can cancel.
    ///
    /// Items are taken from the iterator one at a time, when a worker is free. If `programs` leaves the number of threads to ffmpeg,
    /// each ffmpeg gets its share of the cores.
    pub fn start<Items, Work>(programs: &Programs, options: PoolOptions, items: Items, work: Work) -> Self
    where
        Items: IntoIterator<Item = I>,
        Items::IntoIter: Send + 'static,
        Work: Fn(&Programs, &I) -> Result<T, Failure> + Send + Sync + 'static,
    {
        let count = options.workers.max(1);
        let mut programs = programs.clone();
        programs.cancel = programs.cancel.part();
        if programs.threads == 0 {
            programs.threads = (thread::available_parallelism().map_or(1, usize::from) / count).max(1);
        }
        let state = State { ready: BTreeMap::new(), alive: count, busy: Duration::ZERO };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (items, work) = (Arc::new(Mutex::new(items.into_iter().enumerate())), Arc::new(work));
        let cancel = programs.cancel.clone();
        let workers = (0..count)
            .map(|_| {
                let (shared, items, work, programs) = (shared.clone(), items.clone(), work.clone(), programs.clone());
                thread::spawn(move || {
                    let _end = End(&shared);
                    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while !programs.cancel.is_cancelled()
                        && let Some((number, item)) = next()
                    {
                        let began = Instant::now();
                        let result = catch_unwind(AssertUnwindSafe(|| work(&programs, &item))).unwrap_or_else(|_| {
                            let fix = "see the message above, and report it";
                            Err(Failure::new(ErrorCode::Malformed, "cannot decode a clip", "the decoder panicked", fix))
                        });
                        shared.hand_over(number, item, result, began.elapsed(), &programs.cancel);
                    }
                })
            })
            .collect();
        Self { shared, order: options.order, next: 0, cancel, workers }
    }
}

impl<I, T> Shared<I, T> {
    /// Stores a result for the consumer, and waits until the consumer takes it.
    fn hand_over(&self, number: usize, item: I, result: Result<T, Failure>, took: Duration, cancel: &Cancel) {
        let mut state = self.lock();
        state.busy += took;
        state.ready.insert(number, (item, result));
        self.changed.notify_all();
        while state.ready.contains_key(&number) && !cancel.is_cancelled() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a worker as ended, even if taking an item panics.
struct End<'a, I, T>(&'a Shared<I, T>);

impl<I, T> Drop for End<'_, I, T> {
    fn drop(&mut self) {
        self.0.lock().alive -= 1;
        self.0.changed.notify_all();
    }
}

impl<I, T> Pool<I, T> {
    /// Returns the seconds that all workers together have spent on results that are ready or taken.
    pub fn busy_s(&self) -> f64 {
        self.shared.lock().busy.as_secs_f64()
    }

    /// Ends the work: running programs are killed, and the pool returns no more results.
    pub fn cancel(&self) {
        // The lock orders this before or after a worker's check, so no worker misses the notification.
        let _state = self.shared.lock();
        self.cancel.cancel();
        self.shared.changed.notify_all();
    }
}

impl<I, T> Iterator for Pool<I, T> {
    type Item = (I, Result<T, Failure>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut state = self.shared.lock();
        let taken = loop {
            if self.cancel.is_cancelled() {
                break None;
            }
            let number = match self.order {
                Order::AsGiven => Some(self.next),
                Order::AsReady => state.ready.keys().next().copied(),
            };
            if let Some(result) = number.and_then(|number| state.ready.remove(&number)) {
                break Some(result);
            }
            if state.alive == 0 {
                break state.ready.pop_first().map(|(_, result)| result);
            }
            // A cancellation of the whole work sends no notification, so wait with a timeout.
            let slice = Duration::from_millis(100);
            state = self.shared.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        self.shared.changed.notify_all();
        self.next += 1;
        taken
    }
}

impl<I, T> Drop for Pool<I, T> {
    fn drop(&mut self) {
        self.cancel();
        for worker in self.workers.drain(..) {
            // A worker that panicked has printed why.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn programs() -> Programs {
        Programs::at("no-ffmpeg", "no-ffprobe")
    }

    fn options(workers: usize, order: Order) -> PoolOptions {
        PoolOptions { workers, order }
    }

    fn failed(number: usize) -> Failure {
        Failure::new(ErrorCode::Malformed, format!("item {number}"), "", "")
    }

    #[test]
    fn results_come_in_the_order_given_and_failures_do_not_end_the_pool() {
        let work = |_: &Programs, &i: &usize| {
            thread::sleep(Duration::from_millis(if i.is_multiple_of(3) { 20 } else { 1 }));
            if i == 5 { Err(failed(i)) } else { Ok(i * 10) }
        };
        let got: Vec<_> = Pool::start(&programs(), options(4, Order::AsGiven), 0..20, work).collect();
        let wanted: Vec<_> = (0..20).map(|i| (i, if i == 5 { Err(failed(i)) } else { Ok(i * 10) })).collect();
        assert_eq!(got, wanted);
    }

    #[test]
    fn a_slow_item_does_not_delay_others_if_results_are_in_ready_order() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        // The first item is not ready before the results of all others have been taken.
        let work = |_: &Programs, &i: &usize| {
            let began = Instant::now();
            while i == 0 && TAKEN.load(Ordering::SeqCst) < 7 && began.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(1));
            }
            Ok::<_, Failure>(())
        };
        let pool = Pool::start(&programs(), options(2, Order::AsReady), 0..8, work);
        let take = |(i, _)| {
            TAKEN.fetch_add(1, Ordering::SeqCst);
            i
        };
        let mut order: Vec<usize> = pool.map(take).collect();
        assert_eq!(order.last(), Some(&0));
        order.sort_unstable();
        assert_eq!(order, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_worker_holds_one_result_at_most() {
        static ALIVE: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        struct Clip;
        impl Drop for Clip {
            fn drop(&mut self) {
                ALIVE.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let work = |_: &Programs, _: &usize| {
            MOST.fetch_max(ALIVE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            Ok(Clip)
        };
        let pool = Pool::start(&programs(), options(3, Order::AsGiven), 0..30, work);
        for (_, clip) in pool {
            thread::sleep(Duration::from_millis(2));
            drop(clip);
        }
        // Three workers hold a result each, and the consumer holds another one.
        assert!(MOST.load(Ordering::SeqCst) <= 4, "{} clips at once", MOST.load(Ordering::SeqCst));
        assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_time_of_workers_is_counted() {
        let work = |_: &Programs, _: &usize| {
            thread::sleep(Duration::from_millis(60));
            Ok::<_, Failure>(())
        };
        let mut pool = Pool::start(&programs(), options(1, Order::AsGiven), 0..2, work);
        assert_eq!(pool.by_ref().count(), 2);
        assert!(pool.busy_s() > 0.11);
    }

    #[test]
    fn cancelling_and_dropping_end_running_work() {
        let work = |programs: &Programs, _: &usize| {
            while !programs.cancel.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            Err::<(), _>(failed(0))
        };
        let whole = programs();
        let began = Instant::now();
        drop(Pool::start(&whole, options(2, Order::AsGiven), 0..100, work));
        assert!(!whole.cancel.is_cancelled(), "other work continues");
        let mut pool = Pool::start(&whole, options(2, Order::AsGiven), 0..100, work);
        pool.cancel();
        assert!(pool.next().is_none());
        let mut pool = Pool::start(&whole, options(2, Order::AsGiven), 0..100, work);
        whole.cancel.cancel();
        assert!(pool.next().is_none());
        drop(pool);
        assert!(began.elapsed() < Duration::from_secs(60), "work is waited for");
    }

    #[test]
    fn a_panic_is_the_failure_of_its_item() {
        let work = |_: &Programs, &i: &usize| if i == 1 { panic!("a test's panic") } else { Ok(i) };
        let got: Vec<_> = Pool::start(&programs(), options(2, Order::AsGiven), 0..3, work).collect();
        assert_eq!(got.len(), 3);
        assert_eq!(got[1].1.as_ref().unwrap_err().code, ErrorCode::Malformed);
    }
}
