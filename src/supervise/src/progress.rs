//! Sums the progress that ranks report, and writes it as the run's metrics, for runs whose ranks work independently.
//!
//! Any rank and any node may be lost, so any supervisor can be the writer. A file names the writer, which updates it at
//! each check. A supervisor that sees no change of the file for [`EXPIRY`] becomes the writer.

use std::fs;
use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cluster::{NodeId, RankPlace};
use rundir::{
    EncodeStageCount, EncodeStages, ItemCounts, ItemsSample, LineAppender, MetricSample, QueueReady, RankProgress,
    RunDir, log, now_s, write_atomic,
};

use crate::job::Job;

/// The interval at which the reports are read.
const LOOK: Duration = Duration::from_secs(1);
/// The minimum number of seconds between two lines.
const LINE_S: f64 = 2.0;
/// The time after which a writer whose file does not change counts as lost.
const EXPIRY: Duration = Duration::from_secs(10);

/// Follows the reports in a separate thread.
pub struct ProgressWriter {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl ProgressWriter {
    /// Starts the thread on the node of a job.
    pub fn start(job: &Job) -> Self {
        let (end, ended) = mpsc::channel();
        let (run, attempt) = (job.run.clone(), job.attempt.number);
        let mut role = Role::new(run.clone(), attempt, job.node.clone(), job.has_first_rank());
        let mut merger = Merger::new(attempt, job.attempt.placement.ranks.clone());
        let thread = thread::spawn(move || {
            let mut file = None;
            loop {
                let is_end = !matches!(ended.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout));
                if role.is_writer()
                    && let Some(line) = merger.line(&run, now_s(), is_end)
                {
                    append(&run, &mut file, &line);
                }
                if is_end {
                    return role.leave();
                }
            }
        });
        Self { end, thread }
    }

