//! A cache of the newest logged steps and events of many runs. It reads each line once.

use camino::{Utf8Path, Utf8PathBuf};
use cluster::NodeId;
use rundir::{Error, Event, MetricSample, RunDir, Tail};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of logged steps that are kept: more than any rule compares.
const LINES: usize = 128;
/// The bytes at the end of `metrics.jsonl` that are read first: about a hundred lines of eight ranks.
const FIRST_BYTES: u64 = 64 * 1024;
/// The most bytes of `metrics.jsonl` that are read: about a hundred lines of 4096 ranks.
const MOST_BYTES: u64 = 16 << 20;
/// The bytes at the end of an `events.jsonl` that are read first.
const EVENT_BYTES: u64 = 64 * 1024;
/// The number of events that are kept.
const EVENTS: usize = 4096;
/// The cache drops a run that was not requested for this long.
const FORGET: Duration = Duration::from_secs(60);

/// The newest logged steps and events of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Newest {
    /// Logged steps of all attempts, in the order in which they were written.
    pub metrics: Vec<MetricSample>,
    /// The last of them with a loss, even if many later ones have none: an imported run logs other values at steps of their own.
    pub with_loss: Option<MetricSample>,
    /// Events of rank 0, of the healer and of the nodes of the newest attempt, in the order of their time.
    pub events: Vec<Event>,
}

/// Follows the newest logged steps and events of many runs. Threads can share it.
#[derive(Debug, Default)]
pub struct NewestCache {
    runs: Mutex<BTreeMap<RunDir, RunEntry>>,
}

#[derive(Debug)]
struct RunEntry {
    requested: Instant,
    /// The cache of one run. It has its own lock, so that a file system that hangs blocks only its own runs.
    tails: Arc<Mutex<RunTails>>,
}

#[derive(Debug, Default)]
struct RunTails {
    metrics: Option<Tail<MetricSample>>,
    events: BTreeMap<Utf8PathBuf, Tail<Event>>,
    newest: Arc<Newest>,
}

impl NewestCache {
    /// Returns the newest lines of a run, with the events of these nodes.
    ///
    /// # Errors
    /// [`Error::File`]; a missing file is empty, and bad lines are skipped.
    pub fn newest<'a>(&self, run: &RunDir, nodes: impl IntoIterator<Item = &'a NodeId>) -> Result<Arc<Newest>, Error> {
        let tails = self.tails(run);
        let mut tails = tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.poll_metrics(&run.metrics())?;
        let own = [run.events(), run.healer_events()];
        for path in own.into_iter().chain(nodes.into_iter().map(|node| run.node_events(node))) {
            tails.poll_events(path)?;
        }
        Ok(tails.newest.clone())
    }

    /// Drops the lines of a run. They are read again when they are requested.
    pub fn forget(&self, run: &RunDir) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }

    fn tails(&self, run: &RunDir) -> Arc<Mutex<RunTails>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, entry| entry.requested.elapsed() < FORGET);
        let requested = Instant::now();
        let entry = runs.entry(run.clone()).or_insert_with(|| RunEntry { requested, tails: Arc::default() });
        entry.requested = requested;
        entry.tails.clone()
    }
}

impl RunTails {
    fn poll_metrics(&mut self, path: &Utf8Path) -> Result<(), Error> {
        let read = |error| Error::io("read", path, error);
        let (items, restarted) = match &mut self.metrics {
            Some(tail) => tail.poll_all().map_err(read)?,
            None => {
                let (tail, items) = recent(path).map_err(read)?;
                self.metrics = Some(tail);
                (items, false)
            }
        };
        if restarted || !items.is_empty() {
            let Newest { metrics, with_loss, .. } = Arc::make_mut(&mut self.newest);
            if restarted {
                metrics.clear();
                *with_loss = None;
            }
            metrics.extend(items);
            if let Some(last) = metrics.iter().rfind(has_loss) {
                *with_loss = Some(last.clone());
            }
            metrics.drain(..metrics.len().saturating_sub(LINES));
        }
        Ok(())
    }

    fn poll_events(&mut self, path: Utf8PathBuf) -> Result<(), Error> {
        let read = |error| Error::io("read", &path, error);
        if !self.events.contains_key(&path) {
            self.events.insert(path.clone(), Tail::near_end(&path, EVENT_BYTES).map_err(read)?);
        }
        let Some(tail) = self.events.get_mut(&path) else { return Ok(()) };
        let (items, restarted) = tail.poll_all().map_err(read)?;
        if restarted {
            // The events of the file that was replaced cannot be told apart from those of other files: read all files again.
            Arc::make_mut(&mut self.newest).events.clear();
            self.events.retain(|other, _| *other == path);
        }
        if !items.is_empty() {
            let events = &mut Arc::make_mut(&mut self.newest).events;
            events.extend(items);
            events.sort_by(|a, b| a.t.total_cmp(&b.t));
            events.drain(..events.len().saturating_sub(EVENTS));
        }
        Ok(())
    }
}

/// Reads the last samples of a run, oldest first, without reading the whole file.
///
/// # Errors
/// [`Error::File`]; a missing file is an empty list, and bad lines are skipped.
pub fn recent_metrics(run: &RunDir) -> Result<Vec<MetricSample>, Error> {
    let path = run.metrics();
    Ok(recent(&path).map_err(|error| Error::io("read", &path, error))?.1)
}

