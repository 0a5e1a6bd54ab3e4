//! The progress of an encode, whose steps are items (clips and captions): the report of each rank, and the sum of the
//! reports in a line of `metrics.jsonl`.

use crate::{Error, RunDir, SCHEMA, write_atomic};
use camino::Utf8PathBuf;
use cluster::NodeId;
use serde::{Deserialize, Serialize};
use text_file::{MAX_TEXT, read_regular};

/// The stages of an encode, in the order in which a clip passes them; captions pass only the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EncodeStages<T> {
    /// Reads the times of the frames of a video.
    pub probe: T,
    /// Decodes the chosen frames.
    pub decode: T,
    /// Encodes frames to latents.
    pub vae: T,
    /// Encodes captions.
    pub text: T,
}

impl<T> EncodeStages<T> {
    /// Combines two values stage by stage with a function.
    pub fn zip<U, V>(self, other: EncodeStages<U>, mut with: impl FnMut(T, U) -> V) -> EncodeStages<V> {
        EncodeStages {
            probe: with(self.probe, other.probe),
            decode: with(self.decode, other.decode),
            vae: with(self.vae, other.vae),
            text: with(self.text, other.text),
        }
    }
}

/// The work of a stage since the attempt began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EncodeStageCount {
    /// Items that passed the stage.
    pub items: u64,
    /// Items that failed in the stage.
    pub failed: u64,
    /// Bytes that the stage produced.
    pub bytes: u64,
    /// Items that wait for the stage now.
    pub waiting: u64,
    /// Seconds that the stage worked, over all threads.
    pub busy_s: f64,
    /// Seconds that the stage waited for the stage before it.
    pub wait_s: f64,
}

impl std::ops::Add for EncodeStageCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            items: self.items + other.items,
            failed: self.failed + other.failed,
            bytes: self.bytes + other.bytes,
            waiting: self.waiting + other.waiting,
            busy_s: self.busy_s + other.busy_s,
            wait_s: self.wait_s + other.wait_s,
        }
    }
}

/// The number of done items and of all items of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemCounts {
    /// Clips that are stored.
    pub clips_done: u64,
    /// Clips of the run.
    pub clips: u64,
    /// Captions that are stored.
    pub texts_done: u64,
    /// Captions of the run.
    pub texts: u64,
    /// Items that failed.
    pub failed: u64,
}

impl ItemCounts {
    /// Returns the number of items that need no more work. This is the step of the run.
    pub fn done(&self) -> u64 {
        self.clips_done + self.texts_done + self.failed
    }

    /// Returns the number of items of the run.
    pub fn total(&self) -> u64 {
        self.clips + self.texts
    }

    /// Returns whether captions are encoded now: they come before clips.
    pub fn is_at_captions(&self) -> bool {
        self.clips == 0 || (self.clips_done == 0 && self.texts_done < self.texts)
    }

    /// Returns the progress of the items and the number of failures: `1,204 of 9,849 clips · 3 failed`.
    pub fn in_words(&self) -> String {
        let of = |done, all, what| format!("{} of {} {what}", units::grouped(done), units::grouped(all));
        let mut words = match self.is_at_captions() {
            true => of(self.texts_done, self.texts, "captions"),
            false => of(self.clips_done, self.clips, "clips"),
        };
        if self.failed > 0 {
            words += &format!(" · {} failed", units::grouped(self.failed));
        }
        words
    }
}

/// The items in a line of `metrics.jsonl`, summed over all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemsSample {
    /// The completed items of all attempts.
    #[serde(flatten)]
    pub counts: ItemCounts,
    /// The work of each stage in this attempt.
    pub stages: EncodeStages<EncodeStageCount>,
    /// Items per second of each stage since the line before.
    pub per_s: EncodeStages<f64>,
    /// The number of ranks that have reported.
    pub ranks: usize,
}

/// The content of `queue.json`. A rank writes this file once, after it has created the work queue of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueReady {
    /// [`SCHEMA`].
    pub v: u32,
    /// The rank that created the queue.
    pub rank: usize,
    /// The folder of the data set.
    pub data: Utf8PathBuf,
    /// The completed items of earlier attempts.
    pub counts: ItemCounts,
}

/// The work of one rank in an attempt. The rank replaces the file about once a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankProgress {
    /// [`SCHEMA`].
    pub v: u32,
    /// The rank.
    pub rank: usize,
    /// When, Unix seconds.
    pub t: f64,
    /// Clips that it stored.
    pub clips_done: u64,
    /// Captions that it stored.
    pub texts_done: u64,
    /// Items that failed.
    pub failed: u64,
    /// The work of its stages.
    pub stages: EncodeStages<EncodeStageCount>,
    /// Memory in use, GiB.
    pub mem_gib: f64,
    /// Peak of memory in use, GiB.
    pub mem_peak_gib: f64,
    /// The exact counts from the queue. The rank sets them once it has found that all items are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<ItemCounts>,
}