    /// Writes a last line and ends.
    pub fn end(self) {
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

/// Appends a line. An error is only logged, because a missing line must not end the run.
fn append(run: &RunDir, file: &mut Option<LineAppender>, line: &MetricSample) {
    let path = run.metrics();
    if file.is_none() {
        *file = LineAppender::open(&path).inspect_err(|error| log!("cannot open {path}: {error}")).ok();
    }
    if let Some(error) = file.as_mut().and_then(|file| file.append(line).err()) {
        log!("cannot append to {path}: {error}");
    }
}

/// The role of the writer. One supervisor has it at a time.
struct Role {
    run: RunDir,
    attempt: u32,
    node: NodeId,
    beats: u64,
    /// The content of the writer's file, and the time of its last change.
    seen: (Vec<u8>, Instant),
    is_mine: bool,
    /// The time from which this node may take the role. The first node may take it at the start.
    begins: Instant,
}

impl Role {
    fn new(run: RunDir, attempt: u32, node: NodeId, is_first: bool) -> Self {
        let now = Instant::now();
        let begins = if is_first { now } else { now + EXPIRY };
        Self { run, attempt, node, beats: 0, seen: (Vec::new(), now), is_mine: false, begins }
    }

    /// Renews the role, or takes it over from a lost writer. Returns whether this node has the role now.
    fn is_writer(&mut self) -> bool {
        let path = self.run.metrics_writer(self.attempt);
        let own = format!("{} ", self.node);
        let now = Instant::now();
        match fs::read(&path) {
            Ok(held) if held.starts_with(own.as_bytes()) => self.is_mine = true,
            Ok(held) => {
                self.is_mine = false;
                if held != self.seen.0 {
                    self.seen = (held, now);
                }
                if now.duration_since(self.seen.1) >= EXPIRY {
                    // If several supervisors take over at once, the last one wins; the next check shows which it was.
                    self.beat(&own);
                    self.seen.1 = now;
                }
                return false;
            }
            Err(_) if now < self.begins => return false,
            Err(_) => {
                let created = fs::OpenOptions::new().write(true).create_new(true).open(&path);
                self.is_mine = created.and_then(|mut file| file.write_all(own.as_bytes())).is_ok();
            }
        }
        if self.is_mine {
            self.beat(&own);
        }
        self.is_mine
    }

    fn beat(&mut self, own: &str) {
        self.beats += 1;
        let path = self.run.metrics_writer(self.attempt);
        if let Err(error) = write_atomic(&path, format!("{own}{}", self.beats).as_bytes()) {
            log!("{error}");
        }
    }

    /// Gives up the role by removing the file, so that another node can take the role at once.
    fn leave(&mut self) {
        if self.is_mine {
            let _ = fs::remove_file(self.run.metrics_writer(self.attempt));
        }
    }
}

/// Makes lines of `metrics.jsonl` from the reports of ranks.
struct Merger {
    attempt: u32,
    places: Vec<RankPlace>,
    ready: Option<QueueReady>,
    /// The time and the content of the line before.
    before: (f64, ItemsSample),
}

impl Merger {
    fn new(attempt: u32, places: Vec<RankPlace>) -> Self {
        Self { attempt, places, ready: None, before: (now_s(), ItemsSample::default()) }
    }

    /// Returns the next line, if the progress has changed and the last line is at least [`LINE_S`] old or the run ends.
    fn line(&mut self, run: &RunDir, now: f64, is_end: bool) -> Option<MetricSample> {
        if self.ready.is_none() {
            self.ready = Some(run.read_queue_ready(self.attempt)?);
            let counts = self.ready.as_ref()?.counts;
            self.before = (now, ItemsSample { counts, ..ItemsSample::default() });
        }
        let base = self.ready.as_ref()?.counts;
        let report = |place: &RankPlace| run.read_rank_progress(&place.node, self.attempt, place.rank);
        let reports: Vec<Option<RankProgress>> = self.places.iter().map(report).collect();
        let sample = merge(self.attempt, base, &reports, &self.before, now);
        let items = sample.items.clone()?;
        let is_news = items.counts != self.before.1.counts || items.stages != self.before.1.stages;
        if !is_news || (now - self.before.0 < LINE_S && !is_end) {
            return None;
        }
        self.before = (now, items);
        Some(sample)
    }
}

/// Sums the reports of ranks. `before` is the time and the content of the line before.
fn merge(
    attempt: u32,
    base: ItemCounts,
    reports: &[Option<RankProgress>],
    before: &(f64, ItemsSample),
    now: f64,
) -> MetricSample {
    let there = || reports.iter().flatten();
    let exact = there().filter_map(|report| report.exact).max_by_key(ItemCounts::done);
    let counts = exact.unwrap_or_else(|| ItemCounts {
        clips_done: base.clips_done + there().map(|report| report.clips_done).sum::<u64>(),
        texts_done: base.texts_done + there().map(|report| report.texts_done).sum::<u64>(),
        failed: base.failed + there().map(|report| report.failed).sum::<u64>(),
        ..base
    });
    let add = |sum: EncodeStages<EncodeStageCount>, report: &RankProgress| sum.zip(report.stages, |a, b| a + b);
    let stages = there().fold(EncodeStages::default(), add);
    let seconds = (now - before.0).max(1e-3);
    let per_s = stages.zip(before.1.stages, |now, before| now.items.saturating_sub(before.items) as f64 / seconds);
    let done = counts.done().saturating_sub(before.1.counts.done());
    let of_rank = |value: fn(&RankProgress) -> f64| -> Vec<f64> {
        reports.iter().map(|report| report.as_ref().map_or(0.0, value)).collect()
    };
    let per_clip = of_rank(|report| report.stages.vae.busy_s / report.stages.vae.items.max(1) as f64);
    MetricSample {
        attempt,
        step: counts.done(),
        t: now,
        step_s: seconds / done.max(1) as f64,
        samples_per_s: done as f64 / seconds,
        mem_gib_by_rank: of_rank(|report| report.mem_gib),
        mem_peak_gib_by_rank: of_rank(|report| report.mem_peak_gib),
        busy_s_by_rank: if per_clip.iter().all(|seconds| *seconds > 0.0) { per_clip } else { Vec::new() },
        items: Some(ItemsSample { counts, stages, per_s, ranks: there().count() }),
        ..MetricSample::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::fixtures::{node, temp};

    fn report(rank: usize, clips: u64, texts: u64) -> RankProgress {
        let vae = EncodeStageCount { items: clips, busy_s: clips as f64 * 0.5, ..EncodeStageCount::default() };
        let text = EncodeStageCount { items: texts, ..EncodeStageCount::default() };
        RankProgress {
            v: 1,
            rank,
            t: 0.0,
            clips_done: clips,
            texts_done: texts,
            failed: 0,
            stages: EncodeStages { vae, text, ..EncodeStages::default() },
            mem_gib: 1.0,
            mem_peak_gib: 2.0,
            exact: None,
        }
    }

    #[test]
    fn the_reports_of_all_ranks_are_added_to_the_counts_of_earlier_attempts() {
        let base = ItemCounts { clips_done: 10, clips: 100, texts_done: 5, texts: 50, failed: 1 };
        let reports = [Some(report(0, 4, 2)), None, Some(report(2, 6, 3))];
        let before = (10.0, ItemsSample { counts: base, ..ItemsSample::default() });
        let line = merge(2, base, &reports, &before, 15.0);
        let items = line.items.unwrap();
        assert_eq!(items.counts, ItemCounts { clips_done: 20, texts_done: 10, ..base });
        assert_eq!((line.step, items.ranks, items.per_s.vae, items.per_s.text), (31, 2, 2.0, 1.0));
        assert_eq!(line.step_s, 5.0 / 15.0);
        assert!(line.busy_s_by_rank.is_empty(), "a rank has not reported");
        // The counts of the queue are exact, while a rank that was killed could not report its last items.
        let exact = Some(ItemCounts { clips_done: 99, texts_done: 50, ..base });
        let reports = [Some(RankProgress { exact, ..report(0, 4, 2) }), None];
        assert_eq!(merge(2, base, &reports, &before, 15.0).step, 150);
    }

    #[test]
    fn a_line_is_written_only_if_the_progress_changed() {
        let (_keep, run) = temp();
        let node = node("ml-1");
        fs::create_dir_all(run.node_dir(&node)).unwrap();
        fs::create_dir_all(run.attempt_dir(1)).unwrap();
        let place = RankPlace { rank: 0, node: node.clone(), local_rank: 0 };
        let mut merger = Merger::new(1, vec![place]);
        assert!(merger.line(&run, 100.0, false).is_none(), "no queue");
        let counts = ItemCounts { clips: 3, ..ItemCounts::default() };
        run.write_queue_ready(1, &QueueReady { v: 1, rank: 0, data: "/data".into(), counts }).unwrap();
        assert!(merger.line(&run, 100.0, false).is_none(), "no report");
        run.write_rank_progress(&node, 1, &report(0, 1, 0)).unwrap();
        assert!(merger.line(&run, 101.0, false).is_none(), "too early");
        assert_eq!(merger.line(&run, 103.0, false).unwrap().step, 1);
        assert!(merger.line(&run, 110.0, true).is_none(), "nothing new");
        run.write_rank_progress(&node, 1, &report(0, 3, 0)).unwrap();
        assert_eq!(merger.line(&run, 110.5, true).unwrap().step, 3, "the last line is written at once");
    }

    #[test]
    fn another_node_writes_once_the_writer_is_gone() {
        let (_keep, run) = temp();
        fs::create_dir_all(run.attempt_dir(1)).unwrap();
        let mut first = Role::new(run.clone(), 1, node("ml-1"), true);
        let mut second = Role::new(run.clone(), 1, node("ml-2"), false);
        assert!(!second.is_writer(), "the first node writes at the start");
        assert!(first.is_writer() && first.is_writer());
        assert!(!second.is_writer());
        second.seen.1 -= EXPIRY;
        assert!(!second.is_writer() && second.is_writer(), "the first node has not checked");
        assert!(!first.is_writer(), "it gives up");
        second.leave();
        assert!(first.is_writer());
    }
}
