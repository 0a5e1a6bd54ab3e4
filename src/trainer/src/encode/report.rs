//! Counts the items that a rank encodes, and reports its progress about once a second.

use crate::memory::Memory;
use cluster::RankPlace;
use rundir::{
    EncodeStageCount, EncodeStages, Event, EventKind, Failure, ItemCounts, LineAppender, RankProgress, RunDir, SCHEMA,
    now_s,
};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tch::Device;

/// The interval between reports.
const EVERY: Duration = Duration::from_secs(1);
/// The maximum number of failed items that a rank logs as events. `vidtui data show` lists all failed items.
const MAX_EVENTS: u64 = 1000;

/// The counters of the rank, which its threads share.
#[derive(Debug, Clone)]
pub struct Counts {
    done: Arc<Mutex<Done>>,
    place: RankPlace,
    attempt: u32,
    /// The event file of this node. Ranks of other nodes append to other files.
    events: camino::Utf8PathBuf,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Done {
    clips: u64,
    texts: u64,
    failed: u64,
    stages: EncodeStages<EncodeStageCount>,
    exact: Option<ItemCounts>,
}

/// A stage of an encode.
#[derive(Debug, Clone, Copy)]
pub enum EncodeStage {
    Probe,
    Decode,
    Vae,
    Text,
}

impl Counts {
    fn change(&self, change: impl FnOnce(&mut Done)) {
        change(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts an item of a stage that started at `began` and produced `bytes` bytes.
    pub fn passed(&self, stage: EncodeStage, began: Instant, bytes: u64) {
        let busy_s = began.elapsed().as_secs_f64();
        self.change(|done| {
            let count = of(&mut done.stages, stage);
            *count = *count + EncodeStageCount { items: 1, bytes, busy_s, ..EncodeStageCount::default() };
        });
    }

    /// Counts an item that failed in a stage. The rank's total of failed items changes only when the failure is stored.
    pub fn failed_in(&self, stage: EncodeStage) {
        self.change(|done| of(&mut done.stages, stage).failed += 1);
    }

    /// Adds the time since `began` to the time that a stage waited for the stage before it.
    pub fn waited(&self, stage: EncodeStage, began: Instant) {
        self.change(|done| of(&mut done.stages, stage).wait_s += began.elapsed().as_secs_f64());
    }

    /// Counts items that now wait for a stage.
    pub fn queued(&self, stage: EncodeStage, items: usize) {
        self.change(|done| of(&mut done.stages, stage).waiting += items as u64);
    }

    /// Counts items that no longer wait for a stage: the stage has begun with them, or an earlier stage failed.
    pub fn begun(&self, stage: EncodeStage, items: usize) {
        self.change(|done| {
            let waiting = &mut of(&mut done.stages, stage).waiting;
            *waiting = waiting.saturating_sub(items as u64);
        });
    }

    /// Sets the number of items that wait for these stages to 0, because the rank gave back its claims.
    pub fn released(&self, stages: &[EncodeStage]) {
        self.change(|done| stages.iter().for_each(|stage| of(&mut done.stages, *stage).waiting = 0));
    }

    /// Counts an item as stored.
    pub fn stored(&self, stage: EncodeStage) {
        self.change(|done| match stage {
            EncodeStage::Text => done.texts += 1,
            _ => done.clips += 1,
        });
    }

    /// Counts an item whose failure is stored, and records it as an event of the run.
    pub fn quarantined(&self, item: &str, failure: Failure) {
        self.change(|done| done.failed += 1);
        if self.read().failed > MAX_EVENTS {
            return;
        }
        let kind = EventKind::ItemFailed { item: item.to_owned(), failure };
        let event = Event::new(now_s(), self.attempt, None, kind).by_rank(self.place.rank);
        let event = event.by_node(self.place.node.clone());
        let written = LineAppender::open(&self.events).and_then(|mut file| file.append(&event));
        if let Err(error) = written {
            rundir::log!("cannot log an event to {}: {error}", self.events);
        }
    }

    fn read(&self) -> Done {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(stages: &mut EncodeStages<EncodeStageCount>, stage: EncodeStage) -> &mut EncodeStageCount {
    match stage {
        EncodeStage::Probe => &mut stages.probe,
        EncodeStage::Decode => &mut stages.decode,
        EncodeStage::Vae => &mut stages.vae,
        EncodeStage::Text => &mut stages.text,
    }
}

/// The thread that writes the report. Dropping it writes a last report.
pub struct Report {
    counts: Counts,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Report {
    /// Starts the thread.
    pub fn start(run: &RunDir, place: &RankPlace, attempt: u32, device: Device) -> Self {
        let events = run.node_events(&place.node);
        let counts = Counts { done: Arc::default(), place: place.clone(), attempt, events };
        let (end, ended) = mpsc::channel();
        let (run, place, shared) = (run.clone(), place.clone(), counts.clone());
        let thread = thread::spawn(move || {
            let mut written = None;
            loop {
                let is_end = !matches!(ended.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout));
                let done = shared.read();
                if written != Some(done) {
                    let report = progress(&place, &done, device);
                    // A report that could not be written is ignored, because the next one replaces it.
                    match run.write_rank_progress(&place.node, attempt, &report) {
                        Ok(()) => written = Some(done),
                        Err(error) => rundir::log!("{error}"),
                    }
                }
                if is_end {
                    return;
                }
            }
        });
        Self { counts, end: Some(end), thread: Some(thread) }
    }

    /// Returns the counters that the report is made from.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Writes the last report, with the exact counts of the queue if they are known.
    pub fn end(self, exact: Option<ItemCounts>) {
        self.counts.change(|done| done.exact = exact);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn progress(place: &RankPlace, done: &Done, device: Device) -> RankProgress {
    let memory = Memory::of(device);
    RankProgress {
        v: SCHEMA,
        rank: place.rank,
        t: now_s(),
        clips_done: done.clips,
        texts_done: done.texts,
        failed: done.failed,
        stages: done.stages,
        mem_gib: memory.now_gib,
        mem_peak_gib: memory.peak_gib,
        exact: done.exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::NodeId;

    #[test]
    fn items_wait_for_a_stage_until_it_begins_or_gives_them_back() {
        let place = RankPlace { rank: 0, node: NodeId::new("here").unwrap(), local_rank: 0 };
        let counts = Counts { done: Arc::default(), place, attempt: 1, events: "/nowhere".into() };
        let waiting = || {
            let EncodeStages { decode, vae, .. } = counts.read().stages;
            [decode.waiting, vae.waiting]
        };
        counts.queued(EncodeStage::Decode, 3);
        counts.queued(EncodeStage::Decode, 2);
        counts.begun(EncodeStage::Decode, 1);
        counts.queued(EncodeStage::Vae, 1);
        assert_eq!(waiting(), [4, 1]);
        counts.begun(EncodeStage::Vae, 1);
        counts.released(&[EncodeStage::Decode]);
        assert_eq!(waiting(), [0, 0]);
    }
}