fn recent(path: &Utf8Path) -> io::Result<(Tail<MetricSample>, Vec<MetricSample>)> {
    let enough = |samples: &[MetricSample]| samples.len() >= LINES && samples.iter().any(|sample| has_loss(&sample));
    Tail::near_end_with(path, FIRST_BYTES, MOST_BYTES, enough)
}

/// Returns whether a sample has a loss, which may be not finite.
fn has_loss(sample: &&MetricSample) -> bool {
    !sample.has_no_loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::fixtures::{node, temp};
    use rundir::{EventKind, LineAppender};

    fn line(step: u64, ranks: usize) -> MetricSample {
        let by_rank = vec![12.345; ranks];
        MetricSample {
            step,
            mem_gib_by_rank: by_rank.clone(),
            mem_peak_gib_by_rank: by_rank.clone(),
            step_s_by_rank: by_rank.clone(),
            busy_s_by_rank: by_rank,
            ..MetricSample::default()
        }
    }

    #[test]
    fn the_recent_samples_are_the_last_ones_for_any_number_of_ranks() {
        for ranks in [1, 512] {
            let (_keep, run) = temp();
            assert!(recent_metrics(&run).unwrap().is_empty());
            let mut file = LineAppender::open(&run.metrics()).unwrap();
            for step in 1..=1000 {
                file.append(&line(step, ranks)).unwrap();
            }
            let recent = recent_metrics(&run).unwrap();
            assert_eq!(recent.last().unwrap().step, 1000);
            assert!((LINES..1000).contains(&recent.len()), "{}", recent.len());
        }
    }

    #[test]
    fn the_last_loss_stays_after_many_steps_without_one() {
        let (_keep, run) = temp();
        let cache = NewestCache::default();
        let mut file = LineAppender::open(&run.metrics()).unwrap();
        file.append(&MetricSample { loss: Some(0.5), ..line(1, 2) }).unwrap();
        let without = |step| MetricSample { has_no_loss: true, validation_loss: Some(0.7), ..line(step, 64) };
        for step in 2..=1000 {
            file.append(&without(step)).unwrap();
        }
        let loss = |cache: &NewestCache| cache.newest(&run, []).unwrap().with_loss.clone().and_then(|last| last.loss);
        assert_eq!(loss(&cache), Some(0.5));
        file.append(&MetricSample { loss: Some(0.25), ..line(1001, 2) }).unwrap();
        (1002..=1200).for_each(|step| file.append(&without(step)).unwrap());
        assert_eq!((loss(&cache), loss(&NewestCache::default())), (Some(0.25), Some(0.25)));
    }

    #[test]
    fn a_forgotten_run_is_read_again_when_it_is_requested() {
        let (_keep, run) = temp();
        let cache = NewestCache::default();
        LineAppender::open(&run.metrics()).unwrap().append(&line(1, 2)).unwrap();
        let first = cache.newest(&run, []).unwrap();
        cache.forget(&run);
        assert_eq!(Arc::strong_count(&first), 1, "the cache has dropped it");
        assert_eq!(cache.newest(&run, []).unwrap(), first);
    }

    #[test]
    fn new_lines_are_added_and_old_ones_are_dropped() {
        let (_keep, run) = temp();
        let cache = NewestCache::default();
        let newest = || cache.newest(&run, [&node("ml-1")]).unwrap();
        assert_eq!(*newest(), Newest::default());
        std::fs::create_dir_all(run.node_dir(&node("ml-1"))).unwrap();
        let event = |t, kind| Event::new(t, 1, None, kind);
        LineAppender::open(&run.events()).unwrap().append(&event(5.0, EventKind::Finished)).unwrap();
        let mut steps = LineAppender::open(&run.metrics()).unwrap();
        for step in 1..=200 {
            steps.append(&line(step, 2)).unwrap();
        }
        let first = newest();
        assert_eq!((first.metrics.len(), first.metrics[LINES - 1].step, first.events.len()), (LINES, 200, 1));
        assert!(Arc::ptr_eq(&newest(), &first), "nothing was added");
        let late = event(4.0, EventKind::SignalReceived { signal: 15 });
        LineAppender::open(&run.node_events(&node("ml-1"))).unwrap().append(&late).unwrap();
        steps.append(&line(201, 2)).unwrap();
        let second = newest();
        assert_eq!((second.metrics.len(), second.metrics[0].step), (LINES, 201 - LINES as u64 + 1));
        assert_eq!(second.events.iter().map(|event| event.t).collect::<Vec<_>>(), [4.0, 5.0]);
        std::fs::write(run.metrics(), "").unwrap();
        LineAppender::open(&run.metrics()).unwrap().append(&line(1, 2)).unwrap();
        assert_eq!(newest().metrics, [line(1, 2)]);
        std::fs::write(run.events(), "").unwrap();
        assert_eq!(newest().events, [late], "events of a file that was replaced are not kept");
    }

    #[test]
    fn a_run_whose_disk_hangs_does_not_block_another() {
        let ((_keep, hangs), (_too, other)) = (temp(), temp());
        let cache = NewestCache::default();
        let tails = cache.tails(&hangs);
        // A thread that waits for the disk of a run has this lock.
        let _waits = tails.lock().unwrap();
        assert_eq!(*cache.newest(&other, []).unwrap(), Newest::default());
    }
}