impl RunDir {
    /// Returns the file whose existence shows that the work queue of an attempt exists ([`QueueReady`]).
    pub fn queue_ready(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("queue.json")
    }

    /// Returns the file in which a rank reports its progress ([`RankProgress`]).
    pub fn rank_progress(&self, node: &NodeId, attempt: u32, rank: usize) -> Utf8PathBuf {
        self.node_dir(node).join(format!("{attempt:04}-rank-{rank:05}.progress.json"))
    }

    /// Returns the file that names the node whose supervisor writes `metrics.jsonl`, in a run in which no rank writes
    /// it.
    pub fn metrics_writer(&self, attempt: u32) -> Utf8PathBuf {
        self.attempt_dir(attempt).join("metrics-writer")
    }

    /// Reads `queue.json` of an attempt. Returns `None` before the queue exists.
    pub fn read_queue_ready(&self, attempt: u32) -> Option<QueueReady> {
        let ready: QueueReady =
            serde_json::from_slice(&read_regular(self.queue_ready(attempt), MAX_TEXT).ok()?).ok()?;
        (ready.v <= SCHEMA).then_some(ready)
    }

    /// Writes `queue.json` of an attempt.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_queue_ready(&self, attempt: u32, ready: &QueueReady) -> Result<(), Error> {
        write_json(&self.queue_ready(attempt), ready)
    }

    /// Reads the progress of a rank. Returns `None` before its first report.
    pub fn read_rank_progress(&self, node: &NodeId, attempt: u32, rank: usize) -> Option<RankProgress> {
        let progress: RankProgress =
            serde_json::from_slice(&read_regular(self.rank_progress(node, attempt, rank), MAX_TEXT).ok()?).ok()?;
        (progress.v <= SCHEMA).then_some(progress)
    }

    /// Writes the progress of a rank.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_rank_progress(&self, node: &NodeId, attempt: u32, progress: &RankProgress) -> Result<(), Error> {
        write_json(&self.rank_progress(node, attempt, progress.rank), progress)
    }
}

fn write_json<T: Serialize>(path: &Utf8PathBuf, value: &T) -> Result<(), Error> {
    let text =
        serde_json::to_vec(value).map_err(|e| Error::malformed(path, format!("the value has no JSON form: {e}")))?;
    write_atomic(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetricSample;
    use crate::fixtures::{node, temp};
    use std::fs;

    #[test]
    fn progress_is_read_as_it_was_written_and_a_newer_one_is_ignored() {
        let (_keep, run) = temp();
        let node = node("ml-1");
        fs::create_dir_all(run.node_dir(&node)).unwrap();
        fs::create_dir_all(run.attempt_dir(1)).unwrap();
        assert_eq!((run.read_rank_progress(&node, 1, 0), run.read_queue_ready(1)), (None, None));
        let stages = EncodeStages {
            vae: EncodeStageCount { items: 3, busy_s: 1.5, ..EncodeStageCount::default() },
            ..EncodeStages::default()
        };
        let (clips_done, texts_done, failed) = (3, 2, 1);
        let mut progress = RankProgress {
            v: SCHEMA,
            rank: 0,
            t: 5.0,
            clips_done,
            texts_done,
            failed,
            stages,
            mem_gib: 1.0,
            mem_peak_gib: 2.0,
            exact: None,
        };
        run.write_rank_progress(&node, 1, &progress).unwrap();
        assert_eq!(run.read_rank_progress(&node, 1, 0), Some(progress.clone()));
        progress.v = SCHEMA + 1;
        run.write_rank_progress(&node, 1, &progress).unwrap();
        assert_eq!(run.read_rank_progress(&node, 1, 0), None);
        let ready = QueueReady { v: SCHEMA, rank: 0, data: "/data".into(), counts: ItemCounts::default() };
        run.write_queue_ready(1, &ready).unwrap();
        assert_eq!(run.read_queue_ready(1), Some(ready));
    }

    #[test]
    fn progress_counts_captions_first_and_then_clips() {
        let counts =
            |clips_done, texts_done, failed| ItemCounts { clips_done, clips: 849, texts_done, texts: 50, failed };
        let shown = [counts(0, 12, 0), counts(0, 50, 0), counts(204, 50, 3)].map(|counts| counts.in_words());
        insta::assert_snapshot!(shown.join("\n"), @r"
        12 of 50 captions
        0 of 849 clips
        204 of 849 clips · 3 failed
        ");
    }

    #[test]
    fn items_are_part_of_a_line_of_metrics_only_where_steps_are_items() {
        let line = |items| serde_json::to_string(&MetricSample { items, ..MetricSample::default() }).unwrap();
        assert!(!line(None).contains("items"));
        let items = ItemsSample {
            ranks: 2,
            counts: ItemCounts { clips: 9, ..ItemCounts::default() },
            ..ItemsSample::default()
        };
        let read: MetricSample = serde_json::from_str(&line(Some(items.clone()))).unwrap();
        assert_eq!(read.items, Some(items));
    }
}
